"""The part of a traced run that a response measures: its threads, its count, and a fixed duration if any.

A study does not declare it; it is inferred from the trace. A part is a thread, threads that ran in
parallel, or the entire run. The response belongs to the part whose own time, bytes per second or
operations per second come nearest to the number that the program reported of the traced run. An external
measurement of time is at least the time of the calls, and a negligible number belongs to no part: both are
left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from penstock.errors import PenstockError
from penstock.spec.study import Response
from penstock.spec.units import parse_unit
from penstock.study_prediction.replay import Bound, Traced
from penstock.workload.parsers import parser

#: a part explains a response within this relative difference
EXPLAINS = 0.2
#: maximum share by which a reported time may be shorter than the part's own, or a rate higher
OUTSIDE = 0.01
#: minimum share of all bytes, operations or time of the run for a part
WORTH_A_NUMBER = 0.02
#: another part explains the number as well if its relative difference exceeds the best by at most this
AS_WELL = 0.05
#: threads are parallel if their common time is at least this share of the time of both
SIDE_BY_SIDE = 0.95
#: a part has the duration that the program reports if its own time is within this share of it
DURATION = 0.1
#: two bases identify a part of fixed duration: times equal within the first, counts different by the second
SAME_TIME, OTHER_COUNT = 0.05, 0.2

_COUNTS = {
    "syncs": "flushes",
    "reads": "reads",
    "writes": "writes",
    "calls": "reads and writes",
}
#: words of a response or its unit → counts that it excludes
_FOREIGN = {
    re.compile(
        r"(?<![a-z])(reads?|lookups?|gets?|query|queries|scans?|selects?|fetch(es)?)(?![a-z])",
        re.IGNORECASE,
    ): ("writes", "syncs"),
    re.compile(
        r"(?<![a-z])(writes?|inserts?|puts?|updates?|stores?|appends?)(?![a-z])", re.IGNORECASE
    ): ("reads",),
}
_BYTES = {"read_bytes": "bytes read", "written_bytes": "bytes written", "bytes": "bytes"}


@dataclass(frozen=True)
class Part:
    """Threads (none: all of the run) and the quantity that a response follows.

    `counts` is a column of the outcome's threads whose rate per second the response follows, or `time`.
    `rest_s` is time outside all traced operations that belongs to the part. `error` is the relative
    difference of the part's number `own` from the reported one; NaN if the part is only assumed.
    """

    tids: tuple[int, ...]
    counts: str
    why: str
    error: float = math.nan
    seconds: float | None = None
    rest_s: float = 0.0
    own: float = math.nan

    @property
    def bound(self) -> Bound | None:
        """Its duration, if that is fixed."""
        return Bound(self.tids, self.seconds) if self.seconds is not None and self.tids else None

    def of(self, outcome: dict[str, Any]) -> float:
        """Seconds, or counts per second, of a replay's outcome."""
        threads = [t for t in outcome["threads"] if not self.tids or t["tid"] in self.tids]
        if not threads:
            return math.nan
        begin = min(t["start_s"] for t in threads) if self.tids else 0.0
        span = max(t["end_s"] for t in threads) - begin + self.rest_s
        if self.counts == "time":
            return float(span)
        return float(sum(_count(t, self.counts) for t in threads) / span) if span > 0 else math.nan


def _count(thread: Any, counts: str) -> float:
    if counts == "calls":
        return float(thread["reads"] + thread["writes"])
    if counts == "bytes":
        return float(thread["read_bytes"] + thread["written_bytes"])
    return float(thread[counts])


def parts_of(
    basis: Traced, responses: Sequence[Response], others: Sequence[Traced] = ()
) -> dict[str, Part]:
    """The part of each response, by name; responses that no time or rate explains are left out.

    `others` are further bases: a part with the same time but different counts there has a fixed duration.
    """
    reported = {
        name: float(r["value"])
        for name, r in basis.bundle.manifest.get("responses", {}).items()
        if r.get("value") is not None
    }
    duration = _duration(basis)
    groups = _groups(basis.threads)
    parts = {}
    for response in responses:
        if response.name not in reported:
            continue
        part = _part(basis, response, reported[response.name], groups, duration)
        if part is not None:
            parts[response.name] = _with_bound(part, basis, duration, response, others)
    return parts


def _part(
    basis: Traced,
    response: Response,
    value: float,
    groups: Sequence[tuple[int, ...]],
    duration: float | None,
) -> Part | None:
    unit = parse_unit(response.unit)
    value *= unit.factor
    rest_s = _rest_s(basis)
    if response.source.kind == "key" and response.source.key in (None, "wall_s"):
        return Part((), "time", "the whole run", 0.0, rest_s=rest_s)
    if unit.dimension not in ("time", "1/time", "size/time") or value <= 0:
        return None
    if duration is not None and response.source.kind == "key":
        # parts of the duration that the program reports
        lasting = [g for g in groups if abs(_span(basis, g) - duration) <= DURATION * duration]
        groups = lasting or groups
    tried = [(g, _span(basis, g), _counts(basis, g)) for g in groups]
    best = _best(unit.dimension, value, tried, _foreign(response))
    if best is not None:
        return best
    if duration is not None and groups:
        busiest = max(tried, key=lambda t: (t[2]["calls"] + t[2]["syncs"], len(t[0])))[0]
        return Part(busiest, "calls", "assumed: the threads that ran for the reported duration")
    counts = "time" if unit.dimension == "time" else "calls"
    return Part((), counts, "assumed: the complete run; nothing in the trace explains the number")


