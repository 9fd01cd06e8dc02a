"""Routes of experiments: `/exp/NAME` with the methods of MonEx, and `/api/v1/experiments`.

Names are percent-encoded in paths; `x%233` is the third repeat of `x`.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cache, partial
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
from fastapi import APIRouter, FastAPI, Header, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ValidationError

from penstock.archive.series.incomplete import STATE
from penstock.errors import BadInput, PenstockError, Upstream
from penstock.parts.monitoring.collectors.server_collectors import Gathering
from penstock.parts.monitoring.experiments.experiment import Experiment, Taken, Unknown
from penstock.parts.monitoring.experiments.experiments import Experiments, experiments_home
from penstock.parts.monitoring.experiments.points import (
    MOST_SERIES,
    Account,
    Batch,
    Closed,
    Event,
    canonical_labels,
    points,
)
from penstock.parts.monitoring.experiments.provenance import checked_facts
from penstock.parts.monitoring.experiments.targets import Targets, checked_options, read_targets
from penstock.parts.monitoring.experiments.timestamps import iso_text, moment_ns
from penstock.parts.monitoring.http import dashboards, experiment_sources, metrics
from penstock.parts.monitoring.http.experiment_models import (
    Accepted,
    DataOptions,
    ExperimentModel,
    Filters,
    Mark,
    ProducedCounts,
    Push,
    ReportedEvent,
    SeriesModel,
    Start,
    Stop,
    Times,
)
from penstock.parts.monitoring.http.live_experiments import LiveExperiments
from penstock.parts.monitoring.outbox.client import (
    ACCOUNTS,
    EVENTS,
    NOT_FETCHED,
    NOT_LISTENING,
)
from penstock.parts.monitoring.queries import remote_query
from penstock.parts.monitoring.queries.answers import answer
from penstock.parts.monitoring.queries.export import MEDIA
from penstock.parts.monitoring.queries.fetch import fetch_named
from penstock.routes.caller import Caller, caller_of, set_body_limit
from penstock.routes.server import Server
from penstock.routes.spooled import ConcurrencyLimit, SpooledResponse

PREFIX = "/api/v1/experiments"
_SMALL_BODY_BYTES = 256 << 10
_LARGE_BODY_BYTES = 64 << 20
#: events of one batch
MOST_EVENTS = 10_000
_Name = Annotated[
    str, Path(max_length=1000, description="percent-encoded; `x%233` is the third `x`")
]
T = TypeVar("T")
#: opens the store on the first call
Store = Callable[[], Experiments]
M = TypeVar("M", bound=BaseModel)


_BODY = {"text/plain": {"schema": {"type": "string"}}}
_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    502: {"description": "A remote server did not respond, or its response is invalid."},
    503: {
        "description": "The catalogue does not respond, or there is no memory for the request body; "
        "retry after Retry-After."
    },
    507: {"description": "The disk is full; nothing was stored."},
}


class StoreFullError(PenstockError):
    """The store's disk is full: status 507."""


_STATUS: dict[type[PenstockError], int] = {
    StoreFullError: 507,
    Unknown: 404,
    Taken: 409,
    Closed: 409,
    Upstream: 502,
}


def _body(model: type[BaseModel], required: bool = False) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }


def add_body_schemas(document: dict[str, Any]) -> None:
    """Add schemas of request bodies to an OpenAPI document.

    Routes parse these bodies themselves, for any media type and without loss of digits.
    """
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (Start, Stop, Mark, Push):
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema


async def _refused(_: Request, error: Exception, status: int) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status)


def add_routes(app: FastAPI, server: Server) -> None:
    """Add the routes of experiments, of dashboards and of the metrics of running experiments."""
    targets: Targets = server.targets or (
        read_targets(server.config) if server.config is not None else Targets()
    )
    store: Store = server.store or cache(
        lambda: Experiments(server.catalogue(), experiments_home())
    )
    gathering = Gathering(targets.collectors, store, log_error, targets.origin)
    server.background.append(lambda: background_tasks(store, targets, gathering))
    server.experiments = LiveExperiments(store)
    server.user_paths += [r"/exp(?:/.*)?", f"{PREFIX}(?:/.*)?"]
    server.data_prefixes.append("/exp")
    limit = server.limit
    dashboards.add_routes(app, server, store)
    metrics.add_routes(app, server, store)

    for kind, status in _STATUS.items():
        app.add_exception_handler(kind, partial(_refused, status=status))

    app.include_router(_monex(store, targets, gathering, limit))
    app.include_router(
        experiment_sources.router(store, targets, gathering, PREFIX, _ERROR_RESPONSES)
    )
    app.include_router(_api(store, limit))
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            add_body_schemas(plain())
        return plain()

    app.openapi = openapi  # type: ignore[method-assign]


