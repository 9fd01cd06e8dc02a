"""A study run by penstock, whose runs are wanted even where none of them is valid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from disks import penstock

from penstock.errors import PenstockError


def run_study(study: Path, out: Path, words: Sequence[str], *, invalid: bool) -> None:
    """Makes the runs of `study` in `out`. Raises PenstockError if it fails.

    With `invalid` a study that ends without a valid run has not failed, as long as its runs are there.
    """
    try:
        penstock("run", study, "-o", out, *words)
    except PenstockError:
        if not (invalid and (out / "runs.parquet").exists()):
            raise
