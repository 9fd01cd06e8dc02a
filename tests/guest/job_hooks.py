"""Runs inside the guest: kinds of hooks (arguments) on another kernel against a program with known calls.

Prints one JSON object: per kind what was seen, or why it did not attach.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import penstock.host.processes.daemon as daemon_module
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.nodes.node_group import create_node_groups
from penstock.host.processes.daemon import start_daemon
from penstock.host.processes.launch import launch

READS, THREADS = 503, 4
EVENT = struct.Struct("<QqQIiIIIBBH")
journal = Journal(Path("/tmp/journal"))


def nodes(**config: Any) -> dict[str, Any]:
    """Reads of a program in each of two nodes, traced by the parent of their groups, and in no node."""
    spool, names = Path("/tmp/spool"), Path("/tmp/names")
    made, before = create_node_groups("hooks", ("one", "two"), journal), loaded()
    assert made.above is not None
    program = ["/job/known_calls", "/mnt/file", str(READS), str(THREADS)]
    with start_daemon(
        "tracer", {"mode": "trace", "ring_bytes": 8 << 20, **config}, journal
    ) as daemon:
        programs = len(loaded() - before)
        number = made.above.stat().st_ino
        daemon.call("arm", timeout_s=300.0, cgroup_id=number, spool=str(spool), files=str(names))
        statuses = [
            launch(program, group, Path("/tmp/told")).exit_status for group in made.groups.values()
        ]
        outside = subprocess.run(program, stdout=subprocess.DEVNULL).returncode
        receipt = daemon.call("disarm", timeout_s=300.0)
    events = [e for e in EVENT.iter_unpack(spool.read_bytes()) if e[8] < 32 and e[4] == 4096]
    by_slot = Counter(event[10] for event in events)
    groups = {int(slot): number for slot, number in receipt["cgroups"].items()}
    answer = {
        "statuses": [*statuses, outside],
        "reads": {str(groups.get(slot, 0)): count for slot, count in by_slot.items()},
        "nodes": [str(group.cgroup_id) for group in made.groups.values()],
        "lost": receipt["lost"],
        "balance": receipt["per_probe"],
        "programs": programs,
        "left": left_of(before),
    }
    made.remove()
    return answer


def traced(mode: str, **config: Any) -> dict[str, Any]:
    spool, names, told = Path("/tmp/spool"), Path("/tmp/names"), Path("/tmp/told")
    before = loaded()
    with (
        create_run_cgroup("hooks", None, journal) as group,
        start_daemon("tracer", {"mode": mode, "ring_bytes": 8 << 20, **config}, journal) as daemon,
    ):
        programs = len(loaded() - before)
        daemon.call(
            "arm", timeout_s=300.0, cgroup_id=group.cgroup_id, spool=str(spool), files=str(names)
        )
        done = launch(["/job/known_calls", "/mnt/file", str(READS), str(THREADS)], group, told)
        receipt = daemon.call("disarm", timeout_s=300.0)
    files = [json.loads(line) for line in names.read_text().splitlines()]
    number = next(
        row["file_id"] for row in files if bytes.fromhex(row.get("path_hex", "")).endswith(b"/file")
    )
    answer: dict[str, Any] = {
        "status": done.exit_status,
        "hooks": receipt["hooks"],
        "balance": receipt["per_probe"],
        "lost": receipt["lost"],
        "overflowed": receipt["overflowed"],
        "programs": programs,
        "left": left_of(before),
    }
    if mode == "trace":
        events = sorted(EVENT.iter_unpack(spool.read_bytes()))
        mine = [event for event in events if event[5] == number]
        first = int(told.read_text().split("\n")[0].split()[1])
        offsets = [int(line.split()[1]) for line in told.read_text().splitlines()[1:]]
        reads = [event for event in mine if event[8] < 32 and event[4] == 4096]
        answer |= {
            "reads": len(reads),
            "read_bytes": sum(event[4] for event in reads),
            "in_order": [e[1] for e in reads if e[6] == first][: len(offsets)] == offsets,
            "writes": sorted((e[1], e[3], e[4]) for e in mine if 32 <= e[8] < 64),
            "odd": sorted((e[1], e[3], e[4]) for e in mine if e[8] < 32 and e[4] != 4096),
            "latencies": all(e[2] > 0 for e in mine),
            "syncs": sum(64 <= e[8] < 96 for e in mine),
        }
    elif mode == "count":
        rows = struct.Struct("<6Q").iter_unpack(spool.read_bytes())
        answer["counts"] = [row[1:] for row in rows if row[0] == number]
    return answer


def loaded() -> set[int]:
    """Numbers of all BPF programs in the kernel (bpf(2), BPF_PROG_GET_NEXT_ID)."""
    found, libc = {0}, ctypes.CDLL(None, use_errno=True)
    while True:
        attribute = ctypes.create_string_buffer(struct.pack("<III", max(found), 0, 0), 12)
        if libc.syscall(321, 11, attribute, 12) < 0:
            return found
        found.add(struct.unpack("<III", attribute.raw)[1])


def left_of(before: set[int]) -> int:
    """How many more there are than before, once the kernel has had time to free them."""
    until = time.monotonic() + 5
    while loaded() - before and time.monotonic() < until:
        time.sleep(0.05)
    return len(loaded() - before)


def attempt(mode: str, **config: Any) -> dict[str, Any]:
    began = time.monotonic()
    try:
        answer = nodes(**config) if mode == "nodes" else traced(mode, **config)
    except PenstockError as error:
        answer = {"error": str(error)}
    answer["took_s"] = round(time.monotonic() - began, 1)
    return answer


# Only the calls: the other features have their own tests, and every program costs seconds here.
OTHERS = ["fault_ends", "uring_submit", "uring_submit_before_6_4", "aio_done", "aio_direct_done"]
daemon_module._READY_WITHIN_S = 300.0  # the clock of a busy emulation may run fast

says: dict[str, Any] = {"kernel": os.uname().release}
loads = {
    "fentry": ("trace", {"hooks": "fentry", "deny": OTHERS}),
    "tp_btf": ("trace", {"hooks": "tp_btf", "deny": OTHERS}),
    "raw_tp": ("count", {"hooks": "raw_tp", "deny": OTHERS}),
    "denied": ("trace", {"deny": ["fentry", *OTHERS], "drop_every": 100}),
    "any": ("trace", {"deny": OTHERS}),
    "nodes": ("nodes", {"deny": OTHERS}),
}
for name in sys.argv[1:]:
    mode, config = loads[name]
    says[name] = attempt(mode, **config)
    print(name, says[name], flush=True)
subprocess.run(["umount", "/mnt"], check=False)
print("RESULT " + json.dumps(says))
