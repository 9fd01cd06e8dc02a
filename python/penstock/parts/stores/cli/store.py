"""penstock store: a real shared store on virtual nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.shared.options import CHANGES, JSON
from penstock.errors import BadInput
from penstock.plugins import STORE_ENGINES
from penstock.spec.store import DEFAULT_ENGINE
from penstock.terminal import mib, plain_table, progress_bar, say, show

if TYPE_CHECKING:
    from penstock.parts.stores.staging import Staged
    from penstock.parts.stores.store import Store

#: refused hints of programs in the text of `store status`
_MOST_REFUSALS = 100

app = typer.Typer(help="A real shared store on virtual nodes.", no_args_is_help=True)

_STORE = typer.Option(None, "--store", "-s", help="Name of the store (default: the only one).")
_NODE = typer.Option(
    None, "--node", "-n", help="Client node of the operation (default: the first)."
)


@app.command()
def up(
    engine: str | None = typer.Argument(
        None, help=f"{', '.join(STORE_ENGINES)} (default: the file's, else {DEFAULT_ENGINE})."
    ),
    platform: Path = typer.Option(
        ...,
        "--platform",
        "-p",
        help="A platform file: hosts with the roles manager, storage, client.",
    ),
    changes: list[str] = CHANGES,
    name: str | None = typer.Option(
        None, "--name", help="Name of the store and of its cluster (default: the file's)."
    ),
    keep: list[str] = typer.Option(
        [],
        "--keep",
        help="Pattern of files that `down` does not discard without a copy outside the store.",
    ),
    strict: bool = typer.Option(
        False,
        "--strict",
        help="Refuse settings that the engine does not support, instead of reporting them.",
    ),
    watch: bool = typer.Option(
        False, "--watch", help="Apply hints that programs set with setfattr(1) or setxattr(2)."
    ),
    hosts: Path | None = typer.Option(
        None, "--hosts", help="A hosts file: start the nodes on these hosts."
    ),
    allow_overcommit: bool = typer.Option(
        False,
        "--allow-overcommit",
        help="With --hosts: accept limits that the hosts cannot sustain together.",
    ),
    as_json: bool = JSON,
) -> None:
    """Start the nodes of a platform file with the store, mounted on every client.

    The store counts as up when a file written on one node was read and located on another. A store that is
    already up is left as it is.
    """
    from penstock.parts.stores.clusters import start_on_hosts
    from penstock.parts.stores.deployment import deployment
    from penstock.parts.stores.lock import changing
    from penstock.parts.stores.store import Store, check, up_already
    from penstock.platform.hosts import load_platform

    loaded = load_platform(platform, changes, predicted=False)
    nodes, spec, roles = deployment(loaded, engine, tuple(keep))
    nodes, spec = replace(nodes, name=name or nodes.name), replace(spec, watched=watch)
    start = None
    if hosts is not None:
        start = start_on_hosts(loaded, hosts, spec.engine, say, allow_overcommit=allow_overcommit)
    with changing(), progress_bar() as progress:
        store = up_already(nodes, spec, roles)
        if store is None:
            for refusal in check(STORE_ENGINES.load(spec.engine)(), spec, roles, strict=strict):
                say(f"warning: {refusal}")
            store = Store.up(nodes, spec, roles, strict=strict, progress=progress, start=start)
    if as_json:
        print(json.dumps(store.status() | {"probe": store.state["probe"]}))
        return
    where = f"at {spec.mount} of" if store.mounted else "not mounted, reached from"
    print(
        f"{store.name}: {spec.engine} up on {len(roles.storage)} storage nodes, "
        f"{where} {', '.join(roles.clients)}"
    )


@app.command()
def mount(
    node: str = typer.Argument(help="A node of the store's cluster."),
    store: str | None = _STORE,
    as_json: bool = JSON,
) -> None:
    """Mount the store on another node, or again on a restarted one."""
    complete = _complete(store)
    complete.mount(node)
    _print(as_json, {"node": node, "mount": complete.spec.mount}, f"{node}: {complete.spec.mount}")


@app.command()
def tag(
    path: str = typer.Argument(help="A path of the store, such as /a or /store/a."),
    tags: list[str] = typer.Argument(help="KEY=VALUE, such as Replication=3 or 'DP=local'."),
    store: str | None = _STORE,
    node: str | None = _NODE,
    migrate: bool = typer.Option(
        False,
        "--migrate",
        help="Rewrite a file that has data under the new hint, and verify the copy.",
    ),
    create: bool = typer.Option(False, "--create", help="Create a missing file, empty."),
    strict: bool = typer.Option(False, "--strict", help="Exit with status 1 if a hint is refused."),
    as_json: bool = JSON,
) -> None:
    """Set hints of a file or directory, and show how the engine applies them."""
    from penstock.parts.stores.lock import changing

    pairs = dict(_pair(text) for text in tags)
    with (
        changing()
    ):  # concurrent commands would overwrite each other's changes to the engine's state
        results = _complete(store).tag(path, pairs, node=node, migrate=migrate, create=create)
    if as_json:
        print(json.dumps({"tags": [r.to_dict() for r in results]}))
    else:
        for one in results:
            print(f"{one.path}: {one.key}={one.value}: {one.support.how}: {one.support.why}")
    if strict and any(r.support.how == "refused" for r in results):
        raise typer.Exit(1)


@app.command()
def get(
    path: str = typer.Argument(help="A path of the store."),
    key: str | None = typer.Argument(
        None, help="Only this tag; `location` gives the nodes of the file."
    ),
    store: str | None = _STORE,
    node: str | None = _NODE,
    as_json: bool = JSON,
) -> None:
    """Show the tags of a file."""
    if key == "location":
        locate(path, store=store, node=node, as_json=as_json)
        return
    tags = _complete(store).attributes(path, node)
    if key is not None and key not in tags:
        raise BadInput(f"{path}: found no tag {key!r}; there are {', '.join(tags) or 'none'}")
    tags = tags if key is None else {key: tags[key]}
    lines = "\n".join(f"{k}={v}" for k, v in tags.items())
    _print(as_json, {"path": path, "tags": tags}, lines or f"{path}: no tag")


@app.command()
def locate(
    path: str = typer.Argument(help="A file of the store."),
    store: str | None = _STORE,
    node: str | None = _NODE,
    as_json: bool = JSON,
) -> None:
    """Show which nodes store which bytes of a file."""
    extents = _complete(store).locate(path, node)
    if as_json:
        print(json.dumps({"path": path, "extents": [e.to_dict() for e in extents]}))
        return
    table = plain_table(("nodes",), ("offset", "bytes"))
    for extent in extents:
        table.add_row(
            ", ".join(extent.nodes) or "none", *map(str, (extent.offset_bytes, extent.length_bytes))
        )
    show(table)


@app.command()
def status(
    store: str | None = typer.Argument(None, help="Name of the store (default: the only one)."),
    as_json: bool = JSON,
) -> None:
    """Show the engine, its servers, and its support of parameters and hints."""
    from penstock.parts.stores.store import Store

    opened = Store.find(store)
    about = opened.status()
    if as_json:
        support = {k: s.to_dict() for k, s in opened.support().items()}
        print(json.dumps(about | {"support": support}))
        return
    where = f"at {about['mount']}" if opened.mounted else "not mounted"
    print(f"{about['store']}: {about['engine']} {where}")
    if not about["complete"]:
        print(about["trouble"])
        return
    if "trouble" in about:
        print(f"it does not answer: {about['trouble']}")
    servers = plain_table(("node", "state"), ("used MiB", "of MiB"))
    for one in about["servers"]:
        sizes = [mib(one[k]) if k in one else "-" for k in ("used_bytes", "total_bytes")]
        servers.add_row(one["node"], "up" if one["up"] else "down", *sizes)
    met = plain_table(("parameter or hint", "met", "how"))
    for key, one in opened.support().items():
        met.add_row(key, one.how, one.why)
    show(servers, met)
    if "watch" in about:
        print(_watched(about["watch"]))


@app.command()
def conformance(
    store: str | None = typer.Argument(None, help="Name of the store (default: the only one)."),
    as_json: bool = JSON,
) -> None:
    """Test every parameter and hint on a running store, by the bytes on the nodes' disks.

    Needs three nodes with a disk each that are storage nodes and clients. Exits with status 1 if the engine
    does not do what it reports. Takes a minute or two.
    """
    from penstock.parts.stores.conformance import conform

    def heard(one: Any) -> None:
        if not as_json:
            met = f"{one.support.how}, {'shown' if one.holds else 'NOT SO'}"
            print(f"{one.cell:<44} {met:<18} {one.evidence}", flush=True)

    shown = conform(_complete(store), heard)
    if as_json:
        cells = [
            {"cell": s.cell, **s.support.to_dict(), "holds": s.holds, "evidence": s.evidence}
            for s in shown
        ]
        print(json.dumps({"cells": cells}))
    if not all(s.holds for s in shown):
        raise typer.Exit(1)


@app.command("stage-in")
def stage_in(
    source: Path = typer.Argument(help="A file or directory of this host."),
    target: str = typer.Argument("/", help="Path in the store."),
    store: str | None = _STORE,
    node: str | None = _NODE,
    as_json: bool = JSON,
) -> None:
    """Copy files into the store and compare their checksums."""
    from penstock.parts.stores import staging

    _staged(
        as_json, staging.stage_in(_complete(store), source, target, node=node), "into the store"
    )


@app.command("stage-out")
def stage_out(
    target: Path = typer.Argument(help="A directory of this host."),
    paths: list[str] = typer.Argument(None, help="Paths or patterns; default: the stored files."),
    store: str | None = _STORE,
    node: str | None = _NODE,
    as_json: bool = JSON,
) -> None:
    """Copy files out of the store and compare their checksums; `down` may discard them then."""
    from penstock.parts.stores import staging

    staged = staging.stage_out(_complete(store), paths or (), target, node=node)
    _staged(as_json, staged, f"to {target}")


@app.command()
def down(
    store: str | None = typer.Argument(None, help="Name of the store (default: the only one)."),
    discard: list[str] = typer.Option(
        [], "--discard", help="Pattern of protected files to discard; '*': all."
    ),
    as_json: bool = JSON,
) -> None:
    """Stop the store and its nodes; refused while a protected file has no verified copy outside."""
    from penstock.parts.stores.lock import changing
    from penstock.parts.stores.store import Store

    with changing():
        opened = Store.find(store)
        opened.down(discard=discard)
    _print(as_json, {"down": opened.name}, f"{opened.name}: down")


def _watched(watch: Mapping[str, Any]) -> str:
    """Lines about the hints that programs set."""
    if "trouble" in watch:
        return f"hints that programs set are not taken up: {watch['trouble']}"
    last = watch["refused"][-_MOST_REFUSALS:]
    refused = [f"  {t['path']}: {t['key']}={t['value']}: {t['why']}" for t in last]
    counts = f"{watch['taken']} taken up, {watch['refusals']} refused"
    return "\n".join([f"hints that programs set: {counts}", *refused])


def _complete(name: str | None) -> Store:
    from penstock.parts.stores.store import Store, require_complete

    return require_complete(Store.find(name))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise BadInput(f"found {text!r}; expected KEY=VALUE, such as Replication=3")
    return key, value


def _staged(as_json: bool, staged: list[Staged], where: str) -> None:
    total = sum(s.size_bytes for s in staged)
    line = f"{len(staged)} files, {mib(total)} MiB {where}, equal by SHA-256"
    _print(as_json, {"files": [s.to_dict() for s in staged]}, line)


def _print(as_json: bool, value: dict[str, Any], line: str) -> None:
    print(json.dumps(value) if as_json else line)
