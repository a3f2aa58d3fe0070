// What a client of pocketserver does, with fetch alone: chat, stream, structured output, tools, errors, trying again.
//   OPENAI_BASE_URL=http://192.168.1.20:8080/v1 OPENAI_API_KEY=sk-... node chat-fetch.js

import { setTimeout as sleep } from "node:timers/promises";

import { getWeather, schema, weather } from "./weather.js";

const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
const TRIES = 6;

/** What the server says is wrong: a `code` for programs, a sentence for people. */
class ServerError extends Error {
  constructor({ code, message }) {
    super(message);
    this.code = code;
  }
}

/** Send a request; while the model is busy with another one, wait as long as the server says and send it again. */
async function post(body) {
  for (let attempt = 0; ; attempt++) {
    const response = await fetch(`${baseURL}/chat/completions`, {
      method: "POST",
      headers: { Authorization: `Bearer ${apiKey}`, "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    if (response.ok) return response;
    const seconds = Number(response.headers.get("Retry-After") ?? 2 ** attempt);
    const passes = response.status === 429 || response.headers.has("Retry-After");
    const { error } = await response.json();
    if (!passes || attempt === TRIES - 1) throw new ServerError(error);
    await sleep(seconds * 1000);
  }
}

/** The assistant's message. */
async function ask(body) {
  const response = await post(body);
  return (await response.json()).choices[0].message;
}

/** The answer, piece by piece. One without `[DONE]` at its end has broken off, whatever it looks like. */
async function* stream(body) {
  const response = await post({ ...body, stream: true });
  let rest = "";
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const chunk = JSON.parse(line.slice("data: ".length));
      if (chunk.error) throw new ServerError(chunk.error);
      for (const choice of chunk.choices) yield choice.delta.content ?? "";
    }
  }
  throw new ServerError({ code: "incomplete", message: "The answer broke off." });
}

/** Ask, run what the model wants run, tell it the results, and so on until it answers in words. */
async function withTools(question) {
  const messages = [{ role: "user", content: question }];
  let toolChoice = "required"; // small models forget to call when they may choose; afterwards they are to answer
  for (;;) {
    const tools = { tools: [weather], tool_choice: toolChoice, parallel_tool_calls: false };
    const message = await ask({ model: "default", messages, max_tokens: 100, ...tools });
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const call of message.tool_calls) {
      const result = getWeather(JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content: JSON.stringify(result) });
    }
    toolChoice = "none";
  }
}

const hello = { model: "default", messages: [{ role: "user", content: "Say hello." }], max_tokens: 60 };
console.log("chat:", (await ask(hello)).content);

process.stdout.write("stream: ");
const count = { model: "default", messages: [{ role: "user", content: "Count to three." }], max_tokens: 60 };
for await (const piece of stream(count)) process.stdout.write(piece);
console.log();

const answer = await ask({
  model: "default",
  messages: [{ role: "user", content: "The weather of a city, made up." }],
  max_tokens: 100,
  response_format: { type: "json_schema", json_schema: { name: "weather", schema } },
});
console.log("structured:", JSON.stringify(JSON.parse(answer.content)));

console.log("tools:", await withTools("How warm is it in Oslo?"));

try {
  await ask({ ...hello, model: "no-such-model" });
} catch (error) {
  console.log("error:", error.code);
}
