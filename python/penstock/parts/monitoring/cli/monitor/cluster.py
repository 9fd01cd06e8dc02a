"""penstock monitor bandwidth, middleware, grafana: whole clusters and their object stores."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from penstock.errors import BadInput
from penstock.parts.monitoring.cli.monitor.options import JSON, app
from penstock.terminal import say
from penstock.text import percentage


@app.command()
def bandwidth(
    what: str = typer.Argument(
        None,
        help="A bundle, OUT:r001 or an experiment; default: the disks of this host, now.",
    ),
    device: list[str] = typer.Option([], "--device", "-d", help="Only these disks (* and ?)."),
    series: list[str] = typer.Option(
        [],
        "--series",
        "-s",
        help="Series of a bundle with these names (* and ?), instead of disks.",
    ),
    window: list[int] = typer.Option(
        [], ("--window"), "-w", help="Length of a window in minutes (default: 1, 2, 3 and 5)."
    ),
    watch: float = typer.Option(5.0, "--for", help="Seconds to sample the disks of this host."),
    as_json: bool = JSON,
) -> None:
    """Print the bandwidth of disks over the last minutes: mean, minimum and maximum of each window.

    Read and written bytes together, in MB/s. `coverage` is the share of a window for which there are samples.
    """
    from penstock.parts.monitoring.usage.bandwidth import as_json as shown
    from penstock.parts.monitoring.usage.bandwidth import bandwidths
    from penstock.parts.monitoring.usage.swift_bandwidth import WINDOWS

    if what is None and series:
        raise BadInput("found --series without a bundle; expected one")
    if not 0.2 <= watch <= 86_400:
        raise BadInput(f"found --for {watch:g}; expected 0.2 to 86400 seconds")
    windows = sorted(set(window)) or list(WINDOWS)
    by_name = bandwidths(what, device, series, windows, watch)
    if as_json:
        print(shown(by_name))
        return
    for name, stats in by_name.items():
        unit = stats["unit"]
        insta = stats["insta"]
        print(f"{name}: " + ("no sample" if insta is None else f"{insta:.6g} {unit}"))
        for k in windows:
            if stats[f"mean{k}min"] is not None:
                mean, least, most = (stats[f"{w}{k}min"] for w in ("mean", "min", "max"))
                cover = f"coverage {percentage(stats[f'cov{k}min'])}"
                print(f"  {k:>3} min: mean {mean:.6g}, {least:.6g} to {most:.6g} {unit}, {cover}")


@app.command()
def middleware(
    output: Path = typer.Option(None, "-o", "--output", help="Write the file into this directory."),
    server: str = typer.Option(
        "object-server", "--pipeline", help="Name of the application in the pipeline."
    ),
    as_json: bool = JSON,
) -> None:
    """Print the filter for Swift's object servers that answers GET /bwinfo and GET /osinfo.

    Without -o it is printed. With -o it is written, and what object-server.conf needs is printed.
    """
    from importlib import resources

    from penstock.writing import atomic_file

    name = "swift_bandwidth.py"
    text = (resources.files("penstock.parts.monitoring.usage") / name).read_text(encoding="utf-8")
    settings = (
        f"[pipeline:main]\npipeline = bandwidth {server}\n\n[filter:bandwidth]\n"
        "paste.filter_factory = swift_bandwidth:filter_factory"
    )
    if output is None:
        print(json.dumps({"text": text, "settings": settings}) if as_json else text, end="")
        return
    if not output.is_dir():
        raise BadInput(
            f"-o: found no directory {output}; expected one that Swift's Python may read"
        )
    with atomic_file(output / name) as draft:
        draft.write_text(text, encoding="utf-8")
    if as_json:
        print(json.dumps({"file": str(output / name), "settings": settings}))
        return
    say(f"{output / name} written; start the object servers with PYTHONPATH={output.resolve()}")
    print(settings)


@app.command()
def grafana(
    directory: Path = typer.Argument(..., help="Output directory; created if missing."),
    server: str = typer.Option(
        "http://127.0.0.1:5000", "--server", help="Address of `penstock serve` for Grafana."
    ),
    as_json: bool = JSON,
) -> None:
    """Write dashboards and provisioning for Grafana: compute, object storage, volumes, tenants, run.

    Its data source is the plugin simpod-json-datasource; its token, $PENSTOCK_TOKEN in Grafana's environment.
    """
    from penstock.parts.monitoring.usage.grafana import write

    files = [str(path) for path in write(directory, server)]
    print(json.dumps({"files": files}) if as_json else "\n".join(files))
