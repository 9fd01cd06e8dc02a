// Reads the event stream /api/v1/live: a snapshot, then changes; with a user's token only experiments. Updates elements in place,
// which preserves focus, selection and the position of a screen reader.
const byId = (id) => document.getElementById(id);
const units = ["", "k", "M", "G", "T"];
let previous = null;

function short(value, unit) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  let n = 0;
  while (Math.abs(value) >= 999.5 && n < units.length - 1) { value /= 1000; n += 1; }
  const digits = value === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[n]}${unit}`;
}

const percent = (share) => `${Number((100 * share).toPrecision(3))} %`;

const binary = (bytes) => bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(0)} MiB`;

function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

// one line: label and suffix, a bar if there is a limit, the value
function meter(list, label, value, limit, text, limitText, suffix) {
  const name = make("span", "what", label);
  if (suffix) name.append(make("span", "", ` ${suffix}`));
  list.append(name);
  const bar = make("span", limit ? "bar" : "bar free");
  if (limit) {
    const fill = make("i");
    fill.style.width = `${Math.max(0, Math.min(1, value / limit)) * 100}%`;
    bar.append(fill);
  }
  list.append(bar);
  const shown = make("span", "value", text);
  if (limitText) shown.append(make("span", "", ` / ${limitText}`));
  list.append(shown);
}

function rate(now, then, key, seconds) {
  if (!now || !then || !(seconds > 0)) return null;
  const moved = now[key] - then[key];
  return moved >= 0 ? moved / seconds : null;
}

function group(list, ...parts) {
  const row = make("div", "group");
  for (const part of parts) row.append(part);
  list.append(row);
}

function linkMeters(list, name, link, then, seconds) {
  const requested = link.asked || {};
  const chips = [];
  for (const [way, prefix] of [["out", ""], ["in", "in_"]]) {
    const delay = requested[`${prefix}delay`];
    if (delay && delay.mean_s > 0) {
      const jitter = delay.jitter_s > 0 ? ` ± ${short(delay.jitter_s * 1e3, "ms")} ${delay.distribution}` : "";
      chips.push(make("span", "chip", `${way} ${short(delay.mean_s * 1e3, "ms")}${jitter}`));
    }
    for (const share of ["loss", "duplicate", "corrupt", "reorder"]) {
      const value = requested[prefix + share];
      if (value > 0) chips.push(make("span", "chip warn", `${way} ${share} ${percent(value)}`));
    }
  }
  group(list, make("span", "", `network ${name}`), ...chips);
  for (const way of ["out", "in"]) {
    const bits = rate(link, then, `${way}_bytes`, seconds);
    const limit = requested[`${way}_bps`];
    meter(list, way, (bits || 0), limit, bits === null ? "–" : short(bits * 8, "bit/s"), limit ? short(limit * 8, "bit/s") : "");
  }
}

function diskFeatures(now) {
  const chips = [];
  for (const [key, value] of Object.entries(now || {})) {
    if (key === "limits" || key === "profile" || value === null) continue;
    if (Array.isArray(value) && value.length === 0) continue;
    const plain = { readahead: true, cache: true, read_only: false, full: false, fail_stop: false };
    if (key in plain && value === plain[key]) continue;
    let text = key.replaceAll("_", " ");
    if (key === "slow") text = `slow × ${value.factor}`;
    else if (key === "servers") text = `${value} server${value === 1 ? "" : "s"}`;
    else if (key === "faults") text = `${value.length} fault${value.length === 1 ? "" : "s"}`;
    else if (key === "bad_space") text = `${percent(value.share)} bad`;
    else if (value === false) text = `no ${text}`;
    else if (typeof value === "object") text = text;
    chips.push(make("span", "chip warn", text));
  }
  return chips;
}