def _foreign(response: Response) -> set[str]:
    """Counts that a response excludes, by its name and its unit."""
    text = f"{response.name} {response.unit}"
    return {
        count for pattern, counts in _FOREIGN.items() if pattern.search(text) for count in counts
    }


def _best(
    dimension: str,
    value: float,
    tried: Sequence[tuple[tuple[int, ...], float, dict[str, float]]],
    foreign: Container[str] = (),
) -> Part | None:
    """The part, of (threads, seconds, counts), that explains a value best; None without a match."""
    is_time = dimension == "time"
    claims = []
    for tids, span, counted in tried:
        if span <= 0:
            continue
        if is_time:
            claims.append((span, _claim(tids, "time", span, value, "takes that time")))
        for counts, word in (_BYTES if dimension == "size/time" else _COUNTS).items():
            if not counted[counts] or counts in foreign:
                continue
            if is_time:
                own, why = span * len(tids) / counted[counts], f"the time of each of its {word}"
            else:
                own, why = (
                    counted[counts] / span,
                    f"taken for {word} per second, which come near it",
                )
            amount = span if is_time else counted[counts]
            claims.append((amount, _claim(tids, counts, own, value, why)))
    if dimension != "1/time":
        longer = -1 if is_time else 1
        claims = [c for c in claims if longer * (c[1].own / value - 1) >= -OUTSIDE]
    largest = max((amount for amount, _ in claims), default=0.0)
    near = sorted(
        (part for amount, part in claims if amount >= WORTH_A_NUMBER * largest),
        key=lambda p: (p.error, -len(p.tids)),
    )
    near = [part for part in near if part.error <= EXPLAINS]
    if not near:
        return None
    best = near[0]
    rivals = {
        p.tids for p in near if p.error <= best.error + AS_WELL and not set(p.tids) & set(best.tids)
    }
    if rivals:
        why = f"{best.why} (of a part of the run that {len(rivals)} others resemble)"
        return replace(best, why=why)
    return best


def _claim(tids: tuple[int, ...], counts: str, own: float, value: float, why: str) -> Part:
    return Part(tids, counts, why, abs(own / value - 1), own=own)


def _with_bound(
    part: Part,
    basis: Traced,
    duration: float | None,
    response: Response,
    others: Sequence[Traced],
) -> Part:
    if not part.tids:
        return part
    span = _span(basis, part.tids)
    if duration is not None and abs(span - duration) <= DURATION * duration:
        return _bounded(part, duration)
    counted = _counts(basis, part.tids)["calls"]
    if span <= 0 or not counted:
        return part
    for other in others:
        twin = parts_of(other, [response]).get(response.name)
        if twin is None or not twin.tids or twin.counts != part.counts:
            continue
        there = _span(other, twin.tids)
        same = abs(there / span - 1) <= SAME_TIME
        if same and abs(_counts(other, twin.tids)["calls"] / counted - 1) > OTHER_COUNT:
            return _bounded(part, span)
    return part


def _bounded(part: Part, seconds: float) -> Part:
    why = f"{part.why}, for {seconds:.3g} s"
    return replace(part, why=why, seconds=seconds)


def _groups(threads: pd.DataFrame) -> list[tuple[int, ...]]:
    """Each thread, and sets of parallel threads, each set before its members."""
    ordered = threads.sort_values("begin_ns")
    begin = ordered["begin_ns"].to_numpy(dtype=np.float64)
    end = ordered["end_ns"].to_numpy(dtype=np.float64)
    tids = [int(t) for t in ordered.index]
    sets = set()
    for i in range(len(tids)):
        common = np.minimum(end, end[i]) - np.maximum(begin, begin[i])
        both = np.maximum(end, end[i]) - np.minimum(begin, begin[i])
        beside = np.flatnonzero(common >= SIDE_BY_SIDE * np.maximum(both, 1.0))
        if len(beside) > 1:
            sets.add(tuple(sorted(tids[j] for j in beside)))
    return [*sorted(sets), *((t,) for t in sorted(tids))]


def _span(basis: Traced, tids: Sequence[int]) -> float:
    threads = basis.threads.loc[list(tids)]
    return float(threads["end_ns"].max() - threads["begin_ns"].min()) / 1e9


def _counts(basis: Traced, tids: Sequence[int]) -> dict[str, float]:
    threads = basis.threads.loc[list(tids)]
    total = {c: float(threads[c].sum()) for c in ("reads", "writes", "syncs")}
    total["calls"] = total["reads"] + total["writes"]
    for counts in ("read_bytes", "written_bytes"):
        total[counts] = float(threads[counts].sum())
    total["bytes"] = total["read_bytes"] + total["written_bytes"]
    return total


def _rest_s(basis: Traced) -> float:
    """Seconds of the run after the last traced operation."""
    if "phases" not in basis.bundle.tables or not len(basis.threads):
        return 0.0
    phases = basis.bundle.table("phases").to_pandas()
    ends = phases.loc[phases["phase_id"].astype(str) == "workload", "end_ns"]
    last = float(basis.threads["end_ns"].max())
    return max(0.0, float(ends.iloc[-1]) - last) / 1e9 if len(ends) else 0.0


def _duration(basis: Traced) -> float | None:
    """Duration of the traced run reported by the program [s]; None if it does not report one."""
    module = parser(basis.run.parser)
    if "duration" not in module.RESPONSES:
        return None
    where = basis.bundle.path
    stdout, stderr = _text(where / "stdout.txt"), _text(where / "stderr.txt")
    try:
        responses = module.parse(where / "workload", stdout, stderr, 0.0)
    except PenstockError:
        return None
    reported = responses.get("duration")
    return reported.value if reported is not None else None


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""
