// Keeps a page fresh while something happens: fetches it again and changes only what is different, so that focus,
// selection, scroll positions and opened details stay.
"use strict";
(() => {
  const mark = () => document.querySelector("[data-live]");

  const callbacks = {
    // The reader opens and closes details, not the server.
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
    // What was fetched when it was opened stays, and so do figures that a script drew.
    beforeNodeMorphed: (old) => !(old.dataset && (old.dataset.fetched || old.dataset.drawn)),
    beforeNodeRemoved: (old) => !(old.dataset && old.dataset.keep !== undefined),
  };

  async function refresh() {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok) {
        const next = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.dispatchEvent(new CustomEvent("kernelwatch:arrived", { detail: next }));
        Idiomorph.morph(document.querySelector("main"), next.querySelector("main"), {
          morphStyle: "outerHTML",
          ignoreActiveValue: true,
          callbacks,
        });
        document.title = next.title;
        document.dispatchEvent(new Event("kernelwatch:morphed"));
      }
    } catch {
      // The server is away for a moment: what is shown stays.
    }
    wait();
  }

  function wait() {
    const shown = mark();
    if (shown) setTimeout(() => (document.hidden ? wait() : refresh()), 1000 * Number(shown.dataset.live));
  }

  wait();
})();
