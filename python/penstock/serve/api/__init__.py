"""What is emulated, as resources over HTTP under /api/v1: clusters, nodes, disks, links, schedules, jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from penstock.observe.monitor.experiments.experiments import Experiments
from penstock.serve.api import clusters, disks, host, jobs, live
from penstock.serve.gate import Users
from penstock.serve.live.hub import Hub
from penstock.version import version

PREFIX = "/api/v1"


def router(
    registry: jobs.JobRegistry, hub: Hub, users: Users, store: Callable[[], Experiments]
) -> APIRouter:
    """The resources."""
    api = APIRouter(prefix=PREFIX)

    @api.get("", summary="Which version this is")
    def front_door() -> dict[str, Any]:
        return {"penstock": version(), "api": 1}

    for part in (
        clusters.router(registry),
        disks.router(registry),
        host.router(),
        live.router(hub, users, store),
    ):
        api.include_router(part)
    api.include_router(jobs.router(registry))
    return api
