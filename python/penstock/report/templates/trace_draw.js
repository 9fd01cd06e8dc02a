// Axes, marks and lines on a canvas.
"use strict";

const MANY = 4000; // more requests than this in view become counts per pixel
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const COLOURS = ["blue", "orange", "muted"];
const plain = (n) => n.toLocaleString("en");

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
function bytesText(value, digits) {
  let unit = 0, v = value;
  while (Math.abs(v) >= 1024 && unit < UNITS.length - 1) { v /= 1024; unit++; }
  return `${plain(+v.toPrecision(digits || 4))} ${UNITS[unit]}`;
}
function timeText(ns) {
  const a = Math.abs(ns);
  if (a < 1e3) return `${+ns.toPrecision(3)} ns`;
  if (a < 1e6) return `${+(ns / 1e3).toPrecision(3)} µs`;
  if (a < 1e9) return `${+(ns / 1e6).toPrecision(4)} ms`;
  return `${+(ns / 1e9).toPrecision(6)} s`;
}

// Ticks at round values, their labels all in one unit.
function ticksOf(low, high, most, kind) {
  const span = Math.max(high - low, 1e-9);
  let step, unit = 1, name = "";
  if (kind === "bytes" || kind === "rate") {
    step = Math.pow(2, Math.ceil(Math.log2(span / most)));
    step = Math.max(step, 1);
    let u = 0;
    while (u < UNITS.length - 1 && high / unit >= 1024) { unit *= 1024; u++; }
    while (u > 0 && step / unit < 1 / 64) { unit /= 1024; u--; }
    name = UNITS[u] + (kind === "rate" ? "/s" : "");
  } else {
    const raw = span / most, decade = Math.pow(10, Math.floor(Math.log10(raw)));
    step = decade * [1, 2, 5, 10].find((m) => m * decade >= raw * 0.999);
    if (kind === "count") step = Math.max(1, step);
    if (kind === "time") {
      const [size, word] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([s]) => high >= 2 * s || s === 1);
      unit = size; name = word;
    }
  }
  const ticks = [], digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high * (1 + 1e-12) && ticks.length < 40; v += step) {
    const text = (Math.abs(v) < step / 1e6 ? 0 : v / unit).toLocaleString("en", { maximumFractionDigits: digits });
    ticks.push([v, text]);
  }
  return { ticks, unit: name };
}

// Resize and clear a canvas; its units are CSS pixels.
function prepared(canvas, width, height) {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return { pen, ratio };
}

function frame(pen, area, view, xKind, yKind, xName, yName) {
  const ink = colourOf("ink"), grid = colourOf("grid"), muted = colourOf("muted");
  const narrow = area.width < 480;
  const y = ticksOf(view.y0, view.y1, Math.max(2, Math.min(6, area.height / 36)), yKind);
  pen.lineWidth = 1;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const [value, text] of yKind === "none" ? [] : y.ticks) {
    const py = area.top + area.height * (1 - (value - view.y0) / (view.y1 - view.y0));
    if (py < area.top - 1 || py > area.top + area.height + 1) continue;
    pen.strokeStyle = grid;
    pen.beginPath(); pen.moveTo(area.left, py); pen.lineTo(area.left + area.width, py); pen.stroke();
    pen.fillStyle = ink;
    pen.fillText(text, area.left - 6, py);
  }
  pen.textAlign = "left";
  pen.fillStyle = muted;
  pen.fillText(y.unit ? `${yName} (${y.unit})` : yName, 2, area.top - 12);
  if (xKind) {
    const x = ticksOf(view.x0, view.x1, narrow ? 3 : 7, xKind);
    pen.textBaseline = "top";
    let free = -1e9;
    for (const [value, text] of x.ticks) {
      const px = area.left + (area.width * (value - view.x0)) / (view.x1 - view.x0);
      pen.strokeStyle = grid;
      pen.beginPath(); pen.moveTo(px, area.top); pen.lineTo(px, area.top + area.height + 4); pen.stroke();
      const half = pen.measureText(text).width / 2;
      const at = Math.min(px, area.left + area.width - half + 6);
      if (at - half < free) continue;
      free = at + half + 8;
      pen.textAlign = "center";
      pen.fillStyle = ink;
      pen.fillText(text, at, area.top + area.height + 7);
    }
    pen.textAlign = "right";
    pen.fillStyle = muted;
    pen.fillText(x.unit ? `${xName} (${x.unit})` : xName, area.left + area.width, area.top + area.height + 23);
  }
  pen.strokeStyle = muted;
  pen.beginPath();
  pen.moveTo(area.left, area.top); pen.lineTo(area.left, area.top + area.height);
  pen.lineTo(area.left + area.width, area.top + area.height);
  pen.stroke();
}

