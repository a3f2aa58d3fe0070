// What this tab remembers: the key, the owner's session, a draft. The key goes to local storage only when asked.
const PREFIX = "pocketserver.";
const memory = window.pocketserverTaken ?? {};

function attempt(action, otherwise) {
  try {
    return action();
  } catch {
    return otherwise;
  }
}

export function recall(name) {
  const full = PREFIX + name;
  return attempt(() => sessionStorage.getItem(full) ?? localStorage.getItem(full), null) ?? memory[full] ?? null;
}

export function keep(name, value) {
  const full = PREFIX + name;
  if (attempt(() => (sessionStorage.setItem(full, value), true), false)) return;
  memory[full] = value;
}

export function forget(name) {
  const full = PREFIX + name;
  delete memory[full];
  attempt(() => sessionStorage.removeItem(full));
  attempt(() => localStorage.removeItem(full));
}

/** Takes a value out, once. */
export function taken(name) {
  const value = recall(name);
  if (value !== null) forget(name);
  return value;
}

export function remembers(name) {
  return attempt(() => localStorage.getItem(PREFIX + name) !== null, false);
}

/** Keep a value beyond this tab, or no more. */
export function remember(name, wanted) {
  const value = recall(name);
  attempt(() => {
    if (wanted && value !== null) localStorage.setItem(PREFIX + name, value);
    else localStorage.removeItem(PREFIX + name);
  });
}
