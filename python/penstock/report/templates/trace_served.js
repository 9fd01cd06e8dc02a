// Served pages only: fetch details below the resolution of the page from the server.
"use strict";
(() => {
  const trace = (location.pathname.match(/\/traces\/(\d+)/) || [0, 0])[1];
  const token = sessionStorage.getItem("penstock-token");
  const waiting = new Map();

  // Counts of one view, for Figure.
  class Counts {
    constructor(view, head, content) { this.view = view; this.head = head; this.counts = new Uint32Array(content); }
    each(on, visit) {
      const { columns, rows, low, high } = this.head, v = this.view;
      const w = (v.x1 - v.x0) / columns, h = (high - low) / rows;
      let total = 0, at = 0;
      for (let i = 0; i < columns; i++) for (let j = 0; j < rows; j++) for (let c = 0; c < 3; c++) {
        const n = this.counts[at++];
        if (!n || !on[c]) continue;
        total += n;
        visit(v.x0 + i * w, low + j * h, w, h, n, c);
      }
      return total;
    }
  }

  function pointsOf(head, content) {
    const n = head.n, data = new DataView(content), points = Object.create(Points.prototype);
    const long = (at) => data.getUint32(at, true) + data.getUint32(at + 4, true) * 4294967296;
    Object.assign(points, {
      n, number: new Float64Array(n), t: new Float64Array(n), offset: new Float64Array(n),
      done: new Float64Array(n), latency: new Float64Array(n), channel: new Uint8Array(n),
    });
    for (let i = 0; i < n; i++) {
      points.number[i] = head.first + data.getUint32(4 * i, true);
      points.t[i] = long(4 * n + 8 * i);
      const high = data.getUint32(12 * n + 8 * i + 4, true);
      points.channel[i] = high >>> 30;
      points.offset[i] = data.getUint32(12 * n + 8 * i, true) + (high & 0x3fffffff) * 4294967296;
      points.done[i] = data.getUint32(20 * n + 4 * i, true);
      points.latency[i] = long(24 * n + 8 * i);
    }
    return points;
  }

  window.penstockDetail = (figure, axis, view, area) => {
    const key = figure.box.id + axis;
    clearTimeout(waiting.get(key));
    waiting.set(key, setTimeout(async () => {
      const query = new URLSearchParams({
        axis, x0: view.x0, x1: view.x1, y0: view.y0, y1: view.y1,
        columns: Math.round(area.width), rows: Math.round(area.height),
      });
      const path = `/api/traces/${trace}/files/${figure.head.file_id}/view?${query}`;
      const response = await fetch(path, { headers: { Authorization: `Bearer ${token}` } });
      if (!response.ok || !same(view, figure.view[axis])) return;
      const head = JSON.parse(response.headers.get("X-Penstock-View")), content = await response.arrayBuffer();
      if (!same(view, figure.view[axis])) return;
      figure.detail[axis] = head.form === "points"
        ? { view, points: pointsOf(head, content) }
        : Object.assign(new Counts(view, head, content), { view });
      figure.draw();
    }, 60));
  };
})();