function diskMeters(list, title, disk, then, seconds) {
  const stats = disk.stats || null;
  const past = then ? then.stats : null;
  const settings = disk.now || {};
  const limits = settings.limits || {};
  group(list, make("span", "", title), ...(disk.profile ? [make("span", "chip", disk.profile)] : []), ...diskFeatures(settings));
  const ways = [["read", "read_bytes", "reads"], ["write", "written_bytes", "writes"]];
  for (const [way, bytes, count] of ways) {
    const key = stats && !(bytes in stats) ? bytes.replace("written", "write") : bytes;
    const value = rate(stats, past, key, seconds);
    const iops = rate(stats, past, count, seconds);
    const limit = limits[`${way}_bps`];
    const text = value === null ? "–" : short(value, "B/s");
    meter(list, way, value || 0, limit, text, limit ? short(limit, "B/s") : "", iops ? `${short(iops, "")}/s`.replace(" /", "/") : "");
  }
}

function nodeCard(node, then, seconds) {
  const card = make("article", `card ${node.state === "failed" ? "failed" : ""}`);
  const head = make("h3", "", node.name);
  head.append(make("span", `chip ${node.state}`, node.state));
  if (node.processes !== undefined) head.append(make("small", "", `${node.processes} process${node.processes === 1 ? "" : "es"}`));
  card.append(head);
  card.append(make("p", "addresses", node.failure || Object.values(node.addresses || {}).join(" · ") || "no network"));
  const list = make("div", "meters");
  if (node.cpu) {
    const used = rate(node.cpu, then && then.cpu, "used_ns", seconds);
    const share = used === null ? null : used / 1e9;
    const limit = node.cpu.cpus;
    meter(list, "processors", share || 0, limit, share === null ? "–" : share.toFixed(2), limit ? limit.toFixed(2) : "");
  }
  if (node.memory) {
    const used = node.memory.current_bytes ?? node.memory.usage_bytes ?? node.memory.current ?? null;
    const limit = node.memory.hard;
    meter(list, "memory", used || 0, limit, used === null ? "–" : binary(used), limit ? binary(limit) : "");
  }
  for (const [name, link] of Object.entries(node.links || {})) {
    if (link) linkMeters(list, name, link, then && then.links && then.links[name], seconds);
  }
  for (const [name, disk] of Object.entries(node.disks || {})) {
    diskMeters(list, `disk ${name} · ${disk.backend}`, disk, then && then.disks && then.disks[name], seconds);
  }
  card.append(list);
  return card;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Synchronise the children of a parent with items by key, in order: create, update, remove.
function synchronise(parent, items, key, create, update) {
  const elements = parent.keyedElements || (parent.keyedElements = new Map());
  const present = new Set();
  let sibling = null;
  for (const item of items) {
    const id = key(item);
    if (present.has(id)) continue;
    present.add(id);
    let element = elements.get(id);
    if (!element) {
      element = create(item);
      elements.set(id, element);
    }
    const next = sibling ? sibling.nextSibling : parent.firstChild;
    if (next !== element) parent.insertBefore(element, next);
    sibling = element;
    update(element, item);
  }
  for (const [id, element] of elements) {
    if (present.has(id)) continue;
    element.remove();
    elements.delete(id);
  }
}

function row(cells) {
  const tableRow = make("tr");
  const first = make("th");
  first.scope = "row";
  tableRow.append(first);
  for (let n = 1; n < cells; n += 1) tableRow.append(make("td"));
  return tableRow;
}

function durationText(seconds) {
  if (seconds === null || seconds === undefined || !(seconds >= 0)) return "–";
  const total = Math.round(seconds);
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)} min ${total % 60} s`;
  return `${Math.floor(total / 3600)} h ${Math.floor(total / 60) % 60} min`;
}

const count = (n) => (n === null || n === undefined ? "–" : Number(n).toLocaleString("en"));
const since = (ms) => (ms ? durationText((Date.now() - ms) / 1e3) : "–");
const clock = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60e3).toISOString().slice(11, 19);
const levelsOf = (levels) => Object.entries(levels || {}).map(([name, level]) => `${name} ${level}`).join(", ");

// --- running -----------------------------------------------------------------------------------
let running = [];

function runningCard() {
  const card = make("article", "card");
  const head = make("h3");
  head.append(make("span", "name"), make("span", "chip running"));
  const bar = make("progress");
  bar.hidden = true;
  card.append(head, make("p", "question"), bar, make("p", "plan"), make("ul"));
  return card;
}

function planText(activity) {
  const earlier = activity.done_before || 0;
  const parts = [`${earlier + (activity.made || 0)} of ${activity.planned} runs made`];
  if (activity.failed) parts.push(`${activity.failed} failed`);
  if (activity.invalid) parts.push(`${activity.invalid} not valid`);
  if (activity.analysing) parts.push("analysing");
  else parts.push(`${activity.left} left`);
  if (activity.left_s) parts.push(`about ${durationText(activity.left_s)} to go`);
  return parts.join(", ");
}

function drawRunning() {
  byId("running-empty").hidden = running.length > 0 || !byId("experiments").hidden;
  synchronise(byId("running-cards"), running, (activity) => activity.id, runningCard, (card, activity) => {
    const [head, question, bar, plan, runs] = card.children;
    setText(head.firstChild, activity.name);
    setText(head.lastChild, activity.host ? `${activity.kind} on ${activity.host}` : activity.kind);
    setText(question, activity.question || "");
    question.hidden = !activity.question;
    const planned = activity.planned > 0;
    bar.hidden = !planned;
    if (planned) {
      bar.max = activity.planned;
      bar.value = Math.max(0, activity.planned - (activity.left || 0));
      bar.setAttribute("aria-label", `Runs of ${activity.name}`);
    }
    setText(plan, planned ? planText(activity) : `since ${clock(activity.began_ms)}`);
    synchronise(runs, activity.runs || [], (run) => `${run.run_id}.${run.attempt}`, () => make("li"), (item, run) => {
      const attempt = run.attempt > 1 ? `, attempt ${run.attempt}` : "";
      const levels = levelsOf(run.levels);
      setText(item, `${run.run_id}${attempt}: ${run.phase || "begins"}, ${since(run.began_ms)}${levels ? `; ${levels}` : ""}`);
    });
  });
}

let experiments = [];

function drawExperiments() {
  byId("experiments").hidden = experiments.length === 0;
  synchronise(byId("experiments-rows"), experiments, (e) => `${e.user} ${e.name}#${e.repeat}`, () => row(6), (line, e) => {
    const recorded = e.recorded;
    const cells = [
      e.trouble ? "The catalogue cannot be read" : `${e.name}#${e.repeat}`,
      e.user || "",
      e.trouble || e.phase || (e.phases ? "between phases" : ""),
      since(e.start_ms),
      !recorded ? "" : recorded.bytes ? short(recorded.bytes, "B") : `${count(recorded.points)} points of ${count(recorded.series)} series`,
      !recorded ? "" : recorded.bytes ? "determined at its end" : recorded.verdict + (recorded.lost ? `, ${recorded.lost} lost` : ""),
    ];
    cells.forEach((text, n) => setText(line.children[n], text));
    line.children[5].className = recorded && recorded.verdict && !["complete", "unknown"].includes(recorded.verdict) ? "bad" : "";
  });
  drawRunning();
}

