"""Checks of powers and prices beyond their schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.platform.lower import merge
from penstock.platform.paths import get
from penstock.spec.names import listed
from penstock.spec.source import Path, Source
from penstock.spec.units import parse_frequency, parse_power, parse_price


def check_power(source: Source, path: Path, power: dict[str, Any], *, written: bool) -> None:
    """Add mistakes of the power at `path`; `power` has all its effective values."""
    declared = power.get("states")
    states = [s for s in (declared if isinstance(declared, list) else []) if isinstance(s, dict)]
    names = [str(s.get("frequency")) for s in states]
    hertz = [_hertz(n) for n in names]
    chosen = power.get("frequency")
    if isinstance(chosen, str) and _hertz(chosen) is not None and _hertz(chosen) not in hertz:
        expected = (
            f"one of states: {listed(names)}"
            if names
            else "states, one of them with that frequency"
        )
        source.mistake((*path, "frequency"), f"the frequency '{chosen}'", expected)
    for i, hz in enumerate(hertz):
        if hz is not None and hz in hertz[:i]:
            actual = f"the frequency '{names[i]}' a second time"
            source.mistake((*path, "states", i, "frequency"), actual, "each once")
    if "idle" not in power and (not states or chosen is None):
        source.mistake(
            path, "no 'idle'", "the power of a host that does nothing, such as 91.6 W", key=True
        )
    levels = [(path, power)] + [
        ((*path, "states", i), merge(power, s)) for i, s in enumerate(states)
    ]
    for at, level in levels:
        idle = _watts(level.get("idle"))
        if idle is None and at != path and "idle" not in level:
            source.mistake(
                at, "a state without 'idle'", "idle here, or at the power's own level", key=True
            )
        if written:
            _below_idle(source, at, level)
    if power.get("cap") is True and "peak" not in power:
        source.mistake(
            (*path, "cap"), "cap without peak", "peak: the most that a host draws", key=True
        )


def _below_idle(source: Source, at: Path, level: dict[str, Any]) -> None:
    idle = _watts(level.get("idle"))
    own = get(source.value, at)
    own = own if isinstance(own, dict) else {}
    for key in ("app", "storage", "network", "peak"):
        watts = _watts(level.get(key))
        if idle is None or watts is None or watts >= idle or not {key, "idle"} & set(own):
            continue
        source.mistake(
            (*at, key),
            f"{key} of {level[key]}, below idle of {level['idle']}",
            "the power of the host, including idle power",
        )


def _quietly(parse: Callable[[str], float], text: Any) -> float | None:
    try:
        return parse(text) if isinstance(text, str) else None
    except ValueError:
        return None  # reported with the keys


def _hertz(text: Any) -> float | None:
    hz = _quietly(parse_frequency, text)
    return None if hz is None else float(f"{hz:.9g}")


def _watts(text: Any) -> float | None:
    return _quietly(parse_power, text)


def check_currencies(source: Source, prices: list[tuple[Path, Any]]) -> None:
    """Record prices in another currency than the first one."""
    first: tuple[str, str] | None = None
    for path, price in prices:
        text = price.get("per_host") if isinstance(price, dict) else None
        try:
            currency = parse_price(text)[1] if isinstance(text, str) else None
        except ValueError:
            continue
        if currency is None:
            continue
        if first is not None and currency != first[0]:
            source.mistake(
                (*path, "per_host"),
                f"'{text}' in addition to '{first[1]}'",
                f"one currency: {first[0]}",
            )
        first = first or (currency, str(text))
