"""Lines of JSON that a kill tears at most the last of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.state import closed


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a file; one that a kill tore in its middle was not acknowledged."""
    content = path.read_bytes()
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def append_line(path: Path, said: Mapping[str, Any]) -> None:
    """One line of JSON, on the disk when this returns; nothing of it where there is no room."""
    handle = closed(str(path), os.O_RDWR | os.O_CREAT)
    try:
        size = os.fstat(handle).st_size
        tail = os.pread(handle, size, 0)
        at = tail.rfind(b"\n") + 1  # what a kill tore is written over
        text = json.dumps(said, separators=(",", ":")).encode() + b"\n"
        try:
            if os.pwrite(handle, text, at) != len(text):
                raise OSError(28, os.strerror(28), str(path))
            os.ftruncate(handle, at + len(text))
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, at)
            raise
    finally:
        os.close(handle)
