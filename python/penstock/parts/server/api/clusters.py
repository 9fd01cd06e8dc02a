"""Clusters of virtual nodes as resources: put up, looked at, changed, entered, taken down."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Request
from fastapi import Path as InPath
from fastapi.encoders import jsonable_encoder
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from penstock.emulate.cluster.cluster import Cluster, RunningNode, registered
from penstock.emulate.cluster.settings import Change
from penstock.emulate.cluster.wire import from_json
from penstock.emulate.network.patch import check_patch
from penstock.errors import BadInput
from penstock.host.journal.journal import Journal
from penstock.parts.server.api import models
from penstock.parts.server.api.certificate import certify
from penstock.parts.server.api.jobs import JobRegistry, Prefer
from penstock.parts.server.authentication import set_body_limit
from penstock.spec.cluster import ClusterSpec, Event

#: nodes that a command runs in at the same time
_AT_ONCE = 64
#: a file of a node that is read or written
_MOST_FILE_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_FILE: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}

_Cluster = Annotated[str, InPath(min_length=1, max_length=64)]
_Node = Annotated[str, InPath(min_length=1, max_length=64)]
_Patch = Annotated[dict[str, Any], Body(min_length=1)]


def found(name: str) -> Cluster:
    """The cluster of that name; 404 where none is up."""
    if name not in registered():
        raise HTTPException(
            404, f"no cluster {name} is up; there are {', '.join(registered()) or 'none'}"
        )
    return Cluster.find(name)


def node_of(cluster: Cluster, name: str) -> RunningNode:
    """A node of it; 404 where there is none."""
    if name not in cluster.nodes:
        raise HTTPException(404, f"cluster {cluster.name} has no node {name}")
    return cluster.nodes[name]


def spec_of(asked: models.PutUp) -> ClusterSpec:
    """The specification that a request asks for. Raises BadInput with what is wrong, and where."""
    from penstock.platform.cluster import cluster_spec
    from penstock.platform.hosts import read_platform

    if (asked.platform is None) == (asked.spec is None):
        raise BadInput("found both or none of platform and spec; expected one of them")
    if asked.spec is not None:
        try:
            spec = from_json(ClusterSpec, asked.spec)
        except ValueError as error:
            raise BadInput(str(error)) from None
    else:
        text = asked.platform
        if not isinstance(text, str):
            text = json.dumps(text, ensure_ascii=False)
        # what is relative in it is relative to where the server was started
        path = Path.cwd() / "platform.yaml"
        spec = cluster_spec(
            read_platform(text.encode(errors="surrogatepass"), path, asked.set, predicted=False)
        )
    if asked.name is not None:
        spec = replace(spec, name=asked.name)
    if asked.runtime is not None:
        spec = replace(spec, runtime=asked.runtime)
    if asked.ssh:
        spec = replace(spec, nodes=tuple(replace(n, ssh=True) for n in spec.nodes))
    return spec


def events_of(asked: models.Events) -> list[Event]:
    """The events of a request. Raises BadInput that names what does not fit."""
    try:
        return [from_json(Event, event) for event in asked.events]
    except ValueError as error:
        raise BadInput(str(error)) from None


def router(registry: JobRegistry) -> APIRouter:
    """Everything about clusters and their nodes."""
    api = APIRouter(prefix="/clusters")

    @api.get("", tags=["clusters"], summary="Names of the clusters that are up")
    def clusters() -> list[str]:
        return list(registered())

    @api.post("", tags=["clusters"], status_code=201, summary="Put a cluster up")
    def put_up(asked: models.PutUp, prefer: Prefer = None) -> Any:
        spec = spec_of(asked)

        def act() -> dict[str, Any]:
            return Cluster.up(spec, Journal(), outlive=True).described

        return registry.do(prefer, f"put {spec.name} up", act, 201)

    @api.get("/{cluster}", tags=["clusters"], summary="Its nodes with disks and addresses")
    def describe(cluster: _Cluster) -> dict[str, Any]:
        return found(cluster).described

    @api.delete("/{cluster}", tags=["clusters"], summary="Take it down")
    def down(cluster: _Cluster, prefer: Prefer = None) -> Any:
        held = found(cluster)

        def act() -> dict[str, Any]:
            held.down()
            return {"cluster": cluster, "state": "down"}

        return registry.do(prefer, f"take {cluster} down", act)

    @api.get(
        "/{cluster}/status",
        tags=["clusters"],
        summary="Processors, memory, disks, links of its nodes",
    )
    def status(cluster: _Cluster) -> dict[str, Any]:
        return found(cluster).whole_status()

    @api.get(
        "/{cluster}/platform", tags=["clusters"], summary="Its specification, to be put up again"
    )
    def saved(cluster: _Cluster) -> dict[str, Any]:
        return found(cluster).spec_json()

    @api.patch("/{cluster}", tags=["clusters"], summary="Change resources of many nodes at once")
    def batch(cluster: _Cluster, asked: models.Batch, prefer: Prefer = None) -> Any:
        held = found(cluster)
        changes = [Change(tuple(c.nodes), c.resource, c.patch, c.name) for c in asked.changes]
        return registry.do(prefer, f"change {cluster}", lambda: {"applied": held.change(changes)})

    @api.get("/{cluster}/nodes", tags=["nodes"], summary="Its nodes")
    def nodes(cluster: _Cluster) -> list[dict[str, Any]]:
        return list(found(cluster).described["nodes"])

    @api.get("/{cluster}/nodes/{node}", tags=["nodes"], summary="One node and what it is doing")
    def node(cluster: _Cluster, node: _Node) -> dict[str, Any]:
        held = found(cluster)
        node_of(held, node)
        return next(n for n in held.status() if n["name"] == node)

    def changed(
        cluster: str, node: str, resource: Any, name: str | None, patch: dict[str, Any]
    ) -> dict[str, Any]:
        held = found(cluster)
        node_of(held, node)
        applied = held.set([node], resource, name, patch)[0]
        if applied.get("error"):
            raise HTTPException(409, applied["error"])
        return applied

    @api.put(
        "/{cluster}/nodes/{node}/state", tags=["nodes"], summary="Start, stop, freeze, thaw it"
    )
    def state(cluster: _Cluster, node: _Node, asked: models.State) -> dict[str, Any]:
        return changed(cluster, node, "node", None, asked.model_dump())

    @api.patch("/{cluster}/nodes/{node}/cpu", tags=["nodes"], summary="cpus, cpuset, ratio")
    def cpu(cluster: _Cluster, node: _Node, patch: _Patch) -> dict[str, Any]:
        return changed(cluster, node, "cpu", None, patch)

    @api.patch("/{cluster}/nodes/{node}/memory", tags=["nodes"], summary="hard and soft limit")
    def memory(cluster: _Cluster, node: _Node, patch: _Patch) -> dict[str, Any]:
        return changed(cluster, node, "memory", None, patch)

    @api.get("/{cluster}/nodes/{node}/disks", tags=["disks"], summary="Its disks with counters")
    def disks(cluster: _Cluster, node: _Node) -> dict[str, Any]:
        held = found(cluster)
        node_of(held, node)
        return dict(next(n for n in held.status() if n["name"] == node).get("disks", {}))

    @api.patch(
        "/{cluster}/nodes/{node}/disks/{disk}",
        tags=["disks"],
        summary="Limits, profile, features, faults",
    )
    def disk(cluster: _Cluster, node: _Node, disk: str, patch: _Patch) -> dict[str, Any]:
        held = found(cluster)
        if disk not in node_of(held, node).disks:
            raise HTTPException(404, f"node {node} has no disk {disk}")
        return changed(cluster, node, "disk", disk, patch)

    @api.patch(
        "/{cluster}/nodes/{node}/links/{network}", tags=["links"], summary="Bandwidth, delay, loss"
    )
    def link(cluster: _Cluster, node: _Node, network: str, patch: _Patch) -> dict[str, Any]:
        held = found(cluster)
        if network not in node_of(held, node).addresses:
            raise HTTPException(404, f"node {node} is not on network {network}")
        check_patch(patch)
        return changed(cluster, node, "network", network, patch)

    @api.post("/{cluster}/exec", tags=["nodes"], summary="Run a command in nodes")
    def execute(cluster: _Cluster, asked: models.Exec, prefer: Prefer = None) -> Any:
        chosen = found(cluster).chosen(asked.nodes)

        def act() -> dict[str, Any]:
            with ThreadPoolExecutor(min(_AT_ONCE, len(chosen))) as pool:
                return {"results": list(pool.map(lambda n: _run(n, asked), chosen))}

        return registry.do(prefer, f"run {asked.argv[0]} in {len(chosen)} nodes of {cluster}", act)

    @api.get(
        "/{cluster}/nodes/{node}/files/{path:path}",
        tags=["nodes"],
        summary="A file of the node",
        response_class=StreamingResponse,
        responses={200: {"content": _FILE}},
    )
    def read_file(cluster: _Cluster, node: _Node, path: str) -> Response:
        inside, out = node_of(found(cluster), node), tempfile.TemporaryFile()  # noqa: SIM115
        with contextlib.ExitStack() as unless_sent, tempfile.TemporaryFile() as err:
            unless_sent.callback(out.close)
            words = ["head", "-c", str(_MOST_FILE_BYTES + 1), "--", f"/{path}"]
            done = inside.run(words, stdout=out, stderr=err, timeout_s=600)
            if done.exit_status:
                raise HTTPException(404, _text(err, 1000).strip() or f"/{path} cannot be read")
            size = out.seek(0, os.SEEK_END)
            if size > _MOST_FILE_BYTES:
                raise HTTPException(409, f"/{path} has more than {_MOST_FILE_BYTES} bytes")
            unless_sent.pop_all()
        return StreamingResponse(
            _pieces(out),
            media_type="application/octet-stream",
            headers={"Content-Length": str(size)},
        )

    @api.put(
        "/{cluster}/nodes/{node}/files/{path:path}",
        tags=["nodes"],
        status_code=204,
        summary="Write it",
        openapi_extra={"requestBody": {"content": _FILE, "required": True}},
    )
    async def write_file(cluster: _Cluster, node: _Node, path: str, request: Request) -> None:
        inside = await run_in_threadpool(lambda: node_of(found(cluster), node))
        set_body_limit(request.scope, _MOST_FILE_BYTES)
        with tempfile.TemporaryFile() as given:
            async for piece in request.stream():
                given.write(piece)
            given.seek(0)
            await run_in_threadpool(_write, inside, path, given)

    @api.get("/{cluster}/events", tags=["schedules"], summary="What became of scheduled changes")
    def events(cluster: _Cluster) -> list[dict[str, Any]]:
        return found(cluster).events()

    @api.post("/{cluster}/events", tags=["schedules"], status_code=201, summary="Schedule changes")
    def schedule(cluster: _Cluster, asked: models.Events) -> dict[str, Any]:
        held, read = found(cluster), events_of(asked)
        return {"start_ns": held.schedule(read, asked.start_ns), "events": len(read)}

    @api.post("/{cluster}/certificate", tags=["certificate"], summary="Watch its disks, judge each")
    def certified(cluster: _Cluster, asked: models.Watch, prefer: Prefer = None) -> Any:
        held = found(cluster)

        def act() -> Any:
            return jsonable_encoder(certify(held, asked.seconds))

        return registry.do(prefer, f"certificate of {cluster}", act)

    @api.get("/{cluster}/networks", tags=["networks"], summary="Its networks, and who carries them")
    def networks(cluster: _Cluster) -> list[dict[str, Any]]:
        return found(cluster).networks()

    @api.patch(
        "/{cluster}/networks/{network}", tags=["networks"], summary="Delays from node to node"
    )
    def delays(cluster: _Cluster, network: str, asked: models.Delays) -> dict[str, Any]:
        held = found(cluster)
        known = [n["name"] for n in held.networks()]
        if network not in known:
            raise HTTPException(404, f"no network {network}; there are {', '.join(known)}")
        held.set_delays(
            network, {(a, b): s for a, to in asked.delays.items() for b, s in to.items()}
        )
        return next(n for n in held.networks() if n["name"] == network)

    @api.post("/{cluster}/marks", tags=["schedules"], summary="A phase begins now")
    def mark(cluster: _Cluster, asked: models.Mark) -> dict[str, Any]:
        return {"events": found(cluster).mark(asked.phase)}

    return api


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _write(node: RunningNode, path: str, given: IO[bytes]) -> None:
    with tempfile.TemporaryFile() as err:
        words = ["tee", "--", f"/{path}"]
        done = node.run(words, stdin=given, stdout=os.devnull, stderr=err, timeout_s=600)
        if done.exit_status:
            raise HTTPException(400, _text(err, 1000).strip() or f"/{path} cannot be written")


def _run(node: RunningNode, asked: models.Exec) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        done = node.run(
            asked.argv,
            env=asked.env,
            cwd=asked.cwd,
            user=asked.user,
            stdout=out,
            stderr=err,
            timeout_s=asked.timeout_s,
        )
        return {
            "node": node.name,
            "exit_status": done.exit_status,
            "timed_out": done.timed_out,
            "seconds": done.wall_s,
            "stdout": _text(out, asked.most_bytes),
            "stderr": _text(err, asked.most_bytes),
        }


def _text(file: Any, most: int) -> str:
    file.seek(0)
    return str(file.read(most).decode(errors="replace"))
