"""Live state as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from penstock.emulate.cluster.cluster import Cluster, registered
from penstock.emulate.disks import persistent
from penstock.errors import PenstockError


def state() -> dict[str, Any]:
    """Everything that is up: clusters with their nodes, disks without one. What is just going is left out."""
    clusters = []
    for name in registered():
        try:
            clusters.append(Cluster.find(name).whole_status())
        except PenstockError:
            continue
    try:
        disks = persistent.status()
    except PenstockError:
        disks = []
    return {"t_ns": time.monotonic_ns(), "clusters": clusters, "disks": disks}


def router() -> APIRouter:
    """The stream, and one look."""
    api = APIRouter(tags=["live"])

    @api.get("/state", summary="Everything that is up, with counters")
    def once() -> dict[str, Any]:
        return state()

    @api.get(
        "/live",
        summary="The same again and again, as server-sent events called `state`",
        response_class=StreamingResponse,
    )
    def live(
        request: Request, interval_s: Annotated[float, Query(ge=0.2, le=60)] = 1.0
    ) -> StreamingResponse:
        async def stream() -> AsyncIterator[str]:
            while not await request.is_disconnected():
                began = time.monotonic()
                said = json.dumps(await run_in_threadpool(state), separators=(",", ":"))
                yield f"event: state\ndata: {said}\n\n"
                await asyncio.sleep(max(0.05, interval_s - (time.monotonic() - began)))

        return StreamingResponse(stream(), media_type="text/event-stream")

    return api
