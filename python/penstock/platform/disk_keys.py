"""Changes of a disk as arguments, `key=value`: units are exact, and numbers without one are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import BadInput
from penstock.spec.fields import is_json
from penstock.spec.quantities import parse_flag, parse_iops, parse_limit, parse_portion
from penstock.spec.source import read_value
from penstock.spec.units import parse_duration

Reader = Callable[[str], Any]


def number(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("a number, such as 10") from None
    if not 0 < value < float("inf"):
        raise ValueError("a number above 0, such as 10")
    return value


def count(text: str) -> int:
    """An integer of 64 bits."""
    if not text.isdecimal() or len(text) > 18:
        raise ValueError("an integer of at most 18 digits")
    return int(text)


def servers(text: str) -> int:
    """A positive integer."""
    if count(text) < 1:
        raise ValueError("an integer from 1 on")
    return count(text)


def _profile(text: str) -> dict[str, Any]:
    from penstock.profile.load import load_profile

    return dict(json.loads(load_profile(text).json))


def _one_of(*choices: str) -> Reader:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return read


def _faults(text: str) -> list[dict[str, Any]]:
    """Rules as in a platform file: `[{op: read, probability: 1%, from: 4KiB}]`."""
    from pydantic import TypeAdapter, ValidationError

    from penstock.platform.emulation import features_patch
    from penstock.spec.machine import FaultFile, FeaturesFile

    expected = "a list of rules, such as [{op: read, error: EIO, probability: 1%}]"
    try:
        rules = TypeAdapter(list[FaultFile]).validate_python(read_value(text))
    except (ValidationError, BadInput) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        why = "" if first is None else f" ({'.'.join(map(str, first['loc']))}: {first['msg']})"
        raise ValueError(expected + why) from None
    return list(features_patch(FeaturesFile(faults=rules))["faults"])


def _mapping(text: str) -> dict[str, Any]:
    value = read_value(text)
    if not isinstance(value, dict) or not is_json(value):
        raise ValueError("a mapping as in a storage profile, such as {iops: {…}}")
    return value


#: key → its path in a patch, and its parser
OF_DISKS: Mapping[str, tuple[tuple[str, ...], Reader]] = {
    "limits.read": (("limits", "read_bps"), parse_limit),
    "limits.write": (("limits", "write_bps"), parse_limit),
    "limits.read_iops": (("limits", "read_iops"), parse_iops),
    "limits.write_iops": (("limits", "write_iops"), parse_iops),
    "slow.factor": (("slow", "factor"), number),
    "slow.ramp": (("slow", "ramp_s"), parse_duration),
    "slow.stall.period": (("slow", "stall", "period_s"), parse_duration),
    "slow.stall.length": (("slow", "stall", "length_s"), parse_duration),
    "slow.random.probability": (("slow", "random", "probability"), parse_portion),
    "slow.random.factor": (("slow", "random", "factor"), number),
    "servers": (("servers",), servers),
    **{
        name: ((name,), parse_flag)
        for name in ("readahead", "cache", "read_only", "full", "fail_stop", "volatile")
    },
    "bad_space.share": (("bad_space", "share"), parse_portion),
    "bad_space.mode": (("bad_space", "mode"), _one_of("error", "flip", "zero")),
    "bad_space.seed": (("bad_space", "seed"), count),
    "bad_space.op": (("bad_space", "op"), _one_of("read", "write", "any")),
    "faults": (("faults",), _faults),
    "credits": (("credits",), _mapping),
    "profile": (("profile",), _profile),
    "power_cut": (("power_cut",), parse_flag),
}
#: keys with the only value `max`, which resets all keys below them
GROUPS = ("limits", "slow", "slow.stall", "slow.random", "bad_space")
#: keys that require others, so that their parent key is reset instead
_PARTS = ("slow.stall.", "slow.random.", "bad_space.", "power_cut")
#: first words of all keys: features of a disk, and its limits, profile and power
FIRST = frozenset(key.partition(".")[0] for key in OF_DISKS)


def where(key: str, text: str) -> tuple[str, ...]:
    """Path of a key's value `text` in a patch. Raises BadInput for an unknown key."""
    if key in GROUPS and text == "max":
        return tuple(key.split("."))
    if key in OF_DISKS:
        return OF_DISKS[key][0]
    keys = ", ".join([*OF_DISKS, *(f"{group}=max" for group in GROUPS)])
    raise BadInput(f"found {key!r}; expected one of {keys}")


def patch_of(arguments: Sequence[str]) -> dict[str, Any]:
    """The patch of arguments such as `limits.read=10MiB/s`; `max` resets a value.

    Raises BadInput that names the argument, the actual and the expected value.
    """
    patch: dict[str, Any] = {}
    for word in arguments:
        key, equals, text = word.partition("=")
        if not equals:
            raise BadInput(f"found {word!r}; expected key=value, such as limits.read=10MiB/s")
        path = where(key, text)
        inner = patch
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
            if inner is None:
                raise BadInput(f"{word}: found it with {step}=max; expected one of them")
        if path[-1] in inner:
            raise BadInput(f"{key} is stated twice")
        inner[path[-1]] = value_of(word, text, key)
    complete(patch)
    return patch


def complete(patch: dict[str, Any]) -> None:
    """Add defaults of a feature. Raises BadInput for a missing mandatory value."""
    bad_space, slow = patch.get("bad_space"), patch.get("slow")
    if isinstance(bad_space, dict):
        if "share" not in bad_space:
            raise BadInput("bad_space: found no share; expected bad_space.share=50%")
        bad_space.setdefault("mode", "error")
    if isinstance(slow, dict) and slow:
        slow.setdefault("factor", 1.0)


def value_of(word: str, text: str, key: str) -> Any:
    """The value `text` of a key, None for `max`. Raises BadInput."""
    if text == "max" and not key.startswith(_PARTS):
        return None
    try:
        return OF_DISKS[key][1](text)
    except ValueError as error:
        partial = key.startswith(_PARTS) or str(error).endswith("or max")
        ending = "" if partial else ", or max"
        raise BadInput(f"{word}: found {text!r}; expected {error}{ending}") from None
