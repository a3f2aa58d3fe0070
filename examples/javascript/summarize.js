// The client under test: a summary that appears while it is written.

import OpenAI from "openai";

export class IncompleteError extends Error {}

/** Stream a summary piece by piece to `show`; throws IncompleteError where the phone went away in the middle. */
export async function summarize(text, { baseURL, apiKey, show = () => {} }) {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 2 });
  const stream = await client.chat.completions.create({
    model: "default",
    messages: [{ role: "user", content: `Summarize in one sentence: ${text}` }],
    stream: true,
  });
  let summary = "";
  let finished = false;
  try {
    for await (const chunk of stream) {
      const piece = chunk.choices[0]?.delta.content ?? "";
      summary += piece;
      show(piece);
      finished ||= Boolean(chunk.choices[0]?.finish_reason);
    }
  } catch (cause) {
    throw new IncompleteError(`The summary broke off after ${summary.length} characters.`, { cause });
  }
  if (!finished) throw new IncompleteError("The summary has no end.");
  return summary;
}
