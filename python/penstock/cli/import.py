"""penstock import: another tool's trace, or a program's metrics, as a bundle."""  # noqa: N999 - the verb

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from penstock.cli.shared.options import JSON, refuse_others
from penstock.plugins import ARCHIVE_FORMATS, METRIC_READERS, TRACE_IMPORTERS

#: parameters that apply to an exported run, and to a new bundle
_OF_ARCHIVES = {"files", "output", "as_json"}
_OF_BUNDLES = _OF_ARCHIVES | {"form", "base_run", "description"}


def command(
    context: typer.Context,
    files: list[Path] = typer.Argument(
        metavar="FILE",
        help="A FILE.tar.zst of `penstock export`; a trace (for blktrace all its files, or their common "
        "name); a log or a table of metrics.",
    ),
    output: Path = typer.Option(
        None,
        "-o",
        "--output",
        help="Directory of the bundle; default for a .tar.zst: the packed name.",
    ),
    name: str = typer.Option(
        None, "--as", help="Import metrics into an experiment of this name instead of a bundle."
    ),
    metric: str = typer.Option(
        "", "--metric", help="With --as: the metric of all columns of a table."
    ),
    unit: str = typer.Option("", "--unit", help="With --as: the unit of its values."),
    form: str = typer.Option(
        None,
        "--format",
        help=f"Of traces {', '.join(TRACE_IMPORTERS) or 'none'}; of metrics {', '.join(METRIC_READERS)}; "
        "detected if omitted.",
    ),
    base_run: Path = typer.Option(
        None, "--with", help="With metrics: a run whose tables and clock the bundle takes over."
    ),
    description: Path = typer.Option(
        None, "--words", help="A YAML file that describes the columns of a table."
    ),
    as_json: bool = JSON,
) -> None:
    """Import exported runs, or another tool's trace or a program's metrics as a bundle.

    A trace gets verdicts. Data that the source lacks are listed, also in the bundle's manifest.
    """
    from penstock.archive.packing import format_of
    from penstock.errors import BadInput
    from penstock.workload.metrics import reader_of

    if len(files) == 1 and (archive := format_of(files[0])) is not None:
        refuse_others(context, _OF_ARCHIVES, "none of them for an exported run")
        path = archive.unpack(files[0], output)
        print(json.dumps({"path": str(path)}) if as_json else path)
        return
    if name is not None:
        _import_into_experiment(
            files, output, name, form, base_run, description, (metric, unit), as_json
        )
        return
    expected = "none of them for a bundle; --as NAME imports into an experiment"
    refuse_others(context, _OF_BUNDLES, expected)
    if output is None:
        no_format = "" if ARCHIVE_FORMATS else "; no archive format is installed"
        raise BadInput(
            f"found no -o; expected the directory of the bundle, or --as NAME{no_format}"
        )

    metric_format = "described" if description is not None and form is None else form
    if metric_format in METRIC_READERS or (
        form is None and len(files) == 1 and (reader_of(files[0]) is not None)
    ):
        _import_metrics(files, output, metric_format, base_run, description, as_json)
        return
    from penstock.observe.trace.recordings.importers import import_trace
    from penstock.observe.trace.recordings.summary import as_document, show

    if base_run is not None:
        raise BadInput("--with: found a trace; expected metrics, which can use another run's clock")
    if description is not None:
        raise BadInput("--words: found a trace; expected a table of metrics, which it describes")
    if form is None and len(files) == 1 and files[0].is_file():
        _check_format(files[0])
    recording = import_trace(files, output, form)
    if as_json:
        print(json.dumps(as_document(recording)))
    else:
        show(recording)


def _check_format(path: Path) -> None:
    """Raise BadInput, with the formats of metrics and traces, for a file of no such format."""
    from penstock.errors import BadInput
    from penstock.workload.metrics import HEAD_BYTES, formats

    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; expected a file that can be read") from None
    importers = [TRACE_IMPORTERS.load(name) for name in TRACE_IMPORTERS]
    if not any(importer.matches(head) for importer in importers):
        traces = "; or ".join(importer.what for importer in importers)
        expected = f"a trace ({traces}), or " if importers else ""
        shown = "an empty file" if not head else repr(head[:24].decode("latin-1"))
        raise BadInput(
            f"{path}: found {shown} at its beginning; expected {expected}metrics ({formats()})"
        )


