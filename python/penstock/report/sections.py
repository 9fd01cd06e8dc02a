"""Contents of each section of the report, as plain values for the template."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from penstock.analyse.findings.finding import SEVERITIES, Finding
from penstock.analyse.findings.question import is_screening, kind
from penstock.analyse.findings.screening import Screened, effect_columns, screened
from penstock.analyse.findings.study_findings import (
    LEAST_JUDGED,
    agreement,
    assumed,
    observer_receipts,
)
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.sequential.fraction import half_against_full
from penstock.analyse.statistics.bias import degraded_count
from penstock.analyse.statistics.scale import LINEAR, LOG, effect_scale
from penstock.analyse.statistics.significance import is_sure
from penstock.analyse.treatments.costs import NO_COST, FactorCost, factor_cost, focal_factor
from penstock.analyse.treatments.means import mean_cells, mean_heads, ranked_columns, ranking
from penstock.report.figures.effects import of_levels
from penstock.report.figures.series import busiest, selected_runs, verdicts
from penstock.report.figures.tables import has_run_table
from penstock.study.disk_speeds import scale_of
from penstock.text import (
    at_speed,
    counted,
    first_of,
    first_reason,
    fitting,
    listed,
    named_unit,
    quantities,
    quantity,
    ratio_text,
    tenths,
    term_text,
    times,
)

Table = dict[str, Any]


def _table(columns: list[str], rows: list[dict[str, Any]], **more: Any) -> Table:
    """A table; columns named with a leading `#` are numeric."""
    return {
        "columns": [{"name": c.lstrip("#"), "number": c.startswith("#")} for c in columns],
        "rows": rows,
        **more,
    }


def _row(*cells: object, mark: str = "") -> dict[str, Any]:
    return {"cells": ["" if c is None else str(c) for c in cells], "mark": mark}


def _number(value: Any, digits: int = 3, factor: float = 1.0) -> str:
    try:
        number = float(value) * factor
    except (TypeError, ValueError):
        return ""
    if not math.isfinite(number):
        return ""
    return quantity(number) if digits == 3 else f"{number:.{digits}f}".replace("-", "−")


def _interval(row: Mapping[Any, Any], of: str, factor: float, log: bool = False) -> str:
    """The ends of an interval, times `factor`, or as ratios if it is on logarithms."""
    ends = [float(row[f"{of}_{end}"]) for end in ("low", "high")]
    return " to ".join(map(ratio_text, ends)) if log else quantities([factor * e for e in ends])


def _effect(value: Any, log: bool, factor: float) -> str:
    """An effect, times `factor`, or as a ratio if it is on logarithms; empty if it is not finite."""
    if not log or value is None or not math.isfinite(float(value)):
        return _number(value, factor=factor)
    return ratio_text(value)


def _fitting(runs: pd.DataFrame, response: ResponseUnit) -> tuple[float, str]:
    """The factor and the unit in which all runs' values are easy to read."""
    if response.name not in runs:
        return 1.0, response.unit
    return fitting(pd.to_numeric(runs[response.name], errors="coerce"), response.unit)


def response_title(response: ResponseUnit) -> str:
    """`bandwidth (MiB/s, higher is better)`."""
    unit = f"{response.unit}, " if response.unit else ""
    return f"{response.name} ({unit}{response.better} is better)"


