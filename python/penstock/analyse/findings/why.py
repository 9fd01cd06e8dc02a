"""Reasons for the difference between two treatments, from the runs' tables.

Sources are the manifest (processor time), the trace (flushes, reads and writes that waited, calls served
from the page cache), the monitor (links) and the disks' counters. Shares are of the run's wall time,
averaged over the treatment's runs; parallel threads can raise them above 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from penstock.analyse.findings.estimability import untested_combinations
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.lost_runs import most_frequent
from penstock.analyse.findings.question import kind
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.traces.traced_run import TracedRun
from penstock.analyse.treatments.costs import factor_cost, focal_factor
from penstock.analyse.treatments.means import AS_GOOD, Mean, Ranking, ranking
from penstock.archive.traces.verdicts import Verdict
from penstock.errors import PenstockError
from penstock.text import duration, first_of, listed, of_run, percent, size, waited

#: smaller shares of a run are not reported
LITTLE = 0.05
#: minimum share of a run of the first cause
MUCH = 0.2
#: minimum share of the first cause in a run without a trace
_MOST = 0.5
#: minimum share of unexplained time that is reported
_REST = 0.1
#: maximum difference of equal shares
_SAME = 0.03
#: share of the slower treatment's flushes below which the faster one is reported to risk more
_FEWER = 0.5
#: number of runs of a treatment whose tables are read
_RUNS = 3

#: minimum utilisation of a link that limits a program
_SATURATED = 0.8
_TRACE = " (add `trace: {mode: trace}` under `observers`)"

_ORDER = {"random": "random", "irregular": "irregular", "hot-set": "random"}


@dataclass
class Account:
    """Time of a treatment's runs by cause, as shares of their wall time; None: not recorded."""

    shares: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    traced: bool = False
    run_ids: list[str] = field(default_factory=list)
    #: time waiting for a disk is inferred from the duration of calls
    inferred: bool = False
    #: flushes per run
    flushes: float = 0.0
    wall_s: float = 0.0

    def share(self, cause: str) -> float:
        """Share of the run; 0 if the cause was not recorded."""
        return self.shares.get(cause, 0.0)

    @property
    def on_files(self) -> float:
        """All calls on files."""
        return sum(self.share(c) for c in ("flushes", "reads", "writes", "cached", "names"))


#: cause → default description
_CAUSES = {
    "flushes": "waiting for flushes",
    "reads": "reads that wait for the disk",
    "writes": "writes that wait for the disk",
    "cached": "reads and writes that the page cache serves",
    "names": "opening, closing and naming files",
    "processor": "processor time",
    "network": "the busiest link",
}


#: causes that an observer samples: a run without a record says nothing about them
_SAMPLED = ("processor", "network", "disk")
#: causes with counted calls
_COUNTED = ("flushes", "reads", "writes", "cached")


def accounts(outcome: Outcome, treatment_id: str) -> Account | None:
    """The account of a treatment; None if none of its runs is valid."""
    by_treatment: dict[str, Account | None] = outcome.memory.setdefault("accounts", {})
    if treatment_id not in by_treatment:
        by_treatment[treatment_id] = _account(outcome, treatment_id)
    return by_treatment[treatment_id]


def _account(outcome: Outcome, treatment_id: str) -> Account | None:
    runs = outcome.measured
    completed = zip(runs["treatment_id"].tolist(), runs["run_id"].tolist(), strict=True)
    run_ids = [str(run) for treatment, run in completed if str(treatment) == treatment_id]
    order = sorted(run_ids, key=lambda run: (not _has_trace(outcome, run), run))
    each = [_of_run(outcome, run_id) for run_id in order[:_RUNS]]
    each = [account for account in each if account.traced] or each
    return together(each) if each else None


def together(each: Sequence[Account]) -> Account:
    """The mean account of runs. A sampled cause is averaged over the runs that recorded it; others are 0 in
    runs without them."""
    causes = {cause for account in each for cause in account.shares}
    of = {c: [a for a in each if c in a.shares or c not in _SAMPLED] for c in causes}
    return Account(
        {c: sum(a.share(c) for a in runs) / len(runs) for c, runs in of.items()},
        {c: w for a in reversed(each) for c, w in a.texts.items()},
        each[0].traced,
        [run for a in each for run in a.run_ids],
        any(a.inferred for a in each),
        sum(a.flushes for a in each) / len(each),
        sum(a.wall_s for a in each) / len(each),
    )


