"""Dashboards over HTTP: as JSON for our own page, and as a data source of Grafana's simple-JSON kind.

Grafana's calls are those of MonEx, `/search`, `/query` and `/annotations`, at the root as there and below
`/grafana`, where `/grafana/variable` and `/grafana/metrics` are beside them, by which the plugin's newer
versions search; `/grafana/` says that it is there, as the page at `/` does. All of them read; an owner of
experiments or whoever may read them is answered.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pandas as pd
from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.experiment import Experiment, Unknown
from penstock.parts.monitoring.experiments.experiments import Experiments
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
from penstock.parts.server.authentication import caller_of
from penstock.parts.server.page import dashboards_page
from penstock.parts.server.server import Server
from penstock.parts.server.spooled import Turns

PREFIX = "/api/v1/dashboards"
GRAFANA = "/grafana"
#: Grafana's calls that are answered at the root, too
AT_ROOT = ("/search", "/query", "/annotations")
#: of one answer: points of a line, targets, rows of a dashboard
MOST_POINTS, MOST_TARGETS, MOST_ROWS = 11_000, 100, 200
#: of the page, whose plots are narrow
PAGE_POINTS = 400
_KEPT_S, _KEPT = 1.0, 8
_MS = 1_000_000
#: MonEx's queries of annotations, the tags of their marks, and several values of a variable of Grafana's
_ONE_MARK = re.compile(r"(start|stop) (.+)")
_TAGS = {"start": "start", "stop": "end"}
_SEVERAL = re.compile(r"[({](.*)[)}]")

Store = Callable[[], Experiments]
_Name = Annotated[str, Query(min_length=1, max_length=1000)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Search(_Asked):
    """`experiments`, their names by `*`, `rows;DASHBOARD;EXPERIMENT`, `metrics;EXPERIMENT`, or nothing: what
    can be a target."""

    target: str = Field(default="", max_length=3000)


class Variable(_Asked):
    """A search by which the newer plugin fills a variable."""

    payload: Search = Field(default_factory=Search)


class Range(_Asked):
    """Two moments: ISO 8601, or seconds since 1970."""

    from_: str | float = Field(alias="from")
    to: str | float


class Target(_Asked):
    """`DASHBOARD.PLOT;EXPERIMENT;ROW`, `METRIC;EXPERIMENT`, or `marks;EXPERIMENT`, which is a table."""

    target: str = Field(default="", max_length=3000)
    refId: str = Field(default="", max_length=100)  # noqa: N815 - Grafana's name


class Asked(_Asked):
    """What Grafana asks of its panels."""

    range: Range
    targets: list[Target] = Field(max_length=MOST_TARGETS)
    maxDataPoints: int = Field(default=1000, ge=1, le=1 << 31)  # noqa: N815 - Grafana's name


class Annotation(BaseModel):
    """Marks of which experiment, or `start` or `stop` of which (`start x`, `stop {x,y}`); Grafana wants the
    whole back."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(default="", max_length=1000)
    query: str = Field(default="", max_length=1000)


class Annotations(_Asked):
    """What Grafana asks of annotations."""

    range: Range
    annotation: Annotation


