"""What is emulated, as resources over HTTP under /api/v1: clusters, nodes, disks, links, schedules, jobs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from penstock import __version__
from penstock.serve.api import clusters, disks, host, jobs, live
from penstock.serve.api.token import required

PREFIX = "/api/v1"


def router(token: str, book: jobs.Book) -> APIRouter:
    """The resources; all but the front door want the token."""
    api = APIRouter(prefix=PREFIX)

    @api.get("", tags=["version"], summary="Which version this is; needs no token")
    def front_door() -> dict[str, Any]:
        return {"penstock": __version__, "api": 1}

    behind = APIRouter(dependencies=[Depends(required(token))])
    for part in (clusters.router(book), disks.router(book), host.router(), live.router()):
        behind.include_router(part)
    behind.include_router(jobs.router(book))
    api.include_router(behind)
    return api
