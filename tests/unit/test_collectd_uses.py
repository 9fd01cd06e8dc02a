"""What dashboards show of collectd's values: of lines that it sent, and of counters that are known."""

from __future__ import annotations

import http.server
import itertools
import json
import socket
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from penstock.observe.sampler.formulas import STATES, cpu_percent
from penstock.parts.monitoring.collectors.graphite import GraphiteReceiver
from penstock.parts.monitoring.collectors.runner import Collecting
from penstock.parts.monitoring.experiments.points import Batch, points
from penstock.parts.monitoring.experiments.recorded import recorded
from penstock.parts.monitoring.experiments.targets import Target
from penstock.parts.monitoring.queries import remote_query as elsewhere
from penstock.parts.monitoring.queries.remote_query import Question
from penstock.parts.monitoring.usage.dashboards import DASHBOARDS, names_of, rows_of
from penstock.parts.monitoring.usage.run_usage import run_uses
from penstock.parts.monitoring.usage.usage import uses_of_points
from penstock.testing import MemorySink
from tests.unit.test_collectors import until
from tests.unit.test_dashboards import T0, TICKS, S, experiment, value

GOLDEN = Path(__file__).parents[1] / "golden/collectd"
#: collectd's names of states
THEIRS = {"iowait": "wait", "irq": "interrupt"}


def lines(form: str) -> bytes:
    return (GOLDEN / f"{form}.txt").read_bytes()


def received(text: bytes) -> MemorySink:
    """What the receiver of Graphite's lines makes of them."""
    sink = MemorySink()
    receiver = GraphiteReceiver("collectd", {"port": 0, "pickle_port": None})
    with Collecting({"collectd": receiver}, sink):
        with socket.create_connection(receiver.address) as sent:
            sent.sendall(text)
        until(lambda: receiver.intake.receipt.received == len(text.splitlines()))
    assert set(receiver.intake.receipt.refused) <= {"not finite"}, receiver.intake.receipt.errors
    return sink


def uses(text: bytes | str, **params: object) -> pd.DataFrame:
    sink = received(text if isinstance(text, bytes) else text.encode())
    batches = [sink.batches[key] for key in sorted(sink.batches)]
    return uses_of_points(recorded(batches, 0, 2_000_000_000 * S), params)


def truth() -> dict[int, dict[str, int]]:
    """By second and path, the counters that collectd sent as they are."""
    found: dict[int, dict[str, int]] = {}
    for path, number, second in map(str.split, lines("counters").decode().splitlines()):
        if "nan" not in number:
            found.setdefault(int(second), {})[path] = int(float(number))
    return found


def busy() -> list[float]:
    """Processors busy by the formula, from these."""
    sums = [
        {
            s: sum(v for p, v in now.items() if p.endswith(f".cpu-{THEIRS.get(s, s)}"))
            for s in STATES
        }
        for _, now in sorted(truth().items())
        if "node_a.cpu-1.cpu-idle" in now
    ]
    return [
        float(cpu_percent({s: float(new[s] - old[s]) for s in STATES}))
        for old, new in itertools.pairwise(sums)
    ]


