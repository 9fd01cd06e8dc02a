"""A campaign: the remaining runs of a study, then the analysis of all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from penstock.analyse.fidelity.timeouts import time_out_warnings
from penstock.archive.bundle import Bundle, directory_bytes
from penstock.archive.catalogue import Catalogue, open_index
from penstock.archive.runs import attempts
from penstock.campaign.conductor import Outcome, PriorAttempts, conduct, once_more, still_to_make
from penstock.campaign.evidence.interrupted import interrupted_attempts
from penstock.campaign.executor import HostExecutor
from penstock.campaign.frozen import (
    Campaign,
    altered,
    as_run,
    campaign,
    freeze,
    read_campaign,
)
from penstock.campaign.limits import Used
from penstock.campaign.places import work_directory
from penstock.campaign.places.plain_directories import refuse_unusable
from penstock.campaign.preparation.disk_space import forecast
from penstock.campaign.preparation.prepared import PreparedData
from penstock.campaign.progress import RunProgress
from penstock.campaign.speed import (
    profiles_of,
    ruled_out_text,
    speeds_of,
    with_time_scales,
)
from penstock.design.additions.stages import Stage, bare, stage_from_json, with_stages
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, PlannedRun
from penstock.emulate.cluster.capacity import refuse_too_fast
from penstock.emulate.cluster.wire import to_json
from penstock.emulate.disks.measure_floor import host_floor
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.announce import Announcement
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.plugins import CONDUCTORS
from penstock.spec.guest import GuestSpec
from penstock.spec.study import Retry, Study
from penstock.state import state_dir
from penstock.study.resolve import ResolvedDisk, ResolvedRun, resolved_treatments
from penstock.study.unused import unused_disks
from penstock.text import listed

if TYPE_CHECKING:
    from penstock.campaign.analysis import Analysis


@dataclass
class CampaignResult:
    """Result of a campaign. `interrupted`: it was stopped and can be resumed; `failed`: the fault that
    stopped it, to be fixed before it is resumed; `limited`: the limit of the study that ended it.
    """

    out: Path
    study_id: str
    planned_runs: int
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False
    failed: str = ""
    limited: str = ""
    analysis: Analysis | None = None
    seconds: float = 0.0

    @property
    def valid_runs(self) -> int:
        """Number of runs that the analysis uses, earlier ones included."""
        return self.analysis.valid_runs if self.analysis is not None else 0

    @property
    def runs(self) -> int:
        """Number of runs with a bundle, earlier ones included."""
        return len(self.analysis.runs) if self.analysis is not None else 0

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        from penstock.campaign.analysis import headline

        analysis = self.analysis
        return {
            "study_id": self.study_id,
            "out": str(self.out),
            "state": "stopped" if self.runs < self.planned_runs else "finished",
            "stopped_because": self.failed or self.limited or None,
            "planned_runs": self.planned_runs,
            "runs": self.runs,
            "runs_made_now": len(self.outcomes),
            "valid_runs": self.valid_runs,
            "degraded_runs": analysis.degraded_runs if analysis else 0,
            "left_out": [
                {"run_id": r["run_id"], "state": r["state"], "reason": r["reason"]}
                for r in (analysis.runs.to_dict("records") if analysis is not None else [])
                if not r["valid"]
            ],
            "seconds": round(self.seconds, 3),
            "own_s_per_run": _mean([o.own_s for o in self.outcomes]),
            "answer": analysis.answer if analysis is not None else [],
            "effects": headline(analysis.effects) if analysis is not None else [],
            "findings": [
                {"code": f.code, "severity": f.severity, "statement": f.statement}
                for f in (analysis.findings if analysis is not None else [])
            ],
            "notes": analysis.notes if analysis is not None else [],
            "paths": {
                "report": str(analysis.report)
                if analysis is not None and analysis.report
                else None,
                **{
                    name: str(self.out / f"{name}.parquet")
                    for name in ("runs", "means", "effects", "fidelity", "predictions", "findings")
                    if (self.out / f"{name}.parquet").exists()
                },
            },
        }


class RunOptions(TypedDict, total=False):
    """Options of a campaign."""

    #: those of the loaded study
    overrides: Sequence[str]
    #: no progress on stderr
    quiet: bool
    #: continue after a workload that fails before its treatment has a finished run
    keep_going: bool
    #: write the page after the analysis; True
    report: bool


def run_loaded(
    study: Study,
    out: Path | None = None,
    *,
    resume: bool = False,
    full: bool = True,
    add: Stage | None = None,
    repeat: str = "",
    **options: Unpack[RunOptions],
) -> CampaignResult:
    """Make the remaining runs of a study, their tables, and if `full` the complete analysis.

    A resumed campaign makes missing runs, and repeats each run that the host disturbed; with `repeat`
    "degraded" also each degraded run, with `add` the runs of one more stage.

    `out` is by default `./NAME`. Raises BadInput for a study that cannot be run or a directory with other
    contents; PenstockError if the host refuses or the disk would become full. Unless `keep_going`, a workload
    that fails before its treatment has a finished run stops the campaign (`failed`), and a resumed one
    repeats that run. A KeyboardInterrupt or SIGTERM ends the current run; finished runs are stored, and the
    result is `interrupted`.
    """
    began = time.monotonic()
    keep_going = options.get("keep_going", False)
    out = (out or Path(study.name)).resolve()
    before = _look(out, study, resume)
    if study.hosts is not None:
        CONDUCTORS.load("hosts")  # fails early without the part
    journal = Journal()
    frozen = before.time_scales if before is not None else None
    study, notes = with_time_scales(study, frozen, lambda: host_floor(journal))
    stages = [stage_from_json(bare(s)) for s in before.stages] if before is not None else []
    plan = with_stages(make_plan(study), study, [*stages, *([add] if add is not None else [])])
    treatments = resolved_treatments(study, plan.rows)
    requested = campaign(
        study, plan, _described(study, treatments), list(options.get("overrides", ()))
    )
    with _locked(out):
        bundles = attempts(out)
        prior = _prior_attempts(bundles, study.retry)
        stale: dict[str, int] = {}  # runs of an earlier version of the study
        facts = requested
        if before is not None:
            valid = {i for i, m in prior.items() if m.outcome.valid}
            changed = altered(before, requested, set(prior), valid, out)
            stale = {i: prior.pop(i).outcome.attempt for i in changed}
            facts = _continued(before, requested)
            prior = once_more(prior, repeat == "degraded")
        remaining = _remaining(plan, prior, stale, keep_going)
        runs = len(remaining.to_make)
        progress = RunProgress(
            runs, plan.estimated_s * runs / len(plan.rows), options.get("quiet", False)
        )
        result = CampaignResult(out, facts.study_id, len(plan.rows))
        used = Used.of(out, study.limits)
        active = _ActiveCampaign(
            study, plan, treatments, facts, bundles, remaining, used, journal, progress, result
        )
        active.prepare(notes, sorted(stale))
        freeze(out, study, plan, facts)
        with active.announcement() as announcement:
            active.make(announcement)
            if not still_to_make(plan.rows, _prior_attempts(attempts(out), study.retry)):
                work_directory.clear(out, work_directory.work_directory(out))
            from penstock.campaign.analysis import analyse  # pandas takes 0.3 s to import

            full = full and not result.interrupted and not result.failed
            announcement.note("phase", run_id="", phase="analysing")
            announcement.say(runs=[], left_s=None, analysing=True)
            result.analysis = analyse(
                out, progress.say, full=full, report=options.get("report", True)
            )
    result.seconds = time.monotonic() - began
    return result


@dataclass(frozen=True)
class _Remaining:
    """The runs that a campaign makes now."""

    to_make: list[PlannedRun]
    #: attempts at runs that are not started anew
    prior: dict[str, PriorAttempts]
    #: last attempt at runs that are started anew
    again: dict[str, int]
    #: treatments with a finished run; None: a failed run does not stop the campaign
    finished: set[str] | None


def _remaining(
    plan: Plan, prior: dict[str, PriorAttempts], stale: dict[str, int], keep_going: bool
) -> _Remaining:
    finished = None if keep_going else _finished_treatments(plan, prior)
    again = {} if finished is None else _never_finished(plan, prior, finished)
    prior = {i: m for i, m in prior.items() if i not in again}
    return _Remaining(still_to_make(plan.rows, prior), prior, {**again, **stale}, finished)


@dataclass(frozen=True)
class _ActiveCampaign:
    """A campaign while this process makes its remaining runs; what stopped it is set in `result`."""

    study: Study
    plan: Plan
    treatments: dict[str, ResolvedRun]
    facts: Campaign
    bundles: list[Bundle]
    remaining: _Remaining
    used: Used
    journal: Journal
    progress: RunProgress
    result: CampaignResult

    def prepare(self, notes: list[str], stale: list[str]) -> None:
        """Restore the host after an earlier run, print warnings, and refuse runs that are not possible."""
        say = self.progress.say
        for note in notes:
            say(note)
        if stale:
            say(f"the study has changed; repeating what is not valid: {listed(stale)}")
        for entry in undo(self.journal):
            say(
                f"put back from an earlier run: {entry.kind} {entry.target} ({entry.outcome}"
                f"{': ' + entry.note if entry.outcome == 'failed' else ''})"
            )
        to_make, treatments = self.remaining.to_make, self.treatments.values()
        if not to_make:
            return
        for warning in [*unused_disks(self.study), *time_out_warnings(treatments)]:
            say(f"warning: {warning}")
        refuse_unusable(d for r in treatments for d in r.disks)
        profiles = profiles_of(treatments)
        unequal = speeds_of(self.study, treatments).unequal()
        too_fast = refuse_too_fast(profiles, self.journal)
        for warning in [*too_fast, *ruled_out_text(profiles), *unequal]:
            say(f"warning: {warning}")
        place = work_directory.work_directory(self.result.out)
        data = PreparedData(place / "prepared")
        forecast(
            self.study, self.treatments, to_make, place, self.result.out, data, self._run_bytes()
        )

    def announcement(self) -> Announcement:
        """Announcement of the campaign to other processes of this user."""
        return Announcement(
            "study",
            self.study.name,
            study_id=self.facts.study_id,
            question=self.study.question,
            out=str(self.result.out),
            planned=len(self.plan.rows),
            done_before=len(self.remaining.prior),
            left=len(self.remaining.to_make),
            left_s=self.progress.remaining_s(),
        )

    def make(self, announcement: Announcement) -> None:
        """Make the runs and record them in the catalogues."""
        out = self.result.out
        with _catalogues(out) as catalogues:
            _tell(catalogues, out, self.facts, "running", [])
            _tell(catalogues, out, self.facts, "running", self.bundles)
            try:
                if self.remaining.to_make:
                    self._make(catalogues, announcement)
            finally:
                done = len({b.manifest["run_id"] for b in attempts(out)})
                state = "finished" if done >= len(self.plan.rows) else "stopped"
                _tell(catalogues, out, self.facts, state, [])

    def _make(self, catalogues: list[Catalogue], announcement: Announcement) -> None:
        out, result, progress = self.result.out, self.result, self.progress
        result.limited = self.used.reached()
        if result.limited:
            progress.say(f"the study has taken what it may: {result.limited}")
            self.used.write()
            return
        (out / "runs").mkdir(exist_ok=True)
        listener = _Telling(self, catalogues, announcement)
        begun = {**self.remaining.again, **interrupted_attempts(out)}
        try:
            with _interrupts(), progress, _beside_others(out, progress.say):
                self._conduct(begun, listener, announcement)
        except KeyboardInterrupt:
            result.interrupted = True
            progress.say("stopped; finished runs are stored (--resume continues)")
        except _LimitError as limit:
            result.limited = str(limit)
            progress.say(f"the study has taken what it may: {limit}; finished runs are stored")
        except _FailedError as failed:
            result.failed = str(failed)

    def _conduct(
        self, begun: dict[str, int], listener: _Telling, announcement: Announcement
    ) -> None:
        """Make the runs on the hosts of the study, or on this one."""
        study, out, say = self.study, self.result.out, self.progress.say
        rows, prior = self.plan.rows, self.remaining.prior
        if study.hosts is not None:
            text = as_run(study, self.facts.overrides)
            conductor = CONDUCTORS.load("hosts")(
                study, self.facts.study_id, text, rows, out, listener, say
            )
            conductor.conduct(rows, prior, begun)
            return
        executor = HostExecutor(
            study,
            self.facts.study_id,
            out,
            work_directory.work_directory(out),
            self.journal,
            self.treatments,
            self.remaining.to_make,
            self._run_bytes(),
            say,
            announcement=announcement,
            plan_rows=rows,
        )
        conduct(rows, prior, begun, executor, listener)

    def _run_bytes(self) -> list[int]:
        """Sizes of the stored runs."""
        return [directory_bytes(b.path) for b in self.bundles]


#: number of consecutive disturbed runs after which a campaign stops
SPOILT_IN_A_ROW = 12


class _FailedError(Exception):
    """A fault to be fixed before the campaign can continue."""


class _LimitError(Exception):
    """A limit that the study declares is reached."""


class _Telling:
    """Forward events to the progress display and to the catalogues.

    A failed workload of a treatment without a finished run stops the campaign, as do many consecutive runs
    that the host disturbed, unless the campaign continues in any case.
    """

    def __init__(
        self, active: _ActiveCampaign, catalogues: list[Catalogue], announcement: Announcement
    ) -> None:
        self._announcement = announcement
        self._now: dict[str, dict[str, Any]] = {}
        self._finished = active.remaining.finished
        self._used = active.used
        self._remaining = len(active.remaining.to_make)
        self._progress = active.progress
        self._catalogues = catalogues
        self._out = active.result.out
        self._result = active.result
        self._spoilt = 0

    def begun(self, run: PlannedRun, attempt: int) -> None:
        self._progress.begun(run, attempt)
        self._now[run.run_id] = {
            "run_id": run.run_id,
            "attempt": attempt,
            "levels": run.levels,
            "replicate": run.replicate,
            "began_utc_ns": time.time_ns(),
            "phase": "",
        }
        self._tell()

    def phase(self, run: PlannedRun, phase_id: str) -> None:
        """Record the start of a phase of a run."""
        now = self._now[run.run_id]
        now["phase"] = phase_id
        facts = {key: now[key] for key in ("run_id", "attempt", "levels", "phase")}
        self._announcement.note("phase", **facts)
        self._tell()

    def _tell(self) -> None:
        """Announce the current run and the progress of the study."""
        ended = self._result.outcomes
        self._announcement.say(
            runs=list(self._now.values()),
            left=self._progress.remaining_runs,
            left_s=self._progress.remaining_s(),
            made=len(ended),
            failed=sum(o.state != "finished" for o in ended),
            invalid=sum(o.state == "finished" and not o.valid for o in ended),
        )

    def ended(self, run: PlannedRun, outcome: Outcome) -> None:
        self._result.outcomes.append(outcome)
        place = self._out / "runs"
        attempts = [Bundle.open(place / run.run_id)]
        attempts += [Bundle.open(p) for p in place.glob(f"{run.run_id}.attempt*")]
        for catalogue in self._catalogues:
            catalogue.put_runs(self._out, attempts)
        self._progress.ended(run, outcome)
        self._remaining -= 1
        self._now.pop(run.run_id, None)
        self._announcement.add("ended", {"run_id": run.run_id, "attempt": outcome.attempt})
        self._tell()
        if self._used.any:
            self._used.ran()
            if self._used.reached() and self._remaining > 0:
                raise _LimitError(self._used.reached())
        if self._finished is None:
            return
        self._spoilt = self._spoilt + 1 if outcome.repeatable else 0
        if self._spoilt >= SPOILT_IN_A_ROW:
            raise _FailedError(
                f"{self._spoilt} runs in a row are invalid, {run.run_id} because {outcome.reason}: go on "
                "with --resume when the host has less to do, or now with --keep-going"
            )
        if outcome.state == "finished":
            self._finished.add(run.treatment_id)
        elif run.treatment_id not in self._finished and outcome.attempt > outcome.repeats:
            levels = ", ".join(f"{k} {v}" for k, v in run.levels.items())
            raise _FailedError(
                f"{run.run_id} ({levels}) failed, and no run of {run.treatment_id} was finished before: "
                f"{outcome.reason} ({place / run.run_id}); correct it and continue with --resume, or "
                "continue despite it with --keep-going"
            )


def _finished_treatments(plan: Plan, prior: Mapping[str, PriorAttempts]) -> set[str]:
    """Treatments with a finished run."""
    return {
        row.treatment_id
        for row in plan.rows
        if row.run_id in prior and prior[row.run_id].outcome.state == "finished"
    }


def _never_finished(
    plan: Plan, prior: Mapping[str, PriorAttempts], finished: set[str]
) -> dict[str, int]:
    """Failed runs of the other treatments, with their last attempt."""
    return {
        row.run_id: prior[row.run_id].outcome.attempt
        for row in plan.rows
        if row.run_id in prior and row.treatment_id not in finished
    }


def _described(study: Study, treatments: dict[str, ResolvedRun]) -> dict[str, dict[str, Any]]:
    """Description of each treatment's effect on a run, which a resumed campaign compares."""
    common = {
        "settle": study.settle.model_dump(mode="json"),
        "observers": study.observers.model_dump(
            mode="json",
            # observers that a study does not name are not compared: the option may be newer than the study
            exclude={n for n in ("others", "collect") if not getattr(study.observers, n)},
        ),
        "seed": study.design.seed,
    }
    return {
        treatment_id: {
            "levels": r.treatment,
            "prepare": r.prepare,
            "mutates": r.mutates,
            "command": r.command,
            "after": r.after,
            "env": r.env,
            "directory": r.directory,
            "user": r.user,
            "nodes": {
                n.name: {
                    "memory_bytes": n.memory_bytes,
                    "cpus": n.cpus,
                    "disks": {d.name: _storage(d) for d in n.disks},
                }
                for n in r.nodes
            },
            **({"on": list(r.on)} if r.on else {}),
            **({"services": [s.model_dump(mode="json") for s in r.services]} if r.services else {}),
            **({"hooks": dict(r.hooks)} if r.hooks else {}),
            **({"guest": _plain(r.guest)} if r.guest is not None else {}),
            **({"cluster": to_json(r.cluster)} if r.cluster is not None else {}),
            **common,
        }
        for treatment_id, r in treatments.items()
    }


