"""Series from storage: bundles, runs of a study, tables, CSV files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from penstock.archive.bundle import Bundle, read_accesses
from penstock.archive.completeness import check_complete, check_drawn, check_manifest
from penstock.archive.selection import Selection
from penstock.archive.series.derived import series_of
from penstock.archive.series.entities import entity_labels
from penstock.archive.series.series import Array, Phase, Recorded, Series, check_count, takes
from penstock.errors import BadInput

#: tables of a bundle with series, in order of preference
TABLES = ("utilisation", "points", "samples", "io_events", "spark_tasks")


def of_selection(
    selection: Selection,
    table: str | None = None,
    align: str | None = None,
    *,
    partial: bool = False,
    drawn: Sequence[str] = (),
) -> Recorded:
    """Series of a bundle, or of all valid runs of a treatment or a study, each relative to its own start.

    `align` is the name of a phase whose start becomes 0; earlier times are negative.

    `table`: `utilisation` (the default if present), `points` of an experiment, `samples`, `spark_tasks`, or
    `io_events` (offsets by request number). Raises BadInput if a run has none, and, unless `partial` data are
    accepted, if its recorded data are incomplete; with the selectors `drawn`, only if a selected series is.
    """
    recorded: list[Recorded] = []
    for path in selection.runs:
        check_manifest(path / "manifest.json")
        bundle = Bundle.open(path)
        one = of_bundle(bundle, table, several=len(selection.runs) > 1)
        if not drawn:
            check_complete(path, partial, collected=table in (None, "points"))
        else:
            there = [*one.series, *(_without_points(bundle) if table in (None, "points") else [])]
            check_drawn(bundle, [s for s in there if any(takes(d, s) for d in drawn)], partial)
        recorded.append(one if align is None else one.from_phase(align))
    if not recorded:
        raise BadInput(f"{selection.name}: found no valid run; expected one")
    axes = {r.axis for r in recorded}
    return Recorded(
        [s for r in recorded for s in r.series],
        axis=axes.pop(),
        phases=recorded[0].phases if len(recorded) == 1 else [],
        axis_name=recorded[0].axis_name,
        start_utc_ns=recorded[0].start_utc_ns if len(recorded) == 1 else None,
    )


def of_bundle(bundle: Bundle, table: str | None = None, several: bool = False) -> Recorded:
    """Series of one bundle, as `of_selection`, without a check; with `several`, with the run's name."""
    path = bundle.path
    have = [t for t in TABLES if t in bundle.tables]
    # a sampled run with points of collectors
    both = table is None and {"utilisation", "points"} <= set(have)
    if table is None:
        table = have[0] if have else "utilisation"
    if table not in have:
        raise BadInput(
            f"{path}: found no table {table}; expected one of {', '.join(have) or 'a monitored run'}"
        )
    run = run_name(bundle) if several else ""
    levels = bundle.manifest.get("levels") or {}
    named = (f"{k} {v}" if len(levels) > 1 else str(v) for k, v in levels.items())
    group = ", ".join(named) if several else ""
    if table == "io_events":
        return _requests(bundle, run, group)
    if table == "spark_tasks":
        return _tasks(bundle, run, group)
    if table == "points":
        return _points(bundle, run, group)
    phases = _phases(bundle)
    rows = bundle.table(table).to_pandas()
    of = "kind" if table == "utilisation" else "source"
    needed = ["t_ns", of, "entity", "metric", "unit", "value"]
    needed += ["cumulative"] if table == "samples" else []
    lacking = [c for c in needed if c not in rows]
    if lacking:
        raise BadInput(f"{path}: found table {table} without {lacking[0]}; expected it")
    begin = begin_ns(bundle, rows)
    series = []
    keys = [of, "entity", "metric", "unit"]
    # rows have a node's name if nodes were monitored individually
    if "node_id" in rows and rows["node_id"].astype(str).nunique() > 1:
        keys = ["node_id", *keys]
    for names, part in rows.groupby([rows[k].astype(str) for k in keys], sort=False):
        host, (kind, entity, metric, unit) = (names[0] if len(keys) == 5 else "", names[-4:])
        part = part.sort_values("t_ns", kind="stable")
        y = part["value"].to_numpy(float)
        x = (part["t_ns"].to_numpy(np.int64) - begin) / 1e9
        if table == "samples" and bool(part["cumulative"].iloc[0]):
            x, y, unit = _rate(x, y, unit)
        labels = entity_labels(entity)
        node = " ".join(filter(None, [host, *labels.values()]))
        quantity = f"{kind} {metric}".replace("_", " ")
        labels |= {"node": host} if host else {}
        alias = f"{host} {kind} {entity} {metric}".strip()
        series.append(
            Series(
                f"{kind}_{metric} {node}".strip(),
                x,
                y,
                unit,
                node,
                quantity,
                run,
                group,
                labels=labels,
                alias=alias,
            )
        )
    start = _utc_ns(bundle, begin)
    if both and start is not None:
        beside = _points(bundle, run, group, start)
        series += beside.series if beside.axis == "time" else []
    check_count(len(series), path)
    return _with_derived(bundle, series, phases, start, run, group)


