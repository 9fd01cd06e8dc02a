// Requests of a file in the page: all of them, or counts per cell (crates/tracefmt, tiles).
"use strict";

async function inflated(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

class Numbers {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }
  next() {
    let value = 0, scale = 1, byte;
    do {
      byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  }
  signed() {
    const v = this.next();
    return v % 2 ? -(v + 1) / 2 : v / 2;
  }
}

// Every request: x is its number, or its time [ns]; y its offset [bytes].
class Points {
  constructor(head, sections) {
    const n = head.counts.reduce((a, b) => a + b, 0), g = head.granule;
    this.n = n;
    this.t = new Float64Array(n);
    this.offset = new Float64Array(n);
    this.done = new Float64Array(n);
    this.latency = new Float64Array(n);
    this.channel = new Uint8Array(n);
    const [t, offset, done, latency] = ["t", "offset", "done", "latency"].map((k) => new Numbers(sections[k]));
    let now = 0, end = 0, size = 0;
    for (let i = 0; i < n; i++) {
      const step = t.signed();
      const channel = ((step % 4) + 4) % 4;
      now += (step - channel) / 4;
      const from = end + offset.signed();
      size += done.signed();
      end = from + size;
      this.channel[i] = channel;
      this.t[i] = now;
      this.offset[i] = from * g;
      this.done[i] = size * g;
      this.latency[i] = latency.next();
    }
  }
  x(axis, i) { return axis === "time" ? this.t[i] : this.number ? this.number[i] : i; }
  // Call visit(x, y, channel) for every request in the view whose channel is on; returns their number.
  each(axis, view, on, visit) {
    const all = axis === "time" || this.number;
    const first = all ? 0 : Math.max(0, Math.ceil(view.x0));
    const last = all ? this.n - 1 : Math.min(this.n - 1, Math.floor(view.x1));
    let total = 0;
    for (let i = first; i <= last; i++) {
      const x = this.x(axis, i), y = this.offset[i], c = this.channel[i];
      if (x < view.x0 || x > view.x1 || y < view.y0 || y > view.y1 || !on[c]) continue;
      total++;
      visit(x, y, c, i);
    }
    return total;
  }
  nearest(axis, view, area, on, px, py) {
    let best = -1, least = 100;
    const sx = area.width / (view.x1 - view.x0), sy = area.height / (view.y1 - view.y0);
    this.each(axis, view, on, (x, y, c, i) => {
      const dx = (x - view.x0) * sx - px, dy = area.height - (y - view.y0) * sy - py;
      const d = dx * dx + dy * dy;
      if (d < least) { least = d; best = i; }
    });
    return best;
  }
}

// Counts per cell, by column from the bottom.
class Cells {
  constructor(shape, cells, edges) {
    this.shape = shape;
    this.width = Math.pow(2, shape.x.shift);
    this.height = Math.pow(2, shape.y.shift);
    this.starts = new Uint32Array(shape.columns + 1);
    this.row = new Uint32Array(shape.cells);
    this.count = [0, 1, 2].map(() => new Uint32Array(shape.cells));
    this.low = [0, 1, 2].map(() => new Float64Array(shape.columns).fill(NaN));
    this.high = [0, 1, 2].map(() => new Float64Array(shape.columns).fill(NaN));
    const numbers = new Numbers(cells);
    let at = 0;
    for (let column = 0; column < shape.columns; column++) {
      this.starts[column] = at;
      const end = at + numbers.next();
      let row = 0;
      for (; at < end; at++) {
        row += numbers.next();
        this.row[at] = row;
        const v = numbers.next(), form = v % 4, n = (v - form) / 4;
        if (form === 1) this.count[1][at] = n;
        else this.count[0][at] = n;
        if (form >= 2) this.count[1][at] = numbers.next();
        if (form === 3) this.count[2][at] = numbers.next();
      }
    }
    this.starts[shape.columns] = at;
    const extremes = new Numbers(edges);
    for (let column = 0; column < shape.columns; column++) {
      for (let c = 0; c < 3; c++) {
        const low = extremes.next();
        if (!low) continue;
        const high = extremes.next();
        let first = -1, last = -1;
        for (let i = this.starts[column]; i < this.starts[column + 1]; i++) {
          if (!this.count[c][i]) continue;
          if (first < 0) first = i;
          last = i;
        }
        this.low[c][column] = shape.y.origin + this.row[first] * this.height + low - 1;
        this.high[c][column] = shape.y.origin + this.row[last] * this.height + high;
      }
    }
  }
  column(x) { return Math.floor((x - this.shape.x.origin) / this.width); }
  range(view) {
    const first = Math.max(0, this.column(view.x0));
    const last = Math.min(this.shape.columns - 1, this.column(view.x1));
    return [first, last];
  }
  // Call visit(x, y, width, height, n, channel) for every cell that intersects the view; returns their requests.
  each(view, on, visit) {
    const [first, last] = this.range(view);
    const low = (view.y0 - this.shape.y.origin) / this.height - 1;
    const high = (view.y1 - this.shape.y.origin) / this.height;
    let total = 0;
    for (let column = first; column <= last; column++) {
      const x = this.shape.x.origin + column * this.width;
      for (let i = this.starts[column], end = this.starts[column + 1]; i < end; i++) {
        const row = this.row[i];
        if (row < low) continue;
        if (row > high) break;
        const y = this.shape.y.origin + row * this.height;
        for (let c = 0; c < 3; c++) {
          const n = this.count[c][i];
          if (n && on[c]) { total += n; visit(x, y, this.width, this.height, n, c); }
        }
      }
    }
    return total;
  }
  // Add the cells of a view to a raster, as `each` with `Raster.add`; returns their requests.
  fill(raster, view, sx, sy, on) {
    const [first, last] = this.range(view), { starts, row, count } = this;
    const low = (view.y0 - this.shape.y.origin) / this.height - 1;
    const high = (view.y1 - this.shape.y.origin) / this.height;
    const bottom = this.shape.y.origin - view.y0, tall = this.height;
    const ways = [0, 1, 2].filter((c) => on[c]);
    let total = 0;
    for (let column = first; column <= last; column++) {
      const x = (this.shape.x.origin + column * this.width - view.x0) * sx, end = starts[column + 1];
      let from = starts[column], to = end;
      while (from < to) {
        const middle = (from + to) >> 1;
        if (row[middle] < low) from = middle + 1; else to = middle;
      }
      for (const c of ways) {
        const n = count[c], p = raster.pitch[c], columns = raster.columns[c], rows = raster.rows[c], out = raster.counts[c];
        const i0 = Math.max(0, Math.floor(x / p));
        const i1 = Math.min(columns - 1, Math.max(i0, Math.ceil((x + this.width * sx) / p) - 1));
        const scale = sy / p;
        for (let k = from; k < end; k++) {
          const v = n[k];
          if (!v) continue;
          const r = row[k];
          if (r > high) break;
          total += v;
          const y = (bottom + r * tall) * scale;
          const j0 = y > 0 ? Math.floor(y) : 0;
          const j1 = Math.min(rows - 1, Math.max(j0, Math.ceil(y + tall * scale) - 1));
          for (let j = j0; j <= j1; j++) for (let i = i0, at = j * columns + i0; i <= i1; i++, at++) out[at] += v;
        }
      }
    }
    return total;
  }
  at(x, y) {
    const column = this.column(x), row = Math.floor((y - this.shape.y.origin) / this.height);
    if (column < 0 || column >= this.shape.columns) return null;
    const cell = {
      x: this.shape.x.origin + column * this.width, width: this.width,
      y: this.shape.y.origin + row * this.height, height: this.height,
      n: [0, 0, 0], low: this.low.map((l) => l[column]), high: this.high.map((h) => h[column]),
    };
    for (let i = this.starts[column]; i < this.starts[column + 1]; i++) {
      if (this.row[i] === row) cell.n = this.count.map((n) => n[i]);
    }
    return cell;
  }
}

// Requests of one file, from the page.
async function requestsOf(head, text) {
  const bytes = await inflated(text), sections = {};
  let at = 0;
  for (const [name, length] of head.sections) {
    sections[name] = bytes.subarray(at, at + length);
    at += length;
  }
  if (head.form === "points") {
    const points = new Points(head, sections);
    return { points, clock: clockOfPoints(points) };
  }
  const grids = {};
  for (const [name, shape] of head.grids) grids[name] = new Cells(shape, sections[name], sections[name + "_edges"]);
  return { cells: grids, clock: clockOfCells(head.clock, sections, grids.latency) };
}
