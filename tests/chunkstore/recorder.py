"""Records of the requests of a process, written at its end; disabled without a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Recorder:
    """Store rows in memory: a request costs one append to a list."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: list[dict[str, Any]] = []
        self.on = path is not None

    def record(self, **row: Any) -> None:
        if self.on:
            self.rows.append(row)

    def write(self) -> None:
        if self._path is not None:
            self._path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
