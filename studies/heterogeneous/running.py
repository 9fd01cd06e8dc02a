"""Options that the checks of several studies share."""

from __future__ import annotations

import argparse

from studies.common.options import options as shared_options


def options(document: str | None, out: str, quick: str) -> argparse.ArgumentParser:
    """Options of the comparison of a study; its results are under `out/` in the folder `out`."""
    parser = shared_options((document or "").splitlines()[0], out, quick, figures=True)
    parser.add_argument("--invalid", action="store_true", help="also runs that are not valid")
    return parser
