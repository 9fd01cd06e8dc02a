"""Run inside the guest: throttled disks under io.max, on all data paths. Print one JSON object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cells import MB, Cell, quick, sustained
from throttled import run as run_cells

from penstock.emulate.backends import Backends, Place
from penstock.emulate.backends.cgroup2 import IoMax
from penstock.emulate.backends.choice import missing_here
from penstock.emulate.backends.throttled import ThrottledDisk
from penstock.errors import BadInput
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import launch
from penstock.host.storage.blockdev import device_of
from penstock.host.storage.residency import drop_file_cache
from penstock.spec.cluster import DiskSpec, Limits

BASE = Path("/mnt/t")
MIB = 1 << 20
report: dict[str, Any] = {}
journal = Journal(Path("/tmp/journal"))
backends = Backends(journal, Path("/tmp/state"))
groups: list[RunCgroup] = []


def up(name: str, memory: int | None = None, **more: Any) -> tuple[ThrottledDisk, RunCgroup]:
    """A disk of a separate node."""
    group = create_run_cgroup(name, memory, journal)
    groups.append(group)
    return add(name, group, **more), group


def add(name: str, group: RunCgroup, **more: Any) -> ThrottledDisk:
    for part in ("m", "f"):
        (BASE / name / part).mkdir(parents=True, exist_ok=True)
    spec = DiskSpec(name, backend="cgroup2", size_bytes=48 * MIB, **more)
    disk = backends.up(spec, Place(name, BASE / name / "m", BASE / name / "f", group))
    assert isinstance(disk, ThrottledDisk)
    return disk


def fill(disk: ThrottledDisk, size: int = 16 * MIB) -> Path:
    path = disk.mount / "file"
    with path.open("wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())
    drop_file_cache(path)
    return path


def dd(group: RunCgroup, *operands: str) -> float:
    """Seconds that dd takes inside the group."""
    finished = launch(["dd", *operands], group, "/tmp/dd", "/tmp/dd.err")
    assert finished.exit_status == 0, Path("/tmp/dd.err").read_text()
    return finished.wall_s


def limits(disk: ThrottledDisk) -> dict[str, float | None]:
    return asdict(disk.read_back())


def ea_02() -> None:
    disk, group = up("ea02")
    path = fill(disk, 8 * MIB)
    steps = []
    for change in ({"read_bps": 4 * MB}, {"write_bps": 2 * MB}, {"read_bps": "max"}):
        applied = disk.set_limits(change)
        steps.append({"error": applied.error, "now": limits(disk)})
    cleared = dd(group, f"if={path}", "of=/dev/null", "bs=64k", "iflag=direct")
    # a limit that is set after another one was cleared
    disk.set_limits({"read_bps": 4 * MB})
    before = disk.stats()
    took = dd(group, f"if={path}", "of=/dev/null", "bs=64k", "iflag=direct")
    read = disk.stats()["read_bytes"] - before["read_bytes"]
    report["ea02"] = {"steps": steps, "cleared_s": cleared, "again_s": took, "bytes": read}


def ea_04() -> None:
    disk, group = up("ea04")
    path = fill(disk, 8 * MIB)
    operands = (f"if={path}", "of=/dev/null", "bs=1M")
    dd(group, *operands)
    free = min(dd(group, *operands) for _ in range(3))
    disk.set_limits({"read_bps": 1 * MB})
    before = disk.stats()["read_bytes"]
    limited = min(dd(group, *operands) for _ in range(3))
    report["ea04"] = {
        "free_s": free, "limited_s": limited, "device": disk.stats()["read_bytes"] - before,
    }  # fmt: skip


def ea_05() -> None:
    """Buffered writes at their durable completion: by the writer's fsync, and by the flusher alone."""
    out = {}
    for name, fsync in (("fsync", True), ("flusher", False)):
        disk, group = up(f"ea05{name}", memory=32 * MIB)
        disk.set_limits({"write_bps": 4 * MB})
        began = time.monotonic()
        extra = ["conv=fsync"] if fsync else []
        dd(group, "if=/dev/zero", f"of={disk.mount}/w", "bs=1M", "count=8", *extra)
        wrote = time.monotonic() - began
        if not fsync:
            fd = os.open(disk.mount / "w", os.O_RDONLY)
            os.fsync(fd)  # by a process outside the group
            os.close(fd)
        took = time.monotonic() - began
        out[name] = {
            "writer_s": wrote,
            "ratio": 100 * 8 * MIB / took / (4 * MB),
            "device_ratio": 100 * disk.stats()["written_bytes"] / took / (4 * MB),
        }
    report["ea05"] = out


