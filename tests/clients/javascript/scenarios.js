// What every engine must do for the three official packages. The server is given by the environment: it is the
// simulator or the real model, see test_javascript.py.

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";

const { base_url: baseURL, api_key: apiKey, model } = JSON.parse(process.env.POCKETSERVER_TEST_SERVER);
const origin = baseURL.replace(/\/v1$/, "");
const headers = { Authorization: `Bearer ${apiKey}` };

const openai = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: origin, apiKey, maxRetries: 0 });
const ollama = new Ollama({ host: origin, headers });

const messages = [{ role: "user", content: "What is the weather in Oslo?" }];
const place = { type: "object", properties: { town: { enum: ["Bern", "Oslo"] } }, required: ["town"] };
const weather = { name: "weather", description: "The weather of a town" };
const person = {
  type: "object",
  properties: { age: { type: "integer", minimum: 1, maximum: 9 }, kind: { enum: ["cat", "dog"] } },
  required: ["age", "kind"],
  additionalProperties: false,
};

function isTown(given) {
  assert.ok(["Bern", "Oslo"].includes(given.town), JSON.stringify(given));
}

function isPerson(text) {
  const { age, kind } = JSON.parse(text);
  assert.ok(Number.isInteger(age) && age >= 1 && age <= 9 && ["cat", "dog"].includes(kind), text);
}

async function collect(stream) {
  const parts = [];
  for await (const part of await stream) parts.push(part);
  return parts;
}