def _monex(
    store: Store, targets: Targets, gathering: Gathering, limit: ConcurrencyLimit
) -> APIRouter:
    api = APIRouter(prefix="/exp", tags=["experiments"], responses=_ERROR_RESPONSES)
    _add_start(api, store, gathering)
    _add_end(api, store, targets, gathering)
    _add_data(api, store, targets, limit)
    return api


def _add_start(api: APIRouter, store: Store, gathering: Gathering) -> None:
    """Routes that list and start experiments."""

    @api.get(
        "",
        summary="List experiments; as JSON if the client accepts it",
        response_class=Response,
        responses={200: {"content": {**_BODY, "application/json": {}}}},
    )
    @api.get("/", include_in_schema=False)
    def listed(request: Request, accept: Annotated[str, Header()] = "") -> Response:
        experiments = store().listed(caller_of(request).reader)
        if "application/json" in accept:
            keys = ("name", "repeat", "state", "start_ns", "end_ns", "user")
            return JSONResponse([{k: e.document()[k] for k in keys} for e in experiments])
        return PlainTextResponse("".join(f"{_summary_line(e)}\n" for e in experiments))

    @api.post(
        "/{name:path}",
        status_code=201,
        summary="Start an experiment",
        response_class=Response,
        responses={201: {"content": _BODY}},
        openapi_extra=_body(Start),
    )
    async def start(request: Request, name: _Name) -> Response:
        body = await _read(request, Start)
        caller = caller_of(request)

        def act() -> tuple[str, list[str]]:
            experiment = store().start(
                name,
                caller.user,
                at_ns=_time_ns(body),
                params=body.params,
                tags=body.tags,
                repeat=body.repeat,
                shared=body.shared,
                timeout_s=body.timeout_s,
                facts=checked_facts(body.facts.model_dump(exclude_none=True)),
                through=gathering.server,
            )
            not_listening = gathering.begun(experiment)
            return f"Starting {experiment.name}#{experiment.repeat}\n", not_listening

        message, not_listening = await _write(act)
        headers = {NOT_LISTENING: quote("; ".join(not_listening)[:2000])} if not_listening else {}
        return PlainTextResponse(message, 201, headers)


def _add_end(api: APIRouter, store: Store, targets: Targets, gathering: Gathering) -> None:
    """Routes that stop and remove experiments."""
    ends = _Locks()

    @api.put(
        "/{name:path}",
        status_code=201,
        summary="Stop an experiment",
        response_class=Response,
        responses={201: {"content": _BODY}},
        openapi_extra=_body(Stop),
    )
    async def end(request: Request, name: _Name) -> Response:
        received_ns = time.time_ns()
        body = await _read(request, Stop)
        caller = caller_of(request)

        def act() -> tuple[str, str]:
            experiment = store().find(name, caller.user, to_change=True)
            # a client may repeat its request: the receipts of collectors belong to the first
            with ends.of(experiment.path):
                numbered = f"{experiment.name}#{experiment.repeat}"
                return stopped(store().find(numbered, caller.user, to_change=True))

        def stopped(experiment: Experiment) -> tuple[str, str]:
            if not experiment.running:
                raise Taken(f"{name} is not running")
            requested_ns = _time_ns(body)
            at_ns = received_ns if requested_ns is None else requested_ns
            client_receipts = _plain_json(body.receipts, "receipts")
            receipts = {**client_receipts, **gathering.end(experiment)}
            try:
                not_fetched = fetch_at_end(store(), targets, experiment, at_ns)
                ended = store().stop(
                    experiment,
                    at_ns=at_ns,
                    exit_status=body.exit,
                    state="aborted" if body.aborted else "ended",
                    facts={"receipts": receipts},
                )
            except BaseException:
                gathering.go_on(experiment)
                raise
            return f"Stopping {ended.name}#{ended.repeat}\n", not_fetched

        message, not_fetched = await _write(act)
        headers = {NOT_FETCHED: quote(not_fetched[:2000])} if not_fetched else {}
        return PlainTextResponse(message, 201, headers)

    @api.delete(
        "/{name:path}",
        status_code=201,
        summary="Remove an experiment",
        response_class=Response,
        responses={201: {"content": _BODY}},
    )
    def remove(request: Request, name: _Name) -> Response:
        experiment = store().find(name, caller_of(request).user, to_change=True)
        gathering.end(experiment)
        store().remove(experiment)
        return PlainTextResponse(f"Removing {experiment.name}#{experiment.repeat}\n", 201)


