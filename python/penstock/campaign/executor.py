"""The executor that does it: on this host, through `host/`, with emulated disks and observers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.bundle import Bundle, directory_bytes, partial_path
from penstock.archive.receipts import device_faults, unplaced_faults
from penstock.archive.runs import set_aside
from penstock.campaign import disk_space
from penstock.campaign.conductor import Attempt, Outcome
from penstock.campaign.device_state import State, discard
from penstock.campaign.guest_stage import GuestStage
from penstock.campaign.host_stage import HostStage
from penstock.campaign.judgement import Evidence, Judgement, judge
from penstock.campaign.nodes_stage import NodesStage
from penstock.campaign.observation import RunObservation
from penstock.campaign.plain_directories import PlainDirectories
from penstock.campaign.prepared import PreparedData, PreparedSet, copy_tree, preparation_key
from penstock.campaign.settle import Settled, settle_caches, sync_file_systems, undrained
from penstock.campaign.stage import CommandLine, Stage, Used
from penstock.campaign.undo_hook import UndoHook
from penstock.campaign.witness import confirmation, doubted, own_numbers
from penstock.design.changes import Changes, Step
from penstock.design.plan import PlannedRun
from penstock.errors import PenstockError
from penstock.host.announce import Announcement
from penstock.host.cgroup import create_run_cgroup
from penstock.host.directories import make_directory, remove_directory
from penstock.host.facts import host_facts
from penstock.host.journal import Entry, Journal, new_token
from penstock.host.launch import Finished, Stop, last_words, launch
from penstock.observe.monitor.alerts import AlertWatch, Stretch, judged
from penstock.observe.recorder import Recorder
from penstock.spec.study import Study
from penstock.spec.template import names_in
from penstock.state import passable_runtime_dir, runtime_dir
from penstock.study.resolve import ResolvedDisk, ResolvedNode, ResolvedRun
from penstock.workload.measured import Measured
from penstock.workload.responses import measure

#: says in a bundle that is being written which attempt it is of
ATTEMPT_FILE = "attempt"


@dataclass
class _Work:
    """What one attempt has at hand while it is made."""

    resolved: ResolvedRun
    bundle: Bundle
    run_dir: Path
    step: Step
    prepared: PreparedSet | None = None
    copied: Entry | None = None
    copies: list[Path] = field(default_factory=list)
    backing: dict[str, Path] = field(default_factory=dict)
    mounts: dict[str, Path] = field(default_factory=dict)
    stage: Stage | None = None
    used: Used = field(default_factory=Used)
    settled: Settled | None = None
    #: of each disk's device, what the run found it to be
    devices: dict[str, State] = field(default_factory=dict)
    discarded: dict[str, int] = field(default_factory=dict)
    #: what `verify` found wrong, and what was still to be written back
    verdict: str = ""
    undrained: str = ""
    finished: Finished | None = None
    after: Finished | None = None
    observation: RunObservation = field(default_factory=RunObservation)
    #: what the observers tell the command
    told: Mapping[str, str] = field(default_factory=dict)
    stop: Stop | None = None
    watch: AlertWatch | None = None
    #: the alert that ended it, in words
    alert: str = ""


class HostExecutor:
    """Makes the runs of one study on this host."""

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
        said: Announcement | None = None,
        plan_rows: Sequence[PlannedRun] = (),
    ) -> None:
        self._host_name = host_name
        self._said = said
        self._study = study
        self._study_id = study_id
        self._out = out
        self._work_dir = work_dir
        self._journal = journal
        self._treatments = treatments
        self._left = [r.run_id for r in to_make]
        self._runs = {r.run_id: r for r in to_make}
        self._finished_bytes = finished_bytes
        self._say = say
        self._prepared = PreparedData(work_dir / "prepared")
        self._plain = PlainDirectories(journal)
        #: our directories: of the daemons, and of the disks' mount points
        self._made: list[Entry] = []
        self._stages: dict[str, Stage] = {}
        self._changes = Changes(study.factors, plan_rows or to_make)
        self._undo_hook = UndoHook(journal, study.name, work_dir)
        self._recorder: Recorder | None = None
        self._facts: dict[str, Any] = {}
        self._now: _Work | None = None

    def open(self) -> None:
        """The disk server and the observers' daemons, once for all runs."""
        self._facts = host_facts(self._out)
        if self._host_name is not None:
            self._facts["host_id"] = self._host_name
        token = new_token()
        for above, mode in ((runtime_dir(), 0o700), (passable_runtime_dir(), 0o711)):
            self._made.append(make_directory(above / token, self._journal, mode=mode))
        self._home, self._mounts = (Path(made.target) for made in self._made)
        wanted = self._study.observers.by_name()
        self._recorder = Recorder.of_names(self._journal, self._home, wanted)

    def close(self) -> None:
        """Stops the daemons and removes the directories we made, whatever of them was made."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._plain.remove)
            while self._made:
                stack.callback(remove_directory, self._made.pop(), self._journal)
            while self._stages:
                stack.callback(self._stages.popitem()[1].stop)
            stack.callback(self._undo)
            if self._recorder is not None:
                stack.callback(self._recorder.stop)
                self._recorder = None

    def room(self, attempt: Attempt[PlannedRun]) -> None:
        """Refuses a run while what is still to be made would fill the file system."""
        forecast(
            self._study,
            self._treatments,
            [self._runs[r] for r in self._left],
            self._work_dir,
            self._out,
            self._prepared,
            self._finished_bytes,
        )

    def prepare(self, attempt: Attempt[PlannedRun]) -> None:
        """The data: prepared once per kind, copied where the command changes it."""
        run = attempt.run
        resolved = self._treatments[run.treatment_id]
        final = self._out / "runs" / run.run_id
        bundle = Bundle.create(final, self._manifest(attempt, resolved), replacing=True)
        (bundle.path / ATTEMPT_FILE).write_text(f"{attempt.number}\n")
        run_dir = bundle.path / "workload"
        run_dir.mkdir()
        _own(run_dir, resolved.user)
        step = self._changes.step(run)
        self._now = _Work(resolved, bundle, run_dir, step)
        self._changes.lost()  # until the run is at its end
        bundle.manifest["actions"] = list(step.actions)
        with attempt.phase("change"):
            self._change(resolved, step)
        with attempt.phase("prepare"):
            self._prepare_data(run, self._now)

    def _change(self, resolved: ResolvedRun, step: Step) -> None:
        """What changes of factors make necessary of our own: data made anew, the place put up anew."""
        if "reformat" in step.actions and step.changed:
            self._prepared.forget(data_key(resolved))
        place = _place(resolved)
        if "redeploy" in step.actions and step.changed and place in self._stages:
            self._stages.pop(place).stop()
        self._undo_hook.owe(resolved)
        self._stage(resolved).change(resolved, step.actions)

    def _undo(self) -> None:
        """The study's `undo`, on this host, where any run was begun."""
        if trouble := self._undo_hook.pay():
            self._say(f"warning: {trouble}")

    def _prepare_data(self, run: PlannedRun, work: _Work) -> None:
        resolved = work.resolved
        names = [d.disk_id for d in resolved.disks]
        if not names and resolved.prepare is None:
            return
        key = data_key(resolved)
        make = self._preparation(run, resolved)
        plain = {
            d.disk_id: self._plain.place(d.directory)
            for d in resolved.disks
            if d.directory is not None
        }
        work.prepared = self._prepared.get(key, names, make, plain)
        if resolved.mutates is not True:
            work.backing = dict(work.prepared.disks)
            return
        place = self._work_dir / f"run-{run.run_id}-{os.getpid()}"
        work.copied = make_directory(place, self._journal, run=run.run_id, mode=0o711)
        for name, source in work.prepared.disks.items():
            copy = place / name
            if name in plain:
                copy = plain[name] / f"run-{run.run_id}" / name
                work.copies.append(copy.parent)
            copy.mkdir(parents=True)
            copy_tree(source, copy)
            work.backing[name] = copy

    def _preparation(
        self, run: PlannedRun, resolved: ResolvedRun
    ) -> Callable[[dict[str, Path]], None]:
        """Runs the prepare command on the backing directories; raises with its last words if it fails."""

        def make(disks: dict[str, Path]) -> None:
            for path in disks.values():
                _own(path, resolved.user)
            if resolved.prepare is None:
                return
            self._say(f"preparing the data of {run.run_id}")
            scratch = next(iter(disks.values())).parent if disks else self._work_dir
            for node in nodes_to_prepare(resolved):
                self._prepare_once(run, resolved, node, disks, scratch)

        return make

    def _prepare_once(
        self,
        run: PlannedRun,
        resolved: ResolvedRun,
        node: ResolvedNode,
        disks: dict[str, Path],
        scratch: Path,
    ) -> None:
        assert resolved.prepare is not None
        own = {d.name: disks[d.disk_id] for d in node.disks}
        places = {**disks, **own}
        filling = resolved.filling(places, scratch, node.name)
        command, env = filling.line(resolved.prepare), filling.texts(resolved.env)
        log = self._work_dir / "prepare.log"  # not on a disk that this may fill
        with create_run_cgroup("prepare", None, self._journal, run=run.run_id) as cgroup:
            finished = launch(
                command,
                cgroup,
                log,
                log.with_suffix(".err"),
                extra_env=env,
                cwd=scratch,
                user=resolved.user,
            )
        if finished.exit_status != 0:
            words = last_line(log.with_suffix(".err")) or last_line(log)
            raise PenstockError(
                f"run {run.run_id}: the preparation ended with status {finished.exit_status}: "
                f"{words or 'it said nothing'} (command: {command})"
            )

    def _stage(self, resolved: ResolvedRun) -> Stage:
        """Where a run of this kind takes place, made when first needed."""
        place = _place(resolved)
        if place not in self._stages:
            makers: dict[str, Callable[[], Stage]] = {
                "guest": lambda: GuestStage(self._journal),
                "nodes": lambda: NodesStage(self._journal, self._study.base_dir),
                "host": lambda: HostStage(self._journal, self._home, self._mounts),
            }
            self._stages[place] = makers[place]()
        return self._stages[place]

    def attach(self, attempt: Attempt[PlannedRun]) -> None:
        """The place of the run: a control group or virtual nodes, and disks."""
        work = self._at_hand()
        with attempt.phase("attach"):
            work.stage = self._stage(work.resolved)
            work.stage.attach(
                attempt.run.run_id,
                work.resolved,
                work.backing,
                draw_seed(self._study.design.seed, attempt.run.run_id, attempt.number),
                self._out,
            )
            work.mounts = work.stage.mounts
        if work.resolved.hooks:
            with attempt.phase("hooks"):
                self._hooks(work, (*work.step.actions, "apply"))
                work.verdict = self._hook(work, "verify")

    def _hooks(self, work: _Work, names: Sequence[str]) -> None:
        """Runs those of the study's hooks; PenstockError with the last words of one that fails."""
        for name in names:
            fault = self._hook(work, name)
            if fault:
                raise PenstockError(f"run {work.bundle.manifest['run_id']}: {fault}")

    def _hook(self, work: _Work, name: str) -> str:
        """What is wrong with the end of a hook; empty where there is none or it went well."""
        command = work.resolved.hooks.get(name)
        if command is None:
            return ""
        assert work.stage is not None
        words = self._words(work, command, f"hook-{name}")
        done = work.stage.after(words)
        if done.exit_status == 0:
            return ""
        said = last_line(words.stderr) or last_line(words.stdout) or "it said nothing"
        how = "took too long" if done.timed_out else f"ended with status {done.exit_status}"
        return f"the command of hooks.{name} {how}: {said} (command: {command})"

    def settle(self, attempt: Attempt[PlannedRun]) -> None:
        """Written back and cold (or warm) as declared, and proven so; then the declared rest."""
        work, wanted = self._at_hand(), self._study.settle
        with attempt.phase("settle"):
            plain = any(not d.emulated for d in work.resolved.disks)
            if wanted.sync and (plain or work.copied is not None):
                sync_file_systems(work.backing.values())
            if wanted.discard:
                plain_disks = [d.disk_id for d in work.resolved.disks if not d.emulated]
                work.discarded = discard({i: work.backing[i] for i in plain_disks})
            if wanted.dirty_at_most_bytes is not None:
                sync_file_systems([self._out, *work.backing.values()])
                work.undrained = undrained(wanted.dirty_at_most_bytes)
            work.settled = settle_caches(
                work.mounts, wanted.drop_caches, wanted.resident_at_most, wanted.resident_at_least
            )
        if wanted.idle_s > 0:
            with attempt.phase("rest"):
                time.sleep(wanted.idle_s)

    def arm(self, attempt: Attempt[PlannedRun]) -> None:
        """Counters to zero, observers on."""
        work = self._at_hand()
        with attempt.phase("arm"):
            assert self._recorder is not None
            assert work.stage is not None
            work.devices = work.stage.begin(work.bundle.path)
            for disk_id, freed in work.discarded.items():
                work.devices.setdefault(disk_id, {})["discarded_bytes"] = freed
            self._recorder.start(work.stage.watched(), work.bundle.path)
            work.told = self._recorder.environment()
            where = self._recorder.live()
            if self._said is not None:
                self._said.say(sources=where)
            if self._study.alerts:
                self._watch(attempt.run.run_id, work, where["monitor"])

    def _watch(self, run_id: str, work: _Work, where: Mapping[str, Any]) -> None:
        """Evaluates the study's alerts while the run goes on."""

        def told(stretch: Stretch) -> None:
            if self._said is not None:
                row = {**stretch.row(), "words": stretch.words, "run_id": run_id}
                self._said.add("alerts", {**row, "utc_ns": time.time_ns()})

        work.stop = Stop()
        spool, interval_ns = Path(where["spool"]), int(where["interval_ns"])
        work.watch = AlertWatch(self._study.alerts, spool, interval_ns, work.stop.ask, told)

    def _alerts(self, work: _Work) -> None:
        """What fired, from the tables and what was seen of them."""
        if work.watch is None:
            return
        seen = work.observation.observed
        interval_ns = int(work.observation.receipts["monitor"]["used_ns"])
        made = judged(
            self._study.alerts,
            interval_ns,
            seen.get("samples"),
            seen.get("utilisation"),
            work.watch.stretches,
        )
        seen["alerts"] = made.table()
        if work.watch.trouble:
            self._say(f"warning: {work.watch.trouble}")
        if work.finished is not None and work.finished.stopped:
            work.alert = next((s.words for s in made.stretches if s.aborted), "a rule fired")

    def launch(self, attempt: Attempt[PlannedRun]) -> None:
        """The command, in its control group, to its end or its time-out; then the `after` command."""
        work = self._at_hand()
        assert work.stage is not None
        work.bundle.manifest["command"] = work.resolved.command
        work.finished = work.stage.run(self._words(work, work.resolved.command), attempt.phase)

    def _words(self, work: _Work, command: str, prefix: str = "") -> CommandLine:
        resolved = work.resolved
        place = work.bundle.path
        names = (f"{prefix}.txt", f"{prefix}.err.txt") if prefix else ("stdout.txt", "stderr.txt")
        out, err = names
        return CommandLine(
            command=command,
            stdout=place / out,
            stderr=place / err,
            run_dir=work.run_dir,
            timeout_s=resolved.timeout_s,
            user=resolved.user,
            directory=resolved.directory,
            env=resolved.env if prefix else {**resolved.env, **work.told},
            stop=None if prefix else work.stop,
        )

    def disarm(self, attempt: Attempt[PlannedRun]) -> None:
        """Observers off; what they and the disks counted is read."""
        work = self._now
        if work is None:
            return
        with attempt.phase("disarm"):
            if self._said is not None:
                self._said.say(sources={})
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
                self._alerts(work)
            if work.stage is not None:
                work.observation.disks = work.stage.end(
                    work.observation.observed.get("utilisation"), work.used.cpu_ns
                )
                work.bundle.manifest["place"] = work.stage.about
                for text in work.stage.about.get("not_fired", ()):
                    self._say(f"{attempt.run.run_id}: never fired, it waited for {text}")

    def detach(self, attempt: Attempt[PlannedRun]) -> None:
        """The `after` command, then disks, control group and the run's own copy go."""
        work = self._now
        if work is None:
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(attempt.phase("detach"))
            if work.stop is not None:
                stack.callback(work.stop.close)
                work.stop = None
            if work.copied is not None:
                stack.callback(remove_directory, work.copied, self._journal)
                work.copied = None
            while work.copies:
                stack.callback(shutil.rmtree, work.copies.pop(), ignore_errors=True)
            if work.stage is not None:
                stack.callback(work.stage.detach)
            if work.finished is not None and work.resolved.after is not None:
                assert work.stage is not None
                work.after = work.stage.after(self._words(work, work.resolved.after, "after"))

    def collect(self, attempt: Attempt[PlannedRun]) -> Outcome:
        """Tables, judgement, responses, manifest; the bundle gets its name."""
        work = self._at_hand()
        bundle, finished = work.bundle, work.finished
        assert finished is not None
        with attempt.phase("collect"):
            tables = work.observation.tables()
            witnessed = confirmation(work.observation, work.mounts, work.resolved)
            if witnessed is not None:
                tables["confirmation"] = witnessed
            stdout = (bundle.path / "stdout.txt").read_text(errors="replace")
            reported = own_numbers(work.observation, work.resolved, work.run_dir, stdout)
            if reported is not None:
                tables["second_source"] = reported
            for name, table in tables.items():
                bundle.write_table(name, table)
            claims = work.run_dir / "claims.json"
            if claims.exists() and work.mounts:
                self._write_agreement(work, claims)
            bundle.write_table("clocks", pa.Table.from_pylist(work.observation.clocks))
            told = [*doubted(witnessed, "traced"), *doubted(reported, "fio")]
            judgement = self._judge(work, finished, told)
            responses, judgement = self._responses(work, finished, judgement)
        bundle.write_table("phases", _phases_table(attempt))
        bundle.manifest.update(
            exit_status=finished.exit_status,
            signal=finished.signal,
            peak_memory_bytes=work.used.peak_memory_bytes,
            oom_kills=work.used.oom_kills,
            cpu_ns=work.used.cpu_ns,
            after_status=work.after.exit_status if work.after is not None else None,
            state=judgement.state,
            valid=judgement.valid,
            reason=judgement.reason,
            repeatable=judgement.repeatable,
            causes=list(judgement.causes),
            resident_share=work.settled.resident_share if work.settled else {},
            device_state=work.devices,
            losses=work.observation.losses,
            receipts=work.observation.receipts,
            responses={n: {"value": m.value, "unit": m.unit} for n, m in responses.items()},
        )
        start = work.observation.clocks[0]
        bundle.manifest["times"] = {
            "start_realtime_ns": start["realtime_ns"],
            "start_ns": finished.start_ns,
            "end_ns": finished.end_ns,
            "wall_s": finished.wall_s,
            "own_s": attempt.own_s,
        }
        (bundle.path / ATTEMPT_FILE).unlink()
        if (self._out / "runs" / attempt.run.run_id).exists():
            set_aside(self._out, attempt.run.run_id)
        path = bundle.finish()
        self._now = None
        if judgement.state == "finished" and not work.verdict:
            self._changes.made(attempt.run)
        size = directory_bytes(path)
        self._finished_bytes.append(size)
        again = self._study.retry.times(judgement.causes)
        if judgement.valid or attempt.number > again:
            with contextlib.suppress(ValueError):
                self._left.remove(attempt.run.run_id)
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
        )

    def discard(self, attempt: Attempt[PlannedRun]) -> None:
        """Leaves a mark of the interrupted attempt and drops the rest of it."""
        if self._now is not None:
            shutil.rmtree(self._now.bundle.path, ignore_errors=True)
            note_interrupted(self._out, attempt.run.run_id, attempt.number)
            self._now = None

    def _at_hand(self) -> _Work:
        assert self._now is not None
        return self._now

    def _manifest(self, attempt: Attempt[PlannedRun], resolved: ResolvedRun) -> dict[str, Any]:
        run = attempt.run
        return {
            "host": self._facts,
            "study_id": self._study_id,
            "study_hash": self._study.hash,
            "treatment_id": run.treatment_id,
            "run_id": run.run_id,
            "attempt": attempt.number,
            "levels": run.levels,
            "run_order": run.run_order,
            "standard_order": run.standard_order,
            "replicate": run.replicate,
            "block_id": run.block,
            "stage": run.stage,
            "seed": self._study.design.seed,
            "draw_seed": draw_seed(self._study.design.seed, run.run_id, attempt.number),
            "node_id": resolved.nodes[0].name,
            "prepare": resolved.prepare,
            "memory_bytes": resolved.memory_bytes,
            "profiles": {d.disk_id: profile_hash(d.profile) for d in resolved.disks if d.emulated},
            "disks": {d.disk_id: _about_disk(d) for d in resolved.disks},
        }

    def _write_agreement(self, work: _Work, claims: Path) -> None:
        from penstock.analyse.agreement import agreement, read_claims

        tables = work.observation.tables()
        mount = str(next(iter(work.mounts.values())))
        table = agreement(
            read_claims(claims),
            work.observation.events(["file_id", "direction", "done_bytes"]),
            tables.get("files"),
            tables.get("device_requests"),
            mount,
        )
        work.bundle.write_table("agreement", table)

    def _judge(self, work: _Work, finished: Finished, told: list[str]) -> Judgement:
        seen = work.observation
        return judge(
            Evidence(
                finished=finished,
                timeout_s=work.resolved.timeout_s,
                last_line=last_line(work.bundle.path / "stderr.txt"),
                oom_kills=work.used.oom_kills,
                node_faults=work.used.faults,
                data_altered=work.prepared is not None
                and work.resolved.mutates is not True
                and self._prepared.forget_if_altered(
                    work.prepared, contents=work.resolved.mutates == "contents"
                ),
                state_faults=tuple(self._state_faults(work)),
                fidelity_faults=(*seen.fidelity_faults, *told),
                lost_events=int(seen.losses.get("trace", 0)),
                kept_events=int(seen.receipts.get("trace", {}).get("kept", 0)),
                unplaced_faults=unplaced_faults(seen.receipts.get("trace", {})),
                missed_samples=int(seen.losses.get("monitor", 0)),
                expected_samples=int(seen.receipts.get("monitor", {}).get("expected", 0)),
                alert=work.alert,
            )
        )

    def _state_faults(self, work: _Work) -> list[str]:
        """Where the run did not find the state that the study declares."""
        settled = work.settled.fault if work.settled else ""
        at_most = self._study.settle.in_flight_at_most
        devices = [] if at_most is None else device_faults(work.devices, at_most)
        return [fault for fault in (settled, *devices, work.verdict, work.undrained) if fault]

    def _responses(
        self, work: _Work, finished: Finished, judgement: Judgement
    ) -> tuple[dict[str, Measured], Judgement]:
        """What the program reported; a run that did not report it is not valid."""
        if judgement.state != "finished":
            return {}, judgement
        try:
            found = measure(
                self._study.responses,
                work.resolved.parser,
                work.run_dir,
                (work.bundle.path / "stdout.txt").read_text(errors="replace"),
                (work.bundle.path / "stderr.txt").read_text(errors="replace"),
                finished.wall_s,
            )
        except PenstockError as error:
            reason = "; ".join(r for r in (judgement.reason, str(error)) if r)
            return {}, Judgement("failed", False, reason, False)
        return found, judgement


