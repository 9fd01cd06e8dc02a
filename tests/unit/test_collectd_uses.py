"""Values of collectd on dashboards: recorded lines, and counters with planted values."""

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
from penstock.parts.monitoring.queries import remote_query
from penstock.parts.monitoring.queries.remote_query import Question
from penstock.parts.monitoring.usage.dashboards import DASHBOARDS, names_of, rows_of
from penstock.parts.monitoring.usage.run_usage import run_uses
from penstock.parts.monitoring.usage.usage import uses_of_points
from penstock.testing import MemorySink
from tests.support.waiting import until
from tests.unit.test_dashboards import T0, TICKS, S, experiment, value

GOLDEN = Path(__file__).parents[1] / "golden/collectd"
#: collectd's names of states
COLLECTD_STATES = {"iowait": "wait", "irq": "interrupt"}


def lines(form: str) -> bytes:
    return (GOLDEN / f"{form}.txt").read_bytes()


def received(text: bytes) -> MemorySink:
    """Points that the Graphite receiver stores."""
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
    """Counters by second and path, as collectd sent them."""
    counters: dict[int, dict[str, int]] = {}
    for path, number, second in map(str.split, lines("counters").decode().splitlines()):
        if "nan" not in number:
            counters.setdefault(int(second), {})[path] = int(float(number))
    return counters


