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


def create_node_disk(
    name: str, memory: int | None = None, **options: Any
) -> tuple[ThrottledDisk, RunCgroup]:
    """Create a disk in the control group of a separate node."""
    group = create_run_cgroup(name, memory, journal)
    groups.append(group)
    return create_disk(name, group, **options), group


def create_disk(name: str, group: RunCgroup, **options: Any) -> ThrottledDisk:
    for part in ("m", "f"):
        (BASE / name / part).mkdir(parents=True, exist_ok=True)
    spec = DiskSpec(name, backend="cgroup2", size_bytes=48 * MIB, **options)
    disk = backends.up(spec, Place(name, BASE / name / "m", BASE / name / "f", group))
    assert isinstance(disk, ThrottledDisk)
    return disk


def write_file(disk: ThrottledDisk, size: int = 16 * MIB) -> Path:
    path = disk.mount / "file"
    with path.open("wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())
    drop_file_cache(path)
    return path


def run_dd(group: RunCgroup, *operands: str) -> float:
    """Seconds that dd takes inside the group."""
    result = launch(["dd", *operands], group, "/tmp/dd", "/tmp/dd.err")
    assert result.exit_status == 0, Path("/tmp/dd.err").read_text()
    return result.wall_s


def limits(disk: ThrottledDisk) -> dict[str, float | None]:
    return asdict(disk.read_back())


def check_independent_limits() -> None:
    """Change one limit at a time, clear one, and set it again."""
    disk, group = create_node_disk("independent")
    path = write_file(disk, 8 * MIB)
    steps = []
    for change in ({"read_bps": 4 * MB}, {"write_bps": 2 * MB}, {"read_bps": "max"}):
        applied = disk.set_limits(change)
        steps.append({"error": applied.error, "now": limits(disk)})
    cleared_s = run_dd(group, f"if={path}", "of=/dev/null", "bs=64k", "iflag=direct")
    # a cleared limit is set again
    disk.set_limits({"read_bps": 4 * MB})
    before = disk.stats()
    duration_s = run_dd(group, f"if={path}", "of=/dev/null", "bs=64k", "iflag=direct")
    read = disk.stats()["read_bytes"] - before["read_bytes"]
    report["independent"] = {
        "steps": steps,
        "cleared_s": cleared_s,
        "again_s": duration_s,
        "bytes": read,
    }


def check_resident_file() -> None:
    """Read a file in the page cache under a limit."""
    disk, group = create_node_disk("resident")
    path = write_file(disk, 8 * MIB)
    operands = (f"if={path}", "of=/dev/null", "bs=1M")
    run_dd(group, *operands)
    free_s = min(run_dd(group, *operands) for _ in range(3))
    disk.set_limits({"read_bps": 1 * MB})
    before = disk.stats()["read_bytes"]
    limited_s = min(run_dd(group, *operands) for _ in range(3))
    report["resident"] = {
        "free_s": free_s, "limited_s": limited_s, "device": disk.stats()["read_bytes"] - before,
    }  # fmt: skip


def check_buffered_writes() -> None:
    """Time buffered writes until they are durable: by the writer's fsync, and by the flusher alone."""
    results = {}
    for name, fsync in (("fsync", True), ("flusher", False)):
        disk, group = create_node_disk(f"buffered{name}", memory=32 * MIB)
        disk.set_limits({"write_bps": 4 * MB})
        start_s = time.monotonic()
        extra = ["conv=fsync"] if fsync else []
        run_dd(group, "if=/dev/zero", f"of={disk.mount}/w", "bs=1M", "count=8", *extra)
        write_s = time.monotonic() - start_s
        if not fsync:
            fd = os.open(disk.mount / "w", os.O_RDONLY)
            os.fsync(fd)  # by a process outside the group
            os.close(fd)
        duration_s = time.monotonic() - start_s
        results[name] = {
            "writer_s": write_s,
            "ratio": 100 * 8 * MIB / duration_s / (4 * MB),
            "device_ratio": 100 * disk.stats()["written_bytes"] / duration_s / (4 * MB),
        }
    report["buffered"] = results


def check_short_read() -> None:
    """Read a short buffered file: bytes above the limit at its start are readahead."""
    disk, group = create_node_disk("short")
    path = write_file(disk, 2 * MIB)
    results: dict[str, list[Any]] = {"small": [], "large": [], "free": []}
    for name, kib, limit in 5 * [
        ("small", 128, 8 * MB),
        ("large", 4096, 8 * MB),
        ("free", 128, None),
    ]:
        drop_file_cache(path)
        (disk.image.device.queue / "read_ahead_kb").write_text(str(kib))
        disk.set_limits({"read_bps": limit})
        disk.begin(BASE)
        duration_s = run_dd(group, f"if={path}", "of=/dev/null", "bs=64k")
        windows = disk.end_rows()
        ratio = 100 * 2 * MIB / duration_s / (8 * MB)
        results[name].append(
            {"ratio": ratio, "escaped": 2 * MIB - duration_s * 8 * MB, "windows": windows}
        )
    report["short"] = results


def check_high_limit() -> None:
    """Set a limit far above the capability of the device."""
    disk, group = create_node_disk("high")
    path = write_file(disk)
    operands = (f"if={path}", "of=/dev/null", "bs=64k", "iflag=direct")
    capability = 16 * MIB / run_dd(group, *operands)
    disk.set_limits({"read_bps": 4 * capability})
    disk.begin(BASE)
    rate = 16 * MIB / run_dd(group, *operands)
    report["high"] = {"capability_bps": capability, "rate_bps": rate, "windows": disk.end_rows()}


def check_scheduled_changes() -> None:
    """Limit two nodes in opposite directions at t1, remove both limits at t2, sample every 0.25 s."""
    nodes = [create_node_disk("first"), create_node_disk("second")]
    lines = []
    for (disk, group), pattern, direction in zip(
        nodes, ("read", "write"), ("read", "write"), strict=True
    ):
        path = write_file(disk, 8 * MIB)
        argv = ["fio", "--name=x", f"--filename={path}", f"--rw={pattern}", "--bs=64k",
                 "--direct=1", "--ioengine=psync", "--time_based", "--runtime=5", "--size=8m",
                 "--rate=8000000", "--output-format=json"]  # fmt: skip
        lines.append((disk, group, argv, direction))
    samples: list[dict[str, Any]] = []
    threads = [threading.Thread(target=launch, args=(w, g, "/dev/null")) for _, g, w, _ in lines]
    for thread in threads:
        thread.start()
    time.sleep(1.5)  # fio is slow to start on a software CPU
    start_ns = time.monotonic_ns()
    for disk, _, _, direction in lines:
        disk.schedule(
            [
                {"at_ns": start_ns + 1_000_000_000, "patch": {"limits": {f"{direction}_bps": 2e6}}},
                {
                    "at_ns": start_ns + 2_500_000_000,
                    "patch": {"limits": {f"{direction}_bps": "max"}},
                },
            ]
        )
    while time.monotonic_ns() < start_ns + 3_750_000_000:
        time.sleep(0.25 - (time.monotonic_ns() - start_ns) % 250_000_000 / 1e9)
        t_ns = time.monotonic_ns() - start_ns
        samples.append({"t_ns": t_ns, "stats": [d.stats() for d, _, _, _ in lines],
                   "limits": [limits(d) for d, _, _, _ in lines]})  # fmt: skip
    for thread in threads:
        thread.join()
    report["scheduled"] = {
        "samples": samples,
        "events": [d.events() for d, _, _, _ in lines],
        "start_ns": start_ns,
    }


def check_memory_limits() -> None:
    """Use twice the memory limit: a process survives a soft limit and is killed by a hard one."""
    path = BASE / "big"
    path.write_bytes(bytes(32 * MIB))
    program = "x = bytearray({} << 20)\nn = 0\nf = open('{}', 'rb', buffering=0)\nb = bytearray(1 << 20)\n"
    program += "while f.readinto(b): n += 1\nprint(len(x) + n)"
    results = {}
    for name, hard, soft, memory_mib in (("soft", None, 16 * MIB, 8), ("hard", 16 * MIB, None, 32)):
        group = create_run_cgroup(f"memory{name}", hard, journal, memory_soft_bytes=soft)
        groups.append(group)
        drop_file_cache(path)
        result = launch(
            [sys.executable, "-S", "-c", program.format(memory_mib, path)],
            group,
            "/tmp/o",
            "/tmp/e",
        )
        results[name] = {"status": result.exit_status, "kills": group.oom_kills(),
                     "peak": group.peak_memory_bytes()}  # fmt: skip
    report["memory"] = results


def check_shared_disk() -> None:
    """Count the bytes charged to the groups of two writers of one disk."""
    disk, group = create_node_disk("shared")
    other_group = create_run_cgroup("other", None, journal)
    groups.append(other_group)
    other_limits = IoMax(other_group.paths["blkio"], disk.image.device)
    before = disk.stats()["written_bytes"], other_limits.counts().written_bytes
    run_dd(group, "if=/dev/zero", f"of={disk.mount}/a", "bs=1M", "count=8")
    run_dd(other_group, "if=/dev/zero", f"of={disk.mount}/b", "bs=1M", "count=12")
    os.sync()
    report["shared"] = {
        "inside": disk.stats()["written_bytes"] - before[0],
        "outside": other_limits.counts().written_bytes - before[1],
    }


def check_charging() -> None:
    """Test the detection of charging; the planted failure is a file system that does not support it."""
    disk, group = create_node_disk("charging", limits=Limits(write_bps=4 * MB))
    report["charging"] = {"notes": disk.notes}
    spec: dict[str, Any] = {"limits": Limits(write_bps=4 * MB)}
    create_uncharged_image("uncharged")
    try:
        create_disk("uncharged", group, **spec)
        report["charging"]["refusal"] = ""
    except BadInput as refused:
        report["charging"]["refusal"] = str(refused)
    create_uncharged_image("override")
    report["charging"]["overridden"] = create_disk(
        "override", group, **spec, allow_unhonoured=True
    ).notes
    create_uncharged_image("direct")
    report["charging"]["direct"] = create_disk("direct", group, **spec, io="direct").notes


def create_uncharged_image(name: str) -> None:
    """Create an image of ext4 with data journalling, which does not support charging."""
    (BASE / name / "f").mkdir(parents=True)
    image = BASE / name / "f" / f"{name}.ext4"
    with image.open("wb") as file:
        file.truncate(32 * MIB)
    for argv in (["mkfs.ext4", "-q", "-F", "-b", "4096"], ["tune2fs", "-o", "journal_data"]):
        subprocess.run([*argv, str(image)], check=True, capture_output=True)


def check_grid_cells() -> None:
    """Run a quick subset of the grid, with one cell whose limit is 10 % wrong."""
    cells = [c for c in quick(2) if c.engine == "sync"]
    cells += [c for c in quick(2) if c.engine == "io_uring" and c.direct == ("read" in c.pattern)]
    planted = replace(sustained(2, Cell("psync", "read", True, 4 * MB, 64 * MB)), planted=0.1)
    directory = BASE / "grid"
    directory.mkdir()
    report["grid"] = run_cells("cgroup2", directory, [*cells, planted], workers=3)


def main() -> None:
    BASE.mkdir()
    report["lacking"] = missing_here()
    for name in (
        "check_independent_limits",
        "check_resident_file",
        "check_buffered_writes",
        "check_short_read",
        "check_high_limit",
        "check_scheduled_changes",
        "check_memory_limits",
        "check_shared_disk",
        "check_charging",
        "check_grid_cells",
    ):
        start_s = time.monotonic()
        check: Callable[[], None] = globals()[name]
        check()
        print(f"{name}: {time.monotonic() - start_s:.1f} s", flush=True)
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
