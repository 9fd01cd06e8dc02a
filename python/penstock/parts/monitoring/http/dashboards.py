"""Dashboards over HTTP: JSON for the page /dashboards, and a data source for Grafana's simple-JSON plugin.

The data source has `/search`, `/query` and `/annotations`, at the root as in MonEx and below `/grafana`.
Newer versions of the plugin search with `/grafana/variable` and `/grafana/metrics`, and test the connection
with `/grafana/`. All routes only read, and return only experiments that the caller may read.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
import pandas as pd
from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.experiment import Experiment, Unknown
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import numbers_of
from penstock.parts.monitoring.experiments.timestamps import moment_ns
from penstock.parts.monitoring.usage.dashboards import (
    DASHBOARDS,
    NO_TENANCY,
    Dashboard,
    Line,
    Plot,
    Tenancy,
    lines_of,
    names_of,
    rows_of,
)
from penstock.parts.monitoring.usage.grafana import MARKS
from penstock.parts.monitoring.usage.run_usage import run_uses
from penstock.parts.monitoring.usage.usage import tenancy_of, uses_of_bundle, uses_of_points
from penstock.routes.caller import caller_of
from penstock.routes.server import Server
from penstock.routes.spooled import ConcurrencyLimit

PREFIX = "/api/v1/dashboards"
GRAFANA = "/grafana"
#: routes of the data source that also exist at the root
AT_ROOT = ("/search", "/query", "/annotations")
#: limits of a response: points of a line, targets, rows of a dashboard
MOST_POINTS, MOST_TARGETS, MOST_ROWS = 11_000, 100, 200
#: points of a line in the plots of the page
PAGE_POINTS = 400
_MAX_AGE_S, _CACHED = 1.0, 8
_MS = 1_000_000
#: MonEx's query of annotations, the tags of its marks, and the syntax of a multi-value variable of Grafana
_MARK_QUERY = re.compile(r"(start|stop) (.+)")
_TAGS = {"start": "start", "stop": "end"}
_MULTI_VALUE = re.compile(r"[({](.*)[)}]")

Store = Callable[[], Experiments]
_Name = Annotated[str, Query(min_length=1, max_length=1000)]


class _GrafanaBody(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Search(_GrafanaBody):
    """`experiments`, `*` (names), `rows;DASHBOARD;EXPERIMENT`, `metrics;EXPERIMENT`, or empty (targets)."""

    target: str = Field(default="", max_length=3000)


class Variable(_GrafanaBody):
    """A search of newer versions of the plugin, for the values of a variable."""

    payload: Search = Field(default_factory=Search)


class Range(_GrafanaBody):
    """Two timestamps: ISO 8601, or seconds since 1970."""

    from_: str | float = Field(alias="from")
    to: str | float


class Target(_GrafanaBody):
    """`DASHBOARD.PLOT;EXPERIMENT;ROW`, `METRIC;EXPERIMENT`, or `marks;EXPERIMENT` (a table)."""

    target: str = Field(default="", max_length=3000)
    refId: str = Field(default="", max_length=100)  # noqa: N815 - Grafana's name


class Asked(_GrafanaBody):
    """A query of Grafana for its panels."""

    range: Range
    targets: list[Target] = Field(max_length=MOST_TARGETS)
    maxDataPoints: int = Field(default=1000, ge=1, le=1 << 31)  # noqa: N815 - Grafana's name


class Annotation(BaseModel):
    """An experiment, or MonEx's `start x` or `stop {x,y}`. The response repeats the complete object."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(default="", max_length=1000)
    query: str = Field(default="", max_length=1000)


class Annotations(_GrafanaBody):
    """A query of Grafana for annotations."""

    range: Range
    annotation: Annotation


