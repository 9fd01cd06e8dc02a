"""Routes of an experiment's sources: switch collectors, fetch from remote servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from penstock.parts.monitoring.collectors.server_collectors import Gathering
from penstock.parts.monitoring.experiments.experiment import Taken
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.targets import Targets
from penstock.parts.monitoring.queries.fetch import fetch_requested
from penstock.routes.caller import caller_of

_Name = Annotated[
    str, Path(max_length=1000, description="percent-encoded; `x%233` is the third `x`")
]


class Switch(BaseModel):
    """A collector of the configuration, and its requested state."""

    model_config = ConfigDict(extra="forbid")

    collector: str = Field(min_length=1, max_length=500)
    on: bool


class Switched(BaseModel):
    """The result of a switch: `changed` is false if the collector had that state."""

    changed: bool


class Fetch(BaseModel):
    """A query or measurement of a configured server, or a configured metric; empty: all metrics."""

    model_config = ConfigDict(extra="forbid")

    metric: str | None = Field(default=None, min_length=1, max_length=500)
    server: str | None = Field(default=None, max_length=500)
    query: str | None = Field(default=None, max_length=5000)
    step: str | None = Field(default=None, max_length=50)
    measurement: str | None = Field(default=None, max_length=500)
    fields: list[str] | None = Field(default=None, max_length=100)
    database: str | None = Field(default=None, max_length=500)


def router(
    store: Callable[[], Experiments],
    targets: Targets,
    gathering: Gathering,
    prefix: str,
    responses: dict[int | str, dict[str, Any]],
) -> APIRouter:
    """Routes for users who may change an experiment."""
    api = APIRouter(prefix=prefix, tags=["experiments"], responses=responses)

    @api.post(
        "/{name:path}/collectors",
        status_code=201,
        summary="Disable or enable a collector; the interval is reported as disabled",
    )
    def switch(request: Request, name: _Name, body: Switch) -> Switched:
        caller = caller_of(request)
        experiment = store().find(name, caller.user, to_change=True)
        if not experiment.running:
            raise Taken(f"{name} is not running")
        changed = store().sink(experiment).switch(body.collector, body.on)
        gathering.look()
        return Switched(changed=changed)

    @api.post(
        "/{name:path}/fetched",
        status_code=201,
        summary="Fetch data of remote servers and store it in the experiment",
    )
    async def fetch(request: Request, name: _Name, body: Fetch) -> list[dict[str, Any]]:
        caller = caller_of(request)

        def act() -> list[dict[str, Any]]:
            experiment = store().find(name, caller.user, to_change=True)
            return fetch_requested(store(), targets, experiment, body.model_dump(exclude_none=True))

        return await run_in_threadpool(act)

    return api
