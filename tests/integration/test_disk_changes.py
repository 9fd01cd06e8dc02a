"""Changes of disks in use: patches, schedules, and the times at which they are applied."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.analyse.fidelity.fidelity_log import columns, schedule
from penstock.emulate.disks.request_log import read_disk_log
from penstock.errors import PenstockError
from penstock.host.processes.daemon import Daemon, connect
from tests.integration.disk_bench import HOST, MIB, Bench, flat, one_bench  # noqa: F401 - a fixture
from tests.support.waiting import until

pytestmark = HOST
#: greatest delay of a change after its planned time [ns]
PUNCTUAL_NS = 5_000_000


def direct(path: Path, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags | os.O_DIRECT)


class Client:
    """A thread that repeatedly reads or writes 64 KiB with direct I/O."""

    def __init__(self, path: Path, write: bool):
        self._fd = direct(path, os.O_RDWR)
        self._page = mmap.mmap(-1, 65536)
        self._write = write
        self._on = True
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        call: Callable[..., int] = os.pwritev if self._write else os.preadv
        at = 0
        while self._on:
            call(self._fd, [self._page], at)
            at = (at + 65536) % (4 * MIB)

    def stop(self) -> None:
        self._on = False
        self._thread.join()
        os.close(self._fd)


def rates(log: Path, op: str, start_ns: int, steps: int, step_s: float) -> np.ndarray:
    """Delivered rate of each step after `start_ns` [bytes/s]."""
    frame = read_disk_log(log).to_pandas()
    frame = frame[frame["op"] == op]
    step = ((frame["done_ns"] - start_ns) // int(step_s * 1e9)).to_numpy()
    delivered_bytes = np.zeros(steps)
    in_range = (step >= 0) & (step < steps)
    np.add.at(delivered_bytes, step[in_range], frame["size_bytes"].to_numpy()[in_range])
    return delivered_bytes / step_s


def test_a_limit_does_not_change_other_limits(bench: Bench):
    bench.up(flat(0.0))
    server = bench.server
    server.patch("d", {"limits": {"read_bps": 4e6}})
    server.patch("d", {"limits": {"write_bps": 2e6}})
    last = server.patch("d", {"limits": {"read_bps": "max"}})
    assert last["found"] == {"limits": {"read_bps": None}}
    now = server.events("d")
    assert now["settings"]["limits"] == {"write_bps": 2e6}
    assert now["active"] == ["limits.write_bps"]
    assert [e["asked"] for e in now["events"]] == [
        {"limits": {"read_bps": 4e6}},
        {"limits": {"write_bps": 2e6}},
        {"limits": {"read_bps": "max"}},
    ]
    for event in now["events"]:
        assert event["planned_ns"] <= event["applied_ns"] <= event["verified_ns"]
        assert event["error"] is None


def test_usual_settings_are_accepted(bench: Bench):
    bucket = {"baseline": 100.0, "burst": 3000.0, "capacity": 5.4e6, "initial": 1}
    bench.up(flat(0.0))
    for patch in (
        {"credits": {"iops": bucket}},
        {"credits": {"iops": {**bucket, "initial": 0.5}}},
        {"slow": {"factor": None, "stall": {"period_s": 60.0, "length_s": 0.001}}},
    ):
        assert bench.server.patch("d", patch)["error"] is None


def test_invalid_patches_change_nothing(bench: Bench):
    bench.up(flat(0.0))
    for patch, message in [
        ({"limits": {"read_bps": -1}}, "above 0"),
        ({"limits": {"read_bps": 1e6}, "speed": 3}, "speed"),
        ({"slow": {"factor": 0}}, "factor"),
        ({"read_only": True, "bad_space": {"share": 7, "mode": "error"}}, "share"),
        ({"power_cut": True}, "volatile"),
    ]:
        with pytest.raises(PenstockError, match=message):
            bench.server.patch("d", patch)
    assert bench.server.events("d")["settings"] == {}


@pytest.mark.timed
def test_conflicting_changes_are_refused_and_equal_times_keep_their_order(bench: Bench):
    bench.up(flat(0.0))
    now = time.monotonic_ns()
    limits = {"limits": {"read_bps": 1e6}}
    conflicting = [{"at_ns": now, "patch": limits}, {"at_ns": now, "patch": {"limits": None}}]
    with pytest.raises(PenstockError, match="limits is set twice"):
        bench.server.schedule("d", conflicting)
    assert bench.server.events("d")["pending"] == []
    at = now + 50_000_000
    bench.server.schedule("d", [
        {"at_ns": at, "patch": {"limits": {"write_bps": 2e6}}},
        {"at_ns": at, "patch": limits},
        {"at_ns": at, "patch": {"servers": 3}},
        {"at_ns": at - 1, "patch": {"read_only": True}},
    ])  # fmt: skip
    assert len(bench.server.events("d")["pending"]) == 4
    until(lambda: not bench.server.events("d")["pending"])
    events = bench.server.events("d")["events"]
    assert [list(e["asked"]) for e in events] == [
        ["read_only"],
        ["limits"],
        ["limits"],
        ["servers"],
    ]
    assert events[1]["asked"]["limits"] == {"write_bps": 2e6}


def test_phases_and_counters_trigger_changes(bench: Bench):
    bench.up(flat(0.0))
    path = bench.file("f", MIB)
    bench.server.schedule("d", [
        {"phase": "load", "after_ns": 30_000_000, "patch": {"servers": 2}},
        {"metric": "read_bytes", "above": 100_000, "patch": {"servers": 3}},
    ])  # fmt: skip
    assert [e.get("phase", e.get("metric")) for e in bench.server.events("d")["pending"]] == [
        "load",
        "read_bytes",
    ]
    assert bench.server.mark("other") == 0
    start_ns = time.monotonic_ns()
    assert bench.server.mark("load", t_ns=start_ns) == 1
    until(lambda: len(bench.server.events("d")["events"]) == 1)
    assert bench.server.events("d")["events"][0]["planned_ns"] == start_ns + 30_000_000
    path.read_bytes()
    until(lambda: not bench.server.events("d")["pending"])
    assert bench.server.events("d")["settings"]["servers"] == 3


def test_a_waiting_request_is_completed_at_the_new_rate(bench: Bench):
    bench.up(flat(0.0))
    path = bench.file("f", MIB)
    bench.server.patch("d", {"limits": {"read_bps": 256.0}})
    page = mmap.mmap(-1, 65536)
    fd = direct(path)
    durations_s: list[float] = []

    def read() -> None:
        start = time.monotonic()
        os.preadv(fd, [page], 0)
        durations_s.append(time.monotonic() - start)

    reader = threading.Thread(target=read)
    reader.start()  # takes 256 s at this limit
    time.sleep(0.2)
    assert not durations_s
    bench.server.patch("d", {"limits": {"read_bps": "max"}})
    reader.join(60)
    assert durations_s
    os.close(fd)


@pytest.mark.timed
def test_fail_slow_and_its_recovery_are_in_the_delivered_rate(bench: Bench, tmp_path: Path):
    bench.up(flat(0.002))
    path = bench.file("f", MIB)
    log = tmp_path / "log"
    bench.server.log("d", log)
    start = time.monotonic_ns() + 100_000_000
    second = 1_000_000_000
    bench.server.schedule("d", [
        {"at_ns": start + second, "patch": {"slow": {"factor": 10}}},
        {"at_ns": start + 3 * second, "patch": {"slow": "max"}},
    ])  # fmt: skip
    client = Client(path, write=False)
    time.sleep((start - time.monotonic_ns()) / 1e9 + 4.05)
    client.stop()
    stats = bench.server.stats("d")
    bench.server.log("d", None)
    served = read_disk_log(log).to_pandas()
    # sampled service times do not depend on the load of the host
    arrival_ns = served["t_ns"] - served["compensation_ns"]
    slow = (arrival_ns > start + 1.5 * second) & (arrival_ns < start + 2.9 * second)
    after = (arrival_ns > start + 3.5 * second) & (arrival_ns < start + 3.9 * second)
    assert set(served["service_ns"][slow]) == {20_000_000}
    assert set(served["service_ns"][after]) == {2_000_000}
    latency_ns = (served["done_ns"] - arrival_ns).to_numpy()
    late = stats["late_count"] / len(served)
    if late > 0.05:
        pytest.skip(f"busy host: {100 * late:.0f} % late")
    half_second = ((arrival_ns - start) // (second // 2)).to_numpy()
    medians_ns = [float(np.median(latency_ns[half_second == step])) for step in range(8)]
    # the rate of one client is the inverse of the latency; each change takes effect within half a second
    assert medians_ns[3:6] == pytest.approx([10 * medians_ns[0]] * 3, rel=0.1)
    assert medians_ns[7] == pytest.approx(medians_ns[0], rel=0.1)


OWNER = """
import os, sys, time, json
from penstock.emulate.disks.server import DiskServer
from penstock.host.journal.journal import Journal
base = sys.argv[1]
server = DiskServer(Journal(base + "/journal.jsonl"), base + "/state", outlive_owner=True)
profile = {profile!r}
for name in ("one", "two"):
    server.add(name, f"{{base}}/m-{{name}}", f"{{base}}/b-{{name}}", profile)
    server.log(name, f"{{base}}/log-{{name}}")
