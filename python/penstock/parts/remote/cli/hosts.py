"""penstock hosts: physical hosts of a virtual cluster."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from pathlib import Path

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

_HOSTS = typer.Option(..., "--hosts", help="The hosts file.")
_OVERCOMMIT = typer.Option(
    False, "--allow-overcommit", help="Accept limits that the hosts cannot sustain together."
)

app = typer.Typer(
    help="One virtual cluster on several hosts: measure, plan, start, inspect, enter, trace, change, stop.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def plan(
    platform: Path = typer.Argument(help="A platform file."),
    hosts: Path = _HOSTS,
    changes: list[str] = typer.Option([], "--set", help="Change a value of the platform: a.b=c."),
    allow_overcommit: bool = _OVERCOMMIT,
    as_json: bool = typer.Option(False, "--json", help="Print the plan as one JSON object."),
) -> None:
    """Plan the nodes of a platform file on several hosts: placement, addresses, tunnels, routes.

    Nothing is started, and no host is changed.
    """
    from penstock.parts.remote.cluster.hosts_file import read_inventory
    from penstock.parts.remote.cluster.plan import plan_platform
    from penstock.parts.remote.cluster.report import (
        closing_lines,
        document,
        host_table,
        network_table,
    )
    from penstock.platform.hosts import load_platform
    from penstock.terminal import show
    from penstock.text import COLUMNS

    planned = plan_platform(
        load_platform(platform, changes, predicted=False),
        read_inventory(hosts),
        allow_overcommit=allow_overcommit,
    )
    if as_json:
        print(json.dumps(document(planned), allow_nan=False))
        return
    show(host_table(planned), network_table(planned))
    print()
    for line in closing_lines(planned):
        print(textwrap.fill(line, COLUMNS, subsequent_indent="  ", break_on_hyphens=False))


@app.command()
def facts(
    address: str | None = typer.Option(
        None, "--address", help="Address of this host for the others: describe its link."
    ),
    refresh: bool = typer.Option(False, "--refresh", help="Measure the disk path again."),
    as_json: bool = typer.Option(False, "--json", help="Print the facts as one JSON object."),
) -> None:
    """Measure this host for `penstock hosts plan`: features, speed of emulated disks, memory, link.

    The output of --json is the file of facts of this host.
    """
    from penstock.parts.remote.cluster.own_facts import own_facts
    from penstock.parts.remote.cluster.report import fact_lines
    from penstock.terminal import say

    say("measuring how fast an emulated disk can be here")
    measured = own_facts(address, refresh=refresh)
    if as_json:
        print(json.dumps(measured))
        return
    for line in fact_lines(measured):
        print(line)


@app.command()
def measure(
    hosts: Path = typer.Argument(help="The hosts file."),
    refresh: bool = typer.Option(False, "--refresh", help="Measure the disk paths again."),
    as_json: bool = JSON,
) -> None:
    """Measure the hosts of a hosts file for `hosts plan`: facts, clocks, and the paths between them."""
    from penstock.parts.remote.cluster.hosts_file import read_unmeasured
    from penstock.parts.remote.cluster.measure import measure_hosts
    from penstock.parts.remote.cluster.report import path_table
    from penstock.terminal import say, show

    unmeasured = read_unmeasured(hosts)
    paths = measure_hosts(unmeasured, say, refresh=refresh)
    if as_json:
        facts = {host: str(path) for host, path in unmeasured.facts.items()}
        print(json.dumps({"facts": facts, **paths.model_dump()}))
        return
    show(path_table(paths))
    print(f"facts of {len(unmeasured.facts)} hosts: {unmeasured.paths.parent}")


@app.command()
def up(
    platform: Path = typer.Argument(help="A platform file."),
    hosts: Path = _HOSTS,
    changes: list[str] = CHANGES,
    name: str | None = typer.Option(
        None, "--name", help="Name of the cluster (default: the file's)."
    ),
    allow_overcommit: bool = _OVERCOMMIT,
    as_json: bool = JSON,
) -> None:
    """Start the nodes of a platform file on several hosts, until `hosts down`."""
    from penstock.parts.remote.cluster.coordinator import RemoteCluster
    from penstock.parts.remote.cluster.hosts_file import read_hosts
    from penstock.parts.remote.cluster.plan import plan_platform
    from penstock.parts.remote.cluster.report import host_table
    from penstock.platform.hosts import load_platform
    from penstock.terminal import say, show

    file = read_hosts(hosts)
    planned = plan_platform(
        load_platform(platform, changes, predicted=False),
        file.inventory,
        name=name,
        allow_overcommit=allow_overcommit,
    )
    if not as_json:
        show(host_table(planned))
    cluster = RemoteCluster.up(planned, file, say)
    if as_json:
        print(json.dumps({"cluster": cluster.name, "host_of": dict(cluster.host_of)}))
        return
    print(f"{cluster.name}: {len(cluster.host_of)} nodes up on {len(cluster.workers)} hosts")


@app.command()
def status(
    cluster: str | None = typer.Argument(None, help="Name (default: the only one)."),
    as_json: bool = JSON,
) -> None:
    """List the nodes of each host. Exits with status 1 if a host is lost or a part does not work."""
    from penstock.cli.nodes import show_status
    from penstock.parts.remote.cluster.coordinator import RemoteCluster

    live = RemoteCluster.find(cluster)
    hosts = live.status()
    failed = False
    for host, one in hosts.items():
        failures = [*one["failures"], *((one["status"] or {}).get("failures") or ())]
        failed |= bool(failures)
        if as_json:
            continue
        clock = one["clock"]
        offset = (
            f", clock {clock['offset_ns'] / 1e6:+.2f} ± {clock['bound_ns'] / 1e6:.2f} ms"
            if clock
            else ""
        )
        print(f"host {host}: {len(one['nodes'])} nodes{offset}")
        if one["status"]:
            show_status(one["status"])
        for message in one["failures"]:
            print(f"  {message}")
    if as_json:
        print(json.dumps({"cluster": live.name, "hosts": hosts}, default=str))
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
    """Run a command in one or several nodes; print its output at its end, exit with its highest status.

    Options go before the nodes.
    """
    from penstock.cli.nodes import split_command, variables
    from penstock.parts.remote.cluster.coordinator import RemoteCluster

    nodes, argv = split_command(arguments)
    live = RemoteCluster.find(cluster)
    raise typer.Exit(live.execute(nodes, argv, env=variables(env), cwd=cwd, user=user))


@app.command()
def cp(
    source: str = NODE_SOURCE,
    target: str = NODE_TARGET,
    cluster: str | None = CLUSTER,
    as_json: bool = JSON,
) -> None:
    """Copy a file or a directory to nodes, or from one."""
    from penstock.emulate.cluster.copying import copy
    from penstock.parts.remote.running.nodes import ClusterOnHosts

    nodes = copy(ClusterOnHosts.find(cluster), source, target)
    if as_json:
        print(json.dumps({"nodes": nodes}))


@app.command(
    "trace", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
def trace(
    arguments: list[str] = typer.Argument(
        help="NODE… (names or patterns such as 'n-*'); to run a command in them: --, the command."
    ),
    output: Path = typer.Option(..., "-o", "--output", help="Directory of the bundle."),
    seconds: float | None = typer.Option(
        None, "--seconds", help="Duration without a command (default: until Ctrl-C)."
    ),
    endings: list[str] = typer.Option(
        [], "--ext", metavar="ENDING", help="Only names with this ending (.wt); repeatable."
    ),
    only: str | None = typer.Option(
        None, "--only", metavar="read|write", help="Only reads or only writes."
    ),
    monitor: float | None = typer.Option(
        None,
        "--monitor",
        metavar="SECONDS",
        help="Also sample the hosts and nodes at this interval.",
    ),
    cluster: str | None = CLUSTER,
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object on stdout; the command's stdout goes to stderr."
    ),
) -> None:
    """Trace the file I/O of nodes on all their hosts as one trace, on one time base.

    With a command it runs in all these nodes at once, and the exit status is its highest one.
    """
    from penstock.cli.nodes import split_command
    from penstock.errors import BadInput
    from penstock.observe.sampler.monitor import interval_ns_of
    from penstock.observe.trace.recordings.summary import as_document, show
    from penstock.parts.remote.cluster.coordinator import RemoteCluster
    from penstock.parts.remote.running.tracing import trace_nodes

    nodes, argv = split_command(arguments) if "--" in arguments else (arguments, [])
    if argv and seconds is not None:
        raise BadInput("--seconds: found a command with it; expected one of them")
    if seconds is not None and not 0 < seconds < 1e9:
        raise BadInput(f"--seconds: found {seconds:g}; expected more than 0")
    observers: dict[str, dict[str, object]] = {
        "trace": {"mode": "trace", "endings": endings, "only": only}
    }
    if monitor is not None:
        interval_ns_of(monitor)
        observers["monitor"] = {"interval_s": monitor}
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        live = RemoteCluster.find(cluster)
        status, traced = trace_nodes(live, nodes, output, argv, seconds, observers=observers)
    if as_json:
        print(json.dumps({"exit_status": status, **as_document(traced)}, default=str))
    else:
        show(traced)
    raise typer.Exit(status)


@app.command("set", context_settings={"ignore_unknown_options": True})
def set_(
    changes: list[str] = NODE_CHANGES,
    cluster: str | None = CLUSTER,
    as_json: bool = JSON,
) -> None:
    """Change running nodes on all their hosts; the keys are those of `nodes set`."""
    from penstock.cli.nodes import report_changes
    from penstock.parts.remote.cluster.coordinator import RemoteCluster

    report_changes(RemoteCluster.find(cluster).change(changes), as_json=as_json)


@app.command()
def down(
    cluster: str | None = typer.Argument(None, help="Name (default: the only one)."),
    as_json: bool = JSON,
) -> None:
    """Stop the nodes on all hosts and restore the hosts."""
    from penstock.parts.remote.cluster.coordinator import RemoteCluster

    live = RemoteCluster.find(cluster)
    live.down()
    print(json.dumps({"down": [live.name]}) if as_json else f"{live.name}: down")
