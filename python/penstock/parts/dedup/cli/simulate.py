"""penstock dedup simulate: the online controller on a simulated store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.shared.options import JSON, parsed
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.parts.dedup.controller.energy import PowerModel
    from penstock.parts.dedup.controller.settings import Settings
    from penstock.parts.dedup.controller.simulation.run import Simulation
    from penstock.parts.dedup.controller.simulation.store import Scenario

_DEFAULT = "fixed:65536"
_MOST_WRITES = 100_000_000


def command(
    ratio: list[str] = typer.Option(
        ["0.5"], "--ratio", "-r", help="[NAME=]R: time to hash over time to send; repeatable."
    ),
    similarity: list[str] = typer.Option(
        ["70%"],
        "--similarity",
        "-z",
        help="[NAME=]Z: 70%, steps:70%,0%,40, sinusoid:35%,35%,200, random:0%,100% or "
        "levels:0%,100%,40; repeatable.",
    ),
    writes: int = typer.Option(1000, "--writes", "-n", min=1, help="Number of versions."),
    size: str = typer.Option("256MiB", "--size", help="Size of a version."),
    chunk: str = typer.Option("64KiB", "--chunk", help="Size of a chunk."),
    bandwidth: str = typer.Option("1 Gbit/s", "--bandwidth", help="Rate of sending."),
    send_noise: str = typer.Option(
        "5%", "--send-noise", help="Relative spread of the time to send."
    ),
    hash_noise: str = typer.Option(
        "2%", "--hash-noise", help="Relative spread of the time to hash."
    ),
    overlap: str = typer.Option(
        "0%", "--overlap", help="Share of hashing that overlaps with sending."
    ),
    settings: Path | None = typer.Option(
        None, "--settings", "-s", help="Settings of the controller (docs/dedup-controller.md)."
    ),
    testbed: str | None = typer.Option(
        None, "--testbed", help="Powers of published machines, for energy: new or old."
    ),
    sampling: bool = typer.Option(
        True,
        "--sampling/--no-sampling",
        help="Let the controller sample while deduplication is off.",
    ),
    compare: bool = typer.Option(
        True, "--compare/--no-compare", help="Also run the published controller."
    ),
    seed: int = typer.Option(1, "--seed", min=0, help="Seed of the random numbers."),
    log: Path | None = typer.Option(
        None, "--log", help="Write the decisions to this file: .jsonl or .parquet."
    ),
    figure: Path | None = typer.Option(
        None, "--figure", help="Plot the decisions to this file: .svg, .pdf or .png."
    ),
    as_json: bool = JSON,
) -> None:
    """Run the online controller on a simulated store, beside static choices and the published controller.

    The controller is the one that a mount uses. Prints time, stored bytes and energy of a write, the excess
    over the best static configuration, and the regret: the cost beyond the best configuration of each write.
    """
    from penstock.parts.dedup.controller.simulation.run import simulate
    from penstock.parts.dedup.controller.simulation.store import Scenario
    from penstock.terminal import progress_bar

    if writes > _MOST_WRITES:
        raise BadInput(f"--writes: found {writes:,}; expected at most {_MOST_WRITES:,}")
    power = _power(testbed)
    rules = _settings(settings, power)
    write_bytes = _size("--size", size)
    scenario = Scenario(
        *_configurations(ratio, similarity),
        writes=writes,
        write_bytes=write_bytes,
        chunk_bytes=_size("--chunk", chunk),
        send_bps=_send_bps(bandwidth, write_bytes, size),
        noise=(_share("--send-noise", send_noise), _share("--hash-noise", hash_noise)),
        overlap=_share("--overlap", overlap),
        sampled=sampling,
        power=power or rules.power,
        seed=seed,
    )
    with progress_bar() as progress:
        result = simulate(scenario, rules, compare=compare, progress=progress)
    _write_files(result, log, figure)
    if as_json:
        print(json.dumps(_document(scenario, result)))
    else:
        _show(scenario, result)


def _configurations(
    ratio: list[str], similarity: list[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """Ratio and process of similarities of each configuration; a process without a name is that of all."""
    ratios = {name: _ratio(text) for name, text in _named("--ratio", ratio).items()}
    processes = _named("--similarity", similarity)
    if len(processes) == 1 and _DEFAULT in processes:
        processes = dict.fromkeys(ratios, processes[_DEFAULT])
    return ratios, _checked(processes)


def _write_files(result: Simulation, log: Path | None, figure: Path | None) -> None:
    """Write the decisions to a log and to a figure."""
    from penstock.parts.dedup.controller.decision import write_decisions
    from penstock.parts.dedup.controller.decision_figure import write_figure

    if log is not None:
        write_decisions(result.decisions, log)
    if figure is not None:
        write_figure(result.decisions, figure)


def _size(option: str, text: str) -> int:
    """Bytes of a size above 0."""
    from penstock.spec.units import parse_bounded_size

    size = parsed(option, text, parse_bounded_size)
    if size <= 0:
        raise BadInput(f"{option}: found {text}; expected a size above 0")
    return size


def _send_bps(bandwidth: str, write_bytes: int, size: str) -> float:
    """Rate of sending, at which a version of that size takes a finite time."""
    from penstock.spec.units import MOST_S, parse_bandwidth

    send_bps = parsed("--bandwidth", bandwidth, parse_bandwidth)
    if write_bytes > send_bps * MOST_S:
        raise BadInput(
            f"--bandwidth: found {bandwidth}; expected one that sends {size} in {MOST_S:g} s"
        )
    return send_bps


def _named(option: str, texts: list[str]) -> dict[str, str]:
    """Values by configuration; a text without a name is the default configuration's."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        name = name if equals else _DEFAULT
        if name in values or not name:
            raise BadInput(f"{option}: found '{text}'; expected each configuration once")
        values[name] = value
    return values


