"""Writes of versions by the model of Costa 2014, for tests of the studies of deduplication."""

from __future__ import annotations

from penstock.parts.dedup.options import normal_chunking
from studies.claims import Claim
from studies.dedup_study import write_part
from studies.dedup_study.cells import (
    AUTO,
    FIXED,
    MIB,
    OFF,
    SEQCDC,
    Cell,
    CellRun,
    Write,
)
from studies.dedup_study.ground import Calibration
from studies.dedup_study.write_part import RatioRun, WriteResult

SIZE = 32 * MIB
#: seconds to hash a byte, and to send one without a limit
HASH_S, FLOOR_S = 1e-9, 1e-9


def write(cell: Cell, contender: str, number: int, chunking: str, send_s: float) -> Write:
    """A version by the model, with times that differ by a percent."""
    extents = cell.size_bytes // cell.extent_bytes
    similar = 1 - round((1 - cell.similarity) * extents) / extents
    follows = number > 1
    on = chunking != OFF
    share = similar if on and follows else 0.0
    similar_bytes = round(share * cell.size_bytes)
    hash_s = HASH_S * cell.size_bytes if on else 0.0
    # content-defined chunks are slower to cut and to send
    factor = 1.2 if chunking == SEQCDC else 1.0
    hash_s *= factor
    sent_s = factor * send_s * (cell.size_bytes - similar_bytes)
    noise = 1 + 0.005 * (-1) ** number
    time_s = noise * (hash_s + sent_s + 1e-10 * cell.size_bytes)
    return Write(
        contender, number, follows, time_s, time_s, hash_s, sent_s, cell.size_bytes, similar_bytes,
        normal_chunking(chunking),
    )  # fmt: skip


def modelled(cell: Cell, send_s: float, choices: dict[str, str]) -> CellRun:
    """Writes of all contenders; `choices`: configurations of controllers after the twelfth version."""
    writes = []
    for contender in cell.contenders:
        for number in range(1, cell.versions + 1):
            chunking = contender.chunking
            if contender.controlled:
                chunking = FIXED if number <= 12 else choices[contender.name]
            writes.append(write(cell, contender.name, number, chunking, send_s))
    stored = {
        contender.name: sum(
            version.bytes - version.similar_bytes
            for version in writes
            if version.contender == contender.name
        )
        for contender in cell.contenders
    }
    return CellRun(cell, tuple(writes), stored)


def write_result(size: write_part.Size = write_part.QUICK) -> WriteResult:
    runs = []
    for ratio in size.ratios:
        send_s = HASH_S / ratio
        cells = []
        for similarity in size.similarities:
            best = FIXED if similarity > ratio else OFF
            cells.append(modelled(write_part.cell_of(similarity, size), send_s, {AUTO: best}))
        calibration = Calibration(ratio, 1 / send_s, HASH_S, send_s)
        runs.append(RatioRun(calibration, tuple(cells)))
    return WriteResult("emulated disk", size, tuple(runs))


def named(claims: list[Claim], beginning: str) -> Claim:
    (match,) = [claim for claim in claims if claim.wording.startswith(beginning)]
    return match


class Modelled:
    """A ground that writes by the model."""

    name = "model"

    def __init__(self) -> None:
        self.send_s = FLOOR_S
        self.cells: list[Cell] = []

    def limit(self, rate_bps: float | None) -> None:
        self.send_s = FLOOR_S + (0.0 if rate_bps is None else 1 / rate_bps)

    def run(self, cell: Cell) -> CellRun:
        self.cells.append(cell)
        return modelled(cell, self.send_s, {AUTO: FIXED})