// --- utilisation -------------------------------------------------------------------------------
const HISTORY = 120;
const sources = new Map();
const SVG = "http://www.w3.org/2000/svg";
const METRICS = {
  cpu_busy: ["processors", "%", 100],
  memory_available: ["memory available", "B"],
  disk_busy_of_time: ["disk busy", "%", 100],
  disk_read_rate: ["disk reads", "B/s"],
  disk_write_rate: ["disk writes", "B/s"],
  emulated_disk_busy: ["emulated disk busy", "%", 100],
  emulated_disk_queue_depth: ["emulated disk, requests waiting", ""],
  emulated_disk_read_rate: ["emulated disk reads", "B/s"],
  emulated_disk_write_rate: ["emulated disk writes", "B/s"],
  network_send_rate: ["network out", "B/s"],
  network_receive_rate: ["network in", "B/s"],
  cgroup_cpu_busy: ["processors of", "%", 100],
  cgroup_memory: ["memory of", "B"],
};

function addSample(sample) {
  const source = sources.get(sample.source) || { name: sample.name, points: [] };
  const last = source.points[source.points.length - 1];
  if (last && BigInt(sample.t_ns) <= BigInt(last.t_ns)) return;
  source.name = sample.name;
  source.points.push(sample);
  source.points.splice(0, Math.max(0, source.points.length - HISTORY));
  if (last) source.gap = Math.max(source.gap || 0, sample.utc_ms - last.utc_ms);
  source.seen = performance.now();
  sources.set(sample.source, source);
}

