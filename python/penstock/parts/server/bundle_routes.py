"""Routes of served bundles: pages, studies, traces."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Path, Query
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, Field

from penstock.archive.bundle import command_line
from penstock.parts.server.index import View
from penstock.parts.server.page import (
    dashboards_page,
    list_page,
    live_page,
    report_page,
    trace_page,
)
from penstock.parts.server.server import Server

_FAR = float(1 << 62)
_Number = Annotated[int, Path(ge=0, lt=1 << 63)]
_Edge = Annotated[float, Field(gt=-_FAR, lt=_FAR, allow_inf_nan=False)]


class _Rectangle(BaseModel):
    """Query of a `View`."""

    x0: _Edge
    x1: _Edge
    y0: _Edge
    y1: _Edge
    axis: Literal["number", "time"] = "number"
    columns: int = Field(600, ge=1, le=2000)
    rows: int = Field(300, ge=1, le=1000)


def add_pages(app: FastAPI, server: Server) -> None:
    """Add the routes of pages."""
    served = server.served

    @app.get("/", include_in_schema=False)
    def front() -> HTMLResponse:
        if served.one_trace:
            return trace_page()
        return list_page() if served.traces or served.studies else live_page()

    @app.get("/live", include_in_schema=False)
    @app.get("/nodes", include_in_schema=False)
    def nodes() -> HTMLResponse:
        return live_page()

    @app.get("/dashboards", include_in_schema=False)
    def dashboards() -> HTMLResponse:
        return dashboards_page()

    @app.get("/traces/{number}", include_in_schema=False)
    def page() -> HTMLResponse:
        return trace_page()

    @app.get("/studies/{number}", include_in_schema=False)
    def study_page() -> HTMLResponse:
        return report_page()


def add_studies(app: FastAPI, server: Server) -> None:
    """Add the routes of studies."""
    served = server.served

    @app.get("/api/studies", tags=["studies"], summary="List the served studies and their runs")
    def studies() -> list[dict[str, Any]]:
        return [
            {"study": number, **study.document()} for number, study in enumerate(served.studies)
        ]

    @app.get(
        "/api/studies/{number}/page",
        tags=["studies"],
        summary="Get the report as HTML",
        response_class=Response,
        responses={200: {"content": {"text/html": {}}}},
    )
    def study_report(number: _Number) -> HTMLResponse:
        return HTMLResponse(served.study(number).page())


def add_traces(app: FastAPI, server: Server) -> None:
    """Add the routes of traces."""
    served = server.served

    @app.get("/api/traces", tags=["traces"], summary="List the served traces")
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
        summary="Get the report as HTML",
        response_class=Response,
        responses={200: {"content": {"text/html": {}}}},
    )
    def report(number: _Number) -> HTMLResponse:
        return HTMLResponse(served.trace(number).page())

    @app.get("/api/traces/{number}/files", tags=["traces"], summary="Get totals per file")
    def files(number: _Number) -> list[dict[str, Any]]:
        return served.trace(number).files()

    @app.get("/api/traces/{number}/tables/{table}", tags=["traces"], summary="Get rows of a table")
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
        summary="Get a rectangle of a file's figure; the header X-Penstock-View describes the format",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    def view(number: _Number, file_id: _Number, query: Annotated[_Rectangle, Query()]) -> Response:
        if not (query.x0 < query.x1 and query.y0 < query.y1):
            raise HTTPException(400, "expected x0 < x1 and y0 < y1")
        head, content = served.trace(number).view(file_id, View(**query.model_dump()))
        return Response(
            content,
            media_type="application/octet-stream",
            headers={"X-Penstock-View": json.dumps(head)},
        )
