"""Incomplete series that are handed on, and the points they lack: on stderr, in a warning, in a header.

`monitor get`, `penstock.series` and `GET /exp/NAME` hand on all stored points, as the published call must;
analyses (`plot`, `compare`) refuse incomplete series without `--partial`.
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
        text = f"{printable(self.series)}: {self.verdict}, {self.stored}{of} points"
        if self.lost:
            text += f"; {self.lost} lost in {self.gaps} gap{'' if self.gaps == 1 else 's'}"
        if self.longest_gap_ns:
            text += f", the longest {self.longest_gap_ns / 1e9:.3g} s"
        elif self.verdict == UNKNOWN:
            text += "; its source states no interval, and its points show none"
        elif self.expected is None and not self.lost and not self.outside:
            text += "; batches of it never came"
        if self.inferred:
            text += ", by an interval that was inferred"
        if self.outside:
            text += f"; {outside_text(self.outside, self.outside_by_ns)}"
        return text


@dataclass(frozen=True)
class Verdict:
    """Verdict on an answer: the worst of its series, whether the experiment still ran, the points it lacks.

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
        """True if an analysis accepts it only on request."""
        return self.worst not in TAKEN

    @property
    def lines(self) -> list[str]:
        """Lines of the report; none if all series are complete."""
        if not self.lacking and not self.more:
            return list(self.refused)
        number = len(self.lacking) + self.more
        so_far = " so far (it still runs)" if self.running else ""
        how = "not known to be complete" if self.worst == UNKNOWN else "not complete"
        what = f"{number} series {'is' if number == 1 else 'are'} {how}{so_far}"
        lines = [what, *map(str, self.lacking[:MOST_LINES])]
        rest = number - len(lines) + 1
        return [*lines, *([f"and {rest} more"] if rest else []), *self.refused]

    def headers(self) -> dict[str, str]:
        """HTTP headers of an answer, cut to the size of a header."""
        rows: list[dict[str, Any]] = []
        for one in self.lacking:
            rows.append({**asdict(one), "series": one.series[:_MOST_NAME]})
            if len(json.dumps(rows)) > _MOST_CHARACTERS:
                rows.pop()
                break
        headers = {VERDICT: self.worst}
        if self.lacking or self.refused:
            more = len(self.lacking) + self.more - len(rows)
            refused = [one[:_MOST_NAME] for one in self.refused[:_MOST_REFUSED]]
            while refused and len(json.dumps(refused)) > _MOST_CHARACTERS // 3:
                refused.pop()
            headers[LACKING] = json.dumps({"series": rows, "more": more, "refused": refused})
        return headers


def verdict_of(
    about: Mapping[str, Mapping[str, Any]],
    running: bool,
    gaps: Iterable[Mapping[str, Any]] = (),
) -> Verdict:
    """Verdict on the series of an answer, from their rows of the table `series` by their names in it.

    `gaps`: rows of that table; those of refused points count.
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
    """Verdict in the headers of an answer; complete if a server sends none."""
    running = headers.get(STATE) == "running"
    worst = headers.get(VERDICT, COMPLETE)
    try:
        record = json.loads(headers.get(LACKING, '{"series": [], "more": 0}'))
        lacking = [Lacking(**row) for row in _rows(record["series"])]
        refused = [str(one) for one in list(record.get("refused", []))]
        return Verdict(worst, running, lacking, int(record["more"]), refused)
    except (ValueError, TypeError, KeyError, RecursionError):
        return Verdict(worst, running, [], int(worst != COMPLETE))


def _rows(rows: Any) -> Iterable[Mapping[str, Any]]:
    for row in rows:
        for name in ("stored", "lost", "gaps", "longest_gap_ns"):
            int(row[name])
        for name in ("outside", "outside_by_ns"):
            int(row.get(name) or 0)
        yield row