def tiles(outcome: Outcome) -> list[dict[str, str]]:
    """Numbers on runs, treatments, disks, predictions and losses; `mark` is `warn` if something is wrong."""
    numbers = []
    runs = outcome.runs
    planned = len(outcome.plan.get("rows") or [])
    if runs is not None:
        valid = len(outcome.measured)
        total = max(planned, len(runs))
        degraded = degraded_count(runs)
        numbers.append(
            {
                "value": f"{valid} of {total}",
                "label": f"runs used, {degraded} of them degraded" if degraded else "runs valid",
                "mark": "" if valid == total and not degraded else "warn",
            }
        )
        treatments = runs["treatment_id"].nunique() if "treatment_id" in runs else 0
        numbers.append({"value": str(treatments), "label": "treatments", "mark": ""})
    table = outcome.fidelity
    if table is not None and len(table) and "valid" in table:
        by_disk = table.groupby(["run_id", "disk_id"])["valid"].all()
        judged_runs = table["run_id"].nunique()
        every = judged_runs if runs is None else len(runs)
        only = f" ({judged_runs} of {every} runs have one)" if judged_runs < every else ""
        numbers.append(
            {
                "value": f"{int(by_disk.sum())} of {len(by_disk)}",
                "label": f"disk certificates hold{only}",
                "mark": "" if by_disk.all() else "warn",
            }
        )
    if outcome.predictions is not None and "ratio" in outcome.predictions:
        judgeable = outcome.predictions[~assumed(outcome.predictions)]
        within, judged, _ = agreement(judgeable)
        if judged >= LEAST_JUDGED:
            numbers.append(
                {
                    "value": f"{100 * within / judged:.0f} %",
                    "label": "predicted within 15 %",
                    "mark": "" if within >= 0.85 * judged else "warn",
                }
            )
    lost = traced = 0
    for run_id in outcome.run_ids:
        receipt = observer_receipts(outcome.manifest(run_id)).get("trace")
        if receipt:
            traced += int(receipt.get("kept") or 0)
            lost += int(receipt.get("lost") or 0)
    if traced:
        numbers.append(
            {
                "value": f"{lost:,} of {traced + lost:,}",
                "label": "events lost",
                "mark": "warn" if lost else "",
            }
        )
    return numbers


def cost_of_main(outcome: Outcome) -> FactorCost | None:
    """Cost of the focal factor in the first response."""
    for response in outcome.responses[:1]:
        if focal := focal_factor(outcome, response.name):
            return factor_cost(outcome, response, focal)
    return None


def costs_caption(outcome: Outcome, cost: FactorCost | None) -> str:
    """Caption of the figure of costs, or of the table that replaces it."""
    if cost is None:
        return ""
    shown = outcome.factor(cost.factor).shown
    return (
        f"Cost of {shown(cost.level)} compared with {shown(cost.other)} in {cost.response}, under each "
        "combination of the other factors: ratio of the geometric means of the replicates with 95 % interval "
        f"(spread pooled over treatments, all of them together). Up to {NO_COST:.2f}× is called no cost."
    )


def costs_table(outcome: Outcome, cost: FactorCost | None) -> Table | None:
    """The costs as a table, for too few combinations for a figure."""
    if cost is None or len(cost.cells) < 2:
        return None
    rows = [
        _row(outcome.phrase(c.where), times(c.ratio), f"{times(c.low)} to {times(c.high)}")
        for c in sorted(cost.cells, key=lambda cell: -cell.ratio)
    ]
    level = outcome.factor(cost.factor).shown(cost.level)
    return _table(["with", f"#cost of {level}", "#95 % interval"], rows)


#: number of treatments shown initially
_SHOWN = 12
#: number of findings of severity info shown initially
_SHOWN_FINDINGS = 4


