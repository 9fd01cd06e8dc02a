"""`penstock workflow run`: repeated runs of a workflow on a store, with their prediction."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from penstock.archive.schemas import described
from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.workloads.read import read_workload
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.files import Unmounted
from penstock.parts.stores.hang_guard import ALL, servers_down
from penstock.parts.stores.lock import changing
from penstock.parts.stores.store import Store, check, refused_parameters, up_already
from penstock.parts.stores.workflow.energy import Readings, energy_of, metered
from penstock.parts.stores.workflow.execute import Executed, RunFailed, execute, placement
from penstock.parts.stores.workflow.features import require_executable, uses_set_xattr
from penstock.parts.stores.workflow.hints import derived, without
from penstock.parts.stores.workflow.measured_rows import differences, measured_rows
from penstock.parts.stores.workflow.suspects import Comparison, Suspect, suspects
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import Platform, load_platform
from penstock.platform.lower import time_of
from penstock.platform.stores import ready_store
from penstock.plugins import STORE_ENGINES
from penstock.spec.store import DEFAULT_ENGINE
from penstock.writing import atomic_folder

if TYPE_CHECKING:
    from penstock.parts.prediction.prediction import Prediction
    from penstock.parts.prediction.queue_network.energy import Energy

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Result:
    """Runs of one workflow on one store, and their prediction (None if not requested)."""

    workload: str
    platform: str
    engine: str
    runs: list[Executed]
    prediction: Prediction | None = None
    refused: list[str] = field(default_factory=list)
    #: of each run: by the emulated meter; by this host's own meter: its scope, joules
    energy: list[Energy] = field(default_factory=list)
    real: list[tuple[str, float]] = field(default_factory=list)
    #: values of the platform that may explain the differences, best first
    suspected: list[Suspect] = field(default_factory=list)
    #: measurements of a failed run, and the reason
    broken: Executed | None = None
    error: str = ""

    @property
    def makespans_s(self) -> list[float]:
        """Makespan of each run [s]."""
        return [run.makespan_s for run in self.runs]

    def stages(self) -> dict[str, list[float]]:
        """By stage, in order of start: duration in each run [s]."""
        by_stage: dict[str, list[float]] = {}
        for run in self.runs:
            for name, (first, last) in run.spans().items():
                by_stage.setdefault(name, []).append(last - first)
        return by_stage

    def rows(self) -> list[tuple[str, ...]]:
        """Lines of the table: the complete run, then each stage."""
        lines: list[tuple[str, ...]] = [
            ("whole", "", *_spread(self.makespans_s), *self._predicted())
        ]
        predicted = {s["name"]: s for s in self.prediction.stages} if self.prediction else {}
        for name, values in self.stages().items():
            stage = predicted.get(name)
            duration = f"{stage['end_s'] - stage['start_s']:.3f}" if stage else "-"
            lines.append(("", name, *_spread(values), duration, "", ""))
        return lines

    def _predicted(self) -> tuple[str, str, str]:
        if self.prediction is None:
            return ("-", "", "")
        ends = self.prediction.interval.ends()
        return (
            f"{self.prediction.makespan_s:.3f}",
            f"{ends['low']:.3f}",
            f"{ends['high']:.3f}",
        )

    def sentences(self) -> list[str]:
        """Summary of the result."""
        lines = []
        if self.prediction is not None:
            mean = statistics.fmean(self.makespans_s)
            off = self.prediction.makespan_s / mean - 1
            lines.append(f"Predicted {off:+.1%} of what {len(self.runs)} runs took on average.")
            lines.append(f"Whether the model applies: {self.prediction.applies.verdict}.")
            if len(self.runs) > 1:
                differing = differences(self.prediction, self.runs)
                lines += differing
                if differing and self.suspected:
                    lines.append(f"One value alone would explain most of it: {self.suspected[0]}.")
        lines += self._energy_sentences()
        lines += [f"warning: {one}" for one in self.refused]
        if self.refused and self.prediction is not None:
            lines.append("The prediction is made without the hints that the store refused.")
        for number, run in enumerate(self.runs):
            if run.died:
                died = ", ".join(run.died)
                lines.append(f"warning: run {number}: {died} died; every file had another copy")
        return lines

    def _energy_sentences(self) -> list[str]:
        sentences = []
        if self.energy:
            mean = statistics.fmean(e.total_j for e in self.energy)
            line = f"Energy: {mean:.4g} J by the emulated meter (times, at the file's powers)"
            predicted = self.prediction.energy if self.prediction is not None else None
            if predicted is not None:
                line += (
                    f", predicted {predicted.total_j:.4g} J ({predicted.total_j / mean - 1:+.1%})"
                )
            sentences.append(f"{line}.")
        if self.real:
            joules = statistics.fmean(j for _, j in self.real)
            sentences.append(f"This host drew {joules:.4g} J meanwhile: {self.real[0][0]}.")
        return sentences

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "workload": self.workload,
            "platform": self.platform,
            "engine": self.engine,
            "makespan_s": self.makespans_s,
            "stages_s": self.stages(),
            "tags": [t.to_dict() for t in self.runs[-1].tags] if self.runs else [],
            "refused": self.refused,
            "placement": placement(self.runs[-1]) if self.runs else {},
        }
        if self.error:
            document["error"] = self.error
        if died := {str(n): run.died for n, run in enumerate(self.runs) if run.died}:
            document["died"] = died
        if self.prediction is not None:
            document["predicted"] = self.prediction.to_dict()
            document["suspected"] = [asdict(one) for one in self.suspected]
        if self.energy:
            meter = "emulated: times of the run at the powers of the platform file"
            document["energy"] = {"meter": meter, "runs": [e.to_dict() for e in self.energy]}
        if self.real:
            document["host_energy_j"] = {
                "meter": self.real[0][0],
                "runs": [j for _, j in self.real],
            }
        return document


def measured_runs(runs: Sequence[Executed]) -> dict[str, Any]:
    """The runs as input of `penstock predict --measured` (`penstock/measured/1`), times in seconds."""
    rows = []
    for run in runs:
        rows.append(
            {
                "makespan_s": run.makespan_s,
                "stages": [
                    {"name": name, "start_s": first, "end_s": last}
                    for name, (first, last) in run.spans().items()
                ],
                "tasks": [
                    {"name": t["task"], "start_s": t["sent_s"], "end_s": t["end_s"]}
                    for t in run.tasks.to_pylist()
                ],
            }
        )
    return {"schema": "penstock/measured/1", "runs": rows}


def run_workflow(
    workflow: Path,
    platform: Path,
    changes: Sequence[str] = (),
    *,
    engine: str | None = None,
    repeat: int = 1,
    hints: str = "file",
    keep_cache: bool = False,
    predicted: bool = True,
    timeout_s: float = 3600.0,
    out: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a workflow `repeat` times on the platform's store, and predict it.

    Raises BadInput for invalid files, and for features that a prediction supports and a run does not
    (`features.FEATURES`); PenstockError if a task, a node or the store fails. `out` has the measurements
    until then, also after Ctrl-C.
    """
    workload = read_workload(workflow)
    loaded = _loaded(platform, list(changes), engine, predicted)
    if hints == "never":
        files = tuple(replace(f, hints=None) for f in workload.files)
        workload = replace(workload, files=files, origin=None)
    elif hints == "always":
        workload = derived(workload, sum("storage" in h.roles for h in loaded.hosts))
    require_executable(workload, loaded)
    result = Result(workload.name, loaded.name, deployment(loaded, engine)[1].engine, [])
    broken: list[Executed] = []
    try:
        with store_of(loaded, engine, progress, watched=uses_set_xattr(workload)) as store:
            parameters = refused_parameters(STORE_ENGINES.load(store.spec.engine)(), store.spec)
            result.refused.extend([*parameters.values(), *_servers_down(store)])
            slots = {h.name: h.slots for h in loaded.hosts if "client" in h.roles}
            for _ in range(repeat):
                with _meter(store, loaded) as readings:
                    run = execute(
                        workload,
                        store,
                        slots=slots,
                        groups={h.name: h.group for h in loaded.hosts},
                        by_data=loaded.file.scheduler.kind == "data_location",
                        keep_cache=keep_cache,
                        timeout_s=timeout_s,
                        speeds={h.name: h.speed for h in loaded.hosts},
                        stagger_s=time_of(loaded.file.launch.stagger),
                        pack=loaded.file.scheduler.fill == "pack",
                        heard=None
                        if progress is None
                        else lambda done, of: progress("tasks", done, of),
                        interrupted=broken.append,
                    )
                result.runs.append(run)
                drawn = energy_of(run, readings, loaded, cluster_spec(loaded), slots)
                result.energy.extend([] if drawn is None else [drawn])
                result.real.extend([] if readings.real is None else [readings.real])
    except BaseException as error:
        if isinstance(error, RunFailed):
            broken.append(error.executed)
        if out is not None and (result.runs or broken):
            why = str(error) or type(error).__name__
            keep(replace(result, broken=broken[0] if broken else None, error=why), out)
        raise
    refused = refused_tags(result.runs)
    result.refused.extend(refused.values())
    if predicted:
        done = without(workload, refused)
        put_up = _as_put_up(loaded, store.spec.engine, parameters)
        result = replace(result, prediction=_prediction(done, put_up))
        if repeat > 1:
            runs = [Comparison(done, result.runs)]
            result = replace(result, suspected=suspects(put_up, runs))
    if out is not None:
        keep(result, out)
    return result


