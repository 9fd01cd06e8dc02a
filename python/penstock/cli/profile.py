"""penstock profile: fit a storage profile to fio's measurements of a directory, or to a table; list, show
and check profiles.

A single argument is a directory to measure, unless it is `list` and no such directory exists.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.shared.options import QUIET
from penstock.errors import BadInput, PenstockError
from penstock.terminal import say

if TYPE_CHECKING:
    from penstock.campaign.campaign import CampaignResult
    from penstock.profile.fit import Fit
    from penstock.profile.model import StorageProfile


def command(
    directory: Path = typer.Argument(
        ...,
        metavar="DIRECTORY|fit|list|show|check",
        help="A directory on the device to measure, or one of the actions.",
    ),
    table: Path | None = typer.Argument(
        None,
        metavar="TABLE|PROFILE",
        help="With fit: a CSV or YAML table of sizes and rates. With show or check: a profile.",
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--out",
        "--output",
        help="Directory of the results, or FILE.json: profile only.",
    ),
    name: str | None = typer.Option(None, help="Name of the profile (default: the directory's)."),
    quick: bool = typer.Option(False, "--quick", help="A coarse grid, about half a minute."),
    resume: bool = typer.Option(False, "--resume", help="Continue in -o; measure nothing twice."),
    as_json: bool = typer.Option(False, "--json", help="Profile and fit errors as one object."),
    quiet: bool = QUIET,
) -> None:
    """Measure DIRECTORY's device with fio (direct I/O) and fit a storage profile; or fit TABLE.

    `list` lists ready profiles, `show` prints one, `check` validates a file and tests it on this host.
    """
    action = str(directory)
    listing = action == "list" and table is None and not directory.is_dir()
    if listing or (table is not None and action in ("fit", "show", "check")):
        if quick or resume:
            raise BadInput(
                f"--quick, --resume: nothing is measured; expected neither with {action}"
            )
        if action == "fit":
            _fit_table(Path(table or ""), output, name, as_json)
            return
        if output is not None or name is not None:
            raise BadInput(f"--out, --name: nothing is written; expected neither with {action}")
        _print_profiles(action, str(table), as_json)
        return
    if table is not None:
        raise BadInput(
            f"{table}: found a second argument; expected one directory, or fit, show or check before it"
        )
    file = output if output is not None and output.suffix == ".json" else None
    if file is not None and not file.absolute().parent.is_dir():
        raise BadInput(f"{file.parent}: found no directory; expected one for {file.name}")
    if resume and (output is None or file is not None):
        raise BadInput("--resume: found no directory of results; expected the one of -o")
    if not directory.is_dir():
        expected = "one on the device to be measured, or fit TABLE"
        raise BadInput(f"{directory}: found no directory; expected {expected}")
    if shutil.which("fio") is None:
        raise PenstockError("fio is missing; install it (Debian: apt-get install fio)")
    from penstock.campaign.campaign import run_loaded
    from penstock.campaign.measurements.measure_profile import FULL, QUICK, profile_study

    study = profile_study(directory, QUICK if quick else FULL)
    with _result_directory(None if file is not None else output) as out:
        result = run_loaded(study, out, resume=resume, quiet=quiet, full=False, keep_going=True)
        if result.interrupted:
            raise typer.Exit(130)
        fit = _fit_runs(result, name or directory.resolve().name or "device")
    if output is not None:
        (file or output / "profile.json").write_text(fit.profile.json + "\n")
    if as_json:
        document = {"profile": fit.profile.to_dict(), "fit_errors": [vars(e) for e in fit.errors]}
        print(json.dumps(document))
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


def _print_profiles(action: str, name: str, as_json: bool) -> None:
    """Print all ready profiles, or one. `check` measures the host if necessary, and exits with 3 if the
    profile is too fast for it."""
    from penstock.emulate.cluster.capacity import refuse_too_fast
    from penstock.emulate.disks.floor import stored_floor
    from penstock.profile import describe, load_profile, ready_names

    if action == "list":
        floor = stored_floor()
        rows = [describe.row(load_profile(name), floor) for name in ready_names()]
        lines = describe.list_lines(rows)
        if floor is None:
            lines.append("?: not measured yet; penstock doctor measures the limits of this host.")
        print(json.dumps(rows) if as_json else "\n".join(lines))
        return
    profile = load_profile(name)
    too_fast, warnings = "", list[str]()
    if action == "check":
        try:
            warnings = list(refuse_too_fast([profile]))
        except BadInput as error:
            too_fast = str(error)
    details = describe.details(profile, stored_floor())
    if as_json:
        checked = {"too_fast": too_fast, "warnings": warnings} if action == "check" else {}
        print(json.dumps(details | checked))
    else:
        print("\n".join(describe.detail_lines(details)))
        for message in filter(None, (too_fast, *warnings)):
            print(f"{message[0].upper()}{message[1:]}.")
    if too_fast:
        raise typer.Exit(3)


def _fit_table(path: Path, output: Path | None, name: str | None, as_json: bool) -> None:
    """Write the profile of a table to stdout or a file; print fit errors and advice on stderr."""
    from penstock.profile.advice import advice, cell_text, judged, not_to_be_used, verdict
    from penstock.profile.fit import profile_of
    from penstock.profile.table import read_table

    table = read_table(path)
    if output is not None and not output.absolute().parent.is_dir():
        raise BadInput(f"{output.parent}: found no directory; expected one for {output.name}")
    origin = f"table {path.name}" + (f": {table.source}" if table.source else "")
    source = [{"what": f"{len(table.fit.cells)} cells of sizes and rates", "where": origin}]
    text = "Fitted from a table of sizes and rates."
    profile = profile_of(table.fit, name or table.name, source, text)
    rows = judged(profile, table.fit, table.judge)
    quality, excluded_uses = verdict(rows), not_to_be_used(rows)
    profile = _with_verdict(profile, quality, excluded_uses)
    recommendations = advice(profile, [row.cell for row in rows])
    if output is not None:
        output.write_text(profile.json + "\n")
    if as_json:
        document: dict[str, Any] = {"profile": profile.to_dict()}
        document["cells"] = [row.document() for row in rows]
        document |= {"verdict": quality, "not_to_be_used": excluded_uses}
        print(json.dumps({**document, "advice": recommendations}))
        return
    if output is None:
        print(profile.json)
    for row in rows:
        fitted = "  –  " if row.fitted is None else f"{row.fitted:5.2f}"
        cross_validated = "  –  " if row.held_out is None else f"{row.held_out:5.2f}"
        print(
            f"{cell_text(row.cell):<44} {row.cell.rate_bps / 1e6:8.1f} MB/s   fitted/stated {fitted}   "
            f"without it {cross_validated}",
            file=sys.stderr,
        )
    for row in profile.to_dict()["source"]:
        if row["where"].startswith("assumed"):
            print(f"{row['what'][0].upper()}{row['what'][1:]}: {row['where']}.", file=sys.stderr)
    print(f"{quality[0].upper()}{quality[1:]}.", file=sys.stderr)
    for use in excluded_uses:
        print(f"Not to be used for {use}.", file=sys.stderr)
    for text in recommendations:
        print(f"{text[0].upper()}{text[1:]}.", file=sys.stderr)


def _fit_runs(result: CampaignResult, name: str) -> Fit:
    """Fit the valid runs. The profile's source lists excluded cells, fit quality and unmet cells."""
    from penstock.campaign.measurements.measure_profile import measurements
    from penstock.profile.advice import JudgedCell, not_to_be_used, verdict
    from penstock.profile.fit import fit_profile

    assert result.analysis is not None
    runs = result.analysis.runs
    if not result.valid_runs:
        raise PenstockError(f"no cell could be measured: {runs['reason'].iloc[0]}")
    measurement = measurements(result.out, runs)
    today = datetime.date.today().isoformat()
    origin = f"{measurement.fio_version}, direct I/O, on {platform.node()}, {today}"
    source = [{"what": "all numbers", "where": f"measured: {origin}"}]
    for run in runs[runs["validity"].ne("valid")].to_dict("records"):
        excluded = {"what": f"cell {run['cell']}", "where": f"left out: {run['reason']}"}
        say(f"{excluded['what']} {excluded['where']}")
        source.append(excluded)
    fit = fit_profile(measurement, name, source)
    pairs = zip(measurement.cells, fit.errors, strict=True)
    rows = [JudgedCell(c, e.rate_ratio, None, e.p50_ratio, e.p99_ratio) for c, e in pairs]
    quality, excluded_uses = verdict(rows), not_to_be_used(rows)
    say(quality)
    for use in excluded_uses:
        say(f"not to be used for {use}")
    return replace(fit, profile=_with_verdict(fit.profile, quality, excluded_uses))


def _with_verdict(
    profile: StorageProfile, quality: str, excluded_uses: list[str]
) -> StorageProfile:
    """Add fit quality and unmet cells to the profile's source."""
    from penstock.profile.model import NOT_MET, StorageProfile

    values = profile.to_dict()
    values["source"].append({"what": "how well it fits", "where": quality})
    values["source"] += [{"what": use, "where": NOT_MET} for use in excluded_uses]
    return StorageProfile.from_dict(values)


@contextlib.contextmanager
def _result_directory(requested: Path | None) -> Iterator[Path]:
    """Directory of the results: the requested one, or a temporary one."""
    if requested is not None:
        yield requested
        return
    from penstock.archive.catalogue import open_index
    from penstock.host.journal.directories import make_directory, remove_directory
    from penstock.host.journal.journal import Journal, new_token
    from penstock.state import state_dir

    journal = Journal()
    entry = make_directory(state_dir() / f"profile-{new_token()}", journal)
    out = Path(entry.target) / "results"
    try:
        yield out
    finally:
        with open_index() as index:
            index.forget(out)
        remove_directory(entry, journal)
