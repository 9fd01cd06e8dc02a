"""A shared store on virtual nodes: start, tags, locations of data, and a stop without data loss."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from penstock.emulate.cluster.cluster import Cluster, RunningNode
from penstock.emulate.cluster.running_cluster import RunningCluster
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.nodes.node_group import NodeGroup
from penstock.parts.stores.agent_client import Sessions
from penstock.parts.stores.clusters import (
    Start,
    differences,
    digests_of,
    interrupted,
    live_cluster,
    live_clusters,
    require_free,
)
from penstock.parts.stores.engines.engine import Site, StoreEngine
from penstock.parts.stores.files import Files, Mounted, Unmounted
from penstock.parts.stores.hints import attribute, checked
from penstock.parts.stores.staging import unverified
from penstock.parts.stores.tag_watch import TagWatch
from penstock.parts.stores.tags import Tagged, Tagging, own
from penstock.parts.stores.watch_client import ask_watch, start_watch, stop_watch
from penstock.plugins import STORE_ENGINES
from penstock.spec.cluster import ClusterSpec
from penstock.spec.store import Extent, Roles, StoreSpec, Support, refused
from penstock.text import first_of, listed
from penstock.writing import write_atomic

Progress = Callable[[str, int, int], None]
#: bytes that another node must read back before a store counts as up
_PROBE_BYTES = 256 * 1024
_PROBE_WITHIN_S = 45.0
#: engine whose nodes share a directory of their host
_ONE_HOST = "directory"


class Store:
    """A running store. `find` returns the one that an earlier command started."""

    def __init__(
        self, cluster: RunningCluster, spec: StoreSpec, roles: Roles, state: dict[str, Any]
    ) -> None:
        self.cluster = cluster
        self.spec = spec
        self.roles = roles
        self.state = state
        self._engine: StoreEngine = STORE_ENGINES.load(spec.engine)()
        self._sessions = Sessions()
        self._watching: TagWatch | None = None

    @property
    def name(self) -> str:
        """The cluster's, which has at most one store."""
        return self.cluster.name

    @classmethod
    def up(
        cls,
        cluster_spec: ClusterSpec,
        spec: StoreSpec,
        roles: Roles,
        *,
        outlive: bool = True,
        strict: bool = False,
        progress: Progress | None = None,
        start: Start | None = None,
    ) -> Store:
        """Start the nodes and the store; a failure stops both.

        The store is up when a file written by one node was read on another and located. `start`: starts the
        nodes on other hosts. Raises BadInput for unsupported values before anything is started; with `strict`
        also for a refused parameter.
        """
        engine = ready(spec, roles, strict=strict, here=start is None)
        placed = with_privileges(cluster_spec, roles, engine)
        cluster: RunningCluster
        if start is None:
            require_free(placed.name)
            cluster = Cluster.up(
                placed, Journal(), outlive=outlive, progress=progress, complete=False
            )
        else:
            cluster = start(placed)
        try:
            store = cls.on(
                cluster, spec, roles, progress=progress, outlive=outlive, nodes=cluster_spec
            )
            cluster.completed()
            return store
        except BaseException:
            with contextlib.suppress(PenstockError):
                cluster.down()
            raise

    @classmethod
    def on(
        cls,
        cluster: RunningCluster,
        spec: StoreSpec,
        roles: Roles,
        *,
        progress: Progress | None = None,
        outlive: bool = False,
        nodes: ClusterSpec | None = None,
    ) -> Store:
        """Start a store on running nodes, which were described by `nodes`. Call `check` and
        `with_privileges` first."""
        store = cls(cluster, spec, roles, {"phase": "starting"})
        if nodes is not None:
            store.state["nodes"] = digests_of(nodes)
        if outlive:
            store._keep()
        site = store._site()
        steps = len(roles.clients) + 2
        try:
            _say(progress, "servers", 0, steps)
            store._engine.up(site)
            for number, node in enumerate(site.clients):
                _say(progress, "mounts", 1 + number, steps)
                store._engine.mount(site, node)
            _say(progress, "probe", steps - 1, steps)
            store.state["probe"] = store._probe(site)
            store.state["phase"] = "up"
        except BaseException:
            store._forget()
            raise
        if outlive:
            store._keep()
        if spec.watched:
            try:
                store._watch(outlive)
            except BaseException:
                store._forget()
                raise
        return store

    def _watch(self, outlive: bool) -> None:
        """Apply tags set by programs: in a separate process, or in this one while it runs."""
        if outlive:
            self.state["watch"] = start_watch(self.name)
            self._keep()
        else:
            self._watching = TagWatch(lambda: self)
            self._watching.hold()

    @classmethod
    def find(cls, name: str | None = None) -> Store:
        """The store of that name, or the only one. BadInput if there is none."""
        by_name = {n: c for n, c in live_clusters().items() if _path(c).exists()}
        if name is None and len(by_name) == 1:
            name = next(iter(by_name))
        if name not in by_name and (half := [n for n in interrupted() if name in (None, n)]):
            raise PenstockError(_incomplete(half[0]))
        if name not in by_name:
            names = ", ".join(by_name) or "none"
            problem = f"no store {name} is up" if name else "which store?"
            raise BadInput(f"{problem}; there are {names}" if by_name else "no store is up")
        facts = json.loads(_path(by_name[name]).read_text())
        spec = StoreSpec(**{**facts["spec"], "kept": tuple(facts["spec"]["kept"])})
        roles = Roles(**{k: tuple(v) for k, v in facts["roles"].items()})
        return cls(by_name[name], spec, roles, facts["state"])

    @property
    def complete(self) -> bool:
        """False if the command that starts or stops it did not finish."""
        return self.state.get("phase") == "up" and not self.cluster.interrupted

    def _keep(self) -> None:
        """Save the state for later commands among the cluster's files, which are removed with it."""
        about = {"spec": asdict(self.spec), "roles": asdict(self.roles), "state": self.state}
        write_atomic(_path(self.cluster), json.dumps(about))

    def _site(self) -> Site:
        nodes = self.cluster.nodes

        def of(names: tuple[str, ...]) -> tuple[RunningNode, ...]:
            return tuple(nodes[n] for n in names)

        return Site(
            self.name,
            self.spec,
            of(self.roles.managers),
            of(self.roles.storage),
            of(self.roles.clients),
            self.cluster.home,
            self.state,
            self._sessions,
        )

    def client(self, name: str | None = None) -> RunningNode:
        """A client node (default: the first live one). BadInput if it is not a client."""
        if name is not None and name not in self.roles.clients:
            expected = ", ".join(self.roles.clients)
            raise BadInput(f"found the node {name!r}; expected a client of the store: {expected}")
        nodes = self.cluster.nodes
        for one in (name,) if name is not None else self.roles.clients:
            if nodes[one].state == "running":
                return nodes[one]
        if name is not None:
            nodes[name].open_entrance()  # has the reason
        raise PenstockError(f"{self.name}: no client node runs")

    @property
    def mounted(self) -> bool:
        """True if nodes mount it; else `files` is the only access."""
        return not isinstance(self._engine, Unmounted)

    def files(self, node: str | None = None) -> Files:
        """Its files, from a client node (default: the first live one)."""
        return self._files(self._site(), self.client(node))

    def _files(self, site: Site, node: RunningNode) -> Files:
        if isinstance(self._engine, Unmounted):
            return self._engine.files(site, node)
        return Mounted(self.cluster, site, node)

    def inside(self, path: str) -> str:
        """Path of a file of the store on its nodes (`/a` and `MOUNT/a` are equal). BadInput for one outside
        it."""
        mount = self.spec.mount
        below = (
            path if path == mount or path.startswith(f"{mount}/") else f"{mount}/{path.lstrip('/')}"
        )
        full_path = posixpath.normpath(below)
        if full_path != mount and not full_path.startswith(f"{mount}/"):
            raise BadInput(f"{path}: found a path beyond the store; expected one below {mount}")
        return full_path

    def support(self) -> Mapping[str, Support]:
        """Support of each parameter and hint."""
        return self._engine.support()

    def attributes(self, path: str, node: str | None = None) -> dict[str, str]:
        """Tags of a file by key, including those without a meaning."""
        files, full_path = self.files(node), self.inside(path)
        _kind(files, full_path, path)
        return own(files.attributes(full_path))

    def tag(
        self,
        path: str,
        tags: Mapping[str, str],
        *,
        node: str | None = None,
        migrate: bool = False,
        create: bool = False,
    ) -> list[Tagged]:
        """Set tags of a file or directory and have the engine apply them; `node` is the future writer.

        A placement hint takes effect on an empty file. On one with data it is refused, or with `migrate` the
        file is rewritten under the hint, compared by its checksum, and replaced. With `create` an absent file
        is created, empty.
        """
        for key, text in tags.items():
            attribute(key)
            checked(key, text)
        site, writer, full_path = self._site(), self.client(node), self.inside(path)
        files = self._files(site, writer)
        if create:
            files.make(full_path)
        kind, size = _kind(files, full_path, path)
        empty = kind == "directory" or size == 0
        tagging = self._tagging(site, writer)
        if migrate and not empty:
            results = tagging.again(full_path, path, tags)
        else:
            results = tagging.apply(full_path, path, tags, empty=empty)
        self.remember()
        return results

    def take_up(self, full_path: str, node: str, *, empty: bool) -> list[Tagged]:
        """Have the engine apply tags that a program set on a file which `node` opens."""
        site, writer = self._site(), self.client(node)
        path = full_path.removeprefix(self.spec.mount)
        results = self._tagging(site, writer).apply_existing(full_path, path, empty=empty)
        self.remember()
        return results

    def _tagging(self, site: Site, writer: RunningNode) -> Tagging:
        return Tagging(self._engine, site, writer, self._files(site, writer))

    def locate(self, path: str, node: str | None = None) -> list[Extent]:
        """Extents of a file, in order of their offset."""
        site, client, full_path = self._site(), self.client(node), self.inside(path)
        kind, _ = _kind(self._files(site, client), full_path, path)
        if kind == "directory":
            raise BadInput(f"{path}: found a directory; expected a file")
        return self._engine.locate(site, client, full_path)

    def mount(self, node: str) -> None:
        """Mount the store on one more node of the cluster, or again on a restarted one."""
        nodes = self.cluster.nodes
        if node not in nodes:
            raise BadInput(f"found the node {node!r}; expected one of {', '.join(nodes)}")
        self._engine.mount(self._site(), nodes[node])
        if node not in self.roles.clients:
            self.roles = replace(self.roles, clients=(*self.roles.clients, node))
        self.remember()

    def status(self) -> dict[str, Any]:
        """Engine, nodes by role, servers that are up, free space, support."""
        site = self._site()
        complete = self.complete
        status: dict[str, Any] = {
            "store": self.name,
            "engine": self.spec.engine,
            "mount": self.spec.mount,
            "phase": self.state.get("phase"),
            "complete": complete,
            "nodes": asdict(self.roles),
            "parameters": dict(self.spec.parameters),
        }
        if not complete:
            return status | {"servers": [], "trouble": _incomplete(self.name)}
        try:
            status |= self._engine.status(site)
        except PenstockError as error:
            status |= {"servers": [], "trouble": str(error)}
        if self.spec.watched:
            status["watch"] = self._watch_state()
        return status

    def _watch_state(self) -> dict[str, Any]:
        """State of the watch for tags set by programs."""
        if self._watching is not None:
            return self._watching.report()
        if "watch" not in self.state:
            return {"trouble": "nothing watches for them"}
        return ask_watch(self.state["watch"])

    def down(self, *, discard: Sequence[str] = ()) -> None:
        """Stop store and nodes. PenstockError while a protected file has no verified copy on the backend.

        `discard` has patterns of protected files that may be lost.
        """
        if not self.complete:
            self.cluster.down()
            return
        if self.spec.kept:
            lost = unverified(self, discard)
            if lost:
                raise PenstockError(
                    f"{listed(first_of(lost, 3))}: to be kept, but without a verified copy outside of the "
                    "store; `penstock store stage-out` copies them, --discard PATTERN deletes them"
                )
        self.cluster.ending()
        self._end()
        self.cluster.down()

    def _end(self) -> None:
        """Stop clients and servers cleanly; the cluster removes dead ones."""
        self._watch_no_more()
        site = self._site()
        self._sessions.close()
        for node in site.clients:
            if node.state == "running":
                with contextlib.suppress(PenstockError):
                    self._engine.unmount(site, node)
        with contextlib.suppress(PenstockError):
            self._engine.down(site)

    def _watch_no_more(self) -> None:
        if self._watching is not None:
            self._watching.close()
        if "watch" in self.state:
            stop_watch(self.state.pop("watch"))

    def release(self) -> None:
        """Cancel pending requests to its nodes; later ones start new sessions."""
        self._sessions.close()

    def abandon(self) -> None:
        """Stop store and nodes immediately, even if servers have died."""
        self._watch_no_more()
        self.cluster.down()
        self._sessions.close()

    def stop(self) -> None:
        """Stop the store, but not the nodes."""
        self._end()
        self._forget()

    def _forget(self) -> None:
        _path(self.cluster).unlink(missing_ok=True)

    def run(self, node: RunningNode, argv: Sequence[str], *, what: str, stdin: bytes = b"") -> str:
        """Run a command in a node; its output. PenstockError with its last lines if it fails."""
        return self._site().run(node, argv, what=what, stdin=stdin)

    def remember(self) -> None:
        """Save the current state for later commands."""
        if _path(self.cluster).exists():
            self._keep()

    def _probe(self, site: Site) -> dict[str, Any]:
        """Write a file on one client, read it on another, locate it. PenstockError if that fails."""
        writer, reader = site.clients[0], site.clients[-1]
        path = posixpath.join(site.mount, f".penstock-probe-{os.urandom(4).hex()}")
        content, files, trouble = os.urandom(_PROBE_BYTES), self._files(site, writer), ""

        def written() -> bool:
            nonlocal trouble
            try:
                files.write(path, content)
            except PenstockError as error:
                trouble = str(error)
                return False
            return True

        try:
            site.wait(written, "a file could not be written", _PROBE_WITHIN_S)
        except PenstockError as error:
            raise PenstockError(f"{error}: {trouble}") from None
        (facts,) = self._files(site, reader).facts([path])
        if facts.sha256 != hashlib.sha256(content).hexdigest():
            raise PenstockError(f"{reader.name} reads another probe file than {writer.name} wrote")
        extents = self._engine.locate(site, writer, path)
        if sum(e.length_bytes for e in extents) != _PROBE_BYTES or any(
            not e.nodes for e in extents
        ):
            raise PenstockError(f"{site.spec.engine} does not say where the probe file is")
        files.remove(path)
        located = [e.to_dict() for e in extents]
        return {"writer": writer.name, "reader": reader.name, "extents": located}


