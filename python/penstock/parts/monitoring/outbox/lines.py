"""Files of JSON lines; a kill damages the last line at most."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.state import closed


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Complete lines of a file; a partial last one was not acknowledged."""
    content = path.read_bytes()
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line and sync it; if there is no space, nothing is written."""
    handle = closed(str(path), os.O_RDWR | os.O_CREAT)
    try:
        size = os.fstat(handle).st_size
        tail = os.pread(handle, size, 0)
        at = tail.rfind(b"\n") + 1  # overwrite a partial line
        text = json.dumps(record, separators=(",", ":")).encode() + b"\n"
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
