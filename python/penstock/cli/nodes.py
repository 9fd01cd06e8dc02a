"""penstock nodes: virtual nodes without a study."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.shared.options import (
    CHANGES,
    CLUSTER,
    JSON,
    NODE_CHANGES,
    NODE_CWD,
    NODE_ENV,
    NODE_SOURCE,
    NODE_TARGET,
    NODE_USER,
    NODES_AND_COMMAND,
)
from penstock.errors import BadInput, PenstockError
from penstock.plugins import NODE_RUNTIMES
from penstock.terminal import mib, plain_table, progress_bar, say, show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

app = typer.Typer(
    help="Virtual nodes without a study: start, inspect, change, enter and stop them.",
    no_args_is_help=True,
)


@app.command()
def up(
    platform: Path = typer.Argument(help="A platform file: its hosts become nodes."),
    changes: list[str] = CHANGES,
    name: str | None = typer.Option(
        None, "--name", help="Name of the cluster (default: the file's)."
    ),
    runtime: str | None = typer.Option(
        None, "--runtime", help=f"{', '.join(NODE_RUNTIMES)}; auto."
    ),
    ssh: bool = typer.Option(False, "--ssh", help="An ssh server in every node."),
    as_json: bool = JSON,
) -> None:
    """Start the nodes of a platform file with their disks and links, until `nodes down`."""
    from penstock import Cluster

    if runtime not in (None, "auto", *NODE_RUNTIMES):
        expected = ", ".join(["auto", *NODE_RUNTIMES])
        raise BadInput(f"--runtime: found {runtime!r}; expected {expected}")
    with progress_bar() as progress:
        cluster = Cluster.of_platform(
            platform,
            changes,
            name=name,
            runtime=runtime,
            ssh=ssh,
            outlive=True,
            warn=lambda warning: say(f"warning: {warning}"),
            progress=progress,
        )
    if as_json:
        print(json.dumps(cluster.described))
        return
    nodes = list(cluster.nodes.values())
    print(f"{cluster.name}: {len(nodes)} node{'s' * (len(nodes) != 1)} up")
    _print_login(cluster.described)


@app.command()
def status(
    cluster: str | None = typer.Argument(None, help="Only this cluster."),
    chosen: str | None = CLUSTER,
    as_json: bool = JSON,
) -> None:
    """List running nodes: state, processor and memory usage, disks, links, fairness.

    Exits with status 1 if a relay, disk server, supervisor or mount that they depend on does not work.
    """
    from penstock.emulate.cluster.survey import survey

    name = _cluster_name(cluster, chosen)
    statuses, failures = survey(name)
    failed = bool(failures) or any(cluster.status["failures"] for cluster in statuses)
    if as_json:
        reports = [cluster.status for cluster in statuses]
        print(json.dumps({"clusters": reports, "failures": [asdict(f) for f in failures]}))
    else:
        if not statuses and not failures:
            print("No node is up.")
        for live in statuses:
            show_status(live.status)
            _print_login(live.described)
        for failure in failures:
            print(failure.message)
    if failed:
        raise typer.Exit(1)


@app.command(
    "exec", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
def exec_(
    arguments: list[str] = NODES_AND_COMMAND,
    cluster: str | None = CLUSTER,
    user: str | None = NODE_USER,
    cwd: str | None = NODE_CWD,
    env: list[str] = NODE_ENV,
) -> None:
    """Run a command in one or several nodes; exit with its highest status.

    Options go before the nodes. Output of several nodes has their names before each line.
    """
    from penstock.emulate.cluster.cluster import Cluster
    from penstock.emulate.cluster.parallel import run_in

    nodes, argv = split_command(arguments)
    added = {"TERM": os.environ["TERM"]} if sys.stdin.isatty() and "TERM" in os.environ else {}
    added |= variables(env)
    chosen = Cluster.find(cluster).chosen(nodes)
    raise typer.Exit(run_in(chosen, argv, env=added, cwd=cwd, user=user))


@app.command()
def cp(
    source: str = NODE_SOURCE,
    target: str = NODE_TARGET,
    cluster: str | None = CLUSTER,
    as_json: bool = JSON,
) -> None:
    """Copy a file or a directory to nodes, or from one."""
    from penstock.emulate.cluster.cluster import Cluster
    from penstock.emulate.cluster.copying import copy

    nodes = copy(Cluster.find(cluster), source, target)
    if as_json:
        print(json.dumps({"nodes": nodes}))


@app.command("set", context_settings={"ignore_unknown_options": True})
def set_(
    changes: list[str] = NODE_CHANGES,
    cluster: str | None = CLUSTER,
    as_json: bool = JSON,
) -> None:
    """Change running nodes; `max` removes a limit.

    Keys: cpus, cpuset, cpu_ratio, memory, memory_soft, state (up, down, frozen, running),
    disk.NAME.limits.{read,write,read_iops,write_iops}, disk.NAME.{slow.factor,profile,…};
    link.NETWORK.{out,in,delay,in_delay,loss,in_loss,…}, each of one direction; of a node with one network
    bandwidth, latency, jitter, loss, …, of both directions, as in a platform file.
    Example: set 'n-*' cpus=0.5 n-3 disk.data.limits.read=5MB/s
    """
    from penstock.emulate.cluster.change_arguments import changes_of
    from penstock.emulate.cluster.cluster import Cluster

    report_changes(Cluster.find(cluster).change(changes_of(changes)), as_json=as_json)


@app.command()
def down(
    cluster: str | None = typer.Argument(None, help="Name of the cluster (default: the only one)."),
    chosen: str | None = CLUSTER,
    everything: bool = typer.Option(False, "--all", help="Every cluster."),
    as_json: bool = JSON,
) -> None:
    """Stop nodes with their disks and links; files in your own directories stay."""
    from penstock.emulate.cluster.cluster import Cluster, registered

    only = _cluster_name(cluster, chosen)
    if everything and only is not None:
        raise BadInput(f"--all: found the cluster {only!r} with it; expected one of them")
    names = list(registered()) if everything else [only]
    stopped = []
    for name in names:
        with progress_bar() as progress:
            live = Cluster.find(name)
            live.down(progress)
            stopped.append(live.name)
        if not as_json:
            print(f"{live.name}: down")
    if as_json:
        print(json.dumps({"down": stopped}))


def report_changes(applied: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the changes that were made. Raises PenstockError with the others."""
    failed = [change for change in applied if change["error"]]
    if as_json:
        print(json.dumps({"applied": applied, "failed": len(failed)}))
    else:
        for change in applied:
            resource = change["resource"]
            target = f"{resource} {change['name']}" if change["name"] else resource
            delay_ms = (change["applied_ns"] - change["planned_ns"]) / 1e6
            if not change["error"]:
                values = _brief(resource, change["found"])
                print(f"{change['node']}: {target}: {values} ({delay_ms:.1f} ms)")
    if failed:
        raise PenstockError("\n".join(f"{change['node']}: {change['error']}" for change in failed))


