"""`penstock ls`: studies and runs in the archive."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.errors import BadInput
from penstock.terminal import say

if TYPE_CHECKING:
    from penstock.archive.catalogue import Catalogue, StudyRow

_WIDTH = 100


def command(
    study: str | None = typer.Argument(None, help="A study (its id or directory): list its runs."),
    rebuild: bool = typer.Option(
        False, "--rebuild", help="Rebuild the catalogue from the bundles."
    ),
    below: list[Path] = typer.Option(
        [],
        "--below",
        help="With --rebuild: look for studies below this directory, too (default: .).",
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """List studies and runs in the archive with their state and size."""
    from penstock.archive.catalogue import open_index, studies_below
    from penstock.plugins import FUNCTIONS

    with open_index() as catalogue:
        if rebuild:
            listed = [Path(s.out) for s in catalogue.studies()]
            roots = below or [Path.cwd()]
            folders = [o for o in listed if o.is_dir()] + [
                o for r in roots for o in studies_below(r)
            ]
            number = catalogue.rebuild(folders)
            if "adopt-experiments" in FUNCTIONS:
                number += FUNCTIONS.load("adopt-experiments")(catalogue)
            say(f"{number} runs found")
        rows = catalogue.studies()
        if study is not None:
            row = _find_study(rows, study)
            runs = catalogue.runs(Path(row.out))
            if as_json:
                print(json.dumps({**vars(row), "runs": runs}))
            else:
                _print_runs(row, runs)
            return
    if as_json:
        print(json.dumps({"studies": [{**vars(r), "exists": Path(r.out).is_dir()} for r in rows]}))
    else:
        _print_studies(rows)


def chosen_study(catalogue: Catalogue, study: str) -> StudyRow:
    """Study by its id, a unique beginning of the id, or its directory."""
    return _find_study(catalogue.studies(), study)


def _find_study(rows: list[StudyRow], study: str) -> StudyRow:
    directory = str(Path(study).resolve())
    by_directory = [r for r in rows if r.out == directory]
    if by_directory:
        return by_directory[0]
    matches = [r for r in rows if r.study_id == study] or [
        r for r in rows if r.study_id.startswith(study)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        places = ", ".join(r.out for r in matches)
        raise BadInput(f"found {len(matches)} studies for {study!r} ({places}); give the directory")
    raise BadInput(f"found no study {study!r} in the archive; penstock ls lists the studies")


def _print_studies(rows: list[StudyRow]) -> None:
    if not rows:
        print("no studies; penstock run STUDY adds one", file=sys.stderr)
        return
    table = [("study", "state", "runs", "valid", "size", "last run", "directory")]
    for r in rows:
        state = r.state if Path(r.out).is_dir() else "gone"
        count = f"{r.runs}/{r.planned_runs}"
        table.append(
            (r.study_id, state, count, str(r.valid_runs), size_text(r.size_bytes), _when(r), r.out)
        )
    _print_table(table)


def _print_runs(row: StudyRow, runs: Sequence[Mapping[str, Any]]) -> None:
    from penstock.text import duration

    print(f"{row.study_id}  {row.state}  {row.out}", file=sys.stderr)
    table = [("run", "attempt", "state", "valid", "time", "size", "treatment", "reason")]
    for r in runs:
        levels = " ".join(f"{k}={v}" for k, v in r["levels"].items())
        wall = duration(r["wall_s"] * 1e9) if r["wall_s"] is not None else ""
        valid = "yes" if r["valid"] else "no"
        size = size_text(r["size_bytes"] or 0)
        reason = r["reason"] or ""
        table.append(
            (r["run_id"], str(r["attempt"]), r["state"], valid, wall, size, levels, reason)
        )
    _print_table(table)


def _print_table(table: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        line = "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        print(line if len(line) <= _WIDTH or not sys.stdout.isatty() else line[: _WIDTH - 1] + "…")


def size_text(size_bytes: int) -> str:
    """Text of a size, in a binary unit."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _when(row: StudyRow) -> str:
    if row.last_realtime_ns is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.last_realtime_ns / 1e9))
