"""Official Python clients against a server of wootz, whose address is in WOOTZ_URL.

    clients.py [TEST…]

The model may be small and foolish: what is tested is what the server guarantees, whatever the model says.
"""

import json
import os
import sys

import anthropic
import ollama
import openai
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field

URL = os.environ["WOOTZ_URL"]
ASK = [{"role": "user", "content": "Name one colour."}]
# Newer versions of Anthropic's client have no argument for it.
COLD = {"temperature": 0}

PLACE = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Oslo"]},
        "window": {
            "type": "object",
            "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}, "hourly": {"type": "boolean"}},
            "required": ["days", "hourly"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "window"],
    "additionalProperties": False,
}


def tool(name, parameters=PLACE):
    return {"type": "function", "function": {"name": name, "description": f"{name} it", "parameters": parameters}}


def check_place(arguments):
    assert arguments["city"] in ("Bern", "Oslo"), arguments
    assert 1 <= arguments["window"]["days"] <= 9 and isinstance(arguments["window"]["hourly"], bool), arguments


class Colour(BaseModel):
    # A small model goes on with letters and properties as long as it may.
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    warm: bool


def openai_chat(client):
    reply = client.chat.completions.create(model="tested", messages=ASK, max_tokens=16, seed=1, n=2)
    assert len(reply.choices) == 2 and reply.usage.completion_tokens > 0
    stream = client.chat.completions.create(
        model="tested", messages=ASK, max_tokens=16, seed=1, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    assert text == reply.choices[0].message.content, (text, reply)
    assert usage.prompt_tokens == reply.usage.prompt_tokens
    assert usage.prompt_tokens_details.cached_tokens > 0
    logprobs = client.chat.completions.create(
        model="tested", messages=ASK, max_tokens=3, logprobs=True, top_logprobs=2
    ).choices[0].logprobs
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)


def openai_schema(client):
    reply = client.chat.completions.parse(model="tested", messages=ASK, response_format=Colour, max_tokens=200)
    assert isinstance(reply.choices[0].message.parsed, Colour), reply
    reply = client.chat.completions.create(
        model="tested", messages=ASK, response_format={"type": "json_object"}, max_tokens=300, temperature=0
    )
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content), dict)


def openai_tools(client):
    reply = client.chat.completions.create(
        model="tested", messages=ASK, tools=[tool("weather")], tool_choice="required", max_tokens=200,
        parallel_tool_calls=False,
    )
    call = reply.choices[0].message.tool_calls[0]
    assert reply.choices[0].finish_reason == "tool_calls"
    check_place(json.loads(call.function.arguments))
    answered = [
        *ASK,
        reply.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    again = client.chat.completions.create(model="tested", messages=answered, tools=[tool("weather")], max_tokens=8)
    assert again.choices[0].finish_reason in ("stop", "length", "tool_calls")


def agent(client):
    """A session as coding agents have them: 60 tools with nested schemas, turn after turn."""
    tools = [tool(f"tool_{i}") for i in range(60)]
    messages = [{"role": "system", "content": "You are an agent."}, *ASK]
    cached = []
    for turn in range(3):
        with client.chat.completions.stream(
            model="tested", messages=messages, tools=tools, max_tokens=200,
            tool_choice={"type": "function", "function": {"name": f"tool_{7 * turn}"}}, parallel_tool_calls=False,
            stream_options={"include_usage": True},
        ) as stream:
            final = stream.get_final_completion()
        call = final.choices[0].message.tool_calls[0]
        assert call.function.name == f"tool_{7 * turn}", final
        check_place(json.loads(call.function.arguments))
        cached.append(final.usage.prompt_tokens_details.cached_tokens)
        messages.append({"role": "assistant", "content": None, "tool_calls": [
            {"id": call.id, "type": "function",
             "function": {"name": call.function.name, "arguments": call.function.arguments}},
        ]})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"result {turn}"})
    assert cached[1] > 1000 and cached[2] >= cached[1], cached


