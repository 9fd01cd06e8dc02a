"""CephFS without nodes: layouts, CRUSH maps, hashes of object names, and settings refused before a start."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.parts.stores.engines import ceph_layout, ceph_pools
from penstock.parts.stores.engines.ceph_layout import (
    root_layout,
    spread,
    with_chunk,
    with_chunks_together,
)
from penstock.parts.stores.engines.ceph_pools import crush_map, in_turn
from penstock.parts.stores.engines.cephfs import CephFS, client_options
from penstock.parts.stores.engines.engine import Site
from penstock.spec.store import StoreSpec

KIB, MIB = 2**10, 2**20


def site(**parameters: Any) -> Site:
    nodes: Any = tuple(SimpleNamespace(name=f"node-{i}") for i in range(4))
    return Site("s", StoreSpec("cephfs", parameters), nodes[:1], nodes, nodes, Path("/none"))


def test_the_layout_of_the_root_follows_the_platform() -> None:
    plain = root_layout(site())
    assert (plain["stripe_unit"], plain["stripe_count"], plain["object_size"]) == (
        4 * MIB,
        1,
        4 * MIB,
    )
    assert root_layout(site(chunk=256 * KIB, stripe=4))["object_size"] == 256 * KIB
    narrow = root_layout(site(chunk=192 * KIB, stripe=2))
    # two objects of maximal size, so that a file has no third; an integer number of chunks
    assert narrow["stripe_count"] == 2
    assert narrow["object_size"] % (192 * KIB) == 0
    assert 2**30 - 192 * KIB < narrow["object_size"] <= 2**30


def test_a_change_of_chunk_size_keeps_the_chunks_of_an_object() -> None:
    layout = root_layout(site())
    assert with_chunk(layout, 256 * KIB) == ""
    assert with_chunks_together(layout, 8) == ""
    assert (layout["stripe_unit"], layout["object_size"]) == (256 * KIB, 2 * MIB)
    assert with_chunk(layout, 64 * KIB) == ""
    assert (layout["stripe_unit"], layout["object_size"]) == (64 * KIB, 512 * KIB)
    before = dict(layout)
    assert "multiple of 64 KiB" in with_chunk(layout, 100_000)
    assert "at most 1024 MiB in a row" in with_chunks_together(layout, 16385)
    assert layout == before
    narrow = root_layout(site(stripe=1))
    assert with_chunk(narrow, MIB) == ""
    assert (narrow["stripe_count"], narrow["object_size"]) == (1, 2**30)
    spread(narrow)
    assert (narrow["stripe_unit"], narrow["object_size"]) == (MIB, MIB)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"chunk": 100_000}, "chunk: found 100000 bytes; expected a multiple of 64 KiB"),
        ({"chunk": 2**31}, "up to 1024 MiB"),
        ({"replication": "chain"}, "replication: found chain; expected parallel"),
        ({"chunk": 64 * KIB, "replication": "parallel"}, ""),
    ],
)
def test_unsupported_settings_are_refused_before_a_start(
    parameters: dict[str, Any], expected: str
) -> None:
    message = CephFS().refusal(site(**parameters))
    assert expected in message
    assert bool(message) == bool(expected)


@pytest.mark.parametrize(
    ("parameters", "cache", "ahead"),
    [
        ({}, 64 * MIB, 32 * MIB),
        ({"cache": 0}, MIB, MIB // 2),
        ({"cache": 0, "prefetch": 4, "chunk": 4 * MIB}, MIB, MIB // 2),
        ({"cache": 8 * MIB, "prefetch": 4, "chunk": 256 * KIB}, 8 * MIB, MIB),
        ({"cache": 8 * MIB, "prefetch": 0, "chunk": 64 * KIB}, 8 * MIB, 64 * KIB),
    ],
)
def test_at_most_half_of_the_cache_is_read_ahead(
    parameters: dict[str, Any], cache: int, ahead: int
) -> None:
    assert client_options(parameters) == [
        f"--client_oc_size={cache}",
        f"--client_readahead_max_bytes={ahead}",
    ]


@pytest.mark.parametrize(("among", "copies", "groups"), [([0, 1, 2], 1, 32), ([1, 3], 2, 16)])
def test_placement_groups_are_balanced_over_nodes(
    among: list[int], copies: int, groups: int
) -> None:
    placed = in_turn(among, copies, groups)
    assert all(len(set(on)) == copies for on in placed)
    groups_of_node = Counter(n for on in placed for n in on)
    assert set(groups_of_node) == set(among)
    assert max(groups_of_node.values()) - min(groups_of_node.values()) <= copies
    primaries = Counter(on[0] for on in placed)
    assert max(primaries.values()) - min(primaries.values()) <= 1


@pytest.mark.long
def test_crush_follows_the_placement_rules(tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [
        {"first": None, "others": [0, 1, 2, 3]},
        {"first": 2, "others": [0, 1, 3]},
        {"first": None, "others": [1, 2]},
        {"first": 0, "others": []},
    ]
    (tmp_path / "map.txt").write_text(crush_map(4, rules))
    argv = ["crushtool", "-c", "map.txt", "-o", "map"]
    subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True)

    def mapped(rule: int, copies: int) -> list[list[int]]:
        argv = ["crushtool", "-i", "map", "--test", "--show-mappings", "--rule", str(rule)]
        argv += ["--num-rep", str(copies), "--min-x", "0", "--max-x", "199"]
        result = subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True, text=True)
        mappings = re.findall(r"\[([0-9,]*)\]", result.stdout)
        return [[int(n) for n in mapping.split(",")] for mapping in mappings]

    for rule, copies in ((0, 1), (0, 3), (1, 1), (1, 4), (2, 2), (3, 1)):
        first, others = rules[rule]["first"], rules[rule]["others"]
        placed = mapped(rule, copies)
        assert len(placed) == 200
        for nodes in placed:
            assert len(set(nodes)) == copies
            assert first is None or nodes[0] == first
            assert set(nodes) - {first} <= set(others)
        if first is None:
            assert {n for nodes in placed for n in nodes} == set(others)


def test_the_hash_of_an_objects_name() -> None:
    """Equal to the output of `ceph osd map` of 16.2.15."""
    script = ceph_layout._LOCATE
    namespace: dict[str, Any] = {}
    exec(script[script.index("def mixed") : script.index("cluster = ")], namespace)
    assert namespace["hashed"](b"100000001f6.00000000") == 0xACAE7FEA
    assert namespace["hashed"](b"100000001f6.00000001") == 0xD20DB6BC


def test_a_pool_that_is_new_to_a_client_is_identified_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attribute is `pool=7` until the client's OSD map has the new pool."""
    layout = "stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=7"
    monkeypatch.setattr(ceph_layout, "python", lambda *_: layout)
    running = site()
    running.state["pools"] = {"data": {"number": 2}, "rule1_1": {"number": 7}}
    node: Any = object()
    assert ceph_layout.layout_of(running, node, "/f")["pool"] == "rule1_1"
    monkeypatch.setattr(ceph_layout, "python", lambda *_: layout.replace("=7", "=data"))
    assert ceph_layout.layout_of(running, node, "/f")["pool"] == "data"


