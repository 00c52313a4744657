// Names the revision under the pointer, compares two that are clicked, and shows the part that is dragged over.  The
// server draws: each action is an address, which is fetched and morphed into the page.
"use strict";
(() => {
  let chosen = -1, dragFrom = null;
  const card = () => document.querySelector("[data-trend]");
  const points = () => JSON.parse(card().dataset.trend);
  const figure = () => document.querySelector(".figure-place .wide-only svg");

  async function go(address) {
    try {
      const answer = await fetch(address, { headers: { Accept: "text/html" } });
      if (!answer.ok) throw new Error(answer.statusText);
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      Idiomorph.morph(document.querySelector("main"), next.querySelector("main"), { morphStyle: "outerHTML" });
      document.title = next.title;
      history.pushState({}, "", address);
      chosen = -1;
    } catch {
      location.href = address;
    }
  }

  // The pointer's place in px of the figure's own coordinates; null where the wide figure is not shown.
  function place(event) {
    const svg = figure();
    const box = svg && svg.getBoundingClientRect();
    return box && box.width ? (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width : null;
  }

  function nearest(x) {
    let best = -1, distance = Infinity;
    points().forEach(([at], n) => { if (Math.abs(at - x) < distance) [best, distance] = [n, Math.abs(at - x)]; });
    return best;
  }

  function show(n) {
    const svg = figure(), out = document.querySelector(".figure-place .point");
    const all = points();
    chosen = Math.max(0, Math.min(all.length - 1, n));
    const [x, value, revision, , day] = all[chosen];
    svg.querySelector(".cursor").setAttribute("d", `M${x} 0V${svg.viewBox.baseVal.height}`);
    out.hidden = false;
    out.textContent = `${day} · ${revision} · ${value}`;
    const share = x / svg.viewBox.baseVal.width;
    out.style.left = `min(${share * 100}%, calc(100% - ${out.offsetWidth}px))`;
  }

  function hide() {
    document.querySelector(".figure-place .point").hidden = true;
    figure().querySelector(".cursor").setAttribute("d", "");
  }

  function choose(n) {
    const at = card(), revision = points()[n][2];
    const known = new URL(location.href).searchParams;
    go(at.dataset[known.get("a") && !known.get("b") ? "b" : "a"].replace("REVISION", revision));
  }

  document.addEventListener("pointermove", (event) => {
    if (!event.target.closest(".figure-place")) return;
    const x = place(event);
    if (x !== null) show(nearest(x));
  });
  document.addEventListener("pointerdown", (event) => {
    if (event.target.closest(".figure-place") && !event.target.closest("a")) dragFrom = place(event);
  });
  document.addEventListener("pointerup", (event) => {
    const to = event.target.closest(".figure-place") ? place(event) : null;
    const from = dragFrom;
    dragFrom = null;
    if (to === null || from === null || event.target.closest("a")) return;
    if (Math.abs(to - from) < 12) return choose(nearest(to));
    const [first, last] = [Math.min(from, to), Math.max(from, to)].map(nearest);
    const day = (n) => new Date(`${points()[n][4]} UTC`).toISOString().slice(0, 10);
    go(card().dataset.window.replace("SINCE", day(first)).replace("UNTIL", day(last)));
  });
  document.addEventListener("focusout", (event) => { if (event.target.matches(".figure-place")) hide(); });
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches(".figure-place")) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (event.key in steps) {
      event.preventDefault();
      show((chosen < 0 ? points().length : chosen) + steps[event.key]);
    } else if (event.key === "Enter" && chosen >= 0) choose(chosen);
  });
  addEventListener("popstate", () => location.reload());
})();