class _UsageCache:
    """Cache of the usage of recent experiments; entries of running ones expire after `_MAX_AGE_S`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, str, int], tuple[float, pd.DataFrame, Tenancy]] = (
            OrderedDict()
        )

    def uses(self, store: Experiments, experiment: Experiment) -> tuple[pd.DataFrame, Tenancy]:
        key = (experiment.out, experiment.run_id, experiment.repeat)
        with self._lock:
            entry = self._entries.get(key)
            is_fresh = entry is not None and (
                not experiment.running or time.monotonic() - entry[0] < _MAX_AGE_S
            )
            if entry is None or not is_fresh:
                entry = (time.monotonic(), *_uses(store, experiment))
                self._entries[key] = entry
            self._entries.move_to_end(key)
            while len(self._entries) > _CACHED:
                self._entries.popitem(last=False)
            return entry[1], entry[2]


def _uses(store: Experiments, experiment: Experiment) -> tuple[pd.DataFrame, Tenancy]:
    if experiment.running:
        recording = store.recorded(experiment)
        uses = uses_of_points(recording, experiment.params)
        return _with_run(uses, run_uses(experiment, recording, None)), NO_TENANCY
    if not (experiment.path / "manifest.json").is_file():
        raise BadInput(f"{experiment.name}: its bundle is gone; expected another experiment")
    bundle = Bundle.open(experiment.path)
    run_usage = run_uses(experiment, store.recorded(experiment), bundle)
    return _with_run(uses_of_bundle(bundle), run_usage), tenancy_of(bundle.manifest)


def _with_run(uses: pd.DataFrame, run_usage: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([f for f in (uses, run_usage) if len(f)] or [uses], ignore_index=True)


def add_routes(app: FastAPI, server: Server, store: Store) -> None:
    """Add the routes of dashboards."""
    limit = server.limit
    cache = _UsageCache()
    server.user_paths += [f"{PREFIX}(?:/.*)?", f"{GRAFANA}(?:/.*)?", *AT_ROOT]
    server.read_only_posts += [
        f"(?:{GRAFANA})?(?:{'|'.join(AT_ROOT)})",
        f"{GRAFANA}/(?:variable|metrics)",
    ]
    server.data_prefixes += [GRAFANA, *AT_ROOT]
    app.include_router(_api(store, cache, limit))
    for router in _grafana(store, cache, limit):
        app.include_router(router)


def _board(key: str) -> Dashboard:
    if key not in DASHBOARDS:
        raise HTTPException(404, f"found no dashboard {key[:80]}; expected {', '.join(DASHBOARDS)}")
    return DASHBOARDS[key]


def _api(store: Store, cache: _UsageCache, limit: ConcurrencyLimit) -> APIRouter:
    api = APIRouter(prefix=PREFIX, tags=["dashboards"])

    @api.get("", summary="List dashboards and their plots")
    def listed() -> list[dict[str, Any]]:
        return [
            {
                "dashboard": board.key,
                "title": board.title,
                "about": board.about,
                "plots": [_plot_document(p) for p in board.plots],
            }
            for board in DASHBOARDS.values()
        ]

    @api.get("/{dashboard}", summary="Get the rows of an experiment, with their lines")
    async def rows(request: Request, dashboard: str, experiment: _Name) -> dict[str, Any]:
        board, reader = _board(dashboard), caller_of(request).reader
        return await limit.run(lambda: document(board, experiment, reader))

    def document(board: Dashboard, experiment: str, reader: str | None) -> dict[str, Any]:
        match = store().find(experiment, reader)
        uses, tenancy = cache.uses(store(), match)
        rows_by_name = rows_of(board, uses, tenancy)
        start_ns, end_ns = match.start_ns, match.end_ns or time.time_ns()
        return {
            "experiment": match.document(),
            "start_ms": start_ns // _MS,  # integer, as the times of points
            "end_ms": end_ns // _MS,
            "rows_left_out": max(0, len(rows_by_name) - MOST_ROWS),
            "rows": [
                {
                    "row": name,
                    "plots": [
                        {
                            **_plot_document(plot),
                            "lines": [
                                {"name": line.name, "points": _downsampled(line, PAGE_POINTS)}
                                for line in lines
                            ],
                        }
                        for plot, lines in plots
                    ],
                }
                for name, plots in list(rows_by_name.items())[:MOST_ROWS]
            ],
        }

    return api


def _plot_document(plot: Plot) -> dict[str, Any]:
    document = {"plot": plot.key, "title": plot.title, "unit": plot.unit, "most": plot.most}
    return document | ({"needs": plot.needs} if plot.needs else {})


def _grafana(
    store: Store, cache: _UsageCache, limit: ConcurrencyLimit
) -> tuple[APIRouter, APIRouter]:
    api, root = APIRouter(prefix=GRAFANA, tags=["grafana"]), APIRouter(include_in_schema=False)

    @api.get("", summary="Test the data source")
    @api.get("/", include_in_schema=False)
    def there() -> dict[str, str]:
        return {"status": "ok"}

    def search_targets(body: Search, reader: str | None) -> list[str]:
        kind, _, rest = _unescaped(body.target).partition(";")
        if kind == "experiments":
            return [f"{e.name}#{e.repeat}" for e in reversed(store().listed(reader)[-1000:])]
        if kind == "*":
            listed = store().listed(reader)[-1000:]
            return list(dict.fromkeys(e.name for e in reversed(listed)))
        if kind == "rows":
            key, _, name = rest.partition(";")
            uses, tenancy = cache.uses(store(), store().find(name, reader))
            return names_of(_board(key), uses, tenancy)[:MOST_ROWS]
        if kind == "metrics":
            series = store().recorded(store().find(rest, reader)).series
            return sorted(set(series["metric"].to_pylist()))[:MOST_POINTS]
        return [f"{b.key}.{p.key}" for b in DASHBOARDS.values() for p in b.plots]

    @root.post("/search")
    @api.post("/search", summary="Search experiments, rows of a dashboard, metrics")
    async def search(request: Request, body: Search) -> list[str]:
        reader = caller_of(request).reader
        return await limit.run(lambda: search_targets(body, reader))

    @api.post("/variable", summary="Search, for newer versions of the plugin")
    async def variable(request: Request, body: Variable) -> list[dict[str, str]]:
        reader = caller_of(request).reader
        names = await limit.run(lambda: search_targets(body.payload, reader))
        return [{"__text": text, "__value": text} for text in names]

    @api.post("/metrics", summary="List targets, for newer versions of the plugin")
    def metrics(request: Request) -> list[dict[str, str]]:
        names = search_targets(Search(), caller_of(request).reader)
        return [{"label": text, "value": text} for text in names]

    @root.post("/query")
    @api.post("/query", summary="Get points of targets within a time range")
    async def query(request: Request, body: Asked) -> list[dict[str, Any]]:
        reader = caller_of(request).reader
        return await limit.run(lambda: query_targets(body, reader))

    def query_targets(body: Asked, reader: str | None) -> list[dict[str, Any]]:
        low, high = _range(body.range)
        most = min(body.maxDataPoints, MOST_POINTS)
        results = []
        for target in body.targets:
            kind, _, name = _unescaped(target.target).partition(";")
            if kind == MARKS and name:
                marks = _marks(store().find(name, reader))
                results.append({"refId": checked_text(target.refId), **_table(marks, low, high)})
                continue
            for line in _lines_of_target(store(), cache, target.target, reader):
                inside = (line.utc_ns >= low) & (line.utc_ns <= high)
                in_range = Line(line.name, line.utc_ns[inside], line.value[inside])
                pairs = [[value, at] for at, value in _downsampled(in_range, most)]
                results.append(
                    {"target": line.name, "refId": checked_text(target.refId), "datapoints": pairs}
                )
        return results

    @root.post("/annotations")
    @api.post("/annotations", summary="Get start, end, phases and notes of an experiment")
    def annotations(request: Request, body: Annotations) -> list[dict[str, Any]]:
        low, high = _range(body.range)
        if not body.annotation.query:
            return []
        echo = _echo(body.annotation)
        marks = _marks_of_query(store(), body.annotation.query, caller_of(request).reader)
        return [{"annotation": echo, **mark} for mark in marks if _within(mark, low, high)]

    return api, root


def _unescaped(target: str) -> str:
    """A target without escapes: the plugin escapes values of variables as in regular expressions."""
    return re.sub(r"\\(.)", r"\1", checked_text(target))


def checked_text(text: str) -> str:
    """The text itself. Raises BadInput for a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput("found half of a surrogate pair; expected Unicode") from None
    return text


