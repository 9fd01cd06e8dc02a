"""All I/O engines of the installed fio that send requests to files, traced and compared with fio's reports.

Run as root: `python bench/trace_coverage.py [ENGINE...] [--json FILE]`. Engine × {read, write, randread,
randwrite, rw, randrw} × {buffered, direct} × {1, 4 jobs}: counts and bytes as in fio's summary, offsets and
order as in its I/O logs, no losses. fio's `mmap` is not among the engines, because it causes page faults, not
requests. The last row drops one event in a hundred on purpose, which the comparison must report. Exit status
1 if a cell fails.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.coverage.fio import (
    ENGINES,
    OTHERS,
    Cell,
    Run,
    cells,
    installed,
    latencies,
    run_cell,
    run_fio,
)
from penstock.host.journal.journal import Journal
from penstock.observe.trace.capture.tracer import Tracer
from penstock.state import state_dir

ABOUT = (
    "fio's `mmap` engine moves file data, too, and is not among them: it makes pages and no requests, and is "
    "tested by `tests/integration/test_trace_faults.py`. `ftruncate` and `falloc` move no data."
)


def main() -> int:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", help="only these engines")
    parser.add_argument(
        "--json", type=Path, help="write every cell and its differences to this file"
    )
    parser.add_argument("--quick", action="store_true", help="psync, libaio and io_uring only")
    record.option(parser)
    arguments = parser.parse_args()
    available = installed()
    few = ["psync", "libaio", "io_uring"] if arguments.quick else available
    engines = [name for name in ENGINES if name in (arguments.engines or few)]
    verdicts: dict[Cell, list[str]] = {}
    journal = Journal()
    with tempfile.TemporaryDirectory(dir=state_dir()) as work:
        with Tracer(journal, state_dir(), "trace") as tracer:
            for cell in cells(engines):
                verdicts[cell] = run_cell(cell, tracer, journal, Path(work))
                if verdicts[cell]:
                    print(f"FAILED {cell}: {'; '.join(verdicts[cell])}", file=sys.stderr)
        with Tracer(journal, state_dir(), "trace", drop_every=100) as tracer:
            planted = run_cell(Cell("psync", "randrw", False, 1), tracer, journal, Path(work))
        with Tracer(journal, state_dir(), "trace") as tracer:
            ratios = {
                name: _latency_ratio(
                    run_fio(Cell(name, "randread", True, 1), tracer, journal, Path(work))
                )
                for name in engines
                if name in ("libaio", "io_uring")
            }
    _print_table(engines, verdicts)
    for name in available:
        if name not in ENGINES:
            print(f"{name:14} not compared: {OTHERS.get(name, 'unknown to this bench')}")
    print(f"planted loss   {'reported: ' + '; '.join(planted) if planted else 'NOT REPORTED'}")
    for name, ratio in ratios.items():
        print(f"{name:14} direct reads, submission to completion: {ratio}")
    failed = sum(bool(differences) for differences in verdicts.values())
    rows = [
        record.share(
            name,
            "",
            "cells (pattern × path × jobs) whose counts, bytes, offsets and order equal fio's",
            sum(not differences for cell, differences in verdicts.items() if cell.engine == name),
            sum(cell.engine == name for cell in verdicts),
        )
        for name in engines
    ]
    record.keep(arguments.record, rows, {"one event in a hundred dropped": bool(planted)}, ABOUT)
    print(f"{len(verdicts) - failed} of {len(verdicts)} cells passed")
    if arguments.json:
        rows = [
            {"cell": str(cell), "differences": differences}
            for cell, differences in verdicts.items()
        ]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(failed > 0 or not planted)


def _latency_ratio(run: Run) -> str:
    """Ratio of clat, which begins when the submitting call returns, to lat, which begins before it."""
    read, latencies_ns = run.report["jobs"][0]["read"], latencies(run)
    clat = statistics.median(latencies_ns) / read["clat_ns"]["percentile"]["50.000000"]
    lat = statistics.mean(latencies_ns) / read["lat_ns"]["mean"]
    return f"p50 {clat:.2f} of fio's clat, mean {lat:.2f} of fio's lat"


def _print_table(engines: list[str], verdicts: dict[Cell, list[str]]) -> None:
    """Passed and tried cells, by engine and pattern."""
    patterns = list(dict.fromkeys(cell.pattern for cell in verdicts))
    print(f"{'passed':14} " + " ".join(f"{pattern:>9}" for pattern in patterns))
    for name in engines:
        row = []
        for pattern in patterns:
            cell_differences = [
                f for c, f in verdicts.items() if c.engine == name and c.pattern == pattern
            ]
            row.append(
                f"{sum(not f for f in cell_differences)}/{len(cell_differences)}"
                if cell_differences
                else "-"
            )
        print(f"{name:14} " + " ".join(f"{text:>9}" for text in row))


if __name__ == "__main__":
    raise SystemExit(main())
