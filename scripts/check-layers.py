#!/usr/bin/env python3
"""Checks that dependencies between the packages of the workspace point one way, as ARCHITECTURE.md says."""

import json
import subprocess
import sys

ALLOWED = {
    "wootz-quant": set(),
    "wootz-gguf": {"wootz-quant"},
    "wootz-text": {"wootz-gguf"},
    "wootz-graph": {"wootz-quant"},
    "wootz-arch": {"wootz-graph", "wootz-gguf", "wootz-quant"},
    "wootz-cpu": {"wootz-graph", "wootz-quant"},
    "wootz-cuda": {"wootz-graph", "wootz-quant"},
    "wootz-metal": {"wootz-graph", "wootz-quant"},
    "wootz-hub": set(),
    "wootz": {
        "wootz-quant", "wootz-gguf", "wootz-text", "wootz-graph", "wootz-arch", "wootz-cpu", "wootz-cuda",
        "wootz-metal", "wootz-testkit",
    },
    "wootz-server": {"wootz"},
    "wootz-cli": {"wootz", "wootz-hub", "wootz-server"},
    "wootz-testkit": {"wootz-arch", "wootz-gguf", "wootz-graph", "wootz-quant"},
}


def main() -> int:
    out = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps"], check=True, capture_output=True
    )
    wrong = []
    for package in json.loads(out.stdout)["packages"]:
        name = package["name"]
        if name not in ALLOWED:
            wrong.append(f"{name} is not in the table of {sys.argv[0]}")
            continue
        for dependency in package["dependencies"]:
            # Tests may use anything of the workspace.
            if dependency["kind"] == "dev" or not dependency["name"].startswith("wootz"):
                continue
            if dependency["name"] not in ALLOWED[name]:
                wrong.append(f"{name} must not depend on {dependency['name']}")
    print("\n".join(wrong) or "layers: dependencies point one way")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
