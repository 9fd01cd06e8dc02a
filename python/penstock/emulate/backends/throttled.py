"""A throttled disk: an image on a loop device, limited for one control group. For both cgroup versions."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.emulate.backends.base import (
    LIMIT_KEYS,
    Applied,
    Cause,
    LimitPatch,
    Owner,
    Place,
    limits_dict,
    shape_of,
)
from penstock.emulate.backends.certificate import by_counters
from penstock.emulate.backends.counters import Counter, Counts, Recorder, as_table
from penstock.emulate.backends.image import ImageDisk, put_up
from penstock.emulate.backends.timetable import Timetable
from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups.cgroup import Write, altering
from penstock.host.journal.journal import Entry, Values, new_token
from penstock.host.journal.settings import text_of
from penstock.host.probe.facts import storage_facts
from penstock.host.storage.blockdev import BlockDevice, settings
from penstock.spec.cluster import DiskSpec, Limits

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.analyse.fidelity.fidelity import Certificate
    from penstock.emulate.disks.recorded import Recorded

#: bytes written and read to measure a device without limits
_TRIED_BYTES = 4 << 20
#: a limit above this share of the device's throughput is ineffective
DEVICE_BOUND = 0.8


class Throttle(Protocol):
    """Limits and counters of one device for one control group in the kernel."""

    def writes(self, name: str, value: int | None) -> list[Write]:
        """Writes that set one of LIMIT_KEYS [B/s or 1/s] and leave the others; None clears it."""

    def set(self, name: str, value: int | None) -> None:
        """Set one limit."""

    def get(self) -> dict[str, int]:
        """Limits that are set, as read back."""

    def counts(self) -> Counts:
        """Bytes and operations of the group's members on the device."""


class ThrottledBackend:
    """Disks of one owner on throttled loop devices."""

    name = ""
    controller = "blkio"
    why = "limits of a throttled device, in slices of some 100 ms"

    def __init__(self, owner: Owner) -> None:
        self._journal = owner.journal
        self._run = owner.run
        self._up: dict[str, ThrottledDisk] = {}
        self._timetable: Timetable | None = None
        self._capability: dict[int, dict[str, float]] = {}

    @classmethod
    def refusal(cls, disk: DiskSpec) -> str:
        """Refuse everything but limits."""
        shape = shape_of(disk)
        return f"{cls.name} throttles a device and has no {', '.join(shape)}" if shape else ""

    @classmethod
    def certificate(
        cls, recorded: Recorded, utilisation: pa.Table | None, run_cpu_ns: int | None
    ) -> Certificate | None:
        """Certificate from the kernel's counters."""
        return by_counters(recorded, utilisation)

    def throttle(self, group: Path, device: BlockDevice) -> Throttle:
        """Limits of a device for a group's directory."""
        raise NotImplementedError

    def check(self, disk: ThrottledDisk, spec: DiskSpec) -> list[str]:
        """Notes on a disk that just started; sets its `unhonoured`."""
        return []

    def up(self, disk: DiskSpec, place: Place) -> ThrottledDisk:
        """Mount the image and limit it for the group of the place."""
        group = None if place.group is None else place.group.paths.get(self.controller)
        if group is None:
            raise BadInput(
                f"disk {disk.name}: back end {self.name} limits a control group, and there is none; "
                "expected a node with a group, or backend: fuse"
            )
        refuse_features(self.name, disk.name, disk.patch)
        limits = limits_dict(disk.limits) | dict(disk.patch.get("limits") or {})
        LimitPatch.of(limits)
        image = put_up(disk, place, self._journal)
        up = ThrottledDisk(self, disk, place, image, self.throttle(group, image.device))
        self._up[place.disk_id] = up
        try:
            up.notes = self.check(up, disk)
            up.capability_bps = self._capability_of(place.directory, image.mount)
            if limits:
                failed = up.set_limits(limits).error
                if failed:
                    raise PenstockError(f"disk {disk.name}: {failed}")
                up.notes += self._crowded(up)
        except BaseException:
            up.down()
            raise
        return up

    def _capability_of(self, directory: Path, mount: Path) -> dict[str, float]:
        """Throughput without limits of a disk in that file system, measured once for all its disks."""
        device = directory.stat().st_dev
        if device not in self._capability:
            self._capability[device] = capability(mount)
        return self._capability[device]

    def _crowded(self, new: ThrottledDisk) -> list[str]:
        """Notes where the limits of all disks of one device add up to more than its throughput."""
        beside = [d for d in self._up.values() if d.capability_bps is new.capability_bps]
        notes = []
        for direction, able in new.capability_bps.items():
            limits = (d.throttle.get().get(f"{direction}_bps", 0) for d in beside)
            total_bps = sum(limits)
            if total_bps > DEVICE_BOUND * able:
                notes.append(
                    f"device-bound: {direction} limits of {len(beside)} disks ask {total_bps / 1e6:.0f} "
                    f"MB/s of a device that does {able / 1e6:.0f}"
                )
        return notes

    def timetable(self) -> Timetable:
        """Thread that applies scheduled changes of all its disks."""
        if self._timetable is None:
            self._timetable = Timetable()
        return self._timetable

    def forget(self, disk_id: str) -> None:
        """Remove a stopped disk from the table."""
        self._up.pop(disk_id, None)

    def stop(self) -> None:
        """Stop its disks."""
        with contextlib.ExitStack() as stack:
            for disk in list(self._up.values()):
                stack.callback(disk.down)
            if self._timetable is not None:
                stack.callback(self._timetable.stop)


