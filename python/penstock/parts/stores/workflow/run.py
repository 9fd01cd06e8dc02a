"""`penstock workflow run`: repeated runs of a workflow on a store, with their prediction."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.emulate.cluster.cluster import Cluster
from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.workloads.read import read_workload
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.files import Unmounted
from penstock.parts.stores.hang_guard import ALL, servers_down
from penstock.parts.stores.lock import changing
from penstock.parts.stores.store import Store, check, refused_parameters, up_already
from penstock.parts.stores.workflow.benefit import Decision, chosen_hints
from penstock.parts.stores.workflow.energy import Readings, energy_of, host_energy_of, metered
from penstock.parts.stores.workflow.execute import execute
from penstock.parts.stores.workflow.features import require_executable, uses_set_xattr
from penstock.parts.stores.workflow.hints import derived, without
from penstock.parts.stores.workflow.options import RunOptions
from penstock.parts.stores.workflow.remaining import TaskProgress
from penstock.parts.stores.workflow.result import Result, keep, measured_runs
from penstock.parts.stores.workflow.results import save_results
from penstock.parts.stores.workflow.running.executed import (
    Executed,
    RunFailed,
    other_sizes,
    placement,
)
from penstock.parts.stores.workflow.running.journal import RunJournal, digest_of
from penstock.parts.stores.workflow.running.programs import (
    emulated,
    inputs_on_host,
    runs_programs,
)
from penstock.parts.stores.workflow.running.recovery import RunRecord
from penstock.parts.stores.workflow.running.run_files import RunFiles
from penstock.parts.stores.workflow.suspects import Comparison, suspects
from penstock.platform.cluster import cluster_spec
from penstock.platform.engine import as_supported
from penstock.platform.hosts import Platform, load_platform
from penstock.platform.lower import time_of
from penstock.plugins import STORE_ENGINES
from penstock.spec.store import DEFAULT_ENGINE

if TYPE_CHECKING:
    from penstock.parts.prediction.prediction import Prediction

__all__ = ["Result", "keep", "measured_runs", "placement", "run_workflow", "store_of"]

Progress = Callable[[str, int, int], None]

LOGS, RESULTS = "logs", "results"


@dataclass
class Plan:
    """A workflow that can be run: the workload with its hints, the platform, and the programs' inputs."""

    workload: Workload
    platform: Platform
    options: RunOptions
    inputs: Mapping[str, Path] = field(default_factory=dict)
    #: hints from the graph, and the reason why each group of files has them or not
    decisions: list[Decision] = field(default_factory=list)

    @property
    def programs(self) -> bool:
        """True if tasks run programs."""
        return runs_programs(self.workload)

    @property
    def by_data(self) -> bool:
        """True if tasks go to the node with their data."""
        return self.platform.file.scheduler.kind == "data_location"


def plan_of(workflow: Path, platform: Path, changes: Sequence[str], options: RunOptions) -> Plan:
    """Read and check everything that can be checked before anything starts. BadInput."""
    options.check()
    workload = read_workload(workflow)
    if options.emulate:
        workload = emulated(workload)
    inputs = inputs_on_host(workload, options.inputs or workflow.absolute().parent)
    if options.scheduler is not None:
        changes = [*changes, f"scheduler.kind={options.scheduler}"]
    predicted = options.predicted or options.hints == "auto"
    loaded = _loaded(platform, list(changes), options.engine, predicted)
    decisions: list[Decision] = []
    if options.hints == "never":
        files = tuple(replace(f, hints=None) for f in workload.files)
        workload = replace(workload, files=files, origin=None)
    elif options.hints == "always":
        workload = derived(workload, sum("storage" in h.roles for h in loaded.hosts))
    elif options.hints == "auto":
        engine = STORE_ENGINES.load(deployment(loaded, options.engine)[1].engine)()
        workload, decisions = chosen_hints(workload, loaded, engine.support())
    require_executable(workload, loaded)
    return Plan(workload, loaded, options, inputs, decisions)


