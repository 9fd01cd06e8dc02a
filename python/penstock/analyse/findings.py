"""Findings: what the tables of a study say, in plain words, each with a stable code.

A finding is a statement, the rows that carry it and what to do about it. Codes never change their
meaning; `CODES` lists them. Everything is computed from the published tables of an OUT directory.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.analyse.effect_findings import costs, effects
from penstock.analyse.finding import Finding as Finding
from penstock.analyse.means import ranking
from penstock.analyse.outcome import Outcome
from penstock.analyse.question import kind
from penstock.analyse.recommend import conflicts, recommendation
from penstock.analyse.slowed import slowed
from penstock.analyse.straggler import Held, held_up, in_words
from penstock.analyse.untold import size_words
from penstock.analyse.why import not_known, why
from penstock.archive.receipts import unplaced_faults
from penstock.text import listed, percent, term_words, times

SEVERITIES = ("info", "warning", "error")

#: code → what it states
CODES = {
    "recommendation": "the treatment to choose by the study's first response, or what is undecided",
    "responses-conflict": "what the recommended treatment costs in another response",
    "responses-agree": "other responses for which the recommended treatment is as good as any",
    "effect-dominant": "the factor that most of a response's variation comes from",
    "effect-interaction": "two factors whose effects depend on each other",
    "effect-untold": "effects that cannot be told, because combinations have no valid run",
    "effect-none": "no effect on a response is significant",
    "effect-bound": "what a not significant effect may still be",
    "time-scale": "disks that were slowed down, and what of the run was not",
    "time-scales-differ": "disks that are compared and do not share one time scale",
    "why": "what the time of the compared treatments goes to",
    "not-known": "what the runs cannot tell",
    "cost": "what the level in question costs, where most and where least",
    "remedy": "what removes or eases that cost",
    "no-pure-error": "no replicates, hence no interval from the runs themselves",
    "straggler": "the node of several that is at work longest, and why as far as the tables say",
    "straggler-none": "no node of several stands out",
    "run-invalid": "runs left out because what was asked of the host was not delivered",
    "run-failed": "runs whose workload failed or timed out",
    "run-missing": "planned runs that were not made",
    "fidelity-honoured": "emulated disks delivered what their profile asks",
    "fidelity-not-honoured": "emulated disks did not deliver what their profile asks",
    "fidelity-host-saturated": "the host could not keep up with an emulated disk",
    "fidelity-undecided": "too few requests to judge an emulated disk",
    "observer-lost": "observers lost events or samples",
    "observer-cost": "processor time that the observers took",
    "prediction-agrees": "at least 85 % of predictions within 15 % of the measurement",
    "prediction-departs": "fewer than 85 % of predictions within 15 % of the measurement",
    "fraction-misleads": "where the half fraction of the same runs would have been wrong",
    "fraction-agrees": "the half fraction of the same runs would have said the same",
    "design-caution": "what the design cannot tell",
}
AGREEMENT_LIMIT = 0.15
AGREEMENT_BAR = 0.85


def findings(outcome: Outcome | Path | str) -> list[Finding]:
    """All findings of an OUT directory, the ones that answer the question first.

    Raises `BadInput` where the directory is not one of results.
    """
    outcome = outcome if isinstance(outcome, Outcome) else Outcome.read(outcome)
    parts: tuple[Callable[[Outcome], Iterator[Finding]], ...] = (
        _recommendation,
        costs,
        effects,
        slowed,
        _why,
        _stragglers,
        _runs,
        _fidelity,
        _observers,
        _predictions,
        _fraction,
        _cautions,
    )
    return [finding for part in parts for finding in part(outcome)]


def findings_table(found: list[Finding]) -> pa.Table:
    """The findings as a table: code, severity, statement, evidence (JSON), what_to_do, detail."""
    names = ("code", "severity", "statement", "evidence", "what_to_do", "detail")
    rows = [{**asdict(f), "evidence": json.dumps(f.evidence, default=_plain)} for f in found]
    return pa.table({n: pa.array([str(r[n]) for r in rows], pa.string()) for n in names})


def write_findings(outcome: Outcome | Path | str) -> list[Finding]:
    """Computes the findings of OUT and leaves them in `OUT/findings.parquet`."""
    outcome = outcome if isinstance(outcome, Outcome) else Outcome.read(outcome)
    found = findings(outcome)
    pq.write_table(findings_table(found), outcome.path / "findings.parquet")
    return found


#: codes of the findings that answer the question, in the order in which they are said
_ANSWER = ("recommendation", "responses-conflict", "responses-agree")


def answer(outcome: Outcome, found: list[Finding] | None = None) -> list[str]:
    """The study's question answered, a sentence each: the statements of `answering`."""
    found = findings(outcome) if found is None else found
    return [f.statement for f in answering(outcome, found)]


