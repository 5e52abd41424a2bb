// Draws the figures of the page, in the colours of the reader's scheme, and again when one chooses
// another variant or the scheme changes. Everything that is drawn comes from the JSON in the page.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = window.matchMedia("(max-width: 600px)");
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // A copy in which every "@name" is the colour of that name.
  function painted(value) {
    if (typeof value === "string") return value.startsWith("@") ? variable(value.slice(1)) : value;
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, painted(part)]));
    return value;
  }

  function layoutOf(panel) {
    const line = { gridcolor: variable("rule"), zerolinecolor: variable("rule"), linecolor: variable("rule"), automargin: true };
    const layout = painted(panel.layout);
    for (const name of ["xaxis", "yaxis"]) {
      layout[name] = { ...line, ...layout[name] };
      if (layout[name].title) layout[name].title = { standoff: 10, font: { size: 12 }, ...layout[name].title };
    }
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: narrow.matches ? false : "zoom",
      margin: { l: 48, r: 14, t: 10, b: 44 }, autosize: true, hovermode: "closest",
      font: { family: 'system-ui, "DejaVu Sans", sans-serif', size: 12, color: variable("ink") },
      hoverlabel: { bgcolor: variable("ground"), bordercolor: variable("muted"), font: { color: variable("ink") } },
      ...layout,
    };
  }

  const dashes = { dash: "6 3", dot: "2 3", dashdot: "6 3 2 3" };
  const shapes = {
    square: '<rect x="9" y="3" width="8" height="8"/>', diamond: '<path d="M13 1.5 18 7 13 12.5 8 7z"/>',
    "triangle-up": '<path d="M13 2 18 11H8z"/>', x: '<path d="M9 3l8 8M17 3l-8 8" stroke-width="2.5"/>', "line-ns": '<path d="M13 1v12" stroke-width="2.5"/>',
  };
  function swatch(trace) {
    const mode = trace.mode || "", marker = trace.marker || {}, line = trace.line || {};
    const symbol = String(marker.symbol || "circle"), open = symbol.endsWith("-open");
    const colour = mode.includes("lines") ? line.color : symbol === "line-ns" ? marker.line.color : marker.color;
    let inner = "";
    if (mode.includes("lines")) inner += `<path d="M0 7h26" stroke-width="2.5" stroke-dasharray="${dashes[line.dash] || ""}"/>`;
    if (mode.includes("markers")) inner += `<g fill="${open ? "none" : colour}" stroke-width="1.6">${shapes[symbol.replace("-open", "")] || '<circle cx="13" cy="7" r="4.5"/>'}</g>`;
    return `<svg width="26" height="14" viewBox="0 0 26 14" stroke="${colour}" fill="none" aria-hidden="true">${inner}</svg>`;
  }

  function legend(plot, box, traces) {
    box.replaceChildren();
    const named = traces.filter((trace) => trace.name && trace.type === "scatter" && trace.showlegend !== false);
    if (named.length < 2 || named.length > 24) return;
    for (const trace of named) {
      const entry = document.createElement("button");
      entry.type = "button";
      entry.setAttribute("aria-pressed", "true");
      entry.innerHTML = swatch(trace);
      entry.append(trace.name);
      entry.onclick = () => {
        const shown = entry.getAttribute("aria-pressed") === "true";
        entry.setAttribute("aria-pressed", String(!shown));
        const group = traces.flatMap((other, i) => (other === trace || (trace.legendgroup && other.legendgroup === trace.legendgroup) ? [i] : []));
        Plotly.restyle(plot, { visible: shown ? "legendonly" : true }, group);
      };
      box.append(entry);
    }
  }

  function draw(id) {
    const box = document.getElementById(id);
    const menu = box.querySelector("select");
    const variant = figures[id][menu ? menu.selectedIndex : 0];
    box.querySelector("h3").textContent = variant.title;
    const panels = box.querySelector(".panels");
    // All places first: plots take the width that they find.
    while (panels.children.length > variant.panels.length) panels.lastChild.remove();
    while (panels.children.length < variant.panels.length) {
      const place = document.createElement("div");
      place.className = "panel";
      place.innerHTML = '<div class="plot"></div><div class="legend"></div>';
      panels.append(place);
    }
    return Promise.all(variant.panels.map((panel, at) => {
      const place = panels.children[at];
      const traces = painted(panel.data);
      legend(place.firstChild, place.lastChild, traces);
      return Plotly.react(place.firstChild, traces, layoutOf(panel), { responsive: true, displayModeBar: false });
    }));
  }

  const ids = Object.keys(figures);
  const drawAll = () => Promise.all(ids.map(draw)).then(() => { document.documentElement.dataset.drawn = "yes"; });
  for (const id of ids) {
    const menu = document.getElementById(id).querySelector("select");
    if (menu) menu.onchange = () => draw(id);
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
