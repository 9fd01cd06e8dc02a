"""Live state as server-sent events."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from penstock.errors import BadInput
from penstock.parts.server.authentication import token_of
from penstock.parts.server.live.hub import MOST_STREAMS, MOST_USER_STREAMS, EventStreamResponse
from penstock.parts.server.live.parts import state
from penstock.parts.server.live.view import View
from penstock.parts.server.server import Server
from penstock.routes.caller import caller_of


def router(server: Server) -> APIRouter:
    """Routes of the event stream and of one snapshot of the state."""
    api = APIRouter(tags=["live"])
    hub, users = server.hub, server.users

    @api.get("/state", summary="Get clusters, nodes and disks that are up, with counters")
    def once() -> dict[str, Any]:
        return state()

    @api.get(
        "/live",
        summary="Stream the live state as server-sent events: a snapshot, then changes",
        description="With a user's token, or with `experiment`: only experiments that the user may read.",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}},
            503: {
                "description": f"{MOST_STREAMS} streams are open, or {MOST_USER_STREAMS} with users' tokens."
            },
        },
    )
    async def live(
        request: Request,
        experiment: Annotated[
            str | None, Query(max_length=1000, description="only this experiment: NAME or NAME#2")
        ] = None,
        interval_s: Annotated[
            float, Query(ge=0.2, le=60, description="minimum interval between two `state` events")
        ] = 1.0,
        last_event_id: Annotated[
            str | None,
            Header(
                max_length=100,
                description="`id` of the last event received; resumes the stream after it",
            ),
        ] = None,
    ) -> StreamingResponse:
        caller = caller_of(request)
        view = None
        if caller.reader is not None or experiment is not None:
            only = None
            if experiment is not None:
                source = server.experiments
                if source is None:
                    raise BadInput(f"found experiment {experiment!r}; expected none on this server")
                only = await run_in_threadpool(lambda: source.find(experiment, caller.reader))
            token = token_of(request.headers)

            def allowed() -> bool:
                return caller.reader is None or users.authenticate(token) is not None

            view = View(caller.reader, only, allowed)
        if hub.full or (caller.reader is not None and hub.full_for_users):
            most = MOST_STREAMS if hub.full else MOST_USER_STREAMS
            raise HTTPException(
                503, f"{most} streams are open already; expected fewer", {"Retry-After": "10"}
            )
        return EventStreamResponse(hub.follow(last_event_id, interval_s, view))

    return api
