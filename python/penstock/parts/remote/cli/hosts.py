"""penstock hosts: physical hosts of a virtual cluster."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import typer

app = typer.Typer(
    help="Physical hosts of a virtual cluster: their facts, and the plan of a platform on them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def plan(
    platform: Path = typer.Argument(help="A platform file."),
    hosts: Path = typer.Option(..., "--hosts", help="The hosts file."),
    changes: list[str] = typer.Option([], "--set", help="Change a value of the platform: a.b=c."),
    allow_overcommit: bool = typer.Option(
        False, "--allow-overcommit", help="Accept limits that the hosts cannot sustain together."
    ),
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
