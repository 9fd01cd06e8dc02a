"""The store of a run, and its mount in this process."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.host.nodes.mount_view import share_mount
from penstock.parts.stores.clusters import require_one_host
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.lock import changing
from penstock.parts.stores.store import Store, check, require_complete, up_already
from penstock.platform.engine import as_supported
from penstock.platform.hosts import Platform, load_platform
from penstock.plugins import STORE_ENGINES
from penstock.state import runtime_dir

#: directory of this process's root, while it is prepared
_SCRATCH = "view"


@dataclass(frozen=True)
class StoreView:
    """A store that is up, mounted in this process at the path that it has on the nodes.

    `platform`: the platform file that selected it.
    """

    store: Store
    platform: Path | None = None

    def inside(self, directory: str) -> str:
        """The directory, if it is in the store. BadInput."""
        mount, full_path = self.store.spec.mount, os.path.realpath(directory)
        if full_path != mount and not full_path.startswith(f"{mount}/"):
            raise BadInput(
                f"--directory: found {directory}; expected a directory of the store, such as {mount}/run"
            )
        return full_path

    def slots(self, per_node: int | None = None) -> dict[str, int]:
        """Slots of each client node: `per_node`, or its processors."""
        clients = self.store.roles.clients
        if per_node is not None:
            return dict.fromkeys(clients, per_node)
        cpus = {n["name"]: n.get("cpus") for n in self.store.cluster.spec_json()["nodes"]}
        return {name: _processors(cpus.get(name)) for name in clients}

    def predicted(self, slots: Mapping[str, int], *, by_data: bool) -> Platform:
        """The platform for predictions, with these slots of each client node. BadInput.

        `by_data`: jobs go to the node with their data.
        """
        if self.platform is None:
            raise BadInput("found no platform file; expected one (--penstock-platform)")
        engine = self.store.spec.engine
        kind = "data_location" if by_data else "workqueue"
        loaded = load_platform(self.platform, [f"scheduler.kind={kind}", f"store.engine={engine}"])
        values = {f"hosts.{h.group}.slots": slots[h.name] for h in loaded.hosts if h.name in slots}
        return as_supported(loaded.with_values(values))[0]


def _processors(cpus: Any) -> int:
    own = os.cpu_count() or 1
    return own if cpus is None else max(1, min(own, math.floor(cpus)))


def open_view(
    name: str | None = None,
    platform: Path | None = None,
    engine: str | None = None,
    head: str | None = None,
) -> StoreView:
    """Mount a store in this process, as client node `head` (default: the first) has it.

    The store is the one of that name, or of the platform file, which is started if it is not up and stays up
    with its files; else the only one that is up. Call it before this process has other threads
    (`share_mount`). Raises BadInput and PenstockError.
    """
    if name is not None and platform is not None:
        raise BadInput("found a store and a platform file; expected one of both")
    store = _of_platform(platform, engine) if platform else require_complete(Store.find(name))
    if not store.mounted:
        raise BadInput(f"store.engine: found {store.spec.engine}; expected one that nodes mount")
    require_one_host(store.cluster)
    client = store.client(head)
    scratch = runtime_dir() / _SCRATCH
    scratch.mkdir(mode=0o700, exist_ok=True)
    try:
        share_mount(client.pid, store.spec.mount, str(scratch))
    except OSError as error:
        raise PenstockError(f"the store cannot be mounted in this process: {error}") from None
    return StoreView(store, platform and platform.absolute())


def _of_platform(platform: Path, engine: str | None) -> Store:
    nodes, spec, roles = deployment(load_platform(platform, [], predicted=False), engine)
    with changing():
        store = up_already(nodes, spec, roles, any_use=True)
        if store is not None:
            return store
        check(STORE_ENGINES.load(spec.engine)(), spec, roles)
        return Store.up(nodes, spec, roles)
