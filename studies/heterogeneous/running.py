"""A study run by penstock, whose runs are wanted even where none of them is valid, and its options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from disks import penstock

from bench import record
from penstock.errors import PenstockError


def options(document: str | None, out: str, quick: str) -> argparse.ArgumentParser:
    """What the comparison of a study can be told; its results are under `out/` in the folder `out`."""
    made = argparse.ArgumentParser(description=(document or "").splitlines()[0])
    made.add_argument("-o", "--out", type=Path, default=record.ROOT / "out" / out)
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--compare", action="store_true", help="what is there; measure nothing")
    made.add_argument("--invalid", action="store_true", help="also runs that are not valid")
    made.add_argument("--figures", type=Path, help="directory of the SVG files (default OUT)")
    made.add_argument("--json", action="store_true", help="the result as one object")
    record.option(made)
    return made


def resumed(out: Path) -> list[str]:
    """The words by which penstock goes on with what is in `out`."""
    return ["--resume"] if (out / "campaign.json").exists() else []


def run_study(study: Path, out: Path, words: Sequence[str], *, invalid: bool) -> None:
    """Makes the runs of `study` in `out`. Raises PenstockError if it fails.

    With `invalid` a study that ends without a valid run has not failed, as long as its runs are there.
    """
    try:
        penstock("run", study, "-o", out, *words)
    except PenstockError:
        if not (invalid and (out / "runs.parquet").exists()):
            raise
