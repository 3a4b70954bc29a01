"use strict";
// The time slider. Arrow keys step from change to change, and dragging shows the time. When the handle is let
// go, the page of that time replaces what is there. Without this script, the links beside the slider do it.
(() => {
  const WAIT_MS = 250;
  let timer = 0;
  let reading = null;

  function shown(slider, time) {
    if (slider.dataset.wall !== "1") return String(time);
    if (time === 0) return "the beginning";
    return new Date(time).toISOString().replace("T", " ").replace("Z", " UTC");
  }

  function tell(slider, handle) {
    const time = Number(slider.dataset.first) + Number(handle.value);
    const output = slider.querySelector(`[data-shown="${handle.dataset.handle}"]`);
    output.textContent = shown(slider, time);
    handle.setAttribute("aria-valuetext", shown(slider, time));
    const index = handle.dataset.handle === "to" ? 1 : 0;
    const mark = slider.querySelector(`svg .chosen-${index}`);
    const span = Number(handle.max);
    if (mark && span) {
      const x = (Number(handle.value) * 1000) / span;
      mark.setAttribute("x1", x);
      mark.setAttribute("x2", x);
    }
  }

  // The tick before or after a value: what is stored may be far apart in time, and one step shows the next.
  function stepped(slider, value, steps) {
    if (!slider.dataset.times) return value + steps;
    const times = JSON.parse(slider.dataset.times);
    const span = Number(slider.querySelector("[data-handle]").max);
    const all = [...new Set([0, ...times, span])].sort((a, b) => a - b);
    if (steps > 0) {
      const later = all.filter((each) => each > value);
      return later.length ? later[Math.min(steps, later.length) - 1] : value;
    }
    const earlier = all.filter((each) => each < value);
    return earlier.length ? earlier[Math.max(0, earlier.length + steps)] : value;
  }

  function addressOf(slider) {
    const address = new URL(location.href);
    for (const handle of slider.querySelectorAll("[data-handle]"))
      address.searchParams.set(handle.dataset.handle, String(Number(slider.dataset.first) + Number(handle.value)));
    for (const each of ["after", "row"]) address.searchParams.delete(each);
    return address;
  }

  async function load(address, { push, focus }) {
    reading?.abort();
    reading = new AbortController();
    const part = document.querySelector("[data-reload]");
    part.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(address, { signal: reading.signal, credentials: "same-origin" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = page.querySelector("[data-reload]");
      if (!next) {
        location.assign(address);
        return;
      }
      if (push) history.pushState({}, "", address);
      document.title = page.title;
      part.replaceWith(document.importNode(next, true));
      if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
      tellAll();
      document.dispatchEvent(new CustomEvent("console:shown"));
    } catch (error) {
      if (error.name !== "AbortError") location.assign(address);
    }
  }

  function tellAll() {
    for (const handle of document.querySelectorAll("[data-slider] [data-handle]")) {
      const slider = handle.closest("[data-slider]");
      handle.setAttribute("aria-valuetext", shown(slider, Number(slider.dataset.first) + Number(handle.value)));
    }
  }

  function release(handle) {
    clearTimeout(timer);
    load(addressOf(handle.closest("[data-slider]")), { push: true, focus: handle.id });
  }

  document.addEventListener("input", (event) => {
    const handle = event.target.closest?.("[data-handle]");
    if (handle) tell(handle.closest("[data-slider]"), handle);
  });
  document.addEventListener("change", (event) => {
    const handle = event.target.closest?.("[data-handle]");
    if (handle) release(handle);
  });
  document.addEventListener("keydown", (event) => {
    const handle = event.target.closest?.("[data-handle]");
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (!handle || !steps || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const slider = handle.closest("[data-slider]");
    const before = Number(handle.value);
    handle.value = String(stepped(slider, before, steps));
    if (Number(handle.value) === before) return;
    tell(slider, handle);
    // Who holds the key down sees the times pass. The rows come when the key rests.
    clearTimeout(timer);
    timer = setTimeout(() => release(handle), WAIT_MS);
  });
  addEventListener("popstate", () => {
    if (document.querySelector("[data-reload]")) load(location.href, { push: false, focus: "" });
  });
  // The rows stay as they are, and a line says that there are later ones.
  document.addEventListener("console:changed", () => {
    const newer = document.getElementById("newer");
    const shown = document.querySelector("[data-reload]");
    if (newer) newer.hidden = !(Number(newer.dataset.upper) > Number(shown.dataset.upper));
  });
  document.addEventListener("DOMContentLoaded", tellAll);
})();
