"""Routes of clusters of virtual nodes: start, read, change, run commands, stop."""

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
from penstock.routes.caller import set_body_limit
from penstock.spec.cluster import ClusterSpec, Event

#: maximum number of nodes that run a command at the same time
_THREADS = 64
#: maximum size of a file that is read from or written to a node
_FILE_LIMIT_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20
_FILE: dict[str, Any] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
}

_Cluster = Annotated[str, InPath(min_length=1, max_length=64)]
_Node = Annotated[str, InPath(min_length=1, max_length=64)]
_Patch = Annotated[dict[str, Any], Body(min_length=1)]


def find_cluster(name: str) -> Cluster:
    """The live cluster of that name. Raises HTTPException 404 if there is none."""
    if name not in registered():
        raise HTTPException(
            404, f"no cluster {name} is up; there are {', '.join(registered()) or 'none'}"
        )
    return Cluster.find(name)


def node_of(cluster: Cluster, name: str) -> RunningNode:
    """A node of a cluster. Raises HTTPException 404 if there is none of that name."""
    if name not in cluster.nodes:
        raise HTTPException(404, f"cluster {cluster.name} has no node {name}")
    return cluster.nodes[name]


def spec_of(body: models.PutUp) -> ClusterSpec:
    """The cluster specification of a request. Raises BadInput with all mistakes and their positions."""
    from penstock.platform.cluster import cluster_spec
    from penstock.platform.hosts import read_platform

    if (body.platform is None) == (body.spec is None):
        raise BadInput("found both or none of platform and spec; expected one of them")
    if body.spec is not None:
        try:
            spec = from_json(ClusterSpec, body.spec)
        except ValueError as error:
            raise BadInput(str(error)) from None
    else:
        text = body.platform
        if not isinstance(text, str):
            text = json.dumps(text, ensure_ascii=False)
        # relative paths refer to the server's working directory
        path = Path.cwd() / "platform.yaml"
        spec = cluster_spec(
            read_platform(text.encode(errors="surrogatepass"), path, body.set, predicted=False)
        )
    if body.name is not None:
        spec = replace(spec, name=body.name)
    if body.runtime is not None:
        spec = replace(spec, runtime=body.runtime)
    if body.ssh:
        spec = replace(spec, nodes=tuple(replace(n, ssh=True) for n in spec.nodes))
    return spec


def events_of(body: models.Events) -> list[Event]:
    """The events of a request. Raises BadInput with the name of an invalid field."""
    try:
        return [from_json(Event, event) for event in body.events]
    except ValueError as error:
        raise BadInput(str(error)) from None


def router(registry: JobRegistry) -> APIRouter:
    """Routes of clusters, their nodes, disks, links and networks."""
    api = APIRouter(prefix="/clusters")
    _add_cluster_routes(api, registry)
    _add_node_routes(api)
    _add_disk_routes(api)
    _add_command_routes(api, registry)
    _add_schedule_routes(api, registry)
    return api


def _add_cluster_routes(api: APIRouter, registry: JobRegistry) -> None:
    """Routes of clusters."""

    @api.get("", tags=["clusters"], summary="List the names of live clusters")
    def clusters() -> list[str]:
        return list(registered())

    @api.post("", tags=["clusters"], status_code=201, summary="Start a cluster")
    def put_up(body: models.PutUp, prefer: Prefer = None) -> Any:
        spec = spec_of(body)

        def start() -> dict[str, Any]:
            return Cluster.up(spec, Journal(), outlive=True).described

        return registry.do(prefer, f"start {spec.name}", start, 201)

    @api.get("/{cluster}", tags=["clusters"], summary="Get nodes, disks and addresses")
    def describe(cluster: _Cluster) -> dict[str, Any]:
        return find_cluster(cluster).described

    @api.delete("/{cluster}", tags=["clusters"], summary="Stop a cluster")
    def down(cluster: _Cluster, prefer: Prefer = None) -> Any:
        live = find_cluster(cluster)

        def stop() -> dict[str, Any]:
            live.down()
            return {"cluster": cluster, "state": "down"}

        return registry.do(prefer, f"stop {cluster}", stop)

    @api.get(
        "/{cluster}/status",
        tags=["clusters"],
        summary="Get processors, memory, disks, links of all nodes",
    )
    def status(cluster: _Cluster) -> dict[str, Any]:
        return find_cluster(cluster).full_status()

    @api.get(
        "/{cluster}/platform",
        tags=["clusters"],
        summary="Get the specification, to start it again",
    )
    def saved(cluster: _Cluster) -> dict[str, Any]:
        return find_cluster(cluster).spec_json()

    @api.patch("/{cluster}", tags=["clusters"], summary="Change resources of many nodes at once")
    def batch(cluster: _Cluster, body: models.Batch, prefer: Prefer = None) -> Any:
        live = find_cluster(cluster)
        changes = [Change(tuple(c.nodes), c.resource, c.patch, c.name) for c in body.changes]
        return registry.do(prefer, f"change {cluster}", lambda: {"applied": live.change(changes)})


