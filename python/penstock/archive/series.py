"""Series to draw or to compare: of a bundle, of runs of a study, of an exported table, of CSV on a pipe.

A series is what one metric of one node did in one run. Its `x` is the time since the run began in seconds, or
the place in a sequence; series are never joined by position, only by time (`joined`).
"""

from __future__ import annotations

import fnmatch
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive import delimited
from penstock.archive.bundle import Bundle, read_accesses
from penstock.archive.completeness import TAKEN, check_complete, check_drawn, check_manifest
from penstock.archive.entities import entity_labels
from penstock.archive.selection import Selection
from penstock.archive.selector import selector
from penstock.errors import BadInput, printable
from penstock.text import like

Array = npt.NDArray[np.float64]
Axis = Literal["time", "index", "value"]

#: what one table may hold
MOST_BYTES = 2 << 30
MOST_SERIES = 20_000
MOST_NAME = 500
#: of a bundle, what series are read from, in the order of preference
TABLES = ("utilisation", "points", "samples", "io_events", "spark_tasks")
#: names of a first column that holds times; the others of `_INDEX` hold places in a sequence
_TIMES = re.compile(
    r"(?i)^(time|timestamp|t|date|datetime|utc|when|elapsed|duration)(_?(ns|us|ms|s))?$"
)
_INDEX = re.compile(r"(?i)^(index|sample|seq|sequence|n|#|request)$")
_UNIT = re.compile(r"^(.*?)\s*[(\[]([^()\[\]]{1,30})[)\]]$")
_LABELLED = re.compile(r"^([^{}]+)\{(.*)\}$")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
#: the unit that a metric's name ends with, after the conventions of Prometheus
_SUFFIXES = {
    "bytes": "B",
    "seconds": "s",
    "percent": "%",
    "watts": "W",
    "joules": "J",
    "celsius": "°C",
    "volts": "V",
    "hertz": "Hz",
}
_PER_SECOND = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Phase:
    """A phase of a run: its begin and end in seconds since the run began."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Series:
    """One series: `x` ascending [s, or an index], `y` in `unit` (NaN: no value there).

    `name` is the metric and what it is about, `cpu_busy all`, whatever it was read from. `node` is what it is
    about (a host, a disk), `quantity` what was measured of it, `run` the run or
    replicate, `group` what its replicates have in common (the treatment), `verdict` how complete it is, empty
    where that is its run's. `alias`: another name that selects it; `source`: the collector
    that it came from; `lacks`: what a partial one lacks, for a message.
    """

    name: str
    x: Array
    y: Array
    unit: str = ""
    node: str = ""
    quantity: str = ""
    run: str = ""
    group: str = ""
    verdict: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    alias: str = ""
    source: str = ""
    lacks: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All that it may be called by."""
        return self.name, self.quantity, self.quantity.replace(" ", "_"), self.alias

    @property
    def key(self) -> tuple[str, str, str]:
        """What its replicates are called alike."""
        return self.group, self.name, self.unit


@dataclass(frozen=True)
class Recorded:
    """Series on one axis, and the phases of the run that they are of."""

    series: list[Series]
    axis: Axis = "time"
    axis_name: str = ""
    axis_unit: str = ""
    phases: list[Phase] = field(default_factory=list)
    #: the time at 0, since 1970-01-01 UTC [ns], where it is known
    start_utc_ns: int | None = None
    #: the phase that begins at 0, empty where that is the begin of the run
    origin: str = ""

    @property
    def units(self) -> list[str]:
        """Units in the order of their first series."""
        return list(dict.fromkeys(s.unit for s in self.series))

    @property
    def points(self) -> int:
        """How many points all series have together."""
        return sum(len(s.x) for s in self.series)

    def chosen(self, globs: Sequence[str]) -> Recorded:
        """The series that one of the selectors takes, or whose node it names. BadInput for none."""
        if not globs:
            return self
        kept = [s for s in self.series if any(takes(g, s) for g in globs)]
        if not kept:
            known = names_near(globs, [s.name for s in self.series])
            raise BadInput(f"--series: found none called {' or '.join(globs)}; expected {known}")
        return replace(self, series=kept)

    def within(self, phase: str) -> Recorded:
        """What lies in one phase, whose begin becomes 0. BadInput where there is no such phase."""
        found = self.phase(phase, "--phase")
        return replace(
            self,
            series=[_cut(s, found.start_s, found.end_s) for s in self.series],
            phases=[
                Phase(p.name, p.start_s - found.start_s, p.end_s - found.start_s)
                for p in self.phases
                if p is not found and p.start_s >= found.start_s and p.end_s <= found.end_s
            ],
        )

    def from_phase(self, phase: str) -> Recorded:
        """The same with the begin of a phase as time 0. BadInput where there is no such phase."""
        at = self.phase(phase, "--align").start_s
        start = self.start_utc_ns
        return replace(
            self,
            series=[replace(s, x=s.x - at) for s in self.series],
            phases=[Phase(p.name, p.start_s - at, p.end_s - at) for p in self.phases],
            start_utc_ns=None if start is None else start + round(at * 1e9),
            origin=phase,
        )

    def phase(self, phase: str, option: str) -> Phase:
        """The first phase of a name, with those around it or without. BadInput naming the option."""
        for p in self.phases:
            if phase in (p.name, p.name.rpartition("/")[2]):
                return p
        known = ", ".join(dict.fromkeys(p.name for p in self.phases)) or "none was recorded"
        raise BadInput(f"{option}: found {phase}; expected one of the run's phases: {known}")

    def named(self, node: str, units: dict[str, str]) -> Recorded:
        """With the node that a pattern finds in each name (its first group), and units by their names."""
        try:
            pattern = re.compile(node) if node else None
        except re.error as error:
            raise BadInput(
                f"--node: found {node!r}, {error}; expected a regular expression"
            ) from None
        return replace(self, series=[_named(s, pattern, units) for s in self.series])


