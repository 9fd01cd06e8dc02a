"""Settings that engines of shared stores refuse before any node is up, and the order of replica sets."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from penstock.errors import BadInput
from penstock.parts.stores.engines.glusterfs import _bricks, _sets
from penstock.parts.stores.hints import chunk_bytes
from penstock.parts.stores.store import check, planned
from penstock.platform.stores import ready_store
from penstock.plugins import STORE_ENGINES
from penstock.spec.store import Roles, StoreSpec


def roles(storage: int) -> Roles:
    return Roles(("head",), tuple(f"node-{i}" for i in range(storage)), ("node-0",))


@pytest.mark.parametrize(
    ("engine", "parameters", "expected"),
    [
        ("glusterfs", {"chunk": 1 << 20}, "expected 4 MiB to 4 TiB"),
        ("glusterfs", {"stripe": 2}, "expected 1 or all of 4 storage nodes"),
        ("glusterfs", {"replication": "chain"}, "expected client"),
        ("glusterfs", {"placement": "local"}, "expected striped or random"),
        ("glusterfs", {"replicas": 5}, "expected at most 4"),
        ("moosefs", {"replication": "parallel"}, "expected chain"),
        ("moosefs", {"replication": "client", "replicas": 2}, "expected chain"),
        ("moosefs", {"placement": "scatter"}, "expected balanced"),
        ("moosefs", {"placement": "collocate"}, "expected balanced"),
        ("moosefs", {"placement": "local"}, "expected balanced"),
        ("hdfs", {"chunk": 1000}, "expected a multiple of 512 bytes, 65536 or more"),
        ("hdfs", {"replication": "parallel"}, "expected chain"),
        ("hdfs", {"placement": "striped"}, "expected local"),
    ],
)
def test_unsupported_settings_are_refused(
    engine: str, parameters: dict[str, object], expected: str
) -> None:
    with pytest.raises(BadInput, match=expected):
        check(STORE_ENGINES.load(engine)(), StoreSpec(engine, parameters), roles(4))


@pytest.mark.parametrize("engine", ["glusterfs", "hdfs"])
def test_supported_settings_are_accepted(engine: str) -> None:
    spec = StoreSpec(engine, {"chunk": 8 << 20, "replicas": 2})
    assert check(STORE_ENGINES.load(engine)(), spec, roles(4)) == []


#: all values of the settings for sending copies and placing chunks
WAYS = {
    "replication": ("chain", "parallel", "client"),
    "placement": (
        *("striped", "round_robin", "local", "collocate", "scatter", "random", "balanced"),
    ),
}


@pytest.mark.parametrize("engine", ["moosefs", "glusterfs", "hdfs", "cephfs"])
@pytest.mark.parametrize("key", ["replication", "placement"])
def test_an_engine_accepts_the_setting_of_its_model(engine: str, key: str) -> None:
    """An engine accepts only the ways to send copies and to place chunks that it has."""
    model, accepted = ready_store(None, engine)[key], []
    for value in WAYS[key]:
        with contextlib.suppress(BadInput):
            spec = StoreSpec(engine, {key: value})
            check(STORE_ENGINES.load(engine)(), spec, roles(4), strict=True)
            accepted.append(value)
    assert model in accepted
    assert len(accepted) < 3, f"{engine} accepts {accepted}"


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
@pytest.mark.parametrize("nodes", [4, 5, 6, 7])
def test_replica_sets_are_on_different_nodes_and_balanced(nodes: int, copies: int) -> None:
    site = planned(StoreSpec("glusterfs", {}), roles(nodes))
    site.state["bricks"] = bricks = _bricks(site, copies)
    site.state["copies"] = copies
    sets = _sets(site)
    assert all(len(set(replica_set)) == copies for replica_set in sets)
    assert len({tuple(b) for b in bricks}) == len(bricks)
    shares = Counter(host for replica_set in sets for host in replica_set)
    assert len(shares) == nodes
    assert len(set(shares.values())) == 1


def test_the_chunk_size_of_a_file_overrides_the_default() -> None:
    assert chunk_bytes("256KiB", 1) == 256 * 1024
    assert chunk_bytes("1048576", 1) == 1 << 20
    assert [chunk_bytes(text, 7) for text in (None, "", "0", "large")] == [7] * 4
