"""penstock platform: describe this host or a study's nodes as a platform file; show and check files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.errors import BadInput
from penstock.terminal import say
from penstock.writing import check_target, write_atomic

if TYPE_CHECKING:
    from penstock.platform.foreign import Foreign
    from penstock.platform.hosts import Platform

app = typer.Typer(
    help="Platform files for predictions: describe this host or a study's nodes; show and check a file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_FILE = typer.Argument(..., help="A platform file (YAML or JSON).")
_SET = typer.Option([], "--set", help="Set one value, such as hosts.nodes.count=14; repeatable.")


@app.command("import")
def import_platform(
    directory: Path = typer.Argument(
        Path(),
        metavar="DIRECTORY|FILE",
        help="Directory of the data; with --from, the file to convert.",
    ),
    foreign: str | None = typer.Option(
        None, "--from", help="Format of FILE: distem (JSON) or simgrid (XML)."
    ),
    leave_out: bool = typer.Option(
        False, "--leave-out", help="With --from: omit content that has no counterpart."
    ),
    output: Path | None = typer.Option(None, "--output", "-o", help="The file to write."),
    profile: str | None = typer.Option(
        None,
        "--profile",
        help="Storage profile: a file (see `penstock profile`) or a ready profile.",
    ),
    force: bool = typer.Option(False, "--force", help="Replace FILE if it exists."),
    as_json: bool = typer.Option(False, "--json", help="Write JSON instead of YAML."),
) -> None:
    """Write a platform file of this host, from the kernel's data and a short measurement.

    Measured values have intervals. All others are listed under `assumed`, with a range.

    With --from, convert the platform in another program's FILE. Content without a counterpart is listed, and
    is an error without --leave-out.
    """
    from penstock.campaign.measurements.import_platform import import_host

    base = _base_directory(output, force)
    if foreign is not None:
        if profile is not None:
            expected = "--profile without --from; the converted platform states its own storage"
            raise BadInput(f"--profile: found {profile!r}; expected {expected}")
        _import_foreign(directory, foreign, leave_out, output, base, as_json)
        return
    platform = import_host(directory, base, profile, lambda text: say(f"measuring {text}"))
    _write_platform(platform, output, as_json)
    for e in platform.estimates:
        caution = "" if e.converged else "; not within 5 %, the host is busy or uneven"
        say(f"{e.path}: {e.value:g} {e.unit} ({e.low:g} to {e.high:g}, n = {e.n}){caution}")
    say(f"power: {platform.document['facts']['power_meter']}")
    say(f"assumed, not measured: {', '.join(a.path for a in platform.assumed)}")


@app.command("study")
def study_platform(
    study: Path = typer.Argument(..., help="A study file."),
    levels: list[str] = typer.Option(
        [], "--level", help="factor=level; the first level by default. Repeatable."
    ),
    disk: str | None = typer.Option(
        None, "--disk", help="Disk on which nodes store data (default: their first with a profile)."
    ),
    output: Path | None = typer.Option(None, "--output", "-o", help="The file to write."),
    force: bool = typer.Option(False, "--force", help="Replace FILE if it exists."),
    as_json: bool = typer.Option(False, "--json", help="Print the output of `show --json`."),
) -> None:
    """Write a platform file of a study's nodes, for one of its treatments."""
    from penstock.campaign.speed import as_planned
    from penstock.platform.show import platform_json
    from penstock.spec.names import listed
    from penstock.study.as_platform import platform_of
    from penstock.study.load import load_study

    base = _base_directory(output, force)
    planned, _ = as_planned(load_study(study))
    treatment = {f.name: f.levels[0].name for f in planned.factors}
    for text in levels:
        name, equals, level = text.partition("=")
        by_factor = {f.name: [x.name for x in f.levels] for f in planned.factors}
        if not equals or level not in by_factor.get(name, []):
            choices = "; ".join(f"{k}={listed(v)}" for k, v in by_factor.items())
            raise BadInput(f"--level {text}: factor=level of this study is expected: {choices}")
        treatment[name] = level
    platform = platform_of(planned, treatment, disk)
    if output is not None:
        write_atomic(output, platform.to_yaml(base))
    if as_json:
        print(platform_json(platform))
    elif output is None:
        print(platform.to_yaml(base), end="")


def _import_foreign(
    path: Path, kind: str, leave_out: bool, output: Path | None, base: Path, as_json: bool
) -> None:
    from penstock.plugins import PLATFORM_FORMATS
    from penstock.spec.source import read_input

    if kind not in PLATFORM_FORMATS:
        raise BadInput(f"--from: found {kind!r}; expected {PLATFORM_FORMATS.choices(' or ')}")
    read: Callable[[Path, bytes], Foreign] = PLATFORM_FORMATS.load(kind)
    foreign = read(path, read_input(path, f"a platform of {kind}"))
    if foreign.left_out and not leave_out:
        raise BadInput(
            "\n".join(foreign.left_out)
            + "\nfound content that a platform file cannot express; --leave-out continues without it"
        )
    platform = foreign.platform(base)
    _write_platform(platform, output, as_json)
    for line in foreign.left_out:
        say(f"left out: {line}")
    for line in foreign.notes:
        say(f"note: {line}")
    if not platform.predictable:
        say("too little data for predictions; the nodes can be started (penstock nodes up)")


def _write_platform(platform: Platform, output: Path | None, as_json: bool) -> None:
    """Write or print an imported platform."""
    text = platform.to_yaml()
    if as_json:
        text = json.dumps(platform.document, indent=2, ensure_ascii=False) + "\n"
    if output is None:
        print(text, end="")
    else:
        write_atomic(output, text)


def _base_directory(output: Path | None, force: bool) -> Path:
    """Directory of the output file. BadInput if the file may not be written."""
    if output is None:
        return Path().resolve()
    check_target(output)
    if output.is_file() and not force:
        raise BadInput(f"{output} exists already; --force replaces it")
    return output.parent.resolve()


@app.command("show")
def show_platform(
    file: Path = _FILE,
    overrides: list[str] = _SET,
    as_json: bool = typer.Option(False, "--json", help="Print the platform as one JSON object."),
) -> None:
    """Show a platform file with units and defaults: hosts, network, store, assumptions."""
    from penstock.console import Console
    from penstock.platform.hosts import load_platform
    from penstock.platform.show import platform_json, show

    platform = load_platform(file, overrides)
    if as_json:
        print(platform_json(platform))
    else:
        show(platform, Console(width=100))


@app.command("check")
def check_platform(
    file: Path = _FILE,
    overrides: list[str] = _SET,
    as_json: bool = typer.Option(False, "--json", help="The result as one JSON object."),
) -> None:
    """Check a platform file: exit with 0, or with 2 and all errors with line and column.

    A platform whose hosts have no roles is for `penstock nodes up` alone, and needs no data for predictions.
    """
    from penstock.platform.cluster import checked_cluster
    from penstock.platform.hosts import load_platform
    from penstock.platform.show import summary

    platform = load_platform(file, overrides, predicted=None)
    if not platform.predictable:
        checked_cluster(platform)
    if as_json:
        document = {"file": str(file), "sound": True, "hosts": len(platform.hosts)}
        print(json.dumps({**document, "predictable": platform.predictable}))
    else:
        print(f"{file} is sound. {summary(platform)}.")
