"""Disks that change while they are up: patches, schedules, and who keeps to them."""

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

pytestmark = HOST
#: a change is applied so soon after its time [ns]
PUNCTUAL_NS = 5_000_000


def direct(path: Path, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags | os.O_DIRECT)


class Client:
    """A thread that reads or writes 64 KiB directly, again and again."""

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
    """Bytes/s answered in the steps after `start_ns`."""
    frame = read_disk_log(log).to_pandas()
    frame = frame[frame["op"] == op]
    step = ((frame["done_ns"] - start_ns) // int(step_s * 1e9)).to_numpy()
    moved = np.zeros(steps)
    inside = (step >= 0) & (step < steps)
    np.add.at(moved, step[inside], frame["size_bytes"].to_numpy()[inside])
    return moved / step_s


def test_a_limit_leaves_the_other_as_it_was(bench: Bench):
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


def test_what_is_usual_may_be_said(bench: Bench):
    bucket = {"baseline": 100.0, "burst": 3000.0, "capacity": 5.4e6, "initial": 1}
    bench.up(flat(0.0))
    for patch in (
        {"credits": {"iops": bucket}},
        {"credits": {"iops": {**bucket, "initial": 0.5}}},
        {"slow": {"factor": None, "stall": {"period_s": 60.0, "length_s": 0.001}}},
    ):
        assert bench.server.patch("d", patch)["error"] is None


def test_nonsense_changes_nothing(bench: Bench):
    bench.up(flat(0.0))
    for patch, words in [
        ({"limits": {"read_bps": -1}}, "above 0"),
        ({"limits": {"read_bps": 1e6}, "speed": 3}, "speed"),
        ({"slow": {"factor": 0}}, "factor"),
        ({"read_only": True, "bad_space": {"share": 7, "mode": "error"}}, "share"),
        ({"power_cut": True}, "volatile"),
    ]:
        with pytest.raises(PenstockError, match=words):
            bench.server.patch("d", patch)
    assert bench.server.events("d")["settings"] == {}


@pytest.mark.timed
def test_one_key_twice_at_one_date_is_refused_and_equal_dates_keep_their_order(bench: Bench):
    bench.up(flat(0.0))
    now = time.monotonic_ns()
    limits = {"limits": {"read_bps": 1e6}}
    same = [{"at_ns": now, "patch": limits}, {"at_ns": now, "patch": {"limits": None}}]
    with pytest.raises(PenstockError, match="limits is set twice"):
        bench.server.schedule("d", same)
    assert bench.server.events("d")["pending"] == []
    at = now + 50_000_000
    bench.server.schedule("d", [
        {"at_ns": at, "patch": {"limits": {"write_bps": 2e6}}},
        {"at_ns": at, "patch": limits},
        {"at_ns": at, "patch": {"servers": 3}},
        {"at_ns": at - 1, "patch": {"read_only": True}},
    ])  # fmt: skip
    assert len(bench.server.events("d")["pending"]) == 4
    wait_until(lambda: not bench.server.events("d")["pending"])
    made = bench.server.events("d")["events"]
    assert [list(e["asked"]) for e in made] == [["read_only"], ["limits"], ["limits"], ["servers"]]
    assert made[1]["asked"]["limits"] == {"write_bps": 2e6}


def wait_until(true: Callable[[], bool], timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_phases_and_counters_set_changes_off(bench: Bench):
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
    began = time.monotonic_ns()
    assert bench.server.mark("load", t_ns=began) == 1
    wait_until(lambda: len(bench.server.events("d")["events"]) == 1)
    assert bench.server.events("d")["events"][0]["planned_ns"] == began + 30_000_000
    path.read_bytes()
    wait_until(lambda: not bench.server.events("d")["pending"])
    assert bench.server.events("d")["settings"]["servers"] == 3


def test_a_request_that_waits_is_answered_at_the_new_pace(bench: Bench):
    bench.up(flat(0.0))
    path = bench.file("f", MIB)
    bench.server.patch("d", {"limits": {"read_bps": 4096.0}})
    page = mmap.mmap(-1, 65536)
    fd = direct(path)
    took: list[float] = []

    def read() -> None:
        began = time.monotonic()
        os.preadv(fd, [page], 0)
        took.append(time.monotonic() - began)

    reader = threading.Thread(target=read)
    reader.start()  # 16 s at this limit
    time.sleep(0.2)
    assert not took
    bench.server.patch("d", {"limits": {"read_bps": "max"}})
    reader.join(10)
    assert took
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
    # the times that the device was asked for: drawn, whatever the host was doing
    began = served["t_ns"] - served["compensation_ns"]
    slow = (began > start + 1.5 * second) & (began < start + 2.9 * second)
    after = (began > start + 3.5 * second) & (began < start + 3.9 * second)
    assert set(served["service_ns"][slow]) == {20_000_000}
    assert set(served["service_ns"][after]) == {2_000_000}
    took_ns = (served["done_ns"] - began).to_numpy()
    late = stats["late_count"] / len(served)
    if late > 0.05:
        pytest.skip(f"busy host: {100 * late:.0f} % late")
    half = ((began - start) // (second // 2)).to_numpy()
    delivered = [float(np.median(took_ns[half == step])) for step in range(8)]
    # one client: its rate is the inverse of the time it was given; visible and gone within half a second
    assert delivered[3:6] == pytest.approx([10 * delivered[0]] * 3, rel=0.1)
    assert delivered[7] == pytest.approx(delivered[0], rel=0.1)


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


def owned_elsewhere(base: Path, profile: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
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
def test_ten_changes_in_opposite_directions_after_the_owner_was_killed(tmp_path: Path):
    owner, facts = owned_elsewhere(tmp_path, flat(0.0))
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
        made = {n: server.call("events", disk_id=n)["events"] for n in ("one", "two")}
        stats = server.call("stats", disk_id="one")
        for name in ("one", "two"):
            server.call("log", disk_id=name, path=None)
    finally:
        owner.kill()
        server.stop()
    waits_ns = [e["applied_ns"] - e["planned_ns"] for n in made for e in made[n]]
    assert [len(made[n]) for n in made] == [5, 5]
    assert all(e["error"] is None for n in made for e in made[n])
    assert min(waits_ns) >= 0
    wrong = [f"changes {max(waits_ns) / 1e6:.1f} ms late"] if max(waits_ns) > PUNCTUAL_NS else []
    for name, wanted in (("one", [8, 2, 8, 2, 8]), ("two", [2, 8, 2, 8, 2])):
        seen = rates(tmp_path / f"log-{name}", "read", facts["start"], 20, 0.25) / 1e6
        for step, rate in enumerate(wanted):
            # in force within a quarter of a second, and held for the rest of the second
            held = seen[4 * step + 1 : 4 * step + 4]
            if held != pytest.approx(rate, rel=0.1):
                wrong.append(f"{name}: {held} MB/s in second {step}, {rate} asked for")
    busy = stats["host_busy_ns"] / stats["host_cpu_ns"]
    if wrong and busy > 0.9:
        pytest.skip(f"busy host: its processors were {100 * busy:.0f} % busy: {'; '.join(wrong)}")
    assert not wrong


@pytest.mark.timed
def test_the_log_and_the_table_of_changes_say_exactly_what_every_request_met(bench: Bench):
    """Served once more in virtual time, with the changes at their times, each request is due when it was."""
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
    made = bench.server.events("d")["events"]
    assert len(made) == 1 + len(changes)
    stats = bench.server.stats("d")
    bench.server.log("d", None)
    table = columns(read_disk_log(log), 0.0)
    again = schedule(table, profile, int(stats["seed"]), made)
    assert len(table.due) > 100
    np.testing.assert_array_equal(again.done, table.due)
    np.testing.assert_array_equal(again.service, table.service)
    # planted: without one of the changes it is another schedule
    other = schedule(table, profile, int(stats["seed"]), [*made[:2], *made[3:]])
    assert (other.done != table.due).any()
