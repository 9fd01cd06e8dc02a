"""Tasks of a worker: execute one run of a study on its host and return the bundle."""

from __future__ import annotations

import io
import shutil
import tarfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.campaign.conductor import Attempt, Outcome, make_one
from penstock.campaign.executor import HostExecutor
from penstock.design.planned import PlannedRun
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.announce import Announcement
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.state import state_dir
from penstock.study.load import read_study
from penstock.study.resolve import resolved_treatments


@dataclass(frozen=True)
class Assignment:
    """A study for a host: the text of its file, the directory of its files, and the runs that may follow."""

    study_id: str
    text: str
    base_dir: str
    host: str
    runs: tuple[PlannedRun, ...]


_AT_WORK: dict[str, _HostAtWork] = {}
_ONE_AT_A_TIME = threading.Lock()


class _HostAtWork:
    """The executor of one study on this host; it persists between runs."""

    def __init__(self, assignment: Assignment) -> None:
        base = Path(assignment.base_dir)
        if not base.is_dir():
            raise BadInput(
                f"{assignment.host}: no directory {base}; the study's files must be there"
            )
        path = base / f"{assignment.study_id}.study.yaml"
        study = read_study(assignment.text.encode(), path, base_dir=base)
        self.place = state_dir() / "hosts" / f"{assignment.study_id}-{assignment.host}"
        journal = Journal()
        undo(journal)
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "runs").mkdir(parents=True)
        (self.place / "work").mkdir()
        self.messages: list[str] = []
        self.live = Announcement(
            "study", study.name, study_id=assignment.study_id, host=assignment.host
        )
        self.executor = HostExecutor(
            study,
            assignment.study_id,
            self.place,
            self.place / "work",
            journal,
            resolved_treatments(study, assignment.runs),
            list(assignment.runs),
            [],
            self.messages.append,
            host_name=assignment.host,
            announcement=self.live,
        )
        self.executor.open()

    def close(self) -> None:
        self.live.close()
        self.executor.close()
        shutil.rmtree(self.place, ignore_errors=True)


def make_run(
    assignment: Assignment, run_id: str, number: int
) -> tuple[dict[str, Any], bytes, list[str]]:
    """Execute attempt `number` of a run on this host; return its outcome, its bundle (tar) and messages.

    Raises the PenstockError of the executor.
    """
    with _ONE_AT_A_TIME:
        if assignment.study_id not in _AT_WORK:
            _AT_WORK[assignment.study_id] = _HostAtWork(assignment)
        at_work = _AT_WORK[assignment.study_id]
        run = next(r for r in assignment.runs if r.run_id == run_id)
        attempt = Attempt(run, number)
        now = {"run_id": run_id, "attempt": number, "levels": run.levels}
        now["began_utc_ns"] = time.time_ns()

        def begins(phase: str) -> None:
            facts = {key: now[key] for key in ("run_id", "attempt", "levels")}
            at_work.live.note("phase", **facts, phase=phase)
            at_work.live.say(runs=[{**now, "phase": phase}])

        attempt.on_phase = begins
        outcome: Outcome = make_one(at_work.executor, attempt)
        at_work.live.say(runs=[])
        path = at_work.place / "runs" / run_id
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(path, arcname=run_id)
        shutil.rmtree(path)
        messages, at_work.messages[:] = list(at_work.messages), []
        return asdict(outcome), packed.getvalue(), messages


def end_study(study_id: str) -> None:
    """Restore this host after the study."""
    with _ONE_AT_A_TIME:
        at_work = _AT_WORK.pop(study_id, None)
        if at_work is not None:
            at_work.close()


def unpack(packed: bytes, runs: Path, run_id: str) -> None:
    """Add a bundle to the runs of the campaign. Raises PenstockError if it has files of anything else."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar.getmembers():
            if member.name.split("/")[0] != run_id or not (member.isdir() or member.isfile()):
                raise PenstockError(f"the archive of {run_id} contains {member.name!r}")
        tar.extractall(runs, filter="data")