function rgb(name) {
  const hex = colourOf(name).replace("#", "");
  const full = hex.length === 3 ? [...hex].map((c) => c + c).join("") : hex;
  return [0, 2, 4].map((i) => parseInt(full.slice(i, i + 2), 16));
}

// Counts of a view per pixel (reads), three pixels (writes) and four (ranges mapped around). Crosses of writes are
// larger than squares of reads, so that both are visible where they are dense.
class Raster {
  constructor(area) {
    this.pitch = [1, 3, 4];
    this.columns = this.pitch.map((p) => Math.max(1, Math.ceil(area.width / p)));
    this.rows = this.pitch.map((p) => Math.max(1, Math.ceil(area.height / p)));
    this.counts = this.pitch.map((_, c) => new Float32Array(this.columns[c] * this.rows[c]));
  }
  // x and y in pixels of the plot, y upwards; a cell counts in all pixels that it covers, at least one
  add(x, y, width, height, n, c) {
    const p = this.pitch[c], columns = this.columns[c], rows = this.rows[c], counts = this.counts[c];
    const first = Math.max(0, Math.floor(x / p)), low = Math.max(0, Math.floor(y / p));
    const last = Math.min(columns - 1, Math.max(first, Math.ceil((x + width) / p) - 1));
    const high = Math.min(rows - 1, Math.max(low, Math.ceil((y + height) / p) - 1));
    for (let i = first; i <= last; i++) for (let j = low; j <= high; j++) counts[j * columns + i] += n;
  }
  paint(pen, area, ratio) {
    const width = Math.round(area.width * ratio), height = Math.round(area.height * ratio);
    const image = pen.getImageData(Math.round(area.left * ratio), Math.round(area.top * ratio), width, height);
    const out = image.data;
    for (const c of [2, 0, 1]) {
      const counts = this.counts[c], columns = this.columns[c], p = this.pitch[c];
      let most = 0;
      for (let i = 0; i < counts.length; i++) if (counts[i] > most) most = counts[i];
      if (!most) continue;
      const [r, g, b] = rgb(COLOURS[c]), span = Math.log(1 + most), size = c === 0 ? Math.max(2, 1.5 * ratio) : p * ratio;
      const thick = Math.max(1, Math.round(ratio * 0.9));
      for (let i = 0; i < counts.length; i++) {
        const n = counts[i];
        if (!n) continue;
        const alpha = (c === 2 ? 0.3 : 0.5) + (c === 2 ? 0.2 : 0.5) * (Math.log(1 + n) / span);
        const x0 = Math.round((i % columns) * p * ratio), y0 = height - Math.round((Math.floor(i / columns) + 1) * p * ratio);
        const x1 = Math.min(width, Math.round(x0 + size)), y1 = Math.min(height, Math.round(y0 + size));
        const side = Math.round(size) - 1;
        for (let y = Math.max(0, y0); y < y1; y++) {
          for (let x = x0; x < x1; x++) {
            const u = x - x0, v = y - y0;
            if (c === 1 && Math.abs(u - v) >= thick && Math.abs(u + v - side) >= thick) continue;
            if (c === 2 && (u >= thick || v >= thick)) continue;
            const k = 4 * (y * width + x), under = (1 - alpha) * (out[k + 3] / 255), all = alpha + under;
            out[k] = (r * alpha + out[k] * under) / all;
            out[k + 1] = (g * alpha + out[k + 1] * under) / all;
            out[k + 2] = (b * alpha + out[k + 2] * under) / all;
            out[k + 3] = 255 * all;
          }
        }
      }
    }
    pen.putImageData(image, Math.round(area.left * ratio), Math.round(area.top * ratio));
  }
}

