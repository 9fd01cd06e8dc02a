"""Short forms of a schedule, expanded to single changes: traces, ramps, patterns, random events.

Pure: the same text and seed give the same changes. A change is a mapping with the keys of an event of a
platform file (`at`, `limits`, `features`, …); keys may contain dots, `limits.read: 10MB/s`.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.platform.disk_keys import FIRST
from penstock.spec.source import separator_of
from penstock.spec.units import parse_duration, parse_quantity, parse_share

Change = dict[str, Any]
#: limit of changes per entry
MOST = 100_000
#: keys with integer values
_INTEGERS = ("servers", "seed")
#: keys of an entry for time and place
PLACED = ("at", "phase", "when", "nodes", "disk", "network")
#: features of a disk that need no prefix `features.` in an entry
FEATURES = FIRST - {"limits", "profile", "power_cut"}


class Unreadable(ValueError):  # noqa: N818 - reads as what it is
    """Invalid entry: its key, the actual and the expected value."""

    def __init__(self, key: str, actual: str, expected: str) -> None:
        super().__init__(f"{key}: found {actual}; expected {expected}")
        self.key, self.actual, self.expected = key, actual, expected


def nested(change: Mapping[str, Any]) -> Change:
    """A change with nested keys instead of dots, and with features under `features`."""
    out: Change = {}
    for key, value in change.items():
        steps = key.split(".")
        if steps[0] in FEATURES:
            steps = ["features", *steps]
        if isinstance(value, Mapping) and steps == ["features"]:
            out.setdefault("features", {}).update(value)
            continue
        inner = out
        for step in steps[:-1]:
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                raise Unreadable(key, "a value, and another one for a part of it", "one of them")
        if steps[-1] in inner:
            raise Unreadable(key, "a second value", "one value")
        inner[steps[-1]] = value
    return out


def is_short(entry: Any) -> bool:
    """True if an entry has one of the short forms."""
    return isinstance(entry, dict) and any(
        isinstance(key, str) and (key in EXPANSIONS or key in FEATURES or "." in key)
        for key in entry
    )


def expand(entry: Mapping[str, Any], read: Callable[[str], str]) -> list[Change]:
    """Single changes of one entry, sorted by time; `read` returns the text of a file.

    Raises Unreadable.
    """
    kinds = [key for key in EXPANSIONS if key in entry]
    if not kinds:
        return [dict(entry)]
    if len(kinds) > 1:
        raise Unreadable(kinds[1], f"{kinds[1]} in addition to {kinds[0]}", "one of them")
    kind = kinds[0]
    placed = {k: entry[k] for k in PLACED if k in entry}
    for key in entry:
        if key != kind and key not in placed:
            raise Unreadable(key, f"the key {key!r} with {kind}", ", ".join((kind, *PLACED)))
    start_s = _seconds(placed, "at", 0.0)
    changes: list[Change] = []
    for at_s, change in EXPANSIONS[kind](entry[kind], read):
        changes.append({**placed, **change, "at": f"{start_s + at_s!r}s"})
        if len(changes) > MOST:
            raise Unreadable(kind, f"more than {MOST:,} changes", "fewer")
    return changes


Timed = Iterator[tuple[float, Change]]


def _mapping(kind: str, value: Any, keys: Sequence[str], needed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unreadable(kind, repr(value), f"a mapping with {', '.join(keys)}")
    for key in value:
        if key not in keys:
            raise Unreadable(f"{kind}.{key}", f"the unknown key {key!r}", ", ".join(keys))
    for key in needed:
        if key not in value:
            raise Unreadable(kind, f"no {key!r}", f"the key {key}")
    return value


def _seconds(mapping: Mapping[str, Any], key: str, default: float | None = None) -> float:
    if key not in mapping and default is not None:
        return default
    try:
        return parse_duration(str(mapping[key]))
    except ValueError as error:
        raise Unreadable(key, repr(mapping[key]), str(error)) from None


def _integer(kind: str, mapping: Mapping[str, Any], key: str, default: int) -> int:
    value = mapping.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Unreadable(f"{kind}.{key}", repr(value), "an integer from 0 on")
    return value


def between(low: Any, high: Any, share: float, key: str = "") -> Any:
    """Interpolate at `share` between `low` and `high`, numbers or quantities of one kind.

    Sizes are integer bytes; numbers are integers if both ends and the result are, or if `key` requires it.
    """
    if isinstance(low, int | float) and isinstance(high, int | float):
        there = low + (high - low) * share
        if key.rpartition(".")[2] in _INTEGERS:
            return round(there)
        return int(there) if isinstance(low + high, int) and there == int(there) else there
    (a, unit), (b, other) = parse_quantity(str(low)), parse_quantity(str(high))
    if unit.dimension != other.dimension:
        raise ValueError(f"two quantities of one kind, not {low} and {high}")
    if unit.dimension == "size":
        low_bytes, high_bytes = a * unit.factor, b * other.factor
        return f"{round(low_bytes + (high_bytes - low_bytes) * share)} B"
    there = b * other.factor / unit.factor
    return f"{a + (there - a) * share!r} {unit.text}"


def _ramp(value: Any, _read: Callable[[str], str]) -> Timed:
    ramp = _mapping(
        "ramp", value, ("key", "from", "to", "length", "steps"), ("key", "from", "to", "length")
    )
    length_s, steps = _seconds(ramp, "length"), _integer("ramp", ramp, "steps", 10)
    if steps < 1:
        raise Unreadable("ramp.steps", "0", "an integer from 1 on")
    for step in range(steps + 1):
        try:
            there = between(ramp["from"], ramp["to"], step / steps, str(ramp["key"]))
        except ValueError as error:
            raise Unreadable("ramp.from", repr(ramp["from"]), str(error)) from None
        yield length_s * step / steps, {str(ramp["key"]): there}


def _pattern(value: Any, _read: Callable[[str], str]) -> Timed:
    pattern = _mapping("pattern", value, ("period", "times", "changes"), ("period", "changes"))
    period_s, times = _seconds(pattern, "period"), _integer("pattern", pattern, "times", 1)
    changes = _changes("pattern.changes", pattern["changes"])
    offsets = [_seconds(change, "at", 0.0) for change in changes]
    if period_s <= 0 or any(at_s >= period_s for at_s in offsets):
        raise Unreadable("pattern.period", repr(pattern["period"]), "longer than all its changes")
    for turn in range(times):
        for at_s, change in zip(offsets, changes, strict=True):
            yield turn * period_s + at_s, {k: v for k, v in change.items() if k != "at"}


def _changes(key: str, value: Any) -> list[Change]:
    if not isinstance(value, list) or not value or not all(isinstance(c, dict) for c in value):
        raise Unreadable(key, repr(value), "a list of changes, such as [{limits.read: 10MB/s}]")
    return value


def _random(value: Any, _read: Callable[[str], str]) -> Timed:
    keys = ("seed", "mean", "for", "choose", "between")
    drawn = _mapping("random", value, keys, ("mean", "for"))
    mean_s, for_s = _seconds(drawn, "mean"), _seconds(drawn, "for")
    if ("choose" in drawn) == ("between" in drawn):
        raise Unreadable("random", "choose and between, or neither", "one of choose and between")
    if mean_s <= 0:
        raise Unreadable("random.mean", repr(drawn["mean"]), "a duration above 0")
    choices = _changes("random.choose", drawn["choose"]) if "choose" in drawn else []
    bounds = drawn.get("between") or {}
    generator = random.Random(_integer("random", drawn, "seed", 0))
    at_s = 0.0
    while at_s < for_s:
        if choices:
            yield at_s, generator.choice(choices)
        else:
            yield at_s, {k: _drawn(k, bound, generator) for k, bound in bounds.items()}
        at_s += generator.expovariate(1 / mean_s)


def _drawn(key: str, bound: Any, generator: random.Random) -> Any:
    try:
        low, high = bound
        return between(low, high, generator.random(), key)
    except (ValueError, TypeError):
        expected = "two values of one kind, such as [5MB/s, 50MB/s]"
        raise Unreadable(f"random.between.{key}", repr(bound), expected) from None


def _markov(value: Any, _read: Callable[[str], str]) -> Timed:
    chain = _mapping("markov", value, ("seed", "for", "begin", "states"), ("for", "states"))
    states = chain["states"]
    if not isinstance(states, dict) or not states:
        raise Unreadable("markov.states", repr(states), "a mapping of states by name")
    for name, state in states.items():
        _state(name, state, states)
    now = str(chain.get("begin", next(iter(states))))
    if now not in states:
        raise Unreadable("markov.begin", repr(now), f"one of {', '.join(states)}")
    generator = random.Random(_integer("markov", chain, "seed", 0))
    at_s, for_s = 0.0, _seconds(chain, "for")
    while at_s < for_s:
        state = states[now]
        yield at_s, {k: v for k, v in state.items() if k not in ("stay", "to")}
        at_s += generator.expovariate(1 / parse_duration(str(state["stay"])))
        to = {name: parse_share(str(share)) for name, share in (state.get("to") or {}).items()}
        if not to:
            return
        now = generator.choices(list(to), weights=list(to.values()))[0]


def _state(name: str, state: Any, states: Mapping[str, Any]) -> None:
    where = f"markov.states.{name}"
    if not isinstance(state, dict) or "stay" not in state:
        raise Unreadable(
            where, repr(state), "a mapping with stay (its mean length), to and changes"
        )
    if _seconds(state, "stay") <= 0:
        raise Unreadable(f"{where}.stay", repr(state["stay"]), "a duration above 0")
    to = state.get("to") or {}
    if not isinstance(to, dict):
        raise Unreadable(f"{where}.to", repr(to), "shares by state, such as {slow: 30%, fast: 70%}")
    for other in to:
        if other not in states:
            raise Unreadable(f"{where}.to.{other}", repr(other), f"one of {', '.join(states)}")
    try:
        shares = [parse_share(str(share)) for share in to.values()]
    except ValueError as error:
        raise Unreadable(f"{where}.to", repr(to), str(error)) from None
    if shares and abs(sum(shares) - 1) > 1e-9:
        raise Unreadable(f"{where}.to", f"{100 * sum(shares):g}%", "shares that make 100%")


def _trace(value: Any, read: Callable[[str], str]) -> Timed:
    """A CSV or JSON file of values over time; an empty cell leaves its value unchanged."""
    path = str(value)
    text = read(path)
    rows = _json_rows(path, text) if path.endswith(".json") else _csv_rows(path, text)
    before_s = -1.0
    for number, row in enumerate(rows, start=1):
        where = f"trace {path}, row {number}"
        if "time" not in row:
            raise Unreadable(where, "no time", "a column `time`, such as `time [s]`")
        at_s = _seconds(row, "time")
        if at_s < before_s:
            raise Unreadable(where, f"time {row['time']} after {before_s:g}s", "times in order")
        before_s = at_s
        yield at_s, {k: v for k, v in row.items() if k != "time" and v not in ("", None)}


def _csv_rows(path: str, text: str) -> Iterator[dict[str, str]]:
    lines = csv.reader(io.StringIO(text), delimiter=separator_of(text))
    header = [name.strip() for name in next(lines, [])]
    names, units = [], []
    for name in header:
        bare, _, unit = name.partition("[")
        names.append(bare.strip())
        units.append(unit.rstrip("] ").strip())
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise Unreadable(
            f"trace {path}, line 1", f"the column {repeated!r} several times", "it once"
        )
    for number, cells in enumerate(lines, start=2):
        if not cells:
            continue
        if len(cells) != len(names):
            expected = f"{len(names)}, as in the first line"
            raise Unreadable(f"trace {path}, line {number}", f"{len(cells)} cells", expected)
        row = {}
        for name, unit, cell in zip(names, units, (c.strip() for c in cells), strict=True):
            plain = not cell or cell == "max" or not unit
            row[name] = cell if plain else f"{cell} {unit}"
        yield row


def _json_rows(path: str, text: str) -> Iterator[dict[str, Any]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"trace {path}", f"text that is not JSON ({error})", "JSON") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Unreadable(f"trace {path}", "something else", "a list of mappings with `time`")
    yield from rows


#: alternatives of an entry to a single change
EXPANSIONS: dict[str, Callable[[Any, Callable[[str], str]], Timed]] = {
    "trace": _trace,
    "ramp": _ramp,
    "pattern": _pattern,
    "random": _random,
    "markov": _markov,
}
