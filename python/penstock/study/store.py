"""A study's shared store: its validation, and its deployment in one treatment."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from penstock.plugins import NOT_INSTALLED, STORE_ENGINES
from penstock.spec.machine import PlatformFile, SharedStoreFile, node_names
from penstock.spec.names import listed, suggestion
from penstock.spec.source import Path, Source
from penstock.spec.store import MOUNT, Deployment, Roles, StoreSpec
from penstock.spec.units import parse_size

_COUNTS = ("stripe", "replicas", "prefetch")
_SIZES = ("chunk", "cache")


def check_store(source: Source, path: Path, platform: PlatformFile) -> None:
    """Record an unknown engine, patterns without a match, and more copies or a wider stripe than nodes."""
    store = platform.store
    assert store is not None
    if store.engine not in STORE_ENGINES:
        engines = list(STORE_ENGINES)
        expected = listed(engines) + suggestion(store.engine, engines) if engines else NOT_INSTALLED
        source.mistake((*path, "engine"), f"the engine '{store.engine}'", expected)
    names = _names(platform)
    for key, patterns in (
        ("manager", store.manager or []),
        ("storage", store.storage),
        ("clients", store.clients),
    ):
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                source.mistake((*path, key), f"'{pattern}', which is no node", listed(names))
    storage = len(_chosen(names, store.storage))
    for key in ("stripe", "replicas"):
        value = getattr(store, key)
        if value is not None and int(value) > storage:
            actual = f"{value} on {storage} storage node{'s' * (storage != 1)}"
            source.mistake((*path, key), actual, f"at most {storage}")


def deployment_of(platform: PlatformFile) -> Deployment | None:
    """Store of a platform with every factor filled in; None without one."""
    store = platform.store
    if store is None:
        return None
    names = _names(platform)
    storage = _chosen(names, store.storage)
    manager = _chosen(names, store.manager) if store.manager else storage[:1]
    spec = StoreSpec(store.engine, _parameters(store), store.mount or MOUNT)
    return Deployment(spec, Roles(manager, storage, _chosen(names, store.clients)))


def _parameters(store: SharedStoreFile) -> dict[str, int | str]:
    parameters: dict[str, int | str] = {}
    for key in (*_COUNTS, *_SIZES, "placement"):
        value = getattr(store, key)
        if value is None:
            continue
        if key in _SIZES:
            parameters[key] = parse_size(value)
        else:
            parameters[key] = int(value) if key in _COUNTS else value
    return parameters


def _names(platform: PlatformFile) -> list[str]:
    return [name for node in platform.nodes for name in node_names(node.name, node.count)]


def _chosen(names: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns))