// Few requests: a dot per read, a cross per write, and a line for the size where it is visible.
function marks(pen, area, view, axis, points, on) {
  const sx = area.width / (view.x1 - view.x0), sy = area.height / (view.y1 - view.y0);
  for (const c of [2, 0, 1]) {
    if (!on[c]) continue;
    pen.strokeStyle = pen.fillStyle = colourOf(COLOURS[c]);
    pen.lineWidth = 1.3;
    points.each(axis, view, on, (x, y, channel, i) => {
      if (channel !== c) return;
      const px = area.left + (x - view.x0) * sx, py = area.top + area.height - (y - view.y0) * sy;
      const reach = points.done[i] * sy;
      pen.beginPath();
      if (reach > 5) { pen.moveTo(px, py); pen.lineTo(px, Math.max(area.top, py - reach)); }
      if (c === 1) {
        pen.moveTo(px - 2.5, py - 2.5); pen.lineTo(px + 2.5, py + 2.5);
        pen.moveTo(px - 2.5, py + 2.5); pen.lineTo(px + 2.5, py - 2.5);
      }
      pen.stroke();
      if (c === 0) { pen.beginPath(); pen.arc(px, py, 1.8, 0, 7); pen.fill(); }
      if (c === 2) pen.strokeRect(px - 1.5, py - 1.5, 3, 3);
    });
  }
}

// Phases: a name and a line at each border. Intervals with lost events: a tint and a bar.
function intervals(pen, area, view, phases, lost) {
  const at = (x) => area.left + (area.width * (x - view.x0)) / (view.x1 - view.x0);
  const ink = colourOf("ink"), muted = colourOf("muted");
  const end = area.left + area.width;
  pen.save();
  pen.beginPath(); pen.rect(area.left, 0, area.width + 1, area.top + area.height); pen.clip();
  phases.forEach((phase) => {
    const x0 = Math.max(area.left, at(phase.from)), x1 = Math.min(end, at(phase.to)), y = area.top + 2 + 15 * phase.line;
    if (x1 < area.left || x0 > end) return;
    pen.strokeStyle = muted; pen.lineWidth = 1; pen.setLineDash([3, 3]);
    for (const x of [at(phase.from), at(phase.to)]) {
      pen.beginPath(); pen.moveTo(x, area.top); pen.lineTo(x, area.top + area.height); pen.stroke();
    }
    pen.setLineDash([]);
    let text = phase.name;
    while (text.length > 1 && pen.measureText(text).width > x1 - x0 - 6) text = text.slice(0, -2) + "…";
    if (x1 - x0 < 14) return;
    pen.textAlign = "left"; pen.textBaseline = "top";
    const width = pen.measureText(text).width;
    pen.globalAlpha = 0.8; pen.fillStyle = colourOf("paper"); pen.fillRect(x0 + 2, y - 1, width + 4, 15);
    pen.globalAlpha = 1; pen.fillStyle = ink; pen.fillText(text, x0 + 4, y);
  });
  lost.forEach((gap) => {
    const x0 = at(gap.from), x1 = Math.max(at(gap.to), x0 + 3);
    pen.fillStyle = colourOf("purple");
    pen.globalAlpha = 0.13; pen.fillRect(x0, area.top, x1 - x0, area.height);
    pen.globalAlpha = 1; pen.fillRect(x0, area.top, x1 - x0, 4);
  });
  pen.restore();
}

// Flushes as short marks on the axis.
function flushes(pen, area, view, moments) {
  pen.strokeStyle = colourOf("ink"); pen.lineWidth = 1;
  pen.beginPath();
  for (const moment of moments) {
    if (moment < view.x0 || moment > view.x1) continue;
    const x = area.left + (area.width * (moment - view.x0)) / (view.x1 - view.x0);
    pen.moveTo(x, area.top + area.height); pen.lineTo(x, area.top + area.height - 9);
  }
  pen.stroke();
}

// A line through bins, with gaps at missing values; `step`: as a staircase.
function line(pen, area, view, values, scale, colour, dash, step) {
  pen.strokeStyle = colour; pen.lineWidth = 1.4; pen.setLineDash(dash);
  pen.beginPath();
  const n = values.length;
  let drawing = false;
  for (let i = 0; i < n; i++) {
    const v = scale(values[i]);
    if (!isFinite(v)) { drawing = false; continue; }
    const y = area.top + area.height * (1 - (v - view.y0) / (view.y1 - view.y0));
    const x0 = area.left + (area.width * i) / n, x1 = area.left + (area.width * (i + 1)) / n;
    const x = step ? x0 : (x0 + x1) / 2;
    if (drawing) pen.lineTo(x, y); else pen.moveTo(x, y);
    if (step) pen.lineTo(x1, y);
    else if (!drawing && !(i + 1 < n && isFinite(scale(values[i + 1])))) pen.lineTo(x + 1.5, y);
    drawing = true;
  }
  pen.stroke();
  pen.setLineDash([]);
}