def ready(spec: StoreSpec, roles: Roles, *, strict: bool = False, here: bool = True) -> StoreEngine:
    """Engine of a store that can be started `here`, or on other hosts; as `check`.

    PenstockError if it is not installed here; other hosts check that themselves.
    """
    engine: StoreEngine = STORE_ENGINES.load(spec.engine)()
    if here and (lacking := engine.missing()):
        raise PenstockError(f"{spec.engine}: {lacking}{_instead(spec.engine)}")
    if not here:
        _check_hosts(spec)
    check(engine, spec, roles, strict=strict)
    return engine


def _check_hosts(spec: StoreSpec) -> None:
    """Raise BadInput for a store that needs all nodes on one host."""
    if spec.engine == _ONE_HOST:
        expected = "an engine with servers, as its nodes share a directory of one host"
        raise BadInput(f"store.engine: found {spec.engine} on several hosts; expected {expected}")
    if spec.watched:
        raise BadInput("--watch: found it on several hosts; expected all nodes on one host")


def _instead(name: str) -> str:
    """Alternative engines, as text."""
    others = [n for n in STORE_ENGINES if n not in (name, "directory")]
    there = [n for n in others if not STORE_ENGINES.load(n)().missing()]
    return f"; installed are {', '.join(there)}" if there else ""


