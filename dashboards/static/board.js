// The heat map as one stop of Tab: arrow keys, Home and End go from cell to cell.  Without script each cell is a stop.
"use strict";
(() => {
  function arrows(table) {
    const rows = [...table.rows].map((row) => [...row.cells].filter((cell) => cell.matches("td")));
    const links = rows.map((row) => row.map((cell) => cell.querySelector("a")));
    const every = links.flat().filter(Boolean);
    if (!every.length) return;
    every.forEach((link) => { link.tabIndex = -1; });
    every[0].tabIndex = 0;
    document.querySelectorAll("[data-with-script]").forEach((one) => { one.hidden = false; });

    // The nearest cell with a link in a direction, or none.
    function next(row, column, down, right) {
      for (;;) {
        row += down;
        column += right;
        if (row < 0 || row >= links.length || column < 0 || (right && column >= links[row].length)) return null;
        if (links[row][column]) return links[row][column];
      }
    }

    table.addEventListener("keydown", (event) => {
      const row = links.findIndex((one) => one.includes(document.activeElement));
      if (row < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
      const column = links[row].indexOf(document.activeElement);
      const to = {
        ArrowDown: () => next(row, column, 1, 0),
        ArrowUp: () => next(row, column, -1, 0),
        ArrowRight: () => next(row, column, 0, 1),
        ArrowLeft: () => next(row, column, 0, -1),
        Home: () => links[row].find(Boolean),
        End: () => links[row].filter(Boolean).at(-1),
      }[event.key];
      if (!to) return;
      event.preventDefault();
      const link = to();
      if (!link) return;
      document.activeElement.tabIndex = -1;
      link.tabIndex = 0;
      link.focus();
    });
  }

  document.querySelectorAll("[data-arrows]").forEach(arrows);
})();
