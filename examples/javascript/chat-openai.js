// What a client of pocketserver does, with the official `openai` package: chat, stream, structured output, tools, errors.
//   OPENAI_BASE_URL=http://192.168.1.20:8080/v1 OPENAI_API_KEY=sk-... node chat-openai.js
// The package reads both variables by itself. It also tries again by itself, as often as `maxRetries` says, when the model
// is busy with another request (429 `model_busy`): it waits as long as the server's Retry-After says.

import OpenAI from "openai";

import { getWeather, schema, weather } from "./weather.js";

const client = new OpenAI({ maxRetries: 5 });
const user = (content) => ({ role: "user", content });

async function ask(fields) {
  const answer = await client.chat.completions.create({ model: "default", ...fields });
  return answer.choices[0].message;
}

/** Print pieces as they come. A stream without a finish_reason has broken off, whatever it looks like. */
async function showStream(question) {
  const wanted = { model: "default", messages: [user(question)], max_tokens: 60, stream: true };
  let finished = false;
  for await (const chunk of await client.chat.completions.create(wanted)) {
    process.stdout.write(chunk.choices[0]?.delta.content ?? "");
    finished ||= Boolean(chunk.choices[0]?.finish_reason);
  }
  console.log();
  if (!finished) throw new Error("The answer broke off.");
}

/** Ask, run what the model wants run, tell it the results, and so on until it answers in words. */
async function withTools(question) {
  const messages = [user(question)];
  let toolChoice = "required"; // small models forget to call when they may choose; afterwards they are to answer
  for (;;) {
    const tools = { tools: [weather], tool_choice: toolChoice, parallel_tool_calls: false };
    const message = await ask({ messages, max_tokens: 100, ...tools });
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const call of message.tool_calls) {
      const result = getWeather(JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content: JSON.stringify(result) });
    }
    toolChoice = "none";
  }
}

console.log("chat:", (await ask({ messages: [user("Say hello.")], max_tokens: 60 })).content);

process.stdout.write("stream: ");
await showStream("Count to three.");

const form = { type: "json_schema", json_schema: { name: "weather", schema } };
const question = [user("The weather of a city, made up.")];
const answer = await ask({ messages: question, max_tokens: 100, response_format: form });
console.log("structured:", JSON.stringify(JSON.parse(answer.content)));

console.log("tools:", await withTools("How warm is it in Oslo?"));

try {
  await ask({ model: "no-such-model", messages: [user("Say hello.")] });
} catch (error) {
  console.log("error:", error.code);
}