function sourcePart() {
  const part = make("div", "source");
  part.append(make("h3"), make("ul", "use"), make("p", "facts idle"));
  return part;
}

function metricItem() {
  const item = make("li");
  const name = make("span", "what");
  name.append(document.createTextNode(""), make("small"));
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const ground = document.createElementNS(SVG, "line");
  for (const [key, value] of [["x1", 0], ["x2", 120], ["y1", 20], ["y2", 20]]) ground.setAttribute(key, value);
  svg.append(ground, document.createElementNS(SVG, "polyline"));
  item.append(name, make("span", "value"), svg);
  return item;
}

// Rows of active entities, and names of entities that are idle in all samples.
function split(source, last) {
  const rows = [];
  const idle = new Set();
  for (const [metric, [label, unit, limit]] of Object.entries(METRICS)) {
    for (const [entity, value] of Object.entries(last.values[metric] || {})) {
      const own = entity === "all" || entity === "host" ? "" : entity;
      if (own && !source.points.some((p) => (p.values[metric] || {})[entity] > 0)) idle.add(own);
      else rows.push({ metric, label, unit, limit, entity, own, value });
    }
  }
  for (const row of rows) idle.delete(row.own);
  return [rows, [...idle]];
}

function drawSpark(line, points, metric, entity, limit) {
  const values = points.map((p) => (p.values[metric] || {})[entity]);
  const most = limit || Math.max(...values.filter((v) => v !== undefined), 0) || 1;
  const shown = [];
  values.forEach((value, n) => {
    if (value === undefined) return;
    // full width, for ten samples or more
    const x = (120 * (n + 1)) / Math.max(values.length, 10);
    shown.push(`${x.toFixed(1)},${(20 - 20 * Math.max(0, Math.min(1, value / most))).toFixed(2)}`);
  });
  line.querySelector("polyline").setAttribute("points", shown.join(" "));
}

function drawUse() {
  for (const [id, source] of sources) {
    if (performance.now() - source.seen > Math.max(5000, 3 * (source.gap || 0))) sources.delete(id);
  }
  synchronise(byId("sources"), [...sources].reverse(), ([id]) => id, sourcePart, (part, [, source]) => {
    const [title, list, rest] = part.children;
    setText(title, source.name);
    const [rows, idle] = split(source, source.points[source.points.length - 1]);
    synchronise(list, rows, (r) => `${r.metric} ${r.entity}`, metricItem, (item, r) => {
      const [name, value] = item.children;
      if (name.firstChild.data !== r.label) name.firstChild.data = r.label;
      setText(name.lastChild, r.own ? ` ${r.own}` : "");
      setText(value, r.unit === "%" ? `${r.value.toFixed(r.value < 10 ? 1 : 0)} %` : short(r.value, r.unit));
      drawSpark(item, source.points, r.metric, r.entity, r.limit);
    });
    rest.hidden = idle.length === 0;
    setText(rest, `Idle: ${idle.join(", ")}.`);
  });
  const newest = [...sources.values()].map((s) => s.points[s.points.length - 1]);
  if (!newest.length) return;
  const latest = newest.reduce((a, b) => (a.utc_ms > b.utc_ms ? a : b));
  const time = byId("sampled");
  if (time.dataset.tNs !== latest.t_ns) {
    time.dateTime = new Date(latest.utc_ms).toISOString();
    time.dataset.tNs = latest.t_ns;
    time.dataset.utcMs = latest.utc_ms;
    time.dataset.shownMs = performance.timeOrigin + performance.now();
  }
  drawAge();
}

