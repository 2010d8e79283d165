"""One run of a program: its output, its time to the first byte, its peak memory."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

from peer import Failure

# The kernel counts in KiB on Linux, in bytes on macOS.
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass
class Run:
    output: str
    first_byte_s: float | None
    total_s: float
    peak_bytes: int


def execute(command, timeout, environment=None):
    """Runs a command to its end.

    The peak is that of this process alone, as wait4 gives it. A new process begins with the peak of the one that
    starts it, here a small Python program, which no model stays below.
    """
    expired = threading.Event()
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment
        )

        def stop():
            expired.set()
            os.kill(child.pid, signal.SIGKILL)

        timer = threading.Timer(timeout, stop)
        timer.start()
        try:
            chunks, first_byte = [], None
            while chunk := os.read(child.stdout.fileno(), 1 << 16):
                if first_byte is None:
                    first_byte = time.perf_counter() - start
                chunks.append(chunk)
        except BaseException:
            child.kill()
            raise
        finally:
            _, status, usage = os.wait4(child.pid, 0)
            total = time.perf_counter() - start
            timer.cancel()
            child.returncode = os.waitstatus_to_exitcode(status)
            child.stdout.close()
        if child.returncode != 0:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
            last = said.splitlines()[-1] if said else "it said nothing"
            reason = f"ran past {timeout} s" if expired.is_set() else f"exit status {child.returncode}: {last}"
            raise Failure(f"{shlex.join(map(str, command))}: {reason}")
    return Run(
        b"".join(chunks).decode(errors="replace"), first_byte, total, usage.ru_maxrss * MAXRSS_UNIT
    )


def parsed(run, command):
    """The JSON that a run printed."""
    try:
        return json.loads(run.output)
    except ValueError as error:
        raise Failure(f"{shlex.join(map(str, command))}: printed no JSON: {error}") from None


def evict(path):
    """Asks the kernel to forget a file's pages, for a start from the disk. False where that cannot be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True
