"""penstock workload: create, show, convert and trace workload descriptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.shared.options import names_of_options, other_options
from penstock.errors import BadInput
from penstock.plugins import WORKLOAD_FORMATS

if TYPE_CHECKING:
    from penstock.parts.prediction.workloads.sizes import SizeModel
    from penstock.parts.prediction.workloads.workflow import Workload

app = typer.Typer(
    no_args_is_help=True,
    help="Workloads: generate, inspect and convert them, or build them from traced runs.",
)

_OUTPUT = typer.Option(..., "-o", "--output", help="The file to write; - for stdout.")
_FORMAT = typer.Option(
    "penstock",
    "--to",
    help=f"{', '.join(WORKLOAD_FORMATS)}: penstock's own schema, WfFormat 1.6, or a format of another "
    "package.",
)
_JSON = typer.Option(False, "--json", help="One JSON object on stdout.")


@app.command("make")
def make_one(
    context: typer.Context,
    kind: str = typer.Argument(
        ...,
        help="pipeline, reduce, broadcast, scatter, gather, checkpoint, blast or montage.",
    ),
    output: Path = _OUTPUT,
    size: str = typer.Option(
        "medium", "--size", help="small, medium (10 times small) or large (100 times small)."
    ),
    width: int = typer.Option(
        None, ("--width"), min=1, help="Number of parallel tasks; montage: number of images."
    ),
    file_bytes: int = typer.Option(
        None, "--file-bytes", help="Size of the pattern's file in bytes, instead of --size."
    ),
    compute: float = typer.Option(
        None, "--compute", help="Seconds that a task computes (default 0; blast: per query, 1)."
    ),
    launch: float = typer.Option(None, "--launch", help="Seconds to launch a task."),
    stages: int = typer.Option(3, "--stages", min=1, help="pipeline: number of tasks in sequence."),
    replicas: int = typer.Option(
        2, ("--replicas"), min=1, help="broadcast, blast: number of replicas with --optimised."
    ),
    rounds: int = typer.Option(3, "--rounds", min=1, help="checkpoint: number of rounds."),
    every: float = typer.Option(10.0, "--every", help="checkpoint: seconds between two rounds."),
    shared: bool = typer.Option(False, "--shared", help="checkpoint: one file per round (N-1)."),
    queries: int = typer.Option(200, "--queries", min=1, help="blast: number of queries per task."),
    optimised: bool = typer.Option(
        False,
        "--optimised",
        help="With placement hints (WOSS); without: the store's default (DSS).",
    ),
    staged: bool = typer.Option(
        False, "--staged", help="Add tasks that stage inputs in and results out."
    ),
    platform: Path = typer.Option(
        None,
        "-p",
        "--platform",
        help="With --optimised: count the chunks of scatter in that of this platform's store, not in MiB.",
    ),
    to: str = _FORMAT,
    as_json: bool = _JSON,
) -> None:
    """Generate a synthetic workload of an access pattern or an application."""
    from penstock.parts.prediction.workloads.make import KINDS, make_workload, options_of

    options = {
        "chunk_bytes": None if platform is None else _chunk_bytes(platform),
        "stages": stages,
        "replicas": replicas,
        "rounds": rounds,
        "every_s": every,
        "shared": shared,
        "queries": queries,
        "optimised": optimised,
        "staged": staged,
        "width": width,
        "file_bytes": file_bytes,
        "compute_s": compute,
        "launch": launch,
    }
    if kind in KINDS:
        _refuse_ineffective(context, kind, options_of(kind))
    _write(make_workload(kind, size, options), output, to, as_json)


def _refuse_ineffective(context: typer.Context, kind: str, effective: frozenset[str]) -> None:
    """Raise BadInput for options that have no effect on a kind."""
    keys = {"every": "every_s", "compute": "compute_s"}
    every_kind = {"kind", "output", "size", "platform", "to", "as_json"}
    own = {name for name in context.params if keys.get(name, name) in effective}
    if others := other_options(context, own | every_kind):
        raise BadInput(
            f"{kind}: found {others}, without an effect on it; "
            f"expected {names_of_options(context, own)}"
        )


@app.command("show")
def show_one(
    workload: Path = typer.Argument(..., help="A workload, a WfFormat instance, a traced run."),
    aggregate: bool = typer.Option(
        False,
        "--aggregate",
        help="Merge subsequent operations on a file, and print the difference.",
    ),
    sizes: str = typer.Option(None, "--sizes", help="WfFormat: a size model, see `convert`."),
    seed: int = typer.Option(1, "--seed", min=0, help="Seed of the size model."),
    io_share: float = typer.Option(
        None, ("--io-share"), help="WfFormat: share of input and output, see `convert`."
    ),
    as_json: bool = _JSON,
) -> None:
    """Show files, tasks, stages, bytes and graph levels; or all errors if it cannot run."""
    from penstock.parts.prediction.workloads.read import read_workload
    from penstock.parts.prediction.workloads.show import document_of, show

    described = read_workload(workload, size_model=_model(sizes, seed), io_share=io_share)
    if as_json:
        print(json.dumps(document_of(described, aggregate)))
    else:
        show(described, aggregate)


@app.command("convert")
def convert_one(
    workload: Path = typer.Argument(..., help="A workload, a WfFormat instance, a traced run."),
    output: Path = _OUTPUT,
    to: str = _FORMAT,
    sizes: str = typer.Option(
        None,
        "--sizes",
        help="WfFormat: size model for files that all have the same size: lognormal:SPREAD or "
        "table:FILE[:SPREAD].",
    ),
    seed: int = typer.Option(1, "--seed", min=0, help="Seed of the size model."),
    io_share: float = typer.Option(
        None,
        "--io-share",
        help="WfFormat: share of input and output in the run times (default: 1 - avgCPU).",
    ),
    as_json: bool = _JSON,
) -> None:
    """Convert a workload to another format; content without an equivalent is preserved."""
    from penstock.parts.prediction.workloads.read import read_workload

    described = read_workload(workload, size_model=_model(sizes, seed), io_share=io_share)
    _write(described, output, to, as_json)


@app.command("trace")
def trace_one(
    bundles: list[Path] = typer.Argument(
        ...,
        help="Bundles of `penstock trace --mode trace -o DIR`, or OUT:r001, OUT:t01 of a study; several "
        "become one workflow.",
    ),
    output: Path = _OUTPUT,
    stage: list[str] = typer.Option(
        [], "--stage", help="Stage of a bundle's tasks, once per bundle."
    ),
    into: Path = typer.Option(
        None, "--into", help="A workload in which the bundles replace their stages (needs --stage)."
    ),
    per: str = typer.Option("process", "--per", help="Unit of a task: process, thread or command."),
    under: list[str] = typer.Option([], "--under", help="Only files below this directory."),
    order: str = typer.Option(
        "files",
        "--order",
        help="Order of tasks: files (a reader waits for writers) or observed (as recorded).",
    ),
    compute: str = typer.Option(
        "gaps",
        "--compute",
        help="Source of compute times: gaps (time between calls) or cpu (the sampled CPU time in total).",
    ),
    launch: bool = typer.Option(
        True,
        "--launch/--no-launch",
        help="Use the recorded launch times, or those of the platform.",
    ),
    to: str = _FORMAT,
    as_json: bool = _JSON,
) -> None:
    """Build a workload from traced runs: operations, computing, and dependencies by files."""
    from penstock.archive.completeness import reading
    from penstock.parts.prediction.workloads.read import read_workload
    from penstock.parts.prediction.workloads.traced import replaced, traced_workload

    if into is not None and not stage:
        raise BadInput("--into: the stage of the bundles is missing; give --stage NAME for each")
    with reading(*bundles) as traces:
        traced = traced_workload(
            traces,
            names=stage,
            per=per,
            under=under,
            order=order,
            compute=compute,
            launch=launch,
        )
    if into is not None:
        traced = replaced(read_workload(into), traced)
    _write(traced, output, to, as_json)


def _chunk_bytes(platform: Path) -> int:
    """Chunk of the store of a platform file."""
    from penstock.platform.hosts import load_platform
    from penstock.platform.lower import store_of

    chunk_bytes: int = store_of(load_platform(platform, predicted=False).file)["chunk_bytes"]
    return chunk_bytes


def _model(sizes: str | None, seed: int) -> SizeModel | None:
    from penstock.parts.prediction.workloads.sizes import SizeModel

    return None if sizes is None else SizeModel.parse(sizes, seed)


def _write(workload: Workload, output: Path, to: str, as_json: bool) -> None:
    """Write a workload; the document itself goes to stdout."""
    from penstock.parts.prediction.workloads.formats.format import save, text_of
    from penstock.text import counted

    if str(output) == "-":
        print(text_of(workload, to), end="")
        return
    save(workload, output, to)
    if as_json:
        counts = {"tasks": len(workload.tasks), "files": len(workload.file_sizes)}
        print(json.dumps({"file": str(output), **counts, "notes": list(workload.notes)}))
        return
    tasks = counted(len(workload.tasks), "task")
    typer.echo(f"{output}: {tasks}, {counted(len(workload.file_sizes), 'file')}", err=True)
    for note in workload.notes:
        typer.echo(f"note: {note}", err=True)
