"""Network namespaces as hosts, behind a bridge with the address of the coordinator.

The coordinator enters them directly or, with `ssh`, through an sshd in each namespace. The sshds
have different monotonic clocks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from penstock.host.cgroups.cgroup import hierarchies
from tests.integration.node_ground import Ground
from tests.support import commands

_NUMBER = itertools.count()
#: prefix of the subnet of the hosts: this host has an address in it, so that parallel tests and runs
#: need other subnets
SUBNET = f"10.87.{os.getpid() % 256}"


def _ip(*arguments: str) -> None:
    commands.run(["ip", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces(subnet: str, count: int) -> Iterator[list[str]]:
    """Create namespaces with the addresses `subnet`.1, .2, …; this host has `subnet`.254.

    Names are new each time: links of a removed namespace stay for a moment.
    """
    name = f"ph{os.getpid() % 10000}{next(_NUMBER)}"
    names = [f"{name}-{i}" for i in range(count)]
    try:
        _ip("link", "add", name, "type", "bridge")
        _ip("addr", "add", f"{subnet}.254/24", "dev", name)
        _ip("link", "set", name, "up")
        for i, namespace in enumerate(names):
            link = f"{name}v{i}"
            _ip("netns", "add", namespace)
            _ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", namespace)
            _ip("link", "set", link, "master", name, "up")
            _ip("-n", namespace, "addr", "add", f"{subnet}.{i + 1}/24", "dev", "e0")
            _ip("-n", namespace, "link", "set", "e0", "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
        yield names
    finally:
        for namespace in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", namespace)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", name)


class SshServer:
    """An sshd in a network namespace, with keys in `where`.

    Its monotonic clock is `ahead_s` ahead of this host's.
    """

    OPTIONS = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")

    def __init__(self, namespace: str, address: str, where: Path, ahead_s: int) -> None:
        self._address, self._key = address, where / "id"
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd requires it
        for key in ("host", "id"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(where / key)]
            commands.run(argv, check=True, capture_output=True)
        lines = [
            *(f"ListenAddress {address}", f"HostKey {where}/host", f"PidFile {where}/pid"),
            *(f"AuthorizedKeysFile {where}/id.pub", "StrictModes no", "UsePAM no", "UseDNS no"),
            "PermitRootLogin prohibit-password",
        ]
        (where / "config").write_text("\n".join(lines))
        clock = ["unshare", "--time", f"--monotonic={ahead_s}", "--fork", "--kill-child", "--"]
        argv = ["nsenter", f"--net=/run/netns/{namespace}", "--", *clock, "/usr/sbin/sshd"]
        log = where / "log"
        with log.open("wb") as sink:
            self.process = commands.popen(
                [*argv, "-D", "-e", "-f", str(where / "config")], stdout=sink, stderr=sink
            )
        deadline_s = time.monotonic() + 30
        while b"Server listening" not in log.read_bytes():
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    def keys(self) -> str:
        """Keys of a worker in the hosts file."""
        arguments = ["-i", str(self._key), *(w for option in self.OPTIONS for w in ("-o", option))]
        return f"ssh: root@{self._address}, ssh_options: [{', '.join(arguments)}]"

    def end(self) -> None:
        self.process.kill()  # unshare(1) ignores SIGTERM while its child lives
        self.process.wait()


def _roots() -> set[Path]:
    """Roots of the hierarchies of control groups."""
    layout = hierarchies()
    return {*layout.v1.values(), *([layout.unified] if layout.unified else [])}


@dataclass
class RemoteHosts:
    """The coordinator `here` and the hosts by name, each with its own directory and state.

    `file` is their hosts file. The Python of a host is the script `python` in its directory.
    """

    here: Ground
    others: dict[str, Ground]
    namespaces: dict[str, str]
    where: Path

    @property
    def file(self) -> Path:
        return self.where / "hosts.yaml"

    @classmethod
    @contextlib.contextmanager
    def up(cls, names: Sequence[str], subnet: str = SUBNET, *, ssh: bool = False) -> Iterator[Self]:
        """Create hosts with these names; remove them at the end."""
        with contextlib.ExitStack() as stack:
            namespace_names = stack.enter_context(namespaces(subnet, len(names)))
            where = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
            stack.callback(shutil.rmtree, where, ignore_errors=True)
            (where / "here").mkdir()
            hosts = cls(
                Ground.create(where / "here"),
                {},
                dict(zip(names, namespace_names, strict=True)),
                where,
            )
            lines = []
            for i, name in enumerate(names):
                address = f"{subnet}.{i + 1}"
                hosts._add(name)
                access = f"netns: {hosts.namespaces[name]}"
                if ssh:
                    ssh_directory = where / name / "ssh"
                    ssh_directory.mkdir(mode=0o700)
                    server = SshServer(hosts.namespaces[name], address, ssh_directory, 1000 * i)
                    stack.callback(server.end)
                    access = server.keys()
                lines.append(hosts._line(name, address, access))
            for ground in hosts.others.values():
                stack.callback(ground.penstock, "undo", "--all")
            hosts._write(subnet, lines)
            yield hosts

    def grounds(self) -> list[Ground]:
        """The coordinator and the hosts."""
        return [self.here, *self.others.values()]

    def record_tokens(self) -> None:
        """Record the tokens in the journals, which identify their objects."""
        for ground in self.grounds():
            ground.host_objects()

    def assert_nothing_left(self) -> None:
        """Assert that no host has open changes or objects of nodes."""
        for ground in self.grounds():
            assert ground.journal().open_entries() == []
            assert ground.tokens or ground is self.here
            objects = {
                k: v
                for k, v in ground.host_objects().items()
                if v and k not in ("groups", "processes")
            }
            groups = [g for r in _roots() for g in r.glob("penstock-*")]
            objects["groups"] = [g for g in groups if any(t in g.name for t in ground.tokens)]
            assert not any(objects.values()), objects

    def _add(self, name: str) -> None:
        """Create a host."""
        directory = self.where / name
        directory.mkdir()
        ground = self.others[name] = Ground.create(directory)
        state = ground.environment["PENSTOCK_STATE"]
        ground.environment["PENSTOCK_RUNTIME"] = f"{state}/run"
        python = directory / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)

    def _line(self, name: str, address: str, access: str) -> str:
        """Line of a host in the hosts file; `access` has the fields to reach it."""
        ground = self.others[name]
        state, python = ground.environment["PENSTOCK_STATE"], ground.where / "python"
        return (
            f"  - {{name: {name}, {access}, address: {address}, link: 1 Gbit/s, mtu: 1500, "
            f"state: {state}, python: {python}}}"
        )

    def _write(self, subnet: str, workers: list[str]) -> None:
        facts = self.here.penstock("hosts", "facts", "--json")
        assert facts.returncode == 0, facts.stderr
        (self.where / "facts").mkdir()
        for name in self.others:
            (self.where / "facts" / f"{name}.json").write_text(facts.stdout)
        head = ["penstock_hosts: 1", f"listen: {subnet}.254", "workers:"]
        paths = "paths: [{from: '*', to: '*', latency: 20us}]"
        self.file.write_text("\n".join([*head, *workers, paths]))
