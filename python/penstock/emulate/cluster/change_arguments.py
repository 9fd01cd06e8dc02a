"""Changes of nodes as arguments of a command line: `NODE… key=value…`, repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.emulate.cluster.settings import Change
from penstock.emulate.network.patch import DISTRIBUTIONS
from penstock.errors import BadInput
from penstock.host.nodes.node_group import parse_cpuset
from penstock.platform import disk_keys
from penstock.platform.disk_keys import OF_DISKS, complete
from penstock.spec.units import (
    parse_bandwidth,
    parse_duration,
    parse_share,
    parse_size,
)

Reader = Callable[[str], Any]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def _ratio(text: str) -> float:
    return parse_share(text) if text.endswith("%") else _number(text)


def _cpuset(text: str) -> list[int]:
    try:
        return list(parse_cpuset(text))
    except ValueError:
        raise ValueError("processors such as 0-1 or 0,2") from None


#: key → resource, key of the patch, parser of the value
_OF_NODES: dict[str, tuple[Any, str, Reader]] = {
    "cpus": ("cpu", "cpus", _number),
    "cpuset": ("cpu", "cpuset", _cpuset),
    "cpu_ratio": ("cpu", "ratio", _ratio),
    "memory": ("memory", "hard", parse_size),
    "memory_soft": ("memory", "soft", parse_size),
    "state": ("node", "state", str),
}
_SHARES = ("loss", "duplicate", "corrupt", "reorder")
_OF_LINKS: dict[str, tuple[str, Reader]] = {
    "out": ("out_bps", parse_bandwidth),
    "in": ("in_bps", parse_bandwidth),
    "delay": ("delay", parse_duration),
    "in_delay": ("in_delay", parse_duration),
    **{way + share: (way + share, parse_share) for way in ("", "in_") for share in _SHARES},
}


def _distribution(text: str) -> str:
    if text not in DISTRIBUTIONS:
        raise ValueError(f"one of {', '.join(DISTRIBUTIONS)}")
    return text


#: key of a platform file's network → path in a patch of a node's only link, parser of the value; as in the
#: file, they change both directions
_OF_PLATFORMS: dict[str, tuple[tuple[tuple[str, ...], ...], Reader]] = {
    "bandwidth": ((("out_bps",), ("in_bps",)), parse_bandwidth),
    "out": ((("out_bps",),), parse_bandwidth),
    "in": ((("in_bps",),), parse_bandwidth),
    "latency": ((("latency", "mean_s"),), parse_duration),
    "jitter": ((("latency", "jitter_s"),), parse_duration),
    "distribution": ((("latency", "distribution"),), _distribution),
    **{share: (((share,), (f"in_{share}",)), parse_share) for share in _SHARES},
}
#: values that remove part of a delay
_NO_DELAY = {"mean_s": 0.0, "jitter_s": 0.0, "distribution": "constant"}


def changes_of(arguments: Sequence[str]) -> list[Change]:
    """Parse changes: values apply to the nodes named before them, up to the next names.

    Raises BadInput with the wrong argument and the expected form.
    """
    groups: list[tuple[list[str], list[str]]] = []
    for word in arguments:
        if "=" in word:
            if not groups:
                raise BadInput(f"found {word!r} before any node; expected NODE… key=value…")
            groups[-1][1].append(word)
        elif groups and not groups[-1][1]:
            groups[-1][0].append(word)
        else:
            groups.append(([word], []))
    if not groups or not groups[-1][1]:
        raise BadInput("found nothing to be set; expected NODE… key=value…")
    return [
        change for nodes, assignments in groups for change in _of_group(tuple(nodes), assignments)
    ]


def _of_group(nodes: tuple[str, ...], assignments: list[str]) -> list[Change]:
    patches: dict[tuple[Any, str | None], dict[str, Any]] = {}
    for word in assignments:
        key, _, text = word.partition("=")
        resource, name, paths, reader = _meaning(key, text)
        value = _value(word, text, reader)
        for path in paths:
            patch = patches.setdefault((resource, name), {})
            for part in path[:-1]:
                patch = patch.setdefault(part, {})
            if path[-1] in patch:
                raise BadInput(f"{key} is given twice for {', '.join(nodes)}")
            patch[path[-1]] = value
    for (resource, _), patch in patches.items():
        if resource == "disk":
            complete(patch)
        elif resource == "network" and "latency" in patch:
            patch["latency"] = _latency(patch["latency"])
    return [Change(nodes, resource, patch, name) for (resource, name), patch in patches.items()]


def _latency(parts: Mapping[str, Any]) -> Any:
    """A delay from its parts: `latency=max` removes it completely, a jitter without a mean is uniform."""
    if parts.get("mean_s") == "max":
        if len(parts) > 1:
            raise BadInput("latency=max: found a jitter with it; expected one of them")
        return "max"
    delay = {k: _NO_DELAY[k] if v == "max" else v for k, v in parts.items()}
    if delay.get("jitter_s"):
        delay.setdefault("distribution", "uniform")
    elif parts.get("jitter_s") == "max":
        delay.setdefault("distribution", "constant")
    return delay


def _meaning(key: str, text: str) -> tuple[Any, str | None, tuple[tuple[str, ...], ...], Reader]:
    if key in _OF_NODES:
        resource, patched, reader = _OF_NODES[key]
        return resource, None, ((patched,),), reader
    if key in _OF_PLATFORMS:
        paths, reader = _OF_PLATFORMS[key]
        return "network", None, paths, reader
    kind, _, rest = key.partition(".")
    if kind == "disk" and "." in rest:
        name, _, feature = rest.partition(".")
        path = disk_keys.where(feature, text)
        return "disk", name, (path,), lambda value: _or_max(disk_keys.value_of(key, value, feature))
    if kind == "link" and rest:
        network, _, part = rest.rpartition(".")
        if part in _OF_LINKS:
            patched, reader = _OF_LINKS[part]
            return "network", network or None, ((patched,),), reader
    keys = [
        *_OF_NODES,
        *_OF_PLATFORMS,
        *(f"disk.NAME.{k}" for k in OF_DISKS),
        *(f"link.NETWORK.{k}" for k in _OF_LINKS),
    ]
    raise BadInput(f"found {key!r}; expected one of {', '.join(keys)}")


def _or_max(value: Any) -> Any:
    return "max" if value is None else value


def _value(word: str, text: str, reader: Reader) -> Any:
    if text == "max" and not word.startswith("disk."):
        return "max"
    try:
        return reader(text)
    except ValueError as error:
        raise BadInput(f"{word}: found {text!r}; expected {error}, or max") from None