@pytest.mark.parametrize("form", ["counters", "separate", "tags"])
def test_what_collectd_sent_is_on_the_dashboards(form: str) -> None:
    # would break if a form of its names were not understood, or another unit taken for its own
    frame = uses(lines(form), link_bps=125_000_000)
    host = "node.a" if form == "tags" else "node_a"
    assert names_of(DASHBOARDS["volumes"], frame) == [host]
    plots = {
        p.key: {x.name: x.value.tolist() for x in found}
        for p, found in rows_of(DASHBOARDS["volumes"], frame)[host]
    }
    assert plots["cpu"] == {"busy": pytest.approx(busy(), abs=1e-9)}
    assert len(plots["cpu"]["busy"]) >= 4
    whole = [now for _, now in sorted(truth().items()) if "node_a.disk-vda.disk_ops.read" in now]
    written = [now["node_a.disk-vda.disk_octets.write"] for now in whole]
    steps = [b - a for a, b in itertools.pairwise(written)]
    assert plots["throughput"]["vda write"] == pytest.approx(steps)
    assert any(steps)
    spent = [now["node_a.disk-vda.disk_io_time.io_time"] for now in whole]
    assert plots["io-time"]["vda"] == pytest.approx([b - a for a, b in itertools.pairwise(spent)])
    assert len(plots["disk"]["vda"]) == len(steps)
    through = [now["node_a.interface-eth0.if_octets.rx"] for _, now in sorted(truth().items())]
    used = [(b - a) / 1.25e6 for a, b in itertools.pairwise(through)]
    assert plots["network"]["eth0 in"] == pytest.approx(used)
    assert set(plots["load"]) == {"1 min", "5 min", "15 min"}
    free = [now["node_a.df-root.df_complex-free"] for _, now in sorted(truth().items())]
    assert plots["free"] == {"root": free}
    # of the OSD, of which every counter grew by 8, and each average by 0.25 s of 8
    assert plots["ceph-operations"] == {"osd.0 read": [8.0] * 6, "osd.0 write": [8.0] * 6}
    assert plots["ceph-throughput"] == {"osd.0 read": [8.0] * 6, "osd.0 write": [8.0] * 6}
    assert plots["ceph-latency"] == {"osd.0 write": [0.25 / 8] * 6}
    assert plots["ceph-store"] == {"osd.0 commit": [0.25 / 8] * 6}


def test_rates_show_what_the_counters_show() -> None:
    # of the same seconds of one daemon; the first rate of a series is none, of the next no interval is known
    frame, whole = uses(lines("rates")), uses(lines("counters"))
    assert set(frame["host"]) == {"node_a"}, "its prefix is no part of a host's name"
    found = value(frame, "cpu", "all", "busy")
    assert found == pytest.approx(busy()[1:], abs=1.0)
    assert len(found) == len(busy()) - 1
    for kind, entity, metric in (
        ("disk", "vda", "write_rate"),
        ("disk", "vda", "busy"),
        ("network", "eth0", "receive_rate"),
        ("ceph", "osd.0", "osd_writes"),
    ):
        counted = value(whole, kind, entity, metric)[1:]
        assert value(frame, kind, entity, metric) == pytest.approx(counted, rel=0.1, abs=1.0)
    assert value(frame, "ceph", "osd.0", "commit_latency") == [0.25 / 8] * 6
    assert value(frame, "load", "all", "1 min") == value(whole, "load", "all", "1 min")


def text(rows: Mapping[str, Iterable[float]], host: str = "node") -> str:
    """Values of each second from T0 on, as lines."""
    return "".join(
        f"{host}.{path} {number:f} {T0 // S + k}\n"
        for path, values in rows.items()
        for k, number in enumerate(values)
    )


def oracle(kind: str) -> dict[str, list[float]]:
    """IOStack's oracle as counters of one second, or as rates, or with processors in per cent."""
    state = {s: f"cpu-{THEIRS.get(s, s)}" for s in STATES}
    told = {
        "disk-sda.disk_io_time.io_time": 370,
        "disk-sda.disk_octets.write": 1e6,
        "interface-eth0.if_octets.tx": 20e6,
        "interface-eth0.if_octets.rx": 30e6,
    }
    if kind == "counters":
        steps = told | {f"cpu-{c}.{state[s]}": n / 4 for c in range(4) for s, n in TICKS.items()}
        return {path: [7000, 7000 + 4 * n, 7000 + 8 * n] for path, n in steps.items()}
    if kind == "rates":
        told |= {f"cpu-{c}.{state[s]}": n / 4 for c in range(4) for s, n in TICKS.items()}
        # the first interval is another one, in which less was done
        part = {path: [n / 3, n, n] for path, n in told.items()}
        return part | {f"cpu-{c}.cpu-idle": [90.5, 37.5, 37.5] for c in range(4)}
    share = {f"cpu.percent-{THEIRS.get(s, s)}": n / 4 for s, n in TICKS.items()}
    return {path: [n, n, n] for path, n in share.items()} | {
        path: [7000, 7000 + n, 7000 + 2 * n] for path, n in told.items()
    }


