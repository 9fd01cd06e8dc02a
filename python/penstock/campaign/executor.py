"""Executor on this host, through `host/`, with emulated disks and observers."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.archive.bundle import Bundle, directory_bytes
from penstock.archive.runs import set_aside
from penstock.campaign import manifest
from penstock.campaign.conductor import Attempt, Outcome
from penstock.campaign.evidence import run_alerts
from penstock.campaign.evidence.attempt_work import AttemptWork
from penstock.campaign.evidence.collect import (
    grade,
    judgement_of,
    less_delayed,
    phases_table,
    responses_of,
    write_tables,
)
from penstock.campaign.evidence.interrupted import note_begun, note_done, note_interrupted
from penstock.campaign.evidence.observation import RunObservation
from penstock.campaign.manifest import draw_seed
from penstock.campaign.places.stage import Site
from penstock.campaign.places.stages import Stages
from penstock.campaign.preparation import disk_space
from penstock.campaign.preparation.device_state import discard
from penstock.campaign.preparation.hooks import hook_fault, run_hooks
from penstock.campaign.preparation.preparation import Preparation, own
from penstock.campaign.preparation.settle import settle_caches, sync_file_systems, undrained
from penstock.campaign.preparation.undo_hook import UndoHook
from penstock.design.changes import Changes, Step
from penstock.design.planned import PlannedRun
from penstock.host.journal.announce import Announcement
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.host.probe.facts import host_facts
from penstock.observe.recorder import Recorder
from penstock.spec.study import Study
from penstock.state import passable_runtime_dir, runtime_dir
from penstock.study.resolve import ResolvedRun


class HostExecutor:
    """Make the runs of one study on this host."""

    def __init__(
        self,
        study: Study,
        study_id: str,
        out: Path,
        work_dir: Path,
        journal: Journal,
        treatments: Mapping[str, ResolvedRun],
        to_make: list[PlannedRun],
        finished_bytes: list[int],
        say: Callable[[str], None],
        *,
        host_name: str | None = None,
        announcement: Announcement | None = None,
        plan_rows: Sequence[PlannedRun] = (),
    ) -> None:
        self._host_name = host_name
        self._announcement = announcement
        self._study = study
        self._study_id = study_id
        self._out = out
        self._work_dir = work_dir
        self._journal = journal
        self._treatments = treatments
        self._remaining = [r.run_id for r in to_make]
        self._runs = {r.run_id: r for r in to_make}
        self._finished_bytes = finished_bytes
        self._say = say
        self._preparation = Preparation(journal, work_dir, say)
        #: directories of the daemons and of the disks' mount points
        self._directories: list[Entry] = []
        self._stages: Stages | None = None
        self._changes = Changes(study.factors, plan_rows or to_make)
        self._undo_hook = UndoHook(journal, study.name, work_dir)
        self._recorder: Recorder | None = None
        self._facts: dict[str, Any] = {}
        self._now: AttemptWork | None = None

    def open(self) -> None:
        """Start the disk server and the observers' daemons, once for all runs."""
        self._facts = host_facts(self._out)
        if self._host_name is not None:
            self._facts["host_id"] = self._host_name
        token = new_token()
        for above, mode in ((runtime_dir(), 0o700), (passable_runtime_dir(), 0o711)):
            self._directories.append(make_directory(above / token, self._journal, mode=mode))
        home, mounts = (Path(entry.target) for entry in self._directories)
        self._stages = Stages(Site(self._journal, home, mounts, self._study.base_dir))
        observers = self._study.observers.by_name()
        self._recorder = Recorder.of_names(self._journal, home, observers)

    def close(self) -> None:
        """Stop the daemons and remove our directories, in any state."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._preparation.remove)
            while self._directories:
                stack.callback(remove_directory, self._directories.pop(), self._journal)
            if self._stages is not None:
                stack.callback(self._stages.stop)
            stack.callback(self._undo)
            if self._recorder is not None:
                stack.callback(self._recorder.stop)
                self._recorder = None

    def room(self, attempt: Attempt[PlannedRun]) -> None:
        """Refuse a run if the remaining ones would fill the file system."""
        disk_space.forecast(
            self._study,
            self._treatments,
            [self._runs[r] for r in self._remaining],
            self._work_dir,
            self._out,
            self._preparation.data,
            self._finished_bytes,
        )

    def prepare(self, attempt: Attempt[PlannedRun]) -> None:
        """Provide the data: prepared once per kind, copied if the command changes them."""
        run = attempt.run
        resolved = self._treatments[run.treatment_id]
        final = self._out / "runs" / run.run_id
        planned = manifest.planned(attempt, resolved, self._study, self._study_id, self._facts)
        bundle = Bundle.create(final, planned, replacing=True)
        note_begun(bundle, attempt.number)
        run_dir = bundle.path / "workload"
        run_dir.mkdir()
        own(run_dir, resolved.user)
        step = self._changes.step(run)
        work = self._now = AttemptWork(run.run_id, resolved, bundle, run_dir, step)
        self._changes.lost()  # its state is unknown until the run is complete
        bundle.manifest["actions"] = list(step.actions)
        with attempt.phase("change"):
            self._change(resolved, step)
        with attempt.phase("prepare"):
            self._preparation.give(work)

    def _change(self, resolved: ResolvedRun, step: Step) -> None:
        """Carry out the actions that changes of factors require: prepare data again, restart the stage."""
        assert self._stages is not None
        if "reformat" in step.actions and step.changed:
            self._preparation.forget(resolved)
        if "redeploy" in step.actions and step.changed:
            self._stages.take_down(resolved)
        self._undo_hook.owe(resolved)
        self._stages.of(resolved).change(resolved, step.actions)

    def _undo(self) -> None:
        """Run the study's `undo` on this host, if any run was started."""
        if trouble := self._undo_hook.pay():
            self._say(f"warning: {trouble}")

    def attach(self, attempt: Attempt[PlannedRun]) -> None:
        """Create the place of the run: a control group or virtual nodes, and disks."""
        work = self._at_hand()
        with attempt.phase("attach"):
            assert self._stages is not None
            work.stage = self._stages.of(work.resolved)
            seed = draw_seed(self._study.design.seed, work.run_id, attempt.number)
            work.stage.attach(work.run_id, work.resolved, work.backing, seed, self._out)
            work.mounts = work.stage.mounts
        if work.resolved.hooks:
            with attempt.phase("hooks"):
                run_hooks(work, (*work.step.actions, "apply"))
                work.verdict = hook_fault(work, "verify")

    def settle(self, attempt: Attempt[PlannedRun]) -> None:
        """Write back, drop or warm caches as declared, verify that; then rest as declared."""
        work, spec = self._at_hand(), self._study.settle
        with attempt.phase("settle"):
            plain = any(not d.emulated for d in work.resolved.disks)
            if spec.sync and (plain or work.copied is not None):
                sync_file_systems(work.backing.values())
            if spec.discard:
                plain_disks = [d.disk_id for d in work.resolved.disks if not d.emulated]
                work.discarded = discard({i: work.backing[i] for i in plain_disks})
            if spec.dirty_at_most_bytes is not None:
                sync_file_systems([self._out, *work.backing.values()])
                work.undrained = undrained(spec.dirty_at_most_bytes)
            work.settled = settle_caches(
                work.mounts, spec.drop_caches, spec.resident_at_most, spec.resident_at_least
            )
        if spec.idle_s > 0:
            with attempt.phase("rest"):
                time.sleep(spec.idle_s)

    def arm(self, attempt: Attempt[PlannedRun]) -> None:
        """Reset counters and start the observers."""
        work = self._at_hand()
        with attempt.phase("arm"):
            assert self._recorder is not None
            assert work.stage is not None
            work.devices = work.stage.begin(work.bundle.path)
            for disk_id, freed in work.discarded.items():
                work.devices.setdefault(disk_id, {})["discarded_bytes"] = freed
            self._recorder.start(work.stage.watched(), work.bundle.path)
            work.environment = self._recorder.environment()
            where = self._recorder.live()
            if self._announcement is not None:
                self._announcement.say(sources=where)
            if self._study.alerts:
                run_alerts.watch(self._study.alerts, work, where["monitor"], self._announcement)

    def launch(self, attempt: Attempt[PlannedRun]) -> None:
        """Run the command in its control group to its end or its time-out; then the `after` command."""
        work = self._at_hand()
        assert work.stage is not None
        work.bundle.manifest["command"] = work.resolved.command
        work.finished = work.stage.run(work.line(work.resolved.command), attempt.phase)

    def disarm(self, attempt: Attempt[PlannedRun]) -> None:
        """Stop the observers and read their counters and those of the disks."""
        work = self._now
        if work is None:
            return
        with attempt.phase("disarm"):
            if self._announcement is not None:
                self._announcement.say(sources={})
            if work.watch is not None:
                work.watch.end()
            if work.stage is not None:
                work.used = work.stage.used()
            if self._recorder is not None:
                done = work.finished
                run = (done.start_ns, done.end_ns) if done is not None else None
                seen = self._recorder.finish(work.bundle, run)
                work.observation = RunObservation(**vars(seen))
                work.bundle.manifest.update(seen.manifest)
                run_alerts.judge_alerts(self._study.alerts, work, self._say)
            if work.stage is not None:
                work.observation.disks = work.stage.end(
                    work.observation.observed.get("utilisation"), work.used.cpu_ns
                )
                work.bundle.manifest["place"] = work.stage.about
                for text in work.stage.about.get("not_fired", ()):
                    self._say(f"{attempt.run.run_id}: never fired, it waited for {text}")

    def detach(self, attempt: Attempt[PlannedRun]) -> None:
        """Run the `after` command, then remove disks, control group and the run's own copy."""
        work = self._now
        if work is None:
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(attempt.phase("detach"))
            if work.stop is not None:
                stack.callback(work.stop.close)
                work.stop = None
            stack.callback(self._preparation.take_back, work)
            if work.stage is not None:
                stack.callback(work.stage.detach)
            if work.finished is not None and work.resolved.after is not None:
                assert work.stage is not None
                work.after = work.stage.after(work.line(work.resolved.after, "after"))

    def collect(self, attempt: Attempt[PlannedRun]) -> Outcome:
        """Write tables, judgement, responses, manifest; give the bundle its name."""
        work = self._at_hand()
        bundle, finished = work.bundle, work.finished
        assert finished is not None
        with attempt.phase("collect"):
            doubts = write_tables(work)
            # phases that have ended: a response may refer to the records of one of them
            bundle.write_table("phases", phases_table(attempt.phases))
            altered = self._preparation.altered(work)
            judgement = judgement_of(work, finished, self._study, doubts, altered)
            responses, judgement = responses_of(work, finished, self._study, judgement)
        bundle.write_table("phases", phases_table(attempt.phases))
        bundle.manifest.update(manifest.ended(work, finished, judgement, responses, attempt.own_s))
        judgement = grade(bundle, self._study, judgement)
        note_done(bundle)
        before = self._out / "runs" / attempt.run.run_id
        keep = before.exists() and less_delayed(Bundle.open(before), bundle)
        if before.exists() and not keep:
            set_aside(self._out, attempt.run.run_id)
        path = bundle.finish(f"{attempt.run.run_id}.attempt{attempt.number}" if keep else "")
        self._now = None
        if judgement.state == "finished" and not work.verdict:
            self._changes.completed(attempt.run)
        size = directory_bytes(path)
        self._finished_bytes.append(size)
        again = self._study.retry.times(judgement.causes)
        if judgement.valid or attempt.number > again:
            with contextlib.suppress(ValueError):
                self._remaining.remove(attempt.run.run_id)
        return Outcome(
            attempt.run.run_id,
            attempt.number,
            judgement.state,
            judgement.valid,
            judgement.reason,
            judgement.repeatable,
            finished.wall_s,
            attempt.own_s,
            size,
            again,
            judgement.degraded,
        )

    def discard(self, attempt: Attempt[PlannedRun]) -> None:
        """Mark the attempt as interrupted and drop the rest of it."""
        if self._now is not None:
            shutil.rmtree(self._now.bundle.path, ignore_errors=True)
            note_interrupted(self._out, attempt.run.run_id, attempt.number)
            self._now = None

    def _at_hand(self) -> AttemptWork:
        assert self._now is not None
        return self._now