def _add_node_routes(api: APIRouter) -> None:
    """Routes of nodes, their processors and memory."""

    @api.get("/{cluster}/nodes", tags=["nodes"], summary="List the nodes")
    def nodes(cluster: _Cluster) -> list[dict[str, Any]]:
        return list(find_cluster(cluster).described["nodes"])

    @api.get("/{cluster}/nodes/{node}", tags=["nodes"], summary="Get the status of a node")
    def node(cluster: _Cluster, node: _Node) -> dict[str, Any]:
        live = find_cluster(cluster)
        node_of(live, node)
        return next(n for n in live.status() if n["name"] == node)

    @api.put(
        "/{cluster}/nodes/{node}/state",
        tags=["nodes"],
        summary="Start, stop, freeze, thaw a node",
    )
    def state(cluster: _Cluster, node: _Node, body: models.State) -> dict[str, Any]:
        return _changed(cluster, node, "node", None, body.model_dump())

    @api.patch("/{cluster}/nodes/{node}/cpu", tags=["nodes"], summary="Change cpus, cpuset, ratio")
    def cpu(cluster: _Cluster, node: _Node, patch: _Patch) -> dict[str, Any]:
        return _changed(cluster, node, "cpu", None, patch)

    @api.patch("/{cluster}/nodes/{node}/memory", tags=["nodes"], summary="Change memory limits")
    def memory(cluster: _Cluster, node: _Node, patch: _Patch) -> dict[str, Any]:
        return _changed(cluster, node, "memory", None, patch)


def _add_disk_routes(api: APIRouter) -> None:
    """Routes of the disks and links of nodes."""

    @api.get("/{cluster}/nodes/{node}/disks", tags=["disks"], summary="Get its disks with counters")
    def disks(cluster: _Cluster, node: _Node) -> dict[str, Any]:
        live = find_cluster(cluster)
        node_of(live, node)
        return dict(next(n for n in live.status() if n["name"] == node).get("disks", {}))

    @api.patch(
        "/{cluster}/nodes/{node}/disks/{disk}",
        tags=["disks"],
        summary="Change limits, profile, features, faults",
    )
    def disk(cluster: _Cluster, node: _Node, disk: str, patch: _Patch) -> dict[str, Any]:
        live = find_cluster(cluster)
        if disk not in node_of(live, node).disks:
            raise HTTPException(404, f"node {node} has no disk {disk}")
        return _changed(cluster, node, "disk", disk, patch)

    @api.patch(
        "/{cluster}/nodes/{node}/links/{network}",
        tags=["links"],
        summary="Change bandwidth, delay, loss",
    )
    def link(cluster: _Cluster, node: _Node, network: str, patch: _Patch) -> dict[str, Any]:
        live = find_cluster(cluster)
        if network not in node_of(live, node).addresses:
            raise HTTPException(404, f"node {node} is not on network {network}")
        check_patch(patch)
        return _changed(cluster, node, "network", network, patch)


def _add_command_routes(api: APIRouter, registry: JobRegistry) -> None:
    """Routes of commands in nodes, and of files."""

    @api.post("/{cluster}/exec", tags=["nodes"], summary="Run a command in nodes")
    def execute(cluster: _Cluster, body: models.Exec, prefer: Prefer = None) -> Any:
        targets = find_cluster(cluster).chosen(body.nodes)

        def run() -> dict[str, Any]:
            with ThreadPoolExecutor(min(_THREADS, len(targets))) as pool:
                return {"results": list(pool.map(lambda n: _run(n, body), targets))}

        return registry.do(prefer, f"run {body.argv[0]} in {len(targets)} nodes of {cluster}", run)

    @api.get(
        "/{cluster}/nodes/{node}/files/{path:path}",
        tags=["nodes"],
        summary="Read a file of the node",
        response_class=StreamingResponse,
        responses={200: {"content": _FILE}},
    )
    def read_file(cluster: _Cluster, node: _Node, path: str) -> Response:
        target, out = node_of(find_cluster(cluster), node), tempfile.TemporaryFile()  # noqa: SIM115
        with contextlib.ExitStack() as unless_sent, tempfile.TemporaryFile() as err:
            unless_sent.callback(out.close)
            argv = ["head", "-c", str(_FILE_LIMIT_BYTES + 1), "--", f"/{path}"]
            result = target.run(argv, stdout=out, stderr=err, timeout_s=600)
            if result.exit_status:
                raise HTTPException(404, _text(err, 1000).strip() or f"/{path} cannot be read")
            size = out.seek(0, os.SEEK_END)
            if size > _FILE_LIMIT_BYTES:
                raise HTTPException(409, f"/{path} has more than {_FILE_LIMIT_BYTES} bytes")
            unless_sent.pop_all()
        return StreamingResponse(
            _chunks(out),
            media_type="application/octet-stream",
            headers={"Content-Length": str(size)},
        )

    @api.put(
        "/{cluster}/nodes/{node}/files/{path:path}",
        tags=["nodes"],
        status_code=204,
        summary="Write a file of the node",
        openapi_extra={"requestBody": {"content": _FILE, "required": True}},
    )
    async def write_file(cluster: _Cluster, node: _Node, path: str, request: Request) -> None:
        target = await run_in_threadpool(lambda: node_of(find_cluster(cluster), node))
        set_body_limit(request.scope, _FILE_LIMIT_BYTES)
        with tempfile.TemporaryFile() as content:
            async for chunk in request.stream():
                content.write(chunk)
            content.seek(0)
            await run_in_threadpool(_write, target, path, content)


