"""The HTTP interface: `/` the page, `/api/…` its data; /docs describes it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from penstock import __version__
from penstock.errors import BadInput, PenstockError
from penstock.serve import api
from penstock.serve.api import jobs
from penstock.serve.index import View
from penstock.serve.page import live_page
from penstock.serve.traces import Served

#: names by which a browser on this machine reaches it
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def application(
    served: Served, hosts: frozenset[str] | None = LOOPBACK, token: str | None = None
) -> FastAPI:
    """The application over these bundles; requests that name another host than `hosts` are refused.

    With a `token` it also offers what is emulated, under /api/v1, to who has it; `/nodes` is its page.

    (A page of another site could otherwise have its own name point here and read what is served.) None allows
    all, for a server that is meant to be reached from elsewhere.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        served.close()

    app = FastAPI(
        title="penstock", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )

    @app.middleware("http")
    async def only_our_names(request: Request, call: Any) -> Response:
        host = request.headers.get("host", "").rsplit(":", 1)[0].strip("[]")
        if hosts is not None and host not in hosts:
            return JSONResponse({"detail": f"host {host[:80]} is not served here"}, 421)
        answer: Response = await call(request)
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Cache-Control"] = "no-store"
        return answer

    @app.exception_handler(BadInput)
    async def refuse(request: Request, error: BadInput) -> JSONResponse:
        emulated = request.url.path.startswith(api.PREFIX)
        return JSONResponse({"detail": str(error)}, 400 if emulated else 404)

    @app.exception_handler(PenstockError)
    async def fail(_: Request, error: PenstockError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 500)

    if token is not None:
        app.include_router(api.router(token, jobs.Book()))

        @app.get("/nodes", response_class=HTMLResponse)
        def nodes() -> str:
            return live_page()

    @app.get("/", response_class=HTMLResponse)
    def front() -> str:
        return served.trace(0).page() if served.traces or token is None else live_page()

    @app.get("/traces/{number}", response_class=HTMLResponse)
    def page(number: int) -> str:
        return served.trace(number).page()

    @app.get("/api/traces")
    def traces() -> list[dict[str, Any]]:
        return [
            {
                "trace": number,
                "name": trace.name,
                "command": trace.bundle.manifest.get("command"),
                "closing": trace.bundle.manifest.get("closing"),
                "tables": trace.tables(),
            }
            for number, trace in enumerate(served.traces)
        ]

    @app.get("/api/traces/{number}/files")
    def files(number: int) -> list[dict[str, Any]]:
        return served.trace(number).files()

    @app.get("/api/traces/{number}/tables/{table}")
    def table(
        number: int,
        table: str,
        first: int = Query(0, ge=0),
        most: int = Query(100, ge=1, le=10_000),
    ) -> Response:
        rows = served.trace(number).rows(table, first, most)
        return Response(json.dumps(rows, default=str), media_type="application/json")

    @app.get("/api/traces/{number}/files/{file_id}/view")
    def view(
        number: int,
        file_id: int,
        axis: Literal["number", "time"] = "number",
        x0: float = Query(allow_inf_nan=False),
        x1: float = Query(allow_inf_nan=False),
        y0: float = Query(allow_inf_nan=False),
        y1: float = Query(allow_inf_nan=False),
        columns: int = Query(600, ge=1, le=2000),
        rows: int = Query(300, ge=1, le=1000),
    ) -> Response:
        most = float(1 << 62)
        if not (-most < x0 < x1 < most and -most < y0 < y1 < most):
            raise HTTPException(422, "expected x0 < x1 and y0 < y1, within 62 bits")
        head, content = served.trace(number).view(
            file_id, View(axis, x0, x1, y0, y1, columns, rows)
        )
        return Response(
            content,
            media_type="application/octet-stream",
            headers={"X-Penstock-View": json.dumps(head)},
        )

    return app
