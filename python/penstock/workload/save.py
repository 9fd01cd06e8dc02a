"""Writes workloads: own schema or WfFormat 1.6."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.errors import BadInput
from penstock.workload.upgrade import instance_of
from penstock.workload.workflow import Workload
from penstock.writing import write_whole

FORMATS = ("penstock", "wfformat")


def text_of(workload: Workload, to: str = "penstock") -> str:
    """The workload as text of a format: 'penstock' (own schema) or 'wfformat' (WfFormat 1.6)."""
    if to not in FORMATS:
        raise BadInput(f"the format {to!r}; expected {' or '.join(FORMATS)}")
    if to == "penstock":
        return workload.to_json()
    return json.dumps(instance_of(workload), indent=1, allow_nan=False) + "\n"


def save(workload: Workload, path: Path, to: str = "penstock") -> None:
    """Writes the workload, whole or not at all; a file that is there is replaced (`whole_file`)."""
    write_whole(path, text_of(workload, to))
