"""The journal: what survives a torn line, concurrent writers, a hand-over; whose changes are taken back."""

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
from penstock.host.processes.processes import Identity, boot_id

#: begins to start a daemon, as commands do, and dies in the middle of writing its settings
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
    """Makes every planned entry somebody else's."""
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    for line in lines:
        if line["event"] == "plan":
            line.update(changes)
    journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_is_planned_is_open_until_undone(journal: Journal) -> None:
    first = journal.plan("directory", "/a", run="r001", new={"x": 1})
    second = journal.plan("mount", "/b", token="t0")
    journal.done(first, inode=7)
    found = journal.open_entries()
    assert [e.id for e in found] == [first.id, second.id]
    assert found[0].completed
    assert found[0].facts == {"inode": 7}
    assert found[0].new == {"x": 1}
    assert not found[1].completed
    assert found[1].token == "t0"
    assert found[1].owner == Identity.own()
    journal.undone(first)
    assert [e.id for e in journal.open_entries()] == [second.id]


def test_a_torn_last_line_is_ignored_and_does_not_swallow_the_next(journal: Journal) -> None:
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
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("synced"), real(fd))[1])
    with journal.change("directory", "/a") as entry:
        order.append("changed")
        assert json.loads(journal.path.read_text().splitlines()[-1])["id"] == entry.id
    assert order == ["synced", "changed"]
    assert journal.open_entries()[0].completed


def test_concurrent_writers_lose_nothing(journal: Journal) -> None:
    program = (
        "import sys; from penstock.host.journal.journal import Journal\n"
        "j = Journal(sys.argv[1])\n"
        "for n in range(20):\n"
        "    e = j.plan('directory', f'/{sys.argv[2]}/{n}'); j.done(e)\n"
        "    if n % 2: j.undone(e)\n"
    )
    words = [sys.executable, "-c", program, str(journal.path)]
    children = [subprocess.Popen([*words, name]) for name in "abcd"]
    assert [c.wait() for c in children] == [0] * 4
    targets = sorted(e.target for e in journal.open_entries())
    assert targets == sorted(f"/{c}/{n}" for c in "abcd" for n in range(0, 20, 2))


def test_nothing_open_is_an_empty_file(journal: Journal) -> None:
    entry = journal.plan("directory", "/nonexistent/x")
    assert [u.outcome for u in undo(journal, own=True)] == ["gone"]
    assert journal.path.read_bytes() == b""
    assert entry.target == "/nonexistent/x"


def test_a_directory_is_removed_by_its_mark_only(journal: Journal, tmp_path: Path) -> None:
    ours = make_directory(tmp_path / "ours", journal)
    (tmp_path / "ours" / "inside").write_text("x")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "keep").write_text("x")
    journal.done(journal.plan("directory", tmp_path / "foreign"))
    outcomes = {u.target: u.outcome for u in undo(journal, own=True)}
    assert outcomes == {ours.target: "undone", str(tmp_path / "foreign"): "left"}
    assert (tmp_path / "foreign" / "keep").exists()
    assert not (tmp_path / "ours").exists()


def test_what_is_there_already_is_not_taken_over(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(PenstockError, match="exists already"):
        make_directory(tmp_path / "there", journal)
    assert journal.open_entries() == []


def test_living_owners_are_left_alone_and_dead_ones_are_not(
    journal: Journal, tmp_path: Path
) -> None:
    make_directory(tmp_path / "d", journal)
    assert undo(journal) == []
    assert (tmp_path / "d").exists()
    # the same pid, started at another time: a reused pid is not the owner
    rewrite_owner(journal, owner_start=1)
    assert [u.outcome for u in undo(journal)] == ["undone"]
    assert not (tmp_path / "d").exists()


def test_after_a_reboot_only_what_outlives_it_is_taken_back(
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
    other = tmp_path / "other"
    other.write_text("somebody's")
    other.replace(tmp_path / "replaced")
    outcomes = {Path(u.target).name: u.outcome for u in undo(journal, own=True)}
    assert outcomes == {"mine": "undone", "replaced": "left"}
    assert (tmp_path / "replaced").read_text() == "somebody's"


def test_a_change_handed_to_a_daemon_stays_while_it_lives(journal: Journal, tmp_path: Path) -> None:
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


def test_a_draft_in_the_runtime_directory_goes_with_its_process(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    died = subprocess.run([sys.executable, "-c", DIES_IN_A_DRAFT, str(journal.path)])
    assert died.returncode == 9
    assert len(list((tmp_path / "run").iterdir())) == 1
    assert [u.kind for u in undo(journal)] == ["process"]
    assert list((tmp_path / "run").iterdir()) == []


def test_a_supervisor_that_is_just_ending_has_no_cluster(journal: Journal, tmp_path: Path) -> None:
    ending = subprocess.Popen(["sleep", "1"])  # its socket is closed already
    identity = Identity.of(ending.pid)
    assert identity is not None
    about = {"pid": identity.pid, "start": identity.start, "socket": str(tmp_path / "none")}
    journal.plan("cluster", "gt", new=about)
    assert [u.outcome for u in undo(journal, own=True)] == ["gone"]
    assert ending.wait() == 0
    assert journal.open_entries() == []
