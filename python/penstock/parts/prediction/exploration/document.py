"""An exploration as plain values: the document `penstock/exploration/1`."""

from __future__ import annotations

from typing import Any

from penstock.parts.prediction.exploration.describe import describe
from penstock.parts.prediction.exploration.recommend import Recommendation
from penstock.parts.prediction.exploration.record import candidate_id
from penstock.parts.prediction.exploration.run import Exploration
from penstock.parts.prediction.exploration.space.space import Candidate
from penstock.text import without_nan

SCHEMA = "penstock/exploration/1"


def document(exploration: Exploration, recommendation: Recommendation) -> dict[str, Any]:
    """The exploration without the single evaluations (those are `evaluations.parquet`).

    Non-finite numbers (an unbounded interval) are None.
    """
    return without_nan(_document(exploration, recommendation))


def _document(exploration: Exploration, recommendation: Recommendation) -> dict[str, Any]:
    record, space = exploration.record, exploration.space
    question = exploration.question
    selection = exploration.selection
    return {
        "schema": SCHEMA,
        "recommendation": recommendation.to_dict(exploration),
        "objective": None if question.objective is None else question.objective.name,
        "constraints": [c.text for c in question.constraints],
        "metrics": list(exploration.metrics),
        "currency": record.evaluator.currency,
        "engine": {
            "name": exploration.engine,
            "why": exploration.engine_reason,
            "complete": exploration.complete,
        },
        "space": space.to_dict(),
        "counts": {
            "configurations": space.size,
            "evaluated": len(record.measures),
            "admissible": len(exploration.admissible),
            "cannot_be_built": record.reasons(),
            "against_constraints": exploration.broken,
            "failed": exploration.failed,
            "evaluations": record.evaluations,
            "read_from_before": exploration.resumed,
        },
        "seeds": list(exploration.means.seeds),
        "front": [{**_row(exploration, c), "tie": exploration.tie(c)} for c in exploration.front],
        "compared": []
        if selection is None
        else [
            {
                **_row(exploration, c.candidate),
                "verdict": c.verdict,
                "tie": c.tie,
                "difference": {
                    "mean": c.difference,
                    "low": c.low,
                    "high": c.high,
                    "seeds": c.seeds,
                },
            }
            for c in selection.contenders
        ],
        "level": exploration.settings.level,
        "not_compared": exploration.uncompared,
        "robust": _robust(exploration),
        "calibration": _calibration(exploration),
        "applies": None
        if exploration.judgement is None
        else {k: exploration.judgement.get(k) for k in ("verdict", "reasons")},
        "prediction": exploration.judgement,
        "effects": {m: [e.to_dict() for e in es] for m, es in exploration.effects.items()},
        "confirmed": None
        if exploration.confirmation is None
        else exploration.confirmation.to_dict(space),
        "stopped": exploration.stopped,
        "wall_s": exploration.wall_s,
    }


def _row(exploration: Exploration, candidate: Candidate) -> dict[str, Any]:
    mean = exploration.means.of(candidate)
    return {
        "candidate_id": candidate_id(exploration.space, candidate),
        "words": describe(exploration.space, candidate),
        "levels": exploration.space.labels(candidate),
        **{m: mean[m] for m in exploration.metrics},
        **_calibrated(exploration, mean["makespan_s"]),
        "hosts": int(mean["hosts"]),
        "seeds": len(exploration.means.seeds),
    }


def _calibrated(exploration: Exploration, makespan_s: float) -> dict[str, Any]:
    ends = None if exploration.calibration is None else exploration.calibration.ends(makespan_s)
    return {} if ends is None else {"calibrated_low_s": ends[0], "calibrated_high_s": ends[1]}


def _calibration(exploration: Exploration) -> dict[str, Any] | None:
    if exploration.calibration is None:
        return None
    overlap = () if exploration.overlap is None else exploration.overlap.candidates
    return {
        **exploration.calibration.to_dict(),
        "overlapping": [candidate_id(exploration.space, c) for c in overlap],
    }


def _robust(exploration: Exploration) -> dict[str, Any] | None:
    if exploration.robust is None:
        return None
    r = exploration.robust
    return {
        "draws": r.draws,
        "candidates": [
            {
                "candidate_id": candidate_id(exploration.space, c),
                "words": describe(exploration.space, c),
                "share_within_5_percent": r.share_good(c),
                "mean_regret": r.mean_regret(c),
                "worst_regret": r.worst_regret(c),
            }
            for c in r.candidates
        ],
    }
