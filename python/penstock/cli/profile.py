"""penstock profile: a storage profile fitted from what fio measures of a directory."""

from __future__ import annotations

import datetime
import json
import platform
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from penstock.errors import PenstockError
from penstock.profile.cells import cells_from_fio
from penstock.profile.fit import fit_profile
from penstock.profile.measure import FULL, QUICK, measure


def command(
    directory: Path = typer.Argument(..., help="A directory on the device to be measured."),
    output: Path | None = typer.Option(None, "-o", "--output", help="Write the profile here."),
    name: str | None = typer.Option(None, help="Name of the profile (default: the directory's)."),
    quick: bool = typer.Option(False, "--quick", help="A coarse grid, about 20 seconds."),
    as_json: bool = typer.Option(False, "--json", help="Profile and fit errors as one object."),
) -> None:
    """Measure DIRECTORY's device with fio (direct I/O) and fit a storage profile."""
    grid = QUICK if quick else FULL
    if output is not None and not output.parent.is_dir():
        raise PenstockError(f"{output.parent} is not a directory")
    documents = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("fio", total=len(grid.cells()))
        for document in measure(directory, grid):
            documents.append(document)
            progress.advance(task)
    measured = cells_from_fio(documents)
    today = datetime.date.today().isoformat()
    where = f"{measured.fio_version}, direct I/O, on {platform.node()}, {today}"
    source = [{"what": "all numbers", "where": f"measured: {where}"}]
    fit = fit_profile(measured, name or directory.resolve().name or "device", source)
    if output is not None:
        output.write_text(fit.profile.json + "\n")
    if as_json:
        errors = [vars(e) for e in fit.errors]
        print(json.dumps({"profile": fit.profile.to_dict(), "fit_errors": errors}))
        return
    if output is None:
        print(fit.profile.json)
    for e in fit.errors:
        kind = f"{'sequential' if e.sequential else 'random'} {e.op}"
        print(
            f"{kind:<17} {e.block_bytes >> 10:>5} KiB  depth {e.depth:>3}   fitted/measured: "
            f"rate {e.rate_ratio:.2f}  p50 {e.p50_ratio:.2f}  p99 {e.p99_ratio:.2f}",
            file=sys.stderr,
        )
