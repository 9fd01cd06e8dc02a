"""Changes of a disk as words, `key=value`: units are exact, a number without one is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.errors import BadInput
from penstock.study.source import read_value
from penstock.study.units import parse_duration, parse_share
from penstock.study.values import parse_iops, parse_limit

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


def ratio(text: str) -> float:
    """A share, as a percentage or a number from 0 to 1."""
    if text.endswith("%"):
        return parse_share(text)
    value = number(text)
    if value > 1:
        raise ValueError("a share, such as 50%")
    return value


def count(text: str) -> int:
    """A whole number."""
    if not text.isdigit():
        raise ValueError("a whole number")
    return int(text)


def flag(text: str) -> bool:
    """true or false, on or off, yes or no."""
    known = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    if text not in known:
        raise ValueError("true or false")
    return known[text]


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
    from penstock.study.machine import FaultFile, FeaturesFile

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
    if not isinstance(value, dict):
        raise ValueError("a mapping as in a storage profile, such as {iops: {…}}")
    return value


#: key → where its value goes in a patch, and what reads it
OF_DISKS: Mapping[str, tuple[tuple[str, ...], Reader]] = {
    "limits.read": (("limits", "read_bps"), parse_limit),
    "limits.write": (("limits", "write_bps"), parse_limit),
    "limits.read_iops": (("limits", "read_iops"), parse_iops),
    "limits.write_iops": (("limits", "write_iops"), parse_iops),
    "slow.factor": (("slow", "factor"), number),
    "slow.ramp": (("slow", "ramp_s"), parse_duration),
    "slow.stall.period": (("slow", "stall", "period_s"), parse_duration),
    "slow.stall.length": (("slow", "stall", "length_s"), parse_duration),
    "slow.random.probability": (("slow", "random", "probability"), ratio),
    "slow.random.factor": (("slow", "random", "factor"), number),
    "servers": (("servers",), count),
    **{
        name: ((name,), flag)
        for name in ("readahead", "cache", "read_only", "full", "fail_stop", "volatile")
    },
    "bad_space.share": (("bad_space", "share"), ratio),
    "bad_space.mode": (("bad_space", "mode"), _one_of("error", "flip", "zero")),
    "bad_space.seed": (("bad_space", "seed"), count),
    "faults": (("faults",), _faults),
    "credits": (("credits",), _mapping),
}
#: keys that only `max` can be said of: it puts all of them back
_WHOLE = ("limits", "slow", "bad_space", "profile")


def patch_of(words: Sequence[str]) -> dict[str, Any]:
    """The patch that words such as `limits.read=10MiB/s` ask for; `max` puts back what was without.

    Raises BadInput that says which word is wrong, what was found and what was expected.
    """
    patch: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise BadInput(f"found {word!r}; expected key=value, such as limits.read=10MiB/s")
        if key in _WHOLE and text == "max":
            path: tuple[str, ...] = (key,)
        elif key in OF_DISKS:
            path = OF_DISKS[key][0]
        else:
            known = ", ".join([*OF_DISKS, *(f"{whole}=max" for whole in _WHOLE)])
            raise BadInput(f"found {key!r}; expected one of {known}")
        inner = patch
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
            if inner is None:
                raise BadInput(f"{word}: found it beside {step}=max; expected one of them")
        if path[-1] in inner:
            raise BadInput(f"{key} is said twice")
        inner[path[-1]] = _value(word, text, key)
    complete(patch)
    return patch


def complete(patch: dict[str, Any]) -> None:
    """Adds what words need not say of a feature. Raises BadInput where one lacks what they must say."""
    bad_space, slow = patch.get("bad_space"), patch.get("slow")
    if isinstance(bad_space, dict):
        if "share" not in bad_space:
            raise BadInput("bad_space: found no share; expected bad_space.share=50%")
        bad_space.setdefault("mode", "error")
    if isinstance(slow, dict) and slow:
        slow.setdefault("factor", 1.0)


def _value(word: str, text: str, key: str) -> Any:
    if text == "max":
        return None
    try:
        return OF_DISKS[key][1](text)
    except ValueError as error:
        ending = "" if str(error).endswith("or max") else ", or max"
        raise BadInput(f"{word}: found {text!r}; expected {error}{ending}") from None
