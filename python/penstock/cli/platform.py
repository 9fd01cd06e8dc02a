"""penstock platform: what a platform file says, whether it is sound, and the facts of this host as one."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from penstock.platform.hosts import load_platform
from penstock.platform.show import platform_json, show, summary

app = typer.Typer(
    help="Platforms to predict with: import this host, show or check a platform file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_FILE = typer.Argument(..., help="A platform file (YAML or JSON).")
_SET = typer.Option([], "--set", help="Set one value, such as hosts.nodes.count=14; repeatable.")


@app.command("show")
def show_platform(
    file: Path = _FILE,
    overrides: list[str] = _SET,
    as_json: bool = typer.Option(False, "--json", help="Everything that was read, as one object."),
) -> None:
    """What was read from FILE, with units and defaults: hosts, network, store, what is assumed."""
    platform = load_platform(file, overrides)
    if as_json:
        print(platform_json(platform))
    else:
        show(platform, Console(width=100, highlight=False, markup=False, soft_wrap=False))


@app.command("check")
def check_platform(
    file: Path = _FILE,
    overrides: list[str] = _SET,
    as_json: bool = typer.Option(False, "--json", help="The answer as one object."),
) -> None:
    """Whether FILE is sound: exit 0, or 2 and every mistake with its line and column."""
    platform = load_platform(file, overrides)
    if as_json:
        print(json.dumps({"file": str(file), "sound": True, "hosts": len(platform.hosts)}))
    else:
        print(f"{file} is sound. {summary(platform)}.")