def _echo(annotation: Annotation) -> dict[str, Any]:
    """The annotation as Grafana expects it in the response. Raises BadInput if JSON cannot represent it."""
    document = annotation.model_dump()
    try:
        checked_text(json.dumps(document, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        raise BadInput("found an annotation that is no JSON; expected one") from None
    return document


def _within(mark: Mapping[str, Any], low: int, high: int) -> bool:
    end = mark.get("timeEnd", mark["time"])
    return bool(mark["time"] * _MS <= high and end * _MS >= low)


def _table(marks: list[dict[str, Any]], low: int, high: int) -> dict[str, Any]:
    """Marks in the table format of Grafana."""
    kinds = {"time": "time", "timeEnd": "time", "title": "string", "text": "string"}
    in_range = [mark for mark in marks if _within(mark, low, high)]
    return {
        "type": "table",
        "columns": [{"text": name, "type": kind} for name, kind in kinds.items()],
        "rows": [[mark.get(name) for name in kinds] for mark in in_range],
    }


def _lines_of_target(
    store: Experiments, cache: _UsageCache, target: str, reader: str | None
) -> list[Line]:
    """The lines of a target; none for an empty target, as of a new panel."""
    if not target:
        return []
    fields = _unescaped(target).split(";", 2)
    key, _, plot = fields[0].partition(".")
    if len(fields) == 3 and key in DASHBOARDS:
        board = DASHBOARDS[key]
        match = board.plot(plot)
        if match is None:
            names = ", ".join(p.key for p in board.plots)
            raise BadInput(f"found no plot {plot[:80]} of {key}; expected {names}")
        uses, tenancy = cache.uses(store, store.find(fields[1], reader))
        return lines_of(board, match, uses, fields[2], tenancy)
    if len(fields) == 2:
        return _metric(store, store.find(fields[1], reader), fields[0])
    raise BadInput(
        f"found target {target[:80]!r}; expected DASHBOARD.PLOT;EXPERIMENT;ROW or METRIC;EXPERIMENT"
    )


def _metric(store: Experiments, experiment: Experiment, metric: str) -> list[Line]:
    """Each series of a metric, as in the data source of MonEx."""
    recording = store.recorded(experiment, metric)
    lines = []
    for row in recording.series.to_pylist():
        if row["metric"] != metric or row["kind"] != "time":
            continue
        points = recording.points.filter(
            np.asarray(recording.points["series_id"]) == row["series_id"]
        )
        name = metric if row["labels"] == "{}" else f"{metric} {row['labels']}"
        value = np.asarray(numbers_of(points), float)
        lines.append(Line(name, np.asarray(points["utc_ns"], np.int64), value))
    return lines


def _range(body: Range) -> tuple[int, int]:
    low, high = (moment_ns(checked_text(str(at))) for at in (body.from_, body.to))
    if low > high:
        raise BadInput("found a range that ends before it begins; expected from before to")
    return low, high


def _marks(experiment: Experiment) -> list[dict[str, Any]]:
    """Start, end, phases (as regions) and notes, with times in ms since 1970."""
    label = f"{experiment.name}#{experiment.repeat}"
    marks: list[dict[str, Any]] = [
        {"time": experiment.start_ns // _MS, "title": "start", "text": label, "tags": ["start"]}
    ]
    if experiment.end_ns is not None:
        marks.append(
            {
                "time": experiment.end_ns // _MS,
                "title": experiment.state,
                "text": label,
                "tags": ["end"],
            }
        )
    for phase in experiment.phases:
        end_ns = phase.end_ns or time.time_ns()
        span = {"time": phase.start_ns // _MS, "timeEnd": end_ns // _MS, "isRegion": True}
        marks.append({**span, "title": phase.name, "text": label, "tags": ["phase"]})
    for at, text in experiment.notes:
        marks.append({"time": at // _MS, "title": "note", "text": text, "tags": ["note"]})
    return marks


def _marks_of_query(store: Experiments, query: str, reader: str | None) -> list[dict[str, Any]]:
    """All marks of an experiment; for MonEx's syntax, the start or end of each experiment that exists."""
    match = _MARK_QUERY.fullmatch(query)
    if match is None:
        return _marks(store.find(query, reader))
    kind, names = match[1], [match[2]]
    if (multi_value := _MULTI_VALUE.fullmatch(match[2])) is not None:
        names = [name for name in re.split("[,|]", multi_value[1]) if name]
    marks = []
    for name in names:
        with contextlib.suppress(Unknown):
            experiment = store.find(name, reader)
            matching = [m for m in _marks(experiment) if m["tags"] == [_TAGS[kind]]]
            marks += [
                {**m, "title": f"{kind} {experiment.name}", "tags": [experiment.name]}
                for m in matching
            ]
    return marks


def _downsampled(line: Line, most: int) -> list[list[float | None]]:
    """Pairs (ms since 1970, value), at most `most`: of more points, means over intervals of equal length."""
    at, value = line.utc_ns // _MS, line.value
    if len(at) > most:
        edges = np.linspace(int(at[0]), int(at[-1]) + 1, most + 1)
        position = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, most - 1)
        occupied = np.bincount(position, minlength=most) > 0
        # the mean of the values that are there; without any, there is none
        there = np.isfinite(value)
        position, value = position[there], value[there]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.bincount(position, value, most) / np.bincount(position, minlength=most)
        value = mean[occupied]
        at = ((edges[:-1] + edges[1:]) / 2).astype(np.int64)[occupied]
    return [
        [int(a), float(v) if np.isfinite(v) else None]
        for a, v in zip(at.tolist(), value.tolist(), strict=True)
    ]
