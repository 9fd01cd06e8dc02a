"""Options that the checks of several studies share."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import record


def options(document: str | None, out: str, quick: str) -> argparse.ArgumentParser:
    """Options of the comparison of a study; its results are under `out/` in the folder `out`."""
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
    """Arguments with which penstock continues the results in `out`."""
    return ["--resume"] if (out / "campaign.json").exists() else []
