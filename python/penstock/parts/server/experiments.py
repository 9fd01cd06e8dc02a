"""Experiments over HTTP: `/exp/NAME` by MonEx's methods, `/api/v1/experiments` with all that they have.

A name is percent-encoded in a path; `x%233` is the third repeat of `x`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

import pyarrow as pa
from fastapi import APIRouter, FastAPI, Header, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ValidationError

from penstock.archive.catalogue import Catalogue
from penstock.archive.series.incomplete import STATE
from penstock.errors import BadInput, PenstockError, Upstream
from penstock.parts.monitoring.collectors.server_collectors import Gathering
from penstock.parts.monitoring.experiments.experiment import Experiment, Taken, Unknown
from penstock.parts.monitoring.experiments.experiments import Experiments
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
from penstock.parts.monitoring.experiments.targets import Targets, checked_options
from penstock.parts.monitoring.experiments.timestamps import iso_text, moment_ns
from penstock.parts.monitoring.outbox.client import ACCOUNTS, NOT_FETCHED, NOT_LISTENING
from penstock.parts.monitoring.queries import remote_query as elsewhere
from penstock.parts.monitoring.queries.answers import answer
from penstock.parts.monitoring.queries.export import MEDIA
from penstock.parts.monitoring.queries.fetch import fetch_named
from penstock.parts.server import experiment_sources
from penstock.parts.server.authentication import Caller, caller_of, set_body_limit
from penstock.parts.server.experiment_models import (
    Accepted,
    ExperimentModel,
    Mark,
    Push,
    SeriesModel,
    Start,
    Stop,
    Times,
    Told,
)
from penstock.parts.server.server import Server
from penstock.parts.server.spooled import Made, Turns

PREFIX = "/api/v1/experiments"
_SMALL = 256 << 10
_LARGE = 64 << 20
_Name = Annotated[
    str, Path(max_length=1000, description="percent-encoded; `x%233` is the third `x`")
]
T = TypeVar("T")
#: a store, opened when it is first needed
Store = Callable[[], Experiments]
M = TypeVar("M", bound=BaseModel)
_Text = Annotated[str | None, Query(max_length=500)]
_Kind = Literal["timestamp", "duration", "sample"]
_Format = Literal["csv", "jsonl", "parquet", "openmetrics"]


_BODY = {"text/plain": {"schema": {"type": "string"}}}
_REFUSED: dict[int | str, dict[str, Any]] = {
    502: {"description": "A server elsewhere did not answer as it should."},
    503: {
        "description": "The catalogue does not answer just now, or there is no room for the body; "
        "ask again after Retry-After."
    },
    507: {"description": "There is no room for it; nothing of it was kept."},
}


def _body(model: type[BaseModel], required: bool = False) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }


def describe(document: dict[str, Any]) -> None:
    """Adds the bodies, which are read by hand: their numbers keep every digit, whatever their media type."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (Start, Stop, Mark, Push):
        made = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(made.pop("$defs", {}))
        schemas[model.__name__] = made


def add_routes(app: FastAPI, server: Server) -> None:
    """Adds the routes of experiments."""
    store, targets, gathering, turns = server.store, server.targets, server.gathering, server.turns

    @app.exception_handler(Unknown)
    async def unknown(_: Request, error: Unknown) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404)

    @app.exception_handler(Taken)
    async def taken(_: Request, error: Taken) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 409)

    @app.exception_handler(Closed)
    async def closed(_: Request, error: Closed) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 409)

    @app.exception_handler(Upstream)
    async def upstream(_: Request, error: Upstream) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 502)

    app.include_router(_monex(store, targets, gathering, turns))
    app.include_router(experiment_sources.router(store, targets, gathering, PREFIX, _REFUSED))
    app.include_router(_ours(store, turns))
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            describe(plain())
        return plain()

    app.openapi = openapi  # type: ignore[method-assign]