describe("openai", () => {
  const tools = [{ type: "function", function: { ...weather, parameters: place } }];
  const forced = { model, messages, tools, tool_choice: { type: "function", function: { name: "weather" } } };

  test("lists the model", async () => {
    const listed = await collect(openai.models.list());
    assert.ok(listed.some(({ id }) => id === model));
  });

  test("chats, and a stream says the same", async () => {
    const ask = { model, messages, max_tokens: 12, temperature: 0, seed: 1 };
    const whole = await openai.chat.completions.create(ask);
    const chunks = await collect(openai.chat.completions.create({ ...ask, stream: true }));
    const streamed = chunks.map(({ choices }) => choices[0]?.delta.content ?? "").join("");
    assert.ok(whole.choices[0].message.content);
    assert.equal(streamed, whole.choices[0].message.content);
  });

  test("calls a tool and goes on with its result", async () => {
    const called = await openai.chat.completions.create(forced);
    const [call] = called.choices[0].message.tool_calls;
    isTown(JSON.parse(call.function.arguments));
    const result = { role: "tool", tool_call_id: call.id, content: "rain" };
    const history = [...messages, called.choices[0].message, result];
    const answer = await openai.chat.completions.create({ model, messages: history, tools, tool_choice: "none", max_tokens: 8 });
    assert.ok(answer.choices[0].message.content);
  });

  test("calls a tool in a stream", async () => {
    const last = await openai.chat.completions.stream(forced).finalChatCompletion();
    isTown(JSON.parse(last.choices[0].message.tool_calls[0].function.arguments));
  });

  test("answers by a schema", async () => {
    const format = { type: "json_schema", json_schema: { name: "person", schema: person, strict: true } };
    const answer = await openai.chat.completions.create({ model, messages, response_format: format });
    isPerson(answer.choices[0].message.content);
  });

  test("embeds", async () => {
    const { data } = await openai.embeddings.create({ model, input: ["one", "two"] });
    const length = Math.hypot(...data[1].embedding);
    assert.ok(Math.abs(length - 1) < 1e-3, `${length}`);
  });

  test("keeps a response and continues it", async () => {
    const first = await openai.responses.create({ model, input: "hi", max_output_tokens: 16 });
    const second = await openai.responses.create({ model, input: "on", previous_response_id: first.id, max_output_tokens: 16 });
    assert.ok(second.usage.input_tokens > first.usage.input_tokens);
    assert.equal((await openai.responses.retrieve(first.id)).output_text, first.output_text);
    await openai.responses.delete(first.id);
    await assert.rejects(openai.responses.retrieve(first.id), OpenAI.NotFoundError);
  });

  test("cancels, and the next is answered", async () => {
    const stream = await openai.chat.completions.create({ model, messages, max_tokens: 2000, stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
    const next = await openai.chat.completions.create({ model, messages, max_tokens: 4 });
    assert.ok(next.choices[0].message.content);
  });

  test("meets errors as classes", async () => {
    const bad = openai.chat.completions.create({ model, messages, temperature: 9 });
    await assert.rejects(bad, OpenAI.BadRequestError);
    await assert.rejects(openai.chat.completions.create({ model: "nope", messages }), OpenAI.NotFoundError);
    const stranger = new OpenAI({ baseURL, apiKey: "sk-wrong-key-of-nobody", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  });
});

describe("anthropic", () => {
  const tools = [{ ...weather, input_schema: place }];
  const forced = { model, max_tokens: 200, messages, tools, tool_choice: { type: "tool", name: "weather" } };

  test("answers, and a stream says the same", async () => {
    const ask = { model, max_tokens: 12, temperature: 0, messages };
    const whole = await anthropic.messages.create(ask);
    const streamed = await anthropic.messages.stream(ask).finalMessage();
    assert.ok(whole.content[0].text);
    assert.equal(streamed.content[0].text, whole.content[0].text);
    assert.equal(whole.stop_reason, "max_tokens");
  });

  test("calls a tool and goes on with its result", async () => {
    const called = await anthropic.messages.create(forced);
    const use = called.content.find(({ type }) => type === "tool_use");
    isTown(use.input);
    const result = { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "rain" }] };
    const history = [...messages, { role: "assistant", content: called.content }, result];
    const answer = await anthropic.messages.create({ model, max_tokens: 8, messages: history, tools, tool_choice: { type: "none" } });
    assert.ok(answer.content[0].text);
  });

  test("calls a tool in a stream", async () => {
    const last = await anthropic.messages.stream(forced).finalMessage();
    isTown(last.content.find(({ type }) => type === "tool_use").input);
  });

  test("counts what a message then uses", async () => {
    const { input_tokens: counted } = await anthropic.messages.countTokens({ model, messages });
    const { usage } = await anthropic.messages.create({ model, max_tokens: 4, messages });
    assert.equal(usage.input_tokens + (usage.cache_read_input_tokens ?? 0), counted);
  });

  test("meets errors as classes", async () => {
    const bad = anthropic.messages.create({ model, max_tokens: 4, messages, temperature: 9 });
    await assert.rejects(bad, Anthropic.BadRequestError);
    const unknown = anthropic.messages.create({ model: "nope", max_tokens: 4, messages });
    await assert.rejects(unknown, Anthropic.NotFoundError);
  });
});

describe("ollama", () => {
  const options = { temperature: 0, seed: 1, num_predict: 12 };
  const tools = [{ type: "function", function: { ...weather, parameters: place } }];

  test("lists and shows the model", async () => {
    const { models } = await ollama.list();
    assert.ok(models.some(({ name }) => name === `${model}:latest`));
    assert.ok((await ollama.show({ model })).model_info["general.architecture"]);
  });

  test("chats, and a stream says the same", async () => {
    const whole = await ollama.chat({ model, messages, options, think: false });
    const parts = await collect(ollama.chat({ model, messages, options, think: false, stream: true }));
    assert.ok(whole.message.content);
    assert.equal(parts.map((part) => part.message.content).join(""), whole.message.content);
    assert.ok(whole.eval_duration > 0);
  });

  test("answers by a schema", async () => {
    const answer = await ollama.chat({ model, messages, format: person, options: { temperature: 0 } });
    isPerson(answer.message.content);
  });

  test("takes tools and their results", async () => {
    const call = { function: { name: "weather", arguments: { town: "Oslo" } } };
    const history = [...messages, { role: "assistant", content: "", tool_calls: [call] }, { role: "tool", tool_name: "weather", content: "rain" }];
    const answer = await ollama.chat({ model, messages: history, tools, options, think: false });
    assert.ok(answer.message.content || answer.message.tool_calls?.length);
  });

  test("embeds", async () => {
    const { embeddings } = await ollama.embed({ model, input: ["one", "two"] });
    assert.equal(embeddings.length, 2);
  });

  test("makes, copies and deletes a model", async () => {
    await ollama.create({ model: "pirate", from: model, system: "Say arr." });
    await ollama.copy({ source: "pirate", destination: "captain" });
    assert.match((await ollama.show({ model: "captain" })).modelfile, /Say arr/);
    const answer = await ollama.chat({ model: "captain", messages, options, think: false });
    assert.ok(answer.message.content);
    for (const made of ["pirate", "captain"]) await ollama.delete({ model: made });
    await assert.rejects(ollama.show({ model: "captain" }), /not found/);
  });
});
