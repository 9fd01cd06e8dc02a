"""Options that the commands of several studies share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from bench import record


def options(
    document: str | None,
    name: str,
    quick: str,
    *,
    parts: Iterable[str] = (),
    figures: bool = False,
) -> argparse.ArgumentParser:
    """Options of a study that evaluates `out/NAME`.

    `quick` describes the small size; `parts` can be selected; with `figures` it draws some.
    """
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if parts:
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)} [all]")
    parser.add_argument("-o", "--out", type=Path, default=record.ROOT / "out" / name)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--compare", action="store_true", help="measure nothing; evaluate OUT")
    parser.add_argument("--json", action="store_true", help="the result as one object")
    if figures:
        parser.add_argument("--figures", type=Path, help="directory of the figures (default OUT)")
    record.option(parser)
    return parser
