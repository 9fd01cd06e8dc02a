"""Run inside the guest: kinds of hooks (arguments) on another kernel, with a program with known calls.

Print one JSON object: the traced calls of each kind, or the reason why it did not attach.
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


def trace_nodes(**config: Any) -> dict[str, Any]:
    """Trace reads of a program in two nodes by the parent of their groups; run it outside of them too."""
    spool, names = Path("/tmp/spool"), Path("/tmp/names")
    node_groups, before = create_node_groups("hooks", ("one", "two"), journal), loaded_programs()
    assert node_groups.above is not None
    program = ["/job/known_calls", "/mnt/file", str(READS), str(THREADS)]
    with start_daemon(
        "tracer", {"mode": "trace", "ring_bytes": 8 << 20, **config}, journal
    ) as daemon:
        programs = len(loaded_programs() - before)
        number = node_groups.above.stat().st_ino
        daemon.call("arm", timeout_s=300.0, cgroup_id=number, spool=str(spool), files=str(names))
        statuses = [
            launch(program, group, Path("/tmp/output")).exit_status
            for group in node_groups.groups.values()
        ]
        outside = subprocess.run(program, stdout=subprocess.DEVNULL).returncode
        receipt = daemon.call("disarm", timeout_s=300.0)
    events = [e for e in EVENT.iter_unpack(spool.read_bytes()) if e[8] < 32 and e[4] == 4096]
    by_slot = Counter(event[10] for event in events)
    groups = {int(slot): number for slot, number in receipt["cgroups"].items()}
    answer = {
        "statuses": [*statuses, outside],
        "reads": {str(groups.get(slot, 0)): count for slot, count in by_slot.items()},
        "nodes": [str(group.cgroup_id) for group in node_groups.groups.values()],
        "lost": receipt["lost"],
        "balance": receipt["per_probe"],
        "programs": programs,
        "left": count_left(before),
    }
    node_groups.remove()
    return answer


def trace_calls(mode: str, **config: Any) -> dict[str, Any]:
    """Trace the calls of the known program; return the receipt and the counted events."""
    spool, names, output = Path("/tmp/spool"), Path("/tmp/names"), Path("/tmp/output")
    before = loaded_programs()
    with (
        create_run_cgroup("hooks", None, journal) as group,
        start_daemon("tracer", {"mode": mode, "ring_bytes": 8 << 20, **config}, journal) as daemon,
    ):
        programs = len(loaded_programs() - before)
        daemon.call(
            "arm", timeout_s=300.0, cgroup_id=group.cgroup_id, spool=str(spool), files=str(names)
        )
        result = launch(["/job/known_calls", "/mnt/file", str(READS), str(THREADS)], group, output)
        receipt = daemon.call("disarm", timeout_s=300.0)
    files = [json.loads(line) for line in names.read_text().splitlines()]
    number = next(
        row["file_id"] for row in files if bytes.fromhex(row.get("path_hex", "")).endswith(b"/file")
    )
    answer: dict[str, Any] = {
        "status": result.exit_status,
        "hooks": receipt["hooks"],
        "balance": receipt["per_probe"],
        "lost": receipt["lost"],
        "overflowed": receipt["overflowed"],
        "programs": programs,
        "left": count_left(before),
    }
    if mode == "trace":
        events = sorted(EVENT.iter_unpack(spool.read_bytes()))
        file_events = [event for event in events if event[5] == number]
        first = int(output.read_text().split("\n")[0].split()[1])
        offsets = [int(line.split()[1]) for line in output.read_text().splitlines()[1:]]
        reads = [event for event in file_events if event[8] < 32 and event[4] == 4096]
        answer |= {
            "reads": len(reads),
            "read_bytes": sum(event[4] for event in reads),
            "in_order": [e[1] for e in reads if e[6] == first][: len(offsets)] == offsets,
            "writes": sorted((e[1], e[3], e[4]) for e in file_events if 32 <= e[8] < 64),
            "odd": sorted((e[1], e[3], e[4]) for e in file_events if e[8] < 32 and e[4] != 4096),
            "latencies": all(e[2] > 0 for e in file_events),
            "syncs": sum(64 <= e[8] < 96 for e in file_events),
        }
    elif mode == "count":
        rows = struct.Struct("<6Q").iter_unpack(spool.read_bytes())
        answer["counts"] = [row[1:] for row in rows if row[0] == number]
    return answer


def loaded_programs() -> set[int]:
    """Numbers of all BPF programs in the kernel (bpf(2), BPF_PROG_GET_NEXT_ID)."""
    numbers, libc = {0}, ctypes.CDLL(None, use_errno=True)
    while True:
        attribute = ctypes.create_string_buffer(struct.pack("<III", max(numbers), 0, 0), 12)
        if libc.syscall(321, 11, attribute, 12) < 0:
            return numbers
        numbers.add(struct.unpack("<III", attribute.raw)[1])


def count_left(before: set[int]) -> int:
    """Number of programs that are still loaded after the kernel has had time to free them."""
    deadline_s = time.monotonic() + 5
    while loaded_programs() - before and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return len(loaded_programs() - before)


def attempt(mode: str, **config: Any) -> dict[str, Any]:
    start_s = time.monotonic()
    try:
        answer = trace_nodes(**config) if mode == "nodes" else trace_calls(mode, **config)
    except PenstockError as error:
        answer = {"error": str(error)}
    answer["took_s"] = round(time.monotonic() - start_s, 1)
    return answer


# Only the calls: other features have their own tests, and in the guest every program costs seconds.
OTHERS = ["fault_ends", "uring_submit", "uring_submit_before_6_4", "aio_done", "aio_direct_done"]
daemon_module._READY_WITHIN_S = 300.0  # the clock of a busy emulation may run fast

report: dict[str, Any] = {"kernel": os.uname().release}
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
    report[name] = attempt(mode, **config)
    print(name, report[name], flush=True)
subprocess.run(["umount", "/mnt"], check=False)
print("RESULT " + json.dumps(report))
