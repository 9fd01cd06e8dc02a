"""A directory to be measured by a command of penstock, and whether it is left as it was."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.host.journal.journal import Journal
from tests.integration.known_host import with_known_host


def prepared(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A directory to be measured, and the environment of a state of its own."""
    (tmp_path / "device").mkdir()
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(with_known_host(tmp_path / "state")),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
    }
    environment.pop("PENSTOCK_ARCHIVE", None)
    return tmp_path / "device", environment


def clean(device: Path) -> bool:
    """Whether nothing of ours is left in the directory and in the journal."""
    journal = Journal(device.parent / "state" / "journal.jsonl")
    return not list(device.iterdir()) and not journal.open_entries()