def forecast(
    study: Study,
    treatments: Mapping[str, ResolvedRun],
    left: list[PlannedRun],
    work_dir: Path,
    out: Path,
    prepared: PreparedData,
    finished_bytes: list[int],
) -> None:
    """Raises PenstockError, with the numbers, if the runs that are left would fill a file system."""
    disks = [disk for node in study.platform.nodes for disk in node.disks]
    by_event = study.observers.trace is not None or any(d.profile is not None for d in disks)
    first_bytes = disk_space.FIRST_BUNDLE_BYTES if by_event else disk_space.FIRST_PLAIN_BUNDLE_BYTES
    results = disk_space.bundles_need(len(left), finished_bytes, first_bytes)
    needs = [(out, disk_space.Need(0, 0, results))]
    still: dict[tuple[str, Path], int] = {}
    copies: dict[Path, int] = {}
    for treatment_id in {r.treatment_id for r in left}:
        resolved = treatments[treatment_id]
        key = data_key(resolved)
        for place in {d.directory or work_dir for d in resolved.disks}:
            mine = [d for d in resolved.disks if (d.directory or work_dir) == place]
            declared = sum(d.size_bytes or 0 for d in mine)
            size = declared or max(prepared.sizes_bytes, default=0)
            if prepared.has(key):
                if len(mine) == len(resolved.disks):
                    size = prepared.get(key, [], lambda _: None).size_bytes
            else:
                still[key, place] = declared
            if resolved.mutates is True:
                copies[place] = max(copies.get(place, 0), size)
    needs += [(place, disk_space.Need(size, 0, 0)) for (_, place), size in still.items()]
    needs += [(place, disk_space.Need(0, size, 0)) for place, size in copies.items()]
    for path, need in disk_space.by_file_system(needs):
        disk_space.check(path, need, len(left))