def _has_trace(outcome: Outcome, run_id: str) -> bool:
    return outcome.has_table(run_id, "patterns") or outcome.has_table(run_id, "operations")


def processor_share(outcome: Outcome, run_id: str) -> float | None:
    """Processor time of a run over its wall time, above 1 for several busy processors; None: not recorded."""
    wall, cpu_ns = wall_ns(outcome, run_id), outcome.manifest(run_id).get("cpu_ns")
    return float(cpu_ns) / wall if cpu_ns is not None and wall > 0 else None


def _of_run(outcome: Outcome, run_id: str) -> Account:
    wall = wall_ns(outcome, run_id)
    account = Account(run_ids=[run_id], wall_s=wall / 1e9)
    if wall <= 0:
        return account
    share = processor_share(outcome, run_id)
    if share:
        account.shares["processor"] = share
    _network(outcome, run_id, account)
    _disk(outcome, run_id, wall, account)
    _files(outcome, run_id, wall, account)
    return account


def wall_ns(outcome: Outcome, run_id: str) -> float:
    """Duration of the workload; 0 if no table has it."""
    wall_s = (outcome.manifest(run_id).get("times") or {}).get("wall_s")
    if wall_s:
        return 1e9 * float(wall_s)
    phases = outcome.table(run_id, "phases", ["phase_id", "start_ns", "end_ns"])
    if phases is None:
        return 0.0
    workload = phases[phases["phase_id"].astype(str) == "workload"]
    return float((workload["end_ns"] - workload["start_ns"]).sum())


def _network(outcome: Outcome, run_id: str, account: Account) -> None:
    table = outcome.table(run_id, "utilisation", ["kind", "entity", "metric", "value"])
    if table is None or table.empty:
        return
    used = table[(table["kind"].astype(str) == "network") & (table["metric"].astype(str) == "used")]
    means = used.groupby(used["entity"].astype(str))["value"].mean()
    if len(means) and math.isfinite(float(means.max())):
        account.shares["network"] = float(means.max()) / 100
        account.texts["network"] = f"the link {means.idxmax()}"


def _disk(outcome: Outcome, run_id: str, wall_ns: float, account: Account) -> None:
    table = outcome.table(run_id, "disk_stats", ["disk_id", "metric", "value"])
    if table is None or table.empty:
        return
    busy = table[table["metric"].astype(str) == "busy_ns"]
    if len(busy):
        account.shares["disk"] = min(1.0, float(busy["value"].max()) / wall_ns)


def _files(outcome: Outcome, run_id: str, wall_ns: float, account: Account) -> None:
    if not _has_trace(outcome, run_id):
        return
    try:
        run = TracedRun(outcome.path / "runs" / run_id)
        if not (run.has("operations", "time_ns") or run.has("patterns", "evidence")):
            return
        flushes, judged, others_ns = run.flushes, run.judged, run.others_ns
    except PenstockError:
        return
    account.traced = True
    ns = sum(float(row["ns"] or 0) for row in flushes)
    count = sum(int(row["flushes"] or 0) for row in flushes)
    account.flushes = count
    if count:
        account.shares["flushes"] = ns / wall_ns
        each = f" of {duration(ns / count)} each"
        account.texts["flushes"] = f"{count:,} flush{'es' * (count > 1)}{each}"
    account.shares["names"] = max(0.0, others_ns - ns) / wall_ns
    cached_ns = 0.0
    cached: list[tuple[float, int, Verdict]] = []
    for direction in ("read", "write"):
        waiting = [(run.waits(row), row) for row in judged if row.direction == direction]
        total = sum(w.time_ns for w, _ in waiting)
        account.shares[f"{direction}s"] = total / wall_ns
        if total:
            account.inferred = account.inferred or any(w.inferred for w, _ in waiting if w.time_ns)
            most, row = max(waiting, key=lambda pair: pair[0].time_ns)
            order = f" in {_ORDER[row.kind]} order," if row.kind in _ORDER else ""
            account.texts[f"{direction}s"] = (
                f"{_calls(most.calls, row)},{order} that wait {duration(most.mean_ns)} each"
            )
        for waits, row in waiting:
            unwaited_ns = max(0, row.time_ns - waits.time_ns)
            cached_ns += unwaited_ns
            cached.append((unwaited_ns, row.calls - waits.calls, row))
    account.shares["cached"] = cached_ns / wall_ns
    if cached_ns:
        _, calls, row = max(cached, key=lambda each: each[0])
        account.texts["cached"] = f"{_calls(calls, row)}, none waiting for a disk"


