"""Completeness of a series: the number of points expected, its gaps, and the verdict.

A series of times is compared with the interval that its source declared, else with one inferred from its
points; with neither, its completeness is `unknown`. The comparison begins when the first point was due
(`Account.since_ns`) and ends when the collector was stopped; the defaults are the experiment's marks.

Points outside of the experiment, and points without a value, are not lost: they arrived. Refused points are
not counted as losses of a series, because theirs is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.archive.completeness import Verdict, worst
from penstock.parts.monitoring.experiments.points import Account, Event

Ints = npt.NDArray[np.int64]
Gap = dict[str, Any]

#: least share of the expected points of a complete series
COMPLETE_SHARE = 0.99
#: one point may be missing from this number of expected points on
FEWEST = 10
#: longest gap of a complete series [intervals]
LONGEST_GAP = 5
#: version of these rules
RULES = 3
#: least distance of two points with a gap between them [intervals]
_GAP = 1.5
#: an interval is inferred from this number of points on, if this share of their spacings is within this
#: fraction of the median
LEAST_POINTS, _ALIKE, _NEAR = 10, 0.5, 0.25
#: a collector that starts later than this, or stops earlier than this before the end, was away [ns]
AWAY_NS = 5_000_000_000


@dataclass(frozen=True)
class Life:
    """Working time of a source [ns since 1970 UTC], from its first due poll to its stop.

    `start_ns` and `end_ns` are the experiment's marks, `off` the stretches in which it was switched off.
    """

    start_ns: int
    end_ns: int
    since_ns: int
    until_ns: int
    off: Sequence[tuple[int, int, Event]] = ()
    #: first and last poll of its collector, also before and after the experiment
    polled: tuple[int, int] | None = None

    @classmethod
    def of(cls, events: Sequence[Event], start_ns: int, end_ns: int) -> Life:
        """The life of a source by its events `starting` and `ending`."""
        bounds = sorted(
            (e.utc_ns if e.kind == "ending" else e.end_utc_ns or e.utc_ns, e.kind)
            for e in events
            if e.kind in ("starting", "ending")
        )
        first, last = start_ns, end_ns
        if bounds and bounds[0][1] == "starting":
            first = bounds[0][0]
        if bounds and bounds[-1][1] == "ending":
            last = bounds[-1][0]
        since, until = max(start_ns, first), min(end_ns, last)
        off = _stretches(events, end_ns)
        return cls(start_ns, end_ns, since, until, off, (first, last))

    def astray(self, places: Ints) -> Ints:
        """Times outside of both the experiment and its collector's polls around it."""
        first, last = self.polled or (self.start_ns, self.end_ns)
        low = min(self.start_ns, first) - AWAY_NS
        high = max(self.end_ns, last) + AWAY_NS
        return places[(places < low) | (places > high)]

    def off_ns(self, low: int, high: int, account: Account) -> int:
        """Time within a stretch in which a series was switched off [ns]."""
        total = 0
        for start, end, event in self.off:
            if event.metric in (None, account.metric) and event.labels in (None, account.labels):
                total += max(0, min(high, end) - max(low, start))
        return total

    def off_kind(self, low: int, high: int, account: Account) -> str:
        """`stale` if the series only ended by itself within a stretch of time, else `disabled`."""
        kinds = {
            event.kind
            for start, end, event in self.off
            if min(high, end) > max(low, start)
            and event.metric in (None, account.metric)
            and event.labels in (None, account.labels)
        }
        return "stale" if kinds == {"stale"} else "disabled"


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of one series: its interval and the origin of that (`told`, `inferred`, or empty), expected
    points, points missing in its gaps, and the verdict. `astray_ns`: approximate offset of its times from the
    experiment, if they are of another clock; positive if they are ahead."""

    interval_ns: int | None
    interval_from: str
    expected: int | None
    lost: int
    longest_gap_ns: int
    verdict: Verdict
    gaps: list[Gap] = field(default_factory=list)
    astray_ns: int | None = None


def evaluate(account: Account, places: Ints, sequence: bool, life: Life, holes: int) -> Evaluation:
    """Evaluate a series by its places, indices or times [ns], including points without a value; `holes`:
    number of stretches of missing batches."""
    stored = len(places)
    if sequence:
        produced = max(int(places[-1]) + 1, account.produced or 0)
        gaps = _of_sequence(places, account.produced)
        lost = sum(g["missing"] for g in gaps)
        result = verdict(stored, produced, 0, None, holes)
        return Evaluation(account.interval_ns, _from(account), produced, lost, 0, result, gaps)
    inside = places[(places >= life.start_ns) & (places <= life.end_ns)]
    astray = life.astray(places)
    step, origin = account.interval_ns, _from(account)
    if step is None and account.expected is None and not account.free:
        step = inferred_interval(inside)
        origin = "inferred" if step else ""
    declared = account.expected
    # the declared count includes polls before and after the experiment
    there = len(inside) if declared is None else stored - len(astray)
    if step is None:
        gaps = _without_interval(account, there, life)
        longest = 0
    else:
        gaps = _with_interval(account, inside, step, origin, life, there)
        longest = max(
            (
                g["end_utc_ns"] - g["start_utc_ns"]
                for g in gaps
                if g["kind"] == "lost" and not g.get("detail")
            ),
            default=0,
        )
    lost = sum(g["missing"] for g in gaps if g["kind"] == "lost")
    due = None if step is None and declared is None else there + lost
    result = verdict(there, due, longest, step, holes)
    if stored and not len(inside):
        result = "unusable"
    ahead = int((astray > life.end_ns).sum())
    if ahead and ahead > (1 - COMPLETE_SHARE) * stored:
        # their clock is not that of the experiment, so the times of the others are wrong, too
        result = worst((result, "partial"))
    # points outside of the experiment are not lost, too
    spare = stored - len(inside) if declared is None else len(astray)
    apart = len(astray) if step is None else min(spare, _apart(places, inside, astray, step))
    explained = _explain(gaps, spare, apart, inside, life)
    gaps = [g for g in gaps if g["missing"] or g["kind"] in ("disabled", "stale")]
    lost -= explained
    expected = None if due is None else due - there + len(inside)
    return Evaluation(
        step, origin, expected, lost, longest if lost else 0, result, gaps, _astray_ns(astray, life)
    )


def _with_interval(
    account: Account, inside: Ints, step: int, origin: str, life: Life, there: int
) -> list[Gap]:
    begin = account.since_ns if account.since_ns is not None else life.since_ns
    end, away_ns = life.until_ns, AWAY_NS
    if origin == "inferred":
        due_ns = max(life.start_ns, account.since_ns or life.start_ns)
        begin, end, away_ns = int(inside[0]), int(inside[-1]), LONGEST_GAP * step
        away = [(due_ns, begin), (end + 1, life.end_ns)]
    else:
        away = [(life.start_ns, life.since_ns), (life.until_ns, life.end_ns)]
    gaps = _of_times(inside, step, account, life, max(begin, life.start_ns), end)
    lacking = sum(g["missing"] for g in gaps)
    on = end - max(begin, life.start_ns) - life.off_ns(begin, end, account)
    short = max(0, on) // step - len(inside) - lacking
    if account.expected is not None:
        most = max(0, account.expected - there)
        _limit(gaps, most)
        short = most - sum(g["missing"] for g in gaps)
    elif short <= 1 + len(
        life.off
    ):  # at each end of it, and of a stretch off, one may be due or not
        short = 0
    if short:
        gaps.append(_somewhere(begin, end, short))
    gaps += [g for g in (_away(a, b, step, account, life) for a, b in away if b - a > away_ns) if g]
    return gaps


def _explain(gaps: list[Gap], spare: int, apart: int, inside: Ints, life: Life) -> int:
    """Subtract points outside of the experiment from the missing points, nearest to an end of it first.

    Returns the number subtracted. Only `apart` of them explain gaps between points: the others continue the
    series beyond its ends.
    """
    taken_of_all = 0

    def from_an_end(gap: Gap) -> int:
        return int(min(gap["start_utc_ns"] - life.start_ns, life.end_ns - gap["end_utc_ns"]))

    def between_points(gap: Gap) -> bool:
        return bool(
            len(inside) and gap["end_utc_ns"] > inside[0] and gap["start_utc_ns"] < inside[-1]
        )

    lost = [g for g in gaps if g["kind"] == "lost"]
    for gap in sorted(lost, key=lambda g: (between_points(g), from_an_end(g))):
        remaining = (apart if between_points(gap) else spare) - taken_of_all
        taken: int = max(0, min(remaining, gap["missing"]))
        gap["missing"] -= taken
        taken_of_all += taken
    return taken_of_all


def _apart(places: Ints, inside: Ints, astray: Ints, step: int) -> int:
    """Number of astray times that do not continue those within the experiment."""
    if not len(inside):
        return len(astray)
    breaks = np.flatnonzero(np.diff(places) > LONGEST_GAP * step)
    first, last = np.searchsorted(places, [inside[0], inside[-1]])
    low = max((int(at) + 1 for at in breaks[breaks < first]), default=0)
    high = min((int(at) for at in breaks[breaks >= last]), default=len(places) - 1)
    return int(((astray < places[low]) | (astray > places[high])).sum())


def _astray_ns(astray: Ints, life: Life) -> int | None:
    """Median offset from the experiment of the times on the side where most of them are [ns]."""
    if not len(astray):
        return None
    after = astray[astray > life.end_ns]
    most = after if 2 * len(after) >= len(astray) else astray[astray < life.start_ns]
    return int(np.median(most)) - (life.start_ns + life.end_ns) // 2


def inferred_interval(times: Ints) -> int | None:
    """The median spacing of ten or more points [ns]; None if fewer than half are within a quarter of it, as
    for irregular events."""
    if len(times) < LEAST_POINTS:
        return None
    spacing = np.diff(times)
    median = float(np.median(spacing))
    alike = np.abs(spacing - median) <= _NEAR * median
    return round(median) if median > 0 and alike.mean() >= _ALIKE else None


def _from(account: Account) -> str:
    return "told" if account.interval_ns else ""


def verdict(
    stored: int, expected: int | None, longest_gap_ns: int, interval_ns: int | None, holes: int
) -> Verdict:
    """Verdict `complete` from 99 % on, or with one of ten or more missing, if no gap is longer than five
    intervals."""
    if stored == 0 or (stored < 2 and (expected or 0) >= 2):
        return "unusable"
    if expected is None:
        return "partial" if holes else "unknown"
    short = interval_ns is None or longest_gap_ns <= LONGEST_GAP * interval_ns
    few = stored >= COMPLETE_SHARE * expected or (expected >= FEWEST and stored >= expected - 1)
    return "complete" if few and short else "partial"


def _without_interval(account: Account, there: int, life: Life) -> list[Gap]:
    lost = max(0, (account.expected or 0) - there)
    return [_somewhere(life.since_ns, life.until_ns, lost)] if lost else []


def of_refusals(received: int, refused: int, messages: int) -> Verdict:
    """Verdict on a source that refused points or messages: `complete` if at least 99 % of its points were
    stored and no message, whose content is unknown, was refused."""
    if not refused and not messages:
        return "complete"
    if not received:
        return "unusable"
    complete = not messages and received >= COMPLETE_SHARE * (received + refused)
    return "complete" if complete else "partial"


def _of_sequence(places: Ints, produced: int | None) -> list[Gap]:
    around = np.concatenate([[-1], places])
    if produced is not None:
        around = np.append(around, max(produced, int(places[-1]) + 1))
    return [
        {
            "kind": "lost",
            "start_index": int(around[i]) + 1,
            "end_index": int(around[i + 1]) - 1,
            "missing": int(around[i + 1] - around[i]) - 1,
        }
        for i in np.flatnonzero(np.diff(around) > 1)
    ]


def _of_times(
    inside: Ints, step: int, account: Account, life: Life, begin: int, end: int
) -> list[Gap]:
    """Gaps between points; the first and the last point may be one interval from the ends."""
    first, last = begin - step // 2 - 1, end + step // 2 - 1
    if len(inside):
        first, last = min(first, int(inside[0])), max(last, int(inside[-1]))
    around = np.concatenate([[first], inside, [last]])
    spacing = np.diff(around)
    gaps: list[Gap] = []
    for i in np.flatnonzero(spacing > _GAP * step):
        low, high = max(int(around[i]), begin), min(int(around[i + 1]), end)
        was_off, kind_off = life.off_ns(low, high, account), life.off_kind(low, high, account)
        # on both sides of a stretch off a point may be one interval away
        missing = max(0, round((spacing[i] - was_off) / step) - (2 if was_off else 1))
        # one point was late, and the next in time: nothing is missing
        if missing and i + 2 < len(spacing) and spacing[i + 1] < step / 2:
            missing -= 1
        kind = kind_off if was_off and missing == 0 else "lost"
        gaps.append({"kind": kind, "start_utc_ns": low, "end_utc_ns": high, "missing": missing})
    return gaps


def _limit(gaps: list[Gap], most: int) -> None:
    """Limit the missing points to `most`, the collector's own count; the longest gaps have them first."""
    for gap in sorted(gaps, key=lambda g: g["start_utc_ns"] - g["end_utc_ns"]):
        gap["missing"] = min(gap["missing"], most)
        most -= gap["missing"]


def _somewhere(begin: int, end: int, missing: int) -> Gap:
    detail = "points that are missing somewhere in between"
    return {
        "kind": "lost",
        "start_utc_ns": begin,
        "end_utc_ns": end,
        "missing": missing,
        "detail": detail,
    }


def _away(low: int, high: int, step: int, account: Account, life: Life) -> Gap | None:
    """The gap before a late start or after an early stop of a collector."""
    missing = max(0, high - low - life.off_ns(low, high, account)) // step
    if not missing:
        return None
    return {"kind": "lost", "start_utc_ns": low, "end_utc_ns": high, "missing": missing}


def _stretches(events: Sequence[Event], end_ns: int) -> list[tuple[int, int, Event]]:
    """Stretches in which something was switched off."""
    stretches: list[tuple[int, int, Event]] = []
    # a killed collector may have reported one event twice
    for event in sorted(set(events), key=lambda e: e.utc_ns):
        if event.kind == "disabled":
            end = event.end_utc_ns
            if end is None:
                back = [
                    e.utc_ns for e in events if e.kind == "enabled" and e.utc_ns >= event.utc_ns
                ]
                end = min(back, default=end_ns)
            stretches.append((event.utc_ns, end, event))
    return stretches
