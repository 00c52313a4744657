// Shows a figure to explore in the place of a drawing.  page.js loads this module when a button is pressed:
// `<button data-explore="/address/of/the/figure" data-place="id of the drawing">`; it loads Plotly and the figure.
const HINT = "Drag a rectangle to zoom, and double-click to zoom out. A click opens what a point shows, with Shift its " +
  "commit. The names of the legend hide and show their series.";
const config = {
  displaylogo: false,
  showSendToCloud: false, // it would offer to send the figure to another host
  plotlyServerURL: "",
  displayModeBar: true,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d"],
  toImageButtonOptions: { format: "svg", filename: "kernelwatch" }, // a PNG would need images of blob: in the policy
};
let plotly = null;

// Plotly would write its rules into the page; with an element of this id and class it leaves them to our file.
function load({ plotly: script, rules }) {
  return plotly ??= new Promise((loaded, failed) => {
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: rules });
    style.id = "plotly.js-style-global";
    style.className = "no-inline-styles";
    const code = Object.assign(document.createElement("script"), { src: script, onload: loaded });
    code.onerror = () => { plotly = null; failed(new Error("Plotly was not loaded.")); };
    document.head.append(style, code);
  });
}

async function fetched(address) {
  const answer = await fetch(address, { headers: { Accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail);
  return body;
}

// The figure in the colours of the page, which may be dark.
function themed(layout, place) {
  const { color, backgroundColor, borderColor } = getComputedStyle(place);
  const axes = Object.keys(layout).filter((name) => /^[xy]axis/.test(name));
  const grid = { gridcolor: borderColor, zerolinecolor: borderColor };
  return {
    ...layout,
    ...Object.fromEntries(axes.map((name) => [name, { ...layout[name], ...grid }])),
    font: { ...layout.font, color },
    paper_bgcolor: backgroundColor,
    plot_bgcolor: backgroundColor,
    hoverlabel: { ...layout.hoverlabel, bgcolor: backgroundColor, bordercolor: color, font: { color } },
  };
}

// A click opens what a point is of, with Shift its commit; with Ctrl or ⌘ in another tab.
function open({ points, event }) {
  const [of, commit] = points.find((one) => one.customdata?.[0])?.customdata ?? [];
  if (event.shiftKey && commit) window.open(commit, "_blank", "noreferrer");
  else if (of && (event.ctrlKey || event.metaKey)) window.open(of, "_blank");
  else if (of) location.href = of;
}

// The address keeps that a figure is shown, and so do the links that choose what it shows.
function remember(hash) {
  history.replaceState(null, "", hash || location.pathname + location.search);
  for (const link of document.querySelectorAll(".filters a[href]")) link.hash = hash;
}

function back(button, place) {
  Plotly.purge(place);
  place.parentElement.remove();
  document.getElementById(button.dataset.place).hidden = false;
  button.textContent = "Explore";
  remember("");
}

async function explore(button) {
  const drawing = document.getElementById(button.dataset.place);
  const around = Object.assign(document.createElement("div"), { className: "explored" });
  around.setAttribute("role", "status");
  around.textContent = "Loading the figure …";
  if (drawing.previousElementSibling?.matches(".explored")) drawing.previousElementSibling.remove();
  drawing.before(around);
  button.disabled = true;
  try {
    const [{ data, layout }] = await Promise.all([fetched(button.dataset.explore), load(button.dataset)]);
    const place = document.createElement("div"), hint = document.createElement("p");
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", layout.title.text);
    hint.className = "quiet";
    hint.textContent = HINT;
    around.removeAttribute("role");
    around.replaceChildren(place, hint);
    drawing.hidden = true;
    await Plotly.newPlot(place, data, themed(layout, around), config);
    place.on("plotly_click", open);
    place.dataset.explored = button.id;
    button.textContent = "Close the figure";
    remember(`#${button.id}`);
  } catch (error) {
    drawing.hidden = false;
    around.textContent = `The figure cannot be shown: ${error.message}`;
  }
  button.disabled = false;
}

// Show the figure of a button, or the drawing again.
export function toggle(button) {
  const place = document.querySelector(`[data-explored="${button.id}"]`);
  if (place) back(button, place);
  else explore(button);
}
