"""Back ends of emulated disks: their choice, valid patches, and limits in the kernel's format."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.backends import counters
from penstock.emulate.backends.base import LIMIT_KEYS, LimitPatch
from penstock.emulate.backends.cgroup1 import BlkioThrottle
from penstock.emulate.backends.cgroup2 import IoMax
from penstock.emulate.backends.choice import choose
from penstock.emulate.backends.counters import Counter, Counts, Recorder, as_table
from penstock.emulate.backends.throttled import _departure
from penstock.emulate.backends.timetable import Timetable
from penstock.errors import BadInput
from penstock.host.cgroups.cgroup import Hierarchies
from penstock.host.storage.blockdev import BlockDevice
from penstock.host.storage.disk_backends import no_cgroup1, no_cgroup2
from penstock.profile.load import load_profile
from penstock.spec.cluster import DiskSpec, Limits
from tests.support.waiting import until

NONE = "not here"
PROFILE: dict[str, Any] = json.loads(load_profile("service-5ms").json)
LOOP = BlockDevice((7, 0), "loop0")


def test_the_model_is_chosen_where_possible() -> None:
    assert choose(DiskSpec("d"), {}).name == "fuse"
    shaped = choose(DiskSpec("d", profile=PROFILE, profile_name="service-5ms"), {})
    assert shaped.name == "fuse"
    assert "service-5ms" in shaped.reason


def test_plain_limits_use_a_throttle_without_the_model() -> None:
    disk = DiskSpec("d", limits=Limits(read_bps=1e6))
    choice = choose(disk, {"fuse": "no /dev/fuse"})
    assert choice.name == "cgroup2"
    assert "no /dev/fuse" in choice.reason
    assert choose(disk, {"fuse": NONE, "cgroup2": NONE}).name == "cgroup1"


@pytest.mark.parametrize(
    ("disk", "host", "message"),
    [
        (DiskSpec("d", profile=PROFILE), {"fuse": NONE}, "limits and nothing else"),
        (DiskSpec("d", backend="cgroup2"), {"cgroup2": NONE}, "backend: fuse"),
        (DiskSpec("d", backend="cgroup2", profile=PROFILE), {}, "backend: fuse"),
        (DiskSpec("d", backend="cgroup2", patch={"slow": {"factor": 2}}), {}, "slow"),
        (DiskSpec("d"), {"fuse": NONE, "cgroup2": NONE, "cgroup1": NONE}, "penstock doctor"),
    ],
)
def test_unsupported_disks_are_refused_with_an_alternative(
    disk: DiskSpec, host: dict[str, str], message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        choose(disk, host)
    assert message in str(refused.value)


@pytest.mark.parametrize("backend", ["auto", "cgroup1"])
def test_buffered_write_limits_of_v1_are_refused_unless_overridden(backend: Any) -> None:
    host = {"fuse": NONE, "cgroup2": NONE}
    limits = Limits(write_bps=1e6)
    with pytest.raises(BadInput) as refused:
        choose(DiskSpec("d", backend=backend, limits=limits), host)
    assert "write-back" in str(refused.value)
    assert "io: direct" in str(refused.value)
    direct = choose(DiskSpec("d", backend=backend, limits=limits, io="direct"), host)
    assert (direct.name, direct.warnings) == ("cgroup1", ())
    overridden = choose(
        DiskSpec("d", backend="cgroup1", limits=limits, allow_unhonoured=True), host
    )
    assert "cannot limit buffered writes" in overridden.warnings[0]
    patched = DiskSpec("d", backend=backend, patch={"limits": {"write_iops": 10}})
    with pytest.raises(BadInput):
        choose(patched, host)


def test_a_hierarchy_without_the_controllers_offers_nothing(tmp_path: Path) -> None:
    hybrid = Hierarchies({"blkio": tmp_path}, tmp_path, frozenset({"hugetlb"}))
    assert "no io and no memory controller" in no_cgroup2(hybrid)
    assert "no throttle" in no_cgroup1(hybrid)
    assert "no blkio" in no_cgroup1(Hierarchies())


@pytest.mark.parametrize(
    "limits",
    [
        {"read": 1},
        {"read_bps": 0},
        {"read_bps": -1},
        {"read_bps": float("nan")},
        {"read_bps": float("inf")},
        {"read_bps": "fast"},
        {"read_bps": True},
    ],
)
def test_invalid_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        LimitPatch.of(limits)


def test_a_patch_has_set_and_cleared_keys() -> None:
    change = LimitPatch.of({"read_bps": 5, "write_bps": "max", "write_iops": None})
    assert change.set == {"read_bps": 5.0}
    assert change.clear == ["write_bps", "write_iops"]


def test_v2_writes_one_key_and_reads_all(tmp_path: Path) -> None:
    limits = IoMax(tmp_path, LOOP)
    (tmp_path / "io.max").write_text(
        "8:0 rbps=1 wbps=2 riops=3 wiops=4\n7:0 rbps=4000000 wbps=max riops=max wiops=20\n"
    )
    (tmp_path / "io.stat").write_text(
        "7:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:0 \n"
    )
    assert limits.get() == {"read_bps": 4000000, "write_iops": 20}
    assert limits.counts() == Counts(4096, 8192, 1, 2)
    assert IoMax(tmp_path, BlockDevice((8, 0), "sda")).counts() == Counts()
    limits.set("write_bps", 2000000)
    assert (tmp_path / "io.max").read_text() == "7:0 wbps=2000000"
    limits.set("read_bps", None)
    assert (tmp_path / "io.max").read_text() == "7:0 rbps=max"


def test_v1_has_a_file_for_each_limit_and_reaches_the_groups_inside(tmp_path: Path) -> None:
    inner = tmp_path / "run"
    inner.mkdir()
    for group in (tmp_path, inner):
        for name in LIMIT_KEYS:
            (group / f"blkio.throttle.{name}_device").write_text("")
    (tmp_path / "blkio.throttle.io_service_bytes_recursive").write_text(
        "7:0 Read 4096\n7:0 Write 0\n7:0 Total 4096\n254:0 Read 9\nTotal 4105\n"
    )
    (tmp_path / "blkio.throttle.io_serviced_recursive").write_text("7:0 Read 1\n7:0 Write 0\n")
    limits = BlkioThrottle(tmp_path, LOOP)
    limits.set("read_iops", 500)
    for group in (tmp_path, inner):
        assert (group / "blkio.throttle.read_iops_device").read_text() == "7:0 500"
        assert (group / "blkio.throttle.write_iops_device").read_text() == ""
    assert limits.get() == {"read_iops": 500}
    assert limits.counts() == Counts(4096, 0, 1, 0)


def test_read_back_detects_departures() -> None:
    change = LimitPatch.of({"read_bps": 5})
    assert _departure(change, {"write_bps": 7}, {"read_bps": 5, "write_bps": 7}) == ""
    assert "read_bps" in _departure(change, {}, {"read_bps": 4})
    # the original fault: setting one direction removed the limit of the other
    assert "write_bps" in _departure(change, {"write_bps": 7}, {"read_bps": 5})
    assert "read_bps" in _departure(LimitPatch.of({"read_bps": "max"}), {}, {"read_bps": 5})


class Moving:
    """Counters that move at a rate regardless of the limit; records limits that are set again.

    Its clock advances by 0.1 s between two readings of the counters.
    """

    def __init__(self, rate_bps: float, limit_bps: int) -> None:
        self.now_ns, self.rate_bps, self.limit_bps = 0, rate_bps, limit_bps
        self.again: list[str] = []

    def monotonic_ns(self) -> int:
        self.now_ns += 100_000_000
        return self.now_ns

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def counts(self) -> Counts:
        return Counts(read_bytes=round(self.now_ns / 1e9 * self.rate_bps))

    def recorded(
        self, monkeypatch: pytest.MonkeyPatch, windows: int
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Rows and limits set again of a recorder, after so many windows or more."""
        monkeypatch.setattr(counters, "time", self)
        counter = Counter(self.counts, lambda: {"read_bps": self.limit_bps}, self.again.append)
        recorder = Recorder("d", counter, window_s=0.1)
        until(lambda: self.now_ns > windows * 100_000_000)
        return recorder.stop()


