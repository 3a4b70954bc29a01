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
  try {
    if (localStorage.getItem("times") === "utc") root.dataset.times = "utc";
  } catch {
    // Without storage the times are relative at first.
  }

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

  function changeTimes() {
    if (root.dataset.times === "utc") delete root.dataset.times;
    else root.dataset.times = "utc";
    try {
      localStorage.setItem("times", root.dataset.times ?? "");
    } catch {
      // As for the theme.
    }
    refreshTimes();
  }

  // What a title says is shown to a tap, a click and a focus too: only a mouse can point.
  function tell(element) {
    hush();
    const tip = document.createElement("p");
    tip.className = "tip";
    tip.setAttribute("aria-hidden", "true");
    tip.textContent = element.title;
    document.body.append(tip);
    const box = element.getBoundingClientRect();
    const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${box.bottom + 4 + scrollY}px`;
  }

  function hush() {
    document.querySelector(".tip")?.remove();
  }

  // On a phone, the rows of a table become cards, and a long table shows its first ones.
  const whole = new Set();
  function prepare() {
    for (const table of document.querySelectorAll(".scroll > .grid:not(.data), .scroll > .objects:not(.diff)")) {
      const labels = [...table.tHead.rows[0].cells].map((each) => each.textContent.trim());
      for (const cell of table.querySelectorAll("tbody td:not([data-label])")) {
        if (labels[cell.cellIndex] && cell.textContent.trim() && !cell.matches(".why"))
          cell.dataset.label = labels[cell.cellIndex];
        if (cell.textContent.trim().length > 48) cell.dataset.long = "";
      }
      table.classList.add("cards");
      const box = table.parentElement;
      const rows = table.tBodies[0].rows.length;
      const name = box.getAttribute("aria-label");
      if (box.matches(".whole") || rows < 4 || whole.has(name)) continue;
      box.classList.add("few");
      if (box.nextElementSibling?.matches(".show-all")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "show-all";
      button.textContent = `Show all ${rows}`;
      box.after(button);
    }
    showEdges();
  }

  function showAll(button) {
    const box = button.previousElementSibling;
    whole.add(box.getAttribute("aria-label"));
    box.classList.remove("few");
    button.remove();
  }

  function showEdge(box) {
    const more = [];
    if (box.scrollLeft > 1) more.push("before");
    if (box.scrollLeft + box.clientWidth < box.scrollWidth - 1) more.push("after");
    if (more.length) box.dataset.more = more.join(" ");
    else delete box.dataset.more;
  }

  function showEdges() {
    for (const box of document.querySelectorAll(".scroll, .plot")) {
      // The latest is at the right.
      if (box.matches(".plot") && !box.dataset.placed) box.scrollLeft = box.scrollWidth;
      box.dataset.placed = "1";
      showEdge(box);
    }
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
    const exact = root.dataset.times === "utc";
    document.getElementById("times")?.setAttribute("aria-pressed", String(exact));
    for (const each of document.querySelectorAll("time[data-ms]")) {
      if (!seen.has(each)) {
        seen.set(each, Date.now());
        if (!exact) continue;
      }
      if (exact) {
        each.textContent = each.title.replace(" UTC", "");
        continue;
      }
      const now = Number(each.dataset.now) + Date.now() - seen.get(each);
      const distance = now - Number(each.dataset.ms);
      each.textContent =
        Math.abs(distance) < 1000 ? "now" : distance > 0 ? `${age(distance)} ago` : `in ${age(-distance)}`;
    }
  }

  // Live: one stream says what changed. The page reads itself again, and the changed parts are replaced.
  const LOST_MS = 5000;
  let stream = null;
  let reading = false;
  let again = false;

  function concerns(element, change) {
    // Resources of the cluster belong to no location.
    if (!change.location) return element.dataset.resources !== undefined;
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
    if (state === "on") found();
  }

  // Figures that do not move any more must not look like those of now.
  let lostAt = null;
  let waiting = 0;
  function lost() {
    lostAt ??= new Date();
    if (waiting) return;
    waiting = setTimeout(() => {
      const banner = document.getElementById("lost");
      if (!banner) return;
      banner.textContent =
        `Not up to date since ${lostAt.toISOString().slice(11, 16)} UTC: what you see is from then. ` +
        "If the console was stopped, start it again, and open the address that it prints.";
      banner.hidden = false;
    }, LOST_MS);
  }

  function found() {
    clearTimeout(waiting);
    waiting = 0;
    lostAt = null;
    const banner = document.getElementById("lost");
    if (banner) banner.hidden = true;
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
      if (stream?.readyState === EventSource.OPEN) show("on", "Live");
      refreshTimes();
      prepare();
      document.dispatchEvent(new CustomEvent("console:changed"));
    } catch {
      show("stale", "Not up to date");
      lost();
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
    const boxes = ".scroll, .plot";
    const scrolled = [...part.querySelectorAll(boxes)].map((each) => [each.scrollLeft, each.scrollTop]);
    const fresh = document.importNode(next, true);
    for (const each of fresh.querySelectorAll("details[id]")) if (open.has(each.id)) each.open = true;
    part.replaceWith(fresh);
    [...fresh.querySelectorAll(boxes)].forEach((each, index) => {
      each.dataset.placed = "1";
      if (scrolled[index]) [each.scrollLeft, each.scrollTop] = scrolled[index];
    });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  function follow() {
    const wanted = document.body.dataset.follow;
    if (!wanted || stream || document.hidden) return;
    const query = wanted === "*" ? "" : `?location=${encodeURIComponent(wanted)}`;
    stream = new EventSource(`/events${query}`);
    // What changed since the page was made was told to nobody.
    stream.onopen = readAgain;
    stream.onerror = () => {
      show("stale", "Reconnecting");
      lost();
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
    const titled = event.target.closest("[title]");
    if (titled && !event.target.closest("a, input, select, #theme, #times, .copy")) tell(titled);
    else hush();
    if (button?.dataset.copy !== undefined) copy(button);
    else if (button?.id === "theme") changeTheme();
    else if (button?.id === "times") changeTimes();
    else if (button?.matches(".show-all")) showAll(button);
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches(".unknown:focus-visible")) tell(event.target);
    else hush();
  });
  document.addEventListener("scroll", (event) => {
    if (event.target.matches?.(".scroll, .plot")) showEdge(event.target);
  }, { capture: true, passive: true });
  addEventListener("resize", showEdges);
  document.addEventListener("console:shown", prepare);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hush();
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
    prepare();
    setInterval(refreshTimes, 5000);
  });
})();
