"""Live state as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Query
from fastapi.responses import StreamingResponse

from penstock.serve.live.hub import MOST_WATCHERS, Hub, Watched
from penstock.serve.live.parts import state


def router(hub: Hub) -> APIRouter:
    """The stream, and one look."""
    api = APIRouter(tags=["live"])

    @api.get("/state", summary="Everything that is up, with counters")
    def once() -> dict[str, Any]:
        return state()

    @api.get(
        "/live",
        summary="What is going on, as server-sent events: all of it, then what changes",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}},
            503: {"description": f"{MOST_WATCHERS} watch already."},
        },
    )
    async def live(
        interval_s: Annotated[
            float, Query(ge=0.2, le=60, description="between two events called `state`")
        ] = 1.0,
        last_event_id: Annotated[
            str | None,
            Header(max_length=100, description="`id` of the last event that was had: go on there"),
        ] = None,
    ) -> StreamingResponse:
        if hub.full:
            raise HTTPException(
                503, f"{MOST_WATCHERS} watch already; expected fewer", {"Retry-After": "10"}
            )
        return Watched(hub.follow(last_event_id, interval_s))

    return api