def takes(text: str, series: Series) -> bool:
    """True if a selector takes a series, or is a pattern of its node."""
    plain = any(fnmatch.fnmatchcase(n, text) for n in (*series.names, series.node) if n)
    return plain or selector(text).takes(series.names, series.node, series.labels)


def names_near(texts: Sequence[str], names: Iterable[str]) -> str:
    """Names for a message: those like what was asked for, else the first twelve."""
    known = list(dict.fromkeys(names))
    near = list(dict.fromkeys(n for t in texts for n in like(t.partition("{")[0], known)))
    if near:
        return f"one like {' or '.join(printable(n) for n in near)}"
    more = f" and {len(known) - 12} more" if len(known) > 12 else ""
    return "one of " + (", ".join(printable(n) for n in known[:12]) or "none") + more


def _cut(series: Series, start_s: float, end_s: float) -> Series:
    use = (series.x >= start_s) & (series.x <= end_s)
    return replace(series, x=series.x[use] - start_s, y=series.y[use])


def _named(series: Series, pattern: re.Pattern[str] | None, units: dict[str, str]) -> Series:
    found = pattern.search(series.name) if pattern else None
    if found:
        node = found.group(1) if found.re.groups else found.group(0)
        rest = series.name[: found.start()] + series.name[found.end() :]
        series = replace(series, node=node, quantity=rest.strip(" _-:./") or series.quantity)
    for name in (series.name, series.quantity):
        if name in units:
            return replace(series, unit=units[name])
    return series


def at_times(series: Series, at: Array, how: str = "nearest", within: float | None = None) -> Array:
    """The values of a series at some times, NaN where it has none.

    `exact`: of the same instant; `nearest`: of the nearest point, not farther than `within`, by default half
    a step of the series (its median); `last`: the last value before.
    """
    if how not in ("exact", "nearest", "last"):
        raise BadInput(f"--join: found {how}; expected exact, nearest or last")
    if not len(series.x):
        return np.full(len(at), np.nan)
    after = np.searchsorted(series.x, at, side="right")
    before = np.clip(after - 1, 0, len(series.x) - 1)
    after = np.clip(after, 0, len(series.x) - 1)
    if how == "nearest":
        if within is None:
            within = float(np.median(np.diff(series.x))) / 2 if len(series.x) > 1 else 0.0
        closer = np.abs(series.x[after] - at) < np.abs(series.x[before] - at)
        which = np.where(closer, after, before)
        # times are sums of steps, which are rounded
        use = np.abs(series.x[which] - at) <= within * (1 + 1e-9)
    else:
        which = before
        use = series.x[which] == at if how == "exact" else series.x[which] <= at
    return np.where(use, series.y[which], np.nan)


def joined(
    x: Series, y: Series, how: str = "nearest", within: float | None = None
) -> tuple[Array, Array]:
    """Values of two series at the same time: of each point of `y` that of `x`, as `at_times` finds it.

    Points without a partner are left out.
    """
    one = at_times(x, y.x, how, within)
    whole = np.isfinite(one) & np.isfinite(y.y)
    return one[whole], y.y[whole]