def _cluster_name(cluster: str | None, chosen: str | None) -> str | None:
    """Name of the cluster, from the argument or from `--cluster`."""
    if cluster is not None and chosen is not None and cluster != chosen:
        raise BadInput(f"--cluster {chosen}: found {cluster!r} as well; expected one cluster")
    return cluster if chosen is None else chosen


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Nodes and command, before and after `--`. Typer removes the first `--`."""
    if "--" in arguments:
        separator = arguments.index("--")
        nodes, argv = arguments[:separator], arguments[separator + 1 :]
    else:
        nodes, argv = arguments[:1], arguments[1:]
    if not nodes or not argv:
        raise BadInput("expected NODE… -- COMMAND…")
    return nodes, argv


def variables(texts: Sequence[str]) -> dict[str, str]:
    """Variables of `--env`. Raises BadInput for one without a name or a value."""
    return dict(map(_variable, texts))


def _variable(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key:
        raise BadInput(f"--env: found {text!r}; expected KEY=VALUE")
    if not equals and key not in os.environ:
        raise BadInput(f"--env: found {key}, which is not set; expected KEY=VALUE")
    return key, value if equals else os.environ[key]


def _brief(resource: str, values: dict[str, Any]) -> str:
    from penstock.emulate.schedule.show import changed_texts

    if resource == "network":
        texts = _link_texts(values)
    elif resource == "disk":
        texts = changed_texts(values, {})
    else:
        texts = [f"{k}={'max' if v is None else v}" for k, v in values.items()]
    return ", ".join(texts) or "done"


def _print_login(described: Mapping[str, Any]) -> None:
    ssh = described.get("ssh")
    if ssh:
        first = next(a for node in described["nodes"] for a in node["addresses"].values())
        print("log in: " + " ".join([*ssh["words"], first]))


def show_status(status: Mapping[str, Any]) -> None:
    """Print the tables of a cluster's status."""
    nodes = status["nodes"]
    print(f"{status['cluster']} ({status['runtime']})")
    numbers = ("CPU", "of", "MiB", "of", "killed", "read MiB", "written MiB")
    table = plain_table(("node", "state", "addresses"), numbers)
    for node in nodes:
        table.add_row(*_row(node))
    show(table, _disks(nodes), _links(nodes))
    if status["jain_index"] is not None and status["jain_nodes"] > 1:
        print(
            f"processor time of {status['jain_nodes']} busy nodes: Jain index {status['jain_index']:.3f}"
        )

    for failure in status["failures"]:
        print(f"{status['cluster']}: {failure['message']}")
    if status["failures"]:
        print(f"{status['cluster']}: stop the nodes and start them again")


