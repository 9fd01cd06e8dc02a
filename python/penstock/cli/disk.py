"""penstock disk: emulated disks without a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(help="An emulated disk without a study.", no_args_is_help=True)

_SCALE = typer.Option(1.0, "--time-scale", min=0.001, help="Slow the device down by this factor.")
_JSON = typer.Option(False, "--json", help="The result as JSON.")


@app.command()
def up(
    profile: str = typer.Argument(help="A ready profile's name, or a profile file."),
    backing: Path = typer.Option(..., "--backing", help="Directory that holds the files."),
    mount: Path = typer.Option(..., "--mount", help="Empty directory where the disk appears."),
    time_scale: float = _SCALE,
    durable: bool = typer.Option(False, "--durable", help="fsync also syncs the host's files."),
    slow_by: float = typer.Option(0.0, "--plant-slow-by", hidden=True),
    as_json: bool = _JSON,
) -> None:
    """Serve a directory at the speed of a profile until `disk down`."""
    from penstock.emulate import standing

    disk = standing.up(
        profile, backing, mount, time_scale=time_scale, durable=durable, slow_by=slow_by
    )
    if as_json:
        print(json.dumps(disk))
    else:
        print(f"{disk['mount']}: {disk['profile']}, files in {disk['backing']}")


@app.command("set")
def set_profile(
    mount: Path = typer.Argument(help="Where the disk is."),
    profile: str = typer.Argument(help="The profile from now on."),
    time_scale: float = _SCALE,
) -> None:
    """Change the profile of a disk that is up."""
    from penstock.emulate import standing

    standing.set_profile(mount, profile, time_scale=time_scale)
    print(f"{mount}: {profile}")


@app.command()
def status(
    mount: Path | None = typer.Argument(None, help="One disk only."),
    as_json: bool = _JSON,
) -> None:
    """The disks that are up, with their counters."""
    from penstock.emulate import standing

    disks = standing.status(mount)
    if as_json:
        print(json.dumps({"disks": disks}))
    elif not disks:
        print("No disk is up.")
    else:
        _show(disks)


@app.command()
def down(
    mount: Path = typer.Argument(help="Where the disk is."),
    as_json: bool = _JSON,
) -> None:
    """Take a disk down; its files stay in the backing directory."""
    from penstock.emulate import standing

    last = standing.down(mount)
    if as_json:
        print(json.dumps(last))
    else:
        print(f"{mount}: down")


def _show(disks: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("mount", "profile"):
        table.add_column(heading)
    for heading in ("reads", "writes", "read MiB", "written MiB", "busy %", "late %"):
        table.add_column(heading, justify="right")
    for disk in disks:
        s = disk["stats"]
        up_ns = max(1, s["t_ns"] - s["since_ns"])
        requests = max(1, s["reads"] + s["writes"] + s["flushes"])
        table.add_row(
            disk["mount"],
            disk["profile"],
            str(s["reads"]),
            str(s["writes"]),
            f"{s['read_bytes'] / 2**20:.1f}",
            f"{s['written_bytes'] / 2**20:.1f}",
            f"{100 * s['busy_ns'] / up_ns:.1f}",
            f"{100 * s['late_count'] / requests:.1f}",
        )
    Console(width=100).print(table)
