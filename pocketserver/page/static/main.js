// Puts the page together: what the link brought, the two views, the state, the chat, the owner's panel.
import { json } from "./api.js";
import { Chat } from "./chat.js";
import { Connection } from "./connection.js";
import { $, copy, el, fill, say, show } from "./dom.js";
import { OwnerPanel } from "./owner.js";
import { showSnippets } from "./snippets.js";
import { Status } from "./status.js";
import { recall } from "./store.js";

const status = new Status();
const connection = new Connection(status);
const chat = new Chat(status, connection);
const owner = new OwnerPanel(status, loadModels);
let modelsOf = null;

status.addEventListener("state", ({ detail: state }) => {
  owner.follow(state);
  connection.follow(state);
  chat.follow(state);
  showSnippets(state, owner.shownKey);
  const about = JSON.stringify([state.model, state.state === "idle" || state.state === "busy", recall("key")]);
  if (about !== modelsOf && (!state.asks_for_key || state.authenticated)) {
    modelsOf = about;
    loadModels();
  }
});

async function loadModels() {
  try {
    const { data } = await json("/v1/models");
    owner.listModels(data);
    listModels(data);
  } catch {
    modelsOf = null; // asked again with the next state
  }
}

function listModels(models) {
  const select = $("model");
  const chosen = select.value;
  const every = status.latest?.loads_on_request;
  fill(select, models.map(({ id, loaded }) => [id, loaded, Boolean(every || loaded)]), ([id, loaded, can]) =>
    el("option", { value: id, selected: loaded, disabled: !can }, can ? id : `${id} (not loaded)`));
  if ([...select.options].some((option) => option.value === chosen && !option.disabled)) select.value = chosen;
}

function view(name) {
  document.body.dataset.view = name;
  for (const other of ["chat", "server"]) $(`view-${other}`).setAttribute("aria-pressed", String(other === name));
  if (name === "chat") chat.focus();
}

function wire() {
  $("view-chat").addEventListener("click", () => view("chat"));
  $("view-server").addEventListener("click", () => view("server"));
  $("copy-url").addEventListener("click", () => copy($("base-url").textContent, $("copy-url")));
  $("qr-toggle").addEventListener("click", () => {
    const open = $("qr").hidden;
    if (open) $("qr").src = `/page/qr.svg?${Date.now()}`;
    show($("qr"), open);
    say($("qr-toggle"), open ? "Hide QR code" : "Show QR code");
    $("qr-toggle").setAttribute("aria-expanded", String(open));
  });
}

async function begin() {
  wire();
  view("chat");
  const came = await connection.takeIn();
  if (came === "owner") view("server");
  status.start();
  if (came === "key") chat.focus();
}

window.addEventListener("pocketserver-taken", async () => {
  if ((await connection.takeIn()) === "owner") view("server");
  status.now();
});
begin();