class ThrottledDisk:
    """A throttled disk that is up."""

    def __init__(
        self,
        owner: ThrottledBackend,
        spec: DiskSpec,
        place: Place,
        image: ImageDisk,
        throttle: Throttle,
    ) -> None:
        self.backend = owner.name
        self.disk_id = place.disk_id
        self.mount = image.mount
        self.device = image.device.number
        self.notes: list[str] = []
        #: by direction, reason why limits of buffered I/O are not in force
        self.unhonoured: dict[str, str] = {}
        #: throughput without limits, by direction [B/s]
        self.capability_bps: dict[str, float] = {}
        self.image = image
        self.throttle = throttle
        self.group = place.group
        self._owner = owner
        self._spec = spec
        self._lock = threading.Lock()
        self._before = throttle.counts()
        self._recorder: Recorder | None = None
        self._events: list[dict[str, Any]] = []

    def altering(self, patch: Mapping[str, Any]) -> list[tuple[Entry, Values]]:
        """Kernel files that a patch changes, for the journal."""
        change = LimitPatch.of(_limits_of(patch))
        values = dict.fromkeys(change.clear) | {k: max(1, round(v)) for k, v in change.set.items()}
        writes = [
            write for name, value in values.items() for write in self.throttle.writes(name, value)
        ]
        return [(self.image.entry, altering(writes))]

    def patch(
        self,
        patch: Mapping[str, Any],
        planned_ns: int | None = None,
        *,
        announced: bool = False,
        cause: Cause | None = None,
    ) -> Applied:
        """Change limits. Raises BadInput for features that need the model."""
        refuse_features(self.backend, self._spec.name, patch)
        limits = _limits_of(patch)
        change = LimitPatch.of(limits)
        self._refuse_unhonoured(change)
        altered = self.altering(patch)
        if not announced:  # a scheduled change must not wait for the journal's disk
            self.image.journal.alter(altered, synced=planned_ns is None)
        applied = self._apply(change, {"limits": limits}, planned_ns)
        applied = replace(applied, cause=cause or Cause())
        self.image.journal.read_back(
            (entry, {name: [text_of(Path(name))] for name in values}) for entry, values in altered
        )
        return applied

    def _refuse_unhonoured(self, change: LimitPatch) -> None:
        if self._spec.allow_unhonoured or self._spec.io == "direct":
            return
        for direction, why in self.unhonoured.items():
            if any(name.startswith(direction) for name in change.set):
                raise BadInput(
                    f"disk {self._spec.name}: {why}, so it cannot limit buffered {direction}s; "
                    "use backend: fuse, or io: direct if the program bypasses the page cache"
                )

    def set_limits(self, limits: Mapping[str, float | str | None]) -> Applied:
        """Set the given limits independently."""
        return self.patch({"limits": dict(limits)})

    def read_back(self) -> Limits:
        """Limits currently set in the kernel."""
        return Limits(**{k: float(v) for k, v in self.throttle.get().items()})

    def schedule(self, events: Sequence[Mapping[str, Any]], *, announced: bool = False) -> None:
        """Apply events at their times from a thread of this process."""
        if not announced:
            planned = {"schedule": (None, {"events": len(events)})}
            self.image.journal.alter([(self.image.entry, planned)])
        for event in events:
            if "at_ns" not in event:
                keys = ", ".join(sorted(set(event) - {"patch", "cause"})) or "no time"
                raise BadInput(
                    f"disk {self._spec.name}: back end {self.backend} changes at times only; found "
                    f"{keys}, expected at_ns"
                )
            refuse_features(self.backend, self._spec.name, event["patch"])
            limits = event["patch"].get("limits")
            if limits not in (None, "max"):
                self._refuse_unhonoured(LimitPatch.of(limits))
            at_ns = int(event["at_ns"])
            patch = dict(event["patch"])
            cause = Cause(**event.get("cause", {"kind": "time"}))
            self._owner.timetable().at(at_ns, partial(self._scheduled, patch, at_ns, cause))

    def events(self) -> list[dict[str, Any]]:
        """Results of scheduled events."""
        return list(self._events)

    def stats(self, *, closing: bool = False) -> dict[str, Any]:
        """Bytes and operations of the node on this device since `up` or `begin`."""
        return (self.throttle.counts() - self._before).as_dict()

    def facts(self) -> dict[str, Any]:
        """Kernel, file system, mount options and settings of the device."""
        return {
            "kernel": platform.release(),
            **storage_facts(self.mount),
            **settings(self.image.device),
            "size_bytes": self.image.image.stat().st_size,
            "capability_bps": dict(self.capability_bps),
            "unhonoured": {} if self._spec.io == "direct" else dict(self.unhonoured),
            "notes": list(self.notes),
        }

    def begin(self, spool_dir: Path) -> None:
        """Record counters each second from now on."""
        self._before = self.throttle.counts()
        self._recorder = Recorder(
            self.disk_id, Counter(self.throttle.counts, self._limits, self._reapply)
        )

    def end(self) -> dict[str, pa.Table]:
        """Recorded counters as the table `throttle_counters`."""
        rows = self.end_rows()
        return {} if rows is None else {"throttle_counters": as_table(rows)}

    def end_rows(self) -> list[dict[str, Any]] | None:
        """Recorded counters as plain rows; None without `begin`."""
        if self._recorder is None:
            return None
        rows, again = self._recorder.stop()
        self._recorder = None
        self.notes += again
        return rows

    def down(self) -> dict[str, Any]:
        """Clear the limits and unmount; the image stays."""
        last: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            stack.callback(self._owner.forget, self.disk_id)
            stack.callback(self.image.down)
            if self._recorder is not None:
                stack.callback(self.end_rows)
            with contextlib.suppress(OSError):  # the group may be gone with its limits
                last = self.stats()
                for name in self.throttle.get():
                    self.throttle.set(name, None)
        return last

    def _apply(
        self, change: LimitPatch, requested: dict[str, Any], planned_ns: int | None = None
    ) -> Applied:
        planned = time.monotonic_ns() if planned_ns is None else planned_ns
        error = ""
        with self._lock:
            try:
                before = self.throttle.get()
                for name in change.clear:
                    self.throttle.set(name, None)
                for name, value in change.set.items():
                    self.throttle.set(name, max(1, round(value)))
                applied = time.monotonic_ns()
                after = self.throttle.get()
                error = _departure(change, before, after)
                actual: dict[str, Any] = {"limits": {k: after.get(k, "max") for k in LIMIT_KEYS}}
            except OSError as refused:
                applied, actual = time.monotonic_ns(), {}
                error = f"the kernel refused: {refused.strerror} ({refused.filename})"
        return Applied(planned, applied, time.monotonic_ns(), requested, actual, error)

    def _scheduled(self, patch: dict[str, Any], at_ns: int, cause: Cause) -> None:
        try:
            done = self.patch(patch, planned_ns=at_ns, cause=cause)
        except PenstockError as error:  # recorded: a run with a failed event is invalid
            now = time.monotonic_ns()
            done = Applied(at_ns, now, now, dict(patch), {}, str(error), cause)
        self._events.append(asdict(done))

    def _limits(self) -> dict[str, int]:
        return self.throttle.get()

    def _reapply(self, name: str) -> None:
        """Set a limit again that was exceeded."""
        with self._lock:
            value = self.throttle.get().get(name)
            if value is not None:
                self.throttle.set(name, None)
                self.throttle.set(name, value)


