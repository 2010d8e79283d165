#!/usr/bin/env python3
"""Measures `wootz serve` beside llama.cpp's server: the same models, the same load, the two in turns.

    python3 bench/serve_compare.py --peer FOLDER --models FOLDER [--model smollm2-q8_0,smollm2-q4_k_m]
                                   [--clients 1,4,8,16,64] [--rounds 3] [--json FILE]

FOLDER of --peer holds `llama-server` and, where a model has to be made first, `llama-quantize`. Each round starts one
server, loads it with bench/serve_load.py's clients, stops it, and does the same with the other; the order changes from
round to round. Both have as many threads and room for as many requests at once. The peer has a cache of full length for
each of them, as it is slower with one that all share; wootz has room for --cache at full length.
The last part gives all clients a common prefix of --shared words: how long the first token takes where the prefix is
new, where it is cached, and where there is none.

The tables hold medians over rounds, and the ratio of wootz to the peer. With --json the figures of every round are
kept; a file that exists is added to, so that a long comparison can be made in pieces.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlparse

import models
import serve_load

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = [
    ("tokens_per_second", "tokens/s", 1), ("ttft_p50_ms", "TTFT p50 ms", 0), ("ttft_p95_ms", "TTFT p95 ms", 0),
    ("between_p50_ms", "between p50 ms", 1), ("between_p95_ms", "between p95 ms", 1), ("failed", "failed", 0),
]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server that runs while the block does."""

    def __init__(self, name, command, port):
        self.name, self.command, self.url = name, command, f"http://127.0.0.1:{port}"

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit(f"{' '.join(map(str, self.command))} ended with {self.process.returncode}")
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=1).read()
                return urlparse(self.url)
            except OSError:
                time.sleep(0.1)
        sys.exit(f"{self.name} does not answer")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def servers(args, path):
    port, threads = free_port(), str(args.threads)
    wootz = [
        args.wootz, "serve", path, "--port", str(port), "--threads", threads, "--ctx", str(args.context),
        "--parallel", str(args.cache), "--running", str(args.slots), "--quiet", "--offline",
    ]
    peer = [
        args.peer / "llama-server", "-m", path, "--port", str(port), "-t", threads, "-tb", threads,
        "-c", str(args.context * args.slots), "-np", str(args.slots), "--no-kv-unified", "--no-webui", "--offline",
    ]
    return [Server("wootz", wootz, port), Server("peer", peer, port)]


def shared_prefix(url, args):
    """Times to the first token of requests one after the other, in milliseconds: new, cached and without prefix."""
    prefix, new = serve_load.words(args.shared, args.shared), 32

    def first(prompt):
        result = serve_load.ask(url, {"prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True})
        return result[0][0] * 1e3 if result else float("nan")

    fresh = first(f"{prefix} {serve_load.words(new, 1)}")
    cached = [first(f"{prefix} {serve_load.words(new, 2 + i)}") for i in range(9)]
    alone = [first(serve_load.words(new, 100 + i)) for i in range(9)]
    return {"new_ms": fresh, "cached_ms": statistics.median(cached), "alone_ms": statistics.median(alone)}


def measure(args, name, path, number):
    rounds = {}
    order = servers(args, path)
    for server in order if number % 2 == 0 else reversed(order):
        with server as url:
            serve_load.ask(url, {"prompt": serve_load.words(8, 0), "max_tokens": 4})
            rows = [serve_load.measure(url, n, args) for n in args.clients]
            rounds[server.name] = {"load": rows, "shared": shared_prefix(url, args)}
        print(f"{name}, round {number + 1}: {server.name} done", file=sys.stderr, flush=True)
    return rounds


def median(rounds, server, get):
    return statistics.median(get(r[server]) for r in rounds)


def report(results):
    for name, rounds in results.items():
        print(f"\n{name}, medians of {len(rounds)} rounds\n")
        print("| clients | server | " + " | ".join(title for _, title, _ in COLUMNS) + " |")
        print("|---:|---|" + "---:|" * len(COLUMNS))
        for i, row in enumerate(rounds[0]["wootz"]["load"]):
            figures = {
                server: {key: median(rounds, server, lambda r: r["load"][i][key]) for key, _, _ in COLUMNS}
                for server in ("wootz", "peer")
            }
            for server, values in figures.items():
                cells = " | ".join(f"{values[key]:.{digits}f}" for key, _, digits in COLUMNS)
                print(f"| {row['clients']} | {server} | {cells} |")
            cells = " | ".join(
                f"{figures['wootz'][key] / figures['peer'][key]:.2f}×" if figures["peer"][key] else ""
                for key, _, _ in COLUMNS
            )
            print(f"| {row['clients']} | ratio | {cells} |")
        print("\n| server | first token, prefix new, ms | prefix cached | no prefix |\n|---|---:|---:|---:|")
        for server in ("wootz", "peer"):
            cells = [median(rounds, server, lambda r: r["shared"][key]) for key in ("new_ms", "cached_ms", "alone_ms")]
            print(f"| {server} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True, help="folder of model files")
    parser.add_argument("--model", default="smollm2-q8_0,smollm2-q4_k_m", help="models, by commas")
    parser.add_argument("--wootz", type=Path, default=ROOT / "target" / "release" / "wootz")
    parser.add_argument("--clients", default="1,4,8,16,64", help="numbers of clients, by commas")
    parser.add_argument("--requests", type=int, default=2, help="requests of each client")
    parser.add_argument("--prompt", type=int, default=100, help="words of a prompt of its own")
    parser.add_argument("--answer", type=int, default=48, help="tokens of an answer")
    parser.add_argument("--shared", type=int, default=1000, help="words of the common prefix of the last part")
    parser.add_argument("--context", type=int, default=2048, help="positions of a request")
    parser.add_argument("--cache", type=int, default=16, help="requests of that length that the cache has room for")
    parser.add_argument("--slots", type=int, default=64, help="requests at once")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    args = parser.parse_args()
    args.clients = [int(n) for n in args.clients.split(",")]
    results = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    for name in args.model.split(","):
        path = models.prepare(name, args.models, args.peer).path
        rounds = results.setdefault(name, [])
        for _ in range(args.rounds):
            rounds.append(measure(args, name, path, len(rounds)))
            if args.json:
                args.json.write_text(json.dumps(results, indent=1))
    report(results)


if __name__ == "__main__":
    main()