def _place(resolved: ResolvedRun) -> str:
    """What kind of place a run takes place in."""
    if resolved.guest is not None:
        return "guest"
    return "nodes" if resolved.cluster is not None else "host"


def data_key(resolved: ResolvedRun) -> str:
    """What names the prepared data of a run."""
    places = [d.disk_id + (f"={d.directory}" if d.directory else "") for d in resolved.disks]
    return preparation_key(resolved.prepare, places, resolved.env, resolved.user)


def _about_disk(disk: ResolvedDisk) -> dict[str, Any]:
    if disk.directory is not None:
        return {"name": disk.name, "directory": str(disk.directory)}
    return {
        "name": disk.name,
        "profile": disk.profile_name,
        "time_scale": disk.time_scale,
        "emulated": disk.profile,
    }


def nodes_to_prepare(resolved: ResolvedRun) -> list[ResolvedNode]:
    """For which nodes the data are prepared: once, or once for each node where a disk that several nodes have
    is named without its node (or `{node}` is)."""
    said = set(names_in(resolved.prepare or ""))
    several = {d.name for d in resolved.disks if sum(o.name == d.name for o in resolved.disks) > 1}
    bare = said & several
    if not bare and "node" not in said:
        return [resolved.nodes[0]]
    return [n for n in resolved.nodes if bare <= {d.name for d in n.disks} and n.disks]


