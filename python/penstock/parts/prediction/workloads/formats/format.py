"""Formats of workloads, each a row of `penstock.plugins.WORKLOAD_FORMATS`: own schema, WfFormat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.formats.document import Document
from penstock.parts.prediction.workloads.formats.native_format import workload_of
from penstock.parts.prediction.workloads.workflow import SCHEMA, Workload
from penstock.plugins import WORKLOAD_FORMATS
from penstock.writing import write_atomic

if TYPE_CHECKING:
    from penstock.parts.prediction.workloads.sizes import SizeModel


class Format(Protocol):
    """One format; `name` is its name in messages.

    `estimates`: True if file sizes and the share of input and output can be overridden on reading.
    """

    name: str
    estimates: bool

    def matches(self, values: Any) -> bool:
        """True if a document's values (`Document.value`) are of this format."""

    def read(
        self, document: Document, *, size_model: SizeModel | None, io_share: float | None
    ) -> Workload:
        """The workload; BadInput with the position of every mistake."""

    def text(self, workload: Workload) -> str:
        """The workload in this format; reading it gives the same workload."""


class _Own:
    """Our own schema, as JSON or YAML."""

    name = SCHEMA
    estimates = False

    def matches(self, values: Any) -> bool:
        return isinstance(values, dict) and values.get("schema") == SCHEMA

    def read(
        self, document: Document, *, size_model: SizeModel | None, io_share: float | None
    ) -> Workload:
        return workload_of(document)

    def text(self, workload: Workload) -> str:
        return workload.to_json()


class _WfFormat:
    """Instances of WfFormat 1.2 to 1.6; written as 1.6."""

    name = "WfFormat"
    estimates = True

    def matches(self, values: Any) -> bool:
        return isinstance(values, dict) and "schemaVersion" in values

    def read(
        self, document: Document, *, size_model: SizeModel | None, io_share: float | None
    ) -> Workload:
        from penstock.parts.prediction.workloads.formats.wfformat import workload_of_instance

        return workload_of_instance(document, size_model=size_model, io_share=io_share)

    def text(self, workload: Workload) -> str:
        from penstock.parts.prediction.workloads.formats.upgrade import instance_of

        return json.dumps(instance_of(workload), indent=1, allow_nan=False) + "\n"


own, wfformat = _Own(), _WfFormat()


def format_of(document: Document) -> Format | None:
    """Format of a document's values; None if unknown."""
    formats: list[Format] = [WORKLOAD_FORMATS.load(name) for name in WORKLOAD_FORMATS]
    return next((one for one in formats if one.matches(document.value)), None)


def text_of(workload: Workload, to: str = "penstock") -> str:
    """The workload as text of a format; BadInput for an unknown format."""
    if to not in WORKLOAD_FORMATS:
        raise BadInput(f"the format {to!r}; expected {' or '.join(WORKLOAD_FORMATS)}")
    text: str = WORKLOAD_FORMATS.load(to).text(workload)
    return text


def save(workload: Workload, path: Path, to: str = "penstock") -> None:
    """Write the workload atomically; an existing file is replaced (`write_atomic`)."""
    write_atomic(path, text_of(workload, to))
