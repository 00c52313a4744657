// Keeps a page fresh while something happens: fetches it again and swaps its content when that changed.
"use strict";
(() => {
  const own = () => document.querySelector("[data-live]");
  const opened = () => [...document.querySelectorAll("main details")].map((one) => one.open);

  async function look() {
    const mark = own();
    if (!mark) return;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok) {
        const next = new DOMParser().parseFromString(await answer.text(), "text/html");
        // Over: load it anew, because the whole page may need other scripts.
        if (!next.querySelector("[data-live]")) return location.reload();
        swap(next.querySelector("main"), next.title);
      }
    } catch {
      // The server is away for a moment: what is shown stays.
    }
    wait();
  }

  function swap(fresh, title) {
    const shown = document.querySelector("main");
    if (fresh.innerHTML === shown.innerHTML) return;
    const open = opened();
    shown.replaceChildren(...fresh.childNodes);
    document.querySelectorAll("main details").forEach((one, place) => { one.open = open[place] ?? one.open; });
    document.title = title;
  }

  function wait() {
    const mark = own();
    if (mark) setTimeout(() => (document.hidden ? wait() : look()), 1000 * Number(mark.dataset.live));
  }

  wait();
})();
