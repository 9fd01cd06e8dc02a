"""penstock replay: a trace run again."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from penstock.cli._options import JSON


def command(
    bundle: Path = typer.Argument(
        help="The bundle of `penstock trace --mode trace -o`; OUT:r001, OUT:t01 of a study."
    ),
    on: Path = typer.Option(
        Path("."), "--on", help="Directory for scratch files on the storage under test."
    ),
    speed: str = typer.Option(
        "original", "--speed", help="original: at the recorded times; max: as fast as possible."
    ),
    output: Path = typer.Option(
        None, ("-o"), "--output", help="Write the bundle of the replay to this directory."
    ),
    as_json: bool = JSON,
) -> None:
    """Run the reads, writes and syncs of a trace again, by fio on scratch files, and score the likeness.

    Each thread keeps its order. What cannot be made again is listed. The distance is 0 for two traces
    that are alike and 1 for two that have nothing in common.
    """
    from penstock.archive.completeness import reading
    from penstock.observe.trace import replay

    with reading(bundle) as (trace,):
        done = replay.replay(trace, on, speed, output)
    if as_json:
        print(json.dumps(done.document()))
        return
    print(
        f"{done.operations} operations again in {done.replay_s:.3g} s (recorded: {done.original_s:.3g} s); "
        f"{done.requests_again} of {done.requests} requests seen"
    )
    for what, n in done.omitted.items():
        print(f"not replayed: {n} x {what}")
    like = done.likeness
    print(
        f"distance {like.mean:.3f}: sizes {like.sizes:.3f}, steps {like.steps:.3f}, "
        f"share of reads {like.read_share:.3f}, classes {like.classes:.3f}"
    )
    for note in done.notes:
        print(note)
    if done.bundle:
        print(f"bundle: {done.bundle}")
