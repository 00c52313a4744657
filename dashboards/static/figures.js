// Draws the figures that the server built, in the colours of the page's theme.
"use strict";
(() => {
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  // The value of a token may be a pair for both themes; the colour of an element that has it is one of the two.
  function colour(name) {
    if (!getComputedStyle(probe).getPropertyValue(`--${name}`)) return "";
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }
  const tone = (name) => colour(`tone-${name}`) || colour("ink");

  function themed(figure) {
    const ink = colour("ink"), quiet = colour("quiet"), hair = colour("hair");
    const data = figure.data.map((trace) => {
      const own = tone(trace.meta.tone);
      const each = (trace.meta.tones || []).map(tone);
      return {
        ...trace,
        marker: { ...trace.marker, color: each.length ? each : own, line: { ...(trace.marker.line || {}), color: each.length ? each : own } },
        line: trace.line ? { ...trace.line, color: own } : undefined,
        error_x: trace.error_x ? { ...trace.error_x, color: own } : undefined,
      };
    });
    const axis = (own) => ({ ...own, gridcolor: hair, linecolor: hair, tickfont: { color: quiet }, title: { ...(own.title || {}), font: { color: quiet, size: 12 } } });
    const layout = {
      ...figure.layout,
      font: { ...figure.layout.font, color: ink, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: colour("card"), bordercolor: hair, font: { color: ink } },
      xaxis: axis(figure.layout.xaxis),
      yaxis: axis(figure.layout.yaxis),
      annotations: (figure.layout.annotations || []).map((one) => ({ ...one, font: { ...one.font, color: ink } })),
      shapes: (figure.layout.shapes || []).map((one) =>
        one.name.startsWith("tone-") ? { ...one, line: { ...one.line, color: colour(one.name) } } :
        one.name === "band" ? { ...one, fillcolor: colour("band") } : { ...one, line: { ...one.line, color: quiet } }),
    };
    return [data, layout];
  }

  async function draw() {
    const places = [...document.querySelectorAll("[data-figures]")];
    const answers = new Map();
    for (const place of places) {
      const address = place.dataset.figures;
      if (!answers.has(address)) answers.set(address, fetch(address).then((answer) => answer.json()));
      const figure = (await answers.get(address))[place.dataset.figure];
      if (!figure) {
        place.textContent = "There is nothing to draw here.";
        place.classList.add("empty");
        continue;
      }
      await Plotly.newPlot(place, ...themed(figure), { displayModeBar: false, responsive: true });
      place.dataset.drawn = "yes";
      place.on("plotly_click", ({ points: [point] }) => {
        if (point.customdata) location.href = `/runs/${point.customdata}`;
      });
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => Plotly.react(place, ...themed(figure)));
    }
  }

  draw();
})();
