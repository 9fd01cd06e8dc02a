"""Findings from the published tables, one function per rule (a row of `penstock.plugins.STUDY_FINDINGS`)."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.lost_runs import failed_runs
from penstock.analyse.findings.straggler import StragglerRun, describe, straggler_runs
from penstock.analyse.outcome import EXCLUDED, Outcome
from penstock.archive.receipts import unplaced_faults
from penstock.text import listed, percent, term_text, times

AGREEMENT_LIMIT = 0.15
AGREEMENT_BAR = 0.85
#: maximum number of causes named in a sentence
_MOST_CAUSES = 4


def _runs_named(names: list[str]) -> str:
    shown = listed(names[:6]) if len(names) <= 6 else f"{', '.join(names[:6])}, …"
    return f"{len(names)} run{'s' if len(names) != 1 else ''} ({shown})"


def stragglers(outcome: Outcome) -> Iterator[Finding]:
    """One finding per treatment with a straggler, one for all treatments without."""
    by_treatment: dict[str, list[StragglerRun]] = {}
    for row in straggler_runs(outcome):
        by_treatment.setdefault(row.treatment_id, []).append(row)
    without: list[str] = []
    for treatment, rows in by_treatment.items():
        node, runs = Counter(row.node for row in rows).most_common(1)[0]
        if node is None or 2 * runs <= len(rows):
            without.append(treatment)
            continue
        of_node = [row for row in rows if row.node == node]
        where = outcome.phrase(outcome.levels(treatment))
        yield Finding(
            "straggler",
            "info",
            f"{node} is the straggler{f' with {where}' if where else ''} ({runs} of {len(rows)} "
            f"run{'s' * (len(rows) > 1)}): {describe(outcome, of_node)}.",
            {"table": "disk_stats", "node": node, "run_id": [row.run_id for row in of_node]},
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
            f"In {len(without)} of {len(by_treatment)} treatments{where} no node limits the "
            f"run: typically {what} is busiest, for {percent(top.busy_ns / first.wall_ns)} of the "
            f"time and {times(first.ratio)} as long as anything on the next node ({second.node}).",
            {"table": "disk_stats", "run_id": [row.run_id for row in rows]},
        )


# --- runs, disks, observers ------------------------------------------------------------------------


def limits(outcome: Outcome) -> Iterator[Finding]:
    """The limit of the study that ended it.

    Guard: no limit is declared, or none was reached before all planned runs were completed.
    """
    path = outcome.path / "used.json"
    try:
        reached = str(json.loads(path.read_text()).get("reached") or "") if path.exists() else ""
    except (OSError, ValueError, AttributeError):
        reached = ""
    planned = len(outcome.plan.get("rows") or [])
    n_runs = len(outcome.runs) if outcome.runs is not None else 0
    if reached and n_runs < planned:
        yield Finding(
            "limit-reached",
            "warning",
            f"The study ended at its limit ({reached}) with {n_runs} of {planned} planned runs; nothing was "
            "chosen by their responses.",
            {"table": "runs", "reached": reached},
            "A larger limit (`limits` of the study) and `--resume` make the others.",
        )


def nothing_valid(outcome: Outcome) -> Iterator[Finding]:
    """Reason why no run is valid, and the next step."""
    runs = outcome.runs
    if runs is None or runs.empty or "valid" not in runs or runs["valid"].eq(True).any():
        return
    failed = failed_runs(outcome, runs)
    spoilt = runs[failed] if failed.all() else runs[~failed]
    examples: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for reason in spoilt["reason"].fillna("").astype(str):
        like = next(iter(_causes(reason)), "")
        examples.setdefault(like, reason.partition(";")[0].strip() or "no reason was recorded")
        counts[like] += 1
    like, count = counts.most_common(1)[0]
    cause = examples[like]
    if failed.all():
        todo = f"Read `OUT/runs/{spoilt['run_id'].iloc[0]}/stderr.txt`, correct the study"
    else:
        todo = "Free the host of other work, or raise the disks' time_scale"
    yield Finding(
        "nothing-valid",
        "error",
        f"No run is usable: {cause} ({count} of {len(runs)} runs).",
        {"table": "runs", "run_id": list(spoilt["run_id"].astype(str))},
        f"{todo}, then repeat the runs: `penstock run STUDY -o OUT --resume`.",
    )


def runs(outcome: Outcome) -> Iterator[Finding]:
    """Runs that were excluded, failed, or are missing."""
    runs = outcome.runs
    planned = [str(r["run_id"]) for r in outcome.plan.get("rows") or [] if "run_id" in r]
    completed = set(runs["run_id"].astype(str)) if runs is not None else set()
    missing = [r for r in planned if r not in completed]
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
    if bad.empty:
        return
    if "reason" in bad:
        bad = bad[~bad["reason"].fillna("").astype(str).str.startswith(EXCLUDED)]
    failed = failed_runs(outcome, bad)
    for code, rows, severity, problem, advice in (
        (
            "run-failed",
            bad[failed],
            "error",
            "failed",
            "Read `OUT/runs/{}/stderr.txt`; failed runs are stored and excluded from the analysis.",
        ),
        (
            "run-invalid",
            bad[~failed],
            "warning",
            "not valid, and excluded from the analysis",
            "Quieten the host or slow the profile (time_scale), then `--resume` repeats them.",
        ),
    ):
        if rows.empty:
            continue
        reasons: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for reason in rows["reason"].fillna("").astype(str):
            alike = {cause: text for text in reason.split(";") for cause in _causes(text)}
            reasons.update(list(alike))
            examples = {**alike, **examples}
        why = "; ".join(
            f"{examples[w].strip()}{f' ({n} runs alike)' * (n > 1)}"
            for w, n in reasons.most_common(_MOST_CAUSES)
        )
        names = list(rows["run_id"].astype(str))
        verb = "was" if len(names) == 1 and problem.startswith("not") else "were"
        problem = f"{verb} {problem}" if problem.startswith("not") else problem
        yield Finding(
            code,
            severity,
            f"{_runs_named(names)} {problem}: {why or 'no reason given'}.",
            {"table": "runs", "run_id": names},
            advice.format(names[0]),
        )


def _causes(reason: str) -> list[str]:
    """A reason without its numbers, split into causes, so that equal reasons can be counted."""
    causes = []
    for cause in re.sub(r"\([^)]*\)", "", reason).split(";"):
        cause = re.sub(r"^\s*[\w.-]+:\s", "", cause)
        cause = re.sub(r",\s[^,]*\d.*$", "", cause)  # trailing amount
        cause = re.sub(r"(?<!\w)[+−-]?\d[\d.,]*\s*(%|us|µs|ms|ns|s\b)?\s*", "", cause)
        cause = " ".join(cause.split()).removeprefix("of ").removesuffix(" for")
        if cause:
            causes.append(cause)
    return causes


def fidelity(outcome: Outcome) -> Iterator[Finding]:
    """Deviations of emulated disks from their profiles."""
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
    for code, bad, severity, problem, advice in (
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
            "the emulated disk did not deliver what its profile specifies",
            "Do not use these runs; `penstock doctor` prints the speed that this host can emulate.",
        ),
    ):
        hit = [k for k, v in disks.items() if bad in v]
        if hit:
            rows = table[table["verdict"] == bad]
            yield Finding(
                code,
                severity,
                f"In {len(hit)} of {len(disks)} disk certificates {problem} ({_reason(rows)}).",
                {"table": "fidelity", "run_id": sorted({str(k[0]) for k in hit})},
                advice,
            )
    if good and len(good) == len(disks):
        rates = table[table["metric"].astype(str).str.contains("rate")]["ratio"].dropna()
        spread = ""
        if len(rates):
            off = float((rates - 1).abs().max() * 100)
            spread = f"; the delivered rate was within {off:.1f} % of what was requested everywhere"
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
            "quantiles; those are not evaluated.",
            {"table": "fidelity", "run_id": sorted({str(k[0]) for k in short})},
            "Longer runs allow an evaluation of every quantile.",
        )


def _reason(rows: pd.DataFrame) -> str:
    judged = rows[np.isfinite(rows["ratio"].astype(float))]
    if judged.empty:
        return f"first in {rows.iloc[0]['run_id']}"
    row = judged.assign(_off=(judged["ratio"] - 1).abs()).sort_values("_off").iloc[-1]
    deviation = f"{float(row['ratio']):.2f} times the requested value"
    return f"farthest off: {row['metric']} of {row['run_id']}, {deviation}"


def observers(outcome: Outcome) -> Iterator[Finding]:
    """Losses and costs of the observers."""
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
            "verdicts of those runs rest on the records that were stored.",
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
        costs = listed([f"{o} {v / n / 1e6:.1f} ms" for o, v in sorted(cpu.items())])
        yield Finding(
            "observer-cost",
            "info",
            f"The observers took, per run on average, {costs} of processor time.",
            {"table": "manifest"},
        )


def observer_receipts(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each observer's own statistics of a run (observed, lost, cost), by observer."""
    raw = manifest.get("receipts") or manifest.get("observers") or {}
    return {str(k): v for k, v in raw.items() if isinstance(v, dict)}


