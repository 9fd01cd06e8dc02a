"""`penstock rm`: remove a study or some of its runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from penstock.cli.ls import chosen_study, size_text
from penstock.errors import BadInput, PenstockError
from penstock.terminal import say


def command(
    study: str = typer.Argument(..., help="The study: its id or its directory."),
    runs: list[str] = typer.Argument(None, help="Only these runs of it, such as r003."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask for confirmation."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout; needs --yes."),
) -> None:
    """Remove a study or some of its runs; only files that penstock wrote."""
    from penstock.archive.catalogue import Catalogue, campaign_of, open_index
    from penstock.archive.removal import remove, runs_removal, study_removal
    from penstock.host.storage.mounts import mounts_below

    with open_index() as catalogue:
        directory = Path(study).resolve()
        is_study = campaign_of(directory) is not None
        out = directory if is_study else Path(chosen_study(catalogue, study).out)
        if not out.is_dir():
            catalogue.forget(out)
            say(f"{out} is gone; dropped from the catalogue")
            return
        removal = runs_removal(out, runs) if runs else study_removal(out)
        target = f"{', '.join(runs)} of {out}" if runs else f"all files of penstock in {out}"
        if not yes:
            if as_json or not sys.stdin.isatty():
                raise BadInput(
                    f"would remove {target} ({size_text(removal.size_bytes)}); expected --yes"
                )
            typer.confirm(
                f"Remove {target} ({size_text(removal.size_bytes)})?", abort=True, err=True
            )
        if below := [m for path in (out, *removal.paths) for m in mounts_below(path)]:
            raise PenstockError(f"{below[-1].point} is still mounted; `penstock undo` unmounts it")
        foreign = remove(removal)
        catalogue.forget(out, runs or None)
        if runs:
            with Catalogue(out / "catalogue.sqlite") as own:
                own.forget(out, runs)
    if as_json:
        removed = {"removed_bytes": removal.size_bytes, "paths": [str(p) for p in removal.paths]}
        print(json.dumps({**removed, "left": [str(p) for p in foreign]}))
        return
    say(f"{size_text(removal.size_bytes)} removed")
    for path in foreign:
        say(f"not removed, not a file of penstock: {path}")