def _disks(nodes: Sequence[Mapping[str, Any]]) -> Table:
    from penstock.emulate.schedule.show import changed_texts
    from penstock.text import at_speed

    table = plain_table(("node", "disk", "profile"), ("read MiB", "written MiB"))
    table.add_column("changes")
    for node in nodes:
        for name, disk in node.get("disks", {}).items():
            stats = disk["stats"] or {}
            table.add_row(
                node["name"],
                name,
                at_speed(disk["profile"] or f"none ({disk['backend']})", disk["time_scale"]),
                *map(mib, _transferred(stats)),
                ", ".join(changed_texts(disk["now"], stats)),
            )
    return table


def _transferred(stats: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes read and written."""
    return stats.get("read_bytes", 0), stats.get("written_bytes", 0)


def _links(nodes: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table(("node", "network", "address", "limits"), ("sent MiB", "received MiB"))
    for node in nodes:
        for name, link in node.get("links", {}).items():
            status = link or {}
            table.add_row(
                node["name"],
                name,
                node["addresses"].get(name, "-"),
                ", ".join(_link_texts(status.get("asked") or {})) or "no limit",
                *(mib(status[k]) if k in status else "-" for k in ("out_bytes", "in_bytes")),
            )
    return table


def _link_texts(patch: Mapping[str, Any]) -> list[str]:
    """Values of a link, with the keys of `nodes set`."""
    texts = []
    for key, value in patch.items():
        if key.endswith("_bps"):
            if value is not None:
                texts.append(f"{key.removesuffix('_bps')}={8 * value / 1e6:g} Mbit/s")
        elif isinstance(value, dict):
            if value.get("mean_s"):
                jitter = f" ± {1e3 * value['jitter_s']:g}" if value.get("jitter_s") else ""
                texts.append(f"{key}={1e3 * value['mean_s']:g}{jitter} ms")
        elif value:
            texts.append(f"{key}={100 * value:g} %")
    return texts


def _row(node: Mapping[str, Any]) -> list[str]:
    state = node["state"] + (f": {node['failure']}" if node["failure"] else "")
    cpu, memory = node.get("cpu", {}), node.get("memory", {})
    amounts = [_transferred(d["stats"] or {}) for d in node.get("disks", {}).values()]
    read, written = (sum(column) for column in zip(*amounts, strict=True)) if amounts else (0, 0)
    hard = memory.get("hard")
    share = node["cpu_share"]
    return [
        node["name"],
        state,
        ", ".join(node["addresses"].values()) or "-",
        "-" if share is None else f"{share:.2f}",
        "-" if cpu.get("cpus") is None else f"{cpu['cpus']:g}",
        f"{memory.get('usage_bytes', 0) / 2**20:.0f}",
        "-" if hard is None else f"{hard / 2**20:.0f}",
        str(node.get("oom_kills", "-")),
        mib(read),
        mib(written),
    ]