class _Kept:
    """The uses of experiments that were asked for last: of one that runs for a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[tuple[str, str, int], tuple[float, pd.DataFrame, Tenancy]] = (
            OrderedDict()
        )

    def uses(self, store: Experiments, found: Experiment) -> tuple[pd.DataFrame, Tenancy]:
        key = (found.out, found.run_id, found.repeat)
        with self._lock:
            kept = self._of.get(key)
            fresh = kept is not None and (not found.running or time.monotonic() - kept[0] < _KEPT_S)
            if kept is None or not fresh:
                kept = (time.monotonic(), *_uses(store, found))
                self._of[key] = kept
            self._of.move_to_end(key)
            while len(self._of) > _KEPT:
                self._of.popitem(last=False)
            return kept[1], kept[2]


def _uses(store: Experiments, found: Experiment) -> tuple[pd.DataFrame, Tenancy]:
    if found.running:
        made = store.recorded(found)
        uses = uses_of_points(made, found.params)
        return _with_run(uses, run_uses(found, made, None)), NO_TENANCY
    if not (found.path / "manifest.json").is_file():
        raise BadInput(f"{found.name}: its bundle is gone; expected another experiment")
    bundle = Bundle.open(found.path)
    of_run = run_uses(found, store.recorded(found), bundle)
    return _with_run(uses_of_bundle(bundle), of_run), tenancy_of(bundle.manifest)


def _with_run(uses: pd.DataFrame, of_run: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([f for f in (uses, of_run) if len(f)] or [uses], ignore_index=True)


def add_routes(app: FastAPI, server: Server) -> None:
    """Adds the routes of dashboards."""
    store, turns = server.store, server.turns
    kept = _Kept()
    app.include_router(_ours(store, kept, turns))
    for calls in _grafana(store, kept, turns):
        app.include_router(calls)

    @app.get("/dashboards", include_in_schema=False)
    def page() -> HTMLResponse:
        return dashboards_page()


def _board(key: str) -> Dashboard:
    if key not in DASHBOARDS:
        raise HTTPException(404, f"found no dashboard {key[:80]}; expected {', '.join(DASHBOARDS)}")
    return DASHBOARDS[key]


def _ours(store: Store, kept: _Kept, turns: Turns) -> APIRouter:
    api = APIRouter(prefix=PREFIX, tags=["dashboards"])

    @api.get("", summary="The dashboards, and what their plots are")
    def listed() -> list[dict[str, Any]]:
        return [
            {
                "dashboard": board.key,
                "title": board.title,
                "about": board.about,
                "plots": [_about(p) for p in board.plots],
            }
            for board in DASHBOARDS.values()
        ]

    @api.get("/{dashboard}", summary="Its rows for an experiment, with their lines")
    async def rows(request: Request, dashboard: str, experiment: _Name) -> dict[str, Any]:
        board, sees = _board(dashboard), caller_of(request).reader
        return await turns.take(lambda: drawn(board, experiment, sees))

    def drawn(board: Dashboard, experiment: str, sees: str | None) -> dict[str, Any]:
        found = store().find(experiment, sees)
        uses, tenancy = kept.uses(store(), found)
        made = rows_of(board, uses, tenancy)
        start_ns, end_ns = found.start_ns, found.end_ns or time.time_ns()
        return {
            "experiment": found.document(),
            "start_ms": start_ns // _MS,  # as its points are, whole
            "end_ms": end_ns // _MS,
            "rows_left_out": max(0, len(made) - MOST_ROWS),
            "rows": [
                {
                    "row": name,
                    "plots": [
                        {
                            **_about(plot),
                            "lines": [
                                {"name": x.name, "points": _points(x, PAGE_POINTS)} for x in lines
                            ],
                        }
                        for plot, lines in plots
                    ],
                }
                for name, plots in list(made.items())[:MOST_ROWS]
            ],
        }

    return api


def _about(plot: Plot) -> dict[str, Any]:
    told = {"plot": plot.key, "title": plot.title, "unit": plot.unit, "most": plot.most}
    return told | ({"needs": plot.needs} if plot.needs else {})


def _grafana(store: Store, kept: _Kept, turns: Turns) -> tuple[APIRouter, APIRouter]:
    api, root = APIRouter(prefix=GRAFANA, tags=["grafana"]), APIRouter(include_in_schema=False)

    @api.get("", summary="Whether the data source is there")
    @api.get("/", include_in_schema=False)
    def there() -> dict[str, str]:
        return {"status": "ok"}

    def searched(said: Search, sees: str | None) -> list[str]:
        what, _, rest = _plain(said.target).partition(";")
        if what == "experiments":
            return [f"{e.name}#{e.repeat}" for e in reversed(store().listed(sees)[-1000:])]
        if what == "*":
            listed = store().listed(sees)[-1000:]
            return list(dict.fromkeys(e.name for e in reversed(listed)))
        if what == "rows":
            key, _, name = rest.partition(";")
            uses, tenancy = kept.uses(store(), store().find(name, sees))
            return names_of(_board(key), uses, tenancy)[:MOST_ROWS]
        if what == "metrics":
            series = store().recorded(store().find(rest, sees)).series
            return sorted(set(series["metric"].to_pylist()))[:MOST_POINTS]
        return [f"{b.key}.{p.key}" for b in DASHBOARDS.values() for p in b.plots]

    @root.post("/search")
    @api.post("/search", summary="Experiments, rows of a dashboard, metrics")
    async def search(request: Request, said: Search) -> list[str]:
        sees = caller_of(request).reader
        return await turns.take(lambda: searched(said, sees))

    @api.post("/variable", summary="The same, for the plugin's newer versions")
    async def variable(request: Request, said: Variable) -> list[dict[str, str]]:
        sees = caller_of(request).reader
        found = await turns.take(lambda: searched(said.payload, sees))
        return [{"__text": text, "__value": text} for text in found]

    @api.post("/metrics", summary="What can be a target, for the plugin's newer versions")
    def metrics(request: Request) -> list[dict[str, str]]:
        found = searched(Search(), caller_of(request).reader)
        return [{"label": text, "value": text} for text in found]

    @root.post("/query")
    @api.post("/query", summary="Points of targets within a range of time")
    async def query(request: Request, said: Asked) -> list[dict[str, Any]]:
        sees = caller_of(request).reader
        return await turns.take(lambda: queried(said, sees))

    def queried(said: Asked, sees: str | None) -> list[dict[str, Any]]:
        low, high = _range(said.range)
        most = min(said.maxDataPoints, MOST_POINTS)
        found = []
        for target in said.targets:
            what, _, name = _plain(target.target).partition(";")
            if what == MARKS and name:
                marks = _marks(store().find(name, sees))
                found.append({"refId": _whole(target.refId), **_table(marks, low, high)})
                continue
            for line in _asked(store(), kept, target.target, sees):
                inside = (line.utc_ns >= low) & (line.utc_ns <= high)
                part = Line(line.name, line.utc_ns[inside], line.value[inside])
                pairs = [[value, at] for at, value in _points(part, most)]
                found.append(
                    {"target": line.name, "refId": _whole(target.refId), "datapoints": pairs}
                )
        return found

    @root.post("/annotations")
    @api.post("/annotations", summary="Start, end, phases and notes of an experiment")
    def annotations(request: Request, said: Annotations) -> list[dict[str, Any]]:
        low, high = _range(said.range)
        if not said.annotation.query:
            return []
        echo = _echo(said.annotation)
        marks = _asked_marks(store(), said.annotation.query, caller_of(request).reader)
        return [{"annotation": echo, **mark} for mark in marks if _within(mark, low, high)]

    return api, root


def _plain(target: str) -> str:
    """A target as it was meant: the plugin escapes what variables hold as if it were a regular expression."""
    return re.sub(r"\\(.)", r"\1", _whole(target))


def _whole(text: str) -> str:
    """A text that can be asked for and told of. BadInput for half a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput("found a text with half a character; expected Unicode") from None
    return text


