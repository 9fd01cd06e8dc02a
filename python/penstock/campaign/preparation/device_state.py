"""Initial state of a run's devices: no requests in flight, declared credits, discarded space.

An emulated disk resets its state at the start of a run: requests in flight then come from other programs. Of
a kernel device only the requests in flight are visible (/sys/block/*/inflight), not a drive's internal
activity (garbage collection, flushing its cache).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.host.storage.blockdev import BlockDevice, device_of

#: longest wait for other programs' requests on a kernel device [s]
QUIET_WITHIN_S = 0.5
_LOOK_EVERY_S = 0.01
#: linux/fs.h: start, length and minimum length of a range [bytes]; returns the discarded length
_FITRIM = 0xC0185879
_RANGE = struct.Struct("QQQ")

State = dict[str, Any]


def of_devices(places: Mapping[str, Path], within_s: float = QUIET_WITHIN_S) -> dict[str, State]:
    """Requests in flight on each disk's underlying kernel device, once there are none or time is up.

    A device is read once, even if several disks are on it.
    """
    seen: dict[BlockDevice, State] = {}
    states: dict[str, State] = {}
    for disk_id, path in places.items():
        try:
            device = device_of(path)
        except BadInput as error:
            states[disk_id] = {"in_flight": None, "unknown": str(error).partition(";")[0]}
            continue
        if device not in seen:
            seen[device] = _at_rest(device, within_s)
        states[disk_id] = dict(seen[device])  # a copy for each disk, which is extended later
    return states


def _at_rest(device: BlockDevice, within_s: float) -> State:
    counts = device.queue.parent / "inflight"
    until = time.monotonic() + within_s
    while True:
        try:
            in_flight = sum(int(word) for word in counts.read_text().split())
        except (OSError, ValueError):
            return {"device": device.name, "in_flight": None, "unknown": f"no {counts}"}
        if in_flight == 0 or time.monotonic() >= until:
            return {"device": device.name, "in_flight": in_flight}
        time.sleep(_LOOK_EVERY_S)


def discard(places: Mapping[str, Path]) -> dict[str, int]:
    """Discard free space of these directories' file systems (FITRIM, as fstrim(8)), each once;
    returns bytes by disk. PenstockError if one does not support it."""
    done: dict[int, int] = {}
    discarded = {}
    for disk_id, path in places.items():
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            number = os.fstat(fd).st_dev
            if number not in done:
                request = _RANGE.pack(0, 2**64 - 1, 0)
                done[number] = _RANGE.unpack(fcntl.ioctl(fd, _FITRIM, request))[1]
            discarded[disk_id] = done[number]
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY):
                why = "its file system or device discards nothing"
            raise PenstockError(f"settle.discard: {path}: {why}") from error
        finally:
            os.close(fd)
    return discarded