def agent_anthropic(client):
    """The same by Anthropic's protocol, with words and several results in a turn, and a history that grows."""
    tools = [{"name": f"tool_{i}", "description": f"does {i}", "input_schema": PLACE} for i in range(60)]
    messages, cached = [*ASK], []
    for turn in range(3):
        name = f"tool_{59 - 9 * turn}"
        with client.messages.stream(
            model="tested", system="You are an agent.", messages=messages, tools=tools, max_tokens=200,
            tool_choice={"type": "tool", "name": name, "disable_parallel_tool_use": True},
        ) as stream:
            parts = [e.partial_json for e in stream if e.type == "input_json"]
            final = stream.get_final_message()
        call = final.content[-1]
        assert (final.stop_reason, call.type, call.name) == ("tool_use", "tool_use", name), final
        check_place(call.input)
        assert json.loads("".join(parts)) == call.input, parts
        cached.append(final.usage.cache_read_input_tokens)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in final.content]})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": f"result {turn}"}]}
        messages.append({"role": "user", "content": [result, {"type": "text", "text": "Go on."}]})
    assert cached[1] > 1000 and cached[2] >= cached[1], cached


def openai_errors(client):
    for wrong, param in [
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "?"}}}},
         "response_format"),
    ]:
        try:
            client.chat.completions.create(model="tested", messages=ASK, extra_body=wrong)
        except openai.BadRequestError as e:
            assert e.param == param, e
        else:
            raise AssertionError(f"{wrong} was accepted")
    try:
        client.chat.completions.create(model="tested", messages=[{"role": "user", "content": "word " * 20000}])
    except openai.BadRequestError as e:
        assert e.code == "context_length_exceeded", e
    else:
        raise AssertionError("a prompt beyond the context was accepted")


def openai_rest(client):
    assert client.models.list().data[0].id == "tested"
    reply = client.completions.create(model="tested", prompt="One, two,", max_tokens=4, temperature=0)
    assert reply.choices[0].text
    reply = client.responses.create(model="tested", input="Name one colour.", max_output_tokens=16)
    assert reply.output_text
    kinds = [e.type for e in client.responses.create(model="tested", input="Hi", max_output_tokens=8, stream=True)]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    parsed = client.responses.parse(model="tested", input="Name one colour.", text_format=Colour, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Colour), parsed


