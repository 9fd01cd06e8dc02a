"""Findings on the assumptions of the effects: scale, strata, residuals, and outliers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import EXCLUDED, Outcome, ResponseUnit
from penstock.analyse.statistics.bootstrap import wild
from penstock.analyse.statistics.effect_table import NO_ERROR, REML, effects_of
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import Fit, fitted, usable
from penstock.analyse.statistics.residuals import Check, checks
from penstock.analyse.statistics.scale import BOX_COX, LINEAR, LOG, RANK, SCALE_TEXTS, effect_scale
from penstock.analyse.statistics.significance import LEVEL, is_sure
from penstock.design.planned import Plan, plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.text import first_of, listed, quantity, term_text

#: maximum number of flagged runs named in a sentence
_MOST_NAMED = 4
#: failed checks that another scale may correct
_OF_SCALE = ("spread-fitted", "equal-variances", "normal")


def scale_of_effects(outcome: Outcome, response: ResponseUnit) -> str:
    """The scale of the effects of a response."""
    table = outcome.effects
    return LINEAR if table is None else effect_scale(table[table["response"] == response.name])


def scales(outcome: Outcome) -> Iterator[Finding]:
    """The scale of effects, if it is not that of the measurement."""
    for response in outcome.responses:
        scale = scale_of_effects(outcome, response)
        if scale != LINEAR:
            yield Finding(
                "effect-scale",
                "info",
                f"Effects on {response.name} are on the scale of {SCALE_TEXTS[scale]}.",
                {"table": "effects", "response": response.name, "scale": scale},
                f"`scale: linear` of the response {response.name} in the study reports differences.",
            )


def shared_settings(outcome: Outcome) -> Iterator[Finding]:
    """Factors whose settings are shared by several runs, and their error term."""
    names = [str(n) for n in outcome.plan.get("whole_plot_factors") or []]
    names += [str(n) for n in outcome.plan.get("strip_factors") or []]
    if not names or outcome.effects is None or "stratum" not in outcome.effects:
        return
    for response in outcome.responses[:1]:
        table = outcome.effects[outcome.effects["response"] == response.name].set_index("term")
        untold = [n for n in names if n in table.index and table.loc[n, "method"] == NO_ERROR]
        tested = [n for n in names if n in table.index and n not in untold]
        if untold:
            yield Finding(
                "stratum-undetermined",
                "warning",
                f"Nothing can be concluded about {listed([term_text(n) for n in untold], 'or')}: there are "
                "not enough settings of their own for a test.",
                {"table": "effects", "terms": untold},
                "More replicates make more whole plots.",
            )
        if tested:
            df = ", ".join(f"{n:.3g}" for n in table.loc[tested, "df_error"].astype(float))
            how = " (restricted maximum likelihood: runs are lost or were made elsewhere)"
            reml = how if any(table.loc[n, "method"] == REML for n in tested) else ""
            yield Finding(
                "stratum",
                "info",
                f"Settings of {listed([term_text(n) for n in tested])} stayed the same over several runs: "
                f"their effects are tested against the spread between settings ({df} degrees of "
                f"freedom){reml}, other effects against the spread of runs within a setting.",
                {"table": "effects", "terms": tested},
            )


def assumptions(outcome: Outcome) -> Iterator[Finding]:
    """Residuals that contradict the assumptions of the intervals, and conclusions on other scales."""
    plan = _plan(outcome)
    if plan is None:
        return
    for response in outcome.responses:
        scale = scale_of_effects(outcome, response)
        failed = failed_checks(outcome, plan, response, scale)
        if not failed:
            continue
        checks = "; ".join(f"{c.what}, p = {c.p:.1g}" for c in failed)
        mends = any(c.name in _OF_SCALE or c.name.startswith("spread-") for c in failed)
        beside = _other_scales(outcome, plan, response, scale) if mends else ""
        beside += _by_bootstrap(outcome, plan, response, scale) if mends else ""
        advice = "" if mends else "Runs that depend on time are best shuffled and settled longer."
        yield Finding(
            "residuals",
            "warning",
            f"{response.name}: the residuals contradict the assumptions of the intervals ({checks}).{beside}",
            {"table": "residuals", "response": response.name, "checks": [c.name for c in failed]},
            advice,
        )


def failed_checks(outcome: Outcome, plan: Plan, response: ResponseUnit, scale: str) -> list[Check]:
    """The checks of the residuals that fail."""
    try:
        fit = fitted(outcome.measured, plan, response.name, scale)
    except PenstockError:
        return []
    return _failed(outcome, plan, response, fit)


def _failed(outcome: Outcome, plan: Plan, response: ResponseUnit, fit: Fit) -> list[Check]:
    data = usable(outcome.measured, plan, response.name)
    return [c for c in checks(fit, data, [f.name for f in plan.factors]) if not c.holds]


def _other_scales(outcome: Outcome, plan: Plan, response: ResponseUnit, scale: str) -> str:
    """Residuals and verdicts on the other scales, first those on which the checks pass."""
    runs = outcome.measured
    base = _sure(effects(runs, plan, response.name, scale=scale))
    results = []
    for other in (LOG, BOX_COX, RANK):
        if other == scale:
            continue
        try:
            fit = fitted(runs, plan, response.name, other)
            table = effects(runs, plan, response.name, scale=other, fit=fit)
        except PenstockError:
            continue
        failed = _failed(outcome, plan, response, fit)
        holds = not any(c.name in _OF_SCALE or c.name.startswith("spread-") for c in failed)
        changed = sorted(base ^ _sure(table))
        verdicts = (
            f"the verdict on {listed([term_text(t) for t in changed[:_MOST_NAMED]])} is another"
            if changed
            else "the verdicts are the same"
        )
        results.append(
            (
                not holds,
                f"of {SCALE_TEXTS[other]} they {'hold' if holds else 'do not'}, and {verdicts}",
            )
        )
    if not results:
        return ""
    results.sort(key=lambda pair: pair[0])
    return f" On the scale {'; '.join(text for _, text in results)}."


def _by_bootstrap(outcome: Outcome, plan: Plan, response: ResponseUnit, scale: str) -> str:
    """Verdicts of the wild bootstrap that differ, on the same scale."""
    try:
        fit = fitted(outcome.measured, plan, response.name, scale)
        table = wild(fit, response.name)
    except PenstockError:
        return ""
    tested = set(table["term"])
    base = {t for t in _sure(effects_of(fit, response.name, scale=scale)) if t in tested}
    theirs = set(table.loc[table["p_together"] < LEVEL, "term"])
    changed = sorted(base ^ theirs)
    if not changed:
        return " By the wild bootstrap, which assumes no equal spread, the verdicts are the same."
    changes = [
        f"{term_text(t)} {'is no longer' if t in base else 'becomes'} significant"
        for t in changed[:_MOST_NAMED]
    ]
    return f" By the wild bootstrap, which assumes no equal spread, {listed(changes)}."


def _sure(table: pd.DataFrame) -> set[str]:
    """The significant terms."""
    return {str(t) for t in table.loc[is_sure(table), "term"] if t not in ("block", "residual")}


def outliers(outcome: Outcome) -> Iterator[Finding]:
    """Outliers, which remain in the analysis, and the effects without them."""
    plan = _plan(outcome)
    path = outcome.path / "residuals.parquet"
    if plan is None or not path.exists() or "run_id" not in outcome.measured:
        return
    table = pd.read_parquet(path)
    for response in outcome.responses:
        flagged = table[(table["response"] == response.name) & (table["flag"] != "")]
        flagged = flagged[flagged["run_id"].isin(outcome.measured["run_id"].astype(str))]
        if flagged.empty:
            continue
        runs = list(flagged["run_id"].astype(str))
        scale = scale_of_effects(outcome, response)
        without, changed = _without(outcome, plan, response, runs, scale)
        yield Finding(
            "outlier",
            "warning",
            f"{response.name} of {_named(outcome, response, runs)} is far from the other runs. "
            f"{'They stay' if len(runs) > 1 else 'It stays'} in the data; "
            f"{without}.",
            {
                "table": "residuals",
                "response": response.name,
                "run_id": runs,
                "changed": changed,
            },
            "Leave a run out only for a technical reason: `penstock analyse OUT --leave-out RUN=REASON` puts "
            "it on record.",
            "; ".join(f"{r.run_id}: {r.flag}" for r in flagged.itertuples()),
        )


def excluded_runs(outcome: Outcome) -> Iterator[Finding]:
    """Runs excluded by the user, the reasons, and the effects with these runs."""
    plan = _plan(outcome)
    runs = outcome.runs
    if plan is None or runs is None or "reason" not in runs:
        return
    excluded = runs["reason"].fillna("").astype(str).str.startswith(EXCLUDED)
    if not excluded.any():
        return
    reasons = [
        f"{r['run_id']} ({str(r['reason'])[len(EXCLUDED) :]})"
        for r in runs[excluded].to_dict("records")
    ]
    effects_with, all_changed = [], dict[str, list[str]]()
    for response in outcome.responses:
        scale = scale_of_effects(outcome, response)
        try:
            all_runs = effects(
                runs.assign(valid=runs["valid"] | excluded), plan, response.name, scale=scale
            )
            rest = effects(outcome.measured, plan, response.name, scale=scale)
        except PenstockError:
            continue
        changed = sorted(_sure(all_runs) ^ _sure(rest))
        all_changed[response.name] = changed
        changes = [
            f"{term_text(t)} {'is' if t in _sure(all_runs) else 'is not'} significant"
            for t in changed[:_MOST_NAMED]
        ]
        effects_with.append(
            f"for {response.name} {listed(changes) if changes else 'no verdict changes'}"
        )
    yield Finding(
        "run-left-out",
        "warning",
        f"Left out for a technical reason: {listed(reasons)}. With "
        f"{'them' if len(reasons) > 1 else 'it'} {listed(effects_with) or 'no conclusion is possible'}.",
        {
            "table": "runs",
            "run_id": list(runs.loc[excluded, "run_id"].astype(str)),
            "changed": all_changed,
        },
        "`penstock analyse OUT --take-back RUN` includes one again.",
    )


def _named(outcome: Outcome, response: ResponseUnit, runs: Sequence[str]) -> str:
    values = outcome.measured.set_index("run_id")[response.name]
    values_of = [f"{r} ({quantity(float(values[r]), response.unit)})" for r in runs]
    return listed(first_of(values_of, _MOST_NAMED))


def _without(
    outcome: Outcome, plan: Plan, response: ResponseUnit, runs: Sequence[str], scale: str
) -> tuple[str, list[str]]:
    """Comparison of the analyses with and without flagged runs, and the terms whose verdict changes."""
    them = "them" if len(runs) > 1 else "it"
    rest = outcome.measured[~outcome.measured["run_id"].astype(str).isin(runs)]
    try:
        after = effects(rest, plan, response.name, scale=scale)
        before = effects(outcome.measured, plan, response.name, scale=scale)
    except PenstockError as error:
        return f"without {them} there is no analysis ({error})", []
    changed = sorted(_sure(before) ^ _sure(after))
    if not changed:
        return f"without {them} no verdict on an effect changes", []
    changes = [
        f"{term_text(t)} {'is no longer' if t in _sure(before) else 'becomes'} significant"
        for t in changed[:_MOST_NAMED]
    ]
    return f"without {them} {listed(changes)}", changed


def _plan(outcome: Outcome) -> Plan | None:
    try:
        return plan_from_json(outcome.plan)
    except BadInput:
        return None
