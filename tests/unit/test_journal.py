"""The journal: torn lines, concurrent writers, hand-over, and the entries that undo reverts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.processes.daemon import Daemon
from penstock.host.processes.processes import Identity, boot_id

#: starts a daemon as commands do and dies while writing its settings
DIES_IN_A_DRAFT = """
import os, sys
from penstock.host.journal.journal import Journal
from penstock.state import runtime_dir
from penstock.writing import atomic_file
entry = Journal(sys.argv[1]).plan("process", "penstock-nodes")
with atomic_file(runtime_dir() / f"nodes-{entry.token}.json"):
    os._exit(9)
"""


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


def rewrite_owner(journal: Journal, **changes: object) -> None:
    """Assign every planned entry to another owner."""
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    for line in lines:
        if line["event"] == "plan":
            line.update(changes)
    journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_entries_are_open_until_undone(journal: Journal) -> None:
    first = journal.plan("directory", "/a", run="r001", new={"x": 1})
    second = journal.plan("mount", "/b", token="t0")
    journal.done(first, inode=7)
    entries = journal.open_entries()
    assert [e.id for e in entries] == [first.id, second.id]
    assert entries[0].completed
    assert entries[0].facts == {"inode": 7}
    assert entries[0].new == {"x": 1}
    assert not entries[1].completed
    assert entries[1].token == "t0"
    assert entries[1].owner == Identity.own()
    journal.undone(first)
    assert [e.id for e in journal.open_entries()] == [second.id]


def test_torn_last_line_is_ignored(journal: Journal) -> None:
    first = journal.plan("directory", "/a")
    with open(journal.path, "ab") as file:
        file.write(b'{"event":"plan","id":"torn","kind":"mou')
    assert [e.id for e in journal.open_entries()] == [first.id]
    second = journal.plan("directory", "/b")
    assert [e.id for e in journal.open_entries()] == [first.id, second.id]


def test_the_plan_is_on_disk_before_the_change(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("synced"), fsync(fd))[1])
    with journal.change("directory", "/a") as entry:
        order.append("changed")
        assert json.loads(journal.path.read_text().splitlines()[-1])["id"] == entry.id
    assert order == ["synced", "changed"]
    assert journal.open_entries()[0].completed


def test_concurrent_writers_lose_no_entries(journal: Journal) -> None:
    program = (
        "import sys; from penstock.host.journal.journal import Journal\n"
        "j = Journal(sys.argv[1])\n"
        "for n in range(20):\n"
        "    e = j.plan('directory', f'/{sys.argv[2]}/{n}'); j.done(e)\n"
        "    if n % 2: j.undone(e)\n"
    )
    argv = [sys.executable, "-c", program, str(journal.path)]
    children = [subprocess.Popen([*argv, name]) for name in "abcd"]
    assert [c.wait() for c in children] == [0] * 4
    targets = sorted(e.target for e in journal.open_entries())
    assert targets == sorted(f"/{c}/{n}" for c in "abcd" for n in range(0, 20, 2))


def test_journal_without_open_entries_is_empty(journal: Journal) -> None:
    entry = journal.plan("directory", "/nonexistent/x")
    assert [u.outcome for u in undo(journal, own=True)] == ["gone"]
    assert journal.path.read_bytes() == b""
    assert entry.target == "/nonexistent/x"


def test_only_marked_directories_are_removed(journal: Journal, tmp_path: Path) -> None:
    marked = make_directory(tmp_path / "ours", journal)
    (tmp_path / "ours" / "inside").write_text("x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "keep").write_text("x")
    journal.done(journal.plan("directory", tmp_path / "foreign"))
    outcomes = {u.target: u.outcome for u in undo(journal, own=True)}
    assert outcomes == {marked.target: "undone", str(tmp_path / "foreign"): "left"}
    assert (tmp_path / "foreign" / "keep").exists()
    assert not (tmp_path / "ours").exists()


def test_existing_directory_is_refused(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(PenstockError, match="exists already"):
        make_directory(tmp_path / "there", journal)
    assert journal.open_entries() == []


def test_undo_reverts_only_entries_of_dead_owners(journal: Journal, tmp_path: Path) -> None:
    make_directory(tmp_path / "d", journal)
    assert undo(journal) == []
    assert (tmp_path / "d").exists()
    # the same pid, started at another time: a reused pid is not the owner
    rewrite_owner(journal, owner_start=1)
    assert [u.outcome for u in undo(journal)] == ["undone"]
    assert not (tmp_path / "d").exists()


def test_after_a_reboot_only_persistent_changes_are_undone(
    journal: Journal, tmp_path: Path
) -> None:
    make_directory(tmp_path / "d", journal)
    (tmp_path / "setting").write_text("ours")
    journal.done(journal.plan("setting", tmp_path / "setting", old="old", new="ours"))
    journal.plan("mount", tmp_path / "m")
    rewrite_owner(journal, boot_id="another boot")
    assert boot_id() != "another boot"
    outcomes = {u.kind: u.outcome for u in undo(journal)}
    assert outcomes == {"directory": "undone", "setting": "gone", "mount": "gone"}
    assert (tmp_path / "setting").read_text() == "ours"


def test_a_file_is_recognised_by_inode_or_name(journal: Journal, tmp_path: Path) -> None:
    for name in ("mine", "replaced"):
        (tmp_path / name).write_text("x")
        status = (tmp_path / name).stat()
        entry = journal.plan("file", tmp_path / name)
        journal.done(entry, dev=status.st_dev, ino=status.st_ino)
    replacement = tmp_path / "other"
    replacement.write_text("somebody's")
    replacement.replace(tmp_path / "replaced")
    outcomes = {Path(u.target).name: u.outcome for u in undo(journal, own=True)}
    assert outcomes == {"mine": "undone", "replaced": "left"}
    assert (tmp_path / "replaced").read_text() == "somebody's"


def test_change_handed_to_a_daemon_stays_while_it_runs(journal: Journal, tmp_path: Path) -> None:
    entry = make_directory(tmp_path / "d", journal)
    daemon = subprocess.Popen(["sleep", "60"])
    journal.hand_over(entry, daemon.pid)
    assert undo(journal, own=True) == []
    daemon.kill()
    daemon.wait()
    assert [u.outcome for u in undo(journal)] == ["undone"]


def test_remove_closes_the_entry(journal: Journal, tmp_path: Path) -> None:
    remove_directory(make_directory(tmp_path / "d", journal), journal)
    assert journal.open_entries() == []
    assert not (tmp_path / "d").exists()


def test_draft_of_a_dead_process_is_removed(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    result = subprocess.run([sys.executable, "-c", DIES_IN_A_DRAFT, str(journal.path)])
    assert result.returncode == 9
    assert len(list((tmp_path / "run").iterdir())) == 1
    assert [u.kind for u in undo(journal)] == ["process"]
    assert list((tmp_path / "run").iterdir()) == []


def test_ending_supervisor_has_no_cluster(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # its socket is closed
    gone = Daemon.gone

    def gone_after_its_input(daemon: Daemon, _wait_s: float) -> bool:
        assert daemon.alive
        assert ending.stdin is not None
        ending.stdin.close()
        return gone(daemon, 60.0)

    monkeypatch.setattr(Daemon, "gone", gone_after_its_input)
    identity = Identity.of(ending.pid)
    assert identity is not None
    facts = {"pid": identity.pid, "start": identity.start, "socket": str(tmp_path / "none")}
    journal.plan("cluster", "gt", new=facts)
    assert [u.outcome for u in undo(journal, own=True)] == ["gone"]
    assert ending.wait(timeout=60) == 0
    assert journal.open_entries() == []
