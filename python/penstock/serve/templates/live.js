// The page asks /api/v1/live with the token and draws every state; rates are differences between two of them.
const at = (id) => document.getElementById(id);
const units = ["", "k", "M", "G", "T"];
let before = null;

function short(value, unit) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  let n = 0;
  while (Math.abs(value) >= 999.5 && n < units.length - 1) { value /= 1000; n += 1; }
  const digits = value === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[n]}${unit}`;
}

const binary = (bytes) => bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(0)} MiB`;

function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

// one line: what (and something beside it), a bar where there is a limit, the value
function meter(list, what, value, limit, text, limitText, beside) {
  const name = make("span", "what", what);
  if (beside) name.append(make("span", "", ` ${beside}`));
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
  const asked = link.asked || {};
  const chips = [];
  for (const [way, before] of [["out", ""], ["in", "in_"]]) {
    const delay = asked[`${before}delay`];
    if (delay && delay.mean_s > 0) {
      const jitter = delay.jitter_s > 0 ? ` ± ${short(delay.jitter_s * 1e3, "ms")} ${delay.distribution}` : "";
      chips.push(make("span", "chip", `${way} ${short(delay.mean_s * 1e3, "ms")}${jitter}`));
    }
    for (const share of ["loss", "duplicate", "corrupt", "reorder"]) {
      const value = asked[before + share];
      if (value > 0) chips.push(make("span", "chip warn", `${way} ${share} ${(value * 100).toPrecision(2)} %`));
    }
  }
  group(list, make("span", "", `network ${name}`), ...chips);
  for (const way of ["out", "in"]) {
    const bits = rate(link, then, `${way}_bytes`, seconds);
    const limit = asked[`${way}_bps`];
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
    else if (key === "bad_space") text = `${value.share * 100} % bad`;
    else if (value === false) text = `no ${text}`;
    else if (typeof value === "object") text = text;
    chips.push(make("span", "chip warn", text));
  }
  return chips;
}

function diskMeters(list, title, disk, then, seconds) {
  const stats = disk.stats || null;
  const past = then ? then.stats : null;
  const found = disk.now || {};
  const limits = found.limits || {};
  group(list, make("span", "", title), ...(disk.profile ? [make("span", "chip", disk.profile)] : []), ...diskFeatures(found));
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

function draw(state) {
  const seconds = before ? (state.t_ns - before.t_ns) / 1e9 : 0;
  const shown = [];
  for (const cluster of state.clusters) {
    const past = before && before.clusters.find((c) => c.cluster === cluster.cluster);
    const section = make("section");
    section.append(make("h2", "", cluster.cluster));
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
  at("clusters").replaceChildren(...shown);
  at("disks").hidden = state.disks.length === 0;
  at("disks").querySelector(".cards").replaceChildren(...state.disks.map((disk) => {
    const past = before && before.disks.find((d) => d.disk_id === disk.disk_id);
    const card = make("article", "card");
    card.append(make("h3", "", disk.mount));
    const list = make("div", "meters");
    diskMeters(list, "", disk, past, seconds);
    card.append(list);
    return card;
  }));
  before = state;
}

async function follow(token) {
  const answer = await asked("/api/v1/live", token);
  if (answer === null) return false;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return true;
    text += value;
    const messages = text.split("\n\n");
    text = messages.pop();
    for (const message of messages) {
      const data = message.split("\n").find((line) => line.startsWith("data: "));
      if (data) {
        draw(JSON.parse(data.slice(6)));
        say(`Live; last seen ${new Date().toLocaleTimeString()}.`, "on");
      }
    }
  }
}

async function stay(token) {
  for (;;) {
    try {
      if (!(await follow(token))) return;
    } catch (error) {
      say(`The server does not answer (${error.message}); trying again.`, "off");
    }
    before = null;
    await new Promise((resolve) => setTimeout(resolve, 1500));
  }
}

withToken(stay);