def _plain(guest: GuestSpec) -> dict[str, Any]:
    """A guest as plain values, its files by name."""
    values = asdict(guest)
    return {**json.loads(json.dumps(values, default=str)), "files": [n for n, _ in guest.files]}


def _storage(disk: ResolvedDisk) -> dict[str, Any]:
    if disk.directory is not None:
        return {"directory": str(disk.directory)}
    return {"profile": disk.profile, "mount": disk.mount}


def _look(out: Path, study: Study, resume: bool) -> Campaign | None:
    """Campaign in `out`. Raises BadInput if it is not ours to write into."""
    if out.is_dir():
        before = read_campaign(out)
        if before is None and any(p.name != ".lock" for p in out.iterdir()):
            raise BadInput(f"{out}: found other files; expected an empty or a new directory for -o")
    elif out.exists():
        raise BadInput(f"{out}: found a file; expected a directory for -o")
    else:
        before = None
    if before is not None and before.name != study.name:
        raise BadInput(
            f"{out} has results of the study {before.name}, not {study.name}; choose another -o"
        )
    if before is not None and not resume:
        raise BadInput(
            f"{out} already has results of this study ({before.study_id}); continue them with --resume, "
            f"choose another -o, or remove them (penstock rm {out})"
        )
    return before


def _continued(before: Campaign, requested: Campaign) -> Campaign:
    """The requested campaign with the id and time scales of the earlier one."""
    scales = requested.time_scales or before.time_scales
    return Campaign(**{**vars(requested), "study_id": before.study_id, "time_scales": scales})