def busy() -> list[float]:
    """Processor use from these counters by the formula."""
    sums = [
        {
            s: sum(v for p, v in now.items() if p.endswith(f".cpu-{COLLECTD_STATES.get(s, s)}"))
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
    # fails if a form of its names is not recognized, or a unit is wrong
    frame = uses(lines(form), link_bps=125_000_000)
    host = "node.a" if form == "tags" else "node_a"
    assert names_of(DASHBOARDS["volumes"], frame) == [host]
    plots = {
        p.key: {x.name: x.value.tolist() for x in plot_lines}
        for p, plot_lines in rows_of(DASHBOARDS["volumes"], frame)[host]
    }
    assert plots["cpu"] == {"busy": pytest.approx(busy(), abs=1e-9)}
    assert len(plots["cpu"]["busy"]) >= 4
    complete = [now for _, now in sorted(truth().items()) if "node_a.disk-vda.disk_ops.read" in now]
    written = [now["node_a.disk-vda.disk_octets.write"] for now in complete]
    steps = [b - a for a, b in itertools.pairwise(written)]
    assert plots["throughput"]["vda write"] == pytest.approx(steps)
    assert any(steps)
    busy_ms = [now["node_a.disk-vda.disk_io_time.io_time"] for now in complete]
    assert plots["io-time"]["vda"] == pytest.approx([b - a for a, b in itertools.pairwise(busy_ms)])
    assert len(plots["disk"]["vda"]) == len(steps)
    received_bytes = [
        now["node_a.interface-eth0.if_octets.rx"] for _, now in sorted(truth().items())
    ]
    used = [(b - a) / 1.25e6 for a, b in itertools.pairwise(received_bytes)]
    assert plots["network"]["eth0 in"] == pytest.approx(used)
    assert set(plots["load"]) == {"1 min", "5 min", "15 min"}
    free = [now["node_a.df-root.df_complex-free"] for _, now in sorted(truth().items())]
    assert plots["free"] == {"root": free}
    # each counter of the OSD grew by 8, and each average by 0.25 s of 8
    assert plots["ceph-operations"] == {"osd.0 read": [8.0] * 6, "osd.0 write": [8.0] * 6}
    assert plots["ceph-throughput"] == {"osd.0 read": [8.0] * 6, "osd.0 write": [8.0] * 6}
    assert plots["ceph-latency"] == {"osd.0 write": [0.25 / 8] * 6}
    assert plots["ceph-store"] == {"osd.0 commit": [0.25 / 8] * 6}


def test_rates_agree_with_counters() -> None:
    # same seconds of one daemon; the first rate of a series is missing, the next has no interval
    frame, of_counters = uses(lines("rates")), uses(lines("counters"))
    assert set(frame["host"]) == {"node_a"}, "the prefix is no part of the host's name"
    percent = value(frame, "cpu", "all", "busy")
    assert percent == pytest.approx(busy()[1:], abs=1.0)
    assert len(percent) == len(busy()) - 1
    for kind, entity, metric in (
        ("disk", "vda", "write_rate"),
        ("disk", "vda", "busy"),
        ("network", "eth0", "receive_rate"),
        ("ceph", "osd.0", "osd_writes"),
    ):
        expected = value(of_counters, kind, entity, metric)[1:]
        assert value(frame, kind, entity, metric) == pytest.approx(expected, rel=0.1, abs=1.0)
    assert value(frame, "ceph", "osd.0", "commit_latency") == [0.25 / 8] * 6
    assert value(frame, "load", "all", "1 min") == value(of_counters, "load", "all", "1 min")


def text(rows: Mapping[str, Iterable[float]], host: str = "node") -> str:
    """Lines with a value for each second from T0 on."""
    return "".join(
        f"{host}.{path} {number:f} {T0 // S + k}\n"
        for path, values in rows.items()
        for k, number in enumerate(values)
    )


def oracle(kind: str) -> dict[str, list[float]]:
    """IOStack's reference values as counters, as rates, or with processors in per cent."""
    state = {s: f"cpu-{COLLECTD_STATES.get(s, s)}" for s in STATES}
    per_second = {
        "disk-sda.disk_io_time.io_time": 370,
        "disk-sda.disk_octets.write": 1e6,
        "interface-eth0.if_octets.tx": 20e6,
        "interface-eth0.if_octets.rx": 30e6,
    }
    if kind == "counters":
        steps = per_second | {
            f"cpu-{c}.{state[s]}": n / 4 for c in range(4) for s, n in TICKS.items()
        }
        return {path: [7000, 7000 + 4 * n, 7000 + 8 * n] for path, n in steps.items()}
    if kind == "rates":
        per_second |= {f"cpu-{c}.{state[s]}": n / 4 for c in range(4) for s, n in TICKS.items()}
        # a shorter first interval with less work
        values = {path: [n / 3, n, n] for path, n in per_second.items()}
        return values | {f"cpu-{c}.cpu-idle": [90.5, 37.5, 37.5] for c in range(4)}
    share = {f"cpu.percent-{COLLECTD_STATES.get(s, s)}": n / 4 for s, n in TICKS.items()}
    return {path: [n, n, n] for path, n in share.items()} | {
        path: [7000, 7000 + n, 7000 + 2 * n] for path, n in per_second.items()
    }


@pytest.mark.parametrize(("kind", "times"), [("counters", 4), ("rates", 1), ("percent", 1)])
def test_formulas_from_values_of_collectd(kind: str, times: int) -> None:
    # fails with ticks read as seconds, a rate as a counter, or one direction of the link missing
    frame = uses(text(oracle(kind)), link_bps=125e6 * times)
    assert value(frame, "cpu", "all", "busy") == pytest.approx([50.0, 50.0], abs=1e-6)
    # the counters have four times the work of one second in each second
    assert value(frame, "disk", "sda", "busy_of_time") == pytest.approx([37.0 * times] * 2)
    assert value(frame, "disk", "sda", "busy") == pytest.approx([37.0] * 2, abs=1e-6)
    assert value(frame, "network", "eth0", "used") == pytest.approx([40.0] * 2)
    assert value(frame, "network", "eth0", "used_out") == pytest.approx([16.0] * 2)
    assert value(frame, "disk", "sda", "write_rate") == pytest.approx([1e6 * times] * 2)


def test_rates_of_an_interval_of_one_minute() -> None:
    # a rate of collectd covers its complete interval
    rates = {
        "disk-sda.disk_octets.write": [0.25, 5e6, 3e6],
        "disk-sda.disk_io_time.io_time": [0.0, 0.0, 0.0],
    }
    minutes = "".join(
        f"n.{path} {number:f} {T0 // S + 60 * k}\n"
        for path, values in rates.items()
        for k, number in enumerate(values)
    )
    assert value(uses(minutes), "disk", "sda", "write_rate") == pytest.approx([5e6, 3e6])


def test_averaged_counters_are_no_rates() -> None:
    grows = [10.5, 20.5, 30.5, 40.5, 1.5, 11.5]
    averaged = {
        "disk-sda.disk_octets.read": grows,
        "disk-sda.disk_octets.write": grows,
        "disk-sda.disk_io_time.io_time": grows,
    }
    assert value(uses(text(averaged)), "disk", "sda", "read_rate") == pytest.approx([10.0] * 4)


def test_similar_names_do_not_belong_to_collectd() -> None:
    names = ["host.cpu-0.idle", "cpu-0.cpu-user", "a.cpu-0.cpu-active", "app.load.factor.shortterm"]
    frame = uses("".join(f"{name} {k} {T0 // S + k}\n" for name in names for k in range(3)))
    assert frame.empty


def test_values_of_collectd_are_no_metrics_of_the_program() -> None:
    table = points(
        metric=["n.cpu-0.cpu-user", "n.requests"],
        unit=["1/s", "1/s"],
        utc_ns=[T0, T0],
        float=[1.0, 2.0],
    )
    result = recorded([Batch("g", 0, table)], T0, T0 + 10 * S)
    frame = run_uses(experiment(), result, None)
    assert list(frame[frame["kind"] == "program"]["entity"]) == ["n.requests"]


class Render(http.server.BaseHTTPRequestHandler):
    """The render API of a Graphite that stored collectd's values."""

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


def test_values_fetched_from_graphite_are_on_the_dashboards() -> None:
    # fails if several series of one response are merged
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Render)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        question = Question.of({"server": "g", "query": "node_a.*.*", "metric": "hosts"})
        target = Target("g", "graphite", f"127.0.0.1:{server.server_address[1]}")
        fetched = remote_query.read(target, question, 0, 2_000_000_000 * S)
    finally:
        server.shutdown()
        server.server_close()
    assert set(fetched.points["metric"].to_pylist()) == {"hosts"}
    frame = uses_of_points(recorded([Batch("g", 0, fetched.points)], 0, 2_000_000_000 * S), {})
    assert value(frame, "cpu", "all", "busy") == pytest.approx(busy(), abs=1e-9)
    assert set(frame["host"]) == {"node_a"}