# --- predictions, fractions, cautions --------------------------------------------------------------


def agreement(predictions: pd.DataFrame) -> tuple[int, int, float]:
    """(predictions within 15 %, predictions evaluated, worst ratio), without the basis treatment."""
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


#: minimum number of treatments for a share of hits
LEAST_JUDGED = 3


def assumed(predictions: pd.DataFrame) -> pd.Series[bool]:
    """Mask of rows whose response is only assumed to measure a part of the run."""
    if "note" not in predictions:
        return pd.Series(False, index=predictions.index)
    noted = predictions["note"].fillna("").astype(str).str.contains(" is assumed: ", regex=False)
    by_name = set(predictions.loc[noted, "response"])
    return predictions["response"].isin(by_name)


def predictions(outcome: Outcome) -> Iterator[Finding]:
    """Deviation of predictions from measurements."""
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
        levels_text = f" ({levels})" if levels else ""
        yield Finding(
            "prediction-agrees" if good else "prediction-departs",
            "info" if good else "warning",
            f"{response}: {within} of {judged} treatments ({100 * within / judged:.0f} %) were "
            f"predicted within 15 %; the worst prediction is {worst:.2f} of the measurement.",
            {"table": "predictions", "response": str(response), "basis_treatment": basis},
            ""
            if good
            else "Do not rely on the model for treatments with a large error; see the table.",
            f"From the traces of {basis}{levels_text} and the disk profiles alone.{_model(rows)}",
        )


