// Dashboards of experiments: rows of plots, refreshed every few seconds while the experiment runs.
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320, HEIGHT = 118, LEFT = 40, RIGHT = 4, TOP = 6, BOTTOM = 16;
const COLOURS = ["--blue", "--orange", "--green", "--purple", "--sky", "--amber"];
const REFRESH_MS = 3000;
const byId = (id) => document.getElementById(id);
// read before the token is removed from the address
const parameters = new URLSearchParams(location.search);
let timer = null;
// visible time range [ms since 1970]; null: the complete experiment
let zoom = null;

function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

function svgElement(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// 3 digits and a prefix: 12.3 M
function short(value) {
  const size = Math.abs(value);
  for (const [least, mark] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= least) return `${Number((value / least).toPrecision(3))} ${mark}`;
  }
  return String(Number(value.toPrecision(3)));
}

// The smallest of 1, 2, 5 times a power of ten that is at least `value`.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((k) => k * power).find((k) => k >= value * 0.999);
}

// Local time, 24 hours.
function time(ms, span) {
  const shown = new Date(ms - new Date(ms).getTimezoneOffset() * 60e3).toISOString();
  return span < 3600e3 ? shown.slice(11, 19) : span < 86400e3 ? shown.slice(11, 16) : shown.slice(5, 10);
}

function colour(number) {
  return `var(${COLOURS[number % COLOURS.length]})`;
}

// Phases behind the lines, in two alternating shades.
function shades(phases, start, end, x) {
  const shown = phases.filter((p) => (p.end_ms ?? end) > start && p.start_ms < end);
  return shown.map((phase, number) => {
    const [from, to] = [Math.max(phase.start_ms, start), Math.min(phase.end_ms ?? end, end)];
    const shade = svgElement("rect", {
      class: number % 2 ? "phase other" : "phase", x: x(from), y: TOP, width: Math.max(0.5, x(to) - x(from)), height: HEIGHT - TOP - BOTTOM,
    });
    shade.append(svgElement("title", {}, `phase ${phase.name}`));
    return shade;
  });
}

// Dragging across a plot zooms all plots to that range; a double click resets it.
function zoomable(svg, start, end, redraw) {
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const part = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    return start + Math.max(0, Math.min(1, part)) * (end - start);
  };
  let from = null;
  svg.addEventListener("pointerdown", (event) => {
    from = at(event);
    clearTimeout(timer); // no refresh while dragging
  });
  svg.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const range = [from, at(event)].sort((a, b) => a - b);
    from = null;
    if (range[1] - range[0] > 0.02 * (end - start)) zoom = range;
    redraw();
  });
  svg.addEventListener("dblclick", () => {
    zoom = null;
    redraw();
  });
}

