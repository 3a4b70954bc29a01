"use strict";
// The page works without this script. It adds the theme, copying, times that stay right, and live changes.
(() => {
  const root = document.documentElement;
  const stored = (() => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  })();
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;

  const isDark = () =>
    (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

  function changeTheme() {
    const next = isDark() ? "light" : "dark";
    root.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // Without storage the theme is that of this page.
    }
    document.dispatchEvent(new CustomEvent("console:theme"));
  }

  async function copy(button) {
    const done = button.querySelector(".done");
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      done.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.parentElement.querySelector("code"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      done.textContent = "Selected";
    }
    setTimeout(() => (done.textContent = ""), 1500);
  }

  function age(ms) {
    const s = Math.max(0, ms / 1000);
    for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
      if (s >= 2 * length) return `${Math.round(s / length)}\u202f${unit}`;
    return `${Math.floor(s)}\u202fs`;
  }

  // The clock of the store, as the page had it, goes on with this host's clock.
  const seen = new WeakMap();
  function refreshTimes() {
    for (const each of document.querySelectorAll("time[data-ms]")) {
      if (!seen.has(each)) {
        seen.set(each, Date.now());
        continue;
      }
      const now = Number(each.dataset.now) + Date.now() - seen.get(each);
      const distance = now - Number(each.dataset.ms);
      each.textContent =
        Math.abs(distance) < 1000 ? "now" : distance > 0 ? `${age(distance)} ago` : `in ${age(-distance)}`;
    }
  }

  // Live: one stream says what changed. The page reads itself again, and the changed parts are replaced.
  let stream = null;
  let reading = false;
  let again = false;

  function concerns(element, change) {
    const [location, ...rest] = element.dataset.live.split("/");
    if (location !== "*" && decodeURIComponent(location) !== change.location) return false;
    if (!rest.length) return true;
    return change.names.includes(decodeURIComponent(rest.join("/")));
  }

  function show(state, text) {
    const live = document.getElementById("live");
    if (!live) return;
    live.hidden = false;
    live.dataset.state = state;
    live.lastElementChild.textContent = text;
  }

  async function readAgain() {
    if (reading) {
      again = true;
      return;
    }
    reading = true;
    try {
      const answer = await fetch(location.href, { headers: { "X-Console-Live": "1" }, credentials: "same-origin" });
      if (!answer.ok) {
        show("stale", answer.status === 401 ? "Signed out" : "Not up to date");
        return;
      }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live][id]")) replace(part, page.getElementById(part.id));
      show("on", "Live");
      refreshTimes();
      document.dispatchEvent(new CustomEvent("console:changed"));
    } catch {
      show("stale", "Not up to date");
    } finally {
      reading = false;
      if (again) {
        again = false;
        readAgain();
      }
    }
  }

  function replace(part, next) {
    if (!next || part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea"))
      return;
    const open = new Set([...part.querySelectorAll("details[open][id]")].map((each) => each.id));
    const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    const fresh = document.importNode(next, true);
    for (const each of fresh.querySelectorAll("details[id]")) if (open.has(each.id)) each.open = true;
    part.replaceWith(fresh);
    [...fresh.querySelectorAll(".scroll")].forEach((each, index) => {
      if (scrolled[index]) [each.scrollLeft, each.scrollTop] = scrolled[index];
    });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  function follow() {
    const wanted = document.body.dataset.follow;
    if (!wanted || stream || document.hidden) return;
    const query = wanted === "*" ? "" : `?location=${encodeURIComponent(wanted)}`;
    stream = new EventSource(`/events${query}`);
    stream.onopen = () => show("on", "Live");
    stream.onerror = () => {
      show("stale", "Reconnecting");
      // The browser opens a broken stream again, but not one that was refused.
      if (stream?.readyState === EventSource.CLOSED) {
        unfollow();
        setTimeout(follow, 5000);
      }
    };
    stream.addEventListener("change", (event) => {
      const change = JSON.parse(event.data);
      if (!change.reachable) {
        show("stale", "Location not readable");
        return;
      }
      const parts = [...document.querySelectorAll("[data-live]")];
      if (parts.some((part) => concerns(part, change))) readAgain();
    });
  }

  function unfollow() {
    stream?.close();
    stream = null;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.copy !== undefined) copy(button);
    else if (button?.id === "theme") changeTheme();
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, select, textarea, [contenteditable]")) return;
    const filter = document.querySelector("input[type=search]");
    if (filter) {
      event.preventDefault();
      filter.select();
    }
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) unfollow();
    else {
      follow();
      if (document.body.dataset.follow) readAgain();
    }
  });
  addEventListener("pagehide", unfollow);
  document.addEventListener("DOMContentLoaded", () => {
    follow();
    refreshTimes();
    setInterval(refreshTimes, 5000);
  });
})();
