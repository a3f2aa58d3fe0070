import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";

import { startPhone } from "./phone.js";
import { IncompleteError, summarize } from "./summarize.js";

let phone;

before(async () => {
  phone = await startPhone();
});
after(() => phone.stop());
beforeEach(() => phone.device("POST", "/reset"));

test("a summary is shown while it is written", async () => {
  await phone.device("POST", "/rules", { reply: { text: "A boat reaches the harbour." } });
  const pieces = [];
  const summary = await summarize("a long story", { ...phone, show: (piece) => pieces.push(piece) });
  assert.equal(summary, "A boat reaches the harbour.");
  assert.ok(pieces.filter(Boolean).length > 1);
});

test("a busy phone is asked again when it says so", async () => {
  await phone.device("POST", "/faults", { fault: "model_busy", retry_after: 0.1 });
  assert.ok(await summarize("a long story", phone));
  assert.equal((await phone.device("GET", "/verdict")).resilient, true);
});

test("a phone that goes away in mid-answer is reported", async () => {
  await phone.device("POST", "/faults", { fault: "drop_after_tokens", after_tokens: 3 });
  await assert.rejects(summarize("a long story", phone), IncompleteError);
});

test("an error in mid-answer is reported", async () => {
  await phone.device("POST", "/faults", { fault: "error_chunk", after_tokens: 5 });
  await assert.rejects(summarize("a long story", phone), IncompleteError);
});

test("a hot phone still answers", async () => {
  const state = await phone.device("PATCH", "/state", { thermal: "serious" });
  assert.equal(state.thermal, "serious");
  assert.ok(await summarize("a long story", phone));
});