def check(engine: StoreEngine, spec: StoreSpec, roles: Roles, *, strict: bool = False) -> list[str]:
    """Messages about refused parameters. BadInput for values that no engine supports."""
    for role, names in asdict(roles).items():
        if not names and (role != "managers"):
            word = {"storage": "storage", "clients": "client"}[role]
            raise BadInput(f"store: found no node with the role {word}; expected at least one")
    parameters, servers = spec.parameters, len(roles.storage)
    for key, what in (("replicas", "copies of each chunk"), ("stripe", "storage nodes for a file")):
        if isinstance(parameters.get(key), int) and parameters[key] > servers:
            excess = f"{parameters[key]} {what} and {servers} storage nodes"
            raise BadInput(f"store.{key}: found {excess}; expected at most {servers}")
    if refusal := engine.refusal(planned(spec, roles)):
        raise BadInput(f"{spec.engine}: {refusal}")
    support = engine.support()
    watch = support.get("setfattr", refused("unknown to it"))
    if spec.watched and watch.how == "refused":
        raise BadInput(f"{spec.engine}: tags cannot be watched: {watch.why}")
    refusals = list(refused_parameters(engine, spec).values())
    if strict and refusals:
        raise BadInput("\n".join(refusals))
    return refusals


def refused_parameters(engine: StoreEngine, spec: StoreSpec) -> dict[str, str]:
    """Message by parameter that the engine, or its value, does not support.

    Rows of `support` for one value, such as `placement random`, take precedence over the parameter's own.
    """
    support, refusals = engine.support(), dict[str, str]()
    for key, value in spec.parameters.items():
        own = support.get(f"{key} {value}", support.get(key, refused("unknown to it")))
        if own.how == "refused":
            named = f" {value}" if isinstance(value, str) else ""
            refusals[key] = f"store.{key}{named}: {spec.engine} refuses it: {own.why}"
    return refusals


