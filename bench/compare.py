#!/usr/bin/env python3
"""Measure wootz beside llama.cpp in the same run, and print a table of both with their ratios.

Every sample is a program of its own: the peer with its defaults, the peer without weight repacking, and wootz, in
turns, so that all of them meet the same state of the machine. That state is measured before each turn. See
bench/README.md.
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import models
import peer
import report
from peer import Failure, say
from runs import evict, execute, parsed

ROOT = Path(__file__).resolve().parent.parent
TEST = re.compile(r"(?:pp([1-9]\d*)|tg([1-9]\d*)(?:x([1-9]\d*))?)(?:@([1-9]\d*))?")
# A text whose next token is a whole word in all models, so that it is printed at once.
PROMPT = "The capital of France is"
START_CONTEXT = 1024
DEFAULT, PLAIN, WOOTZ = "peer", "peer --repack 0", "wootz"
WAYS = [DEFAULT, PLAIN, WOOTZ]


def test_of(text):
    found = TEST.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: a test is ppN, tgN or tgNxSEQUENCES, each also with @DEPTH")
    prompt, generated, sequences, depth = found.groups()
    return {
        "name": text, "kind": "pp" if prompt else "tg", "length": int(prompt or generated),
        "sequences": int(sequences or 1), "depth": int(depth or 0),
    }


def listed(item):
    return lambda text: [item(part) for part in text.split(",") if part]


def options_of():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="MODEL",
        help=f"models by name (default: all but {', '.join(models.LARGER)}): {', '.join(models.KNOWN)}",
    )
    parser.add_argument("--all", action="store_true", help=f"also {', '.join(models.LARGER)}")
    parser.add_argument(
        "--model", type=Path, action="append", default=[], metavar="FILE",
        help="also this file; without names only such files are measured; may be repeated",
    )
    parser.add_argument(
        "--models", type=Path, default=ROOT / ".cache" / "models", metavar="DIR",
        help="folder of the model files, where missing ones are put (default: .cache/models)",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="samples of each (default: 5)")
    parser.add_argument(
        "--threads", type=listed(int), default=[1, 2], metavar="LIST", help="thread counts (default: 1,2)"
    )
    parser.add_argument(
        "--tests", type=listed(test_of), default=listed(test_of)("pp512,tg128"), metavar="LIST",
        help="ppN, tgN, tgNxSEQUENCES side by side, each also with @DEPTH (default: pp512,tg128)",
    )
    parser.add_argument("--no-start", action="store_true", help="leave out the time to the first token")
    parser.add_argument(
        "--avx2", action="store_true", help="build the peer for AVX2 and hide later instructions from wootz"
    )
    parser.add_argument(
        "--peer-cache", type=Path, default=ROOT / ".cache" / "peer", metavar="DIR",
        help="where the peer is fetched and built (default: .cache/peer)",
    )
    parser.add_argument("--peer-bin", type=Path, metavar="DIR", help="programs of the peer, built already")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations of the peer")
    parser.add_argument("--wootz", type=Path, metavar="FILE", help="wootz, built already")
    parser.add_argument(
        "--wootz-args", type=shlex.split, default=[], metavar="ARGS", help="more arguments for each run of wootz"
    )
    parser.add_argument("--timeout", type=float, default=900, metavar="S", help="limit of a run (default: 900)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all samples as JSON")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in models.KNOWN]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(models.KNOWN)}")
    if options.rounds < 1 or not options.threads or min(options.threads) < 1:
        parser.error("--rounds and --threads take numbers above 0")
    return options


def build_wootz():
    """wootz built for release from this checkout."""
    say("building wootz")
    command = ["cargo", "build", "--release", "--locked", "--bin", "wootz"]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise Failure("wootz could not be built")
    found = subprocess.run(
        ["cargo", "metadata", "--no-deps", "--format-version", "1"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )
    return Path(json.loads(found.stdout)["target_directory"]) / "release" / "wootz"


def build_probe(folder):
    """The program that measures the state of the machine."""
    source = Path(__file__).resolve().parent / "machine.rs"
    program = folder / "machine"
    if not program.is_file() or program.stat().st_mtime < source.stat().st_mtime:
        say("building the probe of the machine's state")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["rustc", "--edition", "2024", "-Copt-level=3", "-o", program, source]
        if subprocess.run(command).returncode != 0:
            raise Failure("bench/machine.rs could not be compiled")
    return program


def turns(round_number, ways):
    """The ways in an order that shifts with each round, so that none always follows the same one."""
    shift = round_number % len(ways)
    return ways[shift:] + ways[:shift]


class Comparison:
    def __init__(self, options):
        self.options = options
        if options.peer_bin:
            self.peer = options.peer_bin.resolve()
        else:
            self.peer = peer.install(options.peer_cache.resolve(), options.avx2, options.jobs)
        if not (self.peer / "llama-bench").is_file():
            raise Failure(f"{self.peer} has no llama-bench")
        self.wootz = options.wootz.resolve() if options.wootz else build_wootz()
        self.probe = build_probe(ROOT / ".cache" / "bench")
        self.environment = dict(os.environ)
        if options.avx2:
            self.environment["WOOTZ_CPU_ISA"] = "avx2"
        self.failures = []
        self.result = {"rows": [], "start": [], "failures": self.failures}

    def run(self, command, wootz=False):
        return execute(command, self.options.timeout, self.environment if wootz else None)

    def describe(self):
        """What is compared, and where."""
        devices = self.run([self.wootz, "devices"], wootz=True).output
        self.result["about"] = {
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "cpu": " ".join(devices.splitlines()[0].split()),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "peer": peer.PACKAGE if not self.options.peer_bin else "a build given by --peer-bin",
            "wootz": self.run([self.wootz, "--version"], wootz=True).output.strip(),
            "wootz_args": self.options.wootz_args,
            "avx2": self.options.avx2,
            "rounds": self.options.rounds,
            "load_before": os.getloadavg(),
        }
        self.before = report.processor_times()

    def finish(self):
        about = self.result["about"]
        about["load_after"] = os.getloadavg()
        about["stolen"] = report.stolen_share(self.before, report.processor_times())

    def save(self):
        if self.options.out:
            self.finish()
            self.options.out.write_text(json.dumps(self.result, indent=1) + "\n")

    def state(self, threads):
        return parsed(self.run([self.probe, str(threads)]), [self.probe])

    def limits(self, model, threads):
        """Peak of 8-bit products as wootz measures it, in Gop/s; None where it says none."""
        command = [self.wootz, "trace", "-p", "1", "-n", "0", "-t", str(threads), *self.options.wootz_args, model.path]
        found = re.search(r"products ([\d.]+) Gop/s", self.run(command, wootz=True).output)
        return float(found[1]) if found else None

    def weights(self, model):
        """Bytes of weights that a token reads, and operations of the matrices in layers, a token."""
        command = [self.wootz, "inspect", "--json", model.path]
        tensors = parsed(self.run(command, wootz=True), command)["tensors"]
        if any(len(tensor["dims"]) > 2 for tensor in tensors):
            return None, None  # Experts: a token reads a few of them.
        tied = all(tensor["name"] != "output.weight" for tensor in tensors)
        read = sum(t["bytes"] for t in tensors if tied or t["name"] != "token_embd.weight")
        matrices = [t["dims"] for t in tensors if t["name"].startswith("blk.") and len(t["dims"]) == 2]
        return read, 2 * sum(rows * cols for rows, cols in matrices)

    def speed_command(self, way, model, test, threads):
        lengths = ["-p", test["length"], "-n", 0] if test["kind"] == "pp" else ["-p", 0, "-n", test["length"]]
        shared = [*lengths, "-d", test["depth"], "-r", 1, "-t", threads, "-o", "json"]
        if way == WOOTZ:
            sequences = ["-s", test["sequences"]]
            command = [self.wootz, "bench", *shared, *sequences, *self.options.wootz_args, model.path]
        elif test["sequences"] > 1:
            # Its prompts must not be empty.
            depth = max(test["depth"], 1)
            command = [
                self.peer / "llama-batched-bench", "-m", model.path, "-npp", depth, "-ntg", test["length"],
                "-npl", test["sequences"], "-c", (depth + test["length"]) * test["sequences"], "-t", threads,
                "-fa", "on", "--output-format", "jsonl", *(["--no-repack"] if way == PLAIN else []),
            ]
        else:
            repack = ["--repack", 0] if way == PLAIN else []
            command = [self.peer / "llama-bench", "-m", model.path, *shared, "-fa", 1, *repack]
        return [str(part) for part in command]

    def speed_sample(self, way, model, test, threads):
        command = self.speed_command(way, model, test, threads)
        run = self.run(command, wootz=way == WOOTZ)
        entry = parsed(run, command)
        if way != WOOTZ and test["sequences"] > 1:
            return {"speed": entry["speed_tg"], "peak": run.peak_bytes}
        (entry,) = entry
        sample = {"speed": entry["samples_ts"][0], "peak": run.peak_bytes}
        if way == WOOTZ:
            sample["checksum"] = entry["checksum"]
        return sample

    def start_command(self, way, model, threads):
        """The command, and whether its first byte of output is the first token."""
        shared = ["-n", 1, "-t", threads, "--temp", 0, "-c", START_CONTEXT]
        if way == WOOTZ:
            command = [self.wootz, "run", "--raw", *shared, *self.options.wootz_args, model.path, PROMPT]
            return [str(part) for part in command], True
        repack = way == DEFAULT
        if (self.peer / "llama-completion").is_file():
            command = [
                self.peer / "llama-completion", "-m", model.path, "-p", PROMPT, *shared, "-fa", "on",
                "-no-cnv", "--no-display-prompt", "--no-warmup", *([] if repack else ["--no-repack"]),
            ]
            return [str(part) for part in command], True
        # A prompt of as many tokens, without tokenization and sampling: a little less work than the first token.
        command = [
            self.peer / "llama-bench", "-m", model.path, "-p", 5, "-n", 0, "-r", 1, "-t", threads, "-fa", 1,
            "--no-warmup", "-o", "json", *([] if repack else ["--repack", 0]),
        ]
        return [str(part) for part in command], False

    def start_sample(self, way, model, threads, cold):
        command, streams = self.start_command(way, model, threads)
        if cold:
            evict(model.path)
        run = self.run(command, wootz=way == WOOTZ)
        first = run.first_byte_s if streams else run.total_s
        if first is None:
            raise Failure(f"{shlex.join(command)}: printed no token")
        sample = {"first": first, "total": run.total_s, "peak": run.peak_bytes}
        if streams:
            sample["text"] = run.output.strip()
        return sample

    def rounds(self, title, row, sample):
        """Fills a row with the samples of all rounds, the state of the machine beside each."""
        row["states"], row["samples"] = [], {way: [] for way in WAYS}
        dead = set()
        for number in range(self.options.rounds):
            say(f"{title}, round {number + 1} of {self.options.rounds}")
            row["states"].append(self.state(row["threads"]))
            for way in turns(number, WAYS):
                taken = None
                if way not in dead:
                    try:
                        taken = sample(way)
                    except Failure as failure:
                        dead.add(way)
                        self.failures.append(str(failure))
                        say(f"failed: {failure}")
                row["samples"][way].append(taken)

    def measure(self, model):
        say(f"{model.name}: {model.path.stat().st_size / 1e6:.0f} MB")
        read, operations = self.weights(model)
        checksums = {}
        for threads in self.options.threads:
            peak = self.limits(model, threads)
            for test in self.options.tests:
                row = {
                    "model": model.name, "test": test["name"], "kind": test["kind"], "threads": threads,
                    "sequences": test["sequences"],
                    "bytes_per_token": read, "operations_per_token": operations, "int8_gops": peak,
                }
                self.rounds(
                    f"{model.name} {test['name']}, {threads} threads", row,
                    lambda way: self.speed_sample(way, model, test, threads),
                )
                self.result["rows"].append(row)
                sums = checksums.setdefault(test["name"], set())
                sums.update(s["checksum"] for s in row["samples"][WOOTZ] if s)
                if len(sums) > 1:
                    self.failures.append(
                        f"{model.name} {test['name']}: wootz computed different tokens in different runs: "
                        f"{', '.join(sorted(sums))}"
                    )
                self.save()
        if not self.options.no_start:
            self.measure_start(model)

    def measure_start(self, model):
        threads = max(self.options.threads)
        for cold in [False, True]:
            if cold and not evict(model.path):
                continue
            row = {"model": model.name, "cold": cold, "threads": threads}
            row["streams"] = self.start_command(DEFAULT, model, threads)[1]
            if not cold:
                self.run(self.start_command(WOOTZ, model, threads)[0], wootz=True)  # The file is in memory then.
            self.rounds(
                f"{model.name} first token, {'cold' if cold else 'warm'}", row,
                lambda way: self.start_sample(way, model, threads, cold),
            )
            self.result["start"].append(row)
            texts = {s["text"] for taken in row["samples"].values() for s in taken if s and "text" in s}
            if len(texts) > 1:
                self.failures.append(f"{model.name}: the first tokens differ: {sorted(texts)}")
            self.save()


def main():
    options = options_of()
    names = options.names or ([] if options.model else models.DEFAULT)
    if options.all:
        names = list(dict.fromkeys(names + models.LARGER))
    try:
        comparison = Comparison(options)
        chosen = [models.prepare(name, options.models.resolve(), comparison.peer) for name in names]
        chosen += [models.Model(path.stem, path.resolve(strict=True)) for path in options.model]
        comparison.describe()
        try:
            for model in chosen:
                try:
                    comparison.measure(model)
                except Failure as failure:
                    comparison.failures.append(f"{model.name} is incomplete: {failure}")
        except KeyboardInterrupt:
            comparison.failures.append("interrupted: what follows was not measured")
        comparison.finish()
        comparison.save()
    except (Failure, OSError) as error:
        sys.exit(f"compare: {error}")
    print(report.markdown(comparison.result, DEFAULT, PLAIN, WOOTZ))
    if comparison.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