def findings_in_two(results: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Findings to show and findings to fold: errors first, then warnings, then some of the others."""
    results = sorted(results, key=lambda f: -SEVERITIES.index(f.severity))
    calm = [f for f in results if f.severity == "info"][_SHOWN_FINDINGS:]
    return [f for f in results if f not in calm], calm


def beside(outcome: Outcome) -> str:
    """The kind of figure next to the answer: `effects` for a screening, `costs` of the level in question,
    else `responses`."""
    if is_screening(outcome):
        return "effects"
    several = len(outcome.factors) > 1 and kind(outcome.question) != "which"
    return "costs" if several and cost_of_main(outcome) is not None else "responses"


def ranked(outcome: Outcome) -> Table | None:
    """Treatments by the study's first response, the best first, with their means of every response; for a
    screening its effects."""
    if is_screening(outcome) and outcome.responses:
        result = screened(outcome, outcome.responses[0])
        if result is not None:
            return _screened(outcome, result)
    heads, cells = ranked_columns(outcome, by_factor=True)
    if len(cells) < 2:
        return None
    rows = [_row(*c, mark="best" if i == 0 else "") for i, c in enumerate(cells)]
    table = _table(
        heads,
        rows[:_SHOWN],
        title=_title("Treatments, the best first", outcome),
        more=rows[_SHOWN:],
    )
    main = ranking(outcome, outcome.responses[0])
    if main.df:
        note = (
            "Means of the valid runs with 95 % intervals from each treatment's own runs; with fewer than "
            "three runs from the spread of all. Worse by: the ratio to the best if significant, all pairs "
            "tested together; “equal” is at most 5 % worse, “open” cannot be distinguished from the best."
        )
    else:
        note = "Single runs: ratios to the best without a test."
    table["note"] = f"{note} Numbers: means.parquet."
    return table


def _title(title: str, outcome: Outcome) -> str:
    return ", ".join(filter(None, [title, outcome.speeds.common]))


def _screened(outcome: Outcome, result: Screened) -> Table:
    """The effects of a screening with the verdict on each, largest first."""
    heads, cells = effect_columns(outcome, result)
    rows = [_row(*c, mark="" if "matters" in c else "quiet") for c in cells]
    note = (
        "Difference of the means at the ends of each factor, with the individual 95 % interval of each. "
        "Verdicts judge all terms together: “no effect” is below `design.detect`, the smallest effect that "
        "matters; “not shown” is not significant. "
        "Numbers: effects.parquet."
    )
    title = _title("Effects, the largest first", outcome)
    return _table(heads, rows[:_SHOWN], title=title, more=rows[_SHOWN:], note=note)


def level_means(outcome: Outcome) -> Table | None:
    """The mean of every response at each level of each factor."""
    heads = ["factor", "level"]
    all_of = [ranking(outcome, r) for r in outcome.responses]
    intervals = [n == 0 and of.df > 0 for n, of in enumerate(all_of)]
    for of, interval in zip(all_of, intervals, strict=True):
        heads += mean_heads(of, interval)
    rows = []
    for factor in outcome.factors:
        by_response = [
            {m.levels[factor.name]: m for m in of.level_means(factor.name)} for of in all_of
        ]
        for level in factor.levels:
            cells = [
                mean_cells(of, means.get(level), interval)
                for of, means, interval in zip(all_of, by_response, intervals, strict=True)
            ]
            if any(any(c) for c in cells):
                name = term_text(factor.name) if level == factor.levels[0] else ""
                rows.append(_row(name, factor.label(level), *(c for each in cells for c in each)))
    if not rows or len(outcome.factors) < 2:
        return None
    note = "Means of the treatments' means, over the combinations of the other factors that all levels have."
    return _table(heads, rows, note=note)


def effects_captions(outcome: Outcome) -> dict[str, str]:
    """Captions of the figures of effects."""
    if of_levels(outcome):
        return {
            "pareto": "Share of the variation that each term explains; hollow where not significant at 5 %, "
            "all terms tested together (Holm).",
            "effects": "Mean at each level with its 95 % interval, averaged over the other factors.",
            "folded": "The means as a picture, and the table of effects",
        }
    return {
        "pareto": "Size of each effect, those that explain most first, with their share of the variation; "
        "beyond the dashed limit it is significant at 5 %, all terms tested together (Holm; without pure "
        "error Lenth's simultaneous margin). Effects are differences of means.",
        "effects": "Effects with sign, and the individual 95 % interval of each: difference of means, level "
        "to level. Filled where significant, all terms tested together.",
        "folded": "With sign and interval, and as a table",
    }


#: markers of runs
_RUN_MARKS = {
    "●": "valid",
    "◐": "degraded, used with a bound on its bias",
    "○": "left out",
    "×": "failed",
    "·": "not made",
}


def validity(outcome: Outcome) -> Table | None:
    """Completed, valid and excluded runs, with reasons."""
    runs = outcome.runs
    if runs is None:
        return None
    by_id = {str(r["run_id"]): r for r in runs.to_dict("records")}
    planned = [str(r["run_id"]) for r in outcome.plan.get("rows") or []] or list(by_id)
    strip, rows = [], []
    valid = 0
    for run_id in planned:
        levels = outcome.phrase(outcome.levels(run_id))
        run = by_id.get(run_id)
        if run is None:
            strip.append(
                {"mark": "missing", "symbol": "·", "tip": f"{run_id}: not made ({levels})"}
            )
            continue
        if run.get("validity") == "degraded":
            valid += 1
            reason = str(run.get("reason") or "")
            tip = f"{run_id}: degraded, {reason} ({levels})"
            strip.append({"mark": "warn", "symbol": "◐", "tip": tip})
            rows.append(_row(run_id, levels, "degraded", first_reason(reason), mark="warn"))
            continue
        if run.get("valid") is True or run.get("valid") == 1:
            valid += 1
            strip.append({"mark": "", "symbol": "●", "tip": f"{run_id}: valid ({levels})"})
            continue
        state = run.get("state") or outcome.manifest(run_id).get("state") or "finished"
        failed = state != "finished"
        reason = str(run.get("reason") or "no reason given")
        strip.append(
            {
                "mark": "failed" if failed else "out",
                "symbol": "×" if failed else "○",
                "tip": f"{run_id}: {reason} ({levels})",
            }
        )
        rows.append(_row(run_id, levels, state, first_reason(reason), mark="warn"))
    excluded = len(runs) - valid
    delayed = degraded_count(runs)
    bounded = f" ({delayed} of them degraded, with a bound on their bias)" if delayed else ""
    again = ""
    if "attempt" in runs and (runs["attempt"] > 1).any():
        count = int((runs["attempt"] > 1).sum())
        again = f" {counted(count, 'run was', 'runs were')} made more than once."
    sentence = (
        f"{len(planned)} runs were planned and {len(runs)} made; {valid} are valid{bounded} and enter the "
        f"analysis, {excluded} {'is' if excluded == 1 else 'are'} left out"
        f"{' for the reasons below' if excluded else ''}.{again}"
    )
    used = {one["symbol"] for one in strip}
    legend = ", ".join(f"{mark} {name}" for mark, name in _RUN_MARKS.items() if mark in used)
    heads = ["run", "treatment", "state", "reason"]
    return _table(heads, rows, strip=strip, sentence=sentence, legend=legend)


def prediction(outcome: Outcome) -> Table | None:
    """Predicted and measured, the basis treatment named."""
    table = outcome.predictions
    if table is None or table.empty:
        return None
    names = [r.name for r in outcome.responses if (table["response"] == r.name).any()]
    rows = []
    sentences = []
    without: dict[str, None] = {}
    for response in outcome.responses:
        of_response = table[table["response"] == response.name]
        if of_response.empty:
            continue
        within, judged, worst = agreement(of_response)
        bases = (
            sorted(set(of_response["basis_treatment"].astype(str)))
            if "basis_treatment" in of_response
            else ["?"]
        )
        named = " and ".join(
            f"{b} ({outcome.phrase(outcome.levels(b)) or 'levels unknown'})" for b in bases
        )
        if assumed(of_response).any():
            sentences.append(
                f"{response.name}: nothing in the trace comes near its number, so it is assumed to follow "
                "the run, and its predictions are not evaluated."
            )
        elif judged:
            share = f" ({100 * within / judged:.0f} %)" if judged >= LEAST_JUDGED else ""
            sentences.append(
                f"{response.name}: from the traces of {named} and the disk profiles alone, "
                f"{within} of {judged} other treatments{share} came within "
                f"15 % (the bar is 85 %); the worst is {worst:.2f} of the measurement."
            )
        both = [*of_response["predicted"], *of_response["measured_mean"]]
        factor, unit = fitting(both, response.unit)
        for r in of_response.to_dict("records"):
            treatment = str(r["treatment_id"])
            if not math.isfinite(float(r["predicted"])):
                without[outcome.phrase(outcome.levels(treatment)) or treatment] = None
                continue
            ratio = float(r.get("ratio", math.nan))
            off = math.isfinite(ratio) and abs(ratio - 1) > 0.15
            is_basis = treatment in bases
            interval = ""
            if math.isfinite(float(r.get("ci_low") or math.nan)):
                interval = _interval(r, "ci", factor)
            rows.append(
                _row(
                    treatment,
                    outcome.phrase(outcome.levels(treatment)) + (" (basis)" if is_basis else ""),
                    named_unit(response.name, unit),
                    _number(r["predicted"], factor=factor),
                    interval,
                    _number(r["measured_mean"], factor=factor),
                    _number(ratio, 2),
                    mark="warn" if off and not is_basis else "quiet" if is_basis else "",
                )
            )
    return _table(
        ["", "treatment", "response", "#predicted", "#interval", "#measured", "#ratio"],
        rows,
        sentence=" ".join([*_score_of_all(table), *sentences]),
        without="; ".join(without),
        model=_model_notes(table),
        responses=names,
    )


def _score_of_all(table: pd.DataFrame) -> list[str]:
    """Hits over all responses, if there are several."""
    table = table[~assumed(table)]
    within, judged, _ = agreement(table)
    if table["response"].nunique() < 2 or judged < LEAST_JUDGED:
        return []
    return [
        f"{within} of {judged} predictions ({100 * within / judged:.0f} %) came within 15 % of the "
        "measurement (the bar is 85 %)."
    ]


def _model_notes(table: pd.DataFrame) -> str:
    """Notes of the model on what it includes and omits, without repetition."""
    notes: list[str] = []
    if "note" in table:
        notes = [str(note) for note in table["note"].dropna().unique()]
    parts = dict.fromkeys(p.strip() for note in notes for p in note.split(";") if p.strip())
    return "; ".join(parts)


def fractions(outcome: Outcome) -> list[Table]:
    """Full design against half fraction, one table per response."""
    tables = []
    for response in outcome.responses:
        compared = half_against_full(outcome, response.name)
        if compared is None:
            continue
        log = compared["scale"] == LOG
        effects = [r[of] for r in compared["rows"] for of in ("full", "half")]
        factor, unit = fitting(effects, response.unit if compared["scale"] == LINEAR else "")
        rows = []
        for r in compared["rows"]:
            rows.append(
                _row(
                    term_text(r["term"]),
                    _effect(r["full"], log, factor),
                    _interval(r, "full", factor, log),
                    _effect(r["half"], log, factor),
                    _interval(r, "half", factor, log),
                    r["rivals"],
                    r["why"] or "as the full design",
                    mark="warn" if r["wrong"] else "",
                )
            )
        wrong = sum(r["wrong"] for r in compared["rows"])
        tables.append(
            _table(
                [
                    "term",
                    f"#{named_unit('full', 'ratio' if log else unit)}",
                    "#interval",
                    f"#{named_unit('half', 'ratio' if log else unit)}",
                    "#interval",
                    "aliased with",
                    "the half fraction",
                ],
                rows,
                response=response.name,
                title=response_title(response),
                sentence=(
                    f"The half fraction {compared['relation']} would have taken {compared['runs']} of "
                    f"these {compared['of']} runs. Of its {len(rows)} conclusions {wrong} would have been "
                    "wrong: another sign, another verdict on significance, or a size that its own "
                    "interval and 10 % do not cover."
                ),
            )
        )
    return tables


def patterns(outcome: Outcome) -> Table | None:
    """The tracer's verdict on every traced run with its closing sentence."""
    rows = []
    for run_id in outcome.run_ids:
        judged = [r for r in busiest(outcome, run_id) if r["class"] != "insufficient"]
        if not judged:
            continue
        rows.append(
            _row(
                run_id,
                outcome.phrase(outcome.levels(run_id)),
                ", ".join(f"{d}s {c}" for d, c in verdicts(outcome, run_id)),
                " ".join(str(r.get("sentence") or "") for r in judged),
            )
        )
    return _table(["run", "treatment", "verdict", "in words"], rows) if rows else None


def scaled(value: Any, unit: str) -> str:
    """A value in a readable unit: 5,100,000 ns as `5.10 ms`, bytes per second as MiB/s."""
    number = float(value) if value is not None else math.nan
    if not math.isfinite(number):
        return ""
    return quantity(number, unit)


def fidelity(outcome: Outcome) -> Table | None:
    """Specified and delivered service: a row per metric, and every certificate."""
    table = outcome.fidelity
    if table is None or table.empty or "metric" not in table:
        return None
    rows = []
    for metric, of_metric in table.groupby("metric", sort=False):
        ratios = of_metric["ratio"].astype(float)
        finite = ratios[np.isfinite(ratios)]
        counts = of_metric["verdict"].astype(str).value_counts()
        worst = ""
        if len(finite):
            at = of_metric.loc[[(finite - 1).abs().idxmax()]].iloc[0]
            worst = f"{float(at['ratio']):.3f} ({at['run_id']})"
        invalid = (
            int((~of_metric["valid"].fillna(True).astype(bool)).sum())
            if "valid" in of_metric
            else 0
        )
        rows.append(
            _row(
                str(metric),
                len(of_metric),
                _number(finite.median(), 4) if len(finite) else "",
                worst,
                ", ".join(f"{n}× {v}" for v, n in counts.items()),
                mark="warn" if invalid else "",
            )
        )
    every = []
    for r in table.to_dict("records"):
        unit = str(r.get("unit") or "")
        every.append(
            _row(
                r["run_id"],
                r["disk_id"],
                outcome.phrase(outcome.levels(str(r["run_id"]))),
                r["metric"],
                scaled(r.get("asked"), unit),
                scaled(r.get("delivered"), unit),
                _number(r.get("ratio"), 3),
                f"{int(r['n']):,}" if pd.notna(r.get("n")) else "",
                r["verdict"],
                r.get("reason") or "",
                mark="" if r.get("valid") in (True, None) else "warn",
            )
        )
    more = _table(
        [
            "run",
            "disk",
            "treatment",
            "metric",
            "#asked",
            "#delivered",
            "#ratio",
            "#n",
            "verdict",
            "why",
        ],
        every,
    )
    return _table(
        ["metric", "#certificates", "#median ratio", "#worst ratio", "verdicts"],
        rows,
        all_columns=more["columns"],
        all_rows=more["rows"],
    )


_RECEIPT = (
    ("seen", "events seen"),
    ("kept", "events kept"),
    ("filtered", "filtered out"),
    ("lost", "lost"),
    ("samples", "samples"),
    ("expected", "samples expected"),
    ("missed", "missed"),
    ("points", "points collected"),
    ("points_lost", "points lost"),
)


def observers(outcome: Outcome) -> Table | None:
    """Events, losses and costs of the observers, summed over the runs."""
    totals: dict[str, dict[str, float]] = {}
    runs: dict[str, int] = {}
    for run_id in outcome.run_ids:
        for name, receipt in observer_receipts(outcome.manifest(run_id)).items():
            runs[name] = runs.get(name, 0) + 1
            sums = totals.setdefault(name, {})
            for key, value in receipt.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    if key.endswith(("_p99_ns", "_max")):
                        sums[key] = max(sums.get(key, 0.0), float(value))
                    else:
                        sums[key] = sums.get(key, 0.0) + float(value)
    rows = []
    for name, sums in sorted(totals.items()):
        amounts = [f"{label} {sums[key]:,.0f}" for key, label in _RECEIPT if key in sums]
        late = f"late by {scaled(sums['late_p99_ns'], 'ns')} (p99)" if "late_p99_ns" in sums else ""
        lost = sum(sums.get(key, 0) for key in ("lost", "missed", "points_lost"))
        each = scaled(sums["cpu_ns"] / runs[name], "ns") if "cpu_ns" in sums else "not measured"
        per_event = ""
        if "added_ns_per_call" in sums:
            per_event = f"{sums['added_ns_per_call'] / runs[name]:.0f} ns added (nominal)"
        elif sums.get("seen") and "cpu_ns" in sums:
            per_event = scaled(sums["cpu_ns"] / sums["seen"], "ns")
        cells = (name, runs[name], ", ".join(amounts), late, each, per_event)
        rows.append(_row(*cells, mark="warn" if lost else ""))
    return (
        _table(
            ["observer", "#runs", "saw", "lateness", "#processor time per run", "#per call"], rows
        )
        if rows
        else None
    )


def aliases(outcome: Outcome) -> Table:
    """The alias table as text, or a statement that there are no aliases."""
    declared = outcome.plan.get("aliases") or []
    rows = []
    for alias in declared:
        if isinstance(alias, dict):
            rows.append(
                _row(
                    term_text(str(alias.get("term", ""))),
                    alias.get("words") or alias.get("with_terms"),
                )
            )
    if rows and outcome.plan.get("model"):
        sentence = (
            "This design is no regular fraction: its terms hold parts of others, and these runs do not "
            "separate them."
        )
    elif rows:
        relation = outcome.plan.get("defining_relation") or []
        shown = (
            " = ".join(str(r).replace("*", " × ") for r in relation)
            if isinstance(relation, list)
            else str(relation)
        )
        sentence = (
            f"This design is a fraction (defining relation {shown}): these cannot be separated."
        )
    elif outcome.plan.get("model"):
        sentence = "No term of the model includes a part of the next higher terms."
    elif outcome.plan:
        sentence = "The full design was planned: no effect is aliased."
    else:
        sentence = "plan.json is missing: the aliases are unknown."
    return _table(["term", "what is reported as it"], rows, sentence=sentence)


#: codes of findings on limits and scales, which are in the section on trust
CAUTIONS = ("design-caution", "effect-scale")
#: size of a detectable difference in a caution, with the noise of runs that the plan assumed
_PLANNED_NOISE = re.compile(r"\([\d.]+ ?% of the mean if runs vary by [\d.]+ ?%, [^)]*\)")


def cautions(outcome: Outcome, computed: list[Finding]) -> list[str]:
    """Limits of the design's conclusions and scales of effects; sizes by the variation of these runs instead
    of the assumed one."""
    every = [f for f in computed if f.code in CAUTIONS]
    sentences = [" ".join(filter(None, (f.statement, f.what_to_do))) for f in every]
    detectable = (outcome.plan.get("power") or {}).get("detectable_sigma_80")
    main = ranking(outcome, outcome.responses[0]) if outcome.responses else None
    if detectable is None or main is None or not (main.df and main.positive):
        return sentences
    squares = float((main.spread.residuals**2).sum())
    noise = math.sqrt(squares / main.spread.free)
    of_runs = (
        f"({tenths(float(detectable) * noise)} of the mean of {main.response.name}: repeated runs vary by "
        f"{tenths(noise)})"
    )
    return [_PLANNED_NOISE.sub(of_runs, sentence) for sentence in sentences]


def utilisation_caption(outcome: Outcome) -> str:
    """Caption of the utilisation of selected runs."""
    chosen = selected_runs(outcome, "utilisation")
    if any(has_run_table(outcome, run_id, "phases") for run_id in chosen):
        return "Selected runs; time 0 is the start of the workload, which is shaded."
    return "Selected runs; time 0 is the first sample."


def absent(outcome: Outcome, figures: Mapping[Any, Any]) -> dict[str, str]:
    """Empty sections of the report, with reasons; one line at its end names them."""
    missing = {}
    if prediction(outcome) is None:
        missing["prediction"] = "predictions (`penstock predict` makes them from a trace)"
    offsets, utilisation = figures[("offsets", None)], figures[("utilisation", None)]
    if not offsets.drawn and patterns(outcome) is None:
        missing["patterns"] = f"access patterns ({offsets.reason or 'no run was traced'})"
    if not utilisation.drawn:
        missing["utilisation"] = f"utilisation ({utilisation.reason or 'nothing was recorded'})"
    return missing


def repeat(outcome: Outcome) -> dict[str, Any]:
    """Exact commands, versions, host facts, seed, hashes, tables."""
    manifest = next((m for r in outcome.run_ids if (m := outcome.manifest(r))), {})
    host = manifest.get("host") or manifest.get("host_facts") or {}
    facts: list[tuple[str, str]] = [("study", outcome.study_id)]
    if manifest.get("study_hash"):
        facts.append(("study hash", str(manifest["study_hash"])))
    design = outcome.study.get("design")
    seed = manifest.get("seed") or (design.get("seed") if isinstance(design, dict) else None)
    if seed is not None:
        facts.append(("seed", str(seed)))
    if outcome.plan.get("order_why"):
        facts.append(("order", str(outcome.plan["order_why"])))
    profiles: dict[str, str] = {}
    for run_id in outcome.run_ids:
        carried = outcome.manifest(run_id)
        profiles.update(_profiles(carried))
    facts += [(f"profile {k}", v) for k, v in sorted(profiles.items())]
    facts += [(f"version of {k}", v) for k, v in _flat(manifest.get("versions") or {}).items()]
    shown = {k: v for k, v in _flat(host).items() if k not in ("boot_id", "load_average")}
    facts += [(k.replace("_", " "), v) for k, v in shown.items()][:30]
    names = [p.name for p in sorted(outcome.path.glob("*.parquet"))]
    names += [
        n for n in ("plan.json", "study.yaml", "catalogue.sqlite") if (outcome.path / n).exists()
    ]
    try:
        study = (outcome.path / "study.yaml").read_text(encoding="utf-8")
    except OSError:
        study = ""
    commands = "\n".join(
        (
            "# in this directory: the same plan, order and seed on your host",
            "penstock run study.yaml -o again",
            "# finish or repeat what is missing or not valid here",
            "penstock run study.yaml -o . --resume",
            "# this page and its figures from the tables alone",
            "penstock report .",
        )
    )
    return {"commands": commands, "facts": facts, "tables": names, "study": study}


def _profiles(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Name of each profile the run used (with its time scale) → SHA-256."""
    hashes = manifest.get("profiles") or {}
    disks = manifest.get("disks")
    if not isinstance(disks, dict):
        return _flat(hashes) if hashes else {}
    hash_by_name = {}
    for disk_id, disk in disks.items():
        name = str(disk.get("profile") or disk_id)
        name = at_speed(name, scale_of(disk) or 1.0)
        hash_by_name[name] = str(hashes.get(disk_id, ""))
    return hash_by_name


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings as `a b` → text, short values only."""
    if not isinstance(value, dict):
        return {prefix or "value": str(value)}
    texts: dict[str, str] = {}
    for key, inner in value.items():
        name = f"{prefix} {key}".strip()
        if isinstance(inner, dict):
            texts.update(_flat(inner, name))
        elif isinstance(inner, list):
            if len(inner) <= 6 and all(not isinstance(i, dict | list) for i in inner):
                texts[name] = ", ".join(map(str, inner))
        elif inner is not None and len(str(inner)) <= 160:
            text = f"{inner:,}" if isinstance(inner, int) and abs(inner) > 9999 else str(inner)
            texts[name] = text
    return texts


def anova(outcome: Outcome) -> list[Table]:
    """The table of effects and variation of every response."""
    if outcome.effects is None:
        return []
    tables = []
    for response in outcome.responses:
        table = outcome.effects[outcome.effects["response"] == response.name]
        table = table.sort_values("variation_share", ascending=False, kind="stable")
        scale = effect_scale(table)
        log = scale == LOG
        factor, unit = fitting(table["effect"], response.unit if scale == LINEAR else "")
        rows = []
        for r, sure in zip(table.to_dict("records"), is_sure(table), strict=True):
            residual = r["term"] == "residual"
            low = float(r.get("ci_low", math.nan))
            interval = ""
            if math.isfinite(low):
                ends = (r.get("effect_ci_low"), r.get("effect_ci_high"))
                interval = " to ".join(_effect(end, log, factor) for end in ends)
            rows.append(
                _row(
                    term_text(str(r["term"])),
                    _number(r.get("variation_share"), 2),
                    _p_text(r.get("p_value")),
                    _p_text(r.get("p_holm")),
                    _effect(r.get("effect"), log, factor),
                    interval,
                    _number(r.get("df"), 0),
                    _first(term_text(str(r.get("aliases") or ""))) if not residual else "",
                    mark="" if sure else "quiet",
                )
            )
        tables.append(
            _table(
                [
                    "term",
                    "#variation (%)",
                    "#p",
                    "#p (all tested together)",
                    f"#{named_unit('effect', 'ratio' if log else unit)}",
                    "#95 % interval",
                    "#df",
                    "aliases",
                ],
                rows,
                response=response.name,
            )
        )
    return [_without_empty(table) for table in tables]


def _first(aliases: str, most: int = 6) -> str:
    """The first aliases of a term: a design may have hundreds of partial ones."""
    every = aliases.split(", ")
    return listed(first_of(every, most)) if len(every) > most else aliases


def _p_text(p: Any) -> str:
    if p is None or not math.isfinite(float(p)):
        return ""
    return "<0.001" if float(p) < 0.001 else f"{float(p):.3f}"


def _without_empty(table: Table) -> Table:
    """The table without its empty columns."""
    filled = [i for i in range(len(table["columns"])) if any(r["cells"][i] for r in table["rows"])]
    rows = [{**r, "cells": [r["cells"][i] for i in filled]} for r in table["rows"]]
    return {**table, "columns": [table["columns"][i] for i in filled], "rows": rows}


def all_runs(outcome: Outcome) -> Table | None:
    """Every run in execution order, with its levels and responses."""
    runs = outcome.runs
    if runs is None:
        return None
    factors = [f for f in outcome.factors if f.name in runs]
    columns = ["run", "treatment", "#replicate", *(f.name for f in factors)]
    scales = [_fitting(runs, r) for r in outcome.responses]
    named = zip(outcome.responses, scales, strict=True)
    columns += [f"#{named_unit(r.name, unit)}" for r, (_, unit) in named]
    columns += ["valid", "reason"]
    rows = []
    for r in runs.to_dict("records"):
        cells = [r.get("run_id"), r.get("treatment_id"), r.get("replicate")]
        cells += [f.label(str(r[f.name])) for f in factors]
        cells += [
            _number(r.get(x.name), factor=factor)
            for x, (factor, _) in zip(outcome.responses, scales, strict=True)
        ]
        used = "degraded" if r.get("validity") == "degraded" else "yes"
        cells += [used if r.get("valid") else "no", r.get("reason") or ""]
        rows.append(_row(*cells, mark="" if r.get("valid") else "warn"))
    return _table(columns, rows)