def _monex(store: Store, targets: Targets, gathering: Gathering, turns: Turns) -> APIRouter:
    api = APIRouter(prefix="/exp", tags=["experiments"], responses=_REFUSED)
    # a server elsewhere that is slow keeps nobody from what is here
    elsewhere_turns = Turns()

    @api.get(
        "",
        summary="The experiments; as JSON where that is accepted",
        response_class=Response,
        responses={200: {"content": {**_BODY, "application/json": {}}}},
    )
    @api.get("/", include_in_schema=False)
    def listed(request: Request, accept: Annotated[str, Header()] = "") -> Response:
        found = store().listed(caller_of(request).reader)
        if "application/json" in accept:
            keys = ("name", "repeat", "state", "start_ns", "end_ns", "user")
            return JSONResponse([{k: e.document()[k] for k in keys} for e in found])
        return PlainTextResponse("".join(f"{_line(e)}\n" for e in found))

    @api.post(
        "/{name:path}",
        status_code=201,
        summary="Begin it",
        response_class=Response,
        responses={201: {"content": _BODY}},
        openapi_extra=_body(Start),
    )
    async def start(request: Request, name: _Name) -> Response:
        said = await _read(request, Start)
        caller = caller_of(request)

        def act() -> tuple[str, list[str]]:
            begun = store().start(
                name,
                caller.user,
                at_ns=_moment(said),
                params=said.params,
                tags=said.tags,
                repeat=said.repeat,
                shared=said.shared,
                timeout_s=said.timeout_s,
                facts=checked_facts(said.facts.model_dump(exclude_none=True)),
                through=gathering.server,
            )
            silent = gathering.begun(begun)
            return f"Starting {begun.name}#{begun.repeat}\n", silent

        words, silent = await _kept(act)
        headers = {NOT_LISTENING: quote("; ".join(silent)[:2000])} if silent else {}
        return PlainTextResponse(words, 201, headers)

    @api.put(
        "/{name:path}",
        status_code=201,
        summary="End it",
        response_class=Response,
        responses={201: {"content": _BODY}},
        openapi_extra=_body(Stop),
    )
    async def end(request: Request, name: _Name) -> Response:
        asked_ns = time.time_ns()
        said = await _read(request, Stop)
        caller = caller_of(request)

        def act() -> tuple[str, str]:
            found = store().find(name, caller.user, to_change=True)
            if not found.running:
                raise Taken(f"{name} is not running")
            told_ns = _moment(said)
            at_ns = asked_ns if told_ns is None else told_ns
            told = _plain_json(said.receipts, "receipts")
            receipts = {**told, **gathering.end(found)}
            try:
                lacking = fetched_at_end(store(), targets, found, at_ns)
                ended = store().stop(
                    found,
                    at_ns=at_ns,
                    exit_status=said.exit,
                    state="aborted" if said.aborted else "ended",
                    facts={"receipts": receipts},
                )
            except BaseException:
                gathering.go_on(found)
                raise
            return f"Stopping {ended.name}#{ended.repeat}\n", lacking

        words, lacking = await _kept(act)
        headers = {NOT_FETCHED: quote(lacking[:2000])} if lacking else {}
        return PlainTextResponse(words, 201, headers)

    @api.delete(
        "/{name:path}",
        status_code=201,
        summary="Remove it",
        response_class=Response,
        responses={201: {"content": _BODY}},
    )
    def remove(request: Request, name: _Name) -> Response:
        found = store().find(name, caller_of(request).user, to_change=True)
        gathering.end(found)
        store().remove(found)
        return PlainTextResponse(f"Removing {found.name}#{found.repeat}\n", 201)

    content: dict[int | str, dict[str, Any]] = {
        200: {"content": {media: {"schema": {"type": "string"}} for media in MEDIA.values()}}
    }

    @api.get(
        "/{name:path}/data",
        summary="Its data, by options in the address",
        response_class=Response,
        responses=content,
    )
    async def data(
        request: Request,
        name: _Name,
        metric: Annotated[str | None, Query(max_length=500)] = None,
        server: Annotated[str | None, Query(max_length=500)] = None,
        query: Annotated[str | None, Query(max_length=5000)] = None,
        measurement: Annotated[str | None, Query(max_length=500)] = None,
        database: Annotated[str | None, Query(max_length=500)] = None,
        step: Annotated[str | None, Query(max_length=50)] = None,
        labels: Annotated[list[str] | None, Query(max_length=100)] = None,
        fields: Annotated[list[str] | None, Query(max_length=100)] = None,
        type: Annotated[_Kind | None, Query()] = None,
        phase: Annotated[str | None, Query(max_length=1000)] = None,
        format: Annotated[_Format | None, Query()] = None,
        clocks: Annotated[Literal["recorded", "corrected"] | None, Query()] = None,
    ) -> Response:
        said = {
            "metric": metric,
            "server": server,
            "query": query,
            "measurement": measurement,
            "database": database,
            "step": step,
            "labels": labels,
            "fields": fields,
            "type": type,
            "phase": phase,
            "format": format,
            "clocks": clocks,
        }
        options = {k: v for k, v in said.items() if v is not None}
        return await data_of(request, name, options)

    async def data_of(request: Request, name: str, options: Any) -> Response:
        caller = caller_of(request)
        turn = elsewhere_turns if _asks_elsewhere(targets, options) else turns
        return await _stored(turn.answer(lambda: _made(store, targets, name, caller, options)))

    @api.get(
        "/{name:path}",
        summary="Its data, by options in a body of JSON",
        response_class=Response,
        responses=content,
    )
    async def get(request: Request, name: _Name) -> Response:
        set_body_limit(request.scope, _SMALL)
        return await data_of(request, name, _json(await request.body()))

    return api


