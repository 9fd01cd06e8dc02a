"""Continuation of a study: one more stage of runs, in the same directory and the same tables."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.aliased import Open
from penstock.archive.runs import bundles
from penstock.campaign.campaign import CampaignResult, RunOptions, run_loaded
from penstock.campaign.frozen import read_campaign
from penstock.design.additions.stages import Stage, stage_of
from penstock.design.generators import term_of
from penstock.design.planned import plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Study
from penstock.text import counted, first_of, listed, term_text


def augmented(
    study: Study,
    out: Path,
    kind: str,
    *,
    interleaved: bool = False,
    **options: Unpack[RunOptions],
) -> CampaignResult:
    """Make the runs of one more stage of the study in `out`, and the analysis of all.

    `kind` is one of `two_levels.KINDS`. BadInput if `out` has no study, one with missing runs, or one to
    which the stage does not apply.
    """
    stage = next_stage(out, kind, interleaved=interleaved)
    return run_loaded(study, out, resume=True, add=stage, **options)


def next_stage(out: Path, kind: str, *, interleaved: bool = False) -> Stage:
    """The stage that `kind` adds to the study in `out`. BadInput as for `augmented`."""
    if not out.is_dir() or read_campaign(out) is None:
        raise BadInput(f"{out}: found no campaign.json; expected the directory of a study (its -o)")
    study = opened(out)
    completed = {b.manifest["run_id"] for b in bundles(out)}
    missing = [r.run_id for r in study.plan.rows if r.run_id not in completed]
    if missing:
        raise BadInput(
            f"{out}: found {counted(len(missing), 'run')} of the plan that "
            f"{'is' if len(missing) == 1 else 'are'} not made yet ({missing[0]} is the first); expected all: "
            "--resume runs them, then --augment continues"
        )
    step = study.proposal(kind, again=interleaved).step
    if step.broken:
        pairs = [
            f"{term_text(term_of(t, study.names))} from {term_text(term_of(r, study.names))}"
            for t, r in step.broken
        ]
        why = f"to tell {listed(first_of(pairs, 3))}"
    else:
        why = "to narrow the intervals" if not len(step.rows) else "asked for"
    return stage_of(step, plan_from_json(study.outcome.plan), why, again=interleaved)


def opened(out: Path, response: str | None = None, most: int | None = None) -> Open:
    """Effects that the study in `out` cannot separate. BadInput if its design cannot be augmented."""
    try:
        return Open.of(Outcome.read(out), response, most)
    except BadInput:
        raise
    except PenstockError as error:
        raise BadInput(f"{out}: {error}") from error
