"""sshd in nodes that request it, with keys of the cluster and none of the host's configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.emulate.cluster.enter import Entrance, enter_argv
from penstock.emulate.failure import Failure
from penstock.errors import PenstockError
from penstock.spec.cluster import ClusterSpec

_STARTS_WITHIN_S = 10.0
#: directory of the configuration inside a node
_INSIDE = "/run/sshd"


class Sshd:
    """Create the keys at the first start: one host key for all nodes, one key to log in with."""

    def __init__(self, place: Path, spec: ClusterSpec) -> None:
        self._place = place
        self._spec = spec
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def key(self) -> Path:
        """Private key that every node of the cluster accepts (for root)."""
        return self._place / "id"

    def start(self, node: str, entrance: Entrance, addresses: dict[str, str]) -> None:
        """Start the server of a node; `ready` waits until it listens. Raises PenstockError."""
        program = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if program is None:
            raise PenstockError(
                f"node {node}: sshd (Debian package openssh-server) is needed for ssh: true"
            )
        self._make_keys()
        host_key, authorized = (self._place / n for n in ("host", "authorized"))
        # all three by stdin: the node sees no directory of the host, and command lines are not secret
        keys = [host_key.read_bytes(), authorized.read_bytes()]
        script = (
            f"umask 077; chmod 755 {_INSIDE}; "
            f"dd bs=1 count={len(keys[0])} of={_INSIDE}/host 2>/dev/null; "
            f"dd bs=1 count={len(keys[1])} of={_INSIDE}/authorized 2>/dev/null; "
            f"cat >{_INSIDE}/config; exec {program} -D -e -f {_INSIDE}/config"
        )
        with open(self._place / f"{node}.log", "wb") as log:
            server = subprocess.Popen(
                enter_argv(entrance, ["/bin/sh", "-c", script]),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        assert server.stdin is not None
        server.stdin.write(b"".join([*keys, _configuration(addresses).encode()]))
        server.stdin.close()
        self._running[node] = server

    def ready(self, nodes: Iterable[str]) -> None:
        """Wait until the servers of these nodes listen. Raises PenstockError for one that does not."""
        for node in nodes:
            if node in self._running:
                self._await(node, self._running[node])

    def _await(self, node: str, server: subprocess.Popen[bytes]) -> None:
        log = self._place / f"{node}.log"
        until = time.monotonic() + _STARTS_WITHIN_S
        while b"Server listening" not in log.read_bytes():
            if server.poll() is not None or time.monotonic() > until:
                lines = log.read_text(errors="replace").strip().splitlines()
                raise PenstockError(f"node {node}: sshd does not start: {' | '.join(lines[-3:])}")
            time.sleep(0.005)

    def _make_keys(self) -> None:
        if self.key.exists():
            return
        tool = shutil.which("ssh-keygen")
        if tool is None:
            raise PenstockError(
                "ssh-keygen (Debian package openssh-client) is needed for ssh: true"
            )
        self._place.mkdir(mode=0o700, exist_ok=True)
        for name in ("host", "id"):
            argv = [tool, "-q", "-t", "ed25519", "-N", "", "-C", f"penstock {self._spec.name}"]
            subprocess.run([*argv, "-f", str(self._place / name)], check=True, capture_output=True)
        (self._place / "authorized").write_text((self._place / "id.pub").read_text())

    def describe(self) -> dict[str, Any]:
        """The key, and the login command without the address."""
        if not self._running:
            return {}
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        return {"key": str(self.key), "words": ["ssh", "-i", str(self.key), *options, "-l", "root"]}

    def failures(self) -> list[Failure]:
        """Servers that ended while their nodes are up."""
        ended = ((n, s) for n, s in self._running.items() if s.poll() is not None)
        return [
            Failure("ssh server", f"ssh server of node {node} has ended", server.pid)
            for node, server in ended
        ]

    def forget(self, node: str) -> None:
        """Stop the server of a node that is gone."""
        server = self._running.pop(node, None)
        if server is not None:
            server.kill()
            server.wait()

    def forget_all(self) -> None:
        """Stop the servers of all nodes."""
        for node in list(self._running):
            self.forget(node)


def _configuration(addresses: dict[str, str]) -> str:
    lines = [f"ListenAddress {address}" for address in addresses.values()]
    lines += [
        *(f"HostKey {_INSIDE}/host", f"AuthorizedKeysFile {_INSIDE}/authorized"),
        *("PasswordAuthentication no", "KbdInteractiveAuthentication no", "UsePAM no"),
        *("PermitRootLogin prohibit-password", "StrictModes no", f"PidFile {_INSIDE}/pid"),
        *("PrintMotd no", "UseDNS no", "AcceptEnv LANG LC_*"),
    ]
    return "\n".join(lines) + "\n"