def test_pools_created_concurrently_all_keep_their_rules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hints of several files are set at the same time; each CRUSH map must contain all earlier rules."""
    maps: list[str] = []

    def fake_ask(_: Site, *commands: dict[str, Any], **__: Any) -> list[Any]:
        if commands[0]["prefix"] == "osd pool create":
            assert f"rule {commands[0]['rule']} " in maps[-1]
            return [None, [{"poolname": commands[0]["pool"], "poolnum": len(maps)}]]
        if commands[0]["prefix"] == "pg dump":
            numbers = range(1, 9)
            return [
                {
                    "pg_stats": [
                        {"pgid": f"{n}.{g}", "state": "active"} for n in numbers for g in range(4)
                    ]
                }
            ]
        return [None] * len(commands)

    def fake_write(_: Site, __: Any, at: str, text: str) -> None:
        time.sleep(0.05)  # time for another thread between reading the rules and setting the map
        maps.append(text)

    monkeypatch.setattr(ceph_pools, "ask", fake_ask)
    monkeypatch.setattr(ceph_pools, "home", lambda *_: str(tmp_path))
    monkeypatch.setattr(Site, "write", fake_write)
    monkeypatch.setattr(Site, "run", lambda *_, **__: None)
    running = site()
    running.state.update({"pools": {}, "rules": [], "osds": ["a", "b", "c", "d"]})
    with ThreadPoolExecutor(4) as executor:
        names = list(executor.map(lambda n: ceph_pools.pool(running, n, [n], 1), range(4)))
    assert len(set(names)) == 4
    assert maps[-1].count("\nrule rule") == 4
