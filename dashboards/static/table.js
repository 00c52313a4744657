// What a table of `parts.table` does with script: sorts by a head, searches its rows, folds what is long, copies itself.
// Order, search and fold survive a refresh: they are applied to the new page before it is merged into the shown one.
"use strict";
(() => {
  const states = new Map(); // what the reader chose, by id of the table
  const stateOf = (box) => states.get(box.id) || {};
  const isGroup = (row) => row.classList.contains("group");
  const rowsOf = (box) => [...box.querySelectorAll("tbody > tr")].filter((row) => !isGroup(row));
  const headsOf = (box) => [...box.querySelectorAll("thead th")];
  const isPlain = (head) => head.dataset.plain !== undefined; // holds actions or pictures
  const textOf = (node) => node.textContent.replace(/\s+/g, " ").trim();

  // The number in "1,204 µs", "−3.2 %" or "▲ 1.045"; NaN where there is none.
  function numberIn(text) {
    const found = text.replace(/,(?=\d{3})/g, "").replace("−", "-").match(/-?\d+(\.\d+)?/);
    return found ? Number(found[0]) : NaN;
  }

  function valueOf(row, column) {
    const cell = row.cells[column];
    if (!cell) return "";
    const given = cell.dataset.value;
    if (given) return Number.isNaN(Number(given)) ? given : Number(given);
    const time = cell.querySelector("time");
    if (time) return Date.parse(time.dateTime);
    return cell.classList.contains("number") ? numberIn(textOf(cell)) : textOf(cell);
  }

  const isMissing = (value) => (typeof value === "number" ? Number.isNaN(value) : /^[–\s]*$/.test(value));
  const collator = new Intl.Collator("en", { numeric: true });
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b));

  // Rows are sorted within their group; those without a value come last, equal ones in the order of the server.
  function sort(box) {
    const { column, down } = stateOf(box);
    for (const body of box.querySelectorAll("tbody")) {
      const rows = [...body.rows].filter((row) => !isGroup(row));
      const keyed = rows.map((row, at) => {
        row.dataset.at ??= at;
        return { row, at: Number(row.dataset.at), value: column === undefined ? 0 : valueOf(row, column) };
      });
      keyed.sort((a, b) => isMissing(a.value) - isMissing(b.value)
        || (isMissing(a.value) ? 0 : compare(a.value, b.value) * (down ? -1 : 1)) || a.at - b.at);
      if (keyed.some((one, at) => one.row !== rows[at])) body.append(...keyed.map((one) => one.row));
    }
    headsOf(box).forEach((head, at) => {
      if (at === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  function search(box) {
    const words = (stateOf(box).text || "").toLowerCase().split(/\s+/).filter(Boolean);
    const rows = rowsOf(box);
    for (const row of rows) {
      const text = textOf(row).toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    for (const body of box.querySelectorAll("tbody")) {
      const empty = [...body.rows].every((row) => row.hidden || isGroup(row));
      for (const row of body.rows) if (isGroup(row)) row.hidden = empty;
    }
    const field = box.querySelector("[data-search]");
    if (!field) return;
    if (field !== document.activeElement) field.value = stateOf(box).text || "";
    box.querySelector("[data-found]").textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  }

  // A search looks through the folded rows too, so it unfolds them.
  function fold(box) {
    const button = box.querySelector("[data-unfold]");
    if (!button) return;
    const { unfolded = false, text = "" } = stateOf(box);
    box.classList.toggle("unfolded", unfolded || text !== "");
    button.hidden = text !== "";
    button.setAttribute("aria-expanded", String(unfolded));
    button.textContent = unfolded ? "Show fewer" : button.dataset.unfold;
  }

  function apply(box) {
    sort(box);
    search(box);
    fold(box);
  }

  function change(box, changes) {
    states.set(box.id, { ...stateOf(box), ...changes });
    apply(box);
  }

  function prepare(page) {
    for (const box of page.querySelectorAll("[data-table]")) {
      for (const head of rowsOf(box).length > 1 ? headsOf(box) : []) {
        if (head.querySelector("button, a:not(.term)") || isPlain(head) || !textOf(head)) continue;
        const button = document.createElement("button");
        button.type = "button";
        button.className = "sorter";
        const term = head.querySelector(".term");
        button.append(...[...head.childNodes].filter((one) => one !== term));
        head.prepend(button);
      }
      apply(box);
    }
  }

  // The first press sorts, numbers and times by the largest; the second reverses; the third restores the server's order.
  function press(box, head) {
    const column = headsOf(box).indexOf(head);
    const first = rowsOf(box).map((row) => valueOf(row, column)).find((value) => !isMissing(value));
    const largest = typeof first === "number";
    const { column: old, down } = stateOf(box);
    if (old !== column) change(box, { column, down: largest });
    else if (down === largest) change(box, { column, down: !largest });
    else change(box, { column: undefined, down: undefined });
  }

  // A spreadsheet runs what begins like a formula and is no number: a quote before it makes it text.
  const inert = (text) => (/^[=+\-@]/.test(text) && !/^[+-]?[\d.,]+( ?%)?$/.test(text) ? `'${text}` : text);
  // No markup, and no notification of a person whose name is in a cell.
  const escaped = (text) => text.replace(/[\\`*_[\]<>|~]/g, "\\$&").replace(/@(?=\w)/g, "@\u200b");

  function copied(box, format) {
    const columns = headsOf(box).map((head, at) => (isPlain(head) ? -1 : at)).filter((at) => at >= 0);
    const heads = columns.map((at) => headsOf(box)[at]);
    const lines = rowsOf(box).filter((row) => row.checkVisibility())
      .map((row) => columns.map((at) => row.cells[at].innerText.replace(/\s+/g, " ").trim()));
    if (format === "text") return [heads.map(textOf), ...lines].map((cells) => cells.map(inert).join("\t")).join("\n");
    const rule = heads.map((head) => (head.classList.contains("number") ? "--:" : "---"));
    return [heads.map((head) => escaped(textOf(head))), rule, ...lines.map((cells) => cells.map(escaped))]
      .map((cells) => `| ${cells.join(" | ")} |`).join("\n");
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-table] button");
    if (!button) return;
    const box = button.closest("[data-table]");
    if (button.matches(".sorter")) press(box, button.closest("th"));
    else if (button.matches("[data-unfold]")) change(box, { unfolded: !stateOf(box).unfolded });
    // While the event goes down: on its way up `page.js` copies what `data-copy` holds.
    else if (button.dataset.format) button.dataset.copy = copied(box, button.dataset.format);
  }, true);
  document.addEventListener("input", (event) => {
    if (event.target.matches("[data-search]")) change(event.target.closest("[data-table]"), { text: event.target.value });
  });
  document.addEventListener("kernelwatch:arrived", (event) => prepare(event.detail));
  document.addEventListener("kernelwatch:morphed", () => prepare(document));
  prepare(document);
})();
