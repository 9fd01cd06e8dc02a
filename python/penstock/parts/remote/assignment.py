"""What a worker is asked to do: make one run of a study on its host and give the bundle."""

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
from penstock.host.probe.clocks import clock_row
from penstock.state import state_dir
from penstock.study.load import read_study
from penstock.study.resolve import resolved_treatments


@dataclass(frozen=True)
class Assignment:
    """A study as a host needs it: its text as it is run, where its files lie, and which runs may come."""

    study_id: str
    text: str
    base_dir: str
    host: str
    runs: tuple[PlannedRun, ...]


_AT_WORK: dict[str, _HostAtWork] = {}
_ONE_AT_A_TIME = threading.Lock()


class _HostAtWork:
    """The executor of one study on this host, kept between its runs."""

    def __init__(self, said: Assignment) -> None:
        base = Path(said.base_dir)
        if not base.is_dir():
            raise BadInput(f"{said.host}: no directory {base}; the study's files must be there")
        path = base / f"{said.study_id}.study.yaml"
        study = read_study(said.text.encode(), path, base_dir=base)
        self.place = state_dir() / "hosts" / f"{said.study_id}-{said.host}"
        journal = Journal()
        undo(journal)
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "runs").mkdir(parents=True)
        (self.place / "work").mkdir()
        self.said: list[str] = []
        self.live = Announcement("study", study.name, study_id=said.study_id, host=said.host)
        self.executor = HostExecutor(
            study,
            said.study_id,
            self.place,
            self.place / "work",
            journal,
            resolved_treatments(study, said.runs),
            list(said.runs),
            [],
            self.said.append,
            host_name=said.host,
            said=self.live,
        )
        self.executor.open()

    def close(self) -> None:
        self.live.close()
        self.executor.close()
        shutil.rmtree(self.place, ignore_errors=True)


def make_run(said: Assignment, run_id: str, number: int) -> tuple[dict[str, Any], bytes, list[str]]:
    """Makes attempt `number` of a run here; gives its outcome, its bundle (tar) and what was said.

    Raises PenstockError as the executor does.
    """
    with _ONE_AT_A_TIME:
        if said.study_id not in _AT_WORK:
            _AT_WORK[said.study_id] = _HostAtWork(said)
        at_work = _AT_WORK[said.study_id]
        run = next(r for r in said.runs if r.run_id == run_id)
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
        words, at_work.said[:] = list(at_work.said), []
        return asdict(outcome), packed.getvalue(), words


def end_study(study_id: str) -> None:
    """Puts this host back."""
    with _ONE_AT_A_TIME:
        at_work = _AT_WORK.pop(study_id, None)
        if at_work is not None:
            at_work.close()


def read_clock() -> dict[str, int | str]:
    """The clocks of this host, now."""
    return clock_row("host")


def unpack(packed: bytes, runs: Path, run_id: str) -> None:
    """Puts a bundle among the campaign's own. Raises PenstockError if it holds anything else."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar.getmembers():
            if member.name.split("/")[0] != run_id or not (member.isdir() or member.isfile()):
                raise PenstockError(f"a bundle of {run_id} holds {member.name!r}")
        tar.extractall(runs, filter="data")
