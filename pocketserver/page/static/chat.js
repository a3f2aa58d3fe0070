// The conversation: sends, streams, stops, waits while the model is busy or the server gone, and never loses a draft.
import { aborted, Gone, Refused } from "./api.js";
import { AnswerView, Announcer } from "./answer.js";
import { $, el, say, show } from "./dom.js";
import { forget, keep, recall } from "./store.js";
import { completion } from "./stream.js";

const PASSING = new Set(["model_busy", "queue_full", "model_not_loaded", "host_gone", "disconnected_by_host", "upstream_unreachable"]);
const USUAL_WAIT_SECONDS = 2;
const LOOK_AGAIN_MS = 1000;

export class Chat {
  #status;
  #connection;
  #turns = [];
  #running = null;
  #view = null;
  #announcer = new Announcer($("live"));

  constructor(status, connection) {
    this.#status = status;
    this.#connection = connection;
    this.#wire();
  }

  focus() {
    if (!this.#connection.needed && window.matchMedia("(pointer: fine)").matches) $("message").focus();
  }

  follow(state) {
    if (!state.simulated) return;
    say($("welcome"), "This is a simulated device: its answers are made up, to test programs with.");
  }

  #wire() {
    const message = $("message");
    message.value = recall("draft") ?? "";
    message.addEventListener("input", () => {
      keep("draft", message.value);
      fit(message);
    });
    message.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.#send();
    });
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    $("stop").addEventListener("click", () => this.#running?.abort());
    $("new-chat").addEventListener("click", () => this.#begin());
    window.addEventListener("pagehide", () => this.#running?.abort());
    this.#wireOptions();
    followEnd($("messages"));
    fit(message);
  }

  #wireOptions() {
    $("options-toggle").addEventListener("click", () => this.#showOptions($("options").hidden));
    for (const name of ["system", "temperature"]) {
      $(name).value = recall(name) ?? "";
      $(name).addEventListener("input", () => keep(name, $(name).value));
    }
  }

  #showOptions(open) {
    show($("options"), open);
    $("options-toggle").setAttribute("aria-expanded", String(open));
  }

  /** A new chat; the draft stays. */
  #begin() {
    this.#running?.abort();
    this.#turns = [];
    this.#view = null;
    for (const message of $("messages").querySelectorAll(".message")) message.remove();
    show($("welcome"), true);
    say($("notice"), "");
    $("message").focus();
  }

  #send() {
    const text = $("message").value.trim();
    if (!text || this.#running) return;
    if (this.#connection.needed) {
      this.#connection.ask("First connect this device; your message is kept.");
      $("secret").focus();
      return;
    }
    this.#setDraft("");
    this.#showOptions(false);
    show($("welcome"), false);
    this.#view?.settle();
    const bubble = el("article", { class: "message user" }, el("h3", { class: "unseen" }, "You"), el("p", {}, text));
    $("messages").append(bubble);
    this.#turns.push({ role: "user", content: text, bubble });
    this.#answer();
  }

  async #answer() {
    const running = (this.#running = new AbortController());
    const view = (this.#view = new AnswerView($("messages"), this.#announcer));
    this.#showRunning(true);
    say($("notice"), "");
    try {
      await this.#attempts(view, running.signal);
    } catch (error) {
      if (this.#view === view) this.#failed(error, view); // else a new chat has begun meanwhile
    } finally {
      if (this.#running === running) {
        this.#running = null;
        this.#showRunning(false);
      }
      this.#status.now();
    }
  }

  /** Ask until there is an answer. Throws what waiting cannot mend. */
  async #attempts(view, signal) {
    for (;;) {
      try {
        for await (const happening of completion(this.#body(), signal)) {
          say($("notice"), happening.waiting ? place(happening.waiting) : "");
          view.take(happening);
        }
        if (signal.aborted) throw new DOMException("stopped", "AbortError");
        this.#turns.push({ role: "assistant", content: view.text });
        view.end(null, [["Again", () => this.#again(view)]]);
        return;
      } catch (error) {
        if (view.begun || signal.aborted) throw error;
        if (error instanceof Gone) await this.#untilBack(signal);
        else if (passes(error)) await countdown(error, signal);
        else throw error;
      }
    }
  }

  #body() {
    const turns = this.#turns.map(({ role, content }) => ({ role, content }));
    const system = $("system").value.trim();
    if (system) turns.unshift({ role: "system", content: system });
    const body = { messages: turns, stream: true, stream_options: { include_usage: true } };
    const temperature = Number.parseFloat($("temperature").value);
    if (temperature >= 0 && temperature <= 2) body.temperature = temperature;
    if ($("model").value) body.model = $("model").value;
    return body;
  }

  async #untilBack(signal) {
    say($("notice"), "The server cannot be reached. Your message is sent as soon as it is back.");
    do {
      await pause(LOOK_AGAIN_MS, signal);
      await this.#status.now();
    } while (!this.#status.reachable);
    say($("notice"), "");
  }

  /** What came stays; without a word the message goes back to where it was typed. */
  #failed(error, view) {
    const stopped = aborted(error);
    say($("notice"), "");
    if (view.begun) {
      this.#turns.push({ role: "assistant", content: view.text });
      view.end(stopped ? "Stopped." : error.message, [["Try again", () => this.#again(view)]]);
      return;
    }
    view.remove();
    this.#view = null;
    this.#takeBack();
    if (error.status === 401) this.#connection.ask(error.message);
    else if (!stopped) say($("notice"), error.message ?? "Something went wrong.");
  }

  #takeBack() {
    const { content, bubble } = this.#turns.pop();
    bubble.remove();
    if (!$("message").value) this.#setDraft(content);
    show($("welcome"), this.#turns.length === 0);
  }

  #again(view) {
    if (this.#running || this.#view !== view) return;
    this.#turns.pop();
    view.remove();
    this.#answer();
  }

  #setDraft(text) {
    $("message").value = text;
    if (text) keep("draft", text);
    else forget("draft");
    fit($("message"));
  }

  #showRunning(running) {
    show($("send"), !running);
    show($("stop"), running);
  }
}

function passes(error) {
  return error instanceof Refused && PASSING.has(error.code) && (error.status === 429 || error.retryAfter !== null);
}

/** Waits as long as the server said, and says so. */
async function countdown(error, signal) {
  const until = performance.now() + Math.max(0.2, error.retryAfter ?? USUAL_WAIT_SECONDS) * 1000;
  const why = error.code === "model_busy" || error.code === "queue_full" ? "The model is busy with another request." : error.message;
  for (let left = until - performance.now(); left > 0; left = until - performance.now()) {
    say($("notice"), `${why} Trying again in ${Math.ceil(left / 1000)} s.`);
    await pause(Math.min(left, 1000), signal);
  }
  say($("notice"), `${why} Trying again…`);
}

function place({ ahead, seconds }) {
  const wait = seconds === null ? "" : `, about ${seconds} s`;
  return `Waiting in line: ${ahead} ahead${wait}.`;
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stopped = () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stopped);
      resolve();
    }, milliseconds);
    if (signal.aborted) stopped();
    signal.addEventListener("abort", stopped, { once: true });
  });
}

/** Whoever reads the end goes on seeing it when the list gets smaller: a notice, the keyboard of a phone. */
function followEnd(list) {
  let atEnd = true;
  list.addEventListener("scroll", () => (atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 80), { passive: true });
  new ResizeObserver(() => {
    if (atEnd) list.scrollTop = list.scrollHeight;
  }).observe(list);
}

function fit(field) {
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, 200)}px`;
}
