// The official `ollama` package against the simulator in profile roach: what it does with each answer and each fault.

import assert from "node:assert/strict";
import net from "node:net";
import { after, before, beforeEach, describe, test } from "node:test";

import { Ollama } from "ollama";

import { startSimulator } from "./simulator.js";

const MESSAGES = [{ role: "user", content: "hi" }];
const WEATHER = {
  type: "function",
  function: { name: "weather", parameters: { type: "object", properties: { town: { enum: ["Bern", "Oslo"] } } } },
};

let simulator;
let ask;

before(async () => {
  simulator = await startSimulator("--profile", "roach");
  ask = { model: simulator.model, messages: MESSAGES };
});
after(async () => {
  assert.equal(await simulator.stop(), 0);
});
beforeEach(() => simulator.control("POST", "/reset"));

const origin = () => simulator.base_url.replace(/\/v1$/, "");

function client(options = {}) {
  return new Ollama({ host: origin(), ...options });
}

async function collect(stream) {
  const parts = [];
  for await (const part of await stream) parts.push(part);
  return parts;
}

const textOf = (parts) => parts.map((part) => part.message.content).join("");

describe("answers", () => {
  test("models are listed, shown and seen in memory", async () => {
    const { models } = await client().list();
    assert.equal(models[0].model, `${simulator.model}:latest`);
    const shown = await client().show({ model: simulator.model });
    assert.ok(shown.capabilities.includes("tools"));
    assert.ok(shown.model_info["general.architecture"]);
    const running = await client().ps();
    assert.equal(running.models[0].name, `${simulator.model}:latest`);
  });

  test("a chat has text, a reason and measures", async () => {
    const answer = await client().chat({ ...ask, think: false, options: { num_predict: 8 } });
    assert.ok(answer.message.content);
    assert.equal(answer.done_reason, "length");
    assert.equal(answer.eval_count, 8);
    assert.ok(answer.total_duration >= answer.eval_duration);
  });

  test("a stream joins to the same text and ends with done", async () => {
    const whole = await client().chat({ ...ask, think: false });
    const parts = await collect(client().chat({ ...ask, think: false, stream: true }));
    assert.equal(textOf(parts), whole.message.content);
    assert.deepEqual(parts.map((part) => part.done), [...parts.slice(1).map(() => false), true]);
    assert.ok(parts.every((part) => part.message.role === "assistant"));
  });

  test("a prompt streams too, and its numbers continue it", async () => {
    const parts = await collect(client().generate({ model: simulator.model, prompt: "hi", stream: true }));
    assert.ok(parts.map((part) => part.response).join(""));
    const { context } = parts.at(-1);
    const next = await client().generate({ model: simulator.model, prompt: "and?", context });
    assert.ok(next.prompt_eval_count > parts.at(-1).prompt_eval_count);
  });

  test("thinking stands beside the content", async () => {
    const answer = await client().chat({ ...ask, think: "high" });
    assert.ok(answer.message.thinking);
    assert.ok(!answer.message.content.includes("<think"));
  });

  for (const stream of [false, true]) {
    test(`a tool is called whole and its result read, stream ${stream}`, async () => {
      const reply = { tool_calls: [{ name: "weather", arguments: { town: "Oslo" } }] };
      await simulator.control("POST", "/rules", { match: {}, reply, times: 1 });
      await simulator.control("POST", "/rules", { match: { last_message: "4 C" }, reply: { text: "Cold." } });
      const wanted = { ...ask, tools: [WEATHER], think: false };
      const parts = stream
        ? await collect(client().chat({ ...wanted, stream }))
        : [await client().chat(wanted)];
      const calls = parts.flatMap((part) => part.message.tool_calls ?? []);
      assert.deepEqual(calls.map((call) => call.function.arguments), [{ town: "Oslo" }]);
      assert.equal(parts.at(-1).done_reason, "stop");
      const messages = [
        ...MESSAGES,
        { role: "assistant", content: "", tool_calls: calls },
        { role: "tool", content: "4 C", tool_name: "weather" },
      ];
      assert.equal((await client().chat({ ...wanted, messages })).message.content, "Cold.");
    });
  }

  test("a format is kept", async () => {
    const format = { type: "object", properties: { n: { type: "integer" } }, required: ["n"] };
    const answer = await client().chat({ ...ask, format });
    assert.ok(Number.isInteger(JSON.parse(answer.message.content).n));
  });

  test("vectors come in order", async () => {
    const { embeddings } = await client().embed({ model: simulator.model, input: ["a", "b"] });
    const { embedding } = await client().embeddings({ model: simulator.model, prompt: "b" });
    assert.deepEqual(embeddings[1], embedding);
  });
});