def answering(outcome: Outcome, found: list[Finding]) -> list[Finding]:
    """The findings that answer the study's question, in the order in which they are told.

    What the question asks comes first: whether and how much before which is best. Then what else the best
    means, what matters, why, and what is not known. Empty where no response was measured.
    """

    def said(*codes: str, most: int = 99) -> list[Finding]:
        return [f for code in codes for f in found if f.code == code][:most]

    which = kind(outcome.question) == "which"
    asked = [] if which else said("cost", "remedy", most=2)
    best = said(*_ANSWER)
    if asked and _said_by_cost(outcome, asked[0], best):
        best = [f for f in best if f.code != "recommendation"]
    matters = said("effect-dominant", most=1) if len(outcome.factors) > 1 else []
    depends = [f for f in said("effect-interaction") if _of_main(outcome, f)][:1] if which else []
    return [
        *asked,
        *best,
        *said("time-scales-differ"),
        *said("effect-untold", most=1),
        *matters,
        *depends,
        *said("why", "time-scale", "not-known"),
    ]


def _of_main(outcome: Outcome, finding: Finding) -> bool:
    """Whether it is of the study's first response."""
    return finding.evidence.get("response") == outcome.responses[0].name


def _said_by_cost(outcome: Outcome, cost: Finding, best: list[Finding]) -> bool:
    """Whether comparing two levels of the only factor said all that the recommendation says."""
    if len(outcome.factors) > 1 or any(f.code == "responses-conflict" for f in best):
        return False
    ranked = ranking(outcome, outcome.responses[0])
    (factor,) = outcome.factors
    ends = {t.levels[factor.name] for t in (ranked.treatments[0], ranked.treatments[-1])}
    two = len(factor.levels) == 2
    none_apart = bool(ranked.of("undecided")) and not ranked.of("worse")
    return set(cost.evidence.get("levels", ())) == ends and (two or none_apart)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _runs_named(names: list[str]) -> str:
    shown = listed(names[:6]) if len(names) <= 6 else f"{', '.join(names[:6])}, …"
    return f"{len(names)} run{'s' if len(names) != 1 else ''} ({shown})"


# --- which ---------------------------------------------------------------------------------------


def _recommendation(outcome: Outcome) -> Iterator[Finding]:
    said = recommendation(outcome)
    if said is None:
        return
    advice = "" if said.sure else "More replicates tell more apart; `--resume` makes missing runs."
    severity = "info" if said.sure else "warning"
    text = f"{said.text}{size_words(outcome)}"
    yield Finding("recommendation", severity, text, said.evidence, advice, said.detail)
    for other in conflicts(outcome):
        code = (
            "responses-agree" if other.evidence.get("conflict") is False else "responses-conflict"
        )
        yield Finding(code, "info", other.text, other.evidence, "", other.detail)


def _why(outcome: Outcome) -> Iterator[Finding]:
    said = why(outcome)
    if said is not None:
        yield Finding("why", "info", said.text, said.evidence, "", said.detail)
    open_ = not_known(outcome)
    if open_ is not None:
        yield Finding("not-known", "info", open_.text, open_.evidence)


