"""Checks of formats of workloads: part of `penstock.testing`."""

from __future__ import annotations

from penstock.parts.prediction.workloads.formats.document import document_of
from penstock.parts.prediction.workloads.formats.format import Format
from penstock.parts.prediction.workloads.workflow import Workload


def check_format(form: Format, workload: Workload) -> str:
    """A format of workloads: what it writes it knows and reads again as the same workload. Gives the text."""
    text = form.text(workload)
    document = document_of(text.encode(), "workload")
    assert form.matches(document.value), "it does not know what it wrote"
    assert not form.matches({}), "it takes anything"
    reread = form.read(document, size_model=None, io_share=None)
    assert reread.to_json() == workload.to_json(), "another workload than was written"
    return text
