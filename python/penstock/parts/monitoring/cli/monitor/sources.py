"""penstock monitor fetch, off, on: where an experiment's points come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from penstock.errors import BadInput
from penstock.parts.monitoring.cli.monitor.options import JSON, NAME, SERVER, app
from penstock.terminal import say

COLLECTOR = typer.Option(
    ..., "--collector", "-c", help="Name of the collector in the server's configuration."
)


@app.command()
def fetch(
    name: str = NAME,
    of: str = typer.Option(
        None, "--from", help="Server of the metrics: its name in the configuration, or http://…"
    ),
    query: str = typer.Option(None, "--query", "-q", help="Query in the server's language."),
    metric: str = typer.Option(
        None,
        "--metric",
        "-m",
        help="Name of the metric here (default: the query), or a configured metric.",
    ),
    step: str = typer.Option(
        None, "--step", help="Interval between points, such as 1s or 250ms (1s)."
    ),
    measurement: str = typer.Option(
        None, ("--measurement"), help="Measurement of InfluxDB, instead of a query."
    ),
    field: list[str] = typer.Option([], "--field", help="Field of the measurement (default: all)."),
    database: str = typer.Option(None, "--database", help="Database of InfluxDB."),
    kind: str = typer.Option(
        "prometheus",
        "--type",
        help="Kind of server for --from http://…: prometheus, victoriametrics, influxdb, graphite.",
    ),
    config: Path = typer.Option(
        None, help="JSON file with servers and metrics by name, if no penstock server has them."
    ),
    as_json: bool = JSON,
    server: str = SERVER,
) -> None:
    """Fetch the points that a metrics server has of an experiment, and store them with it.

    Without --query, --measurement and --metric: all metrics of the configuration that come from a remote
    server, as at the end of each experiment of `penstock serve --config`. Fetched points are not requested
    again; get, plot, compare and export read them from the archive.
    """
    from penstock.parts.monitoring.experiments.targets import Target, Targets, read_targets, shown
    from penstock.parts.monitoring.outbox.client import opened

    targets = None if config is None else read_targets(config)
    options: dict[str, Any] = {
        "server": of,
        "query": query,
        "metric": metric,
        "step": step,
        "measurement": measurement,
        "database": database,
        "fields": field or None,
    }
    if of is not None and "://" in of:
        options["server"] = shown(of).partition("://")[2]
        configured = Targets() if targets is None else targets
        own = {**configured.servers, options["server"]: Target(options["server"], kind, of)}
        targets = Targets(own, configured.metrics)
    if of is not None and query is None and measurement is None:
        raise BadInput("found --from without --query or --measurement; expected one of them")
    done = opened(server).fetch(name, {k: v for k, v in options.items() if v is not None}, targets)
    if as_json:
        print(json.dumps({"fetched": done}))
        return
    for one in done:
        times = "1 request" if one["requests"] == 1 else f"{one['requests']} requests"
        say(f"{one['metric']}: {one['points']:,} points of {one['server']} in {times}")


@app.command()
def off(
    name: str = NAME, collector: str = COLLECTOR, as_json: bool = JSON, server: str = SERVER
) -> None:
    """Disable a collector for an experiment: the time until `on` counts as `disabled`, not lost."""
    _switch(name, collector, False, server, as_json)


@app.command()
def on(
    name: str = NAME, collector: str = COLLECTOR, as_json: bool = JSON, server: str = SERVER
) -> None:
    """Enable a collector again."""
    _switch(name, collector, True, server, as_json)


def _switch(name: str, collector: str, to_on: bool, server: str | None, as_json: bool) -> None:
    from penstock.parts.monitoring.outbox.client import opened

    word = "on" if to_on else "off"
    changed = opened(server).switch(name, collector, to_on)
    if as_json:
        print(json.dumps({"collector": collector, "on": to_on, "changed": changed}))
        return
    say(f"{collector} is {word}" if changed else f"{collector} was {word} already")
