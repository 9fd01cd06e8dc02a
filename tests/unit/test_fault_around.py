"""Single-page faults during a run: the setting is changed, restored, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.storage import fault_around
from penstock.host.storage.fault_around import single_page_faults


@pytest.fixture
def debugfs(tmp_path: Path) -> Path:
    (tmp_path / "debugfs").mkdir()
    (tmp_path / "debugfs" / "fault_around_bytes").write_text("65536\n")
    return tmp_path / "debugfs"


def test_setting_is_changed_and_restored(debugfs: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    setting = debugfs / "fault_around_bytes"
    with single_page_faults(journal, debugfs):
        assert setting.read_text() == "4096"
        assert [entry.old for entry in journal.open_entries()] == ["65536"]
    assert setting.read_text().strip() == "65536"
    assert journal.open_entries() == []


def test_setting_is_restored_after_a_failure(debugfs: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with pytest.raises(ValueError, match="the run failed"), single_page_faults(journal, debugfs):
        raise ValueError("the run failed")
    assert (debugfs / "fault_around_bytes").read_text().strip() == "65536"


def test_undo_restores_the_setting_of_a_killed_run(debugfs: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    setting = debugfs / "fault_around_bytes"
    entry = journal.plan("setting", setting, old="65536", new="4096")
    setting.write_text("4096")
    journal.done(entry)
    undo(journal, own=True)
    assert setting.read_text().strip() == "65536"


def test_refusal_names_the_lockdown(
    debugfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, text: str) -> int:
        raise PermissionError(1, "Operation not permitted")

    journal = Journal(tmp_path / "journal")
    monkeypatch.setattr(fault_around.Path, "write_text", refuse)
    with (
        pytest.raises(PenstockError, match=r"mmap-exact.*locked down"),
        single_page_faults(journal, debugfs),
    ):
        pass
    monkeypatch.undo()
    assert journal.open_entries() == []
    assert (debugfs / "fault_around_bytes").read_text() == "65536\n"
