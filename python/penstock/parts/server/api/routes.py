"""Routes of all resources under /api/v1, and the version of the interface."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI

from penstock.parts.server.api import clusters, disks, host, jobs, live
from penstock.parts.server.server import Server
from penstock.version import version

PREFIX = "/api/v1"


def add_routes(app: FastAPI, server: Server) -> None:
    """Add the routes of resources."""
    api = APIRouter(prefix=PREFIX)
    registry = server.jobs

    @api.get("", summary="Get the version")
    def api_version() -> dict[str, Any]:
        return {"penstock": version(), "api": 1}

    for part in (
        clusters.router(registry),
        disks.router(registry),
        host.router(),
        live.router(server),
    ):
        api.include_router(part)
    api.include_router(jobs.router(registry))
    app.include_router(api)