def _share(option: str, text: str) -> float:
    from penstock.spec.units import parse_share

    return parsed(option, text, parse_share)


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1000:
        raise BadInput(f"--ratio: found '{text}'; expected a number above 0, such as 0.5")
    return value


def _checked(processes: dict[str, str]) -> dict[str, str]:
    from penstock.parts.dedup.controller.simulation.similarity import parse_similarity

    return {
        name: str(parsed("--similarity", text, parse_similarity))
        for name, text in processes.items()
    }


def _power(testbed: str | None) -> PowerModel | None:
    from penstock.parts.dedup.controller.energy import TESTBEDS

    if testbed is None:
        return None
    if testbed not in TESTBEDS:
        raise BadInput(f"--testbed: found '{testbed}'; expected {' or '.join(TESTBEDS)}")
    return TESTBEDS[testbed].power


def _settings(path: Path | None, power: PowerModel | None) -> Settings:
    from dataclasses import replace

    from penstock.parts.dedup.controller.settings import Settings
    from penstock.parts.dedup.controller.settings_file import read_settings

    rules = Settings() if path is None else read_settings(path)
    return rules if power is None else replace(rules, power=power)


def _document(scenario: Scenario, result: Simulation) -> dict[str, Any]:
    from dataclasses import asdict

    from penstock.parts.dedup.controller.simulation.run import AUTO, PUBLISHED

    controllers = [name for name in (AUTO, PUBLISHED) if name in result.outcomes]
    return {
        "writes": scenario.writes,
        "outcomes": [asdict(outcome) for outcome in result.outcomes.values()],
        "best_static": result.best_static.name,
        "excess": {name: result.excess(name) for name in controllers},
        "regret": {name: result.regret(name) for name in controllers},
        "controller_s": result.controller_s,
        "decisions": len(result.decisions),
    }


def _show(scenario: Scenario, result: Simulation) -> None:
    from penstock import text
    from penstock.parts.dedup.controller.simulation.run import AUTO, PUBLISHED
    from penstock.terminal import plain_table, show

    with_energy = scenario.power is not None
    numbers = ["time", "stored", *(["energy"] if with_energy else []), "cost", "off"]
    table = plain_table(["configuration"], numbers)
    for outcome in result.outcomes.values():
        row = [text.quantity(outcome.time_s, "s"), text.size(outcome.space_bytes)]
        if with_energy:
            row.append(text.quantity(outcome.energy_j, "J"))
        row += [f"{outcome.cost:.4f}", text.tenths(outcome.shares.get("off", 0.0))]
        table.add_row(outcome.name, *row)
    show(table)
    print()
    for name in (name for name in (AUTO, PUBLISHED) if name in result.outcomes):
        print(
            f"{name}: {text.signed_percent(result.excess(name), 2)} compared with {result.best_static.name}, "
            f"regret {text.percentage(result.regret(name), 2)}"
        )
    seconds = text.quantity(result.controller_s, "s")
    print(f"{len(result.decisions)} changes of state; the controller takes {seconds} per write")
