#!/usr/bin/env python3
"""Write crates/text/tests/golden/tokens.json: the ids that llama.cpp gives for tricky strings.

The strings stay those of the file; the vocabularies are those that fetch-test-vocabs.py fetched. Three ways:
`default` adds BOS and EOS as the vocabulary says and reads special tokens, `no_bos` only reads them,
`no_bos_no_special` does neither.

    pip install llama-cpp-python==0.3.36
    python3 scripts/make-token-goldens.py
"""

import json
import os
from pathlib import Path

from llama_cpp import Llama

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "crates/text/tests/golden/tokens.json"
CACHE = Path(os.environ.get("WOOTZ_TEST_CACHE") or HERE.parent / ".cache") / "vocabs"
MODES = {"default": (True, True), "no_bos": (False, True), "no_bos_no_special": (False, False)}


def rows(items):
    return ",\n".join(json.dumps(item, separators=(",", ":")) for item in items)


def main():
    golden = json.loads(GOLDEN.read_text())
    parts = []
    for name, modes in golden["tokenizers"].items():
        llama = Llama(str(CACHE / f"{name}.gguf"), vocab_only=True, verbose=False)
        made = {
            mode: [llama.tokenize(text.encode(), *MODES[mode]) for text in golden["strings"]] for mode in modes
        }
        print(name, "as before" if made == modes else "changed")
        body = ",\n".join(f'"{mode}":[\n{rows(ids)}\n]' for mode, ids in made.items())
        parts.append(f'"{name}":{{\n{body}\n}}')
    tokenizers = ",\n".join(parts)
    GOLDEN.write_text(f'{{"strings":[\n{rows(golden["strings"])}\n],"tokenizers":{{\n{tokenizers}\n}}}}\n')


if __name__ == "__main__":
    main()
