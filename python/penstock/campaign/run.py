"""`penstock run`: from a study file to its report, or from the point where an earlier conductor stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from penstock.campaign.campaign import CampaignResult, RunOptions, run_loaded
from penstock.study.load import load_study


def run_study(
    study_path: Path,
    out: Path | None = None,
    *,
    quick: bool = False,
    resume: bool = False,
    augment: str = "",
    interleaved: bool = False,
    repeat: str = "",
    **options: Unpack[RunOptions],
) -> CampaignResult:
    """Make the remaining runs of a study file, and then its analysis and report.

    As `run_loaded`, or with `augment` the additional stage of a study (`campaign/augment.py`); also raises
    BadInput for a file that is no study.
    """
    study = load_study(study_path, list(options.get("overrides", ())), quick)
    if augment:
        from penstock.campaign.augment import augmented

        place = out or Path(study.name)
        return augmented(study, place.resolve(), augment, interleaved=interleaved, **options)
    if study.design.sequential is not None:
        from penstock.campaign.sequential import run_sequential

        place = (out or Path(study.name)).resolve()
        return run_sequential(study, place, resume=resume, repeat=repeat, **options)
    return run_loaded(study, out, resume=resume, repeat=repeat, **options)
