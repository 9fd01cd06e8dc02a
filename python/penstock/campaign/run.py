"""`penstock run`: from a study file to its report, or from the point where an earlier conductor stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.campaign.campaign import CampaignResult, run_loaded
from penstock.study.load import load_study


def run_study(
    study_path: Path,
    out: Path | None = None,
    *,
    quick: bool = False,
    resume: bool = False,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    keep_going: bool = False,
    report: bool = True,
    augment: str = "",
    interleaved: bool = False,
    repeat: str = "",
) -> CampaignResult:
    """Make the remaining runs of a study file, and then its analysis and report.

    As `run_loaded`, or with `augment` the additional stage of a study (`campaign/augment.py`); also raises
    BadInput for a file that is no study.
    """
    study = load_study(study_path, list(overrides), quick)
    if augment:
        from penstock.campaign.augment import augmented

        place = out or Path(study.name)
        return augmented(
            study,
            place.resolve(),
            augment,
            interleaved=interleaved,
            overrides=overrides,
            quiet=quiet,
            keep_going=keep_going,
            report=report,
        )
    if study.design.sequential is not None:
        from penstock.campaign.sequential import run_sequential

        return run_sequential(
            study,
            (out or Path(study.name)).resolve(),
            resume=resume,
            overrides=overrides,
            quiet=quiet,
            keep_going=keep_going,
            report=report,
            repeat=repeat,
        )
    return run_loaded(
        study,
        out,
        resume=resume,
        overrides=overrides,
        quiet=quiet,
        keep_going=keep_going,
        report=report,
        repeat=repeat,
    )
