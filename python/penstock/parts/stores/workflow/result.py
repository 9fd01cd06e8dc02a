"""Result of `penstock workflow run`: tables and sentences, and its files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from penstock.archive.schemas import described
from penstock.errors import BadInput
from penstock.parts.stores.staging import Staged
from penstock.parts.stores.workflow.measured_rows import differences, measured_rows
from penstock.parts.stores.workflow.running.executed import Executed, placement
from penstock.parts.stores.workflow.suspects import Suspect
from penstock.text import signed
from penstock.writing import atomic_folder

if TYPE_CHECKING:
    from penstock.parts.prediction.prediction import Prediction
    from penstock.parts.prediction.queue_network.energy import Energy
    from penstock.parts.stores.workflow.benefit import Decision


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
    #: hints from the graph, and the reason why each group of files has them or not
    decisions: list[Decision] = field(default_factory=list)
    #: verified copies of the results outside of the store
    results: list[Staged] = field(default_factory=list)
    #: page in the output directory
    page: Path | None = None

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
            runs = f"the mean of {len(self.runs)} runs" if len(self.runs) > 1 else "the run"
            lines.append(f"The prediction is {signed(off)} off {runs}.")
            lines.append(f"Applicability of the model: {self.prediction.applies.verdict}.")
            if len(self.runs) > 1:
                differing = differences(self.prediction, self.runs)
                lines += differing
                if differing and self.suspected:
                    lines.append(f"One value alone would explain most of it: {self.suspected[0]}.")
        lines += self._energy_sentences()
        lines += self._overhead_sentences()
        lines += [str(one) for one in self.decisions]
        lines += [f"warning: {one}" for one in self.refused]
        if self.refused and self.prediction is not None:
            lines.append("The prediction omits the hints that the store refused.")
        for number, run in enumerate(self.runs):
            if run.died:
                died = ", ".join(run.died)
                lines.append(f"warning: run {number}: {died} died; every file had another copy")
        return lines

    def _overhead_sentences(self) -> list[str]:
        """Times of the runner and of the store's own calls per task, retries, and results."""
        rows = [row for run in self.runs for row in run.tasks.to_pylist()]
        times = sorted(x for run in self.runs for x in run.overhead_s())
        if not rows:
            return []
        last = times[min(len(times) - 1, round(0.95 * len(times)))]
        sentences = [
            f"Runner: {1e3 * statistics.fmean(times):.1f} ms per task for scheduling, dispatch, launch and "
            f"report (95 % below {1e3 * last:.1f} ms)."
        ]
        store = {
            key: 1e3 * statistics.fmean(row[f"{key}_s"] for row in rows)
            for key in ("tag", "locate")
        }
        if any(store.values()):
            sentences[0] += (
                f" Store: {store['tag']:.1f} ms for hints, {store['locate']:.1f} ms for places."
            )
        for run in self.runs:
            if run.troubles.attempts:
                sentences.append(f"{len(run.troubles.attempts)} attempts failed and were repeated.")
            if run.earlier:
                sentences.append(
                    f"{run.earlier} of {run.tasks.num_rows} tasks were complete before."
                )
        if self.results:
            size = sum(one.size_bytes for one in self.results)
            place = commonpath([one.backend for one in self.results])
            sentences.append(
                f"Results: {len(self.results)} files, {size:,} bytes, verified by SHA-256, in {place}."
            )
        return sentences

    def _energy_sentences(self) -> list[str]:
        sentences = []
        if self.energy:
            mean = statistics.fmean(e.total_j for e in self.energy)
            line = f"Energy: {mean:.4g} J by the emulated meter (times, at the file's powers)"
            predicted = self.prediction.energy if self.prediction is not None else None
            if predicted is not None:
                off = signed(predicted.total_j / mean - 1)
                line += f", predicted {predicted.total_j:.4g} J ({off})"
            sentences.append(f"{line}.")
        if self.real:
            joules = statistics.fmean(j for _, j in self.real)
            sentences.append(
                f"This host consumed {joules:.4g} J during the run: {self.real[0][0]}."
            )
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
        runs = [*self.runs, *([self.broken] if self.broken is not None else [])]
        times = [x for run in runs for x in run.overhead_s()]
        if times:
            document["overhead_s"] = {"mean": statistics.fmean(times), "max": max(times)}
        if self.decisions:
            document["hints"] = [one.to_dict() for one in self.decisions]
        if self.results:
            document["results"] = [one.to_dict() for one in self.results]
        for key in ("attempts", "not_run", "lost"):
            if rows := [getattr(run.troubles, key) for run in runs if getattr(run.troubles, key)]:
                document[key] = rows[-1]
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