def ea_07() -> None:
    """A short buffered read: the bytes beyond the limit at its start are readahead."""
    disk, group = up("ea07")
    path = fill(disk, 2 * MIB)
    out: dict[str, list[Any]] = {"small": [], "large": [], "free": []}
    for name, kib, limit in 5 * [
        ("small", 128, 8 * MB),
        ("large", 4096, 8 * MB),
        ("free", 128, None),
    ]:
        drop_file_cache(path)
        (disk.image.device.queue / "read_ahead_kb").write_text(str(kib))
        disk.set_limits({"read_bps": limit})
        disk.begin(BASE)
        took = dd(group, f"if={path}", "of=/dev/null", "bs=64k")
        windows = disk.end_rows()
        ratio = 100 * 2 * MIB / took / (8 * MB)
        out[name].append({"ratio": ratio, "escaped": 2 * MIB - took * 8 * MB, "windows": windows})
    report["ea07"] = out


def ea_08() -> None:
    """A limit far above the capability of the device."""
    disk, group = up("ea08")
    path = fill(disk)
    operands = (f"if={path}", "of=/dev/null", "bs=64k", "iflag=direct")
    capability = 16 * MIB / dd(group, *operands)
    disk.set_limits({"read_bps": 4 * capability})
    disk.begin(BASE)
    rate = 16 * MIB / dd(group, *operands)
    report["ea08"] = {"capability_bps": capability, "rate_bps": rate, "windows": disk.end_rows()}


def ea_09() -> None:
    """Two nodes, limited in opposite directions at t1, both free again at t2, sampled every 0.25 s."""
    nodes = [up("ea09a"), up("ea09b")]
    lines = []
    for (disk, group), pattern, direction in zip(
        nodes, ("read", "write"), ("read", "write"), strict=True
    ):
        path = fill(disk, 8 * MIB)
        argv = ["fio", "--name=x", f"--filename={path}", f"--rw={pattern}", "--bs=64k",
                 "--direct=1", "--ioengine=psync", "--time_based", "--runtime=5", "--size=8m",
                 "--rate=8000000", "--output-format=json"]  # fmt: skip
        lines.append((disk, group, argv, direction))
    at: list[dict[str, Any]] = []
    threads = [threading.Thread(target=launch, args=(w, g, "/dev/null")) for _, g, w, _ in lines]
    for thread in threads:
        thread.start()
    time.sleep(1.5)  # fio is slow to start on a software CPU
    began = time.monotonic_ns()
    for disk, _, _, direction in lines:
        disk.schedule(
            [
                {"at_ns": began + 1_000_000_000, "patch": {"limits": {f"{direction}_bps": 2e6}}},
                {"at_ns": began + 2_500_000_000, "patch": {"limits": {f"{direction}_bps": "max"}}},
            ]
        )
    while time.monotonic_ns() < began + 3_750_000_000:
        time.sleep(0.25 - (time.monotonic_ns() - began) % 250_000_000 / 1e9)
        t_ns = time.monotonic_ns() - began
        at.append({"t_ns": t_ns, "stats": [d.stats() for d, _, _, _ in lines],
                   "limits": [limits(d) for d, _, _, _ in lines]})  # fmt: skip
    for thread in threads:
        thread.join()
    report["ea09"] = {"samples": at, "events": [d.events() for d, _, _, _ in lines], "began": began}


