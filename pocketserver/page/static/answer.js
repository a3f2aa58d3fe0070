// One answer as it grows: the thinking folded away, the text, what it cost, and what can be done with it.
import { copy, duration, el, number, say, show } from "./dom.js";
import { draw } from "./markdown.js";

const ANNOUNCE_MS = 2500;
const FINISHES = { length: "Cut off: the token limit is reached.", tool_calls: "The model called a tool; this page has none." };

export class AnswerView {
  text = "";
  #reasoning = "";
  #frame = null;
  #asked = performance.now();
  #first = null;
  #last = null;
  #usage = null;
  #finish = null;
  #announcer;

  constructor(list, announcer) {
    this.list = list;
    this.#announcer = announcer;
    this.body = el("div", { class: "body" });
    this.thinking = el("p", {});
    this.summary = el("summary", {}, "Thinking…");
    this.fold = el("details", { class: "reasoning", hidden: true }, this.summary, this.thinking);
    this.foot = el("div", { class: "foot" });
    this.element = el("article", { class: "message assistant", "aria-busy": "true" },
      el("h3", { class: "unseen" }, "Model"), this.fold, this.body, this.foot);
    this.waiting = el("p", { class: "waiting" }, el("span", { class: "unseen" }, "Waiting for the answer"));
    this.body.append(this.waiting);
    list.append(this.element);
    this.#scroll(true);
  }

  /** Whether something came, so that asking again would not be the same. */
  get begun() {
    return this.#first !== null;
  }

  take({ text, reasoning, usage, finish }) {
    if (text || reasoning) {
      this.#last = performance.now();
      this.#first ??= this.#last;
    }
    if (text) this.text += text;
    if (reasoning) this.#reasoning += reasoning;
    this.#usage = usage ?? this.#usage;
    this.#finish = finish ?? this.#finish;
    this.#frame ??= requestAnimationFrame(() => this.#draw());
    if (text) this.#announcer.grow(this.text);
  }

  /** The end, with a note when it is no ordinary one, and buttons. */
  end(note, actions = []) {
    cancelAnimationFrame(this.#frame);
    this.#draw();
    this.waiting.remove();
    this.element.setAttribute("aria-busy", "false");
    const said = [note, FINISHES[this.#finish]].filter(Boolean);
    const parts = said.map((text) => el("p", { class: "problem" }, text));
    const cost = this.#cost();
    if (cost) parts.push(el("p", { class: "quiet cost" }, cost));
    if (this.text) {
      const button = el("button", { type: "button", "aria-label": "Copy the answer" }, "Copy");
      button.addEventListener("click", () => copy(this.text, button));
      parts.push(button);
    }
    for (const [label, action] of actions) parts.push(el("button", { type: "button", class: "action", onclick: action }, label));
    this.foot.replaceChildren(...parts);
    this.#announcer.end(this.text, note ?? "End of the answer.");
    this.#scroll();
  }

  /** Leave only the copy button: another message follows. */
  settle() {
    for (const button of this.foot.querySelectorAll(".action")) button.remove();
  }

  remove() {
    cancelAnimationFrame(this.#frame);
    this.element.remove();
  }

  #draw() {
    this.#frame = null;
    if (!this.begun) return;
    const follows = this.#atEnd();
    this.waiting.remove();
    show(this.fold, this.#reasoning !== "");
    say(this.thinking, this.#reasoning.trim());
    if (this.text) say(this.summary, "Thoughts");
    draw(this.body, this.text.trimStart());
    if (follows) this.#scroll(true);
  }

  #cost() {
    if (this.#usage === null || this.#first === null) return "";
    const { prompt_tokens: prompt, completion_tokens: written } = this.#usage;
    const seconds = (this.#last - this.#first) / 1000;
    const parts = [`${number(written)} tokens`];
    if (written > 1 && seconds > 0.001) parts.push(`${number((written - 1) / seconds, 1)} tokens/s`);
    parts.push(`first after ${duration((this.#first - this.#asked) / 1000)}`, `${number(prompt)} of prompt`);
    return parts.join(" · ");
  }

  #atEnd() {
    return this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 80;
  }

  #scroll(always = false) {
    if (always || this.#atEnd()) this.list.scrollTop = this.list.scrollHeight;
  }
}

/** Reads a growing answer out in pieces, not word by word. */
export class Announcer {
  #region;
  #spoken = 0;
  #timer = null;
  #text = "";

  constructor(region) {
    this.#region = region;
  }

  grow(text) {
    this.#text = text;
    this.#timer ??= setTimeout(() => this.#speak(), ANNOUNCE_MS);
  }

  end(text, note) {
    this.#text = text;
    this.#speak(note);
    this.#spoken = 0;
    this.#text = "";
  }

  #speak(note = "") {
    clearTimeout(this.#timer);
    this.#timer = null;
    const cut = note ? this.#text.length : Math.max(this.#text.lastIndexOf(" ") + 1, this.#spoken);
    this.#region.textContent = `${this.#text.slice(this.#spoken, cut)} ${note}`.trim();
    this.#spoken = cut;
  }
}
