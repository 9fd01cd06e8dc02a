"""Choices of the controller for time, space, energy and a mixture, with the powers of published machines.

All contenders of a cell write the same versions, in turn, at the ratio of the machine. Energy is that of the
model: extra power while the client hashes, and while client and storage node send.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bench import record
from penstock.parts.dedup.controller.energy import TESTBEDS, PowerModel, relative_energy
from penstock.parts.dedup.controller.model import relative_time
from penstock.parts.dedup.controller.utility import Costs, Utility
from penstock.parts.dedup.options import normal_chunking
from studies.claims import Claim, Finding, Result, claim, met_if, over_all
from studies.dedup_study.break_even import mean_time, rates
from studies.dedup_study.cells import FIXED, MIB, OFF, Cell, CellRun, Write, controlled, static
from studies.dedup_study.ground import Calibration, Ground, calibrated
from studies.dedup_study.write_part import final_choice

#: weights of time, space and energy
OBJECTIVES: dict[str, Costs] = {
    "time": (-1.0, 0.0, 0.0),
    "space": (0.0, -1.0, 0.0),
    "energy": (0.0, 0.0, -1.0),
    "mixed": (-1 / 3, -1 / 3, -1 / 3),
}
#: similarities closer than this to the break-even are not evaluated
POINTS = 0.05
#: steps of the search for a break-even
_STEPS = 10_000


@dataclass(frozen=True)
class Size:
    """Machines, similarities and versions."""

    machines: tuple[str, ...]
    similarities: tuple[float, ...]
    versions: int
    size_bytes: int = 32 * MIB


FULL = Size(("new", "old"), tuple(step / 10 for step in range(11)), 60)
QUICK = Size(("new",), (0.0, 0.3, 0.9), 18, 16 * MIB)


@dataclass(frozen=True)
class MachineRun:
    """Cells at the ratio of a machine of Costa 2014."""

    machine: str
    calibration: Calibration
    cells: tuple[CellRun, ...]


@dataclass(frozen=True)
class ObjectivesResult:
    """Result of the part."""

    ground: str
    size: Size
    runs: tuple[MachineRun, ...]


def settings_of(weights: Costs, power: PowerModel) -> str:
    """A settings file of the controller (docs/dedup-controller.md)."""
    time, space, energy = weights
    return (
        f"utility: {{weights: {{time: {time:.6f}, space: {space:.6f}, energy: {energy:.6f}}}}}\n"
        f"power: {{idle: {power.idle_w:g} W, hash: {power.hash_w:g} W, io: {power.io_w:g} W, "
        f"replicas: {power.senders - 1}}}\n"
    )


def measure(ground: Ground, size: Size) -> ObjectivesResult:
    """Write all cells at the ratio of each machine."""
    runs = []
    for machine in size.machines:
        bed = TESTBEDS[machine]
        calibration = calibrated(ground, bed.r, size.size_bytes)
        note = f"machine {machine}, r = {bed.r:g}: {calibration.measured_ratio:.3f}"
        print(f"{note}; {calibration.reason}", file=sys.stderr, flush=True)
        cells = []
        for similarity in size.similarities if not calibration.reason else ():
            cells.append(ground.run(_cell(similarity, bed.power, size)))
            choices = ", ".join(f"{name}: {final_choice(cells[-1], name)}" for name in OBJECTIVES)
            print(f"  similarity {similarity:.0%}: {choices}", file=sys.stderr, flush=True)
        runs.append(MachineRun(machine, calibration, tuple(cells)))
    return ObjectivesResult(ground.name, size, tuple(runs))


def _cell(similarity: float, power: PowerModel, size: Size) -> Cell:
    configurations = (OFF, FIXED)
    contenders = (
        *(static(chunking) for chunking in configurations),
        *(
            controlled(name, configurations, settings_of(weights, power))
            for name, weights in OBJECTIVES.items()
        ),
    )
    n = size.versions
    return Cell(similarity, contenders, n, size.size_bytes, MIB, n)


def costs(power: PowerModel, r: float, z: float) -> tuple[Costs, Costs]:
    """Relative costs without deduplication, and with it."""
    return (1.0, 1.0, 1.0), (relative_time(r, z), 1 - z, relative_energy(power, r, z))


def break_even(weights: Costs, power: PowerModel, r: float) -> float:
    """Similarity from which deduplication has the larger utility; infinite if it never has."""
    utility = Utility(weights)
    for step in range(_STEPS + 1):
        off, on = utility.values(costs(power, r, step / _STEPS), 0)
        if on > off:
            return step / _STEPS
    return math.inf


def energy_j(write: Write, power: PowerModel) -> float:
    """Energy beyond idle machines, by the model."""
    return power.extra_j(write.hash_s, write.send_s)


def claims_of(result: ObjectivesResult) -> list[Claim]:
    """Claims of all machines and objectives."""
    return [claim_ for run in result.runs for claim_ in _claims(run, result.size)]


def _claims(run: MachineRun, size: Size) -> list[Claim]:
    bed, case = TESTBEDS[run.machine], f"machine {run.machine}"
    needs = {
        f"{case}, similarity {similarity:.0%}": sum(
            cell_run.cell.similarity == similarity for cell_run in run.cells
        )
        for similarity in size.similarities
    }
    claims = [
        over_all(
            f"{case}, objective {name}",
            "the controller ends on the side of the break-even that its model requires",
            needs,
            lambda name=name, weights=weights: _sides(run.cells, name, weights, bed.power),
            criterion=f"at similarities more than {100 * POINTS:.0f} points from it",
        )
        for name, weights in OBJECTIVES.items()
    ]
    claims.append(
        claim(
            case,
            "between the two break-evens, the objective energy takes less energy and more time than time",
            needs,
            lambda: _conflict(run.cells, bed.power),
        )
    )
    return claims


def _ratio(cells: Sequence[CellRun]) -> float | None:
    measured = rates(cells, FIXED)
    return None if measured is None else measured.ratio


def _sides(cells: Sequence[CellRun], name: str, weights: Costs, power: PowerModel) -> Finding:
    r = _ratio(cells)
    if r is None:
        return Finding(Result.NOT_MEASURED, "no time to hash or to send")
    at = break_even(weights, power, r)
    correct, evaluated, wrong = 0, 0, []
    for run in cells:
        z = statistics.fmean(write.similarity for write in run.of(FIXED))
        if abs(z - at) <= POINTS:
            continue
        expected = normal_chunking(FIXED if z > at else OFF)
        evaluated += 1
        if final_choice(run, name) == expected:
            correct += 1
        else:
            wrong.append(f"{z:.0%}")
    evidence = f"{correct} of {evaluated}, break-even {at:.1%} at r = {r:.3f}"
    if wrong:
        evidence += f"; wrong at {', '.join(wrong)}"
    return met_if(correct == evaluated > 0, evidence)


def _conflict(cells: Sequence[CellRun], power: PowerModel) -> Finding:
    r = _ratio(cells)
    if r is None:
        return Finding(Result.NOT_MEASURED, "no time to hash or to send")
    low, high = sorted(break_even(OBJECTIVES[name], power, r) for name in ("time", "energy"))
    between = [
        run
        for run in cells
        if low + POINTS
        < statistics.fmean(write.similarity for write in run.of(FIXED))
        < high - POINTS
    ]
    if not between:
        return Finding(Result.NOT_COMPARABLE, f"no similarity is inside of {low:.1%} to {high:.1%}")
    saved, longer = [], []
    for run in between:
        # after the first probes, which all objectives need
        later_writes = {
            name: run.of(name)[-len(run.of(name)) // 2 :] for name in ("time", "energy")
        }
        energies = {
            name: statistics.fmean(energy_j(write, power) for write in writes)
            for name, writes in later_writes.items()
        }
        saved.append(1 - energies["energy"] / energies["time"])
        longer.append(mean_time(later_writes["energy"]) / mean_time(later_writes["time"]) - 1)
    evidence = (
        f"energy {', '.join(f'-{share:.1%}' for share in saved)}, "
        f"time {', '.join(f'+{share:.1%}' for share in longer)}"
    )
    return met_if(min(saved) > 0 and min(longer) > 0, evidence)


def planted(result: ObjectivesResult) -> bool | None:
    """True if the choices for time would not pass as those for space; None without writes."""
    for run in result.runs:
        if run.cells:
            power = TESTBEDS[run.machine].power
            swapped = _sides(run.cells, "time", OBJECTIVES["space"], power)
            return swapped.result is Result.NOT_MET
    return None


def rows_of(result: ObjectivesResult) -> list[record.Row]:
    """Time, stored bytes and modelled energy of each contender, over those without deduplication."""
    rows: list[record.Row] = []
    for run in result.runs:
        power, r = TESTBEDS[run.machine].power, _ratio(run.cells)
        for name, weights in OBJECTIVES.items() if r is not None else ():
            at = 100 * break_even(weights, power, r or 0.0)
            case = f"machine {run.machine}, r = {r:.3f}"
            if math.isinf(at):
                continue
            rows.append(record.row(case, f"objective {name}", "break-even of the model", [at], "%"))
        for cell in run.cells:
            rows += _cell_rows(run.machine, cell, power)
    return rows


def _cell_rows(machine: str, run: CellRun, power: PowerModel) -> list[record.Row]:
    case = f"machine {machine}, similarity {run.cell.similarity:.0%}"
    off_s = mean_time(run.of(OFF))
    off_j = statistics.fmean(energy_j(write, power) for write in run.of(OFF))
    rows = []
    for contender in run.cell.contenders:
        name, writes = contender.name, run.of(contender.name)
        energy = [energy_j(write, power) / off_j for write in writes]
        sent = [(write.bytes - write.similar_bytes) / write.bytes for write in writes]
        engine = f"objective {name}" if contender.controlled else name
        for metric, values in (
            ("time over that of off", [write.time_s / off_s for write in writes]),
            ("sent share", sent),
            ("modelled energy over that of off", energy),
        ):
            # the mean: a controller's writes differ by its configurations
            row = record.row(case, engine, metric, values, "1")
            rows.append({**row, "value": statistics.fmean(values)})
    return rows


def lines(result: ObjectivesResult) -> list[str]:
    """Break-evens at the measured ratios, as text."""
    text = []
    for run in result.runs:
        r = _ratio(run.cells)
        if run.calibration.reason or r is None:
            text.append(f"machine {run.machine}: not measured: {run.calibration.reason}")
            continue
        power = TESTBEDS[run.machine].power
        evens = ", ".join(
            f"{name} {100 * break_even(weights, power, r):.1f} %"
            for name, weights in OBJECTIVES.items()
        )
        text.append(f"machine {run.machine}, r = {r:.3f}: break-evens of the model: {evens}")
    return text
