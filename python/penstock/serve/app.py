"""The HTTP interface: `/` the page, `/api/…` its data; /openapi.json describes it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel

from penstock.archive.bundle import command_line
from penstock.errors import Away, BadInput, PenstockError
from penstock.observe.monitor.collectors.gathering import Gathering
from penstock.observe.monitor.experiments.experiments import Experiments
from penstock.observe.monitor.experiments.targets import Targets
from penstock.serve import api, dashboards, experiments, metrics
from penstock.serve.api import jobs
from penstock.serve.gate import Gate, Users
from penstock.serve.index import View
from penstock.serve.live.hub import Hub
from penstock.serve.live.parts import Parts
from penstock.serve.page import list_page, live_page, report_page, trace_page
from penstock.serve.spooled import Turns
from penstock.serve.traces import Served
from penstock.version import version

_FAR = float(1 << 62)
_Number = Annotated[int, Path(ge=0, lt=1 << 63)]
_Edge = Annotated[float, Query(gt=-_FAR, lt=_FAR, allow_inf_nan=False)]


class Refusal(BaseModel):
    """Why a request was not done."""

    detail: str


_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": words}
    for status, words in (
        (400, "It makes no sense; every mistake is named."),
        (401, "No token, or another; it makes no difference where the request comes from."),
        (403, "It came from the page of another site."),
        (404, "No such thing."),
        (409, "The host or the node refused the change."),
        (413, "Its body is too long."),
        (421, "It was sent to another name than this server's."),
        (503, "There is no room for its body just now; ask again after Retry-After."),
    )
}


def application(
    served: Served,
    token: str,
    names: Iterable[str] = ("localhost", "127.0.0.1", "::1"),
    store: Callable[[], Experiments] = experiments.local_store,
    *,
    targets: Targets | None = None,
    own_token: str | None = None,
    open_reads: bool = False,
) -> FastAPI:
    """The application over these bundles, experiments, and over what is emulated, to who has the token.

    `own_token` opens the experiments of the user that the server runs as. Pages alone are for all; what they
    show they fetch with the token. Requests for another host than `names`, or the address that they came to,
    are refused.
    """

    kept = cache(store)
    wanted = targets or Targets()
    gathering = Gathering(wanted.collectors, kept, experiments.say, wanted.origin)
    hub = Hub(Parts(kept))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with experiments.resumed(kept, wanted, gathering):
            yield
        await hub.close()
        served.close()

    app = FastAPI(
        title="penstock",
        version=version(),
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        responses=_REFUSALS,
        # the gate looks at it: this says so to who reads /openapi.json
        dependencies=[Depends(HTTPBearer(auto_error=False, description="What `serve` prints."))],
    )
    users = Users(lambda: kept().catalogue, own_token=own_token, open_reads=open_reads)
    app.add_middleware(Gate, token=token, names=names, users=users)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # without the input: it may hold what no answer can say again, such as half a character or NaN
        said = [{k: e[k] for k in ("type", "loc", "msg")} for e in error.errors()]
        return Response(json.dumps({"detail": said}), 422, media_type="application/json")

    @app.exception_handler(BadInput)
    async def refuse(request: Request, error: BadInput) -> JSONResponse:
        said = (api.PREFIX, "/exp", dashboards.GRAFANA, *dashboards.AT_ROOT)
        asked = request.url.path.startswith(said)
        return JSONResponse({"detail": str(error)}, 400 if asked else 404)

    @app.exception_handler(PenstockError)
    async def fail(_: Request, error: PenstockError) -> JSONResponse:
        full = isinstance(error, experiments.NoRoom)
        return JSONResponse({"detail": str(error)}, 507 if full else jobs.status_of(error))

    # a value that passed as one of its kind, and that a library or the database cannot hold
    @app.exception_handler(OverflowError)
    @app.exception_handler(RecursionError)
    @app.exception_handler(UnicodeError)
    async def beyond(_: Request, error: Exception) -> JSONResponse:
        kind = {
            RecursionError: "JSON that is nested too deeply",
            OverflowError: "a number that is too large",
        }.get(type(error), "a text with half a character")
        return JSONResponse({"detail": f"found {kind}; expected a smaller or plainer value"}, 400)

    @app.exception_handler(Away)
    async def away(_: Request, error: Away) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

    app.include_router(api.router(jobs.JobRegistry(), hub, users, kept))
    turns = Turns()
    experiments.opened(app, kept, wanted, gathering, turns)
    dashboards.opened(app, kept, turns)
    metrics.opened(app, kept)

    @app.get("/", include_in_schema=False)
    def front() -> HTMLResponse:
        if served.one_trace:
            return trace_page()
        return list_page() if served.traces or served.studies else live_page()

    @app.get("/live", include_in_schema=False)
    @app.get("/nodes", include_in_schema=False)
    def nodes() -> HTMLResponse:
        return live_page()

    @app.get("/traces/{number}", include_in_schema=False)
    def page() -> HTMLResponse:
        return trace_page()

    @app.get("/studies/{number}", include_in_schema=False)
    def study_page() -> HTMLResponse:
        return report_page()

    @app.get(
        "/api/studies", tags=["studies"], summary="The studies that are served, and their runs"
    )
    def studies() -> list[dict[str, Any]]:
        return [
            {"study": number, **study.document()} for number, study in enumerate(served.studies)
        ]

    @app.get(
        "/api/studies/{number}/page",
        tags=["studies"],
        summary="Its report, as HTML",
        response_class=Response,
        responses={200: {"content": {"text/html": {}}}},
    )
    def study_report(number: _Number) -> HTMLResponse:
        return HTMLResponse(served.study(number).page())

    @app.get("/api/traces", tags=["traces"], summary="The traces that are served")
    def traces() -> list[dict[str, Any]]:
        return [
            {
                "trace": number,
                "name": trace.name,
                "command": command_line(trace.manifest),
                "closing": trace.manifest.get("closing"),
                "tables": trace.tables(),
            }
            for number, trace in enumerate(served.traces)
        ]

    @app.get(
        "/api/traces/{number}/page",
        tags=["traces"],
        summary="Its report, as HTML",
        response_class=Response,
        responses={200: {"content": {"text/html": {}}}},
    )
    def report(number: _Number) -> HTMLResponse:
        return HTMLResponse(served.trace(number).page())

    @app.get("/api/traces/{number}/files", tags=["traces"], summary="Totals per file")
    def files(number: _Number) -> list[dict[str, Any]]:
        return served.trace(number).files()

    @app.get("/api/traces/{number}/tables/{table}", tags=["traces"], summary="Rows of a table")
    def table(
        number: _Number,
        table: str,
        first: Annotated[int, Query(ge=0, lt=1 << 62)] = 0,
        most: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> Response:
        rows = served.trace(number).rows(table, first, most)
        return Response(json.dumps(rows, default=str), media_type="application/json")

    @app.get(
        "/api/traces/{number}/files/{file_id}/view",
        tags=["traces"],
        summary="What lies in a rectangle of a file's figure; X-Penstock-View says how it is written",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    def view(
        number: _Number,
        file_id: _Number,
        x0: _Edge,
        x1: _Edge,
        y0: _Edge,
        y1: _Edge,
        axis: Literal["number", "time"] = "number",
        columns: Annotated[int, Query(ge=1, le=2000)] = 600,
        rows: Annotated[int, Query(ge=1, le=1000)] = 300,
    ) -> Response:
        if not (x0 < x1 and y0 < y1):
            raise HTTPException(400, "expected x0 < x1 and y0 < y1")
        head, content = served.trace(number).view(
            file_id, View(axis, x0, x1, y0, y1, columns, rows)
        )
        return Response(
            content,
            media_type="application/octet-stream",
            headers={"X-Penstock-View": json.dumps(head)},
        )

    return app