def median_step(series: Iterable[Series]) -> float:
    """The median distance of neighbouring points over all series, 1 where there is none."""
    steps = [np.diff(s.x) for s in series if len(s.x) > 1]
    every = np.concatenate(steps) if steps else np.empty(0)
    every = every[every > 0]
    return float(np.median(every)) if len(every) else 1.0


def names_a_time(column: str) -> bool:
    """Whether a column is called as one of times."""
    return _TIMES.match(_parted(column)[0]) is not None


def names_an_index(column: str) -> bool:
    """Whether a column is called as one of places in a sequence."""
    return _INDEX.match(_parted(column)[0]) is not None


def of_selection(
    selection: Selection,
    table: str | None = None,
    align: str | None = None,
    *,
    partial: bool = False,
    drawn: Sequence[str] = (),
) -> Recorded:
    """The series of a bundle, or of all valid runs of a treatment or of a study, each from its own begin on.

    With `align`, the name of a phase, from the begin of that on, what came before at negative times.

    `table`: `utilisation` (the default where there is one), `points` of an experiment,
    `samples`, `spark_tasks`, or
    `io_events` (offsets by the number of the request). Raises BadInput where a run has none, and, unless
    `partial` data will do, where what was recorded of one is not complete; with the selectors `drawn`, only
    where a series that one of them takes is not.
    """
    found: list[Recorded] = []
    for path in selection.runs:
        check_manifest(path / "manifest.json")
        bundle = Bundle.open(path)
        one = of_bundle(bundle, table, several=len(selection.runs) > 1)
        if not drawn:
            check_complete(path, partial, collected=table in (None, "points"))
        else:
            there = [*one.series, *(_without_points(bundle) if table in (None, "points") else [])]
            check_drawn(bundle, [s for s in there if any(takes(d, s) for d in drawn)], partial)
        found.append(one if align is None else one.from_phase(align))
    if not found:
        raise BadInput(f"{selection.name}: found no valid run; expected one")
    axes = {r.axis for r in found}
    return Recorded(
        [s for r in found for s in r.series],
        axis=axes.pop(),
        phases=found[0].phases if len(found) == 1 else [],
        axis_name=found[0].axis_name,
        start_utc_ns=found[0].start_utc_ns if len(found) == 1 else None,
    )


def of_bundle(bundle: Bundle, table: str | None = None, several: bool = False) -> Recorded:
    """The series of one bundle, as `of_selection`, whatever its verdict; of `several` with the run's name."""
    path = bundle.path
    have = [t for t in TABLES if t in bundle.tables]
    # a run that was sampled, and that collectors brought points of
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
    begin = _begin_ns(bundle, rows)
    series = []
    keys = [of, "entity", "metric", "unit"]
    # a run has a node's name in its rows, where its nodes were watched one by one
    if "node_id" in rows and rows["node_id"].astype(str).nunique() > 1:
        keys = ["node_id", *keys]
    for names, mine in rows.groupby([rows[k].astype(str) for k in keys], sort=False):
        host, (kind, entity, metric, unit) = (names[0] if len(keys) == 5 else "", names[-4:])
        mine = mine.sort_values("t_ns", kind="stable")
        y = mine["value"].to_numpy(float)
        x = (mine["t_ns"].to_numpy(np.int64) - begin) / 1e9
        if table == "samples" and bool(mine["cumulative"].iloc[0]):
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
    _bounded(len(series), path)
    return _with_derived(bundle, series, phases, start, run, group)


def _with_derived(
    bundle: Bundle,
    series: list[Series],
    phases: list[Phase],
    start: int | None,
    run: str,
    group: str,
) -> Recorded:
    """Series over time, and those that were computed from them."""
    from penstock.archive.derived import series_of

    made = [] if start is None else series_of(bundle, start, run, group)
    return Recorded([*series, *made], phases=phases, start_utc_ns=start)