def _model(rows: pd.DataFrame) -> str:
    """Notes of the model on what it includes and omits."""
    notes = [str(n) for n in rows["note"].dropna().unique()] if "note" in rows else []
    notes_once = dict.fromkeys(p.strip() for note in notes for p in note.split(";") if p.strip())
    return f" The model: {'; '.join(notes_once)}." if notes_once else ""


def fraction_comparison(outcome: Outcome, response: str) -> dict[str, Any] | None:
    """Conclusions from the half fraction of the same runs; None without one."""
    from penstock.analyse.sequential.fraction import half_against_full

    return half_against_full(outcome, response)


def fraction(outcome: Outcome) -> Iterator[Finding]:
    """Conclusions from the half fraction of the same runs."""
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
        faults = "; ".join(f"{term_text(r['term'])} {r['why']}" for r in wrong)
        yield Finding(
            "fraction-misleads",
            "info",
            f"{response.name}: with half the runs {len(wrong)} of {len(compared['rows'])} conclusions would "
            "have been wrong.",
            {"table": "effects", "response": response.name, "terms": [r["term"] for r in wrong]},
            "To separate interactions, keep the full design.",
            f"The half fraction {relation}: {faults}.",
        )


def cautions(outcome: Outcome) -> Iterator[Finding]:
    """Limits of the design's conclusions."""
    for sentence in outcome.plan.get("cautions") or []:
        yield Finding("design-caution", "info", str(sentence), {"table": "plan"})
