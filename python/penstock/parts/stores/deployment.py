"""A platform file as a deployment of a store: nodes by role, the engine, its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import BadInput
from penstock.platform.cluster import checked_cluster
from penstock.platform.hosts import Platform
from penstock.plugins import STORE_ENGINES
from penstock.spec.cluster import ClusterSpec
from penstock.spec.store import DEFAULT_ENGINE, MOUNT, Roles, StoreSpec
from penstock.spec.units import parse_size

#: keys of the section `store` that configure an engine; those with sizes
_KEYS = ("chunk", "stripe", "replicas", "replication", "placement")
_SIZES = ("chunk",)


def deployment(
    platform: Platform, engine: str | None = None, keep: tuple[str, ...] = ()
) -> tuple[ClusterSpec, StoreSpec, Roles]:
    """Nodes and store of a platform file with `engine` and `keep`. BadInput.

    The default engine is DEFAULT_ENGINE.
    """
    section: Mapping[str, Any] = platform.plain.get("store") or {}
    name = engine or section.get("engine") or DEFAULT_ENGINE
    if name not in STORE_ENGINES:
        raise BadInput(f"store.engine: found {name!r}; expected {', '.join(STORE_ENGINES)}")
    if not platform.predictable:
        raise BadInput(
            f"{platform.name}: found no host with a role; expected roles: [manager], [storage], [client]"
        )
    spec = StoreSpec(
        name,
        _parameters(section, platform.plain.get("preprocess") or {}),
        section.get("mount") or MOUNT,
        (*(section.get("keep") or ()), *keep),
    )
    return checked_cluster(platform), spec, roles_of(platform)


def roles_of(platform: Platform) -> Roles:
    """Hosts by role, as node names; without a manager, the first storage host."""

    def of(role: str) -> tuple[str, ...]:
        return tuple(h.name for h in platform.hosts if role in h.roles)

    return Roles(of("manager") or of("storage")[:1], of("storage"), of("client"))


def _parameters(section: Mapping[str, Any], preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """Declared parameters as numbers; the engine's defaults apply to `all` and undeclared ones."""
    parameters: dict[str, Any] = {}
    for key in _KEYS:
        value = section.get(key)
        if value is None or value == "all":
            continue
        parameters[key] = parse_size(value) if key in _SIZES and isinstance(value, str) else value
    for key, name in (("cache", "cache"), ("prefetch", "prefetch")):
        if preprocess.get(key):
            value = preprocess[key]
            parameters[name] = parse_size(value) if isinstance(value, str) else value
    return parameters