def _echo(annotation: Annotation) -> dict[str, Any]:
    """What Grafana wants back. BadInput for what is no JSON."""
    said = annotation.model_dump()
    try:
        _whole(json.dumps(said, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        raise BadInput("found an annotation that is no JSON; expected one") from None
    return said


def _within(mark: dict[str, Any], low: int, high: int) -> bool:
    end = mark.get("timeEnd", mark["time"])
    return bool(mark["time"] * _MS <= high and end * _MS >= low)


def _table(marks: list[dict[str, Any]], low: int, high: int) -> dict[str, Any]:
    """Marks as a table of Grafana's."""
    kinds = {"time": "time", "timeEnd": "time", "title": "string", "text": "string"}
    here = [mark for mark in marks if _within(mark, low, high)]
    return {
        "type": "table",
        "columns": [{"text": name, "type": kind} for name, kind in kinds.items()],
        "rows": [[mark.get(name) for name in kinds] for mark in here],
    }


def _asked(store: Experiments, kept: _Kept, target: str, sees: str | None) -> list[Line]:
    """The lines of a target; an empty one, as of a new panel, has none."""
    if not target:
        return []
    words = _plain(target).split(";", 2)
    key, _, plot = words[0].partition(".")
    if len(words) == 3 and key in DASHBOARDS:
        board = DASHBOARDS[key]
        one = board.plot(plot)
        if one is None:
            known = ", ".join(p.key for p in board.plots)
            raise BadInput(f"found no plot {plot[:80]} of {key}; expected {known}")
        uses, tenancy = kept.uses(store, store.find(words[1], sees))
        return lines_of(board, one, uses, words[2], tenancy)
    if len(words) == 2:
        return _metric(store, store.find(words[1], sees), words[0])
    raise BadInput(
        f"found target {target[:80]!r}; expected DASHBOARD.PLOT;EXPERIMENT;ROW or METRIC;EXPERIMENT"
    )


def _metric(store: Experiments, found: Experiment, metric: str) -> list[Line]:
    """Each series of a metric, as MonEx's data source has them."""
    made = store.recorded(found, metric)
    lines = []
    for row in made.series.to_pylist():
        if row["metric"] != metric or row["kind"] != "time":
            continue
        points = made.points.filter(np.asarray(made.points["series_id"]) == row["series_id"])
        frame = points.select(["utc_ns", "float", "integer"]).to_pandas()
        value = frame["float"].fillna(frame["integer"]).astype(float)
        name = metric if row["labels"] == "{}" else f"{metric} {row['labels']}"
        lines.append(Line(name, frame["utc_ns"].to_numpy(np.int64), value.to_numpy(float)))
    return lines


def _range(said: Range) -> tuple[int, int]:
    low, high = (moment_ns(_whole(str(at))) for at in (said.from_, said.to))
    if low > high:
        raise BadInput("found a range that ends before it begins; expected from before to")
    return low, high


def _marks(found: Experiment) -> list[dict[str, Any]]:
    """Moments in ms since 1970; a phase is a region."""
    who = f"{found.name}#{found.repeat}"
    marks: list[dict[str, Any]] = [
        {"time": found.start_ns // _MS, "title": "start", "text": who, "tags": ["start"]}
    ]
    if found.end_ns is not None:
        marks.append(
            {"time": found.end_ns // _MS, "title": found.state, "text": who, "tags": ["end"]}
        )
    for phase in found.phases:
        end_ns = phase.end_ns or time.time_ns()
        span = {"time": phase.start_ns // _MS, "timeEnd": end_ns // _MS, "isRegion": True}
        marks.append({**span, "title": phase.name, "text": who, "tags": ["phase"]})
    for at, text in found.notes:
        marks.append({"time": at // _MS, "title": "note", "text": text, "tags": ["note"]})
    return marks


def _asked_marks(store: Experiments, query: str, sees: str | None) -> list[dict[str, Any]]:
    """All marks of the experiment that is named; or, as MonEx has it, one of some that may be to come."""
    asked = _ONE_MARK.fullmatch(query)
    if asked is None:
        return _marks(store.find(query, sees))
    which, names = asked[1], [asked[2]]
    if (several := _SEVERAL.fullmatch(asked[2])) is not None:
        names = [name for name in re.split("[,|]", several[1]) if name]
    marks = []
    for name in names:
        with contextlib.suppress(Unknown):
            found = store.find(name, sees)
            mine = [m for m in _marks(found) if m["tags"] == [_TAGS[which]]]
            marks += [{**m, "title": f"{which} {found.name}", "tags": [found.name]} for m in mine]
    return marks


def _points(line: Line, most: int) -> list[list[float | None]]:
    """(ms since 1970, value) pairs, at most so many: of more the means of stretches of equal length."""
    at, value = line.utc_ns // _MS, line.value
    if len(at) > most:
        edges = np.linspace(int(at[0]), int(at[-1]) + 1, most + 1)
        place = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, most - 1)
        count = np.bincount(place, minlength=most)
        here = count > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            value = (np.bincount(place, value, most) / count)[here]
        at = ((edges[:-1] + edges[1:]) / 2).astype(np.int64)[here]
    return [
        [int(a), float(v) if np.isfinite(v) else None]
        for a, v in zip(at.tolist(), value.tolist(), strict=True)
    ]