def _import_into_experiment(
    files: list[Path],
    output: Path | None,
    name: str,
    form: str | None,
    base_run: Path | None,
    description: Path | None,
    column: tuple[str, str],
    as_json: bool,
) -> None:
    from penstock.errors import BadInput
    from penstock.plugins import FUNCTIONS

    if len(files) != 1 or output is not None or base_run is not None:
        raise BadInput(
            "--as: found -o, --with or several files with it; expected one file of metrics"
        )
    metric, unit = column
    metric_format = "described" if description is not None and form is None else form
    experiment, points, notes = FUNCTIONS.load("import-experiment")(
        name,
        files[0],
        form=metric_format,
        description=_description(description),
        metric=metric,
        unit=unit,
    )
    if as_json:
        print(
            json.dumps(
                {
                    "experiment": f"{experiment.name}#{experiment.repeat}",
                    "points": points,
                    "notes": notes,
                }
            )
        )
        return
    print(f"{points:,} points: {experiment.name}#{experiment.repeat}")
    for note in notes:
        print(f"note: {note}")


def _import_metrics(
    files: list[Path],
    output: Path,
    form: str | None,
    base_run: Path | None,
    description: Path | None,
    as_json: bool,
) -> None:
    from penstock.archive.selection import select
    from penstock.errors import BadInput
    from penstock.workload.metrics import import_metrics

    if len(files) != 1:
        raise BadInput(
            f"found {len(files)} files of metrics; expected one (--with adds it to a bundle)"
        )
    if output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    run = select(base_run).one if base_run is not None else None
    bundle, imported = import_metrics(files[0], output, form, _description(description), run)
    summary: dict[str, Any] = {
        "bundle": str(bundle.path),
        "samples": len(imported.samples),
        "series": int(imported.samples.groupby(["source", "entity", "metric"]).ngroups),
        "tables": {name: len(rows) for name, rows in imported.tables.items()},
        "facts": imported.facts,
        "notes": imported.notes,
    }
    if as_json:
        print(json.dumps(summary))
        return
    print(f"{summary['samples']:,} samples of {summary['series']:,} series: {summary['bundle']}")
    for name, rows in summary["tables"].items():
        print(f"{name}: {rows:,} rows")
    for name in ("spark", "hadoop"):
        if name in imported.facts:
            _print_waves(imported.facts[name])
    for note in imported.notes:
        print(f"note: {note}")


def _print_waves(facts: Mapping[str, Any]) -> None:
    """Print the tasks of an application or job, and its sensitivity to latency."""
    from penstock.workload.execution_waves import CAVEAT, Sensitivity

    unsuccessful = ", ".join(f"{n} {outcome}" for outcome, n in facts["not_succeeded"].items())
    print(
        f"{facts['application']}: {facts['tasks']} tasks in {facts['waves']} waves"
        + (f"; {unsuccessful}" if unsuccessful else "")
    )
    if facts["run_time_s"] is None:
        return
    cost = Sensitivity(facts["waves"], facts["run_time_s"])
    print(
        f"{cost.run_time_s:.2f} s, of which {facts['post_job_s'] or 0:.2f} s after the last job's tasks"
    )
    print(
        f"a wave takes {cost.mean_wave_s:.4g} s; 1 ms more in each: {cost.longer_s():.3g} s, "
        f"{cost.longer_percent():.2g} % longer ({CAVEAT})"
    )


def _description(path: Path | None) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from penstock.errors import BadInput
    from penstock.workload.metrics import text_of

    if path is None:
        return {}
    try:
        keys = YAML(typ="safe", pure=True).load(text_of(path))
    except YAMLError as error:
        raise BadInput(f"{path}: {' '.join(str(error).split())}; expected YAML") from None
    if not isinstance(keys, dict):
        raise BadInput(f"{path}: found {type(keys).__name__}; expected keys and values")
    return keys
