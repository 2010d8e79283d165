"""The model files of the comparison: fetched, or made from a fetched one by the peer's own quantiser."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from peer import Failure, say

ROOT = Path(__file__).resolve().parent.parent
FETCH = ROOT / "scripts" / "fetch-test-models.py"
BASE = "smollm2-135m-instruct"
SOURCE = f"{BASE}-q4_1.gguf"


@dataclass
class Model:
    name: str
    path: Path


# Short name, file, and the name by which scripts/fetch-test-models.py knows it or the type to requantise to.
FETCHED = {
    "smollm2-q4_1": (SOURCE, "smollm2"),
    "gemma3-270m": ("gemma-3-270m-q4_k_m.gguf", "gemma3-270m"),
    "qwen2.5-0.5b": ("qwen2.5-coder-0.5b.gguf", "qwen2.5-coder-0.5b"),
}
REQUANTISED = {
    f"smollm2-{kind.lower()}": kind
    for kind in ["Q8_0", "Q4_K_M", "Q4_0", "F16", "BF16", "Q5_0", "Q5_K_M", "Q6_K", "IQ4_XS"]
}
LARGER = ["qwen2.5-0.5b"]
KNOWN = [*REQUANTISED, *FETCHED]
DEFAULT = [name for name in KNOWN if name not in LARGER]


def fetch(folder, file, name):
    path = folder / file
    if path.is_file():
        return path
    say(f"fetching the model {name}")
    done = subprocess.run(
        [sys.executable, str(FETCH), "--cache", str(folder), name], stdout=subprocess.PIPE
    )
    if done.returncode != 0 or not path.is_file():
        raise Failure(f"the model {name} could not be fetched into {folder}")
    return path


def quantise(quantiser, source, target, kind):
    """Makes `target`; it appears under its name only when it is complete."""
    if target.is_file():
        return target
    say(f"making {target.name}")
    part = target.with_name(f".{os.getpid()}-{target.name}")
    command = [str(quantiser), "--allow-requantize", str(source), str(part), kind]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            last = (done.stdout.strip() or "it said nothing").splitlines()[-1]
            raise Failure(f"llama-quantize could not make {target.name}: {last}")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target


def prepare(name, folder, peer):
    """The file of a known model, fetched or made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    if name in FETCHED:
        return Model(name, fetch(folder, *FETCHED[name]))
    kind = REQUANTISED[name]
    target = folder / f"{BASE}-{kind.lower()}.gguf"
    if not target.is_file():
        quantiser = peer / "llama-quantize"
        source = fetch(folder, *FETCHED["smollm2-q4_1"])
        wide = quantise(quantiser, source, folder / f"{BASE}-f32.gguf", "F32")
        quantise(quantiser, wide, target, kind)
    return Model(name, target)
