#!/usr/bin/env python3
"""Troubles a server of wootz for a while and checks that it comes out as it went in.

    python3 bench/serve_soak.py http://127.0.0.1:8080 [--minutes 30] [--clients 12] [--pause 0] [--pid PID]

Clients at random send whole and streamed requests of all protocols, answers that follow schemas, answers and prompts
that are cut on request, broken JSON, wrong fields, prompts beyond the context; go away in the midst of an answer; or read
slowly; and wait --pause seconds on average before the next. At the end nothing may run or wait, all blocks of the cache
must be free, and no response may have been a 5xx. With --pid the memory of the process is told minute by minute.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time
from urllib.parse import urlparse

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


def metrics(url):
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def memory(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


class Client(threading.Thread):
    def __init__(self, url, seed, end, pause, counts, lock):
        super().__init__(daemon=True)
        self.url, self.end, self.pause, self.counts, self.lock = url, end, pause, counts, lock
        self.random = random.Random(seed)

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def run(self):
        while time.time() < self.end:
            try:
                self.once()
                time.sleep(self.random.uniform(0, 2 * self.pause))
            except (OSError, http.client.HTTPException) as e:
                self.count(f"broken: {type(e).__name__}")

    def once(self):
        pick = self.random
        messages = [{"role": "user", "content": "word " * pick.randint(1, 60)}]
        size = pick.randint(1, 48)
        path, body = pick.choice([
            ("/v1/chat/completions", {"messages": messages, "max_tokens": size, "n": pick.randint(1, 3)}),
            ("/v1/chat/completions", {"messages": messages, "max_tokens": size, "json_schema": SCHEMA}),
            ("/v1/messages", {"messages": messages, "max_tokens": size}),
            ("/v1/completions", {"prompt": "word " * pick.randint(1, 99), "max_tokens": size}),
            ("/completion", {"prompt": "abc", "n_predict": size, "n_probs": 3}),
            ("/api/chat", {"messages": messages, "options": {"num_predict": size}}),
            ("/v1/responses", {"input": "hello", "max_output_tokens": size}),
            ("/v1/chat/completions", {"messages": messages * 60, "max_tokens": size, "truncation": "auto"}),
        ])
        kind = pick.choice(["whole", "stream", "leave", "slow", "broken", "wrong", "huge"])
        body = {**body, "stream": kind != "whole"}
        text = json.dumps(body)
        if kind == "broken":
            text = text[: pick.randrange(len(text))]
        elif kind == "wrong":
            text = json.dumps({**body, "top_p": 9, "messages": 1, "prompt": {}, "input": 5, "options": {"top_p": 9}})
        elif kind == "huge":
            text = json.dumps({"prompt": "word " * 200000, "max_tokens": 4})
            path = "/v1/completions"
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=300)
        connection.request("POST", path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.count(f"{kind} {response.status}")
        if kind == "leave":
            response.read(pick.randint(1, 300))
        elif kind == "slow":
            while response.read(64):
                time.sleep(0.05)
        else:
            response.read()
        connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0)
    parser.add_argument("--pid", type=int)
    args = parser.parse_args()
    url, counts, lock = urlparse(args.url), {}, threading.Lock()
    end = time.time() + args.minutes * 60
    clients = [Client(url, seed, end, args.pause, counts, lock) for seed in range(args.clients)]
    for client in clients:
        client.start()
    while any(client.is_alive() for client in clients):
        time.sleep(min(60, max(5, end - time.time())))
        note = f", {memory(args.pid):.0f} MiB" if args.pid else ""
        print(f"{sum(counts.values())} requests{note}", flush=True)
    time.sleep(2)
    after = metrics(url)
    for what, n in sorted(counts.items()):
        print(f"{n:8} {what}")
    expected = {
        "wootz:requests_processing": 0, "wootz:requests_deferred": 0, "wootz:kv_blocks_used": 0,
        'wootz:responses_total{status="5xx"}': 0, "wootz:requests_failed_total": 0,
    }
    wrong = {name: after[name] for name, value in expected.items() if after[name] != value}
    print("all is free again" if not wrong else f"WRONG: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
