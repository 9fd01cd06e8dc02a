"""An exploration as plain values: the document `penstock/exploration/1`."""

from __future__ import annotations

import math
from typing import Any

from penstock.parts.prediction.exploration.describe import describe
from penstock.parts.prediction.exploration.evaluate import DRAWN
from penstock.parts.prediction.exploration.recommend import Recommendation
from penstock.parts.prediction.exploration.record import candidate_id
from penstock.parts.prediction.exploration.run import Exploration
from penstock.parts.prediction.exploration.space.space import Candidate

SCHEMA = "penstock/exploration/1"


def document(found: Exploration, recommendation: Recommendation) -> dict[str, Any]:
    """The whole exploration, without the single evaluations (those are `evaluations.parquet`).

    Numbers that are not finite (an interval without a bound) are None.
    """
    plain: dict[str, Any] = _finite(_document(found, recommendation))
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _document(found: Exploration, recommendation: Recommendation) -> dict[str, Any]:
    record, space = found.record, found.space
    question = found.question
    selection = found.selection
    return {
        "schema": SCHEMA,
        "recommendation": recommendation.to_dict(found),
        "objective": None if question.objective is None else question.objective.name,
        "constraints": [c.text for c in question.constraints],
        "metrics": list(found.metrics),
        "currency": record.evaluator.currency,
        "engine": {"name": found.engine, "why": found.engine_reason, "complete": found.complete},
        "space": space.to_dict(),
        "counts": {
            "configurations": space.size,
            "evaluated": len(record.measures),
            "admissible": len(found.admissible),
            "cannot_be_built": record.reasons(),
            "against_constraints": found.broken,
            "failed": found.failed,
            "evaluations": record.made,
            "read_from_before": found.resumed,
        },
        "front": [_row(found, c) for c in found.front],
        "compared": []
        if selection is None
        else [
            {
                **_row(found, c.candidate),
                "verdict": c.verdict,
                "difference": {
                    "mean": c.difference,
                    "low": c.low,
                    "high": c.high,
                    "seeds": c.seeds,
                },
            }
            for c in selection.contenders
        ],
        "level": found.settings.level,
        "not_compared": found.uncompared,
        "robust": _robust(found),
        "calibration": _calibration(found),
        "applies": None
        if found.judgement is None
        else {k: found.judgement.get(k) for k in ("verdict", "reasons")},
        "prediction": found.judgement,
        "effects": {m: [e.to_dict() for e in es] for m, es in found.effects.items()},
        "stopped": found.stopped,
        "wall_s": found.wall_s,
    }


def _row(found: Exploration, candidate: Candidate) -> dict[str, Any]:
    mean = found.record.mean(candidate)
    seeds = sum(s <= DRAWN for s in found.record.measures[candidate])
    return {
        "candidate_id": candidate_id(found.space, candidate),
        "words": describe(found.space, candidate),
        "levels": found.space.labels(candidate),
        **{m: mean[m] for m in found.metrics},
        **_calibrated(found, mean["makespan_s"]),
        "hosts": int(mean["hosts"]),
        "seeds": seeds,
    }


def _calibrated(found: Exploration, makespan_s: float) -> dict[str, Any]:
    ends = None if found.calibration is None else found.calibration.ends(makespan_s)
    return {} if ends is None else {"calibrated_low_s": ends[0], "calibrated_high_s": ends[1]}


def _calibration(found: Exploration) -> dict[str, Any] | None:
    if found.calibration is None:
        return None
    overlap = () if found.overlap is None else found.overlap.candidates
    return {
        **found.calibration.to_dict(),
        "overlapping": [candidate_id(found.space, c) for c in overlap],
    }


def _robust(found: Exploration) -> dict[str, Any] | None:
    if found.robust is None:
        return None
    r = found.robust
    return {
        "draws": r.draws,
        "candidates": [
            {
                "candidate_id": candidate_id(found.space, c),
                "words": describe(found.space, c),
                "share_within_5_percent": r.share_good(c),
                "mean_regret": r.mean_regret(c),
                "worst_regret": r.worst_regret(c),
            }
            for c in r.candidates
        ],
    }