start = time.monotonic_ns() + 300_000_000
high, low = 8e6, 2e6
for name, first, second in (("one", high, low), ("two", low, high)):
    server.schedule(name, [
        {{"at_ns": start + step * 1_000_000_000,
          "patch": {{"limits": {{"read_bps": (first, second)[step % 2]}}}}}}
        for step in range(5)
    ])
print(json.dumps({{"pid": server.daemon.pid, "socket": str(server.daemon.socket_path),
                  "start": start}}), flush=True)
time.sleep(600)
"""


def start_owner(base: Path, profile: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    import json

    for name in ("one", "two"):
        for kind in "mb":
            (base / f"{kind}-{name}").mkdir()
        (base / f"b-{name}" / "f").write_bytes(os.urandom(4 * MIB))
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(profile=profile), str(base)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    return owner, json.loads(owner.stdout.readline())


@pytest.mark.timed
def test_schedules_continue_after_the_owner_was_killed(tmp_path: Path):
    owner, facts = start_owner(tmp_path, flat(0.0))
    server: Daemon = connect("disk", facts["pid"], facts["socket"])
    try:
        clients = [Client(tmp_path / f"m-{name}" / "f", False) for name in ("one", "two")]
        while time.monotonic_ns() < facts["start"] + 1_500_000_000:
            time.sleep(0.05)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        while time.monotonic_ns() < facts["start"] + 5_050_000_000:
            time.sleep(0.05)
        for client in clients:
            client.stop()
        events = {n: server.call("events", disk_id=n)["events"] for n in ("one", "two")}
        stats = server.call("stats", disk_id="one")
        for name in ("one", "two"):
            server.call("log", disk_id=name, path=None)
    finally:
        owner.kill()
        server.stop()
    delays_ns = [e["applied_ns"] - e["planned_ns"] for n in events for e in events[n]]
    assert [len(events[n]) for n in events] == [5, 5]
    assert all(e["error"] is None for n in events for e in events[n])
    assert min(delays_ns) >= 0
    errors = [f"changes {max(delays_ns) / 1e6:.1f} ms late"] if max(delays_ns) > PUNCTUAL_NS else []
    for name, expected in (("one", [8, 2, 8, 2, 8]), ("two", [2, 8, 2, 8, 2])):
        delivered = rates(tmp_path / f"log-{name}", "read", facts["start"], 20, 0.25) / 1e6
        for step, rate in enumerate(expected):
            # the limit is in force after a quarter of a second, until the end of the second
            rest = delivered[4 * step + 1 : 4 * step + 4]
            if rest != pytest.approx(rate, rel=0.1):
                errors.append(f"{name}: {rest} MB/s in second {step}; expected {rate} MB/s")
    busy = stats["host_busy_ns"] / stats["host_cpu_ns"]
    if errors and busy > 0.9:
        pytest.skip(f"busy host: its processors were {100 * busy:.0f} % busy: {'; '.join(errors)}")
    assert not errors


@pytest.mark.timed
def test_the_log_and_the_changes_reproduce_the_due_times(bench: Bench):
    """A simulation with the logged requests and changes gives the same due times."""
    overhead = {"overhead": {"kind": "lognormal", "mean_s": 0.002, "sigma": 0.4}}
    both = {"sequential": overhead, "random": overhead}
    profile = flat(0.0, servers=4, read=both, write=both)
    bench.up(profile, seed=5, patch={"servers": 3})
    path = bench.file("f", 8 * MIB)
    bench.server.reset("d")
    log = bench.base / "log"
    bench.server.log("d", log)
    start = time.monotonic_ns() + 200_000_000
    changes: list[dict[str, Any]] = [
        {"limits": {"read_bps": 2e6}},
        {"slow": {"factor": 3, "random": {"probability": 0.2, "factor": 4}}},
        {"servers": 1},
        {"limits": {"read_bps": 4e5}, "slow": None},
        {"limits": {"read_bps": "max"}},
        {"servers": "max"},
    ]
    bench.server.schedule("d", [
        {"at_ns": start + i * 150_000_000, "patch": patch} for i, patch in enumerate(changes)
    ])  # fmt: skip
    clients = [Client(path, write=i == 0) for i in range(6)]
    time.sleep((start - time.monotonic_ns()) / 1e9 + 0.15 * len(changes) + 0.1)
    for client in clients:
        client.stop()
    events = bench.server.events("d")["events"]
    assert len(events) == 1 + len(changes)
    stats = bench.server.stats("d")
    bench.server.log("d", None)
    logged = columns(read_disk_log(log), 0.0)
    simulated = schedule(logged, profile, int(stats["seed"]), events)
    assert len(logged.due) > 100
    np.testing.assert_array_equal(simulated.done, logged.due)
    np.testing.assert_array_equal(simulated.service, logged.service)
    # planted: without one of the changes the due times differ
    incomplete = schedule(logged, profile, int(stats["seed"]), [*events[:2], *events[3:]])
    assert (incomplete.done != logged.due).any()
