// Figures of one file: offset against number and time, and rates over time, with zoom by mouse, touch and keys.
"use strict";

const NAMES = ["read", "write", "mapped around"];

class Figure {
  constructor(box, head, text) {
    this.box = box;
    this.head = head;
    this.text = text;
    this.on = [true, true, true];
    this.total = head.counts.reduce((a, b) => a + b, 0);
    const tall = Math.max(head.high - head.low, head.tallest, 1);
    const offsets = { y0: Math.max(0, head.low - 0.03 * tall), y1: head.high + head.tallest + 0.03 * tall };
    if (head.low < 0.1 * head.high) offsets.y0 = -0.02 * head.high;
    const n = Math.max(this.total, 2), span = Math.max(head.until - head.from, 1);
    this.full = {
      number: { x0: -0.01 * n, x1: 1.01 * (n - 1), ...offsets },
      time: { x0: head.from - 0.01 * span, x1: head.until + 0.01 * span, ...offsets },
    };
    this.view = { number: { ...this.full.number }, time: { ...this.full.time } };
    this.canvases = {};
    box.querySelectorAll("canvas").forEach((canvas) => { this.canvases[canvas.dataset.panel] = canvas; });
    this.captions = {};
    box.querySelectorAll("[data-shown]").forEach((p) => { this.captions[p.dataset.shown] = p; });
    this.detail = {};
    for (const axis of ["number", "time"]) this.listen(this.canvases[axis], axis);
    for (const panel of ["throughput", "latency", "depth"]) this.listen(this.canvases[panel], "time", panel);
    box.querySelectorAll("button[data-do]").forEach((b) => b.addEventListener("click", () => this.press(b)));
    this.loading = null;
  }

  load() {
    if (!this.loading) {
      this.loading = requestsOf(this.head, this.text).then((requests) => { this.requests = requests; this.draw(); });
      this.text = null;
    }
    return this.loading;
  }

  press(button) {
    const action = button.dataset.do, axis = button.dataset.axis;
    if (action === "toggle") {
      const c = +button.dataset.channel;
      this.on[c] = !this.on[c];
      button.setAttribute("aria-pressed", this.on[c]);
      this.draw();
    } else if (action === "full") this.setView(axis, this.full[axis]);
    else this.zoom(axis, action === "in" ? 0.5 : 2);
  }

  // Set the view of an axis, within the full range; both figures have the same range of offsets.
  setView(axis, view) {
    const full = this.full[axis], other = axis === "time" ? "number" : "time";
    const fit = (low, high, least, most, smallest) => {
      let size = Math.min(Math.max(high - low, smallest), most - least);
      let from = Math.min(Math.max((low + high - size) / 2, least), most - size);
      return [from, from + size];
    };
    const [x0, x1] = fit(view.x0, view.x1, full.x0, full.x1, axis === "time" ? 100 : 4);
    const [y0, y1] = fit(view.y0, view.y1, full.y0, full.y1, 64);
    this.view[axis] = { x0, x1, y0, y1 };
    Object.assign(this.view[other], { y0, y1 });
    this.draw();
  }

  // Zoom about a point, in shares of the plot from the left and from the bottom.
  zoom(axis, factor, fx = 0.5, fy = 0.5, which = "xy") {
    const v = { ...this.view[axis] };
    if (which.includes("x")) {
      const at = v.x0 + fx * (v.x1 - v.x0), size = (v.x1 - v.x0) * factor;
      v.x0 = at - fx * size; v.x1 = v.x0 + size;
    }
    if (which.includes("y")) {
      const at = v.y0 + fy * (v.y1 - v.y0), size = (v.y1 - v.y0) * factor;
      v.y0 = at - fy * size; v.y1 = v.y0 + size;
    }
    this.setView(axis, v);
  }

  shift(axis, dx, dy) {
    const v = this.view[axis], w = v.x1 - v.x0, h = v.y1 - v.y0;
    this.setView(axis, { x0: v.x0 + dx * w, x1: v.x1 + dx * w, y0: v.y0 + dy * h, y1: v.y1 + dy * h });
  }

  area(canvas, panel) {
    const width = canvas.clientWidth, narrow = width < 520, offsets = panel === "number" || panel === "time";
    const height = offsets ? (narrow ? 230 : 300) : 84;
    const last = offsets || panel === "depth";
    return { left: narrow ? 46 : 58, top: 24, width: Math.max(40, width - (narrow ? 56 : 74)), height, all: height + 24 + (last ? 40 : 12) };
  }