def _meter(store: Store, platform: Platform) -> contextlib.AbstractContextManager[Readings]:
    """Read the meters of a run if the platform has its hosts' powers."""
    return metered(store.cluster) if platform.power else contextlib.nullcontext(Readings())


def _servers_down(store: Store) -> list[str]:
    """Messages about servers that are down; PenstockError if files are incomplete."""
    down = servers_down(store)
    if not down:
        return []
    copies = int(store.spec.parameters.get("replicas", 1))
    named = (
        "the store does not answer"
        if down == ALL
        else f"servers are down: {', '.join(sorted(down))}"
    )
    if down == ALL or len(down) >= copies:
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


def _as_put_up(platform: Platform, engine: str, refused: Collection[str]) -> Platform:
    """The platform with the engine's defaults in place of refused parameters."""
    ready = ready_store(platform.file.store.like, engine)
    values = {f"store.{key}": ready[key] for key in refused if key in ready}
    nothing = {"cache": "0B", "prefetch": 0}
    values |= {f"preprocess.{key}": nothing[key] for key in refused if key in nothing}
    return platform.with_values(values) if values else platform


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
) -> Iterator[Store]:
    """The store of a platform: a running one, which is left running; else one for the duration of the block.

    `watched`: it applies hints of programs. BadInput if a running one does not.
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


def _prediction(workload: Workload, platform: Platform) -> Prediction:
    from penstock.parts.prediction.queue_network.predict import predict

    return predict(workload, platform)


def keep(result: Result, out: Path) -> None:
    """Write result.json, measured.json, placement.json, and the tables of each run into `out`.

    The tables of a failed run are in `broken`, and result.json has the reason (`error`). predicted.json and
    measured.parquet are the input of `penstock check`.
    """
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out}: found a file; expected a directory, or nothing yet")
    with atomic_folder(out) as folder:
        (folder / "result.json").write_text(json.dumps(result.to_dict(), indent=1) + "\n")
        seen = json.dumps(measured_runs(result.runs), indent=1)
        (folder / "measured.json").write_text(seen + "\n")
        pq.write_table(
            described("measured", measured_rows(result.runs)), folder / "measured.parquet"
        )
        if result.prediction is not None:
            text = json.dumps(result.prediction.to_dict(), indent=1)
            (folder / "predicted.json").write_text(text + "\n")
        if result.runs:
            placed = json.dumps(placement(result.runs[-1]), indent=1)
            (folder / "placement.json").write_text(placed + "\n")
        named = [(str(number), run) for number, run in enumerate(result.runs)]
        named += [("broken", result.broken)] if result.broken is not None else []
        for name_of_run, run in named:
            place = folder / name_of_run
            place.mkdir()
            for name, table in (
                ("workflow_tasks", run.tasks),
                ("workflow_operations", run.operations),
            ):
                pq.write_table(described(name, table), place / f"{name}.parquet")


def _spread(values: Sequence[float]) -> tuple[str, str, str]:
    """Mean, minimum and maximum."""
    several = len(values) > 1
    ends = (f"{min(values):.3f}", f"{max(values):.3f}") if several else ("", "")
    return (f"{statistics.fmean(values):.3f}", *ends)
