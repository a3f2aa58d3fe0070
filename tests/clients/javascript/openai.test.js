// The official `openai` package against the simulator: what it does with each answer and each fault.

import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test } from "node:test";

import OpenAI from "openai";

import { startSimulator } from "./simulator.js";

const ASK = { model: "default", messages: [{ role: "user", content: "hi" }] };
const WEATHER = {
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { town: { enum: ["Bern", "Oslo"] } }, required: ["town"] },
  },
};

let simulator;

before(async () => {
  simulator = await startSimulator();
});
after(async () => {
  assert.equal(await simulator.stop(), 0);
});
beforeEach(() => simulator.control("POST", "/reset"));

function client(options = {}) {
  return new OpenAI({ baseURL: simulator.base_url, apiKey: simulator.api_key, maxRetries: 0, ...options });
}

async function requests() {
  return (await simulator.control("GET", "/requests")).requests;
}

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

describe("answers", () => {
  test("models are listed with the one that is served", async () => {
    const listed = await collect(await client().models.list());
    assert.ok(listed.some((model) => model.id === simulator.model && model.object === "model"));
  });

  test("a chat has text, usage and a finish reason", async () => {
    const answer = await client().chat.completions.create({ ...ASK, max_tokens: 8 });
    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.choices[0].finish_reason, "length");
    assert.equal(answer.usage.completion_tokens, 8);
    assert.ok(answer._request_id);
  });

  test("a stream joins to the same text and reports usage once", async () => {
    const whole = await client().chat.completions.create(ASK);
    const chunks = await collect(
      await client().chat.completions.create({ ...ASK, stream: true, stream_options: { include_usage: true } }),
    );
    assert.equal(textOf(chunks), whole.choices[0].message.content);
    assert.equal(chunks.filter((chunk) => chunk.usage).length, 1);
  });

  test("streamed tool calls are joined by the SDK's own helper", async () => {
    const stream = client().chat.completions.stream({ ...ASK, tools: [WEATHER], tool_choice: "required" });
    const { message, finish_reason } = (await stream.finalChatCompletion()).choices[0];
    assert.equal(finish_reason, "tool_calls");
    assert.equal(message.tool_calls[0].function.name, "weather");
    assert.ok(["Bern", "Oslo"].includes(JSON.parse(message.tool_calls[0].function.arguments).town));
  });

  test("a structured answer is valid for its schema", async () => {
    const schema = { type: "object", properties: { age: { type: "integer", minimum: 7 } }, required: ["age"] };
    const answer = await client().chat.completions.create({
      ...ASK,
      response_format: { type: "json_schema", json_schema: { name: "person", schema } },
    });
    assert.ok(JSON.parse(answer.choices[0].message.content).age >= 7);
  });

  test("a rule decides what is said, and the request is captured without its key", async () => {
    await simulator.control("POST", "/rules", { reply: { text: "Hello from the pocket." } });
    const answer = await client().chat.completions.create(ASK);
    assert.equal(answer.choices[0].message.content, "Hello from the pocket.");
    const [captured] = await requests();
    assert.ok(!JSON.stringify(captured).includes(simulator.api_key));
  });
});

// Name, its words, the exception without retries, and whether the SDK tries again by itself. Where waiting cannot help
// a 503, the server says so by `x-should-retry`.
const REFUSED = [
  ["invalid_parameter", {}, OpenAI.BadRequestError, false],
  ["tools_unsupported", {}, OpenAI.BadRequestError, false],
  ["invalid_api_key", {}, OpenAI.AuthenticationError, false],
  ["insufficient_scope", {}, OpenAI.PermissionDeniedError, false],
  ["model_not_found", {}, OpenAI.NotFoundError, false],
  ["method_not_allowed", {}, OpenAI.APIError, false],
  ["request_too_large", {}, OpenAI.APIError, false],
  ["request_cancelled", {}, OpenAI.APIError, false],
  ["rate_limit", { retry_after: 0.01 }, OpenAI.RateLimitError, true],
  ["model_busy", { retry_after: 0.01 }, OpenAI.RateLimitError, true],
  ["queue_full", { retry_after: 0.01 }, OpenAI.RateLimitError, true],
  ["model_not_loaded", { retry_after: 0.01 }, OpenAI.InternalServerError, true],
  ["insufficient_memory", {}, OpenAI.InternalServerError, false],
  ["context_allocation_failed", {}, OpenAI.InternalServerError, false],
  ["generation_stalled", { retry_after: 0.01 }, OpenAI.InternalServerError, true],
  ["internal_error", { retry_after: 0.01 }, OpenAI.InternalServerError, true],
  ["drop_before_headers", {}, OpenAI.APIConnectionError, true],
  ["drop_inside_headers", {}, OpenAI.APIConnectionError, true],
  ["stall_headers", {}, OpenAI.APIConnectionTimeoutError, true],
  ["delay_headers", { seconds: 30 }, OpenAI.APIConnectionTimeoutError, true],
];

