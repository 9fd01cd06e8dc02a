"""Files of directories that programs change while a test reads them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def files_below(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Regular files below a directory with their status, without those that a program removed meanwhile."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield path, status
