// How this device comes by a key: from the link it was opened with, from six digits, or typed.
import { json } from "./api.js";
import { $, say, show } from "./dom.js";
import { forget, keep, recall, remember, remembers, taken } from "./store.js";

const DEVICES = [
  [/iPhone/, "iPhone"],
  [/iPad/, "iPad"],
  [/Android.*Mobile/, "Android-phone"],
  [/Android/, "Android-tablet"],
  [/Windows/, "Windows-browser"],
  [/Macintosh/, "Mac-browser"],
  [/Linux|CrOS/, "Linux-browser"],
];
const DIGITS = /^\d{3}\s?\d{3}$/;

export class Connection {
  #status;
  needed = false;

  constructor(status) {
    this.#status = status;
    status.addEventListener("wrong-key", () => this.ask("The key is not good here (any more). Pair again, or type another one."));
    $("connect").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#connect();
    });
    $("remember").addEventListener("change", () => remember("key", $("remember").checked));
    $("forget").addEventListener("click", () => {
      forget("key");
      this.#status.now();
    });
  }

  /** Use what the link carried. Returns `key`, `owner` or null. */
  async takeIn() {
    const code = taken("code");
    if (code !== null) return (await this.#pair(code)) ? "key" : null;
    const token = taken("owner-token");
    if (token !== null) return (await this.#own(token)) ? "owner" : null;
    return recall("key") === null ? null : "key";
  }

  follow(state) {
    this.needed = state.asks_for_key && !state.authenticated;
    show($("connect"), this.needed);
    const has = state.asks_for_key && state.authenticated;
    show($("remember-row"), has);
    show($("forget-row"), has);
    $("remember").checked = remembers("key");
    if (!this.needed) say($("connect-problem"), "");
  }

  /** Show the form, and why. */
  ask(why) {
    this.needed = true;
    show($("connect"), true);
    say($("connect-problem"), why);
  }

  async #connect() {
    const secret = $("secret").value.trim();
    if (!secret) return;
    if (DIGITS.test(secret)) {
      if (!(await this.#pair(secret))) return;
    } else {
      keep("key", secret);
    }
    $("secret").value = "";
    say($("connect-problem"), "");
    await this.#status.now();
    if (!this.needed) $("message").focus();
  }

  async #pair(code) {
    try {
      const { api_key: key } = await json("/page/pair", { method: "POST", body: { code: code.replace(/\s/g, ""), name: deviceName() } });
      keep("key", key);
      return true;
    } catch (error) {
      this.ask(error.message);
      return false;
    }
  }

  async #own(token) {
    try {
      keep("owner", (await json("/page/owner", { method: "POST", body: { token } })).session);
      return true;
    } catch (error) {
      this.ask(error.message);
      return false;
    }
  }
}

function deviceName() {
  return DEVICES.find(([pattern]) => pattern.test(navigator.userAgent))?.[1] ?? "browser";
}
