// The official `openai` package and the Responses API of the simulator, in the profile that serves everything.

import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test } from "node:test";

import OpenAI from "openai";

import { startSimulator } from "./simulator.js";

const ASK = { model: "default", input: "hi" };
const WEATHER = {
  type: "function",
  name: "weather",
  strict: true,
  parameters: {
    type: "object",
    properties: { town: { enum: ["Bern", "Oslo"] } },
    required: ["town"],
    additionalProperties: false,
  },
};
const PATCH = { type: "custom", name: "patch", description: "Patch a file" };

let simulator;

before(async () => {
  simulator = await startSimulator("--profile", "hub");
});
after(async () => {
  assert.equal(await simulator.stop(), 0);
});
beforeEach(() => simulator.control("POST", "/reset"));

function client() {
  return new OpenAI({ baseURL: simulator.base_url, apiKey: simulator.api_key, maxRetries: 0 });
}

const says = (reply) => simulator.control("POST", "/rules", { reply });

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

describe("responses", () => {
  test("a text has usage and an end", async () => {
    const response = await client().responses.create(ASK);
    assert.ok(response.output_text);
    assert.equal(response.status, "completed");
    assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
  });

  test("a stream joins to the same text, numbered without gaps", async () => {
    const whole = await client().responses.create(ASK);
    const events = await collect(await client().responses.create({ ...ASK, stream: true }));
    const text = events.map((event) => (event.type === "response.output_text.delta" ? event.delta : "")).join("");
    assert.equal(text, whole.output_text);
    assert.deepEqual(
      events.map((event) => event.sequence_number),
      events.map((_, index) => index),
    );
  });

  for (const [name, reply] of Object.entries({
    text: { text: "Hello there." },
    "text and a call": { text: "Wait.", tool_calls: [{ name: "weather", arguments: { town: "Oslo" } }] },
    "two calls": {
      tool_calls: [
        { name: "weather", arguments: { town: "Oslo" } },
        { name: "weather", arguments: { town: "Bern" } },
      ],
    },
    "reasoning and text": { reasoning: "Let me see.", text: "Yes." },
    "a custom call": { tool_calls: [{ name: "patch", arguments: { input: "*** Begin\n+é" } }] },
    nothing: { text: "" },
  })) {
    test(`the SDK's helper collects ${name}`, async () => {
      await says(reply);
      const stream = client().responses.stream({ ...ASK, tools: [WEATHER, PATCH] });
      const final = await stream.finalResponse();
      const whole = await client().responses.create({ ...ASK, tools: [WEATHER, PATCH] });
      assert.equal(final.status, "completed");
      assert.equal(final.output_text, whole.output_text);
      assert.deepEqual(
        final.output.map((item) => [item.type, item.arguments ?? item.input ?? item.summary]),
        whole.output.map((item) => [item.type, item.arguments ?? item.input ?? item.summary]),
      );
    });
  }

  test("a function call and its result go round", async () => {
    const first = await client().responses.create({ ...ASK, tools: [WEATHER], tool_choice: "required" });
    const [call] = first.output;
    assert.equal(call.type, "function_call");
    assert.ok(["Bern", "Oslo"].includes(JSON.parse(call.arguments).town));
    const second = await client().responses.create({
      model: "default",
      input: [
        { role: "user", content: "hi" },
        ...first.output,
        { type: "function_call_output", call_id: call.call_id, output: "Sunny." },
      ],
      tools: [WEATHER],
    });
    assert.ok(second.output_text);
  });

  test("a custom call streams its text", async () => {
    const events = await collect(
      await client().responses.create({
        ...ASK,
        tools: [PATCH],
        tool_choice: { type: "custom", name: "patch" },
        stream: true,
      }),
    );
    const { response } = events.at(-1);
    const deltas = events.filter((event) => event.type === "response.custom_tool_call_input.delta");
    assert.equal(response.output[0].input, deltas.map((event) => event.delta).join(""));
  });

  test("a structured answer is parsed", async () => {
    const schema = {
      type: "object",
      properties: { age: { type: "integer", minimum: 7 } },
      required: ["age"],
      additionalProperties: false,
    };
    const format = { type: "json_schema", name: "person", schema, strict: true };
    const response = await client().responses.parse({ ...ASK, text: { format } });
    assert.ok(JSON.parse(response.output_text).age >= 7);
  });

  test("a chain, its items, and deleting", async () => {
    const first = await client().responses.create(ASK);
    const second = await client().responses.create({ ...ASK, previous_response_id: first.id });
    const items = await collect(await client().responses.inputItems.list(second.id, { order: "asc", limit: 2 }));
    assert.deepEqual(
      items.map((item) => item.role),
      ["user", "assistant", "user"],
    );
    assert.equal((await client().responses.retrieve(second.id)).output_text, second.output_text);
    await client().responses.delete(first.id);
    await assert.rejects(client().responses.retrieve(first.id), OpenAI.NotFoundError);
    await client().responses.create({ ...ASK, previous_response_id: second.id });
    await assert.rejects(
      client().responses.create({ ...ASK, previous_response_id: first.id }),
      (error) => error instanceof OpenAI.BadRequestError && error.code === "previous_response_not_found",
    );
  });

  test("a cut answer is incomplete", async () => {
    const events = await collect(await client().responses.create({ ...ASK, max_output_tokens: 3, stream: true }));
    assert.equal(events.at(-1).type, "response.incomplete");
    assert.equal(events.at(-1).response.incomplete_details.reason, "max_output_tokens");
  });

  test("a failure in mid-stream is an event that says what happened", async () => {
    await simulator.control("POST", "/faults", { fault: "error_chunk", after_tokens: 2, code: "worker_lost" });
    const events = await collect(await client().responses.create({ ...ASK, stream: true }));
    assert.equal(events.at(-1).type, "response.failed");
    assert.equal(events.at(-1).response.error.code, "server_error");
    assert.match(events.at(-1).response.error.message, /process/);
  });

  test("leaving in mid-stream frees the model", async () => {
    await simulator.control("POST", "/faults", { fault: "stall", after_tokens: 2 });
    const stream = await client().responses.create({ ...ASK, stream: true });
    for await (const event of stream) if (event.type === "response.output_text.delta") break;
    assert.ok((await client().responses.create(ASK)).output_text);
  });

  for (const [fields, kind] of [
    [{ model: "no-such-model" }, OpenAI.NotFoundError],
    [{ input: [] }, OpenAI.BadRequestError],
    [{ background: true }, OpenAI.BadRequestError],
    [{ tools: [WEATHER], tool_choice: { type: "web_search" } }, OpenAI.BadRequestError],
  ]) {
    test(`${JSON.stringify(fields).slice(0, 40)} is ${kind.name}`, async () => {
      await assert.rejects(client().responses.create({ ...ASK, ...fields }), kind);
    });
  }
});
