"""Isolation of virtual nodes: attempts of their root to reach the host are refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.cluster.cluster import Cluster
from penstock.errors import BadInput, PenstockError
from penstock.host.nodes.isolation import isolation_of
from penstock.host.nodes.spawner import ENTER, PATH
from penstock.host.processes.processes import start_ticks
from penstock.spec.cluster import ClusterSpec, DiskSpec, NodeSpec
from penstock.spec.privileges import CAPABILITIES
from tests.integration.node_ground import NODES, RUNTIMES, Ground, one_ground

ATTACKS = Path(__file__).with_name("node_attacks.py")

__all__ = ["one_ground"]  # a fixture
pytestmark = NODES


def one_node(ground: Ground, runtime: str, *privileges: str) -> Cluster:
    """A cluster of one node with a disk."""
    node = NodeSpec("one", disks=(DiskSpec("d"),), privileges=privileges)
    spec = ClusterSpec("gt", (node,), runtime=runtime)  # type: ignore[arg-type]
    return Cluster.up(spec, ground.journal(), outlive=False)


def report_of_attacks(ground: Ground, runtime: str, *privileges: str) -> Any:
    """Run the attacks inside a new node and return their report."""
    out = ground.where / "said"
    with one_node(ground, runtime, *privileges) as cluster:
        argv = [sys.executable, "-S", "-c", ATTACKS.read_text(), str(os.getpid())]
        result = cluster.exec("one", argv, stdout=out)
        assert result.exit_status == 0
        rules = cluster.nodes["one"].cgroup.paths["cpu"].parents[1] / "devices"
        group = next(rules.glob("penstock-gt-one-*"), None)
        report = json.loads(out.read_text())
        if group is not None:
            report["rules"] = (group / "devices.list").read_text().split("\n")
        return report


def names(bits: str) -> set[str]:
    """Names of the capabilities in a mask of /proc/PID/status."""
    return {name for number, name in enumerate(CAPABILITIES) if int(bits, 16) >> number & 1}


@RUNTIMES
def test_root_of_a_node_cannot_reach_the_host(ground: Ground, runtime: str) -> None:
    report = report_of_attacks(ground, runtime)
    assert {attack for attack, error in report["tries"].items() if not error} == set()
    assert len(report["tries"]) > 90
    capabilities = set(isolation_of(()).capabilities)
    assert "SYS_ADMIN" not in capabilities
    for pid in ("self", "1"):
        status = report["status"][pid]
        assert [names(status[k]) for k in ("CapEff", "CapPrm", "CapBnd")] == [capabilities] * 3
        assert [names(status[k]) for k in ("CapInh", "CapAmb")] == [set(), set()]
        assert status["Seccomp"] == "2"
    devices = "null zero full random urandom tty pts/ptmx".split()
    assert report["devices"] == sorted(f"/dev/{name}" for name in devices)
    for point in ("/", "/tmp", "/run", "/disks/d"):
        assert "nodev" in report["mounts"][point]
    # the program of the first process is a copy of the host's file, or the node cannot write to it
    for program in (ENTER, "/bin/sh", shutil.which("sleep") or "/bin/sleep"):
        stat = os.stat(program)
        assert report["first"] != [stat.st_dev, stat.st_ino] or report["first_read_only"]
    if "rules" in report:
        assert not any(rule.startswith(("a ", "b ")) and "r" in rule for rule in report["rules"])


@RUNTIMES
def test_a_command_gets_only_the_requested_environment(
    ground: Ground, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the caller")
    out = ground.where / "said"
    with one_node(ground, runtime) as cluster:
        for env in ({}, {"ASKED": "for"}):
            assert cluster.exec("one", ["env"], stdout=out, env=env).exit_status == 0
            actual = dict(line.split("=", 1) for line in out.read_text().splitlines())
            assert actual == {"PATH": PATH, "HOME": "/root", **env}


@RUNTIMES
def test_a_node_has_the_privileges_of_its_spec(ground: Ground, runtime: str) -> None:
    privileges = ("SYS_TIME", "SYS_ADMIN", "/dev/fuse", "/dev/loop-control")
    report = report_of_attacks(ground, runtime, *privileges)
    capabilities = {*isolation_of(()).capabilities, "SYS_TIME", "SYS_ADMIN"}
    assert names(report["status"]["self"]["CapEff"]) == capabilities
    assert {"/dev/fuse", "/dev/loop-control"} <= set(report["devices"])
    tries = report["tries"]
    assert [tries[t] for t in ("mount tmpfs", "write /dev/fuse", "sethostname")] == [""] * 3
    assert tries["settimeofday"] == ""
    assert tries["reboot"] == tries["init_module"] == "EPERM"


@RUNTIMES
def test_programs_of_data_systems_run(ground: Ground, runtime: str) -> None:
    """Use locked memory, io_uring, other users, control group files, threads and a debugger."""
    with one_node(ground, runtime) as cluster:

        def output_of(command: str, **options: Any) -> str:
            out = ground.where / "said"
            result = cluster.exec("one", ["/bin/sh", "-c", command], stdout=out, **options)
            assert result.exit_status == 0, command
            return out.read_text()

        assert output_of("id -u", user="nobody") == "65534\n"
        assert names(output_of("grep CapEff /proc/self/status", user="nobody").split()[1]) == set()
        assert output_of("setpriv --reuid=65534 --clear-groups id -u") == "65534\n"
        assert output_of("cat /sys/fs/cgroup/cpu/cpu.shares /proc/self/cgroup | head -1").strip()
        fio = "fio --name=a --filename=/disks/d/f --size=1M --rw=randwrite --output-format=terse --minimal "
        for engine in ("io_uring", "libaio", "psync", "mmap"):
            if shutil.which("fio"):
                assert output_of(f"{fio} --ioengine={engine} --lockmem=1M")
        if shutil.which("java"):
            output_of("java -Xmx64m -XX:+AlwaysPreTouch -version 2>&1")
        if shutil.which("strace"):
            output_of("strace -o /tmp/t true; test -s /tmp/t")


@RUNTIMES
def test_a_command_returns_its_own_exit_status(ground: Ground, runtime: str) -> None:
    with one_node(ground, runtime) as cluster:
        for command, status in (("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)):
            assert cluster.exec("one", ["/bin/sh", "-c", command]).exit_status == status
        assert cluster.exec("one", ["no-such-program"]).exit_status == 127
        assert cluster.exec("one", ["/etc/hosts"]).exit_status == 126
        assert cluster.exec("one", ["true"], cwd="/no/such/place").exit_status == 125
        running = cluster.nodes["one"]
        running.cgroup.kill()
        until = time.monotonic() + 60
        while start_ticks(running.pid) == running.start_ticks and time.monotonic() < until:
            time.sleep(0.01)  # the kernel ends the process with a delay
        with pytest.raises(PenstockError, match=r"died|failed"):
            running.enter(["true"])


@pytest.mark.parametrize(
    "wrong", ["SYS_TIMES", "CAP_SYS_TIME", "/etc/passwd", "/dev/../etc/passwd"]
)
def test_an_unknown_privilege_is_refused(ground: Ground, wrong: str) -> None:
    with pytest.raises(BadInput, match="privileges"):
        one_node(ground, "auto", wrong)


def test_a_missing_device_leaves_nothing_on_the_host(ground: Ground) -> None:
    before = ground.host_objects()
    with pytest.raises(PenstockError, match="/dev/no-such-device"):
        one_node(ground, "auto", "/dev/no-such-device")
    ground.assert_host_objects(before)


def test_auto_selects_runc_if_installed(ground: Ground) -> None:
    with one_node(ground, "auto") as cluster:
        installed = shutil.which("runc") is not None
        assert cluster.described["runtime"] == ("runc" if installed else "namespaces")
