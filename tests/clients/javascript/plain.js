// The official `openai` package asks a running server for completions and embeddings, and prints what it got as JSON.
// Arguments: base URL, API key, model. Run by ../test_openai_completions.py and ../test_openai_embeddings.py.

import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const ask = { model, prompt: "The capital of France is", max_tokens: 6, temperature: 0, seed: 1 };

async function streamed() {
  const pieces = [];
  const stream = await client.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
  let usage = null;
  for await (const chunk of stream) {
    if (chunk.choices.length) pieces.push(chunk.choices[0].text);
    usage = chunk.usage ?? usage;
  }
  return { text: pieces.join(""), usage };
}

async function refused(call) {
  try {
    await call();
  } catch (error) {
    return { class: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  return null;
}

const embed = (fields) => client.embeddings.create({ model, input: "A cat sleeps.", ...fields });
const whole = await client.completions.create({ ...ask, logprobs: 1 });
console.log(
  JSON.stringify({
    whole: whole.choices[0],
    streamed: await streamed(),
    unasked: (await embed({})).data[0].embedding,
    floats: (await embed({ encoding_format: "float" })).data[0].embedding,
    short: (await embed({ dimensions: 8 })).data[0].embedding,
    several: (await embed({ input: ["A cat sleeps.", "Banks raise rates."] })).data.map((entry) => entry.index),
    errors: {
      tokens: await refused(() => embed({ input: [1, 2, 3] })),
      suffix: await refused(() => client.completions.create({ ...ask, suffix: " end" })),
      model: await refused(() => embed({ model: "no-such-model" })),
    },
  }),
);
