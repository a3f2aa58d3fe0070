// Asks for the server's state again and again, while the page is looked at, and shows it.
import { json } from "./api.js";
import { draw } from "./chart.js";
import { $, duration, el, fill, number, say, show } from "./dom.js";
import { forget, recall } from "./store.js";

const SENTENCES = {
  idle: "Ready",
  busy: "Answering",
  loading: "Loading the model",
  no_model: "No model is loaded",
  stuck: "Stuck: no progress",
  gone: "Not reachable",
};
const ASK_EVERY_MS = { busy: 1000, loading: 700 };
const ASK_USUALLY_MS = 2000;
const LONGEST_PAUSE_MS = 5000;
const LIMIT_SECONDS = 6;

/** Follows the state. Listeners: `state` with each document, `gone`, `back`, `wrong-key`, `not-owner`. */
export class Status extends EventTarget {
  #timer = null;
  #failures = 0;
  #asking = false;
  latest = null;

  start() {
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.now();
    });
    this.now();
  }

  get reachable() {
    return this.#failures === 0;
  }

  /** Ask at once. */
  async now() {
    if (this.#asking) return;
    clearTimeout(this.#timer);
    this.#asking = true;
    const [key, owner] = [recall("key"), recall("owner")];
    try {
      this.#received(await json("/page/state", { seconds: LIMIT_SECONDS }), key, owner);
    } catch (error) {
      this.#failed(error);
    } finally {
      this.#asking = false;
    }
    if (!document.hidden || !this.reachable) this.#timer = setTimeout(() => this.now(), this.#pause());
  }

  #pause() {
    if (this.#failures) return Math.min(LONGEST_PAUSE_MS, 500 * 2 ** this.#failures);
    return ASK_EVERY_MS[this.latest?.state] ?? ASK_USUALLY_MS;
  }

  #received(state, key, owner) {
    const back = this.#failures > 0;
    this.#failures = 0;
    this.latest = state;
    if (key && key === recall("key") && state.asks_for_key && !state.authenticated) {
      forget("key");
      this.#tell("wrong-key");
    }
    if (owner && owner === recall("owner") && !state.owner) {
      forget("owner");
      this.#tell("not-owner");
    }
    render(state);
    this.#tell("state", state);
    if (back) this.#tell("back");
  }

  /** An error status means that it answers: only what cannot be reached is gone. */
  #failed(error) {
    if (error.status === 429) {
      forget("key"); // too many wrong keys came from here; asking without one is free
      return;
    }
    this.#failures += 1;
    renderGone();
    if (this.#failures === 1) this.#tell("gone");
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

function renderGone() {
  $("state").dataset.state = "gone";
  say($("sentence"), SENTENCES.gone);
  say($("gone"), "The server cannot be reached. Is it running, and is this device on the same Wi-Fi? Trying again…");
  show($("gone"), true);
}

function render(state) {
  show($("gone"), false);
  $("state").dataset.state = state.state;
  say($("sentence"), shortSentence(state));
  say($("state-long"), longSentence(state));
  show($("simulated"), state.simulated);
  say($("base-url"), state.base_url);
  fill($("other-urls"), state.other_urls, (url) => el("li", {}, el("code", { class: "long" }, url)));
  show($("others"), state.other_urls.length > 0);
  say($("model-name"), state.model ?? "none");
  say($("context"), state.context_size ? `${number(state.context_size)} tokens` : "unknown");
  say($("problem"), state.problem ?? "");
  say($("version"), state.version);
  renderProgress(state);
  renderInside(state);
}

function shortSentence(state) {
  const percent = state.progress === null ? "" : ` ${Math.round(state.progress * 100)} %`;
  return state.state === "loading" ? `Loading${percent}` : (SENTENCES[state.state] ?? state.state);
}

function longSentence(state) {
  const running = state.inside?.requests.find((request) => request.has_model);
  if (state.state === "busy" && running) return `Answering ${who(running)}`;
  return state.state === "loading" ? shortSentence(state) : (SENTENCES[state.state] ?? state.state);
}

function renderProgress(state) {
  const loading = state.state === "loading";
  show($("progress"), loading);
  if (loading && state.progress !== null) $("progress").value = state.progress;
  else $("progress").removeAttribute("value");
}

const who = ({ key, address }) => (key ? `${key} (${address})` : address);

function renderInside(state) {
  const inside = state.inside;
  for (const part of document.querySelectorAll(".inside")) show(part, inside !== null);
  fill($("requests"), inside?.requests ?? [], requestRow);
  if (inside === null) return;
  say($("uptime"), duration(inside.uptime_seconds));
  say($("engine"), [inside.engine, inside.runtime].filter(Boolean).join(", "));
  draw($("chart"), $("chart-text"), inside);
  renderLast(inside.last);
  fill($("devices"), inside.devices.map((device) => ({ ...device, ago: ago(state.now - device.last_seen) })), deviceRow);
  fill($("errors"), inside.errors.map((told) => ({ ...told, ago: ago(state.now - told.failure.at) })), errorRow);
  show($("no-errors"), inside.errors.length === 0);
}

function requestRow(request) {
  const what = request.has_model ? `${request.tokens} tokens in` : "waiting for";
  return el("li", {}, el("strong", {}, who(request)), ` ${what} ${duration(request.seconds)}`);
}

function renderLast(last) {
  show($("no-answer"), last === null);
  const rows = last === null ? [] : [
    ["For", who(last)],
    ["Tokens", `${number(last.completion_tokens)} after ${number(last.prompt_tokens)} of prompt` +
      (last.cached_tokens ? `, ${number(last.cached_tokens)} of them cached` : "")],
    ["First token", last.time_to_first_token === null ? "unknown" : `${number(last.time_to_first_token, 2)} s`],
    ["Speed", last.tokens_per_second === null ? "unknown" : `${number(last.tokens_per_second, 1)} tokens/s`],
    ["In all", `${number(last.seconds, 2)} s`],
  ];
  fill($("last"), rows, ([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, text)));
}

function deviceRow({ address, key, requests, ago: when }) {
  const holder = key === null ? "no key" : `key ${key}`;
  return el("li", {}, el("strong", {}, address), ` ${holder} · requests: ${number(requests)} · ${when}`);
}

function errorRow({ failure, advice, ago: when }) {
  const from = `${failure.status} from ${who(failure)}, ${when}`;
  return el("li", {}, el("strong", {}, failure.code), ` ${from}`, el("br"), el("span", { class: "quiet" }, ...marked(advice)));
}

/** Words in backquotes are commands. */
export function marked(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

function ago(seconds) {
  if (seconds < 5) return "now";
  return seconds < 60 ? "a moment ago" : `${duration(seconds)} ago`;
}
