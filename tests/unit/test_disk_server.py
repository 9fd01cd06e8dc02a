"""Limits of the emulated disks' page cache."""

from __future__ import annotations

import os

import pytest

from penstock.emulate.disks.server import MOST_DIRTY_BYTES, dirty_bytes_of_node

PAGE = os.sysconf("SC_PAGE_SIZE")


def _vmstat(limit_bytes: int) -> str:
    return f"nr_dirty 7\nnr_dirty_threshold {limit_bytes // PAGE}\npgpgin 9\n"


@pytest.mark.parametrize(("nodes", "share"), [(1, 2), (5, 6), (16, 17)])
def test_nodes_and_host_share_the_limit_of_the_host(nodes: int, share: int) -> None:
    host = 4 << 30
    limit = dirty_bytes_of_node(nodes, _vmstat(host))
    assert limit == host // PAGE * PAGE // share
    assert (nodes + 1) * limit <= host


def test_many_nodes_and_unknown_limits_get_the_usual_one() -> None:
    assert dirty_bytes_of_node(100, _vmstat(4 << 30)) == MOST_DIRTY_BYTES
    assert dirty_bytes_of_node(1, "nr_dirty 7\n") == MOST_DIRTY_BYTES