def profile_hash(profile: dict[str, Any]) -> str:
    """SHA-256 of a storage profile."""
    return hashlib.sha256(json.dumps(profile, sort_keys=True).encode()).hexdigest()


def last_line(path: Path) -> str:
    """The last line of a log that says anything; of one that is not there, nothing."""
    try:
        with open(path, "rb") as log:
            return last_words(log)
    except OSError:
        return ""


def note_interrupted(out: Path, run_id: str, number: int) -> None:
    """Notes that an attempt was begun and not finished: the next one is `number` + 1."""
    place = partial_path(out / "runs" / run_id)
    place.mkdir(parents=True, exist_ok=True)
    (place / ATTEMPT_FILE).write_text(f"{number}\n")


def interrupted_attempts(out: Path) -> dict[str, int]:
    """The number of the attempt that was begun and not finished, by run."""
    found = {}
    for note in (out / "runs").glob(f".*.partial/{ATTEMPT_FILE}"):
        run_id = note.parent.name.removeprefix(".").removesuffix(".partial")
        try:
            found[run_id] = int(note.read_text())
        except (OSError, ValueError):
            found[run_id] = 1
    return found


def draw_seed(seed: int, run_id: str, number: int) -> int:
    """Seed of the disks' draws in one attempt: another for every run, the same whenever it is asked."""
    said = f"{seed}/{run_id}/{number}".encode()
    return int.from_bytes(hashlib.sha256(said).digest()[:6], "big")


def _own(path: Path, user: str | None) -> None:
    if user is not None and os.geteuid() == 0:
        shutil.chown(path, user)


def _phases_table(attempt: Attempt[PlannedRun]) -> pa.Table:
    return pa.table(
        {
            "phase_id": [p.phase_id for p in attempt.phases],
            "start_ns": pa.array([p.start_ns for p in attempt.phases], pa.int64()),
            "end_ns": pa.array([p.end_ns for p in attempt.phases], pa.int64()),
        }
    )
