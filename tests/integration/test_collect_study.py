"""Studies with collectors: scraped exporter, pushed line protocol, polled power unit, receiver for nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.archive.runs import bundles
from penstock.parts.monitoring.simulated_pdu import OUTLET
from tests.support import commands

from .node_ground import NODES, Ground, one_ground

__all__ = ["one_ground"]  # a fixture

pytestmark = [*NODES]

EXPORTER = """
import http.server, itertools
shown = itertools.count(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(f"shown_total {next(shown)}\\n".encode())
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
#: pushes 20 steps of 0.1 s with their scheduled times; the last one twice
PUSHES = """
import os, sys, time, urllib.request
to, token = (os.environ["PENSTOCK_COLLECT_STEPS" + end] for end in ("", "_TOKEN"))
begin_ns = time.time_ns()
def push(step, due_ns):
    text = f"step,size=s{sys.argv[1]} done={step}i {due_ns}".encode()
    for _ in range(1 + (step == 19)):
        asked = urllib.request.Request(to + "/write", text, {"Authorization": "Token " + token})
        urllib.request.urlopen(asked).close()
for step in range(20):
    due_ns = begin_ns + step * 10**8
    time.sleep(max(0, due_ns - time.time_ns()) / 1e9)
    push(step, due_ns)
"""
STUDY = """
penstock: 1
name: collected
question: Do collectors work in the runs of a study?
factors: {size: {levels: [1, 2]}}
design: {replicates: 1}
platform: {nodes: [{name: n}]}
workload: {command: "PYTHON PUSHES {size}"}
observers:
  monitor: {interval: 200ms}
  collect:
    shown:
      type: scrape
      interval_s: 0.1
      targets: [{url: "http://127.0.0.1:EXPORTER/metrics", instance: it}]
    steps: {type: influxdb}
    power:
      type: snmp
      host: 127.0.0.1
      port: UNIT
      interval_s: 0.2
      outlets: [{oid: OID, metric: simulated_power, labels: {outlet: "0"}, unit: W, scale: 0.1}]
    nobody: {type: scrape, interval_s: 0.1, targets: ["http://127.0.0.1:9/metrics"]}
responses:
  t: {from: wall_s, unit: s, better: lower}
  last: {from: {series: step_done, take: last}, unit: "1", better: higher}
  steps: {from: {series: step_done / step_done, take: sum}, unit: "1", better: higher}
"""


@contextlib.contextmanager
def first_line(argv: list[str]) -> Iterator[str]:
    """Run a process; yields its first line of output."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.terminate()
            process.wait(60)


def penstock_command(argv: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *argv]
    return commands.run(command, env=env, capture_output=True, text=True, timeout=280)


def test_runs_of_a_study_have_collectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = sorted(p.name for p in Path("/sys/class/block").iterdir() if (p / "stat").exists())[0]
    unit = [sys.executable, "-m", "penstock.parts.monitoring.simulated_pdu", "--disk", disk]
    env = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}
    (tmp_path / "pushes.py").write_text(PUSHES)
    out = tmp_path / "out"
    with first_line([sys.executable, "-c", EXPORTER]) as exporter, first_line(unit) as unit_line:
        values = {
            "PYTHON": sys.executable,
            "PUSHES": str(tmp_path / "pushes.py"),
            "EXPORTER": exporter.strip(),
            "UNIT": str(json.loads(unit_line)["port"]),
            "OID": f'"{".".join(map(str, (*OUTLET, 0)))}"',
        }
        text = re.sub(r"\b[A-Z]{3,}\b", lambda m: values.get(m[0], m[0]), STUDY)
        (tmp_path / "s.study.yaml").write_text(text)
        completed = penstock_command(
            ["run", "--no-report", str(tmp_path / "s.study.yaml"), "-o", str(out), "--json"], env
        )
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert (result["planned_runs"], result["valid_runs"]) == (2, 2), result["left_out"]

    statements = [f["statement"] for f in result["findings"] if f["code"] == "collected-incomplete"]
    assert sum("The collector nobody did not bring" in statement for statement in statements) == 1
    assert not any("The collector steps" in statement for statement in statements)
    monkeypatch.setenv("PENSTOCK_STATE", env["PENSTOCK_STATE"])
    for bundle in bundles(out):
        receipt = bundle.manifest["receipts"]["collect"]
        assert receipt["cpu_ns"] > 0
        verdicts = {n: report["verdict"] for n, report in receipt["collectors"].items()}
        assert verdicts["steps"] == "complete"
        assert verdicts["nobody"] == "unusable"
        # each step is stored once and in order; the repeated one is refused
        name = f"{bundle.manifest['study_id']}/{bundle.manifest['run_id']}"
        steps = penstock.series(name, "step_done", labels=["size"])
        size = f"s{bundle.manifest['levels']['size']}"
        assert [size in c for c in steps.columns] == [True]
        assert steps.iloc[:, 0].tolist() == list(range(20))
        responses = bundle.manifest["responses"]
        assert responses["last"] == {"value": 19.0, "unit": "1"}
        # 0 / 0 gives no value
        assert responses["steps"] == {"value": 19.0, "unit": "1"}
        assert receipt["collectors"]["steps"]["refused"] == {"duplicate": 1}
        # the exporter counts its requests
        scrapes = penstock.series(name, "shown_total", partial=True).iloc[:, 0].dropna()
        assert (scrapes.diff().dropna() >= 1).all()
        assert len(scrapes) >= 5
        power = penstock.series(name, "simulated_power", partial=True).iloc[:, 0].dropna()
        assert power.between(100, 170).all()
        assert len(power) >= 2
        # samples of the monitor have the same clock
        cpu = penstock.series(name, "cpu_user", partial=True)
        assert cpu.index.min() <= steps.index.max()
        assert steps.index.min() <= cpu.index.max()
        token = re.compile(r"PENSTOCK_COLLECT|Token ")
        assert not token.search((bundle.path / "manifest.json").read_text())

    svg = tmp_path / "steps.svg"
    argv = ["plot", f"{out}:r001", "lines", "-o", str(svg)]
    refused = penstock_command(argv, env)
    assert refused.returncode == 2
    assert "nobody is unusable" in refused.stderr
    # complete, although other collectors are not
    plotted = penstock_command([*argv, "--series", "step_done*"], env)
    assert plotted.returncode == 0, plotted.stderr
    assert svg.stat().st_size > 0


NODE_STUDY = """
penstock: 1
name: nodes
question: Does a node reach a receiver?
factors: {size: {levels: [1, 2]}}
design: {replicates: 1}
platform:
  nodes: [{name: a, interfaces: [{network: watch}]}, {name: b, interfaces: [{network: watch}]}]
  networks: [{name: watch, host: true, subnet: SUBNET.0/24}]
workload: {command: "{python} {study_dir}/pushes.py {size}-{node}", on: all}
observers:
  monitor: null
  collect: {steps: {type: influxdb, host: SUBNET.254}}
responses: {t: {from: wall_s, unit: s, better: lower}}
"""


def test_nodes_push_to_a_receiver_through_the_host_network(ground: Ground) -> None:
    (ground.where / "pushes.py").write_text(PUSHES)
    # parallel runs on this host have other subnets
    text = NODE_STUDY.replace("SUBNET", f"10.203.{os.getpid() % 256}")
    (ground.where / "n.study.yaml").write_text(text)
    out = ground.where / "out"
    completed = penstock_command(
        ["run", "--no-report", str(ground.where / "n.study.yaml"), "-o", str(out), "--json"],
        ground.environment,
    )
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert result["valid_runs"] == 2, result["left_out"]
    for bundle in bundles(out):
        points = pq.read_table(bundle.path / "points.parquet")
        rows = pq.read_table(bundle.path / "series.parquet").to_pylist()
        assert {r["metric"] for r in rows} == {"step_done"}
        # each node pushes all steps, under its own label
        assert len(rows) == 2
        assert points.num_rows == 40