def _stragglers(outcome: Outcome) -> Iterator[Finding]:
    """One finding per treatment with a straggler, one for all treatments without."""
    by_treatment: dict[str, list[Held]] = {}
    for row in held_up(outcome):
        by_treatment.setdefault(row.treatment_id, []).append(row)
    without: list[str] = []
    for treatment, rows in by_treatment.items():
        node, runs = Counter(row.node for row in rows).most_common(1)[0]
        if node is None or 2 * runs <= len(rows):
            without.append(treatment)
            continue
        mine = [row for row in rows if row.node == node]
        where = outcome.phrase(outcome.levels(treatment))
        yield Finding(
            "straggler",
            "info",
            f"{node} is the straggler{f' with {where}' if where else ''} ({runs} of {len(rows)} "
            f"run{'s' * (len(rows) > 1)}): {in_words(outcome, mine)}.",
            {"table": "disk_stats", "node": node, "run_id": [row.run_id for row in mine]},
        )
    if without:
        rows = [row for treatment in without for row in by_treatment[treatment]]
        named = [outcome.phrase(outcome.levels(t)) for t in without[:4]]
        where = f" ({'; '.join(named)}{', …' * (len(without) > 4)})" if any(named) else ""
        first = sorted(rows, key=lambda row: row.ratio)[len(rows) // 2]
        top, second = first.loads[:2]
        what = top.name if top.resource == "disk" else f"the processors of {top.node}"
        yield Finding(
            "straggler-none",
            "info",
            f"In {len(without)} of {len(by_treatment)} treatments{where} no node stands out: of a usual run "
            f"what is most at work, {what}, is so for {percent(top.busy_ns / first.wall_ns)} of the time and "
            f"{times(first.ratio)} as long as anything of the next node ({second.node}).",
            {"table": "disk_stats", "run_id": [row.run_id for row in rows]},
        )


# --- runs, disks, observers ------------------------------------------------------------------------


def _runs(outcome: Outcome) -> Iterator[Finding]:
    runs = outcome.runs
    planned = [str(r["run_id"]) for r in outcome.plan.get("rows") or [] if "run_id" in r]
    made = set(runs["run_id"].astype(str)) if runs is not None else set()
    missing = [r for r in planned if r not in made]
    if missing:
        yield Finding(
            "run-missing",
            "warning",
            f"{len(missing)} of {len(planned)} planned runs were not made ({missing[0]} is the first).",
            {"table": "runs", "run_id": missing},
            "`penstock run STUDY --resume` makes them; finished runs are not repeated.",
        )
    if runs is None or "valid" not in runs:
        return
    bad = runs[~runs["valid"].fillna(False).astype(bool)]
    failed = _failed(outcome, bad)
    for code, rows, severity, told, advice in (
        (
            "run-failed",
            bad[failed],
            "error",
            "failed",
            "Read stderr.txt in the run's directory; failed runs are kept, and left out of the "
            "analysis.",
        ),
        (
            "run-invalid",
            bad[~failed],
            "warning",
            "not valid, hence left out of the analysis",
            "Quieten the host or slow the profile (time_scale), then `--resume` repeats them.",
        ),
    ):
        if rows.empty:
            continue
        reasons = Counter(w for r in rows["reason"].fillna("") for w in _causes(str(r)))
        why = "; ".join(f"{n}× {w}" if n > 1 else w for w, n in reasons.most_common(4))
        names = list(rows["run_id"].astype(str))
        verb = "was" if len(names) == 1 and told.startswith("not") else "were"
        told = f"{verb} {told}" if told.startswith("not") else told
        yield Finding(
            code,
            severity,
            f"{_runs_named(names)} {told}: {why or 'no reason given'}.",
            {"table": "runs", "run_id": names},
            advice,
        )


def _causes(reason: str) -> list[str]:
    """A reason without its numbers, cause by cause, so that like reasons can be counted."""
    found = []
    for cause in re.sub(r"\([^)]*\)", "", reason).split(";"):
        cause = re.sub(r"^\s*[\w.-]+:\s", "", cause)
        cause = re.sub(r"(?<!\w)[+−-]?\d[\d.,]*\s*(%|us|µs|ms|ns)?\s*", "", cause)
        cause = " ".join(cause.split()).removeprefix("of ")
        if cause:
            found.append(cause)
    return found


def _failed(outcome: Outcome, rows: pd.DataFrame) -> pd.Series:
    def failed(row: dict[Any, Any]) -> bool:
        state = row.get("state") or outcome.manifest(str(row["run_id"])).get("state")
        return state not in (None, "finished")

    return pd.Series([failed(r) for r in rows.to_dict("records")], index=rows.index, dtype=bool)


def _fidelity(outcome: Outcome) -> Iterator[Finding]:
    table = outcome.fidelity
    if table is None or table.empty or "verdict" not in table:
        return
    key = ["run_id", "disk_id"]
    disks: dict[tuple[str, str], set[str]] = {}
    for run, disk, verdict in zip(*(table[c].astype(str) for c in (*key, "verdict")), strict=True):
        disks.setdefault((run, disk), set()).add(verdict)
    good = [
        k for k, v in disks.items() if v <= {"honoured", "demand-bound", "too-short", "", "None"}
    ]
    for code, bad, severity, told, advice in (
        (
            "fidelity-host-saturated",
            "host-saturated",
            "warning",
            "the host could not keep up with the emulated disk",
            "Leave the processors to penstock and the workload, or raise time_scale.",
        ),
        (
            "fidelity-not-honoured",
            "not-honoured",
            "error",
            "the emulated disk did not deliver what its profile asks",
            "Do not use these runs; `penstock doctor` gives this host's honest floors.",
        ),
    ):
        hit = [k for k, v in disks.items() if bad in v]
        if hit:
            rows = table[table["verdict"] == bad]
            yield Finding(
                code,
                severity,
                f"In {len(hit)} of {len(disks)} disk certificates {told} ({_reason(rows)}).",
                {"table": "fidelity", "run_id": sorted({str(k[0]) for k in hit})},
                advice,
            )
    if good and len(good) == len(disks):
        rates = table[table["metric"].astype(str).str.contains("rate")]["ratio"].dropna()
        spread = ""
        if len(rates):
            off = float((rates - 1).abs().max() * 100)
            spread = f"; the delivered rate was within {off:.1f} % of what was asked everywhere"
        yield Finding(
            "fidelity-honoured",
            "info",
            f"All {len(disks)} disk certificates hold{spread}.",
            {"table": "fidelity"},
        )
    short = [k for k, v in disks.items() if "too-short" in v]
    if short:
        yield Finding(
            "fidelity-undecided",
            "info",
            f"{len(short)} of {len(disks)} disk certificates rest on too few requests for some "
            "quantiles; those are not judged.",
            {"table": "fidelity", "run_id": sorted({str(k[0]) for k in short})},
            "Longer runs let every quantile be judged.",
        )


def _reason(rows: pd.DataFrame) -> str:
    judged = rows[np.isfinite(rows["ratio"].astype(float))]
    if judged.empty:
        return f"first in {rows.iloc[0]['run_id']}"
    row = judged.assign(_off=(judged["ratio"] - 1).abs()).sort_values("_off").iloc[-1]
    told = f"{float(row['ratio']):.2f} of what was asked"
    return f"farthest off: {row['metric']} of {row['run_id']}, {told}"


def _observers(outcome: Outcome) -> Iterator[Finding]:
    lost: dict[str, dict[str, int]] = {}
    unplaced: dict[str, int] = {}
    cpu: dict[str, float] = {}
    for run_id in outcome.run_ids:
        for observer, receipt in observer_receipts(outcome.manifest(run_id)).items():
            missing = int(receipt.get("lost") or 0) + int(receipt.get("missed") or 0)
            if (faults := unplaced_faults(receipt)) > 0:
                unplaced[run_id] = faults
                missing -= faults
            if missing:
                lost.setdefault(observer, {})[run_id] = missing
            if receipt.get("cpu_ns") is not None:
                cpu[observer] = cpu.get(observer, 0.0) + float(receipt["cpu_ns"])
    for observer, by_run in lost.items():
        unit = "samples were missed" if observer == "monitor" else "events were lost"
        yield Finding(
            "observer-lost",
            "warning",
            f"{observer}: {sum(by_run.values()):,} {unit} in {_runs_named(list(by_run))}; figures and "
            "verdicts of those runs rest on what was kept.",
            {"table": "manifest", "observer": observer, "run_id": list(by_run)},
            "Use mode `pattern`, or a larger ring."
            if observer == "trace"
            else "Lengthen interval.",
        )
    if unplaced:
        yield Finding(
            "observer-lost",
            "info",
            f"trace: {sum(unplaced.values()):,} page faults in {_runs_named(list(unplaced))} could not be "
            "placed in a file, because another thread was changing the mappings.",
            {"table": "manifest", "observer": "trace", "run_id": list(unplaced)},
        )
    if cpu:
        n = max(1, len(outcome.run_ids))
        words = listed([f"{o} {v / n / 1e6:.1f} ms" for o, v in sorted(cpu.items())])
        yield Finding(
            "observer-cost",
            "info",
            f"The observers took, per run on average, {words} of processor time.",
            {"table": "manifest"},
        )


def observer_receipts(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each observer's own account of a run: what it saw, lost, and its cost; by observer."""
    raw = manifest.get("receipts") or manifest.get("observers") or {}
    return {str(k): v for k, v in raw.items() if isinstance(v, dict)}


# --- predictions, fractions, cautions --------------------------------------------------------------


def agreement(predictions: pd.DataFrame) -> tuple[int, int, float]:
    """(predictions within 15 %, predictions judged, worst ratio), the basis treatment left out."""
    rows = predictions[np.isfinite(predictions["ratio"].astype(float))]
    if "is_basis" in rows:
        rows = rows[~rows["is_basis"].astype(bool)]
    elif "basis_treatment" in rows:
        rows = rows[rows["treatment_id"] != rows["basis_treatment"]]
    if rows.empty:
        return 0, 0, math.nan
    ratios = rows["ratio"].astype(float)
    within = int(((ratios - 1).abs() <= AGREEMENT_LIMIT).sum())
    worst = float(ratios.iloc[int(np.argmax(np.abs(np.log(ratios))))])
    return within, len(rows), worst


#: with fewer treatments a share of hits says nothing
LEAST_JUDGED = 3


def assumed(predictions: pd.DataFrame) -> pd.Series[bool]:
    """Which rows are of a response of which it is only assumed what of the run it measures."""
    if "note" not in predictions:
        return pd.Series(False, index=predictions.index)
    noted = predictions["note"].fillna("").astype(str).str.contains(" is assumed: ", regex=False)
    by_name = set(predictions.loc[noted, "response"])
    return predictions["response"].isin(by_name)


def _predictions(outcome: Outcome) -> Iterator[Finding]:
    table = outcome.predictions
    if table is None or table.empty or "ratio" not in table:
        return
    for response, rows in table[~assumed(table)].groupby("response"):
        within, judged, worst = agreement(rows)
        if judged < LEAST_JUDGED:
            continue
        basis = str(rows["basis_treatment"].iloc[0]) if "basis_treatment" in rows else "?"
        good = within >= AGREEMENT_BAR * judged
        levels = outcome.phrase(outcome.levels(basis))
        known = f" ({levels})" if levels else ""
        yield Finding(
            "prediction-agrees" if good else "prediction-departs",
            "info" if good else "warning",
            f"{response}: {within} of {judged} treatments ({100 * within / judged:.0f} %) were "
            f"predicted within 15 %; the worst prediction is {worst:.2f} of the measurement.",
            {"table": "predictions", "response": str(response), "basis_treatment": basis},
            "" if good else "Do not rely on the model where it departs; see the table.",
            f"From the traces of {basis}{known} and the disk profiles alone.{_model(rows)}",
        )


def _model(rows: pd.DataFrame) -> str:
    """What the model is and leaves out, in its own words."""
    notes = [str(n) for n in rows["note"].dropna().unique()] if "note" in rows else []
    said = dict.fromkeys(p.strip() for note in notes for p in note.split(";") if p.strip())
    return f" The model: {'; '.join(said)}." if said else ""


def fraction_comparison(outcome: Outcome, response: str) -> dict[str, Any] | None:
    """What the half fraction of the same runs would have said; `None` where it cannot be formed."""
    from penstock.analyse.fraction import half_against_full

    return half_against_full(outcome, response)


def _fraction(outcome: Outcome) -> Iterator[Finding]:
    for response in outcome.responses:
        compared = fraction_comparison(outcome, response.name)
        if compared is None:
            continue
        wrong = [r for r in compared["rows"] if r["wrong"]]
        relation = compared["relation"]
        if not wrong:
            yield Finding(
                "fraction-agrees",
                "info",
                f"{response.name}: the half fraction ({relation}) of the same runs would have led to "
                "the same conclusions here. That is no proof that it would elsewhere.",
                {"table": "effects", "response": response.name},
            )
            continue
        words = "; ".join(f"{term_words(r['term'])} {r['why']}" for r in wrong)
        yield Finding(
            "fraction-misleads",
            "info",
            f"{response.name}: with half the runs {len(wrong)} of {len(compared['rows'])} conclusions would "
            "have been wrong.",
            {"table": "effects", "response": response.name, "terms": [r["term"] for r in wrong]},
            "Where interactions are to be told apart, keep the full design.",
            f"The half fraction {relation}: {words}.",
        )


def _cautions(outcome: Outcome) -> Iterator[Finding]:
    for sentence in outcome.plan.get("cautions") or []:
        yield Finding("design-caution", "info", str(sentence), {"table": "plan"})