def _calls(calls: int, row: Verdict) -> str:
    """Some of a file's reads or writes: `8,000 reads of 8 KiB each from heap`."""
    way = "from" if row.direction == "read" else "to"
    return f"{calls:,} {row.direction}s of {size(row.median_size_bytes)} each {way} {row.path}"


# ---------------------------------------------------------------- sentences


def reasons(outcome: Outcome) -> Iterator[Finding]:
    """Time of the compared treatments by cause, and the open points of the runs."""
    why = list(_why(outcome))
    yield from why
    unknown = [
        *_without_runs(outcome),
        *untested_combinations(outcome),
        *_not_seen(outcome, bool(why)),
    ]
    if unknown:
        yield Finding("not-known", "info", f"{'; '.join(unknown)}.", {"table": "runs"})


def _why(outcome: Outcome) -> Iterator[Finding]:
    """Causes of the slower treatment's time and of the faster one's; empty if no table records them."""
    pair = _compared(outcome)
    if pair is None:
        return
    slow, fast = pair
    a, b = accounts(outcome, slow), accounts(outcome, fast)
    if a is None or b is None:
        return
    # without a trace only a cause of most of the run is an explanation
    least = MUCH if a.traced else _MOST
    causes = _by_weight([c for c in _CAUSES if _comparable_share(a, c) >= least], a, b)
    evidence = {"table": "operations", "run_id": [*a.run_ids, *b.run_ids]}
    if not causes:
        yield from _idle(outcome, slow, fast, a, b, evidence)
        return
    first = causes[0]
    slow_name, fast_name = (outcome.phrase(outcome.levels(t), " + ") for t in pair)
    text = (
        f"with {slow_name} the program {_spends(a, first)}; with {fast_name}, "
        f"{_as_well(b, first, a)}."
    )
    more = [
        c
        for c in ("flushes", *causes[1:])
        if c != first
        and max(_comparable_share(a, c), _comparable_share(b, c))
        >= (LITTLE if c == "flushes" else MUCH)
    ]
    for cause in list(dict.fromkeys(more))[:2]:
        text += (
            f" {_CAUSES[cause][:1].upper()}{_CAUSES[cause][1:]}: {of_run(a.share(cause))} with "
            f"{slow_name}, {waited(b.share(cause))} with {fast_name}."
        )
    yield Finding("why", "info", text, evidence, "", _all_shares(outcome, pair, a, b))
    if a.traced and b.traced and b.flushes < _FEWER * a.flushes:
        yield Finding(
            "fewer-flushes",
            "info",
            f"with {fast_name} a run {_flushes(b.flushes)} instead of {a.flushes:,.0f} times: a crash of the "
            "machine loses what is not flushed.",
            evidence,
        )


def _by_weight(causes: list[str], a: Account, b: Account) -> list[str]:
    """Causes for the slower treatment: first those that make its runs longer than the faster one's.

    If there are none, for example for runs of equal length, in order of share.
    """
    more_s = {
        c: _comparable_share(a, c) * a.wall_s - _comparable_share(b, c) * b.wall_s for c in causes
    }
    tells = any(seconds >= LITTLE * a.wall_s for seconds in more_s.values())
    return sorted(causes, key=lambda c: (-more_s[c] if tells else 0.0, -_comparable_share(a, c)))


def _flushes(count: float) -> str:
    return "never flushes," if count < 0.5 else f"flushes {count:,.0f}"


