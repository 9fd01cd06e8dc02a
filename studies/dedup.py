"""Deduplication of versions: when it pays off, of which data, and what the online controller chooses.

    python studies/dedup.py [write] [real] [crossover] [objectives] [--quick] [--store]

`write`: versions of each similarity on an emulated disk whose rate gives three ratios of the times to hash
and to send (with `--store`: on MooseFS over shaped links), without deduplication, with fixed and
content-defined chunks, and with the controller. `real`: checkpoints of RocksDB, backups of PostgreSQL and
releases of packages, by chunker. `crossover`: the rate of sending below which deduplication pays off on this
processor, of published and real similarities, verified by writes at three rates. `objectives`: choices of the
controller for time, space, energy and a mixture.

All parts by default; needs root. `--quick`: one ratio, few versions, no download; about three minutes.
`--compare` evaluates the results in OUT. Planted: a controller that takes the slowest configuration, a
processor of a tenth of the speed, random bytes, versions that are stored again, and the choices for another
objective. Exit status 3 if a claim is not met or not measured, 1 if something failed or a plant is not
detected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import record  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim  # noqa: E402
from studies.common.options import options as shared_options  # noqa: E402
from studies.common.results import read_result, store_result  # noqa: E402
from studies.dedup_study import (  # noqa: E402
    crossover_part,
    objectives_part,
    real_part,
    write_part,
)
from studies.dedup_study.figures import write_figure  # noqa: E402
from studies.dedup_study.ground import DiskGround, StoreGround  # noqa: E402

#: in the order in which they are measured: the crossover uses the similarity of real data
ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "write": TypeAdapter(write_part.WriteResult),
    "real": TypeAdapter(real_part.RealResult),
    "crossover": TypeAdapter(crossover_part.CrossoverResult),
    "objectives": TypeAdapter(objectives_part.ObjectivesResult),
}
PLANTED = {
    "write": "a controller that takes the slowest configuration",
    "crossover": "a processor of a tenth of the speed",
    "objectives": "choices for time as those for space",
}


@dataclass(frozen=True)
class Evaluated:
    """Claims, planted failures, rows and text of the results of all parts."""

    claims: list[Claim]
    planted: dict[str, bool | None]
    rows: list[record.Row]
    lines: list[str]


def measure(part: str, options: argparse.Namespace, out: Path, results: Mapping[str, Any]) -> Any:
    """Result of a part; `results`: those of earlier parts."""
    quick = options.quick
    if part == "real":
        return real_part.measure(real_part.QUICK if quick else real_part.FULL)
    if part == "write":
        return measure_writes(options, file_of(out, part, options.store))
    with DiskGround() as disk:
        if part == "objectives":
            size_of = objectives_part.QUICK if quick else objectives_part.FULL
            return objectives_part.measure(disk, size_of)
        real = results.get("real")
        shares = {} if real is None else real_part.similarities(real)
        return crossover_part.measure_part(
            disk,
            crossover_part.QUICK if quick else crossover_part.FULL,
            crossover_part.similarities(shares),
        )


def measure_writes(options: argparse.Namespace, file: Path) -> write_part.WriteResult:
    """Result of the part `write`, which `file` has after each ratio; with `--resume` it is continued."""
    earlier = read_part(file, "write") if options.resume and file.is_file() else None
    with StoreGround() if options.store else DiskGround() as ground:
        return write_part.measure(
            ground,
            write_part.QUICK if options.quick else write_part.FULL,
            by_ratio=not options.store,
            earlier=earlier,
            save=lambda result: store_result(file, ADAPTERS["write"], result),
        )


def file_of(out: Path, part: str, store: bool) -> Path:
    """File of a part's result."""
    return out / (f"{part}-store.json" if part == "write" and store else f"{part}.json")


def read_part(path: Path, part: str) -> Any:
    """Result of a part that was measured before. Raises BadInput for another file."""
    return read_result(path, ADAPTERS[part], f"a result of the part {part}")


def results_of(parts: Sequence[str], out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Results of the parts: measured and stored in `out`, or read from it."""
    results: dict[str, Any] = {}
    for part in parts:
        path = file_of(out, part, options.store)
        if options.compare:
            results[part] = read_part(path, part)
            continue
        earlier = file_of(out, "real", False)
        before: Mapping[str, Any] = results
        if part == "crossover" and "real" not in results and earlier.is_file():
            before = {"real": read_part(earlier, "real")}
        print(f"part {part}", file=sys.stderr, flush=True)
        results[part] = measure(part, options, out, before)
        store_result(path, ADAPTERS[part], results[part])
    return results


def evaluate(results: Mapping[str, Any]) -> Evaluated:
    """Evaluate the results of all parts."""
    done = Evaluated([], {}, [], [])
    modules: dict[str, Any] = {
        "write": write_part,
        "real": real_part,
        "crossover": crossover_part,
        "objectives": objectives_part,
    }
    for part, result in results.items():
        module = modules[part]
        if part == "crossover":
            real = results.get("real")
            done.claims.extend(module.claims_of(result, () if real is None else real.names))
        else:
            done.claims.extend(module.claims_of(result))
        planted = module.planted(result)
        done.planted.update(planted if isinstance(planted, dict) else {PLANTED[part]: planted})
        done.rows.extend(module.rows_of(result))
        done.lines.extend(module.lines(result))
    return done


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    options = shared_options(__doc__, "dedup", "few versions, no download", parts=ADAPTERS)
    options.add_argument("--store", action="store_true", help="write: MooseFS over shaped links")
    options.add_argument("--resume", action="store_true", help="continue an interrupted `write`")
    return options


def main() -> int:
    """Exit status: 0 every claim is met, 1 failure, 2 bad input, 3 a claim is not met or not measured."""
    options = parser().parse_args()
    if unknown := [part for part in options.parts if part not in ADAPTERS]:
        print(f"part: found {unknown[0]}; expected {', '.join(ADAPTERS)}", file=sys.stderr)
        return 2
    parts = [part for part in ADAPTERS if part in (options.parts or ADAPTERS)]
    out = options.out.resolve()
    try:
        results = results_of(parts, out, options)
        done = evaluate(results)
    except PenstockError as error:
        print(f"dedup: {error}", file=sys.stderr)
        return error.exit_status
    if "write" in results:
        write_figure(results["write"], out)
    claims = checks.rows(done.claims, quoted=True)
    if options.json:
        document = {"claims": checks.as_json(done.claims), "planted": done.planted}
        print(json.dumps({**document, "rows": done.rows, "lines": done.lines}))
    else:
        print("\n".join(done.lines))
        checks.show(done.claims)
    about = (
        "The emulated disk is in memory; its limit makes sending slower, so that hashing does not overlap "
        "with it. Energy is that of the published model, not measured."
    )
    record.keep(options.record, [*claims, *done.rows], done.planted, about)
    return checks.finish("dedup", done.claims, done.planted)


if __name__ == "__main__":
    sys.exit(main())