function chart(plot, start, end, phases, redraw) {
  const lines = plot.lines.filter((line) => line.points.length);
  const shown = lines.flatMap((line) => line.points.filter((p) => p[0] >= start && p[0] <= end));
  const values = shown.map((p) => p[1]).filter((v) => v !== null);
  const top = plot.most && Math.max(0, ...values) <= plot.most ? plot.most : roundUp(Math.max(0, ...values));
  const x = (ms) => LEFT + ((ms - start) / Math.max(1, end - start)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const svg = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  svg.append(svgElement("title", {}, description(plot, lines)), ...shades(phases, start, end, x));
  zoomable(svg, start, end, redraw);
  for (const part of [0, 0.5, 1]) {
    const at = y(top * part);
    svg.append(svgElement("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }));
    svg.append(svgElement("text", { x: LEFT - 4, y: at + 3, "text-anchor": "end" }, short(top * part)));
  }
  for (const [at, anchor] of [[start, "start"], [end, "end"]]) {
    svg.append(svgElement("text", { x: x(at), y: HEIGHT - 3, "text-anchor": anchor }, time(at, end - start)));
  }
  lines.forEach((line, number) => {
    let path = "";
    let open = false;
    for (const [ms, value] of line.points) {
      if (value === null || ms < start || ms > end) open = false;
      else {
        path += `${open ? "L" : "M"}${x(ms).toFixed(1)} ${y(value).toFixed(1)}`;
        open = true;
      }
    }
    svg.append(svgElement("path", {
      d: path, fill: "none", stroke: colour(number), "stroke-width": 1.5, "stroke-linejoin": "round",
      "stroke-dasharray": number >= COLOURS.length ? "4 3" : "none",
    }));
  });
  return svg;
}

// Text alternative of a plot.
function description(plot, lines) {
  const parts = lines.map((line) => {
    const values = line.points.map((p) => p[1]).filter((v) => v !== null);
    const last = values[values.length - 1];
    return `${line.name} ${short(last)}, ${short(Math.min(...values))} to ${short(Math.max(...values))}`;
  });
  return `${plot.title} in ${plot.unit || "processes"}: ${parts.join("; ") || "nothing recorded"}`;
}

function figure(plot, ...place) {
  const element = make("figure");
  const caption = make("figcaption", plot.title);
  caption.append(make("span", plot.unit));
  const lines = plot.lines.filter((line) => line.points.length);
  if (!lines.length) {
    element.append(caption, make("p", plot.needs || "not recorded", "none"));
    return element;
  }
  const keys = make("ul", undefined, "keys");
  lines.forEach((line, number) => {
    const key = make("li", line.name, number >= COLOURS.length ? "dashed" : "");
    key.style.setProperty("--line", colour(number));
    keys.append(key);
  });
  element.append(caption, chart(plot, ...place));
  if (lines.length > 1 || lines[0].name !== plot.title) element.append(keys);
  return element;
}

function section(row, ...place) {
  const element = make("section");
  element.append(make("h2", row.row));
  const plots = make("div", undefined, "plots");
  plots.append(...row.plots.map((plot) => figure(plot, ...place)));
  element.append(plots);
  return element;
}

async function show(token) {
  clearTimeout(timer);
  const dashboard = byId("dashboard").value;
  const experiment = byId("experiment").value;
  if (!experiment) {
    showState("There is no experiment yet.", "on");
    return;
  }
  try {
    const path = `/api/v1/dashboards/${dashboard}?experiment=${encodeURIComponent(experiment)}`;
    const response = await request(path, token);
    if (response === null) return;
    const content = await response.json();
    if (byId("dashboard").value !== dashboard || byId("experiment").value !== experiment) return;
    const phases = content.experiment.phases.map((p) => ({ name: p.name, start_ms: p.start_ns / 1e6, end_ms: p.end_ns === null ? null : p.end_ns / 1e6 }));
    const shown = zoom || [content.start_ms, content.end_ms];
    const rows = content.rows.map((row) => section(row, ...shown, phases, () => show(token)));
    byId("rows").replaceChildren(...(rows.length ? rows : [make("p", "No data were recorded for this dashboard.", "empty")]));
    const state = content.experiment.state;
    showState(`${experiment}: ${state}, ${rows.length} ${rows.length === 1 ? "row" : "rows"}.`, "on");
    history.replaceState(null, "", `?dashboard=${dashboard}&experiment=${encodeURIComponent(experiment)}`);
    if (state === "running") timer = setTimeout(() => show(token), REFRESH_MS);
  } catch (error) {
    showState(`The server does not answer (${error.message}).`, "off");
    timer = setTimeout(() => show(token), REFRESH_MS);
  }
}

function fill(select, options, selected) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === selected)) select.value = selected;
}

withToken(async (token) => {
  try {
    const responses = [await request("/api/v1/dashboards", token), await request("/api/v1/experiments", token)];
    if (responses.includes(null)) return;
    const [dashboards, experiments] = [await responses[0].json(), await responses[1].json()];
    fill(byId("dashboard"), dashboards.map((d) => [d.dashboard, d.title]), parameters.get("dashboard"));
    const names = experiments.reverse().map((e) => [`${e.name}#${e.repeat}`, `${e.name}#${e.repeat} (${e.state})`]);
    fill(byId("experiment"), names, parameters.get("experiment"));
    byId("choose").hidden = false;
    byId("choose").addEventListener("change", () => {
      zoom = null;
      show(token);
    });
    await show(token);
  } catch (error) {
    showState(`The server does not answer (${error.message}).`, "off");
  }
});
