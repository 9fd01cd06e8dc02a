"""Which series that are handed on are not complete, and what they lack: on stderr, in a warning, in a header.

`monitor get`, `penstock.series` and `GET /exp/NAME` hand on what there is, as the published call must; what
analyses (`plot`, `compare`) refuses what this names, or takes it with `--partial`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.errors import printable
from penstock.observe.monitor.recorded import worst

COMPLETE = "complete"
#: headers of an answer: of the experiment, the worst verdict of its series, what these lack
STATE, VERDICT, LACKING = "X-Penstock-State", "X-Penstock-Verdict", "X-Penstock-Lacking"
#: of a header, and of lines on stderr
_MOST_CHARACTERS, _MOST_NAME, MOST_LINES = 4_000, 200, 20


class PartialData(UserWarning):
    """Series were handed on that are not complete."""


@dataclass(frozen=True)
class Lacking:
    """A series that is not complete; `expected`: points that there should be, None where nobody knows."""

    series: str
    verdict: str
    stored: int
    expected: int | None
    lost: int
    gaps: int
    longest_gap_ns: int

    def __str__(self) -> str:
        of = "" if self.expected is None else f" of {self.expected}"
        said = f"{printable(self.series)}: {self.verdict}, {self.stored}{of} points"
        if self.lost:
            said += f"; {self.lost} lost in {self.gaps} gap{'' if self.gaps == 1 else 's'}"
        if self.longest_gap_ns:
            said += f", the longest {self.longest_gap_ns / 1e9:.3g} s"
        elif self.expected is None and not self.lost:
            said += "; batches of it never came"
        return said


@dataclass(frozen=True)
class Verdict:
    """Of an answer: the worst of its series, whether it was taken while the experiment ran, what it lacks.

    `more`: series that are not complete, beside those of `lacking`.
    """

    worst: str
    running: bool
    lacking: Sequence[Lacking]
    more: int = 0

    @property
    def lines(self) -> list[str]:
        """What is to be said; nothing where all is complete."""
        if not self.lacking and not self.more:
            return []
        number = len(self.lacking) + self.more
        so_far = " so far (it still runs)" if self.running else ""
        what = f"{number} series {'is' if number == 1 else 'are'} not complete{so_far}"
        said = [what, *map(str, self.lacking[:MOST_LINES])]
        rest = number - len(said) + 1
        return [*said, f"and {rest} more"] if rest else said

    def headers(self) -> dict[str, str]:
        """Of an answer over HTTP; no more of them than a header may hold."""
        rows: list[dict[str, Any]] = []
        for one in self.lacking:
            rows.append({**asdict(one), "series": one.series[:_MOST_NAME]})
            if len(json.dumps(rows)) > _MOST_CHARACTERS:
                rows.pop()
                break
        said = {VERDICT: self.worst}
        if self.lacking:
            more = len(self.lacking) + self.more - len(rows)
            said[LACKING] = json.dumps({"series": rows, "more": more})
        return said


def verdict_of(about: Mapping[str, Mapping[str, Any]], running: bool) -> Verdict:
    """Of the series of an answer, their rows of the table `series` by what they are called in it."""
    lacking = [
        Lacking(
            name,
            row["verdict"],
            row["stored"],
            row["expected"] if row["expected"] is not None else row["produced"],
            row["lost"] or 0,
            row["gaps"] or 0,
            row["longest_gap_ns"] or 0,
        )
        for name, row in about.items()
        if row["verdict"] != COMPLETE
    ]
    return Verdict(worst(one.verdict for one in lacking), running, lacking)


def of_headers(headers: Mapping[str, str]) -> Verdict:
    """What an answer said of itself; of a server that says nothing: complete."""
    running = headers.get(STATE) == "running"
    told = headers.get(VERDICT, COMPLETE)
    try:
        said = json.loads(headers.get(LACKING, '{"series": [], "more": 0}'))
        lacking = [Lacking(**row) for row in _rows(said["series"])]
        return Verdict(told, running, lacking, int(said["more"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return Verdict(told, running, [], int(told != COMPLETE))


def _rows(said: Any) -> Iterable[Mapping[str, Any]]:
    for row in said:
        for name in ("stored", "lost", "gaps", "longest_gap_ns"):
            int(row[name])
        yield row