def _ours(store: Store, turns: Turns) -> APIRouter:
    api = APIRouter(prefix=PREFIX, tags=["experiments"], responses=_REFUSED)

    @api.get("", summary="Experiments that one may see, by user, name, tag, state")
    def listed(
        request: Request,
        user: _Text = None,
        name: _Text = None,
        tag: _Text = None,
        state: _Text = None,
    ) -> list[ExperimentModel]:
        found = store().listed(
            caller_of(request).reader, owner=user, name=name, tag=tag, state=state
        )
        return [ExperimentModel(**e.document()) for e in found]

    @api.get("/{name:path}/series", summary="What it recorded, and how completely")
    async def series(request: Request, name: _Name) -> SeriesModel:
        sees = caller_of(request).reader

        def act() -> SeriesModel:
            made = store().recorded(store().find(name, sees))
            return SeriesModel(
                verdict=made.verdict, series=made.series.to_pylist(), gaps=made.gaps.to_pylist()
            )

        return await turns.take(act)

    @api.post(
        "/{name:path}/marks",
        status_code=201,
        summary="Begin or end a phase, note something",
        openapi_extra=_body(Mark, required=True),
    )
    async def mark(request: Request, name: _Name) -> ExperimentModel:
        said = await _read(request, Mark)
        caller = caller_of(request)

        def act() -> Experiment:
            found = store().find(name, caller.user, to_change=True)
            return store().mark(found, said.kind, said.name, _moment(said))

        return ExperimentModel(**(await _kept(act)).document())

    @api.post(
        "/{name:path}/points",
        status_code=201,
        summary="Keep a batch of points; the same number again changes nothing",
        openapi_extra=_body(Push, required=True),
    )
    async def push(request: Request, name: _Name) -> Accepted:
        set_body_limit(request.scope, _LARGE)
        content = await request.body()
        caller = caller_of(request)
        media = request.headers.get("content-type", "")

        def act() -> Accepted:
            batch = (
                _arrow(request, content)
                if "arrow" in media
                else _batch(_checked(Push, _json(content)))
            )
            found = store().find(name, caller.user, to_change=True)
            if not found.running:
                raise Taken(f"{name} is not running")
            done = store().sink(found).write(batch)
            return Accepted(points=done.points, duplicate=done.duplicate)

        return await _kept(act)

    @api.get("/{name:path}", summary="One experiment: times, phases, notes, parameters")
    def one(request: Request, name: _Name) -> ExperimentModel:
        return ExperimentModel(**store().find(name, caller_of(request).reader).document())

    return api


