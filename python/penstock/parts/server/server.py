"""State of a server that its routes use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.parts.monitoring.collectors.server_collectors import Gathering
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.targets import Targets
from penstock.parts.server.api.jobs import JobRegistry
from penstock.parts.server.authentication import Users
from penstock.parts.server.live.hub import Hub
from penstock.parts.server.traces import Served
from penstock.routes.spooled import ConcurrencyLimit


@dataclass(frozen=True)
class Server:
    """Served bundles, the store of experiments, users, collectors, event streams and jobs."""

    served: Served
    store: Callable[[], Experiments]
    users: Users
    targets: Targets
    gathering: Gathering
    hub: Hub
    limit: ConcurrencyLimit = field(default_factory=ConcurrencyLimit)
    jobs: JobRegistry = field(default_factory=JobRegistry)
