"""An observer: number of changes of the host's load average."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.host.journal.journal import Journal
from penstock.observe.observer import Seen, Watched


class ToyObserver:
    """Read one file at the start and at the end of a run. Settings: `file`."""

    def __init__(self, journal: Journal, home: Path, settings: Mapping[str, Any]) -> None:
        self._file = Path(settings.get("file", "/proc/loadavg"))
        self._begin = ""

    def start(self, watched: Watched, out_dir: Path) -> None:
        """Read the file."""
        self._begin = self._file.read_text()

    def finish(self, bundle: Bundle, run: tuple[int, int] | None) -> Seen:
        """Read the file again; return both texts."""
        table = pa.table({"begin": [self._begin], "end": [self._file.read_text()]})
        return Seen({"toys": table}, {"observer": "toy"})

    def stop(self) -> None:
        """Do nothing: the observer starts no process."""
