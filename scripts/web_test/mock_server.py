"""A server for the tests of the web page: its files, and a chat endpoint whose
answer is chosen by the first word of the last message.

It knows only what the page uses and checks no request. `requests` keeps the
bodies that came, `dropped` counts readers that went away, and some answers wait
for `gate`, so that a flow can look at what is shown midway.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WEB = Path(__file__).resolve().parent.parent.parent / "crates" / "server" / "web"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

MARKDOWN = """# Tempering steel

Steel is **hard but brittle** after quenching; *tempering* trades some hardness for toughness. The colour of the
oxide tells the temperature, as `230 °C` is a pale straw.

## Steps

1. Clean the blade until it is bright.
2. Heat it slowly:
   - from the spine, not the edge
   - without a flame on the edge
3. Quench it when the colour is right.

- [x] normalised
- [ ] tempered ~~twice~~ once

| Colour | Temperature | Used for |
|:-------|------------:|:--------:|
| Pale straw | 220 °C | engraving tools |
| Dark straw | 240 °C | chisels |
| Blue | 300 °C | springs |

> Watch the colour, not the clock.

```rust
/// Hardness after tempering, in HRC.
fn hardness(celsius: f32) -> f32 {
    let quenched = 65.0; // right after the bath
    quenched - 0.045 * (celsius - 100.0).max(0.0)
}
```

```python
for colour, celsius in {"straw": 230, "blue": 300}.items():
    print(f"{colour}: {celsius} °C")  # a table
```