def _comparable_share(account: Account, cause: str) -> float:
    """Comparable share of a cause: for processor time that of one processor, without calls on files."""
    if cause != "processor":
        return account.share(cause)
    in_calls = account.share("cached") + account.share("names")
    return max(0.0, min(account.share(cause), 1.0) - in_calls)


def _spends(account: Account, cause: str) -> str:
    share, what = account.share(cause), account.texts.get(cause, _CAUSES[cause])
    if cause == "processor":
        if share > 1.2:
            return f"uses {share:.1f} processors"
        return f"computes for {percent(share)} of the run"
    if cause == "network":
        return f"uses {percent(share)} of {what}"
    where = f"waiting for {what}" if cause == "flushes" else f"in {what}"
    if share > 1:
        return f"has on average {share:.3g} threads {where}"
    return f"spends {of_run(share)} {where}"


def _as_well(account: Account, cause: str, other: Account) -> str:
    share = account.share(cause)
    share_text = f"{share:.1f}" if cause == "processor" and share > 1.2 else waited(share)
    if abs(_comparable_share(account, cause) - _comparable_share(other, cause)) < _SAME:
        return f"as much ({share_text})"
    if share < 0.005:
        return "none of it"
    # runs differ in length: add counts to shares
    what = account.texts.get(cause, "") if cause in _COUNTED else ""
    return f"{share_text} ({what})" if what else share_text


def _idle(
    outcome: Outcome, slow: str, fast: str, a: Account, b: Account, evidence: dict[str, Any]
) -> Iterator[Finding]:
    """The disks' busy time, if no recorded cause takes much of the slower treatment's time."""
    if a.share("disk") >= _MOST and "disk" in b.shares and not a.traced:
        with_slow, with_fast = (
            f"with {outcome.phrase(outcome.levels(t), ' + ')}" for t in (slow, fast)
        )
        text = (
            f"the disk is busy for {percent(a.share('disk'))} of the run {with_slow} and "
            f"{percent(b.share('disk'))} {with_fast}."
        )
        yield Finding("why", "info", text, evidence, "", _all_shares(outcome, (slow, fast), a, b))


def _all_shares(outcome: Outcome, pair: tuple[str, str], a: Account, b: Account) -> str:
    """Every share of both treatments, for verification."""
    names = {**_CAUSES, "network": "link", "disk": "disk busy"}
    shares_text = [
        f"{names[c]} {waited(a.share(c))} and {waited(b.share(c))}"
        for c in names
        if max(a.share(c), b.share(c)) >= 0.005
    ]
    if not shares_text:
        return ""
    which = listed([f"{t} ({outcome.phrase(outcome.levels(t), ' + ')})" for t in pair])
    inferred = ""
    if a.inferred or b.inferred:
        inferred = " That calls wait for a disk is inferred from their time."
    shares = "; ".join(shares_text)
    return f"Shares of the run in {which}: {shares}. Processor time overlaps with calls.{inferred}"


def _compared(outcome: Outcome) -> tuple[str, str] | None:
    """The two treatments to explain, the slower one first."""
    for response in outcome.responses[:1]:
        ranked = ranking(outcome, response)
        if len(ranked.treatments) < 2:
            return None
        best, worst = ranked.best, ranked.treatments[-1]
        focal = focal_factor(outcome, response.name)
        if kind(outcome.question) == "which":
            worst = _instead(ranked, focal) or worst
            return str(worst.treatment_id), str(best.treatment_id)
        cost = factor_cost(outcome, response, focal) if focal else None
        if cost is not None and not cost.missing:
            cell = cost.worst if cost.overall >= 1 else cost.least
            costly = {**cell.where, cost.factor: cost.level}
            other = {**cell.where, cost.factor: cost.other}
            both = [
                t for levels in (costly, other) for t in ranked.treatments if t.levels == levels
            ]
            if len(both) == 2:
                both.sort(key=lambda t: -ranked.treatments.index(t))
                worst, best = both
        return str(worst.treatment_id), str(best.treatment_id)
    return None


