"""penstock profile: a storage profile fitted from what fio measures of a directory."""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import typer

from penstock.archive.catalogue import Catalogue, index_path
from penstock.campaign.run import CampaignResult, run_loaded
from penstock.errors import BadInput, PenstockError
from penstock.host.directories import make_directory, remove_directory
from penstock.host.journal import Journal, new_token
from penstock.host.state import state_dir
from penstock.profile.fit import Fit, fit_profile
from penstock.profile.measure import FULL, QUICK, measurements, profile_study


def command(
    directory: Path = typer.Argument(..., help="A directory on the device to be measured."),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--out",
        "--output",
        help="Directory of the results, or FILE.json: profile only.",
    ),
    name: str | None = typer.Option(None, help="Name of the profile (default: the directory's)."),
    quick: bool = typer.Option(False, "--quick", help="A coarse grid, about half a minute."),
    resume: bool = typer.Option(False, "--resume", help="Go on in -o; nothing is measured again."),
    as_json: bool = typer.Option(False, "--json", help="Profile and fit errors as one object."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress on stderr."),
) -> None:
    """Measure DIRECTORY's device with fio (direct I/O) and fit a storage profile."""
    file = output if output is not None and output.suffix == ".json" else None
    if file is not None and not file.absolute().parent.is_dir():
        raise BadInput(f"{file.parent}: found no directory; expected one for {file.name}")
    if resume and (output is None or file is not None):
        raise BadInput("--resume: found no directory of results; expected the one of -o")
    if not directory.is_dir():
        raise BadInput(
            f"{directory}: found no directory; expected one on the device to be measured"
        )
    if shutil.which("fio") is None:
        raise PenstockError("fio is missing; install it (Debian: apt-get install fio)")
    study = profile_study(directory, QUICK if quick else FULL)
    with _place(None if file is not None else output) as out:
        result = run_loaded(study, out, resume=resume, quiet=quiet, full=False)
        if result.interrupted:
            raise typer.Exit(130)
        fit = _fitted(result, name or directory.resolve().name or "device")
    if output is not None:
        (file or output / "profile.json").write_text(fit.profile.json + "\n")
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


def _fitted(result: CampaignResult, name: str) -> Fit:
    """The fit to the valid runs, whose source says what was left out."""
    assert result.analysis is not None
    runs = result.analysis.runs
    if not result.valid_runs:
        raise PenstockError(f"no cell could be measured: {runs['reason'].iloc[0]}")
    measured = measurements(result.out, runs)
    today = datetime.date.today().isoformat()
    where = f"{measured.fio_version}, direct I/O, on {platform.node()}, {today}"
    source = [{"what": "all numbers", "where": f"measured: {where}"}]
    for run in runs[~runs["valid"]].to_dict("records"):
        left_out = {"what": f"cell {run['cell']}", "where": f"left out: {run['reason']}"}
        print(f"penstock: {left_out['what']} {left_out['where']}", file=sys.stderr)
        source.append(left_out)
    return fit_profile(measured, name, source)


@contextlib.contextmanager
def _place(asked: Path | None) -> Iterator[Path]:
    """The directory of the results: the one asked for, or one that goes when the profile is there."""
    if asked is not None:
        yield asked
        return
    journal = Journal()
    entry = make_directory(state_dir() / f"profile-{new_token()}", journal)
    out = Path(entry.target) / "results"
    try:
        yield out
    finally:
        with Catalogue(index_path()) as index:
            index.forget(out)
        remove_directory(entry, journal)
