"""Parsing of mount tables and control-group layouts of other hosts."""

from __future__ import annotations

from pathlib import Path

from penstock.host.cgroups.cgroup import hierarchies
from penstock.host.probe.clocks import clock_row
from penstock.host.storage.mounts import mount_of, mounts, parse_mountinfo

HYBRID = """\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
PURE = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_spaces_in_mount_points_and_optional_fields() -> None:
    line = r"36 35 98:0 /mnt1 /mnt/a\040b rw,noatime master:1 shared:2 - fuse.x penstock:ab rw,x=y"
    (mount,) = parse_mountinfo(line + "\nnonsense\n")
    assert mount.point == "/mnt/a b"
    assert (mount.fstype, mount.source, mount.device) == ("fuse.x", "penstock:ab", (98, 0))
    assert mount.super_options == ("rw", "x=y")


def test_hybrid_host() -> None:
    result = hierarchies(parse_mountinfo(HYBRID))
    assert result.layout == "hybrid"
    assert result.v1["cpuacct"] == result.v1["cpu"] == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert "systemd" not in result.v1
    assert "name=systemd" not in result.v1
    assert result.unified == Path("/sys/fs/cgroup/unified")


def test_v2_host_and_host_without_cgroups() -> None:
    assert hierarchies(parse_mountinfo(PURE)).layout == "v2"
    assert hierarchies([]).layout == "none"


def test_this_host() -> None:
    assert any(m.point == "/proc" for m in mounts())
    mount = mount_of("/proc/self/status")
    assert mount is not None
    assert mount.fstype == "proc"


def test_clocks_are_read_together() -> None:
    first, second = clock_row("start"), clock_row("end")
    assert first["point"] == "start"
    assert int(second["monotonic_ns"]) > int(first["monotonic_ns"])
    elapsed = {k: int(second[k]) - int(first[k]) for k in ("monotonic_ns", "boottime_ns")}
    bound = int(first["offset_bound_ns"]) + int(second["offset_bound_ns"])
    assert abs(elapsed["monotonic_ns"] - elapsed["boottime_ns"]) <= bound + 1000
