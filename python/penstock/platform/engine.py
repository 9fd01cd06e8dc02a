"""Settings of a platform file that the engine of its store refuses, and their replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import BadInput, Mistake
from penstock.platform.hosts import Platform
from penstock.platform.lower import store_of
from penstock.platform.stores import STORES, ready_store
from penstock.spec.store import PARAMETERS
from penstock.spec.store_engines import Capabilities, Circumstances, capabilities
from penstock.spec.units import parse_size

#: parameters of an engine by their path in a platform file
PATHS = {
    f"{'preprocess' if key in ('cache', 'prefetch') else 'store'}.{key}": key for key in PARAMETERS
}
_SIZES = ("chunk", "cache")
#: value of a parameter that a client of the engine does not have
_NOTHING = {"preprocess.cache": "0B", "preprocess.prefetch": 0}


def engine_of(platform: Platform) -> Capabilities | None:
    """Capabilities of the engine of the platform's store; None if it names no known engine."""
    name = platform.file.store.engine
    return None if name is None else capabilities(name)


def circumstances_of(platform: Platform) -> Circumstances:
    """Nodes and defaults of the platform's store."""
    engine = engine_of(platform)
    default = engine.chunk_bytes if engine is not None else Circumstances.chunk_bytes
    return Circumstances(
        tuple(h.name for h in platform.hosts if "storage" in h.roles),
        tuple(h.name for h in platform.hosts if "client" in h.roles),
        store_of(platform.file)["replicas"],
        settings_in_numbers(platform).get("store.chunk", default),
    )


def settings(platform: Platform) -> Mapping[str, Any]:
    """Declared parameters of the store by path, also those of the ready store that the file names."""
    like = platform.file.store.like
    ready = {} if like is None else {f"store.{k}": v for k, v in STORES[like].items()}
    own = {
        f"{section}.{key}": value
        for section in ("store", "preprocess")
        for key, value in (platform.plain.get(section) or {}).items()
    }
    return {k: v for k, v in {**ready, **own}.items() if k in PATHS and v is not None}


def settings_in_numbers(platform: Platform) -> Mapping[str, Any]:
    """Valid settings by path as the engine reads them: sizes in bytes."""
    numbers = {path: _number(PATHS[path], v) for path, v in settings(platform).items()}
    return {path: v for path, v in numbers.items() if v is not None}


def refusals(engine: str, values: Mapping[str, Any], at: Circumstances) -> dict[str, str]:
    """Reason by path of each of these settings that the engine refuses.

    Other settings, and those that no platform file may have, have no reason.
    """
    own = capabilities(engine)
    if own is None:
        return {}
    reasons = {}
    for path, value in values.items():
        key = PATHS.get(path)
        number = None if key is None else _number(key, value)
        if key is None or number is None:
            continue
        support = own.of(key, number, at)
        if support.how == "refused":
            reasons[path] = f"{engine} refuses it: {support.why}"
    return reasons


def require_supported(platform: Platform) -> None:
    """Raise BadInput for values of `--set` that the engine of the platform's store refuses."""
    name = platform.file.store.engine
    if name is None:
        return
    chosen = {".".join(map(str, path)) for path in platform.chosen}
    values = {path: v for path, v in settings(platform).items() if path in chosen}
    refused = refusals(name, values, circumstances_of(platform))
    if refused:
        raise BadInput(
            mistakes=[
                Mistake(f"--set {path}={values[path]}", 1, 1, f"{values[path]}; {why}", EXPECTED)
                for path, why in refused.items()
            ]
        )


#: in place of a value that an engine refuses
EXPECTED = "a value that the store's engine supports, or no store.engine"


def as_supported(platform: Platform) -> tuple[Platform, list[str]]:
    """The platform with the engine's own values in place of those that it refuses, and a note on each."""
    name = platform.file.store.engine
    if name is None:
        return platform, []
    declared, at = settings(platform), circumstances_of(platform)
    ready = {f"store.{k}": v for k, v in ready_store(None, name).items()} | _NOTHING
    notes = []
    own_limits = capabilities(name)
    if own_limits is not None and (excess := own_limits.excess(len(at.storage))):
        notes.append(f"{name} refuses this store: {excess}")
    reasons = {
        path: why
        for path, why in refusals(name, declared, at).items()
        if _number(PATHS[path], ready[path]) != _number(PATHS[path], declared[path])
    }
    changes = {path: ready[path] for path in reasons}
    notes += [f"{p} {declared[p]}: {why}; predicted with {ready[p]}" for p, why in reasons.items()]
    return (platform.with_values(changes) if changes else platform), notes


def _number(key: str, value: Any) -> Any:
    """The value of a parameter as its engine reads it; None for an invalid one."""
    if key in _SIZES and isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError:
            return None
    if key in ("replicas", "prefetch") or (key == "stripe" and value != "all"):
        return value if isinstance(value, int) else None
    return value