  draw() {
    if (!this.requests || this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.drawNow(); });
  }

  // Draw the panels in or near the window; `stale` if others remain.
  drawNow(all) {
    const near = (panel) => {
      const box = this.canvases[panel].getBoundingClientRect();
      return all || (box.bottom > -200 && box.top < window.innerHeight + 200);
    };
    this.stale = false;
    for (const axis of ["number", "time"]) {
      if (near(axis)) this.drawOffsets(axis);
      else this.stale = true;
    }
    const changed = JSON.stringify([this.view.time.x0, this.view.time.x1, this.on, this.canvases.depth.clientWidth, colourOf("ink")]);
    if (!near("throughput") && !near("depth")) this.stale = true;
    else if (all || changed !== this.drawnClock) { this.drawClock(); this.drawnClock = changed; }
  }

  drawOffsets(axis) {
    const canvas = this.canvases[axis], area = this.area(canvas, axis), view = this.view[axis];
    const { pen, ratio } = prepared(canvas, canvas.clientWidth, area.all);
    frame(pen, area, view, axis === "time" ? "time" : "count", "bytes", axis === "time" ? "time" : "request number", "offset");
    const sx = area.width / (view.x1 - view.x0), sy = area.height / (view.y1 - view.y0);
    const { points, cells } = this.requests, detail = this.detail[axis];
    let inView, form;
    if (points || (detail && detail.points && same(detail.view, view))) {
      const source = points || detail.points, on = this.on;
      const raster = new Raster(area);
      inView = source.each(axis, view, on, (x, y, c) => raster.add((x - view.x0) * sx, (y - view.y0) * sy, 0, 0, 1, c));
      if (inView <= MANY) marks(pen, area, view, axis, source, on);
      else raster.paint(pen, area, ratio);
      form = "each as one mark";
    } else if (detail && detail.counts && same(detail.view, view)) {
      const raster = new Raster(area);
      inView = detail.each(this.on, (x, y, w, h, n, c) => raster.add((x - view.x0) * sx, (y - view.y0) * sy, w * sx, h * sy, n, c));
      raster.paint(pen, area, ratio);
      form = "counted for this view";
    } else {
      const raster = new Raster(area), grid = cells[axis];
      inView = grid.fill(raster, view, sx, sy, this.on);
      raster.paint(pen, area, ratio);
      const wide = axis === "time" ? timeText(grid.width) : `${plain(grid.width)} requests`;
      form = `as counts per cell of ${wide} × ${bytesText(grid.height)}`;
      if (window.penstockDetail && grid.width * sx > 2) window.penstockDetail(this, axis, { ...view }, area);
    }
    intervals(pen, area, view, this.head.phases[axis], this.head.lost[axis]);
    flushes(pen, area, view, this.head.flushes[axis]);
    const range = `offsets ${bytesText(Math.max(0, view.y0))} to ${bytesText(view.y1)}`;
    const x = axis === "time" ? `${timeText(Math.max(0, view.x0))} to ${timeText(view.x1)}` : `requests ${plain(Math.max(0, Math.round(view.x0)))} to ${plain(Math.round(view.x1))}`;
    this.captions[axis].textContent = `Shown ${plain(inView)} of ${plain(this.total)} requests, ${form}. ${x}, ${range}.`;
  }

  drawClock() {
    const view = this.view.time, on = this.on;
    const bins = Math.max(20, Math.floor(this.area(this.canvases.depth, "depth").width / 3));
    const clock = this.clock = this.requests.clock(view.x0, view.x1, bins);
    const ways = [0, 1].filter((c) => on[c] && this.head.counts[c]);
    const top = (lists) => lists.reduce((m, list) => list.reduce((k, v) => (v > k ? v : k), m), 0);
    const panel = (name, y0, y1, kind, title, last, body) => {
      const canvas = this.canvases[name], area = this.area(canvas, name), v = { x0: view.x0, x1: view.x1, y0, y1 };
      const { pen } = prepared(canvas, canvas.clientWidth, area.all);
      frame(pen, area, v, last ? "time" : "", kind, "time", title);
      body(pen, area, v);
      intervals(pen, area, v, [], this.head.lost.time);
    };
    const line_ = [[], [5, 3]], same_ = (v) => v;
    const rate = top(ways.map((c) => clock.bytes[c])) || 1;
    panel("throughput", 0, 1.08 * rate, "rate", "throughput", false, (pen, area, v) => {
      ways.forEach((c) => line(pen, area, v, clock.bytes[c], same_, colourOf(COLOURS[c]), line_[c], true));
    });
    this.drawLatency(clock, ways, panel);
    const most = Math.max(1, top([clock.most]));
    panel("depth", 0, 1.1 * most, "number", "calls in flight", true, (pen, area, v) => {
      line(pen, area, v, clock.most, (x) => (x ? x : NaN), colourOf("muted"), [1.5, 2.5], true);
      line(pen, area, v, clock.flight, same_, colourOf("green"), [], true);
    });
  }

  drawLatency(clock, ways, panel) {
    let low = Infinity, high = 0;
    for (const c of ways) {
      clock.median[c].forEach((v) => { if (v > 0 && v < low) low = v; });
      clock.tail[c].forEach((v) => { if (v > high) high = v; });
    }
    if (!(low < high)) { low = (high || 1000) / 2; high = (high || 1000) * 2; }
    const [a, b] = [Math.log10(low) - 0.15, Math.log10(high) + 0.15];
    panel("latency", a, b, "none", "latency", false, (pen, area, v) => {
      pen.textAlign = "right"; pen.textBaseline = "middle";
      let last = Infinity;
      for (let d = Math.ceil(a); d <= b; d++) {
        const y = area.top + area.height * (1 - (d - a) / (b - a));
        pen.strokeStyle = colourOf("grid");
        pen.beginPath(); pen.moveTo(area.left, y); pen.lineTo(area.left + area.width, y); pen.stroke();
        if (last - y < 14) continue;
        last = y;
        pen.fillStyle = colourOf("ink");
        pen.fillText(timeText(Math.pow(10, d)), area.left - 6, y);
      }
      const dash = [[], [5, 3]], log = (x) => (x > 0 ? Math.log10(x) : NaN);
      ways.forEach((c) => {
        line(pen, area, v, clock.median[c], log, colourOf(COLOURS[c]), dash[c], false);
        pen.globalAlpha = 0.55;
        line(pen, area, v, clock.tail[c], log, colourOf(COLOURS[c]), c ? [7, 2, 1, 2] : [1, 2], false);
        pen.globalAlpha = 1;
      });
    });
  }

  // Text of the request, cell or time under the pointer.
  describe(axis, panel, px, py) {
    const canvas = this.canvases[panel || axis], area = this.area(canvas, panel || axis), view = this.view[axis];
    const ux = px - area.left, uy = py - area.top;
    if (!this.requests || ux < 0 || uy < -4 || ux > area.width || uy > area.height + 4) return "";
    const x = view.x0 + (ux / area.width) * (view.x1 - view.x0);
    if (panel) {
      const k = this.clock, n = k.flight.length, b = Math.min(n - 1, Math.floor((ux / area.width) * n));
      const at = `at ${timeText(view.x0 + ((b + 0.5) / n) * (view.x1 - view.x0))}: `;
      const of = (list) => list[Math.min(list.length - 1, Math.floor((ux / area.width) * list.length))];
      if (panel === "throughput") return at + [0, 1].filter((c) => this.head.counts[c]).map((c) => `${NAMES[c]} ${bytesText(k.bytes[c][b], 3)}/s`).join(", ");
      if (panel === "depth") return `${at}${(+k.flight[b].toPrecision(3))} calls in flight on average, ${plain(k.most[b])} at most`;
      const part = [0, 1].filter((c) => of(k.median[c]) > 0).map((c) => `${NAMES[c]} median ${timeText(of(k.median[c]))}, 99 % within ${timeText(of(k.tail[c]))}`);
      return part.length ? at + part.join("; ") : `${at}no call began`;
    }
    const y = view.y0 + (1 - uy / area.height) * (view.y1 - view.y0);
    const points = this.requests.points || (this.detail[axis] && same(this.detail[axis].view, view) && this.detail[axis].points);
    if (points) {
      const i = points.nearest(axis, view, area, this.on, ux, uy);
      if (i < 0) return "";
      const c = points.channel[i];
      const number = points.x("number", i);
      return `${NAMES[c]}, request ${plain(number)} at ${timeText(points.t[i])}: ${bytesText(points.done[i])} at offset ${plain(points.offset[i])}, took ${timeText(points.latency[i])}`;
    }
    const cell = this.requests.cells[axis].at(x, y);
    if (!cell) return "";
    const across = axis === "time" ? `${timeText(cell.x)} to ${timeText(cell.x + cell.width)}` : `requests ${plain(cell.x)} to ${plain(cell.x + cell.width - 1)}`;
    const counts = cell.n.map((n, c) => (n ? `${plain(n)} ${NAMES[c]}` : "")).filter(Boolean).join(", ") || "none";
    const low = Math.min(...cell.low.filter((v) => v >= 0)), high = Math.max(...cell.high.filter((v) => v >= 0));
    const column = isFinite(low) ? ` Column: lowest ${plain(low)}, highest ${plain(high)}.` : "";
    return `${across}, offsets ${bytesText(cell.y)} to ${bytesText(cell.y + cell.height)}: ${counts}.${column}`;
  }

  listen(canvas, axis, panel) {
    const locate = (event) => {
      const box = canvas.getBoundingClientRect(), area = this.area(canvas, panel || axis);
      const px = event.clientX - box.left, py = event.clientY - box.top;
      return { px, py, fx: (px - area.left) / area.width, fy: 1 - (py - area.top) / area.height, area };
    };
    const which = panel ? "x" : "xy", pointers = new Map();
    let drag = null;
    canvas.addEventListener("keydown", (event) => {
      const step = 0.2, moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (moves[event.key]) this.shift(axis, ...moves[event.key]);
      else if (event.key === "+" || event.key === "=") this.zoom(axis, 0.5, 0.5, 0.5, which);
      else if (event.key === "-") this.zoom(axis, 2, 0.5, 0.5, which);
      else if (event.key === "]") this.zoom(axis, 0.5, 0.5, 0.5, "x");
      else if (event.key === "[") this.zoom(axis, 2, 0.5, 0.5, "x");
      else if (event.key === "0" || event.key === "Home") this.setView(axis, this.full[axis]);
      else return;
      event.preventDefault();
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      const { fx, fy } = locate(event);
      this.zoom(axis, Math.exp(Math.sign(event.deltaY) * 0.25), fx, fy, event.shiftKey ? "x" : which);
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => {
      const { fx, fy } = locate(event);
      this.zoom(axis, 0.4, fx, fy, which);
    });
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, locate(event));
      canvas.setPointerCapture(event.pointerId);
      drag = { view: { ...this.view[axis] }, at: locate(event), gap: this.gap(pointers) };
    });
    canvas.addEventListener("pointermove", (event) => {
      const position = locate(event);
      if (!pointers.has(event.pointerId) || !drag) { showTip(this.describe(axis, panel, position.px, position.py), event); return; }
      pointers.set(event.pointerId, position);
      const v = drag.view;
      if (pointers.size > 1) {
        const gap = this.gap(pointers), factor = drag.gap / Math.max(gap, 10);
        this.view[axis] = { ...v };
        this.zoom(axis, factor, drag.at.fx, drag.at.fy, which);
        return;
      }
      const dx = ((drag.at.px - position.px) / position.area.width) * (v.x1 - v.x0);
      const dy = panel ? 0 : ((position.py - drag.at.py) / position.area.height) * (v.y1 - v.y0);
      this.setView(axis, { x0: v.x0 + dx, x1: v.x1 + dx, y0: v.y0 + dy, y1: v.y1 + dy });
    });
    const release = (event) => { pointers.delete(event.pointerId); if (!pointers.size) drag = null; };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => showTip(""));
  }

  gap(pointers) {
    const [a, b] = [...pointers.values()];
    return b ? Math.hypot(a.px - b.px, a.py - b.py) : 0;
  }
}

