"""The neighbour table is large enough for traffic between all pairs of nodes."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.emulate.network import Network
from penstock.host.journal.journal import Journal
from penstock.host.network.netns import inside
from penstock.spec.cluster import LinkSpec, NetworkSpec, NodeSpec
from tests.integration.net_ground import namespaces, neighbour_limits

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
LIMIT = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")


def connected_pairs(pids: Sequence[int], declared: bool, journal: Journal) -> int:
    """Number of pairs of nodes between which a datagram arrived."""
    nodes = [NodeSpec(f"n{i}", links=(LinkSpec(),)) for i in range(len(pids) if declared else 2)]
    with Network.up([NetworkSpec()], journal, nodes=nodes) as network:
        addresses = [network.attach(f"n{i}", pid).address for i, pid in enumerate(pids)]
        ends = [inside(pid, lambda: socket.socket(type=socket.SOCK_DGRAM)) for pid in pids]
        for end, address in zip(ends, addresses, strict=True):
            end.bind((address, 9999))
            end.setblocking(False)
        for end in ends:
            for address in addresses:
                try:
                    end.sendto(b"x", (address, 9999))
                except OSError:
                    continue  # no buffer: the table is full
        senders: list[set[object]] = [set() for _ in ends]
        until = time.monotonic() + (60 if declared else 1)
        while (pairs := sum(map(len, senders))) < len(pids) ** 2 and time.monotonic() < until:
            time.sleep(0.1)
            for end, known in zip(ends, senders, strict=True):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        known.add(end.recvfrom(16)[1])
        for end in ends:
            end.close()
        return pairs


def test_many_nodes_all_reach_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    journal = Journal(tmp_path / "journal.jsonl")
    with neighbour_limits():
        _assert_pairs(journal)
    assert journal.open_entries() == []


def _assert_pairs(journal: Journal) -> None:
    limit = int(LIMIT.read_text())
    count = math.isqrt(limit) + 4  # more pairs than the table of the host holds: 1,260 > 1,024
    with namespaces(count) as pids:
        assert connected_pairs(pids, True, journal) == count**2
        assert int(LIMIT.read_text()) == limit
        # planted: only two of the nodes are declared
        assert connected_pairs(pids, False, journal) < count**2
