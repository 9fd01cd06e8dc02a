"""A format of workloads: penstock's own, inside an object `box`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from penstock.parts.prediction.workloads.formats.document import Document
from penstock.parts.prediction.workloads.formats.native_format import workload_of
from penstock.parts.prediction.workloads.workflow import Workload


class Box:
    """An object of one key, `box`."""

    name = "a box"
    estimates = False

    def matches(self, values: Any) -> bool:
        """True if `box` is the only key."""
        return isinstance(values, dict) and set(values) == {"box"}

    def read(self, document: Document, *, size_model: object, io_share: object) -> Workload:
        """Read the workload in the box."""
        return workload_of(replace(document, value=document.value["box"]))

    def text(self, workload: Workload) -> str:
        """Write the workload in a box."""
        return json.dumps({"box": json.loads(workload.to_json())})


box = Box()