def _add_schedule_routes(api: APIRouter, registry: JobRegistry) -> None:
    """Routes of schedules, certificates and networks."""

    @api.get(
        "/{cluster}/events", tags=["schedules"], summary="List the results of scheduled changes"
    )
    def events(cluster: _Cluster) -> list[dict[str, Any]]:
        return find_cluster(cluster).events()

    @api.post("/{cluster}/events", tags=["schedules"], status_code=201, summary="Schedule changes")
    def schedule(cluster: _Cluster, body: models.Events) -> dict[str, Any]:
        live, parsed = find_cluster(cluster), events_of(body)
        return {"start_ns": live.schedule(parsed, body.start_ns), "events": len(parsed)}

    @api.post(
        "/{cluster}/certificate", tags=["certificate"], summary="Measure and certify its disks"
    )
    def certified(cluster: _Cluster, body: models.Watch, prefer: Prefer = None) -> Any:
        live = find_cluster(cluster)

        def measure() -> Any:
            return jsonable_encoder(certify(live, body.seconds))

        return registry.do(prefer, f"certificate of {cluster}", measure)

    @api.get(
        "/{cluster}/networks",
        tags=["networks"],
        summary="List networks and their implementations",
    )
    def networks(cluster: _Cluster) -> list[dict[str, Any]]:
        return find_cluster(cluster).networks()

    @api.patch(
        "/{cluster}/networks/{network}", tags=["networks"], summary="Set delays between nodes"
    )
    def delays(cluster: _Cluster, network: str, body: models.Delays) -> dict[str, Any]:
        live = find_cluster(cluster)
        names = [n["name"] for n in live.networks()]
        if network not in names:
            raise HTTPException(404, f"no network {network}; there are {', '.join(names)}")
        live.set_delays(
            network, {(a, b): s for a, to in body.delays.items() for b, s in to.items()}
        )
        return next(n for n in live.networks() if n["name"] == network)

    @api.post("/{cluster}/marks", tags=["schedules"], summary="Begin a phase now")
    def mark(cluster: _Cluster, body: models.Mark) -> dict[str, Any]:
        return {"events": find_cluster(cluster).mark(body.phase)}


def _changed(
    cluster: str, node: str, resource: Any, name: str | None, patch: dict[str, Any]
) -> dict[str, Any]:
    live = find_cluster(cluster)
    node_of(live, node)
    applied = live.set([node], resource, name, patch)[0]
    if applied.get("error"):
        raise HTTPException(409, applied["error"])
    return applied


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _write(node: RunningNode, path: str, content: IO[bytes]) -> None:
    with tempfile.TemporaryFile() as err:
        argv = ["tee", "--", f"/{path}"]
        result = node.run(argv, stdin=content, stdout=os.devnull, stderr=err, timeout_s=600)
        if result.exit_status:
            raise HTTPException(400, _text(err, 1000).strip() or f"/{path} cannot be written")


def _run(node: RunningNode, body: models.Exec) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        result = node.run(
            body.argv,
            env=body.env,
            cwd=body.cwd,
            user=body.user,
            stdout=out,
            stderr=err,
            timeout_s=body.timeout_s,
        )
        return {
            "node": node.name,
            "exit_status": result.exit_status,
            "timed_out": result.timed_out,
            "seconds": result.wall_s,
            "stdout": _text(out, body.most_bytes),
            "stderr": _text(err, body.most_bytes),
        }


def _text(file: Any, most_bytes: int) -> str:
    file.seek(0)
    return str(file.read(most_bytes).decode(errors="replace"))