def _instead(ranked: Ranking, focal: str | None) -> Mean | None:
    """The best treatment with another level of the factor in question; with the worst level of several.

    None if it is as good as the best: there would be nothing to explain.
    """
    if focal is None:
        return None
    first: dict[str, Mean] = {}
    for treatment in ranked.treatments:
        first.setdefault(treatment.levels.get(focal, ""), treatment)
    instead = list(first.values())[-1]
    alone = {**ranked.best.levels, focal: instead.levels.get(focal, "")}
    for treatment in ranked.treatments:  # as good, and different in that factor only
        if treatment.levels == alone and treatment.behind <= (1 + AS_GOOD) * instead.behind:
            instead = treatment
    if instead is ranked.best or (ranked.df >= 1 and instead not in ranked.of("worse")):
        return None
    return instead


def _without_runs(outcome: Outcome) -> Iterator[str]:
    """Levels, else treatments, without a valid run."""
    runs = outcome.runs
    if runs is None or not len(outcome.measured):
        return
    measured = {str(t) for t in outcome.measured["treatment_id"]}
    planned = {str(r["treatment_id"]): r["levels"] for r in outcome.plan.get("rows") or []}
    gone = {t: levels for t, levels in planned.items() if t not in measured}
    none_valid = "no run of it is valid"

    def of(treatments: list[str]) -> pd.DataFrame:
        return runs[runs["treatment_id"].astype(str).isin(treatments)]

    for factor in outcome.factors:
        for level in factor.levels:
            of_level = [t for t, v in planned.items() if str(v[factor.name]) == level]
            if of_level and all(t in gone for t in of_level):
                yield f"{factor.phrase(level)}: {none_valid}{most_frequent(of(of_level))}"
                for treatment in of_level:
                    gone.pop(treatment, None)
    if gone:
        planned_levels = [{k: str(v) for k, v in levels.items()} for levels in gone.values()]
        names = [outcome.phrase(levels, " + ") for levels in planned_levels]
        yield f"{listed(first_of(names, 3))}: {none_valid}{most_frequent(of(list(gone)))}"


def _not_seen(outcome: Outcome, explained: bool) -> Iterator[str]:
    """Time of the compared treatments that no table explains; `explained`: a cause was named."""
    pair = _compared(outcome)
    slow, fast = (accounts(outcome, t) for t in pair) if pair is not None else (None, None)
    if pair is None or slow is None:
        return
    if not slow.traced:
        if not explained and _may_be_of_time(outcome.responses[0]) and _differ(outcome):
            if "guest" in outcome.study:
                yield "the cause: calls inside a guest are not traced"
                return
            advice = "" if _asks_for_trace(outcome) else _TRACE
            yield f"the cause: these runs were not traced{advice}"
        return
    slow_name, fast_name = (outcome.phrase(outcome.levels(t), " + ") for t in pair)
    rest = _unexplained(slow)
    if rest > _REST and slow.share("network") < MUCH:
        yield (
            f"what takes {'the other ' * (rest <= 1 - MUCH)}{percent(rest)} of the run with {slow_name}, "
            "which is neither calls on files nor processor time (locks, network and sleep are not "
            "recorded)"
        )
    if fast is None or slow.share("network") < MUCH:
        return
    used = fast.share("network")
    if used < _SATURATED and _unexplained(fast) - used > _REST:
        yield (
            f"what limits the program with {fast_name}: it uses {percent(used)} of "
            f"{fast.texts.get('network', 'the link')} and computes for "
            f"{percent(fast.share('processor'))} of the run"
        )


def _unexplained(account: Account) -> float:
    """Share of a run that is neither calls on files nor processor time; 0 if not recorded."""
    if "processor" not in account.shares:
        return 0.0
    return 1 - account.on_files - _comparable_share(account, "processor")


def _may_be_of_time(response: ResponseUnit) -> bool:
    """True unless the unit is of something else: a trace does not explain a price or a count."""
    return response.unit in ("", "1") or response.is_of_time


def _differ(outcome: Outcome) -> bool:
    """True if a treatment differs from the best, or could: there is a difference to explain."""
    ranked = ranking(outcome, outcome.responses[0])
    return ranked.df < 1 or bool(ranked.of("worse"))


def _asks_for_trace(outcome: Outcome) -> bool:
    return "trace" in (outcome.study.get("observers") or {})
