"""penstock dedup: a deduplicating layer over any mounted file system."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.shared.options import JSON, QUIET, parsed
from penstock.errors import BadInput
from penstock.parts.dedup.cli import controller_plot, energy, simulate
from penstock.terminal import plain_table, progress_bar, say, show

if TYPE_CHECKING:
    from penstock.parts.dedup.stores import Usage

app = typer.Typer(help="A deduplicating layer over any mounted file system.", no_args_is_help=True)
for _name, _verb in (("simulate", simulate), ("plot", controller_plot), ("energy", energy)):
    app.command(_name)(_verb.command)

_PLACE = typer.Argument(help="Mount point or directory of the store.")
_FORCE = typer.Option(False, "--force", help="Unmount it even if programs use it.")


@app.command()
def mount(
    store: Path = typer.Argument(help="Directory of the store, in any file system; may be empty."),
    mount: Path = typer.Argument(help="Empty directory where the files appear."),
    chunking: str | None = typer.Option(
        None,
        "--chunking",
        "-c",
        help="off, fixed:SIZE, fastcdc:MIN,AVG,MAX, seqcdc:MIN,AVG,MAX or auto "
        "(default: seqcdc:16KiB,64KiB,256KiB).",
    ),
    hash_name: str | None = typer.Option(
        None, "--hash", help="blake3 or sha256 (default: blake3)."
    ),
    scope: str = typer.Option(
        "family", "--scope", help="Compare with versions of the family, or global."
    ),
    family: str | None = typer.Option(
        None,
        "--family",
        help="Regular expression: paths that differ only in its matches are one family "
        "(default: [0-9]+).",
    ),
    configurations: list[str] = typer.Option(
        [], "--configuration", help="With auto: a configuration to choose from; repeatable."
    ),
    controller: Path | None = typer.Option(
        None, "--controller", help="With auto: a file with settings of the controller."
    ),
    trust: bool = typer.Option(
        False, "--trust", help="Read chunks without comparing their hashes."
    ),
    sync: bool = typer.Option(
        False, "--sync", help="Write each version to the devices when it is closed."
    ),
    as_json: bool = JSON,
) -> None:
    """Mount a store until `dedup unmount`; programs write files there as in any directory."""
    from penstock.parts.dedup import options
    from penstock.parts.dedup.mounts import mount as start

    if configurations and chunking != options.AUTO:
        expected = f"--chunking {options.AUTO} with it"
        raise BadInput(f"--configuration: found {configurations[0]}; expected {expected}")
    chosen = options.MountOptions(
        chunking=chunking or options.DEFAULT_CHUNKING,
        hash=hash_name or options.DEFAULT_HASH,
        scope=scope,
        family=options.DEFAULT_FAMILY if family is None else family,
        configurations=tuple(configurations) or options.AUTO_CONFIGURATIONS,
        controller=controller,
        trust=trust,
        sync=sync,
    )
    served = start(store, mount, chosen)
    if as_json:
        described = {"store": str(served.store), "mount": str(served.mount)}
        print(json.dumps({**described, "pid": served.daemon.pid, "chunking": chosen.chunking}))
    else:
        print(f"{served.mount}: {chosen.chunking}, {chosen.hash}, chunks in {served.store}")


@app.command("set")
def set_(
    place: Path = _PLACE,
    chunking: str | None = typer.Option(None, "--chunking", "-c", help="As of `dedup mount`."),
    hash_name: str | None = typer.Option(None, "--hash", help="blake3 or sha256."),
    as_json: bool = JSON,
) -> None:
    """Change the configuration of the versions that start from now on."""
    from penstock.parts.dedup.mounts import find

    if chunking is None and hash_name is None:
        raise BadInput("found no change; expected --chunking or --hash")
    served = find(place)
    current = served.change(chunking=chunking, hash_name=hash_name)
    if as_json:
        print(json.dumps(current))
    else:
        print(f"{served.mount}: {current['chunking']}, {current['hash']}")


@app.command()
def unmount(place: Path = _PLACE, force: bool = _FORCE, as_json: bool = JSON) -> None:
    """End a mount; the store stays."""
    from penstock.parts.dedup.mounts import unmount as end

    last = end(place, force=force)
    if as_json:
        print(json.dumps(last))
    else:
        print(f"{last['mount']}: unmounted")


@app.command()
def status(
    place: Path | None = typer.Argument(None, help="Only this mount or store, with its usage."),
    records: int = typer.Option(10, "--records", min=0, help="Number of latest records."),
    as_json: bool = JSON,
) -> None:
    """List mounts, or show the usage of a store by family and the latest versions.

    Exits with status 1 if the server of a mount has died.
    """
    from penstock.parts.dedup.mounts import dead, mounts

    if place is None:
        listed = [served.status() for served in mounts()]
        for one in listed:
            del one["records"]
        gone = [entry.target for entry in dead()]
        if as_json:
            print(json.dumps({"mounts": listed, "dead": gone}))
        else:
            _show_mounts(listed, gone)
        if gone:
            raise typer.Exit(1)
        return
    _status_of(place, records, as_json)


def _status_of(place: Path, records: int, as_json: bool) -> None:
    from penstock.parts.dedup import stores
    from penstock.parts.dedup.mounts import find

    usage = stores.usage(place)
    try:
        mounted = find(place).status()
        mounted["records"] = mounted["records"][max(0, len(mounted["records"]) - records) :]
    except BadInput:
        mounted = {}
    if as_json:
        answer = {**asdict(usage), "ratio": usage.ratio}
        print(json.dumps({"usage": answer, "mount": mounted or None}))
    else:
        _show_usage(usage)
        _show_records(mounted.get("records", []))


@app.command()
def gc(place: Path = _PLACE, quiet: bool = QUIET, as_json: bool = JSON) -> None:
    """Remove chunks that no file needs; programs may write meanwhile."""
    from penstock.parts.dedup import stores

    with progress_bar() as bar:
        result = stores.collect(place, None if quiet else bar)
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        print(
            f"{place}: removed {result.removed_chunks:,} of {result.chunks:,} chunks, "
            f"{_size(result.removed_bytes)}"
        )


@app.command()
def verify(place: Path = _PLACE, quiet: bool = QUIET, as_json: bool = JSON) -> None:
    """Read all files of a store and list the damaged ones. Exits with status 1 if there are any."""
    from penstock.parts.dedup import stores

    with progress_bar() as bar:
        result = stores.verify(place, None if quiet else bar)
    if as_json:
        print(json.dumps(asdict(result)))
    else:
        for path, reason in result.damaged:
            print(f"{path}: {reason}")
        print(
            f"{place}: {result.maps:,} files, {result.chunks:,} chunks, "
            f"{_size(result.bytes)}; {result.damaged_files:,} files damaged"
        )
    if result.damaged_files:
        raise typer.Exit(1)


@app.command()
def generate(
    directory: Path = typer.Argument(help="Directory of the files; it may be a mount."),
    size: str = typer.Option("256MiB", "--size", help="Size of the first version."),
    versions: int = typer.Option(5, "--versions", "-n", min=1, help="Number of versions."),
    similarity: str | None = typer.Option(
        None,
        "--similarity",
        "-z",
        help="Share of a version that is also in the previous one (default: 60%).",
    ),
    change: str | None = typer.Option(
        None, "--change", help="aligned, unaligned, insert or delete (default: aligned)."
    ),
    preset: str | None = typer.Option(
        None, "--preset", help="checkpoint, archive or images: similarity and change."
    ),
    chunk: str = typer.Option("64KiB", "--chunk", help="Size of the changed pieces."),
    seed: int = typer.Option(0, "--seed", min=0, help="Seed of all content."),
    name: str = typer.Option("version", "--name", help="Name of the files."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Write each version over the previous one."
    ),
    quiet: bool = QUIET,
    as_json: bool = JSON,
) -> None:
    """Write versions of a file with an exact similarity to the previous one."""
    from penstock.parts.dedup.versions import VersionPlan, write_versions
    from penstock.spec.units import parse_bounded_size

    least, most, kind = _similarity(similarity, change, preset)
    plan = VersionPlan(
        size_bytes=parsed("size", size, parse_bounded_size),
        versions=versions,
        similarity=(least, most),
        change=kind,
        chunk_bytes=parsed("chunk", chunk, parse_bounded_size),
        seed=seed,
    )
    with progress_bar() as bar:
        progress = None if quiet else bar
        written = list(
            write_versions(plan, directory, name, overwrite=overwrite, progress=progress)
        )
    if as_json:
        print(json.dumps({"versions": [{**asdict(one), "path": str(one.path)} for one in written]}))
        return
    for one in written:
        old = "first" if one.similarity is None else f"{100 * one.similarity:.2f} % similar"
        print(f"{one.path}: {_size(one.size_bytes)}, {old}")


def _similarity(
    similarity: str | None, change: str | None, preset: str | None
) -> tuple[float, float, str]:
    from penstock.parts.dedup.versions import PRESETS
    from penstock.spec.units import parse_share

    if preset is not None and preset not in PRESETS:
        raise BadInput(f"preset: found {preset!r}; expected {', '.join(PRESETS)}")
    chosen = PRESETS.get(preset or "")
    least, most = (0.6, 0.6) if chosen is None else (chosen.least, chosen.most)
    if similarity is not None:
        least = most = parsed("similarity", similarity, parse_share)
    return least, most, change or ("aligned" if chosen is None else chosen.change)


@app.command()
def compare(
    old: Path = typer.Argument(help="A file."),
    new: Path = typer.Argument(help="A later version of it."),
    chunking: list[str] = typer.Option(
        ["fixed:64KiB", "fastcdc:16KiB,64KiB,256KiB", "seqcdc:16KiB,64KiB,256KiB"],
        "--chunking",
        "-c",
        help="As of `dedup mount`; repeatable.",
    ),
    as_json: bool = JSON,
) -> None:
    """Show the share of a file that is also in its earlier version, by chunking."""
    from penstock.parts.dedup.measure import compare as similarity_of

    results = {name: similarity_of(old, new, name) for name in chunking}
    if as_json:
        print(json.dumps({name: {**asdict(it), "share": it.share} for name, it in results.items()}))
        return
    table = plain_table(("chunking",), ("similar %", "chunks", "similar"))
    for name, it in results.items():
        table.add_row(name, f"{100 * it.share:.2f}", f"{it.chunks:,}", f"{it.similar_chunks:,}")
    show(table)


@app.command()
def measure(
    repeats: int = typer.Option(5, "--repeats", min=1, max=1000, help="Repetitions."),
    as_json: bool = JSON,
) -> None:
    """Measure hashes and chunkers on one core of this host."""
    from penstock.parts.dedup.measure import measure as throughput

    rows = throughput(repeats)
    if as_json:
        print(json.dumps({"rates_bps": [asdict(row) for row in rows]}))
        return
    table = plain_table(("", "of"), ("GB/s", "least", "most"))
    for row in rows:
        rates = (f"{rate / 1e9:.2f}" for rate in (row.median, row.least, row.most))
        table.add_row(row.name, row.kind, *rates)
    show(table)


def _show_mounts(listed: Sequence[Mapping[str, Any]], gone: list[str]) -> None:
    if not listed and not gone:
        print("Nothing is mounted.")
    table = plain_table(("mount", "store", "chunking"), ("versions", "written", "similar %"))
    for column in table.columns[:2]:
        column.overflow = "fold"  # paths are complete
    for one in listed:
        totals = one["totals"]
        share = 100 * totals["similar_bytes"] / max(1, totals["bytes"])
        chunking = "auto" if one["controlled"] else one["chunking"]
        table.add_row(
            one["mount"],
            one["store"],
            chunking,
            f"{totals['versions']:,}",
            _size(totals["bytes"]),
            f"{share:.1f}",
        )
    show(table)
    for place in gone:
        say(f"{place}: its server has died; `penstock undo` removes the mount")


def _show_usage(usage: Usage) -> None:
    ratio = "" if usage.ratio is None else f", ratio {usage.ratio:.2f}"
    print(
        f"{usage.files:,} files of {_size(usage.logical_bytes)} in {usage.chunks:,} chunks "
        f"of {_size(usage.stored_bytes)}{ratio}"
    )
    if usage.damaged_files:
        print(f"{usage.damaged_files:,} files have a damaged map; see `penstock dedup verify`")
    table = plain_table(("family",), ("files", "size", "unique"))
    for name, of in usage.families.items():
        table.add_row(name, f"{of.files:,}", _size(of.logical_bytes), _size(of.unique_bytes))
    show(table)


def _show_records(rows: Sequence[Mapping[str, Any]]) -> None:
    table = plain_table(("version", "chunking"), ("size", "similar %", "hash s", "send s"))
    for row in rows:
        share = 100 * row["similar_bytes"] / max(1, row["bytes"])
        times = (f"{row[name]:.3f}" for name in ("hash_s", "send_s"))
        table.add_row(
            row["path"], row["configuration"], _size(row["bytes"]), f"{share:.1f}", *times
        )
    show(table)


def _size(nbytes: float) -> str:
    from penstock.text import size

    return size(nbytes)