describe("the store", () => {
  test("a model is made, copied, used and deleted", async () => {
    const steps = await collect(
      client().create({ model: "pirate", from: simulator.model, system: "Arr.", parameters: { num_predict: 3 }, stream: true }),
    );
    assert.equal(steps.at(-1).status, "success");
    await client().copy({ source: "pirate", destination: "buccaneer" });
    await client().delete({ model: "pirate" });
    assert.equal((await client().chat({ ...ask, model: "buccaneer", think: false })).eval_count, 3);
    assert.equal((await client().show({ model: "buccaneer" })).system, "Arr.");
  });

  test("a pull ends in success", async () => {
    const steps = await collect(client().pull({ model: simulator.model, stream: true }));
    assert.equal(steps[0].status, "pulling manifest");
    assert.equal(steps.at(-1).status, "success");
    assert.equal((await client().pull({ model: simulator.model })).status, "success");
  });

  test("zero unloads, and an empty prompt loads again", async () => {
    await client().chat({ ...ask, keep_alive: 0 });
    assert.deepEqual((await client().ps()).models, []);
    assert.equal((await client().generate({ model: simulator.model, prompt: "", keep_alive: "5m" })).done_reason, "load");
    assert.equal((await client().ps()).models.length, 1);
  });
});

describe("errors", () => {
  for (const [name, wrong, status, words] of [
    ["a model that is not there", { model: "nope" }, 404, /model 'nope' not found/],
    ["images", { messages: [{ role: "user", content: "x", images: ["aGFsbG8="] }] }, 400, /text only/],
    ["an option of a wrong type", { options: { top_k: "many" } }, 400, /option "top_k" must be of type integer/],
    ["a thinking that is none", { think: "hard" }, 400, /invalid think value/],
  ]) {
    for (const stream of [false, true]) {
      test(`${name} is a ${status}, stream ${stream}`, async () => {
        await assert.rejects(client().chat({ ...ask, ...wrong, stream }), (error) => {
          assert.equal(error.status_code, status);
          assert.match(error.message, words);
          return true;
        });
      });
    }
  }

  test("an error in mid-stream is thrown after what was said", async () => {
    await simulator.control("POST", "/faults", { fault: "error_chunk", code: "host_gone", after_tokens: 3 });
    const seen = [];
    await assert.rejects(async () => {
      for await (const part of await client().chat({ ...ask, think: false, stream: true })) seen.push(part);
    });
    assert.ok(seen.length >= 1);
    assert.ok(seen.every((part) => !part.done));
  });

  for (const fault of [{ fault: "missing_done" }, { fault: "drop_after_tokens", after_tokens: 3 }]) {
    test(`${fault.fault}: an answer that is not whole is thrown`, async () => {
      await simulator.control("POST", "/faults", fault);
      await assert.rejects(collect(client().chat({ ...ask, stream: true })));
    });
  }

  test("abort ends the request, and the next one is answered", async () => {
    await simulator.control("POST", "/faults", { fault: "stall", after_tokens: 2, when: { next: 1 } });
    const own = client();
    const stream = await own.chat({ ...ask, stream: true });
    await assert.rejects(
      async () => {
        for await (const _ of stream) own.abort();
      },
      { name: "AbortError" },
    );
    assert.ok((await client().chat(ask)).message.content);
  });
});

describe("packets", () => {
  for (const [name, forward] of [
    ["every 7 bytes", async (socket, bytes) => {
      for (let at = 0; at < bytes.length; at += 7) {
        socket.write(bytes.subarray(at, at + 7));
        await new Promise(setImmediate);
      }
    }],
    ["all at once", async (socket, bytes) => socket.write(bytes)],
  ]) {
    test(`a stream that arrives ${name} says the same`, async () => {
      const expected = await client().chat({ ...ask, think: false });
      const proxy = await startProxy(forward);
      try {
        const parts = await collect(new Ollama({ host: proxy.url }).chat({ ...ask, think: false, stream: true }));
        assert.equal(textOf(parts), expected.message.content);
      } finally {
        await proxy.stop();
      }
    });
  }
});

/** A proxy that has the whole answer before it passes any of it on, in pieces of its own. */
async function startProxy(forward) {
  const { port } = new URL(origin());
  const server = net.createServer((downstream) => {
    downstream.once("data", (head) => {
      const chunks = [];
      const upstream = net.connect(Number(port), "127.0.0.1", () => upstream.write(closing(head)));
      downstream.on("data", (more) => upstream.write(more));
      upstream.on("data", (chunk) => chunks.push(chunk));
      upstream.on("end", async () => {
        await forward(downstream, Buffer.concat(chunks));
        downstream.end();
      });
    });
    downstream.on("error", () => {});
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const stop = () => new Promise((resolve) => server.close(resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, stop };
}

/** The request with a header that makes the server hang up behind its answer. */
function closing(head) {
  return Buffer.from(head.toString("latin1").replace(/connection: keep-alive/i, "Connection: close"), "latin1");
}