def capability(mount: Path) -> dict[str, float]:
    """Bytes per second of large direct requests on a file system, by this process, which has no limits.

    Takes a few milliseconds; the best of three. Empty if the file system lacks direct I/O or free space.
    """
    path = mount / f".penstock-capability-{new_token()}"
    buffer = mmap.mmap(-1, 1 << 20)
    best = {"write": 0.0, "read": 0.0}
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            for _ in range(3):
                for direction, move in (("write", os.pwritev), ("read", os.preadv)):
                    began = time.monotonic()
                    for at in range(0, _TRIED_BYTES, len(buffer)):
                        if move(fd, [buffer], at) != len(buffer):
                            return {}
                    rate = _TRIED_BYTES / (time.monotonic() - began)
                    best[direction] = max(best[direction], rate)
        finally:
            os.close(fd)
    except OSError:
        return {}
    finally:
        path.unlink(missing_ok=True)
    return best


def _limits_of(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Limits of a patch; all of them if it clears them together."""
    limits = patch.get("limits", {})
    return dict.fromkeys(LIMIT_KEYS) if limits in (None, "max") else dict(limits)


def refuse_features(backend: str, disk: str, patch: Mapping[str, Any]) -> None:
    """Raises BadInput if a patch needs features of the model."""
    foreign = sorted(set(patch) - {"limits"})
    if foreign:
        raise BadInput(
            f"disk {disk}: back end {backend} throttles a device and has no {', '.join(foreign)}; "
            "the nearest alternative is backend: fuse"
        )


def _departure(change: LimitPatch, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """First limit whose value read back differs from the request, or that changed without one; else empty."""
    for name in LIMIT_KEYS:
        if name in change.set:
            expected: int | None = max(1, round(change.set[name]))
        else:
            expected = None if name in change.clear else before.get(name)
        if after.get(name) != expected:
            return f"{name}: requested {expected or 'max'}, found {after.get(name, 'max')}"
    return ""
