"""Hints of files as tags of a store, and workloads without the hints that a store's engine refuses."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from penstock.parts.prediction.workloads.task import Hints
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.engine import as_supported, circumstances_of, engine_of
from penstock.platform.hosts import Platform
from penstock.spec.store_engines import Capabilities, Circumstances
from penstock.text import counted, first_of, listed

#: equivalent hints of each tag
HINTS_OF_TAGS = {
    "ChunkSize": ("chunk_bytes",),
    "DP": ("placement", "group", "scatter", "host"),
    "Replication": ("replicas",),
    "StripeWidth": ("stripe_width",),
}
#: kinds of DP that put all chunks of a file on one node
_ON_ONE_NODE = ("local", "collocation", "host")
#: files named in a note
_NAMED = 2


def placement_tag(hints: Hints) -> tuple[str, Any] | None:
    """Kind of the tag DP and its argument; None without a placement."""
    if hints.placement == "collocate":
        return "collocation", hints.group
    if hints.placement == "scatter":
        return "scatter", hints.scatter
    if hints.placement not in (None, "host"):
        return str(hints.placement), ""
    # as in predictions, also without `placement: host`
    return None if hints.host is None else ("host", hints.host)


def supported(workload: Workload, platform: Platform) -> tuple[Workload, Platform]:
    """Workload and platform without what the engine of the platform's store refuses.

    The notes of the workload name each refusal. Without a known engine both are unchanged.
    """
    where, notes = as_supported(platform)
    engine = engine_of(platform)
    if engine is None:
        return workload, where
    accepted = _Accepted(engine, circumstances_of(where))
    files = tuple(replace(f, hints=accepted.hints(f.name, f.hints)) for f in workload.files)
    tasks = tuple(
        replace(
            task,
            operations=tuple(
                o if o.hints is None else replace(o, hints=accepted.hints(str(o.file), o.hints))
                for o in task.operations
            ),
        )
        for task in workload.tasks
    )
    notes += accepted.notes(str(platform.file.store.engine))
    if not accepted.refused:
        return workload.noted(*notes), where
    return replace(workload, files=files, tasks=tasks, origin=None).noted(*notes), where


class _Accepted:
    """Hints that an engine accepts; collects the refused ones."""

    def __init__(self, engine: Capabilities, at: Circumstances) -> None:
        self.engine, self.at = engine, at
        #: (tag, reason) → files
        self.refused: dict[tuple[str, str], list[str]] = {}

    def hints(self, file: str, hints: Hints | None) -> Hints | None:
        """The accepted hints of a file, decided in the order in which a store applies its tags."""
        if hints is None:
            return None
        at, gone = self.at, set[str]()
        for tag, key, value in _tags(hints):
            support = self.engine.of(key, value, at)
            if support.how == "refused":
                named = f"{key} {value}".strip() if tag == "DP" else f"{tag}={value}"
                self.refused.setdefault((named, support.why), []).append(file)
                gone.add(tag)
            elif tag == "ChunkSize":
                at = replace(at, chunk_bytes=value)
            elif tag == "Replication":
                at = replace(at, copies=value)
            elif tag == "DP":
                at = replace(at, placed=key.removeprefix("DP ") in _ON_ONE_NODE)
        return without_tags(hints, gone)

    def notes(self, engine: str) -> list[str]:
        """A note on each refused hint."""
        notes = []
        for (named, why), files in self.refused.items():
            distinct = list(dict.fromkeys(files))
            of = f"{counted(len(distinct), 'file')} ({listed(first_of(distinct, _NAMED))})"
            notes.append(
                f"the hint {named} of {of}: {engine} refuses it: {why}; predicted without it"
            )
        return notes


def _tags(hints: Hints) -> Iterator[tuple[str, str, Any]]:
    """Tag, key in the table of capabilities, and value of each hint, sorted by tag."""
    placed = placement_tag(hints)
    for tag, names in HINTS_OF_TAGS.items():
        if tag == "DP":
            if placed is not None:
                yield tag, f"DP {placed[0]}", placed[1]
        elif (value := getattr(hints, names[0])) is not None:
            yield tag, tag, value


def without_tags(hints: Hints, tags: Collection[str]) -> Hints | None:
    """The hints without those that are equivalent to these tags; None if none remains."""
    remaining = replace(
        hints, **{name: None for tag in tags for name in HINTS_OF_TAGS.get(tag, ())}
    )
    return remaining if remaining.to_dict() or not tags else None