def _utc_ns(bundle: Bundle, monotonic_ns: int) -> int | None:
    """The time of day of a moment of the run's clock, None where its clocks are not known."""
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
    """A counter as its rate between readings; no value where it went backwards."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.diff(y) / np.diff(x)
    rate[~np.isfinite(rate) | (rate < 0)] = np.nan
    return x[1:], rate, "1/s" if unit in ("", "1") else f"{unit}/s"


def _begin_ns(bundle: Bundle, rows: pd.DataFrame) -> int:
    if "phases" in bundle.tables:
        phases = bundle.table("phases").to_pandas()
        mine = phases[phases["phase_id"].astype(str) == "workload"]
        if len(mine):
            return int(mine["start_ns"].iloc[0])
    times = bundle.manifest.get("times") or {}
    if "experiment" in bundle.manifest and times.get("start_ns") is not None:
        return int(times["start_ns"])
    return int(rows["t_ns"].min()) if len(rows) else 0


def _phases(bundle: Bundle) -> list[Phase]:
    if "phases" not in bundle.tables:
        return []
    rows = bundle.table("phases").to_pandas()
    begin = _begin_ns(bundle, rows.rename(columns={"start_ns": "t_ns"}))
    return [
        Phase(str(r["phase_id"]), (r["start_ns"] - begin) / 1e9, (r["end_ns"] - begin) / 1e9)
        for r in rows.to_dict("records")
    ]


def _requests(bundle: Bundle, run: str, group: str) -> Recorded:
    """Offsets of each file by the number of its request, in the order in which they were recorded."""
    table = read_accesses(
        bundle.path / "io_events.parquet", ["seq", "file_id", "offset_bytes", "direction"]
    )
    rows = table.to_pandas().sort_values("seq", kind="stable")
    names: dict[int, str] = {}
    if "files" in bundle.tables:
        files = bundle.table("files", ["file_id", "path"]).to_pandas()
        names = dict(zip(files["file_id"], files["path"].astype(str), strict=True))
    series = []
    for file_id, mine in rows.groupby("file_id"):
        name = names.get(int(file_id)) or f"file {file_id}"
        number = np.arange(len(mine), dtype=float)
        offset = mine["offset_bytes"].to_numpy(float)
        series.append(Series(name, number, offset, "B", name, "offset", run, group))
    series.sort(key=lambda s: -len(s.x))
    _bounded(len(series), bundle.path)
    return Recorded(series, axis="index", axis_name="request")


def _points(bundle: Bundle, run: str, group: str, begin: int | None = None) -> Recorded:
    """The series of an experiment: those of times, or those of sequences where there is none of times.

    With `begin` [ns since 1970] times count from then, and derived series are left out.
    """
    named = bundle.table("series").to_pandas().set_index("series_id")
    kinds = named["kind"].astype(str)
    timed = bool((kinds == "time").any())
    rows = bundle.table("points").to_pandas()
    rows = rows[rows["series_id"].map(kinds) == ("time" if timed else "sequence")]
    value = rows["float"].fillna(rows["integer"]).fillna(rows["boolean"].astype(float))
    rows = rows.assign(_y=value)[value.notna()]
    start = int(rows["utc_ns"].min()) if timed and len(rows) else 0
    phases = _phases(bundle)
    if timed and "phases" in bundle.tables:
        begun = bundle.table("phases").to_pandas().rename(columns={"start_ns": "t_ns"})
        known = _utc_ns(bundle, _begin_ns(bundle, begun))
        start = start if known is None else known
    start = start if begin is None else begin
    series = []
    for number, mine in rows.groupby("series_id"):
        x = (
            (mine["utc_ns"].to_numpy(np.int64) - start) / 1e9
            if timed
            else mine["index"].to_numpy(float)
        )
        y = mine["_y"].to_numpy(float)
        series.append(_of_row(named.loc[number], x, y, run, group))
    _bounded(len(series), bundle.path)
    if timed and begin is None:
        return _with_derived(bundle, series, phases, start, run, group)
    return Recorded(series) if timed else Recorded(series, "index", "number")


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
    """The series that lost all of their points."""
    if "series" not in bundle.tables:
        return []
    rows = bundle.table("series").to_pandas()
    nothing = np.empty(0)
    lost = rows[rows["verdict"].astype(str) == "unusable"]
    return [_of_row(about, nothing, nothing) for _, about in lost.iterrows()]


def _lacks(about: pd.Series[Any]) -> str:
    """`, 17 of 18 points` of a row of the table `series`, where it is known."""
    expected, stored = (float(about.get(k, np.nan) or np.nan) for k in ("expected", "stored"))
    return f", {stored:.0f} of {expected:.0f} points" if expected > stored else ""


def _tasks(bundle: Bundle, run: str, group: str) -> Recorded:
    """Times of the tasks of each stage of a Spark application, in the order of their launch."""
    rows = bundle.table("spark_tasks").to_pandas()
    rows = rows[rows["time_s"].notna()].sort_values("launch_ns", kind="stable")
    series = []
    for stage, mine in rows.groupby("stage_id"):
        number = np.arange(len(mine), dtype=float)
        time = mine["time_s"].to_numpy(float)
        name = f"stage {stage}"
        series.append(Series(name, number, time, "s", name, "task time", run, group))
    _bounded(len(series), bundle.path)
    return Recorded(series, axis="index", axis_name="task")


def of_file(path: Path, x: str | None = None, *, partial: bool = True) -> Recorded:
    """The series of a CSV, JSON Lines or Parquet file with a column of times or of places in a sequence.

    Raises BadInput naming the file and what is wrong with it.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput(
                f"{path}: found {path.stat().st_size} bytes; expected {MOST_BYTES} at most"
            )
        if path.suffix == ".parquet":
            return of_frame(_parquet(path, partial), str(path), x)
        if path.suffix in (".jsonl", ".ndjson"):
            return of_frame(pd.read_json(path, lines=True), str(path), x)
        with path.open("rb") as file:
            return of_csv(file.read(MOST_BYTES + 1), str(path), x)
    except OSError as error:
        raise BadInput(
            f"{path}: {error.strerror or error}; expected a table that can be read"
        ) from None
    except pa.ArrowException as error:
        raise BadInput(f"{path}: found no Parquet ({error}); expected a table") from None
    except ValueError as error:
        raise BadInput(f"{path}: {str(error).splitlines()[0]}; expected a table") from None


