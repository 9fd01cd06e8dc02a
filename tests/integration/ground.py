"""A directory to be measured by a command of penstock, and whether it is left as it was."""

from __future__ import annotations

from pathlib import Path

from penstock.host.journal.journal import Journal
from tests.integration.known_host import with_known_host
from tests.support.environment import environment_in


def prepared(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A directory to be measured, and the environment of a state of its own."""
    (tmp_path / "device").mkdir()
    with_known_host(tmp_path / "state")
    environment = environment_in(tmp_path)
    return tmp_path / "device", environment


def clean(device: Path) -> bool:
    """Whether nothing of ours is left in the directory and in the journal."""
    journal = Journal(device.parent / "state" / "journal.jsonl")
    return not list(device.iterdir()) and not journal.open_entries()
