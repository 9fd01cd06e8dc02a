"""The `undo` command of a study: journalled before each change, run by the recovery of the host."""

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

#: applies "changed" as a hook would, then waits to be killed; $1 journal, $2 directory
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
    """Run commands without a control group, so that the host stays unchanged."""
    nothing = cgroup.Hierarchies()
    monkeypatch.setattr(cgroup, "hierarchies", lambda: nothing)
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    (tmp_path / "state").mkdir(mode=0o700)
    return Journal(tmp_path / "state" / "journal.jsonl")


def command(place: Path, line: str, **changed: object) -> Command:
    defaults: dict[str, object] = {"env": {}, "cwd": str(place), "user": None, "timeout_s": 20.0}
    return Command(line, **{**defaults, **changed})  # type: ignore[arg-type]


def test_changes_of_a_killed_campaign_are_undone_by_its_command(
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
    # undone with the levels that were set last, and no others
    assert (tmp_path / "right").read_text() == "put right two\n"
    assert sorted(p.name for p in tmp_path.glob("*o*")) == ["one"]
    (tmp_path / "right").unlink()
    assert undo(journal) == []
    assert not (tmp_path / "right").exists()
    assert journal.path.read_bytes() == b""


def test_a_command_outlives_the_boot_and_its_directory(journal: Journal, tmp_path: Path) -> None:
    missing = tmp_path / "work"
    plan_command(journal, "s", command(missing, f"pwd > {tmp_path}/right"))
    line = json.loads(journal.path.read_text())
    journal.path.write_text(json.dumps(line | {"boot_id": "another boot"}) + "\n")
    assert [u.outcome for u in undo(journal)] == ["undone"]
    directory = Path((tmp_path / "right").read_text().strip())
    assert directory.parent == tmp_path / "run"
    assert not directory.exists()


def test_a_failed_command_stays_and_is_repeated_or_forgotten(
    journal: Journal, tmp_path: Path
) -> None:
    plan_command(journal, "s", command(tmp_path, "test -e now || { echo not yet >&2; exit 3; }"))
    (failed,) = undo(journal, own=True)
    assert (failed.outcome, "ended with status 3: not yet" in failed.note) == ("failed", True)
    with pytest.raises(BadInput, match="of a dead command"):  # its owner is this live process
        forget(journal, failed.id)
    (tmp_path / "now").touch()
    assert [u.outcome for u in undo(journal, own=True)] == ["undone"]
    plan_command(journal, "s", command(tmp_path, "false"))
    text = journal.path.read_text()
    journal.path.write_text(text.replace(f'"owner_pid":{os.getpid()}', '"owner_pid":0'))
    (failed,) = undo(journal)
    assert forget(journal, failed.id).outcome == "left"
    assert undo(journal) == []


def test_a_command_is_run_even_on_a_full_disk(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_command(journal, "s", command(tmp_path, "touch right"))

    def full(*_: object, **__: object) -> None:
        raise JournalFailure("no space left")

    monkeypatch.setattr(Journal, "plan", full)
    assert [u.outcome for u in undo(journal, own=True)] == ["undone"]
    assert (tmp_path / "right").exists()


def test_a_command_beyond_its_timeout_is_killed(journal: Journal, tmp_path: Path) -> None:
    plan_command(journal, "s", command(tmp_path, "sleep 600", timeout_s=0.2))
    (failed,) = undo(journal, own=True)
    assert "took longer than 0.2 s" in failed.note


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_no_command_is_run_from_a_journal_that_others_may_write(
    journal: Journal, tmp_path: Path, kind: str
) -> None:
    undo_command = command(tmp_path, "touch ran")
    plan_command(journal, "s", undo_command)
    if kind == "link":
        journal.path.rename(tmp_path / "theirs")
        journal.path.symlink_to(tmp_path / "theirs")
        with pytest.raises(JournalFailure):
            undo(journal, own=True)
    else:
        (journal.path if kind == "file" else journal.path.parent).chmod(0o777)
        (failed,) = undo(journal, own=True)
        assert failed.outcome == "failed"
        assert "no user other than" in failed.note
        with pytest.raises(PenstockError, match="no user other than"):
            plan_command(journal, "s", undo_command)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "value", [None, [], {"line": "true"}, {"line": 1, "env": {}, "cwd": "/", "user": None, "timeout_s": 1},
             {"line": "true", "env": {"A": 1}, "cwd": "/", "user": None, "timeout_s": 1},
             {"line": "true", "env": {}, "cwd": "/", "user": None, "timeout_s": 0}],
)  # fmt: skip
def test_an_invalid_command_is_not_run(journal: Journal, value: object) -> None:
    journal.plan("command", "s", new=value)
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
    assert hook.pay() == ""  # no hook was applied
    for resolved in treatments.values():
        hook.owe(resolved)
        (owed,) = journal.open_entries()
    assert owed.target == "hooks.undo of hooked"
    last = list(treatments.values())[-1].command.split()[-1]
    assert hook.pay() == ""
    assert hook.pay() == ""
    # a variable that names a disk is omitted, because the disk may be gone
    assert (tmp_path / "said").read_text() == f"{last} {last} none\n"
    assert journal.open_entries() == []
