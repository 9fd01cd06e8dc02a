"""Checks of formats of workloads: part of `penstock.testing`."""

from __future__ import annotations

from penstock.parts.prediction.workloads.formats.document import document_of
from penstock.parts.prediction.workloads.formats.format import Format
from penstock.parts.prediction.workloads.workflow import Workload


def check_format(form: Format, workload: Workload) -> str:
    """Check a format of workloads: it recognises its own output and reads it as the same workload. Returns
    the text."""
    text = form.text(workload)
    document = document_of(text.encode(), "workload")
    assert form.matches(document.value), "it does not know what it wrote"
    assert not form.matches({}), "it takes anything"
    reread = form.read(document, size_model=None, io_share=None)
    assert reread.to_json() == workload.to_json(), "another workload than was written"
    return text
