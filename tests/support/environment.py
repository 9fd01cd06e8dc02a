"""Environment of commands under test."""

from __future__ import annotations

import os
from pathlib import Path


def environment_in(where: Path) -> dict[str, str]:
    """The current environment with state and runtime directories below `where`, and its own archive."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PENSTOCK_ARCHIVE"},
        "PENSTOCK_STATE": str(where / "state"),
        "PENSTOCK_RUNTIME": str(where / "run"),
    }
