// What every page can do with script: choose a theme, show times in the reader's zone, copy, fetch what is opened,
// send a form once.
"use strict";
(() => {
  const THEMES = ["system", "light", "dark"];

  function themeSwitch(button) {
    const shown = () => document.documentElement.dataset.theme || "system";
    const name = () => { button.textContent = `Theme: ${shown()}`; };
    button.hidden = false;
    name();
    button.addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(shown()) + 1) % THEMES.length];
      if (next === "system") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = next;
      try {
        if (next === "system") localStorage.removeItem("theme");
        else localStorage.setItem("theme", next);
      } catch {
        // Storage is off: the choice holds for this page.
      }
      name();
    });
  }

  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

  // The server writes UTC into the title; the reader's own time goes before it.
  function localTimes(within) {
    for (const one of within.querySelectorAll("time[title$=UTC]")) {
      const at = new Date(one.dateTime);
      if (!Number.isNaN(at.getTime()) && !one.title.includes(" here, ")) one.title = `${local.format(at)} here, ${one.title}`;
    }
  }

  // Over http, where there is no clipboard, the text of a selection can still be copied.
  function copySelected(text) {
    const focused = document.activeElement;
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused.focus({ preventScroll: true });
    return done;
  }

  // Screen readers read what appears in it.
  const announced = document.createElement("div");
  announced.className = "hidden";
  announced.setAttribute("aria-live", "polite");
  document.body.append(announced);

  async function copy(button) {
    const name = button.dataset.name ??= button.textContent;
    const text = button.dataset.copy.startsWith("#") ? new URL(button.dataset.copy, location.href).href : button.dataset.copy;
    const done = await (navigator.clipboard ? navigator.clipboard.writeText(text).then(() => true, () => false) : copySelected(text));
    button.textContent = done ? "copied" : "not allowed";
    announced.textContent = done ? "It is on the clipboard." : "The browser does not allow to copy.";
    setTimeout(() => { button.textContent = name; announced.textContent = ""; }, 1500);
  }

  // `<details data-from="/address"><summary>…</summary><div data-here></div></details>`: what is there is shown when it
  // is opened.  Without script, its summary or its content has a link to the address.
  async function fetched(details) {
    const place = details.querySelector("[data-here]");
    if (!details.open || !place || place.dataset.fetched) return;
    place.dataset.fetched = "on its way";
    try {
      const answer = await fetch(details.dataset.from, { headers: { Accept: "text/html" } });
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      place.replaceChildren(...next.querySelector("main").childNodes);
      place.dataset.fetched = "yes";
      document.dispatchEvent(new Event("kernelwatch:morphed"));
    } catch {
      place.textContent = "The server cannot be reached. Open this again.";
      delete place.dataset.fetched;
    }
  }

  // The key / goes to the search, unless somebody types or another program of the page uses it.
  function toSearch(event) {
    const field = document.querySelector("[data-slash]");
    if (!field || event.key !== "/" || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.isContentEditable || event.target.matches("input, textarea, select")) return;
    event.preventDefault();
    field.focus();
    field.select();
  }

  // `<button data-explore data-script="/address/of/explore.js">`, or an address that ends in its id.
  function explore(button) {
    if (button?.matches("[data-explore]")) import(button.dataset.script).then((module) => module.toggle(button));
  }

  document.querySelectorAll("[data-theme-switch]").forEach(themeSwitch);
  explore(document.getElementById(location.hash.slice(1)));
  localTimes(document);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
    explore(event.target.closest("[data-explore]"));
  });
  document.addEventListener("keydown", toSearch);
  // The second click of two would take the response of the first away, which may be the only one with a new key.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post" || event.defaultPrevented) return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
  });
  addEventListener("pageshow", () => document.querySelectorAll("[data-sent]").forEach((form) => { delete form.dataset.sent; }));
  document.addEventListener("toggle", (event) => {
    if (event.target.matches("details[data-from]")) fetched(event.target);
  }, true);
  document.addEventListener("kernelwatch:morphed", () => localTimes(document));
  document.querySelectorAll("details[data-from][open]").forEach(fetched);
})();
