// Runs before anything is painted: what a link carries in its fragment (a key, a pairing code, an owner's token) is put
// into this tab's session storage, and the address bar is cleared, so that it stays in no history and no screenshot.
(() => {
  "use strict";
  const names = { key: "pocketserver.key", pair: "pocketserver.code", owner: "pocketserver.owner-token" };
  const memory = (window.pocketserverTaken = {}); // for browsers that keep no storage

  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  }

  function take() {
    const found = /^#(key|pair|owner)=(.+)$/.exec(location.hash);
    if (!found) return;
    history.replaceState(null, "", location.pathname + location.search);
    const name = names[found[1]];
    const value = decoded(found[2]);
    try {
      sessionStorage.setItem(name, value);
    } catch {
      memory[name] = value;
    }
    window.dispatchEvent(new Event("pocketserver-taken"));
  }

  document.documentElement.classList.add("js");
  take();
  window.addEventListener("hashchange", take);
})();
