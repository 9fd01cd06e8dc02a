"""A directory to be measured by commands of penstock, and a check that they remove their files."""

from __future__ import annotations

from pathlib import Path

from penstock.host.journal.journal import Journal
from tests.integration.known_host import with_known_host
from tests.support.environment import environment_in


def prepare_directory(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Create a directory to be measured and a separate state; return the directory and the environment."""
    (tmp_path / "device").mkdir()
    with_known_host(tmp_path / "state")
    environment = environment_in(tmp_path)
    return tmp_path / "device", environment


def is_clean(device: Path) -> bool:
    """True if the directory has no files and the journal no open entries."""
    journal = Journal(device.parent / "state" / "journal.jsonl")
    return not list(device.iterdir()) and not journal.open_entries()
