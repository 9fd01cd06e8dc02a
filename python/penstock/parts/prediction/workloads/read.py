"""Reader of workloads: own schema, WfFormat 1.2 to 1.6, a traced run, a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.archive.selection import names_runs
from penstock.errors import BadInput
from penstock.parts.prediction.workloads.formats.document import Document, read_document
from penstock.parts.prediction.workloads.formats.format import format_of
from penstock.parts.prediction.workloads.formats.native_format import workload_of
from penstock.parts.prediction.workloads.workflow import SCHEMA, Workload

if TYPE_CHECKING:
    from penstock.parts.prediction.workloads.sizes import SizeModel


def read_workload(
    path: str | Path, *, size_model: SizeModel | None = None, io_share: float | None = None
) -> Workload:
    """The workload in `path`, checked.

    A file: JSON or YAML of the own schema, or a WfFormat instance; a bundle (of `penstock trace -o`), or a
    study that was run with its operations traced, a treatment or a run of it (OUT:t01). `size_model` replaces
    the sizes of the files of a WfFormat instance; `io_share` (0 to 1) is the share of its run times that was
    input and output (None: derived from `avgCPU`). Raises BadInput with file, line, column and task.
    """
    place = Path(path)
    if io_share is not None and not 0 <= io_share <= 1:
        raise BadInput(f"an I/O share of {io_share}; a number from 0 to 1 is expected")
    if names_runs(place):
        from penstock.parts.prediction.workloads.traced import read_traced

        return read_traced(place)
    document = read_document(place)
    form = format_of(document)
    if form is None or not form.estimates:
        for value, what in ((size_model, "a size model"), (io_share, "an I/O share")):
            if value is not None:
                name = form.name if form else SCHEMA
                raise BadInput(f"{place}: {what} is for WfFormat instances; this one is {name}")
    if form is None:
        _say_why(document)
        return workload_of(document)
    return form.read(document, size_model=size_model, io_share=io_share)


def _say_why(document: Document) -> None:
    """BadInput for a document without a format; one with an unknown format is checked as our own."""
    values = document.value
    if isinstance(values, dict) and "schema" not in values:
        expected = f"`schema: {SCHEMA}`, or `schemaVersion` of WfFormat"
        document.mistake((), "neither `schema` nor `schemaVersion`", expected)
        document.check()