def _with_derived(
    bundle: Bundle,
    series: list[Series],
    phases: list[Phase],
    start: int | None,
    run: str,
    group: str,
) -> Recorded:
    """Series over time, and those derived from them."""
    derived = [] if start is None else series_of(bundle, start, run, group)
    return Recorded([*series, *derived], phases=phases, start_utc_ns=start)


def _utc_ns(bundle: Bundle, monotonic_ns: int) -> int | None:
    """Time of day of a time on the run's clock, None if the clocks are unknown."""
    if "clocks" not in bundle.tables:
        return None
    clocks = bundle.table("clocks").to_pandas()
    if not len(clocks):
        return None
    return monotonic_ns + int((clocks["realtime_ns"] - clocks["monotonic_ns"]).iloc[0])


def run_name(bundle: Bundle) -> str:
    """`r001` of a run of a study, `NAME#2` of an experiment's second repeat."""
    about = bundle.manifest.get("experiment")
    if isinstance(about, dict) and about.get("name"):
        return f"{about['name']}#{bundle.manifest['attempt']}"
    return str(bundle.manifest.get("run_id") or bundle.path.name)


def _rate(x: Array, y: Array, unit: str) -> tuple[Array, Array, str]:
    """A counter as its rate between readings; no value after a decrease."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.diff(y) / np.diff(x)
    rate[~np.isfinite(rate) | (rate < 0)] = np.nan
    return x[1:], rate, "1/s" if unit in ("", "1") else f"{unit}/s"


def begin_ns(bundle: Bundle, rows: pd.DataFrame) -> int:
    """Start of a run by its monotonic clock [ns]."""
    if "phases" in bundle.tables:
        phases = bundle.table("phases").to_pandas()
        part = phases[phases["phase_id"].astype(str) == "workload"]
        if len(part):
            return int(part["start_ns"].iloc[0])
    times = bundle.manifest.get("times") or {}
    if "experiment" in bundle.manifest and times.get("start_ns") is not None:
        return int(times["start_ns"])
    return int(rows["t_ns"].min()) if len(rows) else 0


def _phases(bundle: Bundle) -> list[Phase]:
    if "phases" not in bundle.tables:
        return []
    rows = bundle.table("phases").to_pandas()
    begin = begin_ns(bundle, rows.rename(columns={"start_ns": "t_ns"}))
    return [
        Phase(str(r["phase_id"]), (r["start_ns"] - begin) / 1e9, (r["end_ns"] - begin) / 1e9)
        for r in rows.to_dict("records")
    ]


def _requests(bundle: Bundle, run: str, group: str) -> Recorded:
    """Offsets of each file by request number, in order of recording."""
    table = read_accesses(
        bundle.path / "io_events.parquet", ["seq", "file_id", "offset_bytes", "direction"]
    )
    rows = table.to_pandas().sort_values("seq", kind="stable")
    names: dict[int, str] = {}
    if "files" in bundle.tables:
        files = bundle.table("files", ["file_id", "path"]).to_pandas()
        names = dict(zip(files["file_id"], files["path"].astype(str), strict=True))
    series = []
    for file_id, part in rows.groupby("file_id"):
        name = names.get(int(file_id)) or f"file {file_id}"
        number = np.arange(len(part), dtype=float)
        offset = part["offset_bytes"].to_numpy(float)
        series.append(Series(name, number, offset, "B", name, "offset", run, group))
    series.sort(key=lambda s: -len(s.x))
    check_count(len(series), bundle.path)
    return Recorded(series, axis="index", axis_name="request")


def _points(bundle: Bundle, run: str, group: str, begin: int | None = None) -> Recorded:
    """Series of an experiment: those with times, or sequences if there are none.

    With `begin` [ns since 1970], times are relative to it, and derived series are omitted.
    """
    named = bundle.table("series").to_pandas().set_index("series_id")
    kinds = named["kind"].astype(str)
    timed = bool((kinds == "time").any())
    rows = bundle.table("points").to_pandas()
    rows = rows[rows["series_id"].map(kinds) == ("time" if timed else "sequence")]
    if timed and (span := _marks_of(bundle)) is not None:
        # points outside of the experiment are no result of it; the table `series` has their number
        rows = rows[rows["utc_ns"].between(*span)]
    value = rows["float"].fillna(rows["integer"]).fillna(rows["boolean"].astype(float))
    rows = rows.assign(_y=value)[value.notna()]
    start = int(rows["utc_ns"].min()) if timed and len(rows) else 0
    phases = _phases(bundle)
    if timed and "phases" in bundle.tables:
        begun = bundle.table("phases").to_pandas().rename(columns={"start_ns": "t_ns"})
        utc_ns = _utc_ns(bundle, begin_ns(bundle, begun))
        start = start if utc_ns is None else utc_ns
    start = start if begin is None else begin
    series = []
    for number, part in rows.groupby("series_id"):
        x = (
            (part["utc_ns"].to_numpy(np.int64) - start) / 1e9
            if timed
            else part["index"].to_numpy(float)
        )
        y = part["_y"].to_numpy(float)
        series.append(_of_row(named.loc[number], x, y, run, group))
    check_count(len(series), bundle.path)
    if timed and begin is None:
        return _with_derived(bundle, series, phases, start, run, group)
    return Recorded(series) if timed else Recorded(series, "index", "number")


def _marks_of(bundle: Bundle) -> tuple[int, int] | None:
    """Start and end of an experiment [ns since 1970]; None for another run."""
    times = bundle.manifest.get("times") or {}
    start, end = times.get("start_realtime_ns"), times.get("end_realtime_ns")
    if "experiment" not in bundle.manifest or start is None or end is None:
        return None
    return int(start), int(end)


def _of_row(about: pd.Series[Any], x: Array, y: Array, run: str = "", group: str = "") -> Series:
    """The series of a row of the table `series`."""
    labels = {k: str(v) for k, v in json.loads(str(about["labels"])).items()}
    node, metric = " ".join(labels.values()), str(about["metric"])
    return Series(
        f"{metric} {node}".strip(),
        x,
        y,
        str(about["unit"]),
        node,
        metric,
        run,
        group,
        verdict=str(about.get("verdict", "")),
        labels=labels,
        source=str(about.get("source", "")),
        lacks=_lacks(about),
    )


def _without_points(bundle: Bundle) -> list[Series]:
    """Series that lost all of their points."""
    if "series" not in bundle.tables:
        return []
    rows = bundle.table("series").to_pandas()
    nothing = np.empty(0)
    lost = rows[rows["verdict"].astype(str) == "unusable"]
    return [_of_row(about, nothing, nothing) for _, about in lost.iterrows()]


def _lacks(about: pd.Series[Any]) -> str:
    """`, 17 of 18 points` of a row of the table `series`, if known."""
    expected, stored = (float(about.get(k, np.nan) or np.nan) for k in ("expected", "stored"))
    return f", {stored:.0f} of {expected:.0f} points" if expected > stored else ""


def _tasks(bundle: Bundle, run: str, group: str) -> Recorded:
    """Durations of the tasks of each stage of a Spark application, in order of launch."""
    rows = bundle.table("spark_tasks").to_pandas()
    rows = rows[rows["time_s"].notna()].sort_values("launch_ns", kind="stable")
    series = []
    for stage, part in rows.groupby("stage_id"):
        number = np.arange(len(part), dtype=float)
        time = part["time_s"].to_numpy(float)
        name = f"stage {stage}"
        series.append(Series(name, number, time, "s", name, "task time", run, group))
    check_count(len(series), bundle.path)
    return Recorded(series, axis="index", axis_name="task")