def _add_data(api: APIRouter, store: Store, targets: Targets, limit: ConcurrencyLimit) -> None:
    """Routes of the data of experiments."""
    # separate, so that a slow remote server does not delay responses with local data
    remote_limit = ConcurrencyLimit()
    content: dict[int | str, dict[str, Any]] = {
        200: {"content": {media: {"schema": {"type": "string"}} for media in MEDIA.values()}}
    }

    @api.get(
        "/{name:path}/data",
        summary="Get data of an experiment, with options in the query string",
        response_class=Response,
        responses=content,
    )
    async def data(
        request: Request,
        name: _Name,
        options: Annotated[DataOptions, Query()],
    ) -> Response:
        return await data_of(request, name, options.model_dump(exclude_none=True))

    async def data_of(request: Request, name: str, options: Any) -> Response:
        caller = caller_of(request)
        selected = remote_limit if _is_remote(targets, options) else limit
        return await _check_space(
            selected.respond(lambda: _data_response(store, targets, name, caller, options))
        )

    @api.get(
        "/{name:path}",
        summary="Get data of an experiment, with options in a JSON body",
        response_class=Response,
        responses=content,
    )
    async def get(request: Request, name: _Name) -> Response:
        set_body_limit(request.scope, _SMALL_BODY_BYTES)
        return await data_of(request, name, _request_json(await request.body()))


def _api(store: Store, limit: ConcurrencyLimit) -> APIRouter:
    api = APIRouter(prefix=PREFIX, tags=["experiments"], responses=_ERROR_RESPONSES)

    @api.get("", summary="List readable experiments by user, name, tag, state")
    def listed(request: Request, filters: Annotated[Filters, Query()]) -> list[ExperimentModel]:
        experiments = store().listed(
            caller_of(request).reader,
            owner=filters.user,
            name=filters.name,
            tag=filters.tag,
            state=filters.state,
        )
        return [ExperimentModel(**e.document()) for e in experiments]

    @api.get("/{name:path}/series", summary="Get the recorded series and their completeness")
    async def series(request: Request, name: _Name) -> SeriesModel:
        reader = caller_of(request).reader

        def act() -> SeriesModel:
            recording = store().recorded(store().find(name, reader))
            return SeriesModel(
                verdict=recording.verdict,
                series=recording.series.to_pylist(),
                gaps=recording.gaps.to_pylist(),
            )

        return await limit.run(act)

    @api.post(
        "/{name:path}/marks",
        status_code=201,
        summary="Begin or end a phase, or add a note",
        openapi_extra=_body(Mark, required=True),
    )
    async def mark(request: Request, name: _Name) -> ExperimentModel:
        body = await _read(request, Mark)
        caller = caller_of(request)

        def act() -> Experiment:
            experiment = store().find(name, caller.user, to_change=True)
            return store().mark(experiment, body.kind, body.name, _time_ns(body))

        return ExperimentModel(**(await _write(act)).document())

    @api.post(
        "/{name:path}/points",
        status_code=201,
        summary="Store a batch of points; repeating its number has no effect",
        openapi_extra=_body(Push, required=True),
    )
    async def push(request: Request, name: _Name) -> Accepted:
        set_body_limit(request.scope, _LARGE_BODY_BYTES)
        content = await request.body()
        caller = caller_of(request)
        media = request.headers.get("content-type", "")

        def act() -> Accepted:
            batch = (
                _arrow(request, content)
                if "arrow" in media
                else _batch(_validated(Push, _json(content)))
            )
            experiment = store().find(name, caller.user, to_change=True)
            if not experiment.running:
                raise Taken(f"{name} is not running")
            result = store().sink(experiment).write(batch)
            return Accepted(points=result.points, duplicate=result.duplicate)

        return await _write(act)

    @api.get("/{name:path}", summary="Get an experiment: times, phases, notes, parameters")
    def one(request: Request, name: _Name) -> ExperimentModel:
        return ExperimentModel(**store().find(name, caller_of(request).reader).document())

    return api