def _parquet(path: Path, partial: bool) -> pd.DataFrame:
    table = pq.read_table(path)
    # of an export: what is not complete says so
    told = {f.name: (f.metadata or {}).get(b"verdict", b"complete").decode() for f in table.schema}
    bad = [f"{printable(n)}: {verdict}" for n, verdict in told.items() if verdict not in TAKEN]
    if bad and not partial:
        raise BadInput(
            f"{path}: found {', '.join(bad[:5])}; expected complete series, or --partial"
        )
    units = {f.name: (f.metadata or {}).get(b"unit", b"").decode() for f in table.schema}
    frame: pd.DataFrame = table.to_pandas()
    named = {n: f"{n} ({u})" for n, u in units.items() if u and not _UNIT.match(n)}
    return frame.rename(columns=named)


def of_csv(content: bytes, name: str, x: str | None = None) -> Recorded:
    """The series of a CSV text (RFC 4180, LF or CRLF, header row); empty cells are no value."""
    if len(content) > MOST_BYTES:
        raise BadInput(f"{name}: found more than {MOST_BYTES} bytes; expected {MOST_BYTES} at most")
    frame = delimited.read_frame(content, name)
    separator = delimited.separator_of(content)
    rows = io.BytesIO(content)
    names = delimited.unique_names(delimited.header_row(rows, separator))
    fields = len(delimited.next_row(rows, separator))
    if len(names) != len(frame.columns):
        return of_frame(frame, name, x)
    if fields > len(names):
        raise BadInput(
            f"{name}: found {fields} fields below {len(names)} names; expected a name for each"
        )
    frame.columns = pd.Index([n or c for n, c in zip(names, frame.columns, strict=True)])
    return of_frame(frame, name, x)


def of_frame(frame: pd.DataFrame, name: str, x: str | None = None) -> Recorded:
    """The series of a table: `x` or the first column that looks like a time or an index, and numbers.

    A column `metric`, `labels` and a value beside the time make a series of each metric with its labels.
    """
    frame = frame.rename(columns=str)
    _bounded(len(frame.columns), name)
    if not len(frame.columns):
        raise BadInput(f"{name}: found no column; expected a time and a value at least")
    at, axis = _axis_column(frame, name, x)
    values = frame[at]
    start: int | None = None
    if axis == "time":
        where, start = _seconds(values, at, name)
    else:
        where = _numbers(values, at, name)
    others = [c for c in frame.columns if c != at]
    series = []
    mark = delimited.decimal_mark(frame)
    for column in others:
        try:
            y = delimited.numbers_of(frame[column], mark).to_numpy(float)
        except ValueError as error:
            raise BadInput(f"{name}: column {printable(column)}: {error}") from None
        given = frame[column].notna().to_numpy()
        if not given.any() or not np.isfinite(y[given]).any():
            continue  # texts
        use = given & np.isfinite(where)
        order = np.argsort(where[use], kind="stable") if axis != "value" else slice(None)
        series.append(_of_column(column, where[use][order], y[use][order]))
    if not series:
        raise BadInput(f"{name}: found no column of numbers beside {at}; expected one at least")
    label, unit = _parted(at)
    return Recorded(series, axis, label, unit, start_utc_ns=start)


