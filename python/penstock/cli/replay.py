"""penstock replay: replay a trace on other storage."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from penstock.cli.shared.options import JSON


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
    """Replay the reads, writes and syncs of a trace with fio on scratch files, and measure the similarity.

    The order of each thread is preserved. Operations that cannot be replayed are listed. The distance is 0
    for identical traces and 1 for traces with nothing in common.
    """
    from penstock.archive.completeness import reading
    from penstock.observe.trace import replay

    with reading(bundle) as (trace,):
        result = replay.replay(trace, on, speed, output)
    if as_json:
        print(json.dumps(result.document()))
        return
    print(
        f"{result.operations} operations in {result.replay_s:.3g} s (recorded: {result.original_s:.3g} s); "
        f"{result.requests_again} of {result.requests} requests observed"
    )
    for operation, n in result.omitted.items():
        print(f"not replayed: {n} x {operation}")
    distance = result.likeness
    print(
        f"distance {distance.mean:.3f}: sizes {distance.sizes:.3f}, steps {distance.steps:.3f}, "
        f"share of reads {distance.read_share:.3f}, classes {distance.classes:.3f}"
    )
    for note in result.notes:
        print(note)
    if result.bundle:
        print(f"bundle: {result.bundle}")