class _Locks:
    """A lock for each of some paths, while it is in use."""

    def __init__(self) -> None:
        self._own = threading.Lock()
        #: lock and number of its users
        self._locks: dict[pathlib.Path, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def of(self, path: pathlib.Path) -> Iterator[None]:
        """Lock a path."""
        with self._own:
            lock, users = self._locks.get(path, (threading.Lock(), 0))
            self._locks[path] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._own:
                users = self._locks[path][1] - 1
                if users:
                    self._locks[path] = lock, users
                else:
                    del self._locks[path]


async def _write(act: Callable[[], T]) -> T:
    """Run an action that writes, in a thread. Raises StoreFullError if the disk is full."""
    return await _check_space(run_in_threadpool(act))


async def _check_space(work: Awaitable[T]) -> T:
    try:
        return await work
    except BadInput:
        raise
    except PenstockError as error:
        if "No space left" in str(error):
            raise StoreFullError(str(error)) from None
        raise


def _json(content: bytes) -> Any:
    """A request body as JSON, `{}` if it is empty. Fractions become Decimal. Raises BadInput."""
    if not content.strip():
        return {}
    try:
        return json.loads(content, parse_float=Decimal, parse_constant=_constant_text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"found a body that is no JSON ({error}); expected an object") from None


def _request_json(content: bytes) -> Any:
    """A request as JSON. Raises BadInput, also for text with half of a surrogate pair."""
    body = _json(content)
    dashboards.checked_text(json.dumps(body, default=str, ensure_ascii=False))
    return body


def _constant_text(text: str) -> str:
    """Keep `NaN`, `Infinity`, `-Infinity`, which are not JSON, as text: valid values of points."""
    return text


async def _read(request: Request, model: type[M]) -> M:
    set_body_limit(request.scope, _SMALL_BODY_BYTES)
    return _validated(model, _request_json(await request.body()))


def _validated(model: type[M], body: Any) -> M:
    try:
        return model.model_validate(_exact_times(body))
    except RecursionError:
        raise BadInput("found a body that is nested too deeply; expected a flat object") from None
    except ValidationError as error:
        message = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors()[:5]
        )
        raise BadInput(message) from None


def _plain_json(value: Any, name: str) -> Any:
    """A value of JSON types only. Raises BadInput for numbers that are not finite."""
    try:
        return json.loads(json.dumps(value, default=float, allow_nan=False))
    except (ValueError, OverflowError, RecursionError):
        raise BadInput(
            f"found {name} with a number that JSON lacks; expected finite ones"
        ) from None


def _exact_times(body: Any) -> Any:
    """The body with times as text, which keeps every digit, and other decimals as floats."""
    if not isinstance(body, dict):
        return body
    return {k: _without_decimals(v, k in Times.model_fields) for k, v in body.items()}


def _without_decimals(value: Any, exact: bool) -> Any:
    if isinstance(value, Decimal):
        return str(value) if exact else float(value)
    if isinstance(value, list):
        return [_plain_number(v) if isinstance(v, Decimal) else v for v in value]
    if isinstance(value, dict):
        return {k: _without_decimals(v, False) for k, v in value.items()}
    return value


def _plain_number(value: Decimal) -> int | float:
    """An integer, exactly, also as 1.7e18; otherwise a float."""
    integral = value == value.to_integral_value() and abs(value) < 2**64
    return int(value) if integral and not (value.is_zero() and value.is_signed()) else float(value)


def _number(value: Any) -> float | None:
    """A value of the column `float`. Raises ValueError, also for the underscores that Python reads."""
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError(value)
    return None if value is None else float(value)


def _time_ns(body: Times) -> int | None:
    times_ns = {
        moment_ns(value)
        for value in (body.utc_time, body.utctime, body.local_time, body.localtime)
        if value is not None
    }
    if len(times_ns) > 1:
        raise BadInput("found several times that differ; expected one")
    return times_ns.pop() if times_ns else None


def _batch(body: Push) -> Batch:
    labels: Any = (
        canonical_labels(body.labels)
        if isinstance(body.labels, dict)
        else [canonical_labels(row) for row in body.labels]
    )
    values = {
        k: getattr(body, k) for k in ("utc_ns", "index", "float", "integer", "text", "boolean")
    }
    if values["float"] is not None:
        try:
            values["float"] = [_number(v) for v in values["float"]]
        except (TypeError, ValueError, OverflowError):
            raise BadInput(
                "found a float that is no number; expected numbers, NaN or null"
            ) from None
    table = points(metric=body.metric, labels=labels, unit=body.unit, **values)
    accounts = _accounts(body.accounts)
    return Batch(
        body.source, body.number, table, accounts, [Event(**e.model_dump()) for e in body.events]
    )