describe("faults in place of an answer", { concurrency: false }, () => {
  for (const [fault, words, expected, retried] of REFUSED) {
    test(`${fault} raises ${expected.name} without retries`, async () => {
      await simulator.control("POST", "/faults", { fault, ...words });
      const asked = client({ timeout: 500 }).chat.completions.create(ASK);
      await assert.rejects(asked, (error) => {
        assert.ok(error instanceof expected, String(error));
        if (error.status && !fault.startsWith("rate_limit")) assert.equal(error.code, fault);
        return true;
      });
    });

    test(`${fault} is ${retried ? "" : "not "}tried again`, async () => {
      await simulator.control("POST", "/faults", { fault, ...words });
      const asked = client({ timeout: 500, maxRetries: 1 }).chat.completions.create(ASK);
      if (retried) assert.ok((await asked).choices[0].message.content);
      else await assert.rejects(asked, expected);
      assert.equal((await requests()).length, retried ? 2 : 1);
    });
  }

  test("Retry-After is waited for", async () => {
    await simulator.control("POST", "/faults", { fault: "model_busy", retry_after: 0.3 });
    const began = performance.now();
    await client({ maxRetries: 1 }).chat.completions.create(ASK);
    assert.ok(performance.now() - began >= 290);
    assert.ok((await simulator.control("GET", "/verdict")).resilient);
  });
});

const CUT = /terminated|closed|aborted|other side|ECONNRESET|Connection error/i;

describe("faults in a stream", { concurrency: false }, () => {
  for (const fault of ["drop_after_headers", "drop_after_tokens", "drop_inside_character", "drop_inside_line"]) {
    test(`${fault} raises while the stream is read, and is not tried again`, async () => {
      await simulator.control("POST", "/faults", { fault, after_tokens: 3 });
      const stream = await client({ maxRetries: 2 }).chat.completions.create({ ...ASK, stream: true });
      await assert.rejects(collect(stream), (error) => CUT.test(`${error.message} ${error.cause}`));
      assert.equal((await requests()).length, 1);
    });
  }

  test("an error chunk raises APIError with the code", async () => {
    await simulator.control("POST", "/faults", { fault: "error_chunk", code: "worker_lost", after_tokens: 2 });
    const stream = await client().chat.completions.create({ ...ASK, stream: true });
    await assert.rejects(collect(stream), (error) => error instanceof OpenAI.APIError && error.code === "worker_lost");
  });

  test("truncated JSON raises SyntaxError", async () => {
    await simulator.control("POST", "/faults", { fault: "truncated_json" });
    const stream = await client().chat.completions.create({ ...ASK, stream: true });
    await assert.rejects(collect(stream), SyntaxError);
  });

  test("leaving a stalled stream frees the model", async () => {
    await simulator.control("POST", "/faults", { fault: "stall", after_tokens: 2 });
    const stream = await client().chat.completions.create({ ...ASK, stream: true });
    let seen = 0;
    for await (const chunk of stream) {
      if (chunk.choices[0].delta.content && ++seen === 2) break; // the SDK hangs up
    }
    const answer = await client({ maxRetries: 5 }).chat.completions.create(ASK);
    assert.ok(answer.choices[0].message.content);
  });

  // What the SDK does not notice, and its user has to know.
  for (const fault of ["missing_done", "duplicate_chunks", "out_of_order_chunks", "wrong_content_type"]) {
    test(`${fault} goes unnoticed`, async () => {
      await simulator.control("POST", "/faults", { fault });
      const chunks = await collect(await client().chat.completions.create({ ...ASK, stream: true }));
      assert.ok(textOf(chunks).length > 0);
    });
  }

  test("slow tokens arrive all the same", async () => {
    const whole = await client().chat.completions.create(ASK);
    await simulator.control("POST", "/faults", { fault: "delay_tokens", seconds: 0.001 });
    const chunks = await collect(await client().chat.completions.create({ ...ASK, stream: true }));
    assert.equal(textOf(chunks), whole.choices[0].message.content);
  });
});
