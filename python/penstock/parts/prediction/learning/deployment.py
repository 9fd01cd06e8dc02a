"""Deployments of points: on directories of this host, or on nodes and stores of a platform file.

Storages of a platform are the disk of each node (`local`) and the engines of the table `STORE_ENGINES` of
`penstock.plugins`, which parts and other packages add. All points of one number of nodes and one storage are
a study of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.black_box.space import LOCAL, Point, Space
from penstock.platform.hosts import Host, Platform, load_platform
from penstock.plugins import STORE_ENGINES
from penstock.spec.names import OF_STORE
from penstock.spec.source import dump, read_source
from penstock.study.platform_file import include_platform

#: parameters of a platform's store that its engine gets here, too
_PARAMETERS = ("chunk", "stripe", "replicas", "placement")


@dataclass(frozen=True)
class Deployment:
    """A number of nodes, and the storage that they use."""

    nodes: int = 1
    storage: str = LOCAL

    @property
    def folder(self) -> str:
        """Folder of its archive."""
        return f"nodes-{self.nodes}-{self.storage}"


def of_point(point: Point) -> Deployment:
    """Deployment of a point."""
    return Deployment(point.nodes, point.storage)


@dataclass(frozen=True)
class Ground:
    """A directory of this host, with mounts of other storages by name; or a platform file."""

    place: Path
    mounts: Mapping[str, Path] = field(default_factory=dict)

    @property
    def is_platform(self) -> bool:
        """True for a platform file."""
        return self.place.is_file()

    def directory(self, deployment: Deployment) -> Path:
        """Directory of this host for a storage."""
        return self.mounts.get(deployment.storage, self.place)

    def archive(self, out: Path, deployment: Deployment) -> Path:
        """Archive of a deployment: `out` itself for the directory of the place."""
        return (
            out if not self.is_platform and deployment == Deployment() else out / deployment.folder
        )

    def archives(self, out: Path, space: Space) -> dict[Deployment, Path]:
        """Archives of all deployments of a space."""
        each = [Deployment(n, s) for n in space.nodes for s in space.storage]
        return {one: self.archive(out, one) for one in each}

    def check(self, space: Space) -> None:
        """Raise BadInput for nodes or storages that cannot be deployed here."""
        if self.is_platform:
            _check_platform(self.place, self.mounts, space)
            return
        if space.nodes != (1,):
            numbers = ", ".join(map(str, space.nodes))
            raise BadInput(
                f"found nodes {numbers} with the directory {self.place}; expected 1, or a platform file "
                "in place of the directory, which describes the nodes"
            )
        for name in space.storage:
            if name != LOCAL and name not in self.mounts:
                raise BadInput(
                    f"found the storage {name!r} without a directory; expected --mount {name}=DIR, or a "
                    f"platform file with a store of {STORE_ENGINES.choices()}"
                )


def _check_platform(place: Path, mounts: Mapping[str, Path], space: Space) -> None:
    if mounts:
        raise BadInput(f"found --mount with the platform {place}; expected a directory with it")
    clients = clients_of(load_platform(place, predicted=False))
    if max(space.nodes) > len(clients):
        raise BadInput(
            f"found nodes {max(space.nodes)}; expected at most {len(clients)}, the clients of {place}"
        )
    for name in space.storage:
        if name == LOCAL:
            if any(not host.node.disks for host in clients[: max(space.nodes)]):
                raise BadInput(f"{place}: found a client without a disk; expected one for 'local'")
            continue
        if name not in STORE_ENGINES:
            raise BadInput(
                f"found the storage {name!r}, which is not installed; expected {LOCAL}, or a store of "
                f"{STORE_ENGINES.choices()}"
            )
        engine = STORE_ENGINES.load(name)()
        mount = engine.support().get("mount")
        missing = mount.why if mount is not None and mount.how == "refused" else engine.missing()
        if missing:
            raise BadInput(f"the storage {name} cannot be measured: {missing}")


def clients_of(platform: Platform) -> Sequence[Host]:
    """Hosts that run programs: those with the role `client`, else all."""
    return tuple(h for h in platform.hosts if "client" in h.roles) or platform.hosts


@dataclass(frozen=True)
class Site:
    """A deployment on a platform, as texts of a study.

    `nodes` run the points in `place`. In a store, each of `writers` creates the data of one node, so that no
    client has what it reads in its own cache; with one client it creates its own.
    """

    platform: Mapping[str, object]
    nodes: tuple[str, ...]
    place: str
    disk: str | None
    writers: Mapping[str, str]


def site_of(place: Path, deployment: Deployment) -> Site:
    """The deployment on a platform file."""
    platform = load_platform(place, predicted=False)
    clients = [h.name for h in clients_of(platform)]
    nodes = tuple(clients[: deployment.nodes])
    section = _section(place)
    if deployment.storage == LOCAL:
        disk = clients_of(platform)[0].node.disks[0].name
        name = _renamed(disk)
        return Site(section, nodes, f"{{{name}}}", name, {})
    store = platform.plain.get("store") or {}
    same = store.get("engine") == deployment.storage
    parameters = {k: store[k] for k in _PARAMETERS if same and store.get(k) not in (None, "all")}
    store_section = {
        "engine": deployment.storage,
        **_roles(platform.hosts, clients),
        **parameters,
    }
    writers = {clients[(i + 1) % len(clients)]: node for i, node in enumerate(nodes)}
    with_store = {**section, OF_STORE: store_section}
    return Site(with_store, nodes, f"{{{OF_STORE}}}/{{node}}", None, writers)


def _section(place: Path) -> Mapping[str, object]:
    """Nodes and network of a platform file as a study has them; no disk is called like the store."""
    source = read_source(dump({"platform": {"file": place.name}}).encode(), str(place))
    include_platform(source, place.resolve().parent)
    if source.mistakes:
        raise BadInput(mistakes=source.mistakes)
    section: Mapping[str, Any] = source.value["platform"]
    for node in section["nodes"]:
        for disk in node.get("disks", []):
            disk["name"] = _renamed(disk["name"])
    return section


def _renamed(disk: str) -> str:
    return f"disk-{disk}" if disk == OF_STORE else disk


def _roles(hosts: Iterable[Host], clients: list[str]) -> dict[str, list[str]]:
    by_role = {r: [h.name for h in hosts if r in h.roles] for r in ("manager", "storage")}
    roles = {"storage": by_role["storage"] or clients, "clients": clients}
    return {"manager": by_role["manager"], **roles} if by_role["manager"] else roles
