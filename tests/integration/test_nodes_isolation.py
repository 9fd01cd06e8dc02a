"""What root inside a virtual node can reach of the host: everything that it tries is refused."""

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


def attacked(ground: Ground, runtime: str, *privileges: str) -> Any:
    """What the attacks say inside a node of its own."""
    out = ground.where / "said"
    with one_node(ground, runtime, *privileges) as cluster:
        words = [sys.executable, "-S", "-c", ATTACKS.read_text(), str(os.getpid())]
        done = cluster.exec("one", words, stdout=out)
        assert done.exit_status == 0
        rules = cluster.nodes["one"].cgroup.paths["cpu"].parents[1] / "devices"
        group = next(rules.glob("penstock-gt-one-*"), None)
        said = json.loads(out.read_text())
        if group is not None:
            said["rules"] = (group / "devices.list").read_text().split("\n")
        return said


def names(bits: str) -> set[str]:
    """The capabilities of a line of /proc/PID/status."""
    return {name for number, name in enumerate(CAPABILITIES) if int(bits, 16) >> number & 1}


@RUNTIMES
def test_root_inside_reaches_nothing_of_the_host(ground: Ground, runtime: str) -> None:
    says = attacked(ground, runtime)
    assert {what for what, error in says["tries"].items() if not error} == set()
    assert len(says["tries"]) > 90
    kept = set(isolation_of(()).capabilities)
    assert "SYS_ADMIN" not in kept
    for who in ("self", "1"):
        status = says["status"][who]
        assert [names(status[k]) for k in ("CapEff", "CapPrm", "CapBnd")] == [kept] * 3
        assert [names(status[k]) for k in ("CapInh", "CapAmb")] == [set(), set()]
        assert status["Seccomp"] == "2"
    devices = "null zero full random urandom tty pts/ptmx".split()
    assert says["devices"] == sorted(f"/dev/{name}" for name in devices)
    for point in ("/", "/tmp", "/run", "/disks/d"):
        assert "nodev" in says["mounts"][point]
    # what the first process runs is not the host's own file, or nobody can change it there
    for program in (ENTER, "/bin/sh", shutil.which("sleep") or "/bin/sleep"):
        found = os.stat(program)
        assert says["first"] != [found.st_dev, found.st_ino] or says["first_read_only"]
    if "rules" in says:
        assert not any(rule.startswith(("a ", "b ")) and "r" in rule for rule in says["rules"])


@RUNTIMES
def test_a_command_gets_of_the_caller_s_environment_what_was_asked(
    ground: Ground, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the caller")
    out = ground.where / "said"
    with one_node(ground, runtime) as cluster:
        for env in ({}, {"ASKED": "for"}):
            assert cluster.exec("one", ["env"], stdout=out, env=env).exit_status == 0
            said = dict(line.split("=", 1) for line in out.read_text().splitlines())
            assert said == {"PATH": PATH, "HOME": "/root", **env}


@RUNTIMES
def test_a_node_has_what_it_is_given_by_name(ground: Ground, runtime: str) -> None:
    given = ("SYS_TIME", "SYS_ADMIN", "/dev/fuse", "/dev/loop-control")
    says = attacked(ground, runtime, *given)
    kept = {*isolation_of(()).capabilities, "SYS_TIME", "SYS_ADMIN"}
    assert names(says["status"]["self"]["CapEff"]) == kept
    assert {"/dev/fuse", "/dev/loop-control"} <= set(says["devices"])
    tries = says["tries"]
    assert [tries[t] for t in ("mount tmpfs", "write /dev/fuse", "sethostname")] == [""] * 3
    assert tries["settimeofday"] == ""
    assert tries["reboot"] == tries["init_module"] == "EPERM"


@RUNTIMES
def test_programs_of_data_systems_run(ground: Ground, runtime: str) -> None:
    """Locked memory, io_uring, other users, limits to be read, threads, a debugger's own child."""
    with one_node(ground, runtime) as cluster:

        def said(command: str, **options: Any) -> str:
            out = ground.where / "said"
            done = cluster.exec("one", ["/bin/sh", "-c", command], stdout=out, **options)
            assert done.exit_status == 0, command
            return out.read_text()

        assert said("id -u", user="nobody") == "65534\n"
        assert names(said("grep CapEff /proc/self/status", user="nobody").split()[1]) == set()
        assert said("setpriv --reuid=65534 --clear-groups id -u") == "65534\n"
        assert said("cat /sys/fs/cgroup/cpu/cpu.shares /proc/self/cgroup | head -1").strip()
        fio = "fio --name=a --filename=/disks/d/f --size=1M --rw=randwrite --output-format=terse --minimal "
        for engine in ("io_uring", "libaio", "psync", "mmap"):
            if shutil.which("fio"):
                assert said(f"{fio} --ioengine={engine} --lockmem=1M")
        if shutil.which("java"):
            said("java -Xmx64m -XX:+AlwaysPreTouch -version 2>&1")
        if shutil.which("strace"):
            said("strace -o /tmp/t true; test -s /tmp/t")


@RUNTIMES
def test_a_command_ends_as_itself(ground: Ground, runtime: str) -> None:
    with one_node(ground, runtime) as cluster:
        for command, status in (("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)):
            assert cluster.exec("one", ["/bin/sh", "-c", command]).exit_status == status
        assert cluster.exec("one", ["no-such-program"]).exit_status == 127
        assert cluster.exec("one", ["/etc/hosts"]).exit_status == 126
        assert cluster.exec("one", ["true"], cwd="/no/such/place").exit_status == 125
        running = cluster.nodes["one"]
        running.cgroup.kill()
        until = time.monotonic() + 10
        while start_ticks(running.pid) == running.start_ticks and time.monotonic() < until:
            time.sleep(0.01)  # the kernel ends it when it gets to it
        with pytest.raises(PenstockError, match=r"died|failed"):
            running.enter(["true"])


@pytest.mark.parametrize(
    "wrong", ["SYS_TIMES", "CAP_SYS_TIME", "/etc/passwd", "/dev/../etc/passwd"]
)
def test_a_privilege_that_is_none_is_named(ground: Ground, wrong: str) -> None:
    with pytest.raises(BadInput, match="privileges"):
        one_node(ground, "auto", wrong)


def test_a_device_that_is_not_there_leaves_nothing(ground: Ground) -> None:
    before = ground.seen()
    with pytest.raises(PenstockError, match="/dev/no-such-device"):
        one_node(ground, "auto", "/dev/no-such-device")
    assert ground.seen() == before


def test_runc_makes_the_nodes_where_it_is_there(ground: Ground) -> None:
    with one_node(ground, "auto") as cluster:
        there = shutil.which("runc") is not None
        assert cluster.described["runtime"] == ("runc" if there else "namespaces")
