"""Which series that are handed on are not complete, and what they lack: on stderr, in a warning, in a header.

`monitor get`, `penstock.series` and `GET /exp/NAME` hand on what there is, as the published call must; what
analyses (`plot`, `compare`) refuses what this names, or takes it with `--partial`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.archive.completeness import TAKEN, worst
from penstock.errors import printable
from penstock.text import outside_text

COMPLETE, UNKNOWN = "complete", "unknown"
#: by the kind of gap, what was refused
_REFUSED = {"refused": "points", "refused-messages": "messages"}
#: headers of an answer: of the experiment, the worst verdict of its series, what these lack
STATE, VERDICT, LACKING = "X-Penstock-State", "X-Penstock-Verdict", "X-Penstock-Lacking"
#: of a header, and of lines on stderr
_MOST_CHARACTERS, _MOST_NAME, MOST_LINES, _MOST_REFUSED = 3_000, 200, 20, 5


class PartialData(UserWarning):
    """Series were handed on that are not complete, or not known to be."""


@dataclass(frozen=True)
class Lacking:
    """A series that is not complete; `expected`: points that there should be, None where nobody knows.

    `inferred`: how often one was due goes by the points themselves. `outside`: points whose time is not the
    experiment's, about so far from it.
    """

    series: str
    verdict: str
    stored: int
    expected: int | None
    lost: int
    gaps: int
    longest_gap_ns: int
    inferred: bool = False
    outside: int = 0
    outside_by_ns: int | None = None

    def __str__(self) -> str:
        of = "" if self.expected is None else f" of {self.expected}"
        said = f"{printable(self.series)}: {self.verdict}, {self.stored}{of} points"
        if self.lost:
            said += f"; {self.lost} lost in {self.gaps} gap{'' if self.gaps == 1 else 's'}"
        if self.longest_gap_ns:
            said += f", the longest {self.longest_gap_ns / 1e9:.3g} s"
        elif self.verdict == UNKNOWN:
            said += "; its source told no interval, and its points show none"
        elif self.expected is None and not self.lost and not self.outside:
            said += "; batches of it never came"
        if self.inferred:
            said += ", by an interval that was inferred"
        if self.outside:
            said += f"; {outside_text(self.outside, self.outside_by_ns)}"
        return said


@dataclass(frozen=True)
class Verdict:
    """Of an answer: the worst of its series, whether it was taken while the experiment ran, what it lacks.

    `more`: series that are not complete, beside those of `lacking`. `refused`: what was refused of their
    sources, and points of complete series that are outside of the experiment, a line for each.
    """

    worst: str
    running: bool
    lacking: Sequence[Lacking]
    more: int = 0
    refused: Sequence[str] = ()

    @property
    def refuses(self) -> bool:
        """Whether an analysis takes it only where it is asked to."""
        return self.worst not in TAKEN

    @property
    def lines(self) -> list[str]:
        """What is to be said; nothing where all is complete."""
        if not self.lacking and not self.more:
            return list(self.refused)
        number = len(self.lacking) + self.more
        so_far = " so far (it still runs)" if self.running else ""
        how = "not known to be complete" if self.worst == UNKNOWN else "not complete"
        what = f"{number} series {'is' if number == 1 else 'are'} {how}{so_far}"
        said = [what, *map(str, self.lacking[:MOST_LINES])]
        rest = number - len(said) + 1
        return [*said, *([f"and {rest} more"] if rest else []), *self.refused]

    def headers(self) -> dict[str, str]:
        """Of an answer over HTTP; no more of them than a header may hold."""
        rows: list[dict[str, Any]] = []
        for one in self.lacking:
            rows.append({**asdict(one), "series": one.series[:_MOST_NAME]})
            if len(json.dumps(rows)) > _MOST_CHARACTERS:
                rows.pop()
                break
        said = {VERDICT: self.worst}
        if self.lacking or self.refused:
            more = len(self.lacking) + self.more - len(rows)
            told = [one[:_MOST_NAME] for one in self.refused[:_MOST_REFUSED]]
            while told and len(json.dumps(told)) > _MOST_CHARACTERS // 3:
                told.pop()
            said[LACKING] = json.dumps({"series": rows, "more": more, "refused": told})
        return said


def verdict_of(
    about: Mapping[str, Mapping[str, Any]],
    running: bool,
    gaps: Iterable[Mapping[str, Any]] = (),
) -> Verdict:
    """Of the series of an answer, their rows of the table `series` by what they are called in it.

    `gaps`: rows of that table, of which those of what was refused count.
    """
    lacking = [
        Lacking(
            name,
            row["verdict"],
            row["stored"],
            # how many a program made says nothing of times that it left out
            row["produced"]
            if row["expected"] is None and row["verdict"] != UNKNOWN
            else row["expected"],
            row["lost"] or 0,
            row["gaps"] or 0,
            row["longest_gap_ns"] or 0,
            row.get("interval_from") == "inferred",
            row.get("outside") or 0,
            row.get("outside_by_ns"),
        )
        for name, row in about.items()
        if row["verdict"] != COMPLETE
    ]
    sources = {row.get("source") for row in about.values()}
    refused = [
        f"{printable(g['source'])}: {g['missing']} {_REFUSED[g['kind']]} refused, {printable(g['detail'])}"
        for g in gaps
        if g["kind"] in _REFUSED
        and g["source"] in sources
        and not g["detail"].startswith(("stale", "duplicate"))
    ]
    refused += [
        f"{printable(name)}: {outside_text(row['outside'], row['outside_by_ns'])}"
        for name, row in about.items()
        if row["verdict"] == COMPLETE and row.get("outside") and row.get("outside_by_ns")
    ]
    return Verdict(worst(one.verdict for one in lacking), running, lacking, 0, refused)


def of_headers(headers: Mapping[str, str]) -> Verdict:
    """What an answer said of itself; of a server that says nothing: complete."""
    running = headers.get(STATE) == "running"
    told = headers.get(VERDICT, COMPLETE)
    try:
        said = json.loads(headers.get(LACKING, '{"series": [], "more": 0}'))
        lacking = [Lacking(**row) for row in _rows(said["series"])]
        refused = [str(one) for one in list(said.get("refused", []))]
        return Verdict(told, running, lacking, int(said["more"]), refused)
    except (ValueError, TypeError, KeyError, RecursionError):
        return Verdict(told, running, [], int(told != COMPLETE))


def _rows(said: Any) -> Iterable[Mapping[str, Any]]:
    for row in said:
        for name in ("stored", "lost", "gaps", "longest_gap_ns"):
            int(row[name])
        for name in ("outside", "outside_by_ns"):
            int(row.get(name) or 0)
        yield row
