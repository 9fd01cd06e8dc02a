"""penstock dedup energy: break-even similarities of time and energy, and their conflict."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from penstock.cli.shared.options import JSON, other_options, parsed
from penstock.errors import BadInput


def command(
    context: typer.Context,
    ratio: float | None = typer.Option(
        None, "--ratio", "-r", min=0.0001, max=10_000, help="Time to hash over time to send."
    ),
    idle: str | None = typer.Option(None, "--idle", help="Power of an idle machine, as 86 W."),
    hashing: str | None = typer.Option(
        None, "--hash", help="Power while hashing, measured or the peak, as 290 W."
    ),
    io: str | None = typer.Option(None, "--io", help="Power while sending, as 276.7 W."),
    replicas: int = typer.Option(
        1, "--replicas", min=1, help="Storage nodes that store each chunk."
    ),
    testbed: str | None = typer.Option(
        None, "--testbed", help="Published machines in place of the other options: new or old."
    ),
    as_json: bool = JSON,
) -> None:
    """Print the similarities from which deduplication saves time and energy, and the losses between them."""
    from penstock.parts.dedup.controller.conflict import conflict, lines
    from penstock.parts.dedup.controller.energy import TESTBEDS, PowerModel
    from penstock.spec.units import parse_power

    if testbed is not None:
        if testbed not in TESTBEDS or other_options(context, {"testbed", "as_json"}):
            names = " or ".join(TESTBEDS)
            expected = f"{names}, and no other option"
            raise BadInput(f"--testbed: found '{testbed}'; expected {expected}")
        bed = TESTBEDS[testbed]
        results = {
            "with the peak power": conflict(bed.power, bed.r),
            "with the power measured while hashing": conflict(bed.measured_power, bed.r),
        }
    elif ratio is None or idle is None or hashing is None or io is None:
        raise BadInput(
            "found neither --testbed nor all powers; expected --ratio, --idle, --hash, --io"
        )
    else:
        power = PowerModel(
            parsed("--idle", idle, parse_power),
            parsed("--hash", hashing, parse_power),
            parsed("--io", io, parse_power),
            1 + replicas,
        )
        results = {"": conflict(power, ratio)}
    if as_json:
        rows = [
            {"powers": name, **asdict(result), "interval": result.interval}
            for name, result in results.items()
        ]
        print(json.dumps(rows if len(rows) > 1 else rows[0]))
        return
    for name, result in results.items():
        if name:
            print(f"{name}:")
        print("\n".join(lines(result)))
