"""User-written schedules: read, validated, expanded, and converted to events of a disk server.

Pure, except for reading the file and its traces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from penstock.errors import BadInput
from penstock.platform.emulation import Profiles, events_of
from penstock.platform.schedule_expansion import Change, Unreadable, expand, is_short, nested
from penstock.spec.check_cluster import keys_of, repeats
from penstock.spec.cluster import Event
from penstock.spec.machine import EventFile
from penstock.spec.mistakes import in_order, note
from penstock.spec.source import Path as Place
from penstock.spec.source import Source, read_input, read_source

_WHAT = "a schedule: a list of changes under the key schedule"


def read_schedule(path: Path, profiles: Profiles | None = None) -> list[Event]:
    """Events of a schedule file (YAML or JSON: `schedule: […]`, or the list alone; or a trace, `.csv`).

    Sorted by time, then in file order; values are in base units, and a value of `max` is None. Raises
    BadInput with every mistake and its line, including a key set twice at the same time.
    """
    raw = read_input(path, _WHAT)
    if path.suffix == ".csv":
        source = Source(str(path), {"schedule": [{"trace": path.name}]})
    else:
        source = read_source(raw, str(path), _WHAT)
        if isinstance(source.value, list):
            source = replace(source, value={"schedule": source.value}, **_below(source))
    return events_from(source, path.parent, profiles)


def _below(source: Source) -> dict[str, Any]:
    """Positions of a list, moved below the key `schedule`."""
    return {
        name: {("schedule", *place): value for place, value in getattr(source, name).items()}
        for name in ("keys", "values", "ends")
    }


def events_from(
    source: Source, base: Path, profiles: Profiles | None = None, at: str = "schedule"
) -> list[Event]:
    """Events of the list at the key `at` of a loaded document; see `read_schedule`."""
    entries = source.value.get(at) if isinstance(source.value, dict) else None
    if not isinstance(entries, list):
        source.mistake((), f"no list '{at}'", _WHAT)
        raise BadInput(mistakes=source.mistakes)
    placed: list[tuple[int, Event]] = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            source.mistake((at, index), repr(entry), "a change: a mapping with at and what changes")
            continue
        try:
            for change in expand(entry, lambda name: _text(base / name)):
                placed += [(index, event) for event in _events(source, at, index, change, profiles)]
        except Unreadable as error:
            place: Place = (at, index, *error.key.split("."))
            source.mistake(place, error.actual, error.expected)
    if not source.mistakes:
        _refuse_twice(source, at, placed)
    if source.mistakes:
        raise BadInput(mistakes=in_order(source.mistakes))
    return sorted((event for _, event in placed), key=lambda e: e.when.at_s)


def expand_in(source: Source, base: Path, at: Place = ("schedule",)) -> bool:
    """Replace short forms in the list at the keys `at` of a document by single changes, in place.

    A change has the position of its entry. Mistakes are recorded in `source`. True if a trace was read, so
    that the text alone is incomplete.
    """
    holder = source.value
    for key in at[:-1]:
        holder = holder.get(key) if isinstance(holder, dict) else None
    entries = holder.get(at[-1]) if isinstance(holder, dict) else None
    if not isinstance(entries, list) or not any(is_short(entry) for entry in entries):
        return False
    read: list[str] = []

    def text(name: str) -> str:
        read.append(name)
        return _text(base / name)

    changes: list[Any] = []
    origins: list[int] = []
    for index, entry in enumerate(entries):
        expanded = [entry]
        if is_short(entry):
            try:
                expanded = [nested(c) for c in expand(entry, text)]
            except Unreadable as error:
                place: Place = (*at, index, *error.key.split("."))
                source.mistake(place, error.actual, error.expected)
                expanded = []
        changes += expanded
        origins += [index] * len(expanded)
    holder[at[-1]] = changes
    for name in ("keys", "values", "ends"):
        setattr(source, name, _moved(getattr(source, name), at, origins))
    return bool(read)


def _moved(table: dict[Place, Any], at: Place, origins: Sequence[int]) -> dict[Place, Any]:
    """Positions below the list at `at`, whose entries come from those of `origins`."""
    beneath: dict[int, dict[Place, Any]] = {}
    moved: dict[Place, Any] = {}
    for place, value in table.items():
        index = place[len(at)] if len(place) > len(at) else None
        if place[: len(at)] == at and isinstance(index, int):
            beneath.setdefault(index, {})[place[len(at) + 1 :]] = value
        else:
            moved[place] = value
    for index, origin in enumerate(origins):
        for rest, value in beneath.get(origin, {}).items():
            moved[*at, index, *rest] = value
    return moved


def _text(path: Path) -> str:
    raw = read_input(path, "a trace of values over time")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{path}: found bytes that are not UTF-8; expected text") from None


def _events(
    source: Source, at: str, index: int, change: Change, profiles: Profiles | None
) -> list[Event]:
    plain = nested(change)
    try:
        entry = EventFile.model_validate(plain)
    except ValidationError as error:
        beneath = Source(source.file, plain)
        for detail in error.errors():
            note(beneath, detail, EventFile, "docs/emulation.md")
        for mistake in beneath.mistakes:
            source.mistake((at, index), mistake.found, mistake.expected)
        return []
    if entry.when is not None and entry.when.regex is not None:
        try:
            re.compile(entry.when.regex)
        except re.error as error:
            source.mistake((at, index, "when"), f"'{entry.when.regex}'", f"a regex ({error})")
    events = events_of(entry, profiles)
    if not events:
        source.mistake((at, index), "a change of nothing", "what changes, such as limits.read")
    return events


def _refuse_twice(source: Source, at: str, placed: Sequence[tuple[int, Event]]) -> None:
    seen: dict[tuple[Any, ...], int] = {}
    for index, event in placed:
        if event.when.condition is not None:
            continue
        for key in keys_of(event.patch):
            whose = (event.nodes, event.resource, event.name)
            date = (round(event.when.at_s * 1e9), event.when.phase)
            for other in sorted({key, key.partition(".")[0]} | _beneath(key, seen)):
                before = seen.get((*date, *whose, other))
                if before is not None:
                    source.mistake(
                        (at, index),
                        f"another value for {key} at {event.when.at_s:g}s",
                        f"one value at a time; entry {before + 1} has one already",
                    )
                    return
            seen[*date, *whose, key] = index


def _beneath(key: str, seen: Mapping[tuple[Any, ...], int]) -> set[str]:
    if key not in ("limits", "delay"):
        return set()
    return {k[-1] for k in seen if str(k[-1]).startswith(f"{key}.")}


def check_of_one_disk(events: Sequence[Event]) -> None:
    """Raise BadInput for changes of nodes and networks, and of disks with different names."""
    others = sorted({event.resource for event in events if event.resource != "disk"})
    if others:
        actual = " and ".join(others)
        raise BadInput(f"the schedule: found changes of {actual}; expected changes of one disk")
    names = sorted({event.name for event in events if event.name is not None})
    if len(names) > 1:
        raise BadInput(
            f"the schedule: found changes of the disks {', '.join(names)}; expected those of one disk"
        )


#: parts of a condition that are passed to the disk server unchanged
_BOUND = ("metric", "above", "below")


def for_disk(
    events: Sequence[Event], start_ns: int, disk: str | None = None
) -> list[dict[str, Any]]:
    """A disk's events for its server, with times relative to `start_ns` (CLOCK_MONOTONIC).

    Those after a phase wait for its mark, those on a counter of the disk for the counter: the server watches
    both. Raises BadInput for conditions that it cannot evaluate (a line of a log).
    """
    out: list[dict[str, Any]] = []
    for event in events:
        if event.resource != "disk" or (disk is not None and event.name not in (None, disk)):
            continue
        after_ns = round(event.when.at_s * 1e9)
        condition = event.when.condition or {}
        phase = event.when.phase or condition.get("phase")
        event_fields: dict[str, Any] = {"after_ns": after_ns, "patch": event.patch}
        if repeats(condition):
            event_fields["every"] = True
        if phase is not None:
            out.append({"phase": phase, **event_fields})
        elif "metric" in condition:
            bound: dict[str, Any] = {k: condition[k] for k in _BOUND if k in condition}
            out.append({**bound, **event_fields})
        elif condition:
            raise BadInput(
                f"an event on {', '.join(condition)}: nothing observes it here; "
                "expected at, phase or a metric of the disk (a study and nodes watch logs)"
            )
        else:
            out.append({"at_ns": start_ns + after_ns, "patch": event.patch})
    return out
