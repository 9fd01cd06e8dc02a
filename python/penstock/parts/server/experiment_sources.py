"""Where an experiment's points come from, over HTTP: its collectors off and on, servers elsewhere asked."""

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
from penstock.parts.monitoring.queries.fetch import fetch_asked
from penstock.parts.server.authentication import caller_of

_Name = Annotated[
    str, Path(max_length=1000, description="percent-encoded; `x%233` is the third `x`")
]


class Switch(BaseModel):
    """A collector of the configuration, and whether it is to work."""

    model_config = ConfigDict(extra="forbid")

    collector: str = Field(min_length=1, max_length=500)
    on: bool


class Switched(BaseModel):
    """Whether that changed anything."""

    changed: bool


class Fetch(BaseModel):
    """A query or measurement of a server, or a metric, of the configuration; nothing: all of its metrics."""

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
    """The calls, for who may change an experiment."""
    api = APIRouter(prefix=prefix, tags=["experiments"], responses=responses)

    @api.post(
        "/{name:path}/collectors",
        status_code=201,
        summary="Switch a collector off or on; the time between is told as disabled",
    )
    def switch(request: Request, name: _Name, said: Switch) -> Switched:
        caller = caller_of(request)
        found = store().find(name, caller.user, to_change=True)
        if not found.running:
            raise Taken(f"{name} is not running")
        changed = store().sink(found).switch(said.collector, said.on)
        gathering.look()
        return Switched(changed=changed)

    @api.post(
        "/{name:path}/fetched",
        status_code=201,
        summary="Fetch what servers elsewhere have, and keep it in the experiment",
    )
    async def fetch(request: Request, name: _Name, said: Fetch) -> list[dict[str, Any]]:
        caller = caller_of(request)

        def act() -> list[dict[str, Any]]:
            found = store().find(name, caller.user, to_change=True)
            return fetch_asked(store(), targets, found, said.model_dump(exclude_none=True))

        return await run_in_threadpool(act)

    return api