def anthropic_messages(client):
    reply = client.messages.create(model="tested", messages=ASK, max_tokens=16, extra_body=COLD)
    assert reply.content[0].text and reply.usage.output_tokens > 0
    with client.messages.stream(model="tested", messages=ASK, max_tokens=16, extra_body=COLD) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == reply.content[0].text == final.content[0].text
    count = client.messages.count_tokens(model="tested", messages=ASK).input_tokens
    assert count == final.usage.input_tokens + final.usage.cache_read_input_tokens
    lamp = [{"name": "weather", "description": "tells", "input_schema": PLACE}]
    with client.messages.stream(
        model="tested", messages=ASK, max_tokens=200, tools=lamp,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use", final
    call = final.content[-1]
    check_place(call.input)
    answered = [
        *ASK,
        {"role": "assistant", "content": [block.model_dump() for block in final.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]},
    ]
    again = client.messages.create(model="tested", messages=answered, tools=lamp, max_tokens=8)
    assert again.role == "assistant"
    try:
        client.messages.create(model="tested", messages=ASK, max_tokens=4, extra_body={"temperature": [1]})
    except anthropic.BadRequestError as e:
        assert "`temperature`" in str(e), e
    else:
        raise AssertionError("a wrong temperature was accepted")


def ollama_client(client):
    options = {"num_predict": 16, "temperature": 0}
    reply = client.chat(model="tested", messages=ASK, options=options)
    text = "".join(part.message.content for part in client.chat(
        model="tested", messages=ASK, options=options, stream=True))
    assert text == reply.message.content and reply.eval_count > 0
    reply = client.chat(model="tested", messages=ASK, format=Colour.model_json_schema(), options={"num_predict": 200})
    Colour.model_validate_json(reply.message.content)
    assert client.generate(model="tested", prompt="Hi", options=options).response
    assert client.list().models[0].model == "tested"
    assert "completion" in client.show("tested").capabilities
    try:
        client.chat(model="tested", messages=ASK, options={"top_p": 3})
    except ollama.ResponseError as e:
        assert e.status_code == 400 and "top_p" in e.error, e
    else:
        raise AssertionError("a wrong top_p was accepted")


def langchain():
    model = ChatOpenAI(model="tested", base_url=f"{URL}/v1", api_key="none", max_tokens=200, temperature=0)
    assert model.invoke([HumanMessage("Name one colour.")]).content
    assert "".join(chunk.content for chunk in model.stream("Name one colour."))
    shaped = model.with_structured_output(Colour, method="json_schema").invoke("Name one colour.")
    assert isinstance(shaped, Colour), shaped
    called = model.bind_tools([tool("weather")], tool_choice="weather", parallel_tool_calls=False).invoke("Weather?")
    check_place(called.tool_calls[0]["args"])


EMBEDDER = "all-minilm-l6-v2-f32"
TEXTS = ["A man is eating food.", "Someone is having a meal.", "The cheetah runs behind its prey."]


def check_embeddings(rows):
    """The sentences' cosines, known from the model's makers' own weights."""
    cosine = [sum(a * b for a, b in zip(rows[0], row)) for row in rows]
    assert all(len(row) == 384 for row in rows), [len(row) for row in rows]
    assert all(abs(x - y) < 1e-3 for x, y in zip(cosine, [1.0, 0.6888, 0.1349])), cosine


def openai_embeddings(client):
    # The client asks for base64 unless it is told otherwise.
    for form in ({}, {"encoding_format": "float"}):
        reply = client.embeddings.create(model=EMBEDDER, input=TEXTS, **form)
        check_embeddings([entry.embedding for entry in reply.data])
        assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0, reply.usage
    short = client.embeddings.create(model=EMBEDDER, input=TEXTS[0], dimensions=64).data[0].embedding
    assert len(short) == 64 and abs(sum(x * x for x in short) - 1) < 1e-5
    for model, text, error in [
        (EMBEDDER, "word " * 2000, openai.BadRequestError),
        ("tested", "word", openai.InternalServerError),
    ]:
        try:
            client.embeddings.create(model=model, input=text)
        except error as e:
            assert e.status_code in (400, 501), e
        else:
            raise AssertionError(f"{model} took {text[:10]!r}…")
    try:
        client.chat.completions.create(model=EMBEDDER, messages=ASK)
    except openai.BadRequestError as e:
        assert "embeddings, not text" in str(e), e
    else:
        raise AssertionError("a model that embeds answered")


def ollama_embed(client):
    reply = client.embed(model=EMBEDDER, input=TEXTS)
    check_embeddings(reply.embeddings)
    assert reply.prompt_eval_count > 0
    assert len(client.embeddings(model=EMBEDDER, prompt=TEXTS[0]).embedding) == 384
    assert client.show(EMBEDDER).capabilities == ["embedding"]


def langchain_embeddings():
    # Without the flag it cuts texts with OpenAI's own tokenizer and sends ids of that.
    model = OpenAIEmbeddings(
        model=EMBEDDER, base_url=f"{URL}/v1", api_key="none", check_embedding_ctx_length=False)
    check_embeddings(model.embed_documents(TEXTS))
    assert len(model.embed_query(TEXTS[0])) == 384


def main():
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    claude = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    tests = [
        *[(test.__name__, lambda test=test: test(client)) for test in
          (openai_chat, openai_schema, openai_tools, agent, openai_errors, openai_rest, openai_embeddings)],
        *[(test.__name__, lambda test=test: test(claude)) for test in (anthropic_messages, agent_anthropic)],
        ("ollama_client", lambda: ollama_client(ollama.Client(host=URL))),
        ("ollama_embed", lambda: ollama_embed(ollama.Client(host=URL))),
        ("langchain", langchain),
        ("langchain_embeddings", langchain_embeddings),
    ]
    failed = 0
    wanted = sys.argv[1:]
    for name, test in tests:
        if wanted and name not in wanted:
            continue
        try:
            test()
            print(f"ok      {name}")
        except Exception as e:
            failed += 1
            print(f"FAILED  {name}: {type(e).__name__}: {e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
