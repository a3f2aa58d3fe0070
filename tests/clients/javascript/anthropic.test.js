// The official `@anthropic-ai/sdk` package against the simulator: what it does with each answer and each fault.

import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";

import { startSimulator } from "./simulator.js";

const ASK = { model: "default", max_tokens: 500, messages: [{ role: "user", content: "hi" }] };
const WEATHER = {
  name: "weather",
  input_schema: { type: "object", properties: { town: { enum: ["Bern", "Oslo"] } }, required: ["town"] },
};

let simulator;

before(async () => {
  simulator = await startSimulator("--profile", "hub");
});
after(async () => {
  assert.equal(await simulator.stop(), 0);
});
beforeEach(() => simulator.control("POST", "/reset"));

function client(options = {}) {
  const baseURL = simulator.base_url.replace(/\/v1$/, "");
  return new Anthropic({ baseURL, apiKey: simulator.api_key, maxRetries: 0, ...options });
}

async function requests() {
  return (await simulator.control("GET", "/requests")).requests;
}

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

const textOf = (message) => message.content.map((block) => block.text ?? "").join("");

describe("answers", () => {
  test("models are listed page by page, and one is fetched back", async () => {
    const listed = await collect(await client().models.list({ limit: 1 }));
    assert.ok(listed.some((model) => model.id === simulator.model && model.type === "model"));
    assert.equal((await client().models.retrieve(simulator.model)).id, simulator.model);
  });

  test("a message has text, usage and a reason", async () => {
    const message = await client().messages.create({ ...ASK, max_tokens: 8 });
    assert.ok(textOf(message));
    assert.equal(message.stop_reason, "max_tokens");
    assert.equal(message.usage.output_tokens, 8);
    assert.match(message._request_id, /^req_/);
  });

  test("a stream joins to the same message", async () => {
    const whole = await client().messages.create(ASK);
    const streamed = await client().messages.stream(ASK).finalMessage();
    assert.deepEqual(streamed.content, whole.content);
    assert.equal(streamed.stop_reason, "end_turn");
    assert.deepEqual(streamed.usage, whole.usage);
  });

  test("a tool round, streamed and not", async () => {
    for (const stream of [true, false]) {
      const asked = { ...ASK, tools: [WEATHER], tool_choice: { type: "any" } };
      const message = stream
        ? await client().messages.stream(asked).finalMessage()
        : await client().messages.create(asked);
      assert.equal(message.stop_reason, "tool_use");
      const call = message.content.find((block) => block.type === "tool_use");
      assert.ok(["Bern", "Oslo"].includes(call.input.town));
      const result = { type: "tool_result", tool_use_id: call.id, content: "rain", is_error: false };
      const messages = [
        ...ASK.messages,
        { role: "assistant", content: message.content },
        { role: "user", content: [result] },
      ];
      const answer = await client().messages.create({ ...ASK, tools: [WEATHER], messages });
      assert.ok(textOf(answer));
    }
  });

  test("thinking is a block of its own, with a signature", async () => {
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const message = await client().messages.stream({ ...ASK, thinking }).finalMessage();
    assert.deepEqual(
      message.content.map((block) => block.type),
      ["thinking", "text"],
    );
    assert.ok(message.content[0].thinking && message.content[0].signature);
  });

  test("a count is what the answer reports", async () => {
    const { max_tokens, ...counted } = ASK;
    const count = await client().messages.countTokens(counted);
    const message = await client().messages.create(ASK);
    assert.equal(count.input_tokens, message.usage.input_tokens);
  });

  test("a stop sequence is named", async () => {
    await simulator.control("POST", "/rules", { reply: { text: "one two three" } });
    const message = await client().messages.create({ ...ASK, stop_sequences: [" two"] });
    assert.equal(textOf(message), "one");
    assert.equal(message.stop_sequence, " two");
  });

  test("a structured answer is valid for its schema", async () => {
    const schema = { type: "object", properties: { age: { type: "integer", minimum: 7 } }, required: ["age"] };
    const message = await client().messages.create({ ...ASK, output_config: { format: { type: "json_schema", schema } } });
    assert.ok(JSON.parse(textOf(message)).age >= 7);
  });
});

// Name, its words, the exception without retries, the type in its body, and whether the SDK tries again by itself.
const REFUSED = [
  ["invalid_parameter", {}, Anthropic.BadRequestError, "invalid_request_error", false],
  ["context_length_exceeded", {}, Anthropic.BadRequestError, "invalid_request_error", false],
  ["invalid_api_key", {}, Anthropic.AuthenticationError, "authentication_error", false],
  ["insufficient_scope", {}, Anthropic.PermissionDeniedError, "permission_error", false],
  ["model_not_found", {}, Anthropic.NotFoundError, "not_found_error", false],
  ["request_too_large", {}, Anthropic.APIError, "request_too_large", false],
  ["model_busy", { retry_after: 0.01 }, Anthropic.InternalServerError, "overloaded_error", true],
  ["queue_full", { retry_after: 0.01 }, Anthropic.InternalServerError, "overloaded_error", true],
  ["model_not_loaded", { retry_after: 0.01 }, Anthropic.InternalServerError, "overloaded_error", true],
  ["insufficient_memory", {}, Anthropic.InternalServerError, "overloaded_error", false],
  ["generation_stalled", { retry_after: 0.01 }, Anthropic.InternalServerError, "timeout_error", true],
  ["internal_error", { retry_after: 0.01 }, Anthropic.InternalServerError, "api_error", true],
];

describe("refusals", { concurrency: false }, () => {
  for (const [fault, words, expected, type, retried] of REFUSED) {
    test(`${fault} raises ${expected.name} with ${type}`, async () => {
      await simulator.control("POST", "/faults", { fault, ...words });
      await assert.rejects(client().messages.create(ASK), (error) => {
        assert.ok(error instanceof expected, String(error));
        assert.equal(error.error.error.type, type);
        return true;
      });
    });

    test(`${fault} is ${retried ? "" : "not "}tried again`, async () => {
      await simulator.control("POST", "/faults", { fault, ...words });
      const asked = client({ maxRetries: 1 }).messages.create(ASK);
      if (retried) assert.ok(textOf(await asked));
      else await assert.rejects(asked, expected);
      assert.equal((await requests()).length, retried ? 2 : 1);
    });
  }
});

describe("faults in a stream", { concurrency: false }, () => {
  test("an error event raises APIError and is not tried again", async () => {
    await simulator.control("POST", "/faults", { fault: "error_chunk", code: "worker_lost", after_tokens: 2 });
    const stream = await client({ maxRetries: 2 }).messages.create({ ...ASK, stream: true });
    await assert.rejects(collect(stream), (error) => error instanceof Anthropic.APIError && error.type === "api_error");
    assert.equal((await requests()).length, 1);
  });

  test("a stream that is cut raises", async () => {
    await simulator.control("POST", "/faults", { fault: "drop_after_tokens", after_tokens: 3 });
    const stream = await client().messages.create({ ...ASK, stream: true });
    await assert.rejects(collect(stream));
  });

  test("leaving a stalled stream frees the model", async () => {
    await simulator.control("POST", "/faults", { fault: "stall", after_tokens: 2 });
    const stream = await client().messages.create({ ...ASK, stream: true });
    let seen = 0;
    for await (const event of stream) {
      if (event.type === "content_block_delta" && ++seen === 2) break; // the SDK hangs up
    }
    assert.ok(textOf(await client().messages.create(ASK)));
  });
});
