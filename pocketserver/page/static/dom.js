// Small helpers over the DOM. Text always becomes text nodes; nothing here, or elsewhere, parses markup.
export const $ = (id) => document.getElementById(id);

/** An element with attributes (`on…` are listeners) and children (strings become text). */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function show(element, visible) {
  element.hidden = !visible;
}

/** Sets text only when it changed, so that screen readers and selections are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Rows of a list; the list is built again only when `signature` changes. */
export function fill(list, rows, make) {
  const signature = JSON.stringify(rows);
  if (list.dataset.rows === signature) return;
  list.dataset.rows = signature;
  list.replaceChildren(...rows.map(make));
}

export const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export function duration(seconds) {
  if (seconds < 10) return `${number(seconds, 1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

/** Copies text, also over plain HTTP, where browsers offer no clipboard. */
export async function copy(text, button) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    done = copyBySelection(text, button);
  }
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  button.textContent = done ? "Copied" : "Copy failed";
  setTimeout(() => (button.textContent = before), 1500);
}

function copyBySelection(text, button) {
  const focused = document.activeElement;
  const field = el("textarea", { class: "unseen", readonly: true, "aria-hidden": "true", tabindex: "-1" });
  field.value = text;
  button.parentElement.append(field);
  field.select();
  field.setSelectionRange(0, text.length);
  let done = false;
  try {
    done = document.execCommand("copy");
  } catch {
    done = false;
  }
  field.remove();
  focused?.focus?.({ preventScroll: true });
  return done;
}