More in the [notes](https://example.org/tempering "Notes") or at https://example.org/a_(b). Mind snake_case_names, 2 * 3 * 4
and \\*escaped\\* marks; energy is \\(E = mc^2\\).

---

That is all.
"""

HOSTILE = """<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2">

[a](javascript:window.hacked=3) [b](data:text/html,x) [c](vbscript:x) [d]( JaVaScRiPt:window.hacked=4) ![e](https://example.org/p.png)

<javascript:window.hacked=5> <https://example.org/"onclick="window.hacked=6>

```html" onmouseover="window.hacked=7
</code></pre><script>window.hacked = 8</script>
```

| <b>x</b> | y |
|---|---|
| <svg onload=window.hacked=9> | `<i>` |

[mail](mailto:smith@example.org) [web](https://example.org/)
"""


class Mock(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.reset()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self):
        self.requests = []
        self.dropped = 0
        self.key = None
        self.failures = 0
        self.gate = threading.Event()

    def handle_error(self, request, client_address):
        """A reader that goes away is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/v1/models":
            if self.allowed():
                models = [
                    {"id": "smollm2-135m-instruct", "object": "model", "meta": {"n_ctx": 8192}},
                    {"id": "qwen3-4b-thinking-2507-q4_k_m", "object": "model", "meta": {"n_ctx": 1300}},
                    {"id": "of-a-server-that-tells-less"},
                ]
                self.reply(200, {"object": "list", "data": models})
            return
        name = "index.html" if path == "/" else path.removeprefix("/")
        file = WEB / name
        if "/" in name or not file.is_file() or file.suffix not in TYPES:
            self.reply(404, {"error": {"message": f"there is no {path}"}})
            return
        self.reply(200, file.read_bytes(), f"{TYPES[file.suffix]}; charset=utf-8")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        self.server.requests.append(body)
        last = body["messages"][-1]
        word = {"tool": "results", "assistant": "continued"}.get(last["role"])
        word = word or last["content"].split(" ")[0].lower()
        action = getattr(self, f"chat_{word}", None) or self.chat_echo
        try:
            action(body, last["content"])
        except (BrokenPipeError, ConnectionResetError):
            self.server.dropped += 1
            self.close_connection = True

    def allowed(self):
        if self.server.key in (None, self.headers.get("Authorization", "").removeprefix("Bearer ")):
            return True
        self.reply(
            401, {"error": {"message": "This server needs an API key.", "type": "authentication_error"}}
        )
        return False

    def reply(self, status, body, kind="application/json", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    # ------------------------------------------------------------ streams

    def start(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, data):
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def delta(self, finish=None, **delta):
        self.event(
            {
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            }
        )

    def end(self, finish="stop", tokens=42, **extra):
        self.delta(finish)
        usage = {
            "prompt_tokens": 1200,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": 1024},
        }
        self.event({"choices": [], "usage": usage, **extra})
        self.event("[DONE]")

    def say(self, text, pause=0.004, size=4, key="content"):
        for i in range(0, len(text), size):
            self.delta(**{key: text[i : i + size]})
            time.sleep(pause)

    # ------------------------------------------------------------ answers

    def chat_echo(self, body, text):
        self.start()
        self.wfile.write(b": a comment\r\n\r\n")
        turns = sum(message["role"] == "user" for message in body["messages"])
        self.say(f"Answer {turns} to: {text}")
        self.end(
            timings={
                "predicted_n": 42,
                "predicted_per_second": 48.25,
                "prompt_n": 176,
                "cache_n": 1024,
                "prompt_per_second": 2150.0,
            }
        )

    def chat_markdown(self, _body, _text):
        self.start()
        self.say(MARKDOWN, 0.001, 9)
        self.end(tokens=412)

    def chat_hostile(self, _body, _text):
        self.start()
        self.say(HOSTILE, 0.001, 5)
        self.end()

    def chat_think(self, _body, _text):
        self.start()
        self.say(
            "The reader asks for a *thought*. I weigh two ways:\n\n- one\n- two\n\nThe first is better.",
            key="reasoning_content",
        )
        self.server.gate.wait(10)
        self.say("The answer is **one**.")
        self.end()

    def chat_tool(self, _body, _text):
        self.start()
        for index, city in enumerate(("Pune", "Solingen")):
            head = {
                "index": index,
                "id": f"call_{city}",
                "type": "function",
                "function": {"name": "get_weather", "arguments": ""},
            }
            self.delta(tool_calls=[head])
            arguments = json.dumps({"city": city, "unit": "celsius"})
            for i in range(0, len(arguments), 5):
                self.delta(tool_calls=[{"index": index, "function": {"arguments": arguments[i : i + 5]}}])
        self.end("tool_calls")

    def chat_results(self, body, _text):
        self.start()
        found = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        self.say(f"The tools say: {' and '.join(found)}.")
        self.end()

    def chat_slow(self, _body, _text):
        self.start()
        for n in range(2000):
            self.delta(content=f"word{n} ")
            time.sleep(0.03)
        self.end()

    def chat_long(self, _body, _text):
        self.start()
        paragraph = "A paragraph with **bold** words, `code` and a [link](https://example.org/). "
        for n in range(400):
            self.say(f"## Part {n}\n\n{paragraph * 3}\n\n- one\n- two\n\n", 0, 7)
        self.end(tokens=24000)

    def chat_wait(self, _body, _text):
        self.start()
        self.server.gate.wait(10)
        self.say("It took a while.")
        self.end()

    def chat_refuse(self, _body, _text):
        self.reply(
            400,
            {
                "error": {
                    "message": "temperature must be from 0 to 5, found 9.",
                    "type": "invalid_request_error",
                    "param": "temperature",
                }
            },
        )

    def chat_busy(self, _body, _text):
        self.reply(429, {"error": {"message": "The queue is full."}}, Retry_After="3")

    def chat_once(self, body, text):
        self.server.failures += 1
        if self.server.failures == 1:
            self.reply(500, b"<html>broken</html>", "text/html")
        else:
            self.chat_echo(body, text)

    def chat_break(self, _body, _text):
        self.start()
        self.say("This answer ends too")

    def chat_midway(self, _body, _text):
        self.start()
        self.say("This one goes wrong")
        self.event({"error": {"message": "The device was lost.", "type": "server_error"}})

    def chat_short(self, _body, _text):
        self.start()
        self.say("This is cut")
        self.end("length")

    def chat_continued(self, _body, _text):
        self.start()
        self.say(", and goes on.")
        self.end()

    def chat_plain(self, _body, _text):
        message = {"role": "assistant", "content": "All at once."}
        self.reply(
            200,
            {
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"completion_tokens": 4, "prompt_tokens": 9},
            },
        )
