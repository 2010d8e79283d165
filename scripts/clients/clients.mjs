// Official Node clients against a server of wootz, whose address is in WOOTZ_URL.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.env.WOOTZ_URL;
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Name one colour." }];
const schema = {
  type: "object",
  properties: { on: { type: "boolean" } },
  required: ["on"],
  additionalProperties: false,
};

const tests = {
  async openai_embeddings() {
    const model = "all-minilm-l6-v2-f32";
    const input = ["A man is eating food.", "Someone is having a meal."];
    // It asks for base64 unless told otherwise.
    const whole = await openai.embeddings.create({ model, input });
    const plain = await openai.embeddings.create({ model, input, encoding_format: "float" });
    const cosine = (data) => data[0].embedding.reduce((sum, x, i) => sum + x * data[1].embedding[i], 0);
    for (const { data } of [whole, plain]) {
      assert.equal(data[0].embedding.length, 384);
      assert.ok(Math.abs(cosine(data) - 0.6888) < 1e-3, String(cosine(data)));
    }
  },
  async openai_chat() {
    const body = { model: "tested", messages, max_tokens: 16, seed: 1 };
    const whole = await openai.chat.completions.create(body);
    let text = "";
    for await (const chunk of await openai.chat.completions.create({ ...body, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    assert.equal(text, whole.choices[0].message.content);
  },
  async openai_tools_and_schema() {
    const tools = [{ type: "function", function: { name: "lamp", parameters: schema } }];
    const called = await openai.chat.completions.create({
      model: "tested", messages, tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 100,
    });
    const call = called.choices[0].message.tool_calls[0];
    assert.equal(typeof JSON.parse(call.function.arguments).on, "boolean");
    const response_format = { type: "json_schema", json_schema: { name: "x", schema, strict: true } };
    const shaped = await openai.chat.completions.create({ model: "tested", messages, response_format });
    assert.equal(typeof JSON.parse(shaped.choices[0].message.content).on, "boolean");
  },
  async openai_errors() {
    await assert.rejects(
      openai.chat.completions.create({ model: "tested", messages, temperature: "hot" }),
      (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature",
    );
  },
  async openai_responses() {
    const reply = await openai.responses.create({ model: "tested", input: "Hi", max_output_tokens: 8 });
    assert.ok(reply.output_text.length > 0);
  },
  async anthropic_messages() {
    const body = { model: "tested", messages, max_tokens: 16, temperature: 0 };
    const whole = await anthropic.messages.create(body);
    const final = await anthropic.messages.stream(body).finalMessage();
    assert.equal(final.content[0].text, whole.content[0].text);
    const called = await anthropic.messages
      .stream({
        ...body, max_tokens: 100, tools: [{ name: "lamp", input_schema: schema }],
        tool_choice: { type: "tool", name: "lamp", disable_parallel_tool_use: true },
      })
      .finalMessage();
    assert.equal(called.stop_reason, "tool_use");
    assert.equal(typeof called.content.at(-1).input.on, "boolean");
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok      node ${name}`);
  } catch (e) {
    failed += 1;
    console.log(`FAILED  node ${name}: ${e.stack}`);
  }
}
process.exit(failed ? 1 : 0);
