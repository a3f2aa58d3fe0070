// A simulator as a child process: one JSON line says where it is, and it ends when its standard input is closed.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";

const PYTHON = process.env.POCKETSERVER_TEST_PYTHON ?? "python3";

/** Start a simulator without delays on a free loopback port, with more flags if given; `stop` ends it. */
export async function startSimulator(...flags) {
  const home = await mkdtemp(path.join(tmpdir(), "pocketserver-"));
  const options = ["--host", "127.0.0.1", "--port", "0", "--no-mdns", "--speed", "max", "--home", home, ...flags];
  const child = spawn(
    PYTHON,
    ["-m", "pocketserver.cli.main", "sim", "serve", ...options, "--ready-json", "-", "--exit-on-stdin-close"],
    { stdio: ["pipe", "pipe", "ignore"] },
  );
  const ready = await firstLine(child);
  return { ...ready, control: (method, route, body) => control(ready, method, route, body), stop };

  async function stop() {
    const ended = once(child, "exit");
    child.stdin.end();
    const [code] = await ended;
    await rm(home, { recursive: true });
    return code;
  }
}

async function firstLine(child) {
  const failed = once(child, "exit").then(([code]) => {
    throw new Error(`the simulator ended with ${code} before it was ready`);
  });
  failed.catch(() => {}); // it ends in the usual way later
  const [line] = await Promise.race([once(createInterface({ input: child.stdout }), "line"), failed]);
  return JSON.parse(line);
}

/** One call of the control listener; answers with its JSON. */
async function control(ready, method, route, body) {
  const response = await fetch(ready.control_url + route, {
    method,
    headers: { Authorization: `Bearer ${ready.control_token}` },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}
