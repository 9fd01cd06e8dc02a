"""Results of the runs of the deployment scenarios: Spark's log and the samples of all nodes on one clock."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from judged import Cost
from layout import WORKERS

from penstock.archive.bundle import Bundle
from penstock.archive.completeness import check_manifest
from penstock.errors import PenstockError
from penstock.workload import metrics

Array = npt.NDArray[Any]
PROGRAMS = ("wordcount", "dfsio", "tpcds")
#: programs that write files, which are renamed at their end
WRITING = ("wordcount", "dfsio")
#: rate of each link in each direction, as in the study [B/s]
LINK_BPS = 50e6 / 8
#: a node's link to the wire; a second link, if there is one, is that of its host and has no limit
WIRE_LINK = "e0 "
#: tables of a run that the bundles of its programs also have
KEPT = ("clocks", "phases", "samples", "utilisation")
ROLES = {"head": "head", "w": "workers", "s": "storage", "v": "volumes, objects"}


@dataclass(frozen=True)
class ProgramRun:
    """One program in one run: its time [s], results of Spark's log, and utilisation of the roles [%]. `busy`:
    role → means over its nodes: cpu (of the host's), in and out (of the link to the wire), disk.
    """

    run_id: str
    scenario: str
    replicate: int
    valid: bool
    program: str
    began_ns: int
    time_s: float
    waves: int
    tasks: int
    after_s: float
    bundle: str
    busy: Mapping[str, Mapping[str, float]]


def runs(out: Path, *, invalid: bool) -> tuple[list[ProgramRun], list[str]]:
    """Three rows per valid run (with `invalid`, per run that ended normally), and reasons why others are
    excluded.

    Raises PenstockError if two runs have different results for the same input.
    """
    completed, excluded = [], []
    expected: dict[str, Any] = {}
    if not (out / "runs.parquet").exists():
        return completed, ["no run"]
    for row in pd.read_parquet(out / "runs.parquet").sort_values("run_order").to_dict("records"):
        run = out / "runs" / str(row["run_id"])
        if not row["valid"]:
            excluded.append(f"{row['run_id']} ({row['scenario']}): {row['reason']}")
        if row["valid"] or (invalid and check_manifest(run / "manifest.json")["exit_status"] == 0):
            report = json.loads((run / "workload" / "programs.json").read_text())
            same_results(expected, run.name, report)
            completed += [_ran(out, run, row, program, report[program]) for program in PROGRAMS]
    return completed, excluded


def same_results(expected: dict[str, Any], run_id: str, report: Mapping[str, Any]) -> None:
    """Compare counted words, written bytes, rows and sums of the queries with the first run's, in `expected`.

    Raises PenstockError if they differ.
    """
    for program in PROGRAMS:
        actual = report[program]["made"]
        if program == "tpcds":
            actual = {q: {k: v for k, v in r.items() if k != "seconds"} for q, r in actual.items()}
        first = expected.setdefault(program, actual)
        if first != actual:
            raise PenstockError(f"{run_id}: {program}: found {actual}; expected {first}, as before")


def _ran(
    out: Path, run: Path, row: Mapping[Any, Any], program: str, report: Mapping[str, Any]
) -> ProgramRun:
    bundle, log = aggregated(
        run, program, report["log"], out / "aggregated" / f"{run.name}-{program}"
    )
    facts = log.facts["spark"]
    began, ended = int(report["began_ns"]), int(report["ended_ns"])
    return ProgramRun(
        run_id=run.name,
        scenario=str(row["scenario"]),
        replicate=int(row["replicate"]),
        valid=bool(row["valid"]),
        program=program,
        began_ns=began,
        time_s=(ended - began) / 1e9,
        waves=int(facts["waves"]),
        tasks=int(facts["tasks"]),
        after_s=float(facts["post_job_s"]),
        bundle=str(bundle.path),
        busy=busy(
            bundle.table("utilisation").to_pandas(),
            bundle.table("samples").to_pandas(),
            began,
            ended,
        ),
    )


def aggregated(run: Path, program: str, log: str, target: Path) -> tuple[Bundle, metrics.Readings]:
    """A bundle of one program: the run's samples, its nodes' links and Spark's log, on the run's clock."""
    readings = metrics.read(run / "workload" / "events" / log, "spark")
    if target.exists():
        shutil.rmtree(target)
    manifest = {k: v for k, v in check_manifest(run / "manifest.json").items() if k != "schema"}
    imported = [{"file": log, "reader": "spark", **readings.facts}]
    with Bundle.create(target, {**manifest, "program": program, "imported": imported}) as bundle:
        for table in KEPT:
            shutil.copyfile(run / f"{table}.parquet", bundle.path / f"{table}.parquet")
        metrics.into_bundle(bundle, readings)
        for file in sorted((run / "workload").glob("links-*.csv")):
            metrics.into_bundle(bundle, links(file))
    return bundle, readings


def links(file: Path) -> metrics.Readings:
    """Counters of one node: `in` and `out` on the wire, `host_in` and `host_out` on its host's own link."""
    read = metrics.read(file, "csv").samples
    direction = np.where(read["metric"].str.endswith("rx"), "in", "out")
    own = np.where(read["metric"].str.startswith(WIRE_LINK), "", "host_")
    counters = read.assign(
        source="links",
        entity=file.stem.removeprefix("links-"),
        metric=np.char.add(own, direction),
        unit="B",
        cumulative=True,
    )
    return metrics.Readings(metrics.samples(counters[list(metrics.COLUMNS)]))


def busy(
    utilisation: pd.DataFrame, samples: pd.DataFrame, began_ns: int, ended_ns: int
) -> dict[str, dict[str, float]]:
    """Mean of each role's nodes between two times: cpu, in, out, disk [%]."""
    within = utilisation[(utilisation["t_ns"] > began_ns) & (utilisation["t_ns"] <= ended_ns)]
    within = within[within["metric"].astype(str) == "busy"]
    kind, entity = within["kind"].astype(str), within["entity"].astype(str)
    counted = samples[samples["source"].astype(str) == "links"]
    rows: dict[str, list[dict[str, float]]] = {role: [] for role in ROLES.values()}
    for node in sorted(set(entity[kind == "cgroup_cpu"])):
        means = {
            "cpu": within["value"][(kind == "cgroup_cpu") & (entity == node)].mean(),
            "disk": within["value"][
                (kind == "emulated_disk") & entity.isin([node, f"{node}.data"])
            ].mean(),
        }
        for direction in ("in", "out"):
            counter = counted[
                (counted["entity"].astype(str) == node)
                & (counted["metric"].astype(str) == direction)
            ].sort_values("t_ns")
            means[direction] = _share(counter, began_ns, ended_ns)
        rows[ROLES[node if node in ROLES else node[0]]].append(means)
    return {
        role: {
            resource: float(np.mean([n[resource] for n in nodes]))
            for resource in ("cpu", "in", "out", "disk")
        }
        for role, nodes in rows.items()
        if nodes
    }


def _share(counter: pd.DataFrame, began_ns: int, ended_ns: int) -> float:
    """Share of a link's rate between two times [%]; counters are interpolated."""
    if len(counter) < 2:
        return float("nan")
    at = np.interp([began_ns, ended_ns], counter["t_ns"], counter["value"])
    return float(100 * (at[1] - at[0]) / (LINK_BPS * (ended_ns - began_ns) / 1e9))


def by_second(bundle: Bundle, began_ns: int, ended_ns: int) -> dict[str, tuple[Array, Array]]:
    """Activity of Spark and the nodes by seconds since the start of the program: running `tasks`, and in per
    cent the workers' processors, and the links and disks of all nodes together (of one each).
    """
    samples, used = (bundle.table(t).to_pandas() for t in ("samples", "utilisation"))
    for frame in (samples, used):
        for column in ("entity", "metric", "source", "kind"):
            if column in frame:
                frame[column] = frame[column].astype(str)
    running = samples[(samples["metric"] == "running_tasks") & (samples["entity"] == "all")]
    busy = used[(used["metric"] == "busy") & (used["t_ns"] >= began_ns)]
    cpu = busy[(busy["kind"] == "cgroup_cpu") & busy["entity"].isin(WORKERS)]
    disk = busy[(busy["kind"] == "emulated_disk") & ~busy["entity"].str.startswith("head")]
    at = np.arange(began_ns, ended_ns + 1, 10**9, dtype=np.int64)
    wire = np.zeros(max(len(at) - 1, 0))
    for _, counter in samples[samples["metric"] == "in"].groupby("entity"):
        wire += 100 * np.diff(np.interp(at, counter["t_ns"], counter["value"])) / LINK_BPS
    series = {
        "tasks": (running["t_ns"], running["value"]),
        "workers' cpu": _summed(cpu),
        "links, in": (at[1:], wire),
        "disks": _summed(disk),
    }
    return {
        name: ((np.asarray(t, np.int64) - began_ns) / 1e9, np.asarray(v, float))
        for name, (t, v) in series.items()
    }


def _summed(rows: pd.DataFrame) -> tuple[Any, Any]:
    total = rows.groupby("t_ns")["value"].sum()
    return total.index, total


def times(completed: Sequence[ProgramRun]) -> dict[str, dict[str, list[float]]]:
    """Seconds of the runs, by program and scenario."""
    by_program: dict[str, dict[str, list[float]]] = {p: {} for p in PROGRAMS}
    for run in completed:
        by_program[run.program].setdefault(run.scenario, []).append(run.time_s)
    return by_program


def costs(completed: Sequence[ProgramRun]) -> list[Cost]:
    """Cost of each scenario for each program, by the means of the runs."""
    cost_rows = []
    for program in PROGRAMS:
        program_runs = [r for r in completed if r.program == program]
        guest = [r.time_s for r in program_runs if r.scenario == "guest"]
        guest_s = np.mean(guest) if guest else np.nan
        for scenario in dict.fromkeys(r.scenario for r in program_runs):
            scenario_runs = [r for r in program_runs if r.scenario == scenario]
            cost_rows.append(
                Cost(
                    program,
                    scenario,
                    round(float(np.median([r.waves for r in scenario_runs]))),
                    float(np.mean([r.time_s for r in scenario_runs])),
                    float(np.mean([r.after_s for r in scenario_runs])),
                    float(guest_s),
                )
            )
    return cost_rows


def rates(cost_rows: Sequence[Cost]) -> dict[str, float]:
    """Waves per second of each program in `guest`."""
    return {c.program: c.waves / c.run_time_s for c in cost_rows if c.scenario == "guest"}


def after(cost_rows: Sequence[Cost]) -> dict[str, dict[str, float]]:
    """Seconds after the last job of the programs that write, by scenario."""
    by_program: dict[str, dict[str, float]] = {}
    for cost in cost_rows:
        if cost.program in WRITING:
            by_program.setdefault(cost.program, {})[cost.scenario] = cost.after_s
    return by_program