def ea_11() -> None:
    """Memory of twice the limit: the process survives a soft limit, and is killed by a hard one."""
    path = BASE / "big"
    path.write_bytes(bytes(32 * MIB))
    greedy = "x = bytearray({} << 20)\nn = 0\nf = open('{}', 'rb', buffering=0)\nb = bytearray(1 << 20)\n"
    greedy += "while f.readinto(b): n += 1\nprint(len(x) + n)"
    out = {}
    for name, hard, soft, mib in (("soft", None, 16 * MIB, 8), ("hard", 16 * MIB, None, 32)):
        group = create_run_cgroup(f"ea11{name}", hard, journal, memory_soft_bytes=soft)
        groups.append(group)
        drop_file_cache(path)
        finished = launch(
            [sys.executable, "-S", "-c", greedy.format(mib, path)], group, "/tmp/o", "/tmp/e"
        )
        out[name] = {"status": finished.exit_status, "kills": group.oom_kills(),
                     "peak": group.peak_memory_bytes()}  # fmt: skip
    report["ea11"] = out


def ea_12() -> None:
    """Each byte of two writers of one disk is charged to its writer's group."""
    disk, group = up("ea12")
    other_group = create_run_cgroup("ea12other", None, journal)
    groups.append(other_group)
    other_limits = IoMax(other_group.paths["blkio"], disk.image.device)
    before = disk.stats()["written_bytes"], other_limits.counts().written_bytes
    dd(group, "if=/dev/zero", f"of={disk.mount}/a", "bs=1M", "count=8")
    dd(other_group, "if=/dev/zero", f"of={disk.mount}/b", "bs=1M", "count=12")
    os.sync()
    report["ea12"] = {
        "inside": disk.stats()["written_bytes"] - before[0],
        "outside": other_limits.counts().written_bytes - before[1],
    }


def em_07() -> None:
    """Charging is tried. The planted failure: a file system that takes no part in it."""
    disk, group = up("em07", limits=Limits(write_bps=4 * MB))
    report["em07"] = {"notes": disk.notes}
    spec: dict[str, Any] = {"limits": Limits(write_bps=4 * MB)}
    foreign("em07bad")
    try:
        add("em07bad", group, **spec)
        report["em07"]["refusal"] = ""
    except BadInput as refused:
        report["em07"]["refusal"] = str(refused)
    foreign("em07over")
    report["em07"]["overridden"] = add("em07over", group, **spec, allow_unhonoured=True).notes
    foreign("em07io")
    report["em07"]["direct"] = add("em07io", group, **spec, io="direct").notes


def foreign(name: str) -> None:
    """An image whose file system has its data in the journal: ext4 then does not support charging."""
    (BASE / name / "f").mkdir(parents=True)
    image = BASE / name / "f" / f"{name}.ext4"
    with image.open("wb") as file:
        file.truncate(32 * MIB)
    for argv in (["mkfs.ext4", "-q", "-F", "-b", "4096"], ["tune2fs", "-o", "journal_data"]):
        subprocess.run([*argv, str(image)], check=True, capture_output=True)


def ea_03() -> None:
    """A quick subset of the grid, with a cell whose limit is set 10 % wrong."""
    cells = [c for c in quick(2) if c.engine == "sync"]
    cells += [c for c in quick(2) if c.engine == "io_uring" and c.direct == ("read" in c.pattern)]
    planted = replace(sustained(2, Cell("psync", "read", True, 4 * MB, 64 * MB)), planted=0.1)
    directory = BASE / "grid"
    directory.mkdir()
    report["ea03"] = run_cells("cgroup2", directory, [*cells, planted], workers=3)


def main() -> None:
    BASE.mkdir()
    report["lacking"] = missing_here()
    for name in ("ea_02", "ea_04", "ea_05", "ea_07", "ea_08", "ea_09", "ea_11", "ea_12", "em_07",
                 "ea_03"):  # fmt: skip
        began = time.monotonic()
        check: Callable[[], None] = globals()[name]
        check()
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    report["device"] = asdict(device_of(BASE))
    backends.stop()
    for group in groups:
        group.remove()
    report["left"] = len(journal.open_entries())
    cgroups = Path("/sys/fs/cgroup")
    report["groups_left"] = [p.name for p in cgroups.iterdir() if p.name.startswith("penstock")]
    report["loops_left"] = [p.name for p in Path("/sys/block").glob("loop*/loop/backing_file")]
    print("RESULT " + json.dumps(report))


main()
