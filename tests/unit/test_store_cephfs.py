"""CephFS without nodes: layouts, CRUSH maps, the hash of an object's name, what is refused before a start."""

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


def test_the_roots_layout_is_what_the_platform_says() -> None:
    plain = root_layout(site())
    assert (plain["stripe_unit"], plain["stripe_count"], plain["object_size"]) == (
        4 * MIB,
        1,
        4 * MIB,
    )
    assert root_layout(site(chunk=256 * KIB, stripe=4))["object_size"] == 256 * KIB
    narrow = root_layout(site(chunk=192 * KIB, stripe=2))
    # two objects as large as they may be, so that a file has no third; an integer number of chunks
    assert narrow["stripe_count"] == 2
    assert narrow["object_size"] % (192 * KIB) == 0
    assert 2**30 - 192 * KIB < narrow["object_size"] <= 2**30


def test_a_chunks_size_keeps_how_many_lie_together() -> None:
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
def test_what_cannot_be_had_is_said_before_a_start(
    parameters: dict[str, Any], expected: str
) -> None:
    said = CephFS().refusal(site(**parameters))
    assert expected in said
    assert bool(said) == bool(expected)


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
def test_placement_groups_lie_on_all_nodes_alike(
    among: list[int], copies: int, groups: int
) -> None:
    placed = in_turn(among, copies, groups)
    assert all(len(set(on)) == copies for on in placed)
    held = Counter(n for on in placed for n in on)
    assert set(held) == set(among)
    assert max(held.values()) - min(held.values()) <= copies
    first = Counter(on[0] for on in placed)
    assert max(first.values()) - min(first.values()) <= 1


@pytest.mark.long
def test_crush_puts_copies_where_a_rule_says(tmp_path: Path) -> None:
    rules: list[dict[str, Any]] = [
        {"first": None, "others": [0, 1, 2, 3]},
        {"first": 2, "others": [0, 1, 3]},
        {"first": None, "others": [1, 2]},
        {"first": 0, "others": []},
    ]
    (tmp_path / "map.txt").write_text(crush_map(4, rules))
    words = ["crushtool", "-c", "map.txt", "-o", "map"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)

    def mapped(rule: int, copies: int) -> list[list[int]]:
        words = ["crushtool", "-i", "map", "--test", "--show-mappings", "--rule", str(rule)]
        words += ["--num-rep", str(copies), "--min-x", "0", "--max-x", "199"]
        said = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
        found = re.findall(r"\[([0-9,]*)\]", said.stdout)
        return [[int(n) for n in one.split(",")] for one in found]

    for rule, copies in ((0, 1), (0, 3), (1, 1), (1, 4), (2, 2), (3, 1)):
        first, others = rules[rule]["first"], rules[rule]["others"]
        placed = mapped(rule, copies)
        assert len(placed) == 200
        for one in placed:
            assert len(set(one)) == copies
            assert first is None or one[0] == first
            assert set(one) - {first} <= set(others)
        if first is None:
            assert {n for one in placed for n in one} == set(others)


def test_the_hash_of_an_objects_name() -> None:
    """As `ceph osd map` of 16.2.15 gave them."""
    script = ceph_layout._LOCATE
    found: dict[str, Any] = {}
    exec(script[script.index("def mixed") : script.index("cluster = ")], found)
    assert found["hashed"](b"100000001f6.00000000") == 0xACAE7FEA
    assert found["hashed"](b"100000001f6.00000001") == 0xD20DB6BC


def test_a_pool_that_a_client_has_not_heard_of_is_known_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attribute says `pool=7` until the client's map of OSDs has the new pool."""
    said = "stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=7"
    monkeypatch.setattr(ceph_layout, "python", lambda *_: said)
    up = site()
    up.state["pools"] = {"data": {"number": 2}, "rule1_1": {"number": 7}}
    node: Any = object()
    assert ceph_layout.layout_of(up, node, "/f")["pool"] == "rule1_1"
    monkeypatch.setattr(ceph_layout, "python", lambda *_: said.replace("=7", "=data"))
    assert ceph_layout.layout_of(up, node, "/f")["pool"] == "data"


def test_two_pools_that_are_asked_for_at_once_both_have_their_rule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hints of several files are set at the same time; each map of rules must have those before it."""
    maps: list[str] = []

    def asked(_: Site, *commands: dict[str, Any], **__: Any) -> list[Any]:
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

    def written(_: Site, __: Any, at: str, text: str) -> None:
        time.sleep(0.05)  # another one could come between reading the rules and setting the map
        maps.append(text)

    monkeypatch.setattr(ceph_pools, "ask", asked)
    monkeypatch.setattr(ceph_pools, "home", lambda *_: str(tmp_path))
    monkeypatch.setattr(Site, "write", written)
    monkeypatch.setattr(Site, "run", lambda *_, **__: None)
    up = site()
    up.state.update({"pools": {}, "rules": [], "osds": ["a", "b", "c", "d"]})
    with ThreadPoolExecutor(4) as together:
        names = list(together.map(lambda n: ceph_pools.pool(up, n, [n], 1), range(4)))
    assert len(set(names)) == 4
    assert maps[-1].count("\nrule rule") == 4