async def _kept(act: Callable[[], T]) -> T:
    """Does what writes; where there is no room, 507."""
    return await _stored(run_in_threadpool(act))


async def _stored(work: Awaitable[T]) -> T:
    try:
        return await work
    except BadInput:
        raise
    except PenstockError as error:
        if "No space left" in str(error):
            raise NoRoom(str(error)) from None
        raise


class NoRoom(PenstockError):  # noqa: N818 - reads as what it is
    """The store's disk is full."""


def _json(content: bytes) -> Any:
    """A body, or `{}` where there is none; its numbers keep every digit."""
    if not content.strip():
        return {}
    try:
        return json.loads(content, parse_float=Decimal, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"found a body that is no JSON ({error}); expected an object") from None


def _constant(text: str) -> str:
    """`NaN`, `Infinity`, `-Infinity`, which JSON does not have, as texts of points."""
    return text


async def _read(request: Request, model: type[M]) -> M:
    set_body_limit(request.scope, _SMALL)
    return _checked(model, _json(await request.body()))


def _checked(model: type[M], said: Any) -> M:
    try:
        return model.model_validate(_texts_of_times(said))
    except RecursionError:
        raise BadInput("found a body that is nested too deeply; expected a flat object") from None
    except ValidationError as error:
        words = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors()[:5]
        )
        raise BadInput(words) from None


def _plain_json(said: Any, what: str) -> Any:
    """A value as JSON has it. BadInput for numbers that are not finite."""
    try:
        return json.loads(json.dumps(said, default=float, allow_nan=False))
    except (ValueError, OverflowError, RecursionError):
        raise BadInput(
            f"found {what} with a number that JSON lacks; expected finite ones"
        ) from None


def _texts_of_times(said: Any) -> Any:
    """Times as texts, so that no digit is lost; other decimals as floats."""
    if not isinstance(said, dict):
        return said
    return {k: _plain(v, k in Times.model_fields) for k, v in said.items()}


def _plain(value: Any, exact: bool) -> Any:
    if isinstance(value, Decimal):
        return str(value) if exact else float(value)
    if isinstance(value, list):
        return [float(v) if isinstance(v, Decimal) else v for v in value]
    if isinstance(value, dict):
        return {k: _plain(v, False) for k, v in value.items()}
    return value


def _moment(said: Times) -> int | None:
    given = {
        moment_ns(value)
        for value in (said.utc_time, said.utctime, said.local_time, said.localtime)
        if value is not None
    }
    if len(given) > 1:
        raise BadInput("found several times that differ; expected one")
    return given.pop() if given else None


def _batch(said: Push) -> Batch:
    labels: Any = (
        canonical_labels(said.labels)
        if isinstance(said.labels, dict)
        else [canonical_labels(one) for one in said.labels]
    )
    values = {
        k: getattr(said, k) for k in ("utc_ns", "index", "float", "integer", "text", "boolean")
    }
    if values["float"] is not None:
        try:
            values["float"] = [None if v is None else float(v) for v in values["float"]]
        except (TypeError, ValueError, OverflowError):
            raise BadInput(
                "found a float that is no number; expected numbers, NaN or null"
            ) from None
    table = points(metric=said.metric, labels=labels, unit=said.unit, **values)
    accounts = _accounts(said.accounts)
    return Batch(
        said.source, said.number, table, accounts, [Event(**e.model_dump()) for e in said.events]
    )