def test_windows_have_delivered_bytes_and_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Moving(1e6, 1_000_000)
    rows, again = moving.recorded(monkeypatch, 3)
    assert as_table(rows).num_rows == len(rows)
    reads = [r for r in rows if r["direction"] == "read"]
    assert len(reads) >= 3
    assert reads[0]["limit_bps"] == 1e6
    assert reads[0]["limit_iops"] is None
    rates = [r["bytes"] * 1e9 / r["window_ns"] for r in reads]
    assert rates == pytest.approx([1e6] * len(rates))
    assert (again, moving.again) == ([], [])


def test_a_limit_that_is_not_in_force_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Moving(2e6, 1_000_000)
    _, again = moving.recorded(monkeypatch, 3)
    assert again
    assert "read_bps" in moving.again


class Lumps(Moving):
    """The same in lumps, one in every second window of 0.1 s: the mean equals the limit."""

    def counts(self) -> Counts:
        lumps = int((self.now_ns / 1e9 + 0.15) / 0.2)
        return Counts(read_bytes=int(lumps * 0.2 * self.rate_bps))


def test_a_window_that_balances_the_previous_one_keeps_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lumps = Lumps(1e6, 1_000_000)
    rows, again = lumps.recorded(monkeypatch, 8)
    rates = [r["bytes"] * 1e9 / r["window_ns"] for r in rows if r["direction"] == "read"]
    assert max(rates) > 1.5e6
    assert (again, lumps.again) == ([], [])


def test_the_timetable_keeps_order_and_time() -> None:
    calls: list[tuple[str, int]] = []
    registered, last = threading.Event(), threading.Event()
    table = Timetable()
    now = time.monotonic_ns()
    table.at(now, lambda: registered.wait(60))  # no call before all are registered
    for name, at_ns in (("c", now + 60_000_000), ("a", now + 20_000_000), ("b", now + 20_000_000)):
        table.at(at_ns, lambda n=name, t=at_ns: calls.append((n, time.monotonic_ns() - t)))
    table.at(now + 70_000_000, last.set)
    table.at(now + 10**12, lambda: calls.append(("never", 0)))
    registered.set()
    assert last.wait(60)
    table.stop()
    assert [name for name, _ in calls] == ["a", "b", "c"]
    assert all(late_ns >= 0 for _, late_ns in calls)