def run_workflow(
    workflow: Path,
    platform: Path,
    changes: Sequence[str] = (),
    *,
    options: RunOptions | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a workflow `repeat` times on the platform's store, and predict it.

    Raises BadInput for invalid files, and for features that a prediction supports and a run does not
    (`features.FEATURES`); PenstockError if a task, a node or the store fails. `out` has the measurements
    until then, also after Ctrl-C. A single run of programs has a journal there, from which `resume_workflow`
    continues; its default is WORKFLOW-run.
    """
    plan = plan_of(workflow, platform, changes, options or RunOptions())
    if out is None and plan.programs:
        out = Path(f"{workflow.stem}-run")
    journal = None
    if out is not None and plan.programs and plan.options.repeat == 1:
        head = {
            "workflow": os.fspath(workflow.absolute()),
            "platform": os.fspath(platform.absolute()),
            "changes": list(changes),
            "options": plan.options.to_dict(),
            "workload": digest_of(plan.workload),
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        journal = RunJournal.create(out, head)
    return _run_plan(plan, out, journal, progress)


def resume_workflow(out: Path, progress: Progress | None = None) -> Result:
    """Continue an interrupted run with its options, from the journal in `out`; completed tasks stay.

    BadInput if there is none, or if workflow or platform have changed; PenstockError if the store is gone.
    """
    journal = RunJournal.reopen(out)
    try:
        head = journal.head
        options = RunOptions.from_dict(head["options"])
        plan = plan_of(Path(head["workflow"]), Path(head["platform"]), head["changes"], options)
        if digest_of(plan.workload) != head["workload"]:
            expected = "the workflow and the platform of the interrupted run"
            raise BadInput(f"{head['workflow']}: found another content; expected {expected}")
        if "directory" not in head:
            raise BadInput(
                f"{out}: found a run that never began; expected one to resume. Run it anew"
            )
        journal.append({"resumed": datetime.now(UTC).isoformat(timespec="seconds")})
    except BaseException:
        journal.close()
        raise
    return _run_plan(plan, out, journal, progress)


def _run_plan(
    plan: Plan, out: Path | None, journal: RunJournal | None, progress: Progress | None
) -> Result:
    """Run a plan, and write the result into `out`."""
    loaded, options = plan.platform, plan.options
    resumed = journal is not None and "directory" in journal.head
    engine = deployment(loaded, options.engine)[1].engine
    result = Result(plan.workload.name, loaded.name, engine, [], decisions=plan.decisions)
    broken: list[Executed] = []
    try:
        watched = uses_set_xattr(plan.workload)
        with store_of(loaded, options.engine, progress, watched=watched, resumed=resumed) as store:
            parameters = refused_parameters(STORE_ENGINES.load(store.spec.engine)(), store.spec)
            result.refused.extend([*parameters.values(), *require_servers(store, resumed)])
            for _ in range(options.repeat):
                run_once(plan, store, result, (out, journal, progress), broken)
    except BaseException as error:
        if isinstance(error, RunFailed):
            broken.append(error.executed)
        if out is not None and (result.runs or broken):
            why = str(error) or type(error).__name__
            keep(replace(result, broken=broken[0] if broken else None, error=why), out)
        raise
    finally:
        if journal is not None:
            journal.close()
    refused = refused_tags(result.runs)
    result.refused.extend(refused.values())
    result.refused.extend(other_sizes(plan.workload, result.runs[-1]))
    if options.predicted and not resumed:
        done = without(plan.workload, refused)
        put_up, _ = as_supported(loaded)
        result = replace(result, prediction=prediction_of(done, put_up))
        if options.repeat > 1 and not plan.programs:
            runs = [Comparison(done, result.runs)]
            result = replace(result, suspected=suspects(put_up, runs))
    if out is not None:
        keep(result, out)
        result = replace(result, page=_page(result, out))
    return result


def _page(result: Result, out: Path) -> Path:
    """Write the page and the figures."""
    from penstock.parts.stores.workflow.report.page import Contents, headline, write_report

    title = f"{result.workload} on {result.platform}"
    results = {result.platform: result}
    return write_report(
        Contents(title, headline(result), results, result.sentences()), out, "result"
    )


def run_once(
    plan: Plan,
    store: Store,
    result: Result,
    place: tuple[Path | None, RunJournal | None, Progress | None],
    broken: list[Executed],
) -> None:
    """One run; its measurements, results and energy are added to `result`."""
    out, journal, progress = place
    loaded, options = plan.platform, plan.options
    slots = {h.name: h.slots for h in loaded.hosts if "client" in h.roles}
    target = options.results or (out / RESULTS if out is not None else None)

    def finished(files: RunFiles, existing: Collection[str]) -> None:
        if target is not None and plan.programs:
            result.results[:] = save_results(
                plan.workload, store, files, existing, target, progress
            )

    with _meter(store, loaded) as readings:
        run = execute(
            plan.workload,
            store,
            slots=slots,
            groups={h.name: h.group for h in loaded.hosts},
            by_data=plan.by_data,
            keep_cache=options.keep_cache,
            timeout_s=options.timeout_s,
            speeds={h.name: h.speed for h in loaded.hosts},
            stagger_s=time_of(loaded.file.launch.stagger),
            pack=loaded.file.scheduler.fill == "pack",
            heard=None if progress is None else TaskProgress(progress, _model_s(plan)).heard,
            interrupted=broken.append,
            inputs=plan.inputs,
            recovery=options.recovery,
            record=RunRecord(
                journal,
                out / LOGS if out is not None and plan.programs else None,
                options.checksums,
            ),
            finished=finished,
        )
    result.runs.append(run)
    energy = energy_of(run, readings, loaded, cluster_spec(loaded), slots)
    if run.earlier:  # the meters have seen a part of it only
        return
    result.energy.extend([] if energy is None else [energy])
    of_host = host_energy_of(run, readings)
    result.real.extend([] if of_host is None else [of_host])


def _model_s(plan: Plan) -> float | None:
    """Predicted makespan from one simulation, for the remaining time; None without prediction."""
    from penstock.parts.prediction.queue_network.predict import predict_many

    if not plan.options.predicted:
        return None
    (prediction,) = predict_many(plan.workload, [plan.platform], seeds=1)
    return prediction.makespan_s


def _meter(store: Store, platform: Platform) -> contextlib.AbstractContextManager[Readings]:
    """Read the meters of a run if the platform has its hosts' powers.

    Not on several hosts, where each reading would start a process on every host.
    """
    if platform.power and isinstance(store.cluster, Cluster):
        return metered(store.cluster)
    return contextlib.nullcontext(Readings())


def require_servers(store: Store, resumed: bool = False) -> list[str]:
    """Messages about servers that are down; PenstockError if files are incomplete.

    A resumed run creates them again.
    """
    down = servers_down(store)
    if not down:
        return []
    copies = int(store.spec.parameters.get("replicas", 1))
    named = (
        "the store does not answer"
        if down == ALL
        else f"servers are down: {', '.join(sorted(down))}"
    )
    if down == ALL or (len(down) >= copies and not resumed):
        raise PenstockError(
            f"{store.name}: {named}; `penstock store down`, then `up`, makes a complete one"
        )
    return [f"{store.name}: {named}; the prediction counts them"]


def refused_tags(runs: Sequence[Executed]) -> dict[tuple[str, str], str]:
    """Messages about refused hints, by file and key of the tag."""
    return {
        (t.path, t.key): f"{t.path}: {t.key}={t.value}: {t.support.why}"
        for run in runs
        for t in run.tags
        if t.support.how == "refused"
    }


def _loaded(path: Path, changes: list[str], engine: str | None, predicted: bool) -> Platform:
    """The platform with a specified store, so that the deployed one is predicted."""
    loaded = load_platform(path, changes, predicted=predicted)
    declared = (loaded.plain.get("store") or {}).get("engine")
    chosen = engine or declared or DEFAULT_ENGINE
    if chosen == declared:
        return loaded
    return load_platform(path, [*changes, f"store.engine={chosen}"], predicted=predicted)


@contextlib.contextmanager
def store_of(
    platform: Platform,
    engine: str | None,
    progress: Progress | None = None,
    *,
    watched: bool = False,
    resumed: bool = False,
) -> Iterator[Store]:
    """The store of a platform: a running one, which is left running; else one for the duration of the block.

    `watched`: it applies hints of programs. BadInput if a running one does not. `resumed`: PenstockError if
    none runs.
    """
    nodes, spec, roles = deployment(platform, engine)
    chosen = STORE_ENGINES.load(spec.engine)()
    if isinstance(chosen, Unmounted):
        expected = "one that nodes mount, as tasks read and write files"
        raise BadInput(f"store.engine: found {spec.engine}; expected {expected}")
    with changing():
        store = up_already(nodes, spec, roles, any_use=True)
    if store is not None:
        if watched and not store.spec.watched:
            expected = "one that takes up hints that programs set (`penstock store up --watch`)"
            raise BadInput(f"set_xattr: found the store {store.name}; expected {expected}")
        yield store
        return
    if resumed:
        raise PenstockError(
            f"the store {nodes.name} does not exist any more, and with it the files of the run: a store that "
            "`workflow run` starts ends with that command. Only a run on a store of `penstock store up` can "
            "be resumed, as long as that store is up"
        )
    spec = replace(spec, watched=watched)
    check(chosen, spec, roles)
    store = Store.up(nodes, spec, roles, outlive=False, progress=progress)
    try:
        yield store
    except BaseException:  # errors of the stop must not hide the original exception
        with contextlib.suppress(PenstockError):
            store.abandon()
        raise
    store.stop()
    store.cluster.down()


def prediction_of(workload: Workload, platform: Platform) -> Prediction:
    from penstock.parts.prediction.queue_network.predict import predict

    return predict(workload, platform)
