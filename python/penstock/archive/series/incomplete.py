"""Incomplete series in output, and their missing points: on stderr, in a warning, in a header.

`monitor get`, `penstock.series` and `GET /exp/NAME` return all stored points, as the published interface
requires; analyses (`plot`, `compare`) refuse incomplete series without `--partial`.
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
#: unit of the refused data by kind of gap
_REFUSED = {"refused": "points", "refused-messages": "messages"}
#: headers of a response: state of the experiment, worst verdict of its series, missing points
STATE, VERDICT, LACKING = "X-Penstock-State", "X-Penstock-Verdict", "X-Penstock-Lacking"
#: limits of a header, of names, and of lines on stderr
_MOST_CHARACTERS, _MOST_NAME, MOST_LINES, _MOST_REFUSED = 3_000, 200, 20, 5


class PartialData(UserWarning):
    """Warning: the returned series are incomplete, or of unknown completeness."""


@dataclass(frozen=True)
class Lacking:
    """An incomplete series; `expected`: expected number of points, None if unknown.

    `inferred`: the expected interval is estimated from the points. `outside`: points with times outside of
    the experiment, with an example of the distance.
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
    """Verdict on a response: the worst of its series, state of the experiment, missing points.

    `more`: number of incomplete series in addition to those of `lacking`. `refused`: refused data of their
    sources, and points of complete series outside of the experiment, one line each.
    """

    worst: str
    running: bool
    lacking: Sequence[Lacking]
    more: int = 0
    refused: Sequence[str] = ()

    @property
    def refuses(self) -> bool:
        """True if analyses accept it only on request."""
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
        """HTTP headers of a response, truncated to the size limit."""
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
    """Verdict on the series of a response, from their rows of the table `series` by name.

    `gaps`: rows of that table; those of refused points count.
    """
    lacking = [
        Lacking(
            name,
            row["verdict"],
            row["stored"],
            # the number of produced points does not include skipped times
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
    """Verdict from the headers of a response; complete without headers."""
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
