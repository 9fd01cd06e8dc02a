"""penstock seed: service times of a real store from application-level measurements."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import typer

from penstock.cli.shared.options import CHANGES
from penstock.errors import BadInput
from penstock.terminal import plain_table, progress_bar, say, show


def command(
    platform: Path = typer.Argument(
        help="A platform file with roles and store: {engine: …}; service times may be missing."
    ),
    changes: list[str] = CHANGES,
    engine: str | None = typer.Option(None, "--engine", help="Engine, instead of the file's."),
    budget_s: float = typer.Option(
        120.0,
        "--budget",
        min=1.0,
        help="Seconds after which means may have a relative error above 5 %.",
    ),
    compare: bool = typer.Option(
        True, help="Measure the disk and link of every node first, and list those that differ."
    ),
    distributions: bool = typer.Option(
        False,
        "--distributions",
        help="Write distributions of service and launch times, without intervals, instead of means.",
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", help="Output: the platform file with the measured values."
    ),
    as_json: bool = typer.Option(False, "--json", help="The result as one JSON object."),
) -> None:
    """Measure a store on a few of its nodes, as a client sees it, and fit the service times of the model.

    The result is the same platform file with measured values and their intervals, for predictions and
    explorations. The store is started for the measurement and stopped at its end.
    """
    from penstock.parts.stores.calibration.seed import seed
    from penstock.platform.hosts import Platform, load_platform
    from penstock.writing import check_target, write_atomic

    check_target(output)
    loaded = load_platform(platform, changes, predicted=False)

    with progress_bar() as progress:
        seeded = seed(
            loaded,
            engine=engine,
            budget_s=budget_s,
            compare=compare,
            distributions=distributions,
            note=say,
            progress=progress,
        )
    where = output.absolute().parent
    result = Platform.from_dict(seeded.document, loaded.base_dir)
    try:
        write_atomic(output, result.to_yaml(where))
    except OSError as error:
        raise BadInput(f"{output}: {error.strerror}") from error
    if as_json:
        alike = seeded.alike.to_dict() if seeded.alike is not None else None
        about = {"platform": str(output), "cautions": seeded.cautions, "alike": alike}
        print(json.dumps({**about, **_numbers(seeded)}))
        return
    table = plain_table(("what",), ("found", "from", "to", "n"))
    for row in _rows(seeded):
        table.add_row(*row)
    show(table)
    for caution in seeded.cautions:
        print(f"caution: {caution}")
    print(f"{output}: the platform with these values")


def _numbers(seeded: object) -> dict[str, object]:
    from penstock.parts.stores.calibration.seed import Seeded

    assert isinstance(seeded, Seeded)
    seen, services = seeded.measured, seeded.services
    return {
        "network_bps": seen.network_bps.mean,
        "loopback_bps": seen.loopback_bps.mean,
        "latency_s": seen.latency_s.mean,
        "launch_s": statistics.fmean(seen.trials.launches_s),
        "tag_s": statistics.fmean(seen.trials.tags_s),
        "locate_s": statistics.fmean(seen.trials.locates_s),
        "manager_s": services.manager_s,
        "window": seeded.window,
        "write_contention_s": services.contention_s,
        "write": vars(services.write),
        "read": vars(services.read),
        "operations": {
            str(key): {"mean_s": m.mean, "low_s": m.low, "high_s": m.high, "n": m.n}
            for key, m in seen.trials.means().items()
        },
    }


def _rows(seeded: object) -> list[tuple[str, ...]]:
    from penstock.host.network.loopback import interval
    from penstock.parts.stores.calibration.seed import Seeded

    assert isinstance(seeded, Seeded)
    rows, seen = [], seeded.measured
    for what, measured, by, unit in (
        ("network", seen.network_bps, 1e-6, "MB/s"),
        ("loopback", seen.loopback_bps, 1e-6, "MB/s"),
        ("latency, one way", seen.latency_s, 1e6, "us"),
        ("launch of a task", interval(seen.trials.launches_s), 1e3, "ms"),
        ("hints of a file", interval(seen.trials.tags_s), 1e3, "ms"),
        ("finding a file", interval(seen.trials.locates_s), 1e3, "ms"),
    ):
        numbers = (f"{v * by:.4g}" for v in (measured.mean, measured.low, measured.high))
        rows.append((f"{what} [{unit}]", *numbers, str(measured.n)))
    for key, m in seen.trials.means().items():
        numbers = (f"{1e3 * v:.4g}" for v in (m.mean, m.low, m.high))
        rows.append((f"{key} [ms]", *numbers, str(m.n)))
    services = seeded.services
    rows.append(("manager, a request [us]", f"{1e6 * services.manager_s:.4g}", "", "", ""))
    if services.contention_s is not None:
        text = f"{1e3 * services.contention_s:.4g}"
        rows.append(("write, for each other writer [ms]", text, "", "", ""))
    if seeded.window is not None:
        rows.append(("requests of a client at once", str(seeded.window), "", "", ""))
    for which, one in (("write", services.write), ("read", services.read)):
        text = f"{1e6 * one.overhead_s:.4g}"
        rows.append((f"storage, {which}: overhead [us]", text, "", "", ""))
        text = f"{1e3 * one.per_byte_s * 2**20:.4g}"
        rows.append((f"storage, {which}: per MiB [ms]", text, "", "", ""))
    return rows
