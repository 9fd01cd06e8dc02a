#!/usr/bin/env python3
"""Figures of a long trace: size of the page, time and memory to build it, zoom steps, responses of `serve`.

Creates a bundle of 100 million events (`--quick`: 2 million; `--bundle` uses an existing one) in the
published format: a file read at random, one read in order, one with a hot set and writes, eight threads.
Builds its page in a separate process. Headless Chromium zooms and pans in every figure, one step after
another, timed by the script around drawing. A server is queried for views from the complete trace down to
single requests. Prints (as JSON with `--json`) rows of case, engine, metric, value, unit, low, high, n.

Exit status 3 if a goal is missed: page at most 20 MB, zoom steps at most 100 ms (95th percentile, slowest).
Planted failure: a page of more than 20 MB whose steps take 150 ms longer; exit status 1 if either is not
detected. Zoom steps need chromium; without it they are `not run`.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.state import runtime_dir

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record

PAGE_MB = 20.0
STEP_MS = 100.0
PLANTED_MS = 150
SLOWEST = "slowest step"
PART = 1_000_000
START_NS = 10**12
SPAN = 64 << 30

Row = dict[str, Any]


def make_bundle(path: Path, n: int) -> None:
    """A bundle of n events in order of time."""
    path.mkdir(parents=True)
    rng = np.random.default_rng(4)
    writer = None
    for first in range(0, n, PART):
        count = min(PART, n - first)
        table = events(rng, first, count, n)
        if writer is None:
            encodings = dict.fromkeys(("t_ns", "seq", "latency_ns"), "DELTA_BINARY_PACKED")
            text = [c for c in table.column_names if c not in encodings]
            writer = pq.ParquetWriter(
                path / "io_events.parquet",
                table.schema,
                compression="zstd",
                use_dictionary=text,
                column_encoding=encodings,
            )
        writer.write_table(table, row_group_size=PART)
    assert writer is not None
    writer.close()
    files = [{"file_id": i, "path": f"/data/file{i}"} for i in (1, 2, 3)]
    pq.write_table(pa.Table.from_pylist(files), path / "files.parquet")
    end_ns = START_NS + n * 1000
    spans = [("workload", START_NS, end_ns), ("load", START_NS, START_NS + n * 300)]
    phases = [{"phase_id": p, "start_ns": a, "end_ns": b} for p, a, b in spans]
    pq.write_table(pa.Table.from_pylist(phases), path / "phases.parquet")
    receipt = {"mode": "trace", "seen": n, "kept": n, "filtered": 0, "lost": 0}
    manifest = {
        "schema": "penstock/bundle/1",
        "command": ["generated"],
        "closing": "Generated events.",
        "receipts": {"trace": receipt},
        "times": {"start_ns": START_NS, "end_ns": end_ns},
    }
    (path / "manifest.json").write_text(json.dumps(manifest))


def events(rng: np.random.Generator, first: int, count: int, n: int) -> pa.Table:
    """Events first..first+count of n: 55 % random on file 1, 30 % in order on 2, the rest a hot set on 3."""
    draw = rng.random(count)
    file_id = np.where(draw < 0.55, 1, np.where(draw < 0.85, 2, 3))
    number = first + np.arange(count)
    hot = (rng.zipf(1.3, count) % (1 << 20)) * 4096
    offset = np.where(
        file_id == 1,
        rng.integers(0, SPAN // 4096, count) * 4096,
        np.where(file_id == 2, (number * (SPAN // n)) // 4096 * 4096, hot),
    )
    write = (file_id == 3) & (rng.random(count) < 0.5)
    names = pa.array(["pread64", "pwrite64"])
    directions = pa.array(["read", "write"])
    codes = pa.array(write.astype(np.int8))
    tid = pa.array((100 + number % 8).astype(np.int64))
    return pa.table(
        {
            "t_ns": pa.array(START_NS + number * 1000 + rng.integers(0, 900, count)),
            "seq": pa.array(number.astype(np.uint64)),
            "op": pa.DictionaryArray.from_arrays(codes, names),
            "direction": pa.DictionaryArray.from_arrays(codes, directions),
            "file_id": pa.array(file_id.astype(np.int64)),
            "offset_bytes": pa.array(offset.astype(np.int64)),
            "size_bytes": pa.array(np.full(count, 4096, np.int64)),
            "done_bytes": pa.array(np.full(count, 4096, np.int64)),
            "errno": pa.array(np.zeros(count, np.int64)),
            "latency_ns": pa.array(rng.lognormal(9, 0.7, count).astype(np.int64)),
            "pid": pa.array(np.full(count, 100, np.int64)),
            "tid": tid,
            "cgroup_id": pa.array(np.full(count, 7, np.uint64)),
            "flags": pa.array(np.zeros(count, np.int64)),
        }
    )


_BUILD = """
import resource, sys, time
from pathlib import Path
from penstock.analyse.traces.traced_run import TracedRun
from penstock.report.trace.page import write_trace_report
begun = time.monotonic()
print(write_trace_report(TracedRun(Path(sys.argv[1]))))
print(time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def row(case: str, metric: str, unit: str, values: list[float]) -> Row:
    return record.row(case, "", metric, values, unit)


def size_of(page: Path) -> Row:
    return record.at_most(row("page", "size", "MB", [page.stat().st_size / 1e6]), PAGE_MB)


def build(bundle: Path) -> tuple[Path, list[Row]]:
    """Build the page; return its path and costs."""
    argv = [sys.executable, "-c", _BUILD, str(bundle)]
    output = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split("\n")
    seconds, peak = map(float, output[1].split())
    page = Path(output[0])
    events_of = pq.read_metadata(bundle / "io_events.parquet").num_rows
    return page, [
        row("page", "events", "1", [float(events_of)]),
        size_of(page),
        row("page", "build", "s", [seconds]),
        row("page", "peak memory", "MiB", [peak]),
    ]


#: runs in a copy of the page: every figure in turn, zoom in, pan, zoom out; times of the page's own
#: drawing
_STEPS = """
(async () => {
  const steps = [];
  let unpacked = 0;
  for (const figure of penstockFigures) {
    const begun = performance.now();
    await figure.load();
    unpacked += performance.now() - begun;
    for (const axis of ["number", "time"]) {
      figure.canvases[axis].scrollIntoView();
      const time = (what) => {
        const start = performance.now();
        what();
        figure.drawNow();
        figure.canvases[axis].getContext("2d").getImageData(0, 0, 1, 1);
        steps.push(performance.now() - start);
      };
      for (let i = 0; i < 8; i++) time(() => figure.zoom(axis, 0.6, 0.3, 0.6));
      for (let i = 0; i < 4; i++) time(() => figure.shift(axis, 0.2, -0.1));
      for (let i = 0; i < 8; i++) time(() => figure.zoom(axis, 1.7, 0.5, 0.5));
      time(() => figure.setView(axis, figure.full[axis]));
    }
  }
  const body = JSON.stringify({steps, unpacked});  // how long each took [ms]
  await fetch("http://127.0.0.1:PORT/", {method: "POST", body});
})();
"""


#: the planted page: its first figure draws more slowly
_SLOW = """
penstockFigures.splice(1);
for (const figure of penstockFigures) {
  const draw = figure.drawNow.bind(figure);
  figure.drawNow = () => {
    const start = performance.now();
    while (performance.now() - start < SLOW_MS);
    draw();
  };
}
"""


def planted_page(page: Path, place: Path) -> Path:
    """The page with twice its allowed size, and slow steps."""
    copy = place / "planted.html"
    text = page.read_text(encoding="utf-8")
    at = text.rindex("</body>")
    slow = f"<script>{_SLOW.replace('SLOW_MS', str(PLANTED_MS))}</script>"
    much = f"<!--{'x' * round(PAGE_MB * 1e6)}-->"
    copy.write_text(text[:at] + slow + much + text[at:], encoding="utf-8")
    return copy


def zoom_steps(page: Path, seconds: float = 240) -> list[Row]:
    """Times of drawing after each step, in headless Chromium; empty without it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
    if browser is None:
        print("zoom steps: not run (no chromium)", file=sys.stderr)
        return []
    answers: list[Any] = []
    answered = threading.Event()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answers.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()
            answered.set()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        text = page.read_text(encoding="utf-8")
        # only the copy may connect, and only to this bench
        text = text.replace(
            "img-src data:", f"img-src data:; connect-src http://127.0.0.1:{port}", 1
        )
        place = text.rindex("</body>")
        script = _STEPS.replace("PORT", str(port))
        copy.write_text(
            text[:place] + f"<script>{script}</script>" + text[place:], encoding="utf-8"
        )
        argv = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
        argv += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
        argv += ["--disable-sync", f"--user-data-dir={folder}/profile", "--window-size=1280,1600"]
        argv += ["--remote-debugging-port=0", copy.as_uri()]
        quiet = subprocess.DEVNULL
        running = subprocess.Popen(argv, stdout=quiet, stderr=quiet, start_new_session=True)
        try:
            if not answered.wait(seconds):
                raise SystemExit(f"zoom steps: Chromium did not answer in {seconds:.0f} s")
        finally:
            running.terminate()
            running.wait(20)
            server.shutdown()
            time.sleep(0.5)
            shutil.rmtree(f"{folder}/profile", ignore_errors=True)
    steps = answers[0]["steps"]
    return [
        row("zoom", "step", "ms", steps),
        with_goal("step, 95th percentile", float(np.quantile(steps, 0.95)), len(steps)),
        with_goal(SLOWEST, max(steps), len(steps)),
        row("zoom", "unpacking all figures", "ms", [answers[0]["unpacked"]]),
    ]


def with_goal(metric: str, value_ms: float, n: int) -> Row:
    return record.at_most({**row("zoom", metric, "ms", [value_ms]), "n": n}, STEP_MS)


def served(bundle: Path) -> list[Row]:
    """Response times of `penstock serve` from the complete trace down to single requests."""
    argv = [sys.executable, "-m", "penstock", "serve", str(bundle), "--port", "0"]
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    try:
        address = running.stdout.readline().strip().rstrip("/")
        (state_file,) = runtime_dir().glob(f"serve-{running.pid}.json")
        token = json.loads(state_file.read_text())["token"]
        files = json.loads(get(f"{address}/api/traces/0/files", token))
        rows = []
        for axis in ("number", "time"):
            file = files[0]
            end = sum(file["drawn"]) if axis == "number" else file["last_ns"] - START_NS
            begin_s = time.monotonic()
            query_view(address, token, file, axis, 0, end)
            if axis == "number":
                rows.append(row("serve", "index of a file", "s", [time.monotonic() - begin_s]))
            for zoom in (1, 4, 16, 64, 1024, 1 << 20):
                times = []
                for place in (0.1, 0.35, 0.6, 0.85):
                    x0 = place * (end - end / zoom)
                    begin_s = time.monotonic()
                    query_view(address, token, file, axis, x0, x0 + max(end / zoom, 4))
                    times.append(1e3 * (time.monotonic() - begin_s))
                rows.append(row("serve", f"view over {axis}, zoom {zoom}", "ms", times))
        return rows
    finally:
        running.terminate()
        running.wait(20)


def query_view(address: str, token: str, file: Row, axis: str, x0: float, x1: float) -> None:
    query = {"axis": axis, "x0": x0, "x1": x1, "y0": 0, "y1": SPAN, "columns": 880, "rows": 300}
    url = f"{address}/api/traces/0/files/{file['file_id']}/view?{urllib.parse.urlencode(query)}"
    get(url, token)


def get(url: str, token: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        content: bytes = answer.read()
    return content


def planted(page: Path, place: Path) -> dict[str, bool | None]:
    """True if the planted page is detected: too large, and too slow."""
    copy = planted_page(page, place)
    steps = [r for r in zoom_steps(copy) if "verdict" in r and r["metric"] != SLOWEST]
    slow = steps[0]["verdict"] == record.MISSED if steps else None
    large = size_of(copy)["verdict"] == record.MISSED
    return {"a page of more than 20 MB": large, f"steps {PLANTED_MS} ms longer": slow}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--quick", action="store_true", help="2 million events")
    parser.add_argument("--bundle", type=Path, help="take this bundle instead of making one")
    parser.add_argument("--keep", type=Path, help="leave the made bundle there")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    n = 2_000_000 if arguments.quick else arguments.events
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        bundle = arguments.bundle or arguments.keep or Path(folder) / "bundle"
        if not bundle.exists():
            print(f"making {n:,} events", file=sys.stderr)
            make_bundle(bundle, n)
        page, rows = build(bundle)
        rows += zoom_steps(page)
        rows += served(bundle)
        detected = planted(page, Path(folder))
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        for r in rows:
            print(
                f"{r['case']:<7}{r['metric']:<30}{r['value']:>12,.4g} {r['unit']:<4}"
                f"{r['low']:>12,.4g}{r['high']:>12,.4g}  n={r['n']}"
            )
    missed = [r for r in rows if r.get("verdict") == record.MISSED]
    for r in missed:
        print(f"missed: {r['metric']} {r['value']:.3g}, {r['bar']}", file=sys.stderr)
    for failure, seen in detected.items():
        verdict = {True: "found", False: "NOT FOUND", None: "not run"}[seen]
        print(f"planted, {failure}: {verdict}", file=sys.stderr)
    record.keep(arguments.record, rows, detected)
    sys.stdout.flush()
    os._exit(1 if False in detected.values() else 3 if missed else 0)


if __name__ == "__main__":
    main()
