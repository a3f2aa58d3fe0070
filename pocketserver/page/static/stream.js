// One streamed chat completion as a sequence of happenings: text, reasoning, usage, a place in the line, the end.
import { ask, aborted, Gone, Refused } from "./api.js";

/** Yields `{text}`, `{reasoning}`, `{usage}`, `{waiting}`; throws Refused or Gone. Ending the loop ends the request. */
export async function* completion(body, signal) {
  const response = await ask("/v1/chat/completions", { method: "POST", body, signal });
  let whole = false;
  for await (const line of lines(response, signal)) {
    if (line.startsWith(":")) {
      const place = /^: queued .*?ahead=(\d+)(?: wait_seconds=(\d+))?/.exec(line);
      if (place) yield { waiting: { ahead: Number(place[1]), seconds: place[2] ? Number(place[2]) : null } };
    } else if (line.startsWith("data:")) {
      const data = line.slice(5).trim();
      if (data === "[DONE]") {
        whole = true;
        break;
      }
      yield* happenings(data);
    }
  }
  if (!whole) throw new Gone("The answer broke off.");
}

function* happenings(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new Gone("The answer broke off.");
  }
  if (chunk.error) throw new Refused(0, chunk.error.code ?? null, chunk.error.message ?? "The answer broke off.");
  if (chunk.usage) yield { usage: chunk.usage };
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (reasoning) yield { reasoning };
  if (delta.content) yield { text: delta.content };
  if (choice?.finish_reason) yield { finish: choice.finish_reason };
}

async function* lines(response, signal) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      if (done) break;
      const parts = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r/);
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted || aborted(error)) throw new DOMException("stopped", "AbortError");
    throw new Gone("The connection broke off.");
  }
}
