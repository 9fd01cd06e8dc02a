"""Owner of the other end of a connection, by the kernel's socket monitoring and by /proc/net."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from penstock.host.network import sock_diag
from penstock.parts.monitoring.usage.swift_bandwidth import accounts_of

NOBODY = 65534
CONNECT = """
import encodings.idna, os, socket, sys
os.setuid(int(sys.argv[3]))
connection = socket.create_connection(sys.argv[1:3])
input()
"""


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
@pytest.mark.parametrize("uid", [0, NOBODY])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_the_owner_is_the_user_of_the_other_process(
    family: socket.AddressFamily, host: str, uid: int
) -> None:
    with socket.create_server((host, 0), family=family) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-c", CONNECT, host, str(port), str(uid)], stdin=subprocess.PIPE
        ) as process:
            accepted, _ = server.accept()
            with accepted:
                peer, own = accepted.getpeername()[:2], accepted.getsockname()[:2]
                assert sock_diag.owners(peer, own) == {uid}
                assert accounts_of(*peer, own[1]) == {uid}
                process.communicate(b"\n")
                assert sock_diag.owners(peer, own) == set()


def test_a_mapped_ipv6_socket_is_found_by_its_ipv4_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET6) as near:
        near.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        accepted, peer = server.accept()
        with accepted:
            assert sock_diag.owners(peer, accepted.getsockname()) == {os.geteuid()}
            assert sock_diag.owners(near.getsockname()[:2], near.getpeername()[:2]) == {
                os.geteuid()
            }


def test_without_the_kernel_interface_the_owner_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel without the interface finds no socket, not even that of this process."""
    monkeypatch.setattr(sock_diag, "owner", lambda near, far: None)
    assert sock_diag.owners(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