function drawAge() {
  const time = byId("sampled");
  if (!time.dataset.utcMs) return;
  const age = (Date.now() - time.dataset.utcMs) / 1e3;
  setText(time, age < 10 ? "less than 10 s ago" : `${durationText(age)} ago`);
  time.className = age > 10 ? "bad" : "";
}

// --- patterns -------------------------------------------------------------------------------------
function patternTable(tracer) {
  const scroll = make("div", "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", `Patterns of ${tracer.name}`);
  const table = make("table");
  table.append(make("caption", "facts"), make("thead"), make("tbody"));
  const head = make("tr");
  for (const text of ["file", "", "pattern so far", "calls", "time"]) {
    const cell = make("th", text === "calls" || text === "time" ? "n" : "", text);
    cell.scope = "col";
    head.append(cell);
  }
  head.children[1].textContent = "direction";
  table.tHead.append(head);
  scroll.append(table);
  return scroll;
}

function drawPatterns(tracers) {
  byId("patterns-empty").hidden = tracers.length > 0;
  synchronise(byId("tracers"), tracers, (t) => t.source, patternTable, (scroll, tracer) => {
    const table = scroll.firstChild;
    const lost = tracer.lost ? `, ${tracer.lost} lost` : "";
    setText(table.caption, `${tracer.name}: ${count(tracer.seen)} calls seen${lost}`);
    synchronise(table.tBodies[0], tracer.files, (f) => `${f.path} ${f.direction}`, () => row(5), (line, f) => {
      const texts = [f.path, f.direction, f.sentence || "not classified yet", count(f.calls), f.time_ns ? durationText(f.time_ns / 1e9) : ""];
      texts.forEach((text, n) => setText(line.children[n], text));
      line.children[2].className = "long";
      line.children[3].className = line.children[4].className = "n";
    });
  });
}

// --- ended runs, findings ----------------------------------------------------------------------
const ended = new Map();
const findings = new Map();

function addItems(map, items) {
  for (const item of items) if (!map.has(item.id)) map.set(item.id, item);
  while (map.size > 200) map.delete(map.keys().next().value);
}

function certificateText(disks) {
  if (!disks.length) return "no emulated disk";
  const bad = disks.filter((d) => !d.valid);
  return bad.length ? bad.map((d) => `${d.disk}: ${d.reason || "not delivered"}`).join("; ") : `${disks.length} delivered as specified`;
}

function drawEnded(items) {
  addItems(ended, items);
  byId("ended-empty").hidden = ended.size > 0;
  byId("ended-table").hidden = ended.size === 0;
  synchronise(byId("ended-rows"), [...ended.values()].reverse(), (e) => e.id, () => row(6), (line, e) => {
    const state = e.state === "finished" && !e.valid ? "not valid" : e.state;
    const texts = [`${e.study} ${e.run_id}`, levelsOf(e.levels), state, e.wall_s === null ? "" : `${Number(e.wall_s).toPrecision(3)} s`, certificateText(e.disks), e.reason];
    texts.forEach((text, n) => setText(line.children[n], text));
    line.children[2].className = e.valid ? "good" : "bad";
    line.children[1].className = line.children[5].className = "long";
    line.children[4].className = e.disks.some((d) => !d.valid) ? "bad long" : "long";
  });
}

