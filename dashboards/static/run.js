// Opens rows of the table of cases in place, and follows its filters without loading the page.
"use strict";
(() => {
  const parsed = async (address) => {
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  };

  function close(row) {
    row.classList.remove("on");
    row.querySelector("[data-row]").setAttribute("aria-expanded", "false");
    row.nextElementSibling.remove();
  }

  async function open(row, link) {
    row.classList.add("on");
    link.setAttribute("aria-expanded", "true");
    const under = document.createElement("tr");
    under.className = "op";
    under.dataset.keep = "";
    const place = under.insertCell();
    place.colSpan = 9;
    place.textContent = "Loading…";
    row.after(under);
    history.replaceState(null, "", `#${row.id}`);
    try {
      const next = await parsed(link.href);
      place.dataset.here = "";
      place.replaceChildren(...next.querySelector("main").childNodes);
      document.dispatchEvent(new Event("kernelwatch:morphed"));
    } catch {
      place.textContent = "The server cannot be reached. Close this row and open it again.";
    }
  }

  const query = (address) => new URL(address, location.href).search;
  let shown = location.search;

  async function swap(address, push) {
    const place = document.querySelector("#cases");
    shown = query(address);
    try {
      const next = (await parsed(address)).querySelector("#cases");
      const focus = document.activeElement && document.activeElement.getAttribute("href");
      place.replaceWith(next);
      if (push) history.pushState({ swapped: true }, "", address);
      const same = focus && next.querySelector(`a[href="${CSS.escape(focus)}"]`);
      (same || next.querySelector("[aria-current]") || next).focus({ preventScroll: true });
    } catch {
      location.href = address;
    }
  }

  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const link = event.target.closest("a[data-row], a[data-swap]");
    if (!link) return;
    event.preventDefault();
    if (link.dataset.swap !== undefined) {
      swap(link.href, true);
      return;
    }
    const row = link.closest("tr");
    if (row.classList.contains("on")) close(row);
    else open(row, link);
  });

  // A link within the page changes the history too, but not the table.
  addEventListener("popstate", () => {
    if (location.search !== shown && document.querySelector("#cases")) swap(location.href, false);
  });

  // The dots of all cases as one stop of Tab: arrow keys go from left to right, Home and End to the ends.
  document.querySelectorAll("svg.dots[role=group]").forEach((figure) => {
    const links = [...figure.querySelectorAll("a")];
    figure.addEventListener("keydown", (event) => {
      const at = links.indexOf(document.activeElement);
      const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: links.length - 1 }[event.key];
      if (at < 0 || to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      if (!links[to]) return;
      links[at].tabIndex = -1;
      links[to].tabIndex = 0;
      links[to].focus();
    });
  });

  // An address with the id of a row opens it.
  const named = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  const link = named && named.matches("tr.r") && named.querySelector("[data-row]");
  if (link) open(named, link);
})();
