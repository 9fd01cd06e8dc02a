"""penstock platform: what a platform file says, whether it is sound, and the facts of this host as one."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import typer
from rich.console import Console

from penstock.errors import BadInput
from penstock.platform.hosts import load_platform
from penstock.platform.importing import import_host
from penstock.platform.show import platform_json, show, summary

app = typer.Typer(
    help="Platforms to predict with: import this host, show or check a platform file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_FILE = typer.Argument(..., help="A platform file (YAML or JSON).")
_SET = typer.Option([], "--set", help="Set one value, such as hosts.nodes.count=14; repeatable.")


@app.command("import")
def import_platform(
    directory: Path = typer.Argument(Path(), help="Where the data will be."),
    output: Path | None = typer.Option(None, "--output", "-o", help="The file to write."),
    profile: str | None = typer.Option(
        None,
        "--profile",
        help="The storage's profile: a file (see `penstock profile`), or a ready one.",
    ),
    force: bool = typer.Option(False, "--force", help="Replace FILE if it is there."),
    as_json: bool = typer.Option(False, "--json", help="JSON instead of YAML; it is read as well."),
) -> None:
    """The facts of this host as a platform file: what the kernel tells and a few seconds of measuring.

    What was measured has its interval; whatever was not is listed under `assumed`, with a range.
    """
    if output is not None and output.exists() and not force:
        raise BadInput(f"{output} is there already; --force replaces it")
    base = (output.parent if output is not None else Path()).resolve()
    if not base.is_dir():
        raise BadInput(f"no directory {base} to write {output} into")
    platform = import_host(directory, base, profile, lambda text: _say(f"measuring {text}"))
    text = platform.to_yaml()
    if as_json:
        text = json.dumps(platform.document, indent=2, ensure_ascii=False) + "\n"
    if output is None:
        print(text, end="")
    else:
        _write(output, text)
    for e in platform.estimates:
        doubt = "" if e.converged else "; not within 5 %, the host is busy or uneven"
        _say(f"{e.path}: {e.value:g} {e.unit} ({e.low:g} to {e.high:g}, n = {e.n}){doubt}")
    _say(f"power: {platform.document['facts']['power_meter']}")
    _say(f"assumed, not measured: {', '.join(a.path for a in platform.assumed)}")


def _say(text: str) -> None:
    print(f"penstock: {text}", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


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
