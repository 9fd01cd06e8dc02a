"""One experiment, from its row of the catalogue or its live files; limits of its tags and parameters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, Refused, printable

MOST_TAGS = 100
_MOST_JSON = 64 << 10


class Unknown(BadInput):
    """There is no experiment of that name that the user may see."""


class Taken(Refused):
    """There is one of that name already, or it is not in the state that this needs."""


@dataclass(frozen=True)
class Phase:
    """A stretch of an experiment; `name` has those around it, as `load/warm-up`. No end while it lasts."""

    name: str
    start_ns: int
    end_ns: int | None = None


@dataclass(frozen=True)
class Experiment:
    """An experiment, or a run of a study; times in ns since 1970 UTC."""

    name: str
    repeat: int
    owner: str
    shared: bool
    state: str
    start_ns: int
    end_ns: int | None
    params: Mapping[str, Any]
    tags: tuple[str, ...]
    path: Path
    out: str
    run_id: str
    valid: bool = True
    phases: tuple[Phase, ...] = ()
    notes: tuple[tuple[int, str], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """True if it accepts marks and points."""
        return self.state == "running"

    @property
    def by_hand(self) -> bool:
        """True if it was started as an experiment, false for a run of a study."""
        return self.run_id == self.name

    @property
    def live(self) -> Path:
        """Its directory while it runs."""
        return self.path.with_name(f".{self.path.name}.live")

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "name": self.name,
            "repeat": self.repeat,
            "user": self.owner,
            "shared": self.shared,
            "state": self.state,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "params": dict(self.params),
            "tags": list(self.tags),
            "phases": [vars(p) for p in self.phases],
            "notes": [{"utc_ns": at, "text": text} for at, text in self.notes],
        }


def row_of(experiment: Experiment, until_ns: int | None) -> dict[str, Any]:
    """Its row in the catalogue."""
    end = experiment.end_ns
    return {
        "out": experiment.out,
        "run_id": experiment.run_id,
        "attempt": experiment.repeat,
        "study_id": "",
        "treatment_id": "",
        "levels": json.dumps(dict(experiment.params)),
        "state": experiment.state,
        "valid": experiment.valid,
        "reason": "",
        "start_realtime_ns": experiment.start_ns,
        "wall_s": None if end is None else (end - experiment.start_ns) / 1e9,
        "size_bytes": 0,
        "path": str(experiment.path),
        "name": experiment.name,
        "owner": experiment.owner,
        "shared": experiment.shared,
        "end_realtime_ns": end,
        "until_realtime_ns": until_ns,
    }


def of_row(row: Mapping[str, Any]) -> Experiment:
    """The experiment of a row of the catalogue, without phases and notes."""
    end = row["end_realtime_ns"]
    if end is None and row["wall_s"] is not None and row["start_realtime_ns"] is not None:
        end = row["start_realtime_ns"] + round(row["wall_s"] * 1e9)
    return Experiment(
        row["name"],
        row["attempt"],
        row["owner"],
        bool(row["shared"]),
        row["state"],
        row["start_realtime_ns"] or 0,
        end,
        row["levels"],
        tuple(row["tags"]),
        Path(row["path"]),
        row["out"],
        row["run_id"],
        bool(row["valid"]),
    )


def of_head(head: Mapping[str, Any], lines: list[dict[str, Any]], live: Path) -> Experiment:
    """The experiment of live files: the head and the marks."""
    stop = next((line for line in lines if line["kind"] == "stop"), None)
    end = None if stop is None else stop["utc_ns"]
    return Experiment(
        head["name"],
        head["repeat"],
        head["user"],
        head["shared"],
        "running" if stop is None else stop["name"],
        head["start_ns"],
        end,
        head["params"],
        tuple(head["tags"]),
        live.with_name(head["id"]),
        str(live.parent),
        head["name"],
        True,
        tuple(phases_of(lines, end)),
        tuple((line["utc_ns"], line["name"]) for line in lines if line["kind"] == "note"),
        head["facts"],
    )


def phases_of(lines: Iterable[Mapping[str, Any]], end_ns: int | None) -> list[Phase]:
    """Phases by their marks, in the order of their beginnings; those that last have the end `end_ns`."""
    done: list[Phase] = []
    lasting: list[int] = []
    for line in lines:
        if line["kind"] == "begin":
            inside = f"{done[lasting[-1]].name}/" if lasting else ""
            lasting.append(len(done))
            done.append(Phase(f"{inside}{line['name']}", line["utc_ns"]))
        elif line["kind"] == "end":
            while lasting:
                at = lasting.pop()
                done[at] = Phase(done[at].name, done[at].start_ns, line["utc_ns"])
                if done[at].name.rpartition("/")[2] == line["name"]:
                    break
    for at in lasting:
        start_ns = done[at].start_ns
        # it may begin after the experiment's end, as by another clock
        done[at] = Phase(done[at].name, start_ns, None if end_ns is None else max(start_ns, end_ns))
    return done


def checked_tags(raw: Iterable[str]) -> tuple[str, ...]:
    """Each tag once. BadInput for too many tags, and for an invalid one."""
    tags = tuple(dict.fromkeys(raw))
    if len(tags) > MOST_TAGS:
        raise BadInput(f"found {len(tags)} tags; expected {MOST_TAGS} at most")
    for tag in tags:
        if not isinstance(tag, str) or not 0 < len(tag) <= 100 or not tag.isprintable():
            raise BadInput(
                f"found tag {printable(str(tag)[:80])!r}; expected 1 to 100 printable characters"
            )
    return tags


def checked_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters, unchanged. BadInput for invalid names, values of other types, and too many parameters."""
    for name, value in params.items():
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
            raise BadInput(
                "found a parameter without a proper name; expected 1 to 100 printable characters"
            )
        if not isinstance(value, str | int | float | bool):
            raise BadInput(
                f"found parameter {name} of {type(value).__name__}; expected a text or a number"
            )
    try:
        size = len(json.dumps(dict(params), allow_nan=False))
    except ValueError:
        raise BadInput("found a parameter that is no finite number; expected one") from None
    if size > _MOST_JSON:
        raise BadInput(f"found {size} bytes of parameters; expected {_MOST_JSON} at most")
    return dict(params)
