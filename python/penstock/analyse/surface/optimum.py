"""Results of the surfaces of a study's responses: predictions at a setting, the best setting of each
response, and the best setting for all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from penstock.analyse.findings.assumptions import scale_of_effects
from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.surface.desirability import overall
from penstock.analyse.surface.surface import (
    LACK,
    OPTIMUM_COLUMNS,
    At,
    Merit,
    Surface,
    best_setting,
    stationary,
    surface,
    surface_table,
)
from penstock.design.planned import Plan, plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Desire
from penstock.text import counted, listed, quantities, quantity

#: p-value of the lack of fit below which a surface does not fit
DOUBTED = 0.05
ALL = "all responses"


def plan_of(outcome: Outcome) -> Plan:
    """The frozen plan. BadInput if there is none."""
    return plan_from_json(outcome.plan)


def surface_of(outcome: Outcome, response: ResponseUnit) -> Surface:
    """The surface of one response. PenstockError if there is none."""
    scale = scale_of_effects(outcome, response)
    return surface(outcome.measured, plan_of(outcome), response.name, scale)


def desires(outcome: Outcome) -> dict[str, Desire]:
    """Desirability functions of the responses that declare one."""
    declared = outcome.study.get("responses") or {}
    by_name = {}
    for response in outcome.responses:
        body = declared.get(response.name)
        if isinstance(body, dict) and isinstance(body.get("desire"), dict):
            by_name[response.name] = Desire(**body["desire"])
    return by_name


def seeks_optimum(outcome: Outcome) -> bool:
    """True if the study asks for the best setting."""
    design = outcome.study.get("design")
    purpose = design.get("purpose") if isinstance(design, dict) else None
    return purpose == "optimise" or bool(desires(outcome))


def parse_at(text: str) -> At:
    """`jobs=12,disk=hdd` as values by factor. BadInput for anything else."""
    values: At = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise BadInput(f"--at: found {part!r}; expected FACTOR=VALUE, ...")
        if name.strip() in values:
            raise BadInput(f"--at: found {name.strip()} twice; expected each factor once")
        values[name.strip()] = value.strip()
    return values


def predictions_at(outcome: Outcome, at: Mapping[str, float | str]) -> list[dict[str, Any]]:
    """Each response at a setting, with the 95 % intervals of its mean and of one run.

    BadInput for a setting that does not exist, PenstockError if no response has a surface.
    """
    rows, faults = [], []
    for response in outcome.responses:
        try:
            surface = surface_of(outcome, response)
        except BadInput:
            raise
        except PenstockError as error:
            faults.append(f"{response.name}: {error}")
            continue
        prediction = surface.predict(at)
        lack = next((t for t in surface.tests if t.name == LACK), None)
        rows.append(
            {
                "response": response.name, "unit": response.unit, "at": dict(at),
                "value": prediction.value, "ci_low": prediction.low, "ci_high": prediction.high,
                "run_low": prediction.run_low, "run_high": prediction.run_high,
                "lack_of_fit_p": lack.p if lack is not None else None,
                "made": runs_at(outcome, at), "scale": surface.scale, "power": surface.power,
            }
        )  # fmt: skip
    if not rows:
        raise PenstockError("; ".join(faults) or "there is no response")
    return rows


def prediction_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """`predictions_at` for a terminal."""
    lines = []
    for row in rows:
        unit = str(row["unit"])
        line = f"{row['response']}: {quantity(float(row['value']), unit)}"
        if math.isfinite(float(row["ci_low"])):
            line += f" ({_ends(row, 'ci', unit)}; one run {_ends(row, 'run', unit)})"
        lines.append(line)
        if row["lack_of_fit_p"] is not None and row["lack_of_fit_p"] < DOUBTED:
            lines.append(
                f"  the surface does not fit the runs (lack of fit, p = {row['lack_of_fit_p']:.2g}): the "
                "interval is too narrow"
            )
    completed = int(rows[0]["made"])
    lines.append(
        f"{counted(completed, 'valid run')} of this setting"
        if completed
        else "This setting was not run: predicted from the others, 95 % intervals."
    )
    return lines


def runs_at(outcome: Outcome, at: Mapping[str, float | str]) -> int:
    """Number of valid runs of a setting."""
    runs = outcome.measured
    hit = pd.Series(True, index=runs.index)
    for factor in plan_of(outcome).factors:
        value = at.get(factor.name)
        same = [
            level.name
            for level in factor.levels
            if str(value) == level.name or _number(value) == _number(level.value) is not None
        ]
        hit &= runs[factor.name].astype(str).isin(same)
    return int(hit.sum())


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


# ---------------------------------------------------------------- tables


def tables(outcome: Outcome) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """The coefficients of all surfaces, the best settings, and reasons for missing ones."""
    surfaces: dict[str, Surface] = {}
    faults = []
    for response in outcome.responses:
        try:
            surfaces[response.name] = surface_of(outcome, response)
        except PenstockError as error:
            faults.append(f"{response.name}: {error}")
    coefficients = [surface_table(s) for s in surfaces.values()]
    rows = [row for s in surfaces.values() for row in _best_rows(outcome, s)]
    weights = {n: d for n, d in desires(outcome).items() if n in surfaces}
    if weights:
        rows += _weighed(outcome, [surfaces[n] for n in weights], list(weights.values()))
    optimum = pd.DataFrame(rows, columns=list(OPTIMUM_COLUMNS))
    return (
        pd.concat(coefficients, ignore_index=True) if coefficients else pd.DataFrame(),
        optimum,
        faults,
    )


def forbidden(outcome: Outcome) -> list[dict[str, list[str]]]:
    """Forbidden combinations of levels."""
    design = outcome.study.get("design")
    declared = design.get("forbidden") if isinstance(design, dict) else None
    return [
        {n: [str(v) for v in (x if isinstance(x, list) else [x])] for n, x in one.items()}
        for one in declared or []
        if isinstance(one, dict)
    ]


def _best_rows(outcome: Outcome, surface: Surface) -> Iterator[dict[str, Any]]:
    response = next(r for r in outcome.responses if r.name == surface.response)
    sign = 1.0 if response.better == "higher" else -1.0
    at = best_setting(Merit([surface], lambda v: sign * v[0]), forbidden(outcome))
    yield _row(surface.response, "best", at, "", surface)
    level = stationary(surface, at)
    if level is not None:
        where = at | level.at
        nature = f"{level.nature}{'' if level.inside else ', outside of the levels'}"
        if surface.df > 0:
            limits = {n: [level.low[n], level.high[n]] for n in level.at}
            nature += f"; 95 %: {json.dumps(limits)}"
        row = _row(surface.response, "stationary", where, nature, None)
        if level.inside:
            row |= _values(surface, where)
        yield row


def _row(response: str, what: str, at: At, nature: str, surface: Surface | None) -> dict[str, Any]:
    row = dict.fromkeys(OPTIMUM_COLUMNS[4:], math.nan)
    key = {"response": response, "what": what, "at": json.dumps(at), "nature": nature}
    return {**key, **row, **(_values(surface, at) if surface is not None else {})}


def _values(surface: Surface, at: Mapping[str, float | str]) -> dict[str, float]:
    there = surface.predict(at)
    return {
        "value": there.value, "ci_low": there.low, "ci_high": there.high,
        "run_low": there.run_low, "run_high": there.run_high,
    }  # fmt: skip


def _weighed(
    outcome: Outcome, surfaces: list[Surface], desired: list[Desire]
) -> Iterator[dict[str, Any]]:
    """The setting of largest desirability, with its interval from the covariance of the coefficients (none
    without degrees of freedom of an error), and each response there. Coefficients of different responses are
    sampled independently."""
    at = best_setting(Merit(surfaces, lambda v: float(overall(v, desired))), forbidden(outcome))
    middle = [s.predict(at).value for s in surfaces]
    low, high = math.nan, math.nan
    if all(s.df > 0 for s in surfaces):
        drawn = []
        for number, each in enumerate(surfaces, start=1):
            row = each.row(each.coded(at))
            values = each.draws(seed=number) @ row
            drawn.append(np.vectorize(each.natural)(values))
        low, high = np.quantile(overall(drawn, desired), [0.025, 0.975])
    best = _row(ALL, "chosen", at, "desirability, 0 to 1", None)
    yield best | {"value": float(overall(middle, desired)), "ci_low": low, "ci_high": high}
    for each in surfaces:
        yield _row(each.response, "chosen", at, "", each)


# ---------------------------------------------------------------- findings


def at_text(outcome: Outcome, at: Mapping[str, float | str]) -> str:
    """A setting as text: `jobs = 12.5, hdd`."""
    parts = []
    for factor in outcome.factors:
        value = at[factor.name]
        if isinstance(value, str) and value in factor.levels:
            parts.append(factor.phrase(value))
        else:
            parts.append(f"{factor.name} = {quantity(float(value), factor.unit or '')}")
    return ", ".join(parts)


def surfaces(outcome: Outcome) -> Iterator[Finding]:
    """The best setting of each response by its surface, its fit, and the best setting for all."""
    if not seeks_optimum(outcome) or not (outcome.path / "optimum.parquet").exists():
        return
    optimum = pd.read_parquet(outcome.path / "optimum.parquet")
    terms = pd.read_parquet(outcome.path / "surface.parquet")
    units = {r.name: r.unit for r in outcome.responses}
    for row in optimum[optimum["what"] == "best"].to_dict("records"):
        name, at = str(row["response"]), json.loads(row["at"])
        ran = "" if runs_at(outcome, at) else ", which was not run"
        statement = (
            f"By its surface {name} is best at {at_text(outcome, at)}{ran}: "
            f"{_with_interval(row, units[name])}."
        )
        lack = terms[(terms["response"] == name) & (terms["term"] == LACK)]
        doubted = bool(len(lack)) and float(lack["p_value"].iloc[0]) < DOUBTED
        if doubted:
            statement += (
                f" The surface does not fit (lack of fit, p = {float(lack['p_value'].iloc[0]):.2g}): the "
                "response bends more than its model."
            )
        level = optimum[(optimum["response"] == name) & (optimum["what"] == "stationary")]
        detail = ""
        if len(level):
            detail = f"The surface is level at a {str(level['nature'].iloc[0]).partition(';')[0]}."
        evidence = {"table": "optimum", "response": name, "at": at}
        todo = "Confirm it with separate runs." if ran else ""
        if doubted:
            todo = "Narrow the levels around the best, or measure more levels."
        yield Finding(
            "surface", "warning" if doubted else "info", statement, evidence, todo, detail
        )
    chosen = optimum[optimum["what"] == "chosen"].to_dict("records")
    if chosen:
        total, *each = chosen
        at = json.loads(total["at"])
        yield _chosen(outcome, at, total, each, units)


def _chosen(
    outcome: Outcome,
    at: At,
    total: Mapping[Any, Any],
    each: Sequence[Mapping[Any, Any]],
    units: Mapping[str, str],
) -> Finding:
    texts = [f"{r['response']} {_with_interval(r, units[str(r['response'])])}" for r in each]
    evidence = {"table": "optimum", "response": ALL, "at": at}
    if not float(total["value"]) > 0:
        return Finding(
            "desirability",
            "warning",
            "No setting serves all responses: in each at least one of them is unacceptable.",
            evidence,
            "Widen what `desire` of a response calls worst, or the levels.",
        )
    ends = ""
    if math.isfinite(float(total["ci_low"])):
        ends = f" ({total['ci_low']:.2f} to {total['ci_high']:.2f})"
    return Finding(
        "desirability",
        "info",
        f"What serves {listed([str(r['response']) for r in each])} best together is {at_text(outcome, at)}: "
        f"{listed(texts)}; desirability {total['value']:.2f}{ends}.",
        evidence,
        "" if runs_at(outcome, at) else "This setting was not run: confirm it.",
    )


def _with_interval(row: Mapping[Any, Any], unit: str) -> str:
    text = quantity(float(row["value"]), unit)
    if math.isfinite(float(row["ci_low"])):
        text += f" ({_ends(row, 'ci', unit)})"
    return text


def _ends(row: Mapping[Any, Any], of: str, unit: str) -> str:
    return quantities([float(row[f"{of}_low"]), float(row[f"{of}_high"])], unit)
