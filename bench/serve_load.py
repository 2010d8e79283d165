#!/usr/bin/env python3
"""Loads a server that speaks OpenAI's protocol and prints throughput and delays.

    python3 bench/serve_load.py http://127.0.0.1:8080 [--clients 1,4,8,16,64] [--requests 4] [--prompt 200]
                                [--answer 64] [--shared 0] [--json FILE]

Each client sends its requests one after the other, streaming, with prompts of about --prompt words of its own, behind
--shared words that all have in common. Answers have --answer tokens, as the end of text is banned. The same command
measures `wootz serve` and `llama-server`: start one at a time, on the same model and context.

Columns: tokens generated per second of all clients together; time to the first token and between two tokens (median,
95th percentile) in milliseconds; requests that failed. bench/serve_compare.py does all of it for both.
"""

import argparse
import http.client
import json
import random
import statistics
import threading
import time
from urllib.parse import urlparse

WORDS = "iron rust water air salt slow bright river stone wind paper glass night tower green small open road".split()


def words(count, seed):
    choose = random.Random(seed)
    return " ".join(choose.choice(WORDS) for _ in range(count))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def ask(url, body):
    """One request: times of its tokens since it was sent, or None where it failed."""
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    start = time.perf_counter()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            return None
        times, tokens = [], None
        for line in response:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("choices") and chunk["choices"][0].get("text"):
                times.append(time.perf_counter() - start)
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
        return (times, tokens if tokens is not None else len(times)) if times else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def measure(url, clients, args, shared=""):
    results, lock = [], threading.Lock()

    def client(number):
        for i in range(args.requests):
            own = words(args.prompt, 1 + i + 1000 * (number + 1000 * clients))
            body = {
                "prompt": f"{shared} {own}".strip(), "max_tokens": args.answer, "temperature": 0, "stream": True,
                "ignore_eos": True, "stream_options": {"include_usage": True},
            }
            result = ask(url, body)
            with lock:
                results.append(result)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    good = [r for r in results if r]
    first = [times[0] * 1e3 for times, _ in good]
    between = [(b - a) * 1e3 for times, _ in good for a, b in zip(times, times[1:])]
    return {
        "clients": clients,
        "tokens_per_second": sum(tokens for _, tokens in good) / elapsed,
        "ttft_p50_ms": statistics.median(first) if first else float("nan"),
        "ttft_p95_ms": percentile(first, 0.95),
        "between_p50_ms": statistics.median(between) if between else float("nan"),
        "between_p95_ms": percentile(between, 0.95),
        "failed": len(results) - len(good),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", default="1,4,8,16,64")
    parser.add_argument("--requests", type=int, default=4, help="requests of each client")
    parser.add_argument("--prompt", type=int, default=200, help="words of a prompt of its own")
    parser.add_argument("--shared", type=int, default=0, help="words that all prompts begin with")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    url = urlparse(args.url)
    ask(url, {"prompt": words(8, 0), "max_tokens": 4})
    rows = []
    print("| clients | tokens/s | TTFT p50 ms | TTFT p95 ms | between p50 ms | between p95 ms | failed |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for clients in map(int, args.clients.split(",")):
        row = measure(url, clients, args, words(args.shared, 0))
        rows.append(row)
        print(
            f"| {clients} | {row['tokens_per_second']:.1f} | {row['ttft_p50_ms']:.0f} | {row['ttft_p95_ms']:.0f} |"
            f" {row['between_p50_ms']:.1f} | {row['between_p95_ms']:.1f} | {row['failed']} |",
            flush=True,
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
