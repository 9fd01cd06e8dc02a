"""Writes workloads: own schema or WfFormat 1.6."""

from __future__ import annotations

import json
import os
from pathlib import Path

from penstock.errors import BadInput, PenstockError
from penstock.workload.upgrade import instance_of
from penstock.workload.workflow import Workload

FORMATS = ("penstock", "wfformat")


def text_of(workload: Workload, to: str = "penstock") -> str:
    """The workload as text of a format: 'penstock' (own schema) or 'wfformat' (WfFormat 1.6)."""
    if to not in FORMATS:
        raise BadInput(f"the format {to!r}; expected {' or '.join(FORMATS)}")
    if to == "penstock":
        return workload.to_json()
    return json.dumps(instance_of(workload), indent=1, allow_nan=False) + "\n"


def save(workload: Workload, path: Path, to: str = "penstock") -> None:
    """Writes the workload, whole or not at all; a file that is there is replaced."""
    text = text_of(workload, to)
    draft = path.with_name(f".{path.name}.partial")
    try:
        draft.write_text(text)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise PenstockError(f"{path} cannot be written: {error.strerror or error}") from error
