// Vercel's AI SDK: one scripted conversation with a tool over each API that it has a provider for.

import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { startSimulator } from "../../clients/javascript/simulator.js";

globalThis.AI_SDK_LOG_WARNINGS = false;

let server;

before(async () => {
  server = await startSimulator("--profile", "hub");
});

after(() => server.stop());

beforeEach(() => server.control("POST", "/reset"));

const PROVIDERS = {
  "openai-compatible": () => compatible()(server.model),
  "openai, chat": () => openai().chat(server.model),
  "openai, responses": () => openai().responses(server.model),
  anthropic: () => createAnthropic({ baseURL: server.base_url, apiKey: server.api_key })(server.model),
};

const address = () => ({ baseURL: server.base_url, apiKey: server.api_key });
const openai = () => createOpenAI(address());
const compatible = () =>
  createOpenAICompatible({ name: "pocketserver", includeUsage: true, supportsStructuredOutputs: true, ...address() });

const reply = (reply, match = {}) => server.control("POST", "/rules", { reply, match });

const weather = tool({
  description: "The weather in a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `rain in ${city}`,
});

async function scriptConversation() {
  await reply(
    { text: "I look.", tool_calls: [{ name: "weather", arguments: { city: "Oslo" } }] },
    { regex: "^What is the weather" },
  );
  await reply({ text: "It rains in Oslo." }, { last_message: "rain in Oslo" });
}

for (const [name, model] of Object.entries(PROVIDERS)) {
  describe(name, () => {
    const asking = (more = {}) => ({ model: model(), prompt: "hi", maxRetries: 0, ...more });

    test("a tool is run, and the model told what came of it", async () => {
      await scriptConversation();
      const { text, steps, totalUsage } = await generateText(
        asking({ prompt: "What is the weather in Oslo?", tools: { weather }, stopWhen: stepCountIs(3) }),
      );

      assert.equal(text, "It rains in Oslo.");
      assert.deepEqual(
        steps.map((step) => step.finishReason),
        ["tool-calls", "stop"],
      );
      assert.deepEqual(steps[0].toolCalls.map((call) => call.input), [{ city: "Oslo" }]);
      assert.ok(totalUsage.inputTokens > 0 && totalUsage.outputTokens > 0);
    });

    test("the same, streamed", async () => {
      await scriptConversation();
      const result = streamText(
        asking({ prompt: "What is the weather in Oslo?", tools: { weather }, stopWhen: stepCountIs(3) }),
      );
      const kinds = new Set();
      for await (const part of result.fullStream) {
        assert.notEqual(part.type, "error", String(part.error));
        kinds.add(part.type);
      }

      assert.equal(await result.text, "It rains in Oslo.");
      for (const kind of ["text-delta", "tool-input-delta", "tool-call", "tool-result", "finish"]) {
        assert.ok(kinds.has(kind), kind);
      }
      const steps = await result.steps;
      assert.equal(steps[0].text, "I look.");
      assert.ok((await result.totalUsage).outputTokens > 0);
    });

    test("an object follows its schema", async () => {
      const schema = z.object({ name: z.string(), age: z.number().int() });
      const { output } = await generateText(asking({ output: Output.object({ schema }) }));
      assert.equal(typeof output.name, "string");
      assert.ok(Number.isInteger(output.age));
    });

    test("thinking is kept apart from the answer", async () => {
      await reply({ text: "42", reasoning: "six times seven" });
      const { text, reasoningText } = await generateText(asking({ providerOptions: THINKING }));
      // OpenAI's own chat API has no field for thoughts, so that its provider reads none
      assert.deepEqual([text, reasoningText], ["42", name === "openai, chat" ? undefined : "six times seven"]);
    });

    test("an error has its status, and whether to try again", async () => {
      await server.control("POST", "/faults", { fault: "model_busy" });
      await assert.rejects(generateText(asking()), (error) => {
        assert.ok(APICallError.isInstance(error));
        assert.deepEqual([error.statusCode, error.isRetryable], [name === "anthropic" ? 529 : 429, true]);
        return true;
      });
    });

    test("a busy server is asked again", async () => {
      await reply({ text: "Hello!" });
      await server.control("POST", "/faults", { fault: "model_busy", retry_after: 0.1 });
      assert.equal((await generateText(asking({ maxRetries: 2 }))).text, "Hello!");
    });
  });
}

const THINKING = {
  pocketserver: { reasoningEffort: "low" },
  openai: { reasoningEffort: "low", reasoningSummary: "auto", forceReasoning: true },
  anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } },
};

for (const [name, model] of [
  ["openai-compatible", () => compatible().embeddingModel(server.model)],
  ["openai", () => openai().embedding(server.model)],
]) {
  test(`${name} embeds texts`, async () => {
    const { embeddings } = await embedMany({ model: model(), values: ["a", "b"], maxRetries: 0 });
    assert.equal(embeddings.length, 2);
    assert.equal(embeddings[0].length, embeddings[1].length);
  });
}
