"""Network namespaces as hosts, beside a bridge with the address of the coordinator."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.integration.node_ground import Ground
from tests.support import commands

_NUMBER = itertools.count()


def _ip(*words: str) -> None:
    commands.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespaces(subnet: str, count: int) -> Iterator[list[str]]:
    """Namespaces with the addresses `subnet`.1, .2, …; `subnet`.254 is that of this host.

    Names are new each time: links of a removed namespace stay for a moment.
    """
    name = f"ph{os.getpid() % 10000}{next(_NUMBER)}"
    names = [f"{name}-{i}" for i in range(count)]
    try:
        _ip("link", "add", name, "type", "bridge")
        _ip("addr", "add", f"{subnet}.254/24", "dev", name)
        _ip("link", "set", name, "up")
        for i, there in enumerate(names):
            link = f"{name}v{i}"
            _ip("netns", "add", there)
            _ip("link", "add", link, "type", "veth", "peer", "name", "e0", "netns", there)
            _ip("link", "set", link, "master", name, "up")
            _ip("-n", there, "addr", "add", f"{subnet}.{i + 1}/24", "dev", "e0")
            _ip("-n", there, "link", "set", "e0", "up")
            _ip("-n", there, "link", "set", "lo", "up")
        yield names
    finally:
        for there in names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", there)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", name)


@dataclass
class RemoteHosts:
    """The coordinator `here` and the hosts by name, each with a state of its own in a directory of `where`.

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
    def up(cls, names: Sequence[str], subnet: str = "10.88.251") -> Iterator[Self]:
        """Hosts of these names; everything is removed at the end."""
        with contextlib.ExitStack() as stack:
            there = stack.enter_context(namespaces(subnet, len(names)))
            where = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
            stack.callback(shutil.rmtree, where, ignore_errors=True)
            (where / "here").mkdir()
            hosts = cls(
                Ground.made(where / "here"), {}, dict(zip(names, there, strict=True)), where
            )
            lines = [hosts._add(name, f"{subnet}.{i + 1}") for i, name in enumerate(names)]
            for ground in hosts.others.values():
                stack.callback(ground.penstock, "undo", "--all")
            hosts._write(subnet, lines)
            yield hosts

    def _add(self, name: str, address: str) -> str:
        """Create a host; its line in the hosts file."""
        own = self.where / name
        own.mkdir()
        ground = self.others[name] = Ground.made(own)
        state = ground.environment["PENSTOCK_STATE"]
        ground.environment["PENSTOCK_RUNTIME"] = f"{state}/run"
        python = own / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        return (
            f"  - {{name: {name}, netns: {self.namespaces[name]}, address: {address}, link: 1 Gbit/s, "
            f"mtu: 1500, state: {state}, python: {python}}}"
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