@pytest.mark.parametrize(("kind", "times"), [("counters", 4), ("rates", 1), ("percent", 1)])
def test_the_formulas_from_what_collectd_tells(kind: str, times: int) -> None:
    # would break with ticks taken for seconds, a rate for a counter, or one direction of the link forgotten
    frame = uses(text(oracle(kind)), link_bps=125e6 * times)
    assert value(frame, "cpu", "all", "busy") == pytest.approx([50.0, 50.0], abs=1e-6)
    # what was done in one second is told four times where counters are of four
    assert value(frame, "disk", "sda", "busy_of_time") == pytest.approx([37.0 * times] * 2)
    assert value(frame, "disk", "sda", "busy") == pytest.approx([37.0] * 2, abs=1e-6)
    assert value(frame, "network", "eth0", "used") == pytest.approx([40.0] * 2)
    assert value(frame, "network", "eth0", "used_out") == pytest.approx([16.0] * 2)
    assert value(frame, "disk", "sda", "write_rate") == pytest.approx([1e6 * times] * 2)


def test_a_minute_is_an_interval_as_well() -> None:
    # a rate of collectd is of all of its interval
    told = {
        "disk-sda.disk_octets.write": [0.25, 5e6, 3e6],
        "disk-sda.disk_io_time.io_time": [0.0, 0.0, 0.0],
    }
    minutes = "".join(
        f"n.{path} {number:f} {T0 // S + 60 * k}\n"
        for path, values in told.items()
        for k, number in enumerate(values)
    )
    assert value(uses(minutes), "disk", "sda", "write_rate") == pytest.approx([5e6, 3e6])


def test_counters_that_a_carbon_averaged_are_no_rates_and_a_restart_is_no_value() -> None:
    grows = [10.5, 20.5, 30.5, 40.5, 1.5, 11.5]
    told = {
        "disk-sda.disk_octets.read": grows,
        "disk-sda.disk_octets.write": grows,
        "disk-sda.disk_io_time.io_time": grows,
    }
    assert value(uses(text(told)), "disk", "sda", "read_rate") == pytest.approx([10.0] * 4)


def test_a_name_that_is_like_one_of_collectd_is_another_programs() -> None:
    names = ["host.cpu-0.idle", "cpu-0.cpu-user", "a.cpu-0.cpu-active", "app.load.factor.shortterm"]
    frame = uses("".join(f"{name} {k} {T0 // S + k}\n" for name in names for k in range(3)))
    assert frame.empty


def test_what_collectd_tells_is_no_program_of_the_run() -> None:
    table = points(
        metric=["n.cpu-0.cpu-user", "n.requests"],
        unit=["1/s", "1/s"],
        utc_ns=[T0, T0],
        float=[1.0, 2.0],
    )
    made = recorded([Batch("g", 0, table)], T0, T0 + 10 * S)
    frame = run_uses(experiment(), made, None)
    assert list(frame[frame["kind"] == "program"]["entity"]) == ["n.requests"]


class Render(http.server.BaseHTTPRequestHandler):
    """The render API of a Graphite that kept what collectd sent."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        series: dict[str, list[Any]] = {}
        for second, now in sorted(truth().items()):
            for path, number in now.items():
                series.setdefault(path, []).append([number, second])
        document = [
            {"target": path, "tags": {"name": path}, "datapoints": pairs}
            for path, pairs in series.items()
        ]
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None: ...


def test_what_was_fetched_from_a_graphite_is_on_the_dashboards() -> None:
    # would break if series of one answer were taken for one
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Render)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        question = Question.of({"server": "g", "query": "node_a.*.*", "metric": "hosts"})
        target = Target("g", "graphite", f"127.0.0.1:{server.server_address[1]}")
        kept = elsewhere.read(target, question, 0, 2_000_000_000 * S)
    finally:
        server.shutdown()
        server.server_close()
    assert set(kept.points["metric"].to_pylist()) == {"hosts"}
    frame = uses_of_points(recorded([Batch("g", 0, kept.points)], 0, 2_000_000_000 * S), {})
    assert value(frame, "cpu", "all", "busy") == pytest.approx(busy(), abs=1e-9)
    assert set(frame["host"]) == {"node_a"}
