"""Reads a workload from whatever describes one: own schema, WfFormat 1.4 to 1.6, a traced run, a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.archive.selection import names_runs
from penstock.errors import BadInput
from penstock.workload.described import workload_of
from penstock.workload.document import Document, read_document
from penstock.workload.workflow import SCHEMA, Workload

if TYPE_CHECKING:
    from penstock.workload.sizes import SizeModel


def read_workload(
    path: str | Path, *, size_model: SizeModel | None = None, io_share: float | None = None
) -> Workload:
    """The workload in `path`, checked.

    A file: JSON or YAML of the own schema, or a WfFormat instance; a bundle (of `penstock trace -o`), or a
    study that was run with its operations traced, a treatment or a run of it (OUT:t01). `size_model` gives
    other sizes to the files of a WfFormat instance; `io_share` (0 to 1) is the share of its run times that
    was input and output (None: what `avgCPU` leaves). Raises BadInput with file, line, column and task.
    """
    place = Path(path)
    if io_share is not None and not 0 <= io_share <= 1:
        raise BadInput(f"an I/O share of {io_share}; a number from 0 to 1 is expected")
    if names_runs(place):
        from penstock.workload.traced import read_traced

        return read_traced(place)
    document = read_document(place)
    if is_wfformat(document):
        from penstock.workload.wfformat import workload_of_instance

        return workload_of_instance(document, size_model=size_model, io_share=io_share)
    if size_model is not None:
        raise BadInput(f"{place}: a size model is for WfFormat instances; this one is {SCHEMA}")
    if io_share is not None:
        raise BadInput(f"{place}: an I/O share is for WfFormat instances; this one is {SCHEMA}")
    values = document.value
    if isinstance(values, dict) and "schema" not in values:
        expected = f"`schema: {SCHEMA}`, or `schemaVersion` of WfFormat"
        document.mistake((), "neither `schema` nor `schemaVersion`", expected)
        document.check()
    return workload_of(document)


def is_wfformat(document: Document) -> bool:
    """Whether the document is an instance of WfFormat, of whatever version."""
    return isinstance(document.value, dict) and "schemaVersion" in document.value
