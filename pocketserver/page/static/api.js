// Requests to our own server. The key and the owner's session travel in headers only, never in an address.
import { recall } from "./store.js";

/** The server gave an error: its status, code and sentence, and when to come again. */
export class Refused extends Error {
  constructor(status, code, message, retryAfter = null) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

/** The server could not be reached, or the connection broke off. */
export class Gone extends Error {}

export async function ask(path, { method = "GET", body, signal, seconds } = {}) {
  const headers = {};
  const key = recall("key");
  const owner = recall("owner");
  if (key) headers["Authorization"] = `Bearer ${headerSafe(key)}`;
  if (owner && path.startsWith("/page/")) headers["x-pocketserver-owner"] = owner;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = { method, headers, signal, cache: "no-store", credentials: "omit", referrerPolicy: "no-referrer" };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetched(path, options, seconds);
  if (!response.ok) throw await refused(response);
  return response;
}

export async function json(path, options) {
  const response = await ask(path, { seconds: 30, ...options });
  try {
    return await response.json();
  } catch (error) {
    throw aborted(error) ? error : new Gone("The answer broke off.");
  }
}

async function fetched(path, options, seconds) {
  const limit = new AbortController();
  const timer = seconds ? setTimeout(() => limit.abort(), seconds * 1000) : null;
  try {
    return await fetch(path, seconds ? { ...options, signal: limit.signal } : options);
  } catch (error) {
    if (aborted(error) && !limit.signal.aborted) throw error;
    throw new Gone("The server cannot be reached.");
  } finally {
    clearTimeout(timer);
  }
}

async function refused(response) {
  let error = {};
  try {
    const document = await response.json();
    error = typeof document.error === "string" ? { message: document.error } : (document.error ?? {});
  } catch {
    // no JSON: the status has to do
  }
  const wait = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  const message = error.message ?? `The server answered with status ${response.status}.`;
  return new Refused(response.status, error.code ?? null, message, Number.isFinite(wait) ? wait : null);
}

export function aborted(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Headers hold one line of Latin-1; what else was typed is a wrong key anyway. */
function headerSafe(key) {
  return key.replace(/[^\x21-\x7e]/g, "?");
}
