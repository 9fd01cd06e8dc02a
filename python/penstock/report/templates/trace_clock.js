// Throughput, latency and calls in flight over a range of time, in at most `bins` bins.
"use strict";

const latencyOfRow = (row) => Math.pow(2, Math.floor(row / 8)) * (1 + (row % 8) / 8);

function emptyClock(bins) {
  const make = () => new Float64Array(bins);
  return {
    bytes: [make(), make()], calls: [make(), make()], flight: make(), most: make(),
    median: [make().fill(NaN), make().fill(NaN)], tail: [make().fill(NaN), make().fill(NaN)],
  };
}

// Quantile of sorted values.
const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];

function clockOfPoints(points) {
  // calls in flight at each start, by a sweep over starts and ends
  const real = [];
  for (let i = 0; i < points.n; i++) if (points.channel[i] < 2) real.push(i);
  const ends = Float64Array.from(real, (i) => points.t[i] + points.latency[i]).sort();
  const depth = new Float64Array(real.length);
  for (let k = 0, done = 0; k < real.length; k++) {
    while (done < ends.length && ends[done] <= points.t[real[k]]) done++;
    depth[k] = k + 1 - done;
  }
  return (from, to, bins) => {
    const clock = emptyClock(bins), width = (to - from) / bins, values = [[], []];
    const place = (t) => Math.floor((t - from) / width);
    for (let k = 0; k < real.length; k++) {
      const i = real[k], c = points.channel[i], t = points.t[i], end = t + points.latency[i];
      if (t > to || end < from) continue;
      const first = place(t), last = place(end);
      if (last >= 0 && last < bins) clock.bytes[c][last] += points.done[i];
      if (first >= 0 && first < bins) {
        clock.calls[c][first]++;
        clock.most[first] = Math.max(clock.most[first], depth[k]);
        (values[c][first] = values[c][first] || []).push(points.latency[i]);
      }
      for (let b = Math.max(0, first); b <= Math.min(bins - 1, last); b++) {
        clock.flight[b] += Math.min(end, from + (b + 1) * width) - Math.max(t, from + b * width);
      }
    }
    for (let b = 0; b < bins; b++) {
      clock.flight[b] /= width;
      for (let c = 0; c < 2; c++) {
        clock.bytes[c][b] *= 1e9 / width;
        if (!values[c][b]) continue;
        const sorted = Float64Array.from(values[c][b]).sort();
        clock.median[c][b] = quantile(sorted, 0.5);
        clock.tail[c][b] = quantile(sorted, 0.99);
      }
    }
    return clock;
  };
}

function clockOfCells(shape, sections, latency) {
  const column = (name) => {
    const numbers = new Numbers(sections["clock_" + name]), values = new Float64Array(shape.columns);
    for (let i = 0; i < values.length; i++) values[i] = numbers.next();
    return values;
  };
  const bytes = [column("read"), column("write")], calls = [column("reads"), column("writes")];
  const busy = column("busy"), most = column("most");
  const origin = shape.x.origin, own = Math.pow(2, shape.x.shift);
  return (from, to, bins) => {
    // never narrower than the recorded bins
    bins = Math.max(1, Math.min(bins, Math.ceil((to - from) / own)));
    const clock = emptyClock(bins), width = (to - from) / bins;
    const first = Math.max(0, Math.floor((from - origin) / own));
    const last = Math.min(shape.columns - 1, Math.floor((to - origin) / own));
    const covered = new Float64Array(bins);
    for (let i = first; i <= last; i++) {
      const b = Math.min(bins - 1, Math.max(0, Math.floor((origin + (i + 0.5) * own - from) / width)));
      covered[b] += own;
      for (let c = 0; c < 2; c++) { clock.bytes[c][b] += bytes[c][i]; clock.calls[c][b] += calls[c][i]; }
      clock.flight[b] += busy[i];
      clock.most[b] = Math.max(clock.most[b], most[i]);
    }
    for (let b = 0; b < bins; b++) {
      const span = covered[b] || width;
      clock.flight[b] /= span;
      for (let c = 0; c < 2; c++) clock.bytes[c][b] *= 1e9 / span;
    }
    const steps = Math.max(1, Math.min(bins, Math.ceil((to - from) / latency.width)));
    const spread = [0, 1].map(() => Array.from({ length: steps }, () => new Map()));
    const view = { x0: from, x1: to, y0: 0, y1: 1e9 };
    latency.each(view, [true, true, false], (x, y, w, h, n, c) => {
      const b = Math.floor(((x + w / 2 - from) / (to - from)) * steps);
      if (b < 0 || b >= steps) return;
      const rows = spread[c][b];
      rows.set(y, (rows.get(y) || 0) + n);
    });
    for (let c = 0; c < 2; c++) {
      clock.median[c] = new Float64Array(steps).fill(NaN);
      clock.tail[c] = new Float64Array(steps).fill(NaN);
      for (let b = 0; b < steps; b++) {
        const rows = [...spread[c][b]].sort((p, q) => p[0] - q[0]);
        const total = rows.reduce((sum, r) => sum + r[1], 0);
        if (!total) continue;
        let below = 0;
        for (const [row, n] of rows) {
          if (below <= 0.5 * total && below + n > 0.5 * total) clock.median[c][b] = latencyOfRow(row + 0.5);
          if (below <= 0.99 * total && below + n > 0.99 * total) clock.tail[c][b] = latencyOfRow(row + 0.5);
          below += n;
        }
      }
    }
    return clock;
  };
}
