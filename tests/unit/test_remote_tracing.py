"""One trace of nodes on two hosts with simulated workers and tracers."""

from __future__ import annotations

import contextlib
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.bundle import Bundle
from penstock.errors import BadInput, PenstockError
from penstock.host.probe.clock_offset import Offset
from penstock.parts.remote.cluster.coordinator import RemoteCluster
from penstock.parts.remote.running import trace_here, tracing
from tests.unit.test_trace_merge import trace
from tests.unit.test_trace_tables import calls

_CLOCKS = {"left": 5_000_000_000, "right": -7_000_000_000}


class Tracers:
    """Tracers of the hosts; a node of each host writes during the run. `fail` is a host without a tracer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fail = ""
        self.run_ns = 0
        self.active: dict[str, Sequence[str]] = {}
        self.observers: dict[str, Mapping[str, Any]] = {}
        self.offsets = dict.fromkeys(_CLOCKS, 0)

    def call_all(
        self, function: Callable[..., Any], arguments: Mapping[str, Sequence[Any]]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        assert all(host_arguments[0] == "lab" for host_arguments in arguments.values())
        kind = {f: f.__name__ for f in (trace_here.begin, trace_here.end, trace_here.read)}
        call = getattr(self, kind.get(function, "release"))
        replies = {
            host: call(host, *host_arguments[1:])
            for host, host_arguments in arguments.items()
            if host != self.fail
        }
        return replies, {host: "no tracer" for host in arguments if host not in replies}

    def begin(self, host: str, nodes: Sequence[str], observers: Mapping[str, Any]) -> None:
        self.active[host] = nodes
        self.observers[host] = observers

    def end(self, host: str) -> None:
        """Three writes, interleaved with those of the other host, and one after the run."""
        times_ns = self.run_ns + (host == "right") * 1000 + 2000 * np.array([0, 1, 2, 10**9])
        events = calls(4, "pwrite64", t_ns=times_ns + _CLOCKS[host])
        host_trace = trace(self.folder, host, events, Offset(0, 0, 8))
        bundle = Bundle.open(host_trace.bundle)
        bundle.manifest["nodes"] = {str(group): node for group, node in host_trace.nodes.items()}
        bundle.amend()
        with tarfile.open(self.folder / f"{host}.tar", "w") as tar:
            tar.add(host_trace.bundle, arcname=trace_here.BUNDLE)

    def read(self, host: str, at: int) -> bytes:
        return (self.folder / f"{host}.tar").read_bytes()[at : at + 1000]

    def release(self, host: str) -> None:
        self.active.pop(host, None)

    def clock_offset(self, host: str) -> Offset:
        self.offsets[host] += 1
        return Offset(_CLOCKS[host], 100 * self.offsets[host], 15)


@pytest.fixture(name="tracers")
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracers:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    (tmp_path / "there").mkdir()
    tracers = Tracers(tmp_path / "there")

    @contextlib.contextmanager
    def pool(_: RemoteCluster, *, only: set[str]) -> Iterator[Tracers]:
        assert only <= set(_CLOCKS)
        yield tracers

    def run(_: RemoteCluster, _pool: Tracers, nodes: Sequence[str], argv: Sequence[str]) -> int:
        assert {n for host_nodes in tracers.active.values() for n in host_nodes} == set(nodes)
        tracers.run_ns = time.monotonic_ns()
        time.sleep(0.01)
        return 3 if argv == ["fails"] else 0

    monkeypatch.setattr(RemoteCluster, "pool", pool)
    monkeypatch.setattr(RemoteCluster, "execute_in", run)
    return tracers


LAB = RemoteCluster(
    "lab", "key", "192.0.2.1", (), {"left-0": "left", "left-1": "left", "right-0": "right"}, {}
)


def test_the_trace_has_the_times_of_this_host(tmp_path: Path, tracers: Tracers) -> None:
    output = tmp_path / "traced"
    observers = {"trace": {"mode": "trace", "endings": [".db"]}}
    status, trace_summary = tracing.trace_nodes(
        LAB, ["*-0"], output, ["fails"], observers=observers
    )
    assert (status, trace_summary.bundle, trace_summary.events) == (3, output, 6)
    run = TracedRun(output)
    start_ns, end_ns = run.manifest["times"]["start_ns"], run.manifest["times"]["end_ns"]
    events = run.table("io_events", ["t_ns", "file_id"]).to_pydict()
    assert all(start_ns < t < end_ns for t in events["t_ns"])
    assert events["file_id"][::2] != events["file_id"][1::2]
    assert [h["offset_bound_ns"] for h in run.manifest["hosts"].values()] == [200, 200]
    assert (run.manifest["state"], run.manifest["command"]) == ("failed", ["fails"])
    assert tracers.observers == dict.fromkeys(_CLOCKS, observers)
    assert tracers.active == {}


def test_a_failed_trace_leaves_nothing(tmp_path: Path, tracers: Tracers) -> None:
    tracers.fail = "right"
    with pytest.raises(PenstockError, match="host right: no tracer"):
        tracing.trace_nodes(LAB, ["*"], tmp_path / "traced", seconds=0.01)
    assert tracers.active == {}
    assert not list(tmp_path.glob("*traced*"))


def test_an_existing_bundle_is_not_replaced(tmp_path: Path, tracers: Tracers) -> None:
    with pytest.raises(BadInput, match="exists already"):
        tracing.trace_nodes(LAB, ["*"], tmp_path)
    with pytest.raises(BadInput, match="no node 'x'"):
        tracing.trace_nodes(LAB, ["x"], tmp_path / "traced")
    assert tracers.observers == {}