def _arrow(request: Request, content: bytes) -> Batch:
    """A batch as an Arrow IPC stream; source and number stand in the address."""
    try:
        table = pa.ipc.open_stream(content).read_all()
        number = int(request.query_params.get("number", ""))
    except (pa.ArrowException, ValueError, OSError) as error:
        raise BadInput(
            f"found {error}; expected an Arrow IPC stream, and source and number"
        ) from None
    said = (table.schema.metadata or {}).get(ACCOUNTS)
    told = _json(said if said else request.query_params.get("accounts", "[]").encode())
    if not isinstance(told, list) or len(told) > MOST_SERIES:
        raise BadInput(f"found accounts of another form; expected a list of {MOST_SERIES} at most")
    rows = [_checked(Told, row) for row in told]
    return Batch(request.query_params.get("source", ""), number, table, _accounts(rows))


def _accounts(told: Iterable[Told]) -> list[Account]:
    return [Account(**{**a.model_dump(), "labels": canonical_labels(a.labels)}) for a in told]


def _line(experiment: Experiment) -> str:
    end = iso_text(experiment.end_ns) if experiment.end_ns is not None else "-"
    head = f"{experiment.name}#{experiment.repeat} {experiment.state}"
    return f"{head} {iso_text(experiment.start_ns)} {end} {experiment.owner}"


def _asks_elsewhere(targets: Targets, options: Any) -> bool:
    """True for data of a server elsewhere; what is wrong with the options is told later."""
    if not isinstance(options, Mapping):
        return False
    try:
        return elsewhere.asks_elsewhere(targets.options(checked_options(options)))
    except BadInput:
        return False


def _made(store: Store, targets: Targets, name: str, caller: Caller, said: Any) -> Made:
    if not isinstance(said, Mapping):
        raise BadInput(f"found a body of {type(said).__name__}; expected an object")
    found = answer(store(), targets, name, caller.reader, said)
    headers = {STATE: found.state, "X-Penstock-Losses": json.dumps(found.totals)}
    headers |= found.verdict.headers()
    if found.asked is not None:
        headers["X-Penstock-Query"] = quote(found.asked["sent"])[:6000]
        headers["X-Penstock-Requests"] = str(found.asked["requests"])
    return Made(found.parts, found.media, headers)


def fetched_at_end(store: Experiments, targets: Targets, experiment: Experiment, at_ns: int) -> str:
    """Before its end at this time: fetches metrics of servers elsewhere; gives what it could not."""
    try:
        if at_ns >= experiment.start_ns:
            fetch_named(store, targets, experiment, at_ns)
    except Closed:
        pass  # somebody else ended it
    except PenstockError as error:
        say(f"{experiment.name}#{experiment.repeat}: not fetched: {error}")
        return str(error)
    return ""


@contextlib.asynccontextmanager
async def resumed(
    store: Store,
    targets: Targets,
    gathering: Gathering,
    interval_s: float = 60.0,
    look_s: float = 0.5,
) -> AsyncIterator[None]:
    """While the server runs: experiments go on that ran before, and those over their time are ended.

    Collectors are started for those that began by another way than this server, too.
    """
    import asyncio

    def ending(experiment: Experiment, at_ns: int) -> dict[str, Any]:
        receipts = gathering.end(experiment)
        fetched_at_end(store(), targets, experiment, at_ns)
        return {"receipts": receipts} if receipts else {}

    await run_in_threadpool(lambda: store().resume(ending))

    async def again() -> None:
        while True:
            await asyncio.sleep(interval_s)
            with contextlib.suppress(PenstockError, OSError):
                await run_in_threadpool(lambda: store().resume(ending))

    async def look() -> None:
        while gathering.wanted:
            with contextlib.suppress(PenstockError, OSError):
                await run_in_threadpool(gathering.look)
            await asyncio.sleep(look_s)

    tasks = [asyncio.create_task(again()), asyncio.create_task(look())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await run_in_threadpool(gathering.close)


def local_store() -> Experiments:
    """The store of this user, or of the team's catalogue."""
    from penstock.archive.catalogue import open_index
    from penstock.parts.monitoring.experiments.experiments import experiments_home

    index: Catalogue = open_index()
    return Experiments(index, experiments_home())


def say(what: str) -> None:
    """A line about what went wrong with a collector."""
    print(f"penstock: {what}", file=sys.stderr, flush=True)
