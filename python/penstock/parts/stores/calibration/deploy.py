"""Deployment for seeding: one manager, one storage node, and clients of the store's platform."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from penstock.errors import BadInput
from penstock.platform.hosts import Platform

#: keys of a group that, like the roles, do not describe its hosts
_NOT_OF_A_HOST = ("group", "count", "roles", "except", "storage", "manager", "client", "rack")
#: keys of the section `store` that a single storage node cannot satisfy
_NOT_OF_ONE = ("stripe", "replicas")
#: most clients without storage, which write at once
MOST_CLIENTS = 4
#: control messages of real stores are some hundred bytes long
CONTROL = "256B"
#: bytes of a message in flight; a large frame occupies both links one after the other
FRAME = "16KiB"


def seeding_platform(platform: Platform) -> Platform:
    """Hosts like those of the platform, and its store's engine: a manager, a storage host, and clients, as
    many as the platform has, up to MOST_CLIENTS."""
    document = seeding_document(platform)
    return Platform.from_dict(document, platform.base_dir)


def seeding_document(platform: Platform) -> dict[str, Any]:
    """The same as plain values, with placeholder service times. BadInput if a role has no host."""
    plain = platform.plain
    groups = []
    for role in ("manager", "storage", "client"):
        group = _with_role(plain, role)
        if group is None and role == "manager":
            group = _with_role(plain, "storage")
        if group is None:
            raise BadInput(f"{platform.name}: found no host with the role {role}; expected one")
        machine = {k: copy.deepcopy(v) for k, v in group.items() if k not in _NOT_OF_A_HOST}
        # storage service times are measured without a network in between, if tasks run on storage nodes
        both = role == "storage" and "client" in (group.get("roles") or [])
        roles = ["storage", "client"] if both else [role]
        count = min(MOST_CLIENTS, max(1, _clients(plain))) if role == "client" else 1
        groups.append(
            {"group": role, "count": count, "roles": roles, **machine, **_placeholder(role)}
        )
    store = {k: v for k, v in (plain.get("store") or {}).items() if k not in _NOT_OF_ONE}
    return {
        "penstock_platform": 1,
        "name": f"{platform.name[:27]}-seed",
        "hosts": groups,
        "network": copy.deepcopy(plain.get("network") or {}),
        **({"networks": copy.deepcopy(plain["networks"])} if plain.get("networks") else {}),
        "store": {**store, "stripe": 1, "replicas": 1},
        "protocol": {"frame": FRAME, **(plain.get("protocol") or {}), "control": CONTROL},
    }


def _with_role(plain: Mapping[str, Any], role: str) -> dict[str, Any] | None:
    return next((g for g in plain["hosts"] if role in (g.get("roles") or [])), None)


def _clients(plain: Mapping[str, Any]) -> int:
    """Clients of the platform besides the one that is the storage host, if any is both."""
    clients = [g for g in plain["hosts"] if "client" in (g.get("roles") or [])]
    both = any("storage" in g["roles"] for g in clients)
    return sum(int(g["count"]) for g in clients) - both


def _placeholder(role: str) -> dict[str, Any]:
    if role == "manager":
        return {"manager": {"service": {"overhead": "0.1ms"}}}
    if role == "storage":
        return {"storage": {which: {"overhead": "0.1ms"} for which in ("read", "write")}}
    return {}
