// A simulated phone as a child process. It ends with this process, whatever happens, because its standard input closes.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

/** Start `pocketserver sim serve` on a free port. `device` reads or changes the phone, `stop` ends it. */
export async function startPhone(...options) {
  const command = process.env.POCKETSERVER ?? "pocketserver";
  const always = ["--host", "127.0.0.1", "--port", "0", "--no-mdns", "--ready-json", "-", "--exit-on-stdin-close"];
  const child = spawn(command, ["sim", "serve", "--speed", "max", ...always, ...options], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const [line] = await once(createInterface({ input: child.stdout }), "line");
  const ready = JSON.parse(line);

  async function device(method, path, body) {
    const headers = { Authorization: `Bearer ${ready.control_token}` };
    const response = await fetch(ready.control_url + path, { method, headers, body: body && JSON.stringify(body) });
    return response.json();
  }

  async function stop() {
    const ended = once(child, "exit");
    child.stdin.end();
    await ended;
  }

  return { baseURL: ready.base_url, apiKey: ready.api_key, device, stop };
}