def _prior_attempts(bundles: list[Bundle], retry: Retry) -> dict[str, PriorAttempts]:
    """Last attempt at each run on disk, and the number of attempts."""
    prior: dict[str, PriorAttempts] = {}
    for bundle in bundles:
        m = bundle.manifest
        outcome = Outcome(
            m["run_id"],
            int(m["attempt"]),
            m["state"],
            bool(m["valid"]),
            m["reason"],
            bool(m.get("repeatable", False)),
            float(m.get("times", {}).get("wall_s") or 0.0),
            float(m.get("times", {}).get("own_s") or 0.0),
            again=retry.times(m["causes"]) if "causes" in m else None,
            degraded=m.get("validity") == "degraded",
        )
        earlier = prior.get(outcome.run_id)
        prior[outcome.run_id] = PriorAttempts(outcome, earlier.attempts + 1 if earlier else 1)
    return prior


def _tell(
    catalogues: list[Catalogue], out: Path, facts: Campaign, state: str, bundles: list[Bundle]
) -> None:
    for catalogue in catalogues:
        catalogue.put_study(out, facts.study_id, facts.question, state, facts.planned_runs)
        catalogue.put_runs(out, bundles)


@contextlib.contextmanager
def _catalogues(out: Path) -> Iterator[list[Catalogue]]:
    with Catalogue(out / "catalogue.sqlite") as own, open_index() as index:
        yield [own, index]


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock for one conductor per directory; a new directory is removed if nothing is written.

    Raises PenstockError if another conductor is running there.
    """
    out.mkdir(parents=True, exist_ok=True)
    fd = os.open(out / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PenstockError(f"{out}: another penstock run is in progress in it") from None
        try:
            yield
        finally:
            if not (out / "campaign.json").exists():
                work_directory.clear(out, work_directory.work_directory(out))
                (out / ".lock").unlink()
                with contextlib.suppress(OSError):
                    out.rmdir()
    finally:
        os.close(fd)


@contextlib.contextmanager
def _beside_others(out: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Warn if another study is running on this host."""
    path = state_dir() / "study.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):  # on a full disk it has no name
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{out} (process {os.getpid()})".encode(), 0)
        except BlockingIOError:
            other = os.pread(fd, 4096, 0).decode(errors="backslashreplace")
            say(
                f"warning: another study is in progress on this host: {other}; what one does to "
                "processors and disks shows in the times of the other"
            )
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C; only the first counts, so that restoration is not interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    enders = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {s: signal.getsignal(s) for s in enders}

    def stop(_number: int, _frame: FrameType | None) -> None:
        for s in enders:
            signal.signal(s, signal.SIG_IGN)
        raise KeyboardInterrupt

    for s in enders:
        signal.signal(s, stop)
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
