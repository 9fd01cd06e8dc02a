"""State of the server that its own routes use."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.parts.server.api.jobs import JobRegistry
from penstock.parts.server.authentication import Users
from penstock.parts.server.live.hub import Hub
from penstock.parts.server.live.parts import LiveState
from penstock.parts.server.traces import Served
from penstock.routes import server


@dataclass(kw_only=True)
class Server(server.Server):
    """Served bundles, users, event streams and jobs."""

    served: Served
    users: Users
    hub: Hub = field(init=False)
    jobs: JobRegistry = field(default_factory=JobRegistry)

    def __post_init__(self) -> None:
        self.hub = Hub(LiveState(self.running_experiments))