const same = (a, b) => a && b && ["x0", "x1", "y0", "y1"].every((k) => a[k] === b[k]);

function showTip(text, event) {
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 6);
  let y = event.clientY + 16;
  if (y + tip.offsetHeight > window.innerHeight) y = event.clientY - tip.offsetHeight - 10;
  tip.style.left = Math.max(4, x) + "px";
  tip.style.top = y + "px";
}

const penstockFigures = [];
document.querySelectorAll(".trace-figure").forEach((box) => {
  const head = JSON.parse(document.getElementById("head-" + box.id).textContent);
  const bytes = document.getElementById("data-" + box.id);
  const figure = new Figure(box, head, bytes.textContent);
  bytes.remove();
  penstockFigures.push(figure);
});
if (typeof DecompressionStream === "undefined") {
  document.querySelectorAll("[data-shown]").forEach((p) => { p.textContent = "Not drawn: this browser is too old (it lacks DecompressionStream)."; });
} else {
  // load figures near the window
  const near = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (!entry.isIntersecting) return;
    near.unobserve(entry.target);
    penstockFigures.find((f) => f.box === entry.target).load();
  }), { rootMargin: "800px" });
  penstockFigures.forEach((f) => near.observe(f.box));
  document.addEventListener("scroll", () => penstockFigures.forEach((f) => { if (f.stale) f.draw(); }), { passive: true });
  const redraw = () => penstockFigures.forEach((f) => f.draw());
  new ResizeObserver(redraw).observe(document.querySelector("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => penstockFigures.forEach((f) => f.load().then(() => f.drawNow(true))));
}
