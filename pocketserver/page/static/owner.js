// What only the owner sees: the key, Stop, the model in memory, pairing, and the keys of others.
import { json } from "./api.js";
import { $, copy, el, fill, say, show } from "./dom.js";
import { forget, keep, recall } from "./store.js";

const HIDDEN_KEY = "sk-••••••••";
const LOOK_MS = 1000;

export class OwnerPanel {
  #status;
  #models;
  #key = null;
  #watching = null;
  /** The main key while it is shown. */
  shownKey = null;

  constructor(status, models) {
    this.#status = status;
    this.#models = models;
    this.#wire();
  }

  /** Show or hide the panel, by what the server says of our session. */
  follow(state) {
    const came = state.owner && $("owner").hidden;
    show($("owner"), state.owner);
    show($("owner-keys"), state.asks_for_key);
    show($("pair"), state.asks_for_key);
    show($("switching"), state.can_switch);
    $("owner-stop").disabled = !["busy", "stuck"].includes(state.state);
    if (came) this.#begin(state);
    if (!state.owner) this.#end();
  }

  async #begin(state) {
    if (state.asks_for_key) {
      await this.#doing("", async () => {
        this.#key = (await json("/page/key")).api_key;
        if (!recall("key")) keep("key", this.#key);
        await this.#listKeys();
      });
      this.#status.now();
    }
  }

  #end() {
    this.#key = this.shownKey = null;
    say($("main-key"), HIDDEN_KEY);
    clearTimeout(this.#watching);
    show($("pairing"), false);
    show($("made"), false);
    say($("made-key"), "");
  }

  /** Shows how the models are listed, for the choice of the one in memory. */
  listModels(models) {
    fill($("owner-model"), models.map(({ id, loaded }) => [id, loaded]), ([id, loaded]) =>
      el("option", { value: id, selected: loaded }, loaded ? `${id} (loaded)` : id));
  }

  #wire() {
    on("owner-stop", () => this.#doing("The running answer was stopped.", () => json("/page/stop", { method: "POST" })));
    on("pair", () => this.#doing("", () => this.#pair()));
    on("reveal", () => this.#reveal());
    on("copy-key", () => this.#key && copy(this.#key, $("copy-key")));
    on("copy-made", () => copy($("made-key").textContent, $("copy-made")));
    on("load-model", () => this.#load());
    on("leave", () => this.#leave());
    $("new-key").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#doing("", () => this.#make());
    });
  }

  /** Run something; what goes wrong is said in words. */
  async #doing(said, action) {
    try {
      await action();
      say($("owner-said"), said);
    } catch (error) {
      say($("owner-said"), error.message);
    }
    this.#status.now();
  }

  #reveal() {
    const shown = this.shownKey === null;
    this.shownKey = shown ? this.#key : null;
    say($("main-key"), this.shownKey ?? HIDDEN_KEY);
    say($("reveal"), shown ? "Hide" : "Show");
    $("reveal").setAttribute("aria-pressed", String(shown));
    this.#status.now();
  }

  async #pair() {
    const { code, svg } = await json("/page/pairing", { method: "POST" });
    $("pairing-qr").src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
    say($("pairing-code"), `${code.slice(0, 3)} ${code.slice(3)}`);
    show($("pairing"), true);
    clearTimeout(this.#watching);
    this.#watch();
  }

  async #watch() {
    let pairing = null;
    try {
      pairing = (await json("/page/pairing")).pairing;
    } catch {
      // looked at again in a moment
    }
    if (pairing?.state === "open" || pairing === null) {
      if (pairing) say($("pairing-left"), `Scan it, or type the digits. Good for ${Math.ceil(pairing.seconds)} seconds and one device.`);
      this.#watching = setTimeout(() => this.#watch(), LOOK_MS);
      return;
    }
    show($("pairing"), false);
    const ends = { used: `Paired: the key ${pairing.name ?? ""}.`, expired: "The code ran out. Pair again for a new one." };
    say($("owner-said"), ends[pairing.state] ?? "Wrong codes were tried five times, so the code is void.");
    this.#listKeys().catch(() => {});
  }

  async #listKeys() {
    const { keys } = await json("/page/keys");
    fill($("keys"), keys, ({ name, scopes, last4 }) => {
      const button = el("button", { type: "button", "aria-label": `Revoke the key ${name}` }, "Revoke");
      button.addEventListener("click", () => this.#revoke(name));
      return el("li", { class: "row" }, el("span", {}, el("strong", {}, name), ` ${scopes.join(", ")} · ends in ${last4}`), button);
    });
  }

  #revoke(name) {
    const main = name === "main" ? " A new main key takes its place; every device that has the old one is locked out." : "";
    if (!window.confirm(`Revoke the key ${name}? Its running answers end.${main}`)) return;
    this.#doing(`The key ${name} is revoked.`, async () => {
      await json(`/page/keys/${encodeURIComponent(name)}`, { method: "DELETE" });
      const ours = this.#key === recall("key");
      this.#key = (await json("/page/key")).api_key;
      if (ours) keep("key", this.#key);
      if (this.shownKey !== null) say($("main-key"), (this.shownKey = this.#key));
      await this.#listKeys();
    });
  }

  async #make() {
    const name = $("key-name").value.trim();
    const { api_key: key } = await json("/page/keys", { method: "POST", body: { name } });
    say($("made-key"), key);
    show($("made"), true);
    $("key-name").value = "";
    await this.#listKeys();
  }

  #load() {
    const model = $("owner-model").value;
    say($("owner-said"), `Loading ${model}…`);
    this.#doing(`${model} is loaded.`, async () => {
      await json("/page/model", { method: "POST", body: { model }, seconds: 600 });
      await this.#models();
    });
  }

  #leave() {
    this.#doing("", async () => {
      await json("/page/owner", { method: "DELETE" });
      forget("owner");
      forget("key");
    });
  }
}

function on(id, action) {
  $(id).addEventListener("click", action);
}
