"""A study's own `undo`: journalled before anything it would put right, run by whoever puts the host back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.campaign.preparation.undo_hook import UndoHook
from penstock.design.plan import make_plan
from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups import cgroup
from penstock.host.journal.journal import Journal, JournalFailure
from penstock.host.journal.undo import forget, undo
from penstock.host.processes.command import Command, plan_command
from penstock.study.load import load_study
from penstock.study.resolve import resolved_treatments

#: puts up "changed" as a hook would, then waits to be killed; $1 journal, $2 place
CHILD = """
import sys, time
from pathlib import Path
from penstock.host.processes.command import Command, plan_command
from penstock.host.journal.journal import Journal
place = Path(sys.argv[2])
entry = None
for level in ("one", "two"):
    told = Command(f"rm {level}; echo put right $WORD > right", {"WORD": level}, str(place), None, 20.0)
    entry = plan_command(Journal(sys.argv[1]), "hooks.undo of s", told, entry)
    (place / level).touch()
print("changed", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def no_control_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands run without a control group here: nothing of this host is changed."""
    nothing = cgroup.Hierarchies()
    monkeypatch.setattr(cgroup, "hierarchies", lambda: nothing)
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    (tmp_path / "state").mkdir(mode=0o700)
    return Journal(tmp_path / "state" / "journal.jsonl")


def command(place: Path, line: str, **changed: object) -> Command:
    said: dict[str, object] = {"env": {}, "cwd": str(place), "user": None, "timeout_s": 20.0}
    return Command(line, **{**said, **changed})  # type: ignore[arg-type]


def test_what_a_killed_campaign_changed_is_put_right_by_its_own_command(
    journal: Journal, tmp_path: Path
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(journal.path), str(tmp_path)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"changed\n"
    assert undo(journal) == []  # its owner lives
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert [(u.kind, u.outcome) for u in undo(journal)] == [("command", "undone")]
    # of the levels that were set last, and of no others
    assert (tmp_path / "right").read_text() == "put right two\n"
    assert sorted(p.name for p in tmp_path.glob("*o*")) == ["one"]
    (tmp_path / "right").unlink()
    assert undo(journal) == []
    assert not (tmp_path / "right").exists()
    assert journal.path.read_bytes() == b""


def test_a_command_outlives_the_boot_and_its_directory(journal: Journal, tmp_path: Path) -> None:
    gone = tmp_path / "work"
    plan_command(journal, "s", command(gone, f"pwd > {tmp_path}/right"))
    line = json.loads(journal.path.read_text())
    journal.path.write_text(json.dumps(line | {"boot_id": "another boot"}) + "\n")
    assert [u.outcome for u in undo(journal)] == ["undone"]
    was = Path((tmp_path / "right").read_text().strip())
    assert was.parent == tmp_path / "run"
    assert not was.exists()


def test_one_that_fails_stays_and_is_tried_again_or_given_up(
    journal: Journal, tmp_path: Path
) -> None:
    plan_command(journal, "s", command(tmp_path, "test -e now || { echo not yet >&2; exit 3; }"))
    (failed,) = undo(journal, own=True)
    assert (failed.outcome, "ended with status 3: not yet" in failed.note) == ("failed", True)
    with pytest.raises(BadInput, match="of a dead command"):  # it is ours, and we live
        forget(journal, failed.id)
    (tmp_path / "now").touch()
    assert [u.outcome for u in undo(journal, own=True)] == ["undone"]
    plan_command(journal, "s", command(tmp_path, "false"))
    text = journal.path.read_text()
    journal.path.write_text(text.replace(f'"owner_pid":{os.getpid()}', '"owner_pid":0'))
    (failed,) = undo(journal)
    assert forget(journal, failed.id).outcome == "left"
    assert undo(journal) == []


def test_on_a_full_disk_it_is_run_all_the_same(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_command(journal, "s", command(tmp_path, "touch right"))

    def full(*_: object, **__: object) -> None:
        raise JournalFailure("no space left")

    monkeypatch.setattr(Journal, "plan", full)
    assert [u.outcome for u in undo(journal, own=True)] == ["undone"]
    assert (tmp_path / "right").exists()


def test_one_that_does_not_end_is_ended(journal: Journal, tmp_path: Path) -> None:
    plan_command(journal, "s", command(tmp_path, "sleep 600", timeout_s=0.2))
    (failed,) = undo(journal, own=True)
    assert "took longer than 0.2 s" in failed.note


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_no_command_is_run_out_of_a_journal_that_others_may_write_to(
    journal: Journal, tmp_path: Path, what: str
) -> None:
    told = command(tmp_path, "touch ran")
    plan_command(journal, "s", told)
    if what == "link":
        journal.path.rename(tmp_path / "theirs")
        journal.path.symlink_to(tmp_path / "theirs")
        with pytest.raises(JournalFailure):
            undo(journal, own=True)
    else:
        (journal.path if what == "file" else journal.path.parent).chmod(0o777)
        (failed,) = undo(journal, own=True)
        assert failed.outcome == "failed"
        assert "no user other than" in failed.note
        with pytest.raises(PenstockError, match="no user other than"):
            plan_command(journal, "s", told)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "said", [None, [], {"line": "true"}, {"line": 1, "env": {}, "cwd": "/", "user": None, "timeout_s": 1},
             {"line": "true", "env": {"A": 1}, "cwd": "/", "user": None, "timeout_s": 1},
             {"line": "true", "env": {}, "cwd": "/", "user": None, "timeout_s": 0}],
)  # fmt: skip
def test_what_is_no_command_is_not_run(journal: Journal, said: object) -> None:
    journal.plan("command", "s", new=said)
    (failed,) = undo(journal, own=True)
    assert (failed.outcome, "no command in the journal" in failed.note) == ("failed", True)


STUDY = """
penstock: 1
name: hooked
question: Is it put right?
factors:
  word: {levels: [one, two]}
design: {kind: full, replicates: 1, seed: 3}
platform:
  nodes: [{name: node1, disks: [{name: data, profile: rate-20mib, size: 32MiB}]}]
workload:
  env: {WORD: "{word}", PLACE: "{data}"}
  hooks: {apply: "touch {word}", undo: "echo {word} $WORD ${{PLACE-none}} >> said"}
  command: cat {word}
responses:
  time: {from: wall_s, unit: s, better: lower}
"""


def test_the_levels_that_were_set_last_are_undone_once(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "hooked.study.yaml").write_text(STUDY)
    study = load_study(tmp_path / "hooked.study.yaml")
    treatments = resolved_treatments(study, make_plan(study).rows)
    hook = UndoHook(journal, study.name, tmp_path)
    assert hook.pay() == ""  # nothing was begun
    for resolved in treatments.values():
        hook.owe(resolved)
        (owed,) = journal.open_entries()
    assert owed.target == "hooks.undo of hooked"
    last = list(treatments.values())[-1].command.split()[-1]
    assert hook.pay() == ""
    assert hook.pay() == ""
    # a variable that names a disk is left out: the disk may be gone
    assert (tmp_path / "said").read_text() == f"{last} {last} none\n"
    assert journal.open_entries() == []