def _axis_column(frame: pd.DataFrame, name: str, x: str | None) -> tuple[str, Axis]:
    plain = {c: (m.group(1) if (m := _UNIT.match(c)) else c) for c in frame.columns}
    if x is not None:
        named = [c for c in frame.columns if x in (c, plain[c])]
        if not named:
            shown = ", ".join(printable(c) for c in list(frame.columns)[:12])
            raise BadInput(f"--x: found {x}; expected a column of {name}: {shown}")
        column = named[0]
        return column, (
            "time"
            if _TIMES.match(plain[column])
            else "index"
            if _INDEX.match(plain[column])
            else "value"
        )
    for column in frame.columns:
        if _TIMES.match(plain[column]):
            return column, "time"
    for column in frame.columns:
        if _INDEX.match(plain[column]):
            return column, "index"
    return frame.columns[0], "value"


def _seconds(values: pd.Series[Any], column: str, name: str) -> tuple[Array, int | None]:
    """Times in seconds since the first, and that in UTC [ns]: ISO 8601, or numbers of a unit.

    The unit is what the column's name ends with, else what the size of the numbers says; numbers too small
    for a time since 1970 are times since some begin, and stay as they are.
    """
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(float)
    given = values.notna().to_numpy()
    if given.any() and np.isfinite(numbers[given]).all():
        whole = pd.to_numeric(values, errors="coerce")
        first = whole.min()
        largest = float(np.nanmax(np.abs(numbers)))
        ending = re.search(r"[_ (\[](ns|us|ms|s)[)\]]?$", column)
        per = _PER_SECOND[ending.group(1)] if ending else _by_size(largest)
        if largest * per < 1e8:  # a time since the begin
            return np.asarray(whole.to_numpy(float) * per), None
        since = np.asarray((whole - first).to_numpy(float) * per)
        exact = pd.api.types.is_integer_dtype(whole)
        return since, int(first) * round(per * 1e9) if exact else round(float(first) * per * 1e9)
    times = pd.to_datetime(values, utc=True, errors="coerce", format="ISO8601")
    bad = times.isna() & values.notna()
    if bad.any():
        row = int(np.flatnonzero(bad.to_numpy())[0])
        raise BadInput(
            f"{name}:{row + 2}: found {printable(str(values.iloc[row])[:60])!r} in column {column}; "
            "expected a time: seconds, nanoseconds since 1970 or ISO 8601"
        )
    first = times.min()
    since = (times - first).dt.total_seconds().to_numpy(float)
    return np.asarray(since), int(first.as_unit("ns").value)


def _by_size(largest: float) -> float:
    """Seconds in a unit of time since 1970, told by the size of its numbers."""
    if largest > 1e17:
        return 1e-9
    if largest > 1e14:
        return 1e-6
    return 1e-3 if largest > 1e11 else 1.0


def _numbers(values: pd.Series[Any], column: str, name: str) -> Array:
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(float)
    bad = values.notna().to_numpy() & ~np.isfinite(numbers)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise BadInput(
            f"{name}:{row + 2}: found {printable(str(values.iloc[row])[:60])!r} in column {column}; "
            "expected a number (or --x COLUMN with the times)"
        )
    return numbers


def _parted(column: str) -> tuple[str, str]:
    found = _UNIT.match(column)
    return (found.group(1), found.group(2)) if found else (column, "")


def _of_column(column: str, x: Array, y: Array) -> Series:
    name, unit = _parted(column)
    labelled = _LABELLED.match(name)
    node, quantity, labels = "", name, {}
    if labelled:
        quantity = labelled.group(1)
        labels = dict(_LABEL.findall(labelled.group(2)))
        node = " ".join(labels.values()) or labelled.group(2)
    alias = quantity
    if not unit:
        words = quantity.removesuffix("_total").rsplit("_", 1)
        unit = _SUFFIXES.get(words[-1], "") if len(words) > 1 else ""
        quantity = words[0] if unit else quantity
    return Series(name, x, y, unit, node, quantity, labels=labels, alias=alias)


def _bounded(series: int, name: Path | str) -> None:
    if series > MOST_SERIES:
        raise BadInput(f"{name}: found {series} series; expected {MOST_SERIES} at most")