def _arrow(request: Request, content: bytes) -> Batch:
    """A batch from an Arrow IPC stream; its source and number are query parameters. Raises BadInput."""
    try:
        table = pa.ipc.open_stream(content).read_all()
        number = int(request.query_params.get("number", ""))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise BadInput(
            f"found {error}; expected an Arrow IPC stream, and source and number"
        ) from None
    metadata = table.schema.metadata or {}
    older = request.query_params.get("accounts", "[]").encode()
    accounts = _listed(metadata.get(ACCOUNTS) or older, "accounts", MOST_SERIES)
    events = _listed(metadata.get(EVENTS, b"[]"), "events", MOST_EVENTS)
    return Batch(
        request.query_params.get("source", ""),
        number,
        table,
        _accounts([_validated(ProducedCounts, row) for row in accounts]),
        [Event(**_validated(ReportedEvent, row).model_dump()) for row in events],
    )


def _listed(content: bytes, what: str, most: int) -> list[Any]:
    rows = _json(content)
    if not isinstance(rows, list) or len(rows) > most:
        raise BadInput(f"found {what} of another form; expected a list of {most} at most")
    return rows


def _accounts(accounts: Iterable[ProducedCounts]) -> list[Account]:
    return [Account(**{**a.model_dump(), "labels": canonical_labels(a.labels)}) for a in accounts]


def _summary_line(experiment: Experiment) -> str:
    end = iso_text(experiment.end_ns) if experiment.end_ns is not None else "-"
    head = f"{experiment.name}#{experiment.repeat} {experiment.state}"
    return f"{head} {iso_text(experiment.start_ns)} {end} {experiment.owner}"


def _is_remote(targets: Targets, options: Any) -> bool:
    """True for data of a remote server. Invalid options are reported later."""
    if not isinstance(options, Mapping):
        return False
    try:
        return remote_query.is_remote(targets.options(checked_options(options)))
    except BadInput:
        return False


def _data_response(
    store: Store, targets: Targets, name: str, caller: Caller, options: Any
) -> SpooledResponse:
    if not isinstance(options, Mapping):
        raise BadInput(f"found a body of {type(options).__name__}; expected an object")
    result = answer(store(), targets, name, caller.reader, options)
    headers = {STATE: result.state, "X-Penstock-Losses": json.dumps(result.totals)}
    headers |= result.verdict.headers()
    if result.remote is not None:
        headers["X-Penstock-Query"] = quote(result.remote["sent"])[:6000]
        headers["X-Penstock-Requests"] = str(result.remote["requests"])
    return SpooledResponse(result.parts, result.media, headers)


def fetch_at_end(store: Experiments, targets: Targets, experiment: Experiment, at_ns: int) -> str:
    """Fetch metrics of remote servers before an experiment ends at `at_ns`.

    Returns the error message, "" on success.
    """
    try:
        if at_ns >= experiment.start_ns:
            fetch_named(store, targets, experiment, at_ns)
    except Closed:
        pass  # another client stopped the experiment
    except PenstockError as error:
        log_error(f"{experiment.name}#{experiment.repeat}: not fetched: {error}")
        return str(error)
    return ""


@contextlib.asynccontextmanager
async def background_tasks(
    store: Store,
    targets: Targets,
    gathering: Gathering,
    interval_s: float = 60.0,
    scan_s: float = 0.5,
) -> AsyncIterator[None]:
    """Background tasks of a running server. Resumes experiments at the start.

    Every `interval_s`, stops experiments that exceed their timeout. Every `scan_s`, starts collectors of
    experiments that were not started through this server.
    """
    import asyncio

    def end_overdue(experiment: Experiment, at_ns: int) -> dict[str, Any]:
        receipts = gathering.end(experiment)
        fetch_at_end(store(), targets, experiment, at_ns)
        return {"receipts": receipts} if receipts else {}

    await run_in_threadpool(lambda: store().resume(end_overdue))

    async def resume_periodically() -> None:
        while True:
            await asyncio.sleep(interval_s)
            with contextlib.suppress(PenstockError, OSError):
                await run_in_threadpool(lambda: store().resume(end_overdue))

    async def scan_periodically() -> None:
        while gathering.configured:
            with contextlib.suppress(PenstockError, OSError):
                await run_in_threadpool(gathering.look)
            await asyncio.sleep(scan_s)

    tasks = [asyncio.create_task(resume_periodically()), asyncio.create_task(scan_periodically())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await run_in_threadpool(gathering.close)


def log_error(message: str) -> None:
    """Print an error of a collector to stderr."""
    print(f"penstock: {message}", file=sys.stderr, flush=True)