def planned(spec: StoreSpec, roles: Roles) -> Site:
    """Site of a store whose nodes do not run yet: they have only names."""

    def of(names: tuple[str, ...]) -> tuple[RunningNode, ...]:
        group = NodeGroup("", {}, None, [], "")
        return tuple(RunningNode(n, "created", 0, group, {}, None, None) for n in names)

    nodes = (of(roles.managers), of(roles.storage), of(roles.clients))
    return Site("", spec, *nodes, home=Path())


def with_privileges(cluster: ClusterSpec, roles: Roles, engine: StoreEngine) -> ClusterSpec:
    """The cluster with the privileges that the engine's servers and clients require."""

    def needed(name: str) -> tuple[str, ...]:
        client = engine.privileges if name in roles.clients else ()
        server = engine.server_privileges if name in (*roles.storage, *roles.managers) else ()
        return (*client, *server)

    nodes = tuple(
        replace(n, privileges=tuple(dict.fromkeys((*n.privileges, *needed(n.name)))))
        for n in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


def _kind(files: Files, full_path: str, path: str) -> tuple[str, int]:
    """`file` or `directory`, and its bytes. BadInput if absent."""
    entry = files.kind(full_path)
    if entry is None:
        raise BadInput(f"{path}: found nothing in the store; expected a file")
    return entry


def _say(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, done, total)


def _path(cluster: RunningCluster) -> Path:
    return cluster.home / "store.json"


def _incomplete(name: str) -> str:
    """Message about a store that is not complete, with the remedy."""
    if name not in interrupted():
        return (
            f"the store {name} is not complete: another command is putting it up, or takes it down"
        )
    return (
        f"the store {name} is not complete: the command that started or stopped it was interrupted; "
        "`penstock undo` removes it, and `penstock store up` then starts it again"
    )


def require_complete(store: Store) -> Store:
    """The store, if it is complete; else PenstockError with the remedy."""
    if not store.complete:
        raise PenstockError(_incomplete(store.name))
    return store


def up_already(
    nodes: ClusterSpec, spec: StoreSpec, roles: Roles, *, any_use: bool = False
) -> Store | None:
    """The running store of the same description. BadInput for another one of that name, or on other nodes.

    `any_use`: ignore protected files and the watch for tags of programs. An incomplete store of an earlier
    command is stopped.
    """
    cluster = live_cluster(nodes.name)
    if cluster is None:
        return None
    if cluster.interrupted:
        cluster.down()
        return None
    if not _path(cluster).exists():
        return None
    store = Store.find(nodes.name)
    if not store.complete:
        store.cluster.down()
        return None
    if any_use:
        spec = replace(spec, kept=store.spec.kept, watched=store.spec.watched)
    if (store.spec, store.roles) != (spec, roles):
        raise BadInput(
            f"a store {nodes.name} is up that is another; `penstock store down` takes it down"
        )
    if others := differences(nodes, store.state.get("nodes", {})):
        raise BadInput(
            f"the store {nodes.name} is up with other {', and '.join(others)} than the platform states; "
            "`penstock store down` takes it down"
        )
    return store