function drawFindings(items) {
  addItems(findings, items);
  byId("found-empty").hidden = findings.size > 0;
  synchronise(byId("found-list"), [...findings.values()].reverse(), (f) => f.id, (f) => {
    const item = make("li", f.severity);
    const time = make("time", "", clock(f.utc_ms));
    time.dateTime = new Date(f.utc_ms).toISOString();
    const weight = f.severity === "info" ? "" : `${f.severity}: `;
    item.append(time, document.createTextNode(weight + f.text), make("span", "where", ` ${f.study}`));
    return item;
  }, () => {});
}

// --- nodes and disks ------------------------------------------------------------------------------
function drawNodes(state) {
  const seconds = previous ? (state.t_ns - previous.t_ns) / 1e9 : 0;
  const shown = [];
  for (const cluster of state.clusters) {
    const past = previous && previous.clusters.find((c) => c.cluster === cluster.cluster);
    const section = make("div");
    section.append(make("h3", "", cluster.cluster));
    const running = cluster.nodes.filter((n) => n.state === "running").length;
    const fair = cluster.jain_index ? ` · fairness ${cluster.jain_index.toFixed(3)} over ${cluster.jain_nodes}` : "";
    section.append(make("p", "facts", `${running} of ${cluster.nodes.length} nodes running · ${cluster.runtime}${fair}`));
    const cards = make("div", "cards");
    for (const node of cluster.nodes) {
      cards.append(nodeCard(node, past && past.nodes.find((n) => n.name === node.name), seconds));
    }
    section.append(cards);
    shown.push(section);
  }
  if (!shown.length && !state.disks.length) shown.push(make("p", "empty", "Nothing is up: penstock nodes up PLATFORM.yaml, or POST /api/v1/clusters."));
  byId("clusters").replaceChildren(...shown);
  byId("disks").hidden = state.disks.length === 0;
  byId("disks").querySelector(".cards").replaceChildren(...state.disks.map((disk) => {
    const past = previous && previous.disks.find((d) => d.disk_id === disk.disk_id);
    const card = make("article", "card");
    card.append(make("h3", "", disk.mount));
    const list = make("div", "meters");
    diskMeters(list, "", disk, past, seconds);
    card.append(list);
    return card;
  }));
  previous = state;
}

const handlers = {
  state: drawNodes,
  now: (value) => { running = value; drawRunning(); },
  experiments: (value) => { experiments = value; drawExperiments(); },
  use: (value) => { addSample(value); drawUse(); },
  history: (value) => { sources.clear(); value.flat().forEach(addSample); drawUse(); },
  patterns: drawPatterns,
  ended: drawEnded,
  found: drawFindings,
};

let last = null;
let connected = false;
let userName = "";

// with a user's token, the page shows experiments and hides the sections of the host
function setUser(user) {
  userName = user;
  document.body.classList.toggle("of-user", Boolean(user));
}

handlers.who = (value) => setUser(value.user || "");

function handle(message) {
  let name = "";
  let data = "";
  let id = null;
  for (const line of message.split("\n")) {
    if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data = line.slice(6);
  }
  if (handlers[name] && data) handlers[name](JSON.parse(data));
  if (id !== null) last = id;
  if (name && !connected) {
    connected = true;
    showState(userName ? `Live: experiments of ${userName}, and shared ones.` : "Live.", "on");
  }
}

async function follow(token) {
  const response = await request("/api/v1/live", token, last === null ? {} : { "Last-Event-ID": last });
  if (response === null) {
    last = null;
    return false;
  }
  setUser("");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the stream ended");
    text += value;
    const messages = text.split("\n\n");
    text = messages.pop();
    messages.forEach(handle);
  }
}

async function keepConnected(token) {
  for (;;) {
    try {
      if (!(await follow(token))) return;
    } catch (error) {
      if (connected || last === null) showState(`The server does not answer (${error.message}); trying again.`, "off");
    }
    connected = false;
    previous = null;
    await new Promise((resolve) => setTimeout(resolve, 1500));
  }
}

setInterval(() => { drawRunning(); drawUse(); if (experiments.length) drawExperiments(); }, 1000);
withToken(keepConnected);
