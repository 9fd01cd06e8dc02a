"""penstock workload: make, look at, convert and trace descriptions of what is to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.errors import BadInput
from penstock.plugins import WORKLOAD_FORMATS

if TYPE_CHECKING:
    from penstock.parts.prediction.workloads.sizes import SizeModel
    from penstock.parts.prediction.workloads.workflow import Workload

app = typer.Typer(
    no_args_is_help=True,
    help="Workloads: make one, look at it, convert it, make it from traced runs.",
)

_OUTPUT = typer.Option(..., "-o", "--output", help="The file to write; - for stdout.")
_FORMAT = typer.Option(
    "penstock",
    "--to",
    help=f"{', '.join(WORKLOAD_FORMATS)}: own schema, WfFormat 1.6, ones that were added.",
)
_JSON = typer.Option(False, "--json", help="One object on stdout.")


@app.command("make")
def make_one(
    kind: str = typer.Argument(
        ...,
        help="pipeline, reduce, broadcast, scatter, gather, checkpoint, blast or montage.",
    ),
    output: Path = _OUTPUT,
    size: str = typer.Option("medium", "--size", help="small, medium or large (tenfold each)."),
    width: int = typer.Option(None, "--width", min=1, help="Tasks side by side; montage: images."),
    file_bytes: int = typer.Option(
        None, "--file-bytes", help="Instead of --size: bytes of the file that the pattern is about."
    ),
    compute: float = typer.Option(
        0.0, "--compute", help="Seconds that a task computes (blast: a query; default there 1)."
    ),
    launch: float = typer.Option(None, "--launch", help="Seconds to launch a task."),
    stages: int = typer.Option(3, "--stages", min=1, help="pipeline: tasks one after the other."),
    replicas: int = typer.Option(2, "--replicas", min=1, help="broadcast, blast: if optimised."),
    rounds: int = typer.Option(3, "--rounds", min=1, help="checkpoint: how many."),
    every: float = typer.Option(10.0, "--every", help="checkpoint: seconds between two."),
    shared: bool = typer.Option(False, "--shared", help="checkpoint: one file a round (N-1)."),
    queries: int = typer.Option(200, "--queries", min=1, help="blast: queries of a task."),
    optimised: bool = typer.Option(
        False,
        "--optimised",
        help="With placement hints (WOSS); without: the store's default (DSS).",
    ),
    staged: bool = typer.Option(
        False, "--staged", help="Tasks that bring inputs and take results."
    ),
    to: str = _FORMAT,
    as_json: bool = _JSON,
) -> None:
    """Make a synthetic workload of one access pattern, or one of two applications."""
    from penstock.parts.prediction.workloads.make import make_workload

    options = {
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
    _write(make_workload(kind, size, options), output, to, as_json)


@app.command("show")
def show_one(
    workload: Path = typer.Argument(..., help="A workload, a WfFormat instance, a traced run."),
    aggregate: bool = typer.Option(
        False, "--aggregate", help="What merging subsequent operations on a file changes."
    ),
    sizes: str = typer.Option(None, "--sizes", help="WfFormat: a size model, see convert."),
    seed: int = typer.Option(1, "--seed", min=0, help="Of the size model."),
    io_share: float = typer.Option(None, "--io-share", help="WfFormat: see convert."),
    as_json: bool = _JSON,
) -> None:
    """Show files, tasks, stages, bytes and the levels of the graph; every mistake if it cannot be run."""
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
        help="WfFormat: other sizes of files that are all alike: lognormal:SPREAD or table:FILE[:SPREAD].",
    ),
    seed: int = typer.Option(1, "--seed", min=0, help="Of the size model."),
    io_share: float = typer.Option(
        None,
        "--io-share",
        help="WfFormat: share of run times that was input and output (default: what avgCPU leaves).",
    ),
    as_json: bool = _JSON,
) -> None:
    """Write a workload in another format; what the other format has no word for is kept."""
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
    stage: list[str] = typer.Option([], "--stage", help="Stage of a bundle's tasks, one for each."),
    into: Path = typer.Option(
        None, "--into", help="A workload of which the bundles' stages are replaced (needs --stage)."
    ),
    per: str = typer.Option("process", "--per", help="A task is a process, thread or command."),
    under: list[str] = typer.Option([], "--under", help="Only files below this directory."),
    order: str = typer.Option(
        "files", "--order", help="files: a reader waits for writers; observed: as it was run."
    ),
    compute: str = typer.Option(
        "gaps", "--compute", help="gaps: time between calls; cpu: in sum the sampled CPU time."
    ),
    launch: bool = typer.Option(
        True, "--launch/--no-launch", help="Keep the launch times, or leave them to the platform."
    ),
    to: str = _FORMAT,
    as_json: bool = _JSON,
) -> None:
    """Make a workload of traced runs: operations, computing, and dependencies by files."""
    from penstock.archive.completeness import reading
    from penstock.parts.prediction.workloads.read import read_workload
    from penstock.parts.prediction.workloads.traced import replaced, traced_workload

    if into is not None and not stage:
        raise BadInput("--into: which stage the bundles are of is not said; --stage NAME for each")
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


def _model(sizes: str | None, seed: int) -> SizeModel | None:
    from penstock.parts.prediction.workloads.sizes import SizeModel

    return None if sizes is None else SizeModel.parse(sizes, seed)


def _write(workload: Workload, output: Path, to: str, as_json: bool) -> None:
    """Writes a workload; on stdout it is the document itself."""
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
