"""Placement of copies by Ceph: CRUSH rules and pools, created on first use."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.parts.stores.engines.ceph_daemons import ask, home
from penstock.parts.stores.engines.engine import Site

#: each store has exactly one
FILE_SYSTEM = "penstock"
METADATA, DATA = "penstock_metadata", "penstock_data"
_POOL_WITHIN_S = 60.0
_MAKING = threading.Lock()
_TUNABLES = (
    "tunable choose_local_tries 0",
    "tunable choose_local_fallback_tries 0",
    "tunable choose_total_tries 50",
    "tunable chooseleaf_descend_once 1",
    "tunable chooseleaf_vary_r 1",
    "tunable chooseleaf_stable 1",
    "tunable straw_calc_version 1",
    "tunable allowed_bucket_algs 54",
)


def pool(site: Site, first: int | None, among: list[int], copies: int, name: str = "") -> str:
    """Pool with a number of copies, the first on a named OSD if any, the others among given OSDs.

    Pools are created one at a time: two CRUSH maps derived from the same one would lose the first one's rule.
    """
    with _MAKING:
        return _pool(site, first, among, copies, name)


def _pool(site: Site, first: int | None, among: list[int], copies: int, name: str) -> str:
    pools: dict[str, dict[str, Any]] = site.state["pools"]
    placement = {"first": first, "among": among, "copies": copies}
    for existing, has in pools.items():
        if not name and existing != METADATA and has.items() >= placement.items():
            return existing
    rule = _rule(site, first, [n for n in among if n != first])
    name = name or f"{rule}_{copies}"
    # about eight placement groups per OSD for a pool over several OSDs
    spread = first is None and len(among) > 1
    groups = 1 << (8 * len(among) - 1).bit_length() if spread else 4
    create = {"prefix": "osd pool create", "pool": name, "pg_num": groups, "pgp_num": groups}
    create |= {"pool_type": "replicated", "rule": rule, "size": copies}
    _, pools_now = ask(site, create, {"prefix": "osd lspools"})
    number = next(p["poolnum"] for p in pools_now if p["poolname"] == name)
    if spread:
        placed = enumerate(in_turn(among, copies, groups))
        moves = [{"pgid": f"{number}.{g:x}", "id": on} for g, on in placed]
        ask(site, *({"prefix": "osd pg-upmap", **one} for one in moves), at_once=16)
    if name not in (METADATA, DATA):
        ask(site, {"prefix": "fs add_data_pool", "fs_name": FILE_SYSTEM, "pool": name})
    site.wait(
        lambda: _active(site, number) == groups,
        f"the placement groups of the pool {name} have not become active",
        _POOL_WITHIN_S,
    )
    pools[name] = {**placement, "groups": groups, "number": number}
    return name


def in_turn(among: list[int], copies: int, groups: int) -> list[list[int]]:
    """OSDs of each placement group, balanced over the OSDs.

    CRUSH chooses randomly, which is uneven for few groups.
    """
    return [[among[(g + i) % len(among)] for i in range(copies)] for g in range(groups)]


def _active(site: Site, number: int) -> int:
    """Number of active placement groups of a pool."""
    (dump,) = ask(site, {"prefix": "pg dump", "dumpcontents": ["pgs_brief"]}, mgr=(0,))
    ours = [p for p in dump["pg_stats"] if p["pgid"].startswith(f"{number}.")]
    return sum("active" in p["state"].split("+") for p in ours)


def _rule(site: Site, first: int | None, others: list[int]) -> str:
    """CRUSH rule that takes `first`, if named, and then any of the `others`; created on first use."""
    rules: list[dict[str, Any]] = site.state["rules"]
    placement = {"first": first, "others": others}
    if placement not in rules:
        manager = site.managers[0]
        at = home(site, manager)
        text = crush_map(len(site.state["osds"]), [*rules, placement])
        site.write(manager, f"{at}/crush.txt", text)
        argv = ["crushtool", "-c", f"{at}/crush.txt", "-o", f"{at}/crush.map"]
        site.run(manager, argv, what="the CRUSH map")
        ask(site, {"prefix": "osd setcrushmap"}, file=f"{at}/crush.map")
        rules.append(placement)
    return f"rule{rules.index(placement)}"


def crush_map(osds: int, rules: Sequence[Mapping[str, Any]]) -> str:
    """A CRUSH map in crushtool's syntax: a host for each OSD, and for each rule a root of its hosts.

    Rules have `first`, the OSD of the first copy or None, and `others`, those of all other copies.
    """
    lines = [*_TUNABLES, *(f"device {n} osd.{n}" for n in range(osds))]
    lines += ["type 0 osd", "type 1 host", "type 2 root"]
    for n in range(osds):
        lines.append(_bucket("host", f"host{n}", -1 - n, [f"osd.{n}"]))
    texts = []
    for number, rule in enumerate(rules):
        steps = []
        if rule["others"]:
            hosts = [f"host{n}" for n in rule["others"]]
            lines.append(_bucket("root", f"root{number}", -1 - osds - number, hosts))
        if rule["first"] is not None:
            steps += [f"take host{rule['first']}", "choose firstn 1 type osd", "emit"]
        if rule["others"]:
            rest = 0 if rule["first"] is None else -1
            steps += [f"take root{number}", f"chooseleaf firstn {rest} type host", "emit"]
        does = "\n".join(f"step {s}" for s in steps)
        # the monitor tests a rule with every number of copies that it allows
        most = len(rule["others"]) + (rule["first"] is not None)
        sizes = f"type replicated\nmin_size 1\nmax_size {most}"
        texts.append(f"rule rule{number} {{\nid {number}\n{sizes}\n{does}\n}}")
    return "\n".join([*lines, *texts]) + "\n"


def _bucket(kind: str, name: str, number: int, items: Sequence[str]) -> str:
    inside = "\n".join(f"item {i} weight 1.000" for i in items)
    return f"{kind} {name} {{\nid {number}\nalg straw2\nhash 0\n{inside}\n}}"
