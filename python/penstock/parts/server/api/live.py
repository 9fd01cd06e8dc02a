"""Live state as server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.server.authentication import Users, caller_of, token_of
from penstock.parts.server.live.hub import MOST_OF_USERS, MOST_WATCHERS, Hub, Watched
from penstock.parts.server.live.parts import state
from penstock.parts.server.live.view import View


def router(hub: Hub, users: Users, store: Callable[[], Experiments]) -> APIRouter:
    """The stream, and one look."""
    api = APIRouter(tags=["live"])

    @api.get("/state", summary="Everything that is up, with counters")
    def once() -> dict[str, Any]:
        return state()

    @api.get(
        "/live",
        summary="What is going on, as server-sent events: all of it, then what changes",
        description="With a user's token, or for one `experiment`: only the experiments that one may read.",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}},
            503: {
                "description": f"{MOST_WATCHERS} watch already, or {MOST_OF_USERS} with users' tokens."
            },
        },
    )
    async def live(
        request: Request,
        experiment: Annotated[
            str | None, Query(max_length=1000, description="only this one, as NAME or NAME#2")
        ] = None,
        interval_s: Annotated[
            float, Query(ge=0.2, le=60, description="between two events called `state`")
        ] = 1.0,
        last_event_id: Annotated[
            str | None,
            Header(max_length=100, description="`id` of the last event that was had: go on there"),
        ] = None,
    ) -> StreamingResponse:
        caller = caller_of(request)
        view = None
        if caller.reader is not None or experiment is not None:
            one = None
            if experiment is not None:
                found = await run_in_threadpool(lambda: store().find(experiment, caller.reader))
                one = (found.owner, found.name, found.repeat)
            told = token_of(request.headers)

            def allowed() -> bool:
                return caller.reader is None or users.authenticate(told) is not None

            view = View(caller.reader, one, allowed)
        if hub.full or (caller.reader is not None and hub.full_of_users):
            most = MOST_WATCHERS if hub.full else MOST_OF_USERS
            raise HTTPException(503, f"{most} watch already; expected fewer", {"Retry-After": "10"})
        return Watched(hub.follow(last_event_id, interval_s, view))

    return api
