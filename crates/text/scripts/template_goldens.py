"""Renders templates with Python's Jinja as Hugging Face sets it up, and writes goldens.

usage: template_goldens.py [--out FILE] [DIR | GGUF-FILE...]
Without arguments: templates/ and tests/data/templates/ into tests/data/template_goldens.json.
Needs the jinja2 package, for model files also the gguf package. Templates of models are not kept
here: write their goldens elsewhere and name the file in WOOTZ_TEMPLATE_GOLDENS for the tests.
"""
import argparse
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent.parent
NOW = 1_753_401_845  # 2025-07-25 00:04:05 UTC
# Templates that do not need every case.
ONLY = {"python-methods": ["unicode"]}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "", "unk_token": ""}


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks training targets; for inference it is a plain scope."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(pattern):
        now = datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc)
        return now.replace(tzinfo=None).strftime(pattern)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(env, source, case):
    try:
        text = env.from_string(source).render(
            messages=case["messages"],
            tools=case.get("tools"),
            documents=None,
            add_generation_prompt=case.get("add_generation_prompt", False),
            **TOKENS,
            **case.get("extra", {}),
        )
        return {"text": text}
    except Exception as error:  # whatever Python says, it is a refusal
        return {"error": f"{type(error).__name__}: {error}"}


def sources(path):
    """Names and sources of the templates in a folder or a model file."""
    if path.is_dir():
        return [(file.stem, file.read_text()) for file in sorted(path.glob("*.jinja"))]
    import gguf

    field = gguf.GGUFReader(path).fields.get("tokenizer.chat_template")
    return [(path.stem, field.contents())] if field else []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=HERE / "tests/data/template_goldens.json", type=pathlib.Path)
    parser.add_argument("paths", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    paths = args.paths or [HERE / "templates", HERE / "tests/data/templates"]
    cases = json.loads((HERE / "tests/data/template_cases.json").read_text())
    env = environment()
    templates = []
    for name, source in sorted(found for path in paths for found in sources(path)):
        templates.append(
            {
                "name": name,
                "source": source,
                "results": [
                    render(env, source, case)
                    if case["name"] in ONLY.get(name, [case["name"]])
                    else None
                    for case in cases
                ],
            }
        )
    golden = {"now": NOW, "tokens": TOKENS, "cases": cases, "templates": templates}
    args.out.write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
