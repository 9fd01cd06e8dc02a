"""The fio validation grid: is what was asked for delivered, on every back end and data path?

`studies/validation_grid.py` makes the runs of `studies/validation-grid*.study.yaml` on disks of the model
(`fuse`), the same cells on loop devices throttled by the blkio hierarchy (`cgroup1`) and, with `--guest`, by
`io.max` in a virtual machine with a current kernel (`cgroup2`); then it prints the criteria. Planted
failures belong to every run: a limit set 5 % wrong, a disk 5 % slow, a host with two busy loops per core.
What is there already is not made again. `--full`: the whole factorial on throttled disks (hours). Needs root
and fio.

After section 3.3.3 of A. Saif, Experimental Methods for the Evaluation of Big Data Systems (2020). Exit
status 3 if something that must hold does not, 1 if something failed or what was planted is not found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.emulate.backends.choice import missing_here
from penstock.errors import PenstockError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "blackbox"))
sys.path.insert(0, str(HERE / "validation-grid"))
sys.path.insert(0, str(HERE.parent))

from cells import MB, Cell, crossed, full, some, sustained  # noqa: E402
from cells import quick as quick_cells  # noqa: E402
from disks import finish  # noqa: E402
from judge import Criterion, Row, as_dicts, criteria, fuse_rows, throttled_rows  # noqa: E402
from planted import busy_host, slow_disk  # noqa: E402

from bench import record  # noqa: E402

LIMITS = {"512k": 512e3, "1m": 1e6, "4m": 4e6, "16m": 16e6, "64m": 64e6}
STUDIES = ("", "-limits", "-shape")
ABOUT = (
    "On `fuse`, delivered is what the disk server's own log says, against the draws that it made; fio's own "
    "rate is judged beside it, and its times void a run that they contradict. A cell is one direction of a "
    "run."
)
#: what each study runs under --quick: its smallest honest part
QUICK = {
    "": ["factors.engine={levels: [sync, io_uring]}", "factors.pattern={levels: [read, write]}"],
    "-shape": ["factors.shape={levels: [lognormal-2ms, constant-1ms-4]}",
               "factors.depth={levels: [1, 4]}", "factors.pattern={levels: [randread, randwrite]}"],
}  # fmt: skip


def on_fuse(out: Path, quick: bool) -> list[Row]:
    """The studies on disks of the model."""
    rows: list[Row] = []
    for name in STUDIES:
        if quick and name != "":
            continue
        runs = out / f"fuse{name}{'-quick' if quick else ''}"
        words = ["--quick", *(w for s in QUICK[name] for w in ("--set", s))] if quick else []
        finish(HERE / f"validation-grid{name}.study.yaml", runs, words)
        rows += fuse_rows(runs, limit_of={} if name == "-shape" else LIMITS)
    return rows


def cells_of(seconds: float, quick: bool, whole: bool, guest: bool = False) -> list[Cell]:
    """The cells of throttled disks, and a planted failure; fewer in the guest, unless all are wanted."""
    wrong = replace(sustained(seconds, Cell("psync", "read", True, 4 * MB, 64 * MB)), planted=0.05)
    if quick:
        few = [c for c in quick_cells(seconds) if c.engine == "io_uring"]
        return [*few, wrong]
    chosen = full if whole else some if guest else crossed
    return [*chosen(seconds), wrong]


def on_host(out: Path, cells: list[Cell], workers: int) -> list[Row]:
    """Throttled by the blkio hierarchy of this host."""
    kept = out / "cgroup1.json"
    if not kept.exists():
        cells = [c for c in cells if c.direct or c.directions == ("read",)]  # the others it refuses
        with tempfile.TemporaryDirectory(prefix="penstock-grid-") as place:
            (Path(place) / "cells.json").write_text(json.dumps([asdict(c) for c in cells]))
            words = [sys.executable, HERE / "validation-grid" / "throttled.py", "cgroup1",
                     place, Path(place) / "cells.json", str(workers)]  # fmt: skip
            done = subprocess.run(list(map(str, words)), stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                raise PenstockError("the cells on throttled disks of this host failed")
        kept.write_text(_result(done.stdout))
    return throttled_rows(json.loads(kept.read_text()))


def in_guest(out: Path, cells: list[Cell], workers: int) -> list[Row]:
    """Throttled by `io.max` in the guest."""
    import guest

    kept = out / "cgroup2.json"
    if not kept.exists():
        kept.write_text(_result(guest.run(cells, out / "guest", workers)))
    return throttled_rows(json.loads(kept.read_text()))


def _result(text: str) -> str:
    line = next((x for x in text.splitlines() if x.startswith("RESULT ")), None)
    if line is None:
        raise PenstockError(f"no result: {text[-500:]}")
    return line.removeprefix("RESULT ")


def show(rows: list[Row], bars: list[Criterion]) -> None:
    """Cells that miss, then the criteria."""
    missed = [r for r in rows if not r.planted and not r.valid]
    for row in missed[:20]:
        print(f"not used: {row.backend} {row.cell}: {row.reason[:120]}", file=sys.stderr)
    if len(missed) > 20:
        print(f"not used: {len(missed) - 20} more", file=sys.stderr)
    table = Table(box=None, pad_edge=False)
    for heading in ("back end", "criterion", "found", "holds"):
        table.add_column(heading, overflow="fold")
    words = {True: "yes", False: "NO", None: ""}
    for bar in bars:
        table.add_row(bar.of, bar.asks, bar.found, words[bar.holds])
    Console(width=110, highlight=False).print(table)


def main() -> int:
    """Exit status: 0 all holds, 1 something failed, 3 something does not hold."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("-o", "--out", type=Path, default=HERE.parent / "out" / "validation-grid")
    options.add_argument("--quick", action="store_true", help="a few cells, half a minute")
    options.add_argument("--guest", action="store_true", help="io.max in the guest as well")
    options.add_argument("--only", choices=("fuse", "cgroup1", "cgroup2", "planted"))
    options.add_argument("--full", action="store_true", help="the whole factorial on throttles")
    options.add_argument("--seconds", type=float, help="longest cell on throttled disks")
    options.add_argument("--workers", type=int, default=4, help="throttled cells side by side")
    options.add_argument("--json", action="store_true", help="the result as one object")
    record.option(options)
    given = options.parse_args()
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    cells = cells_of(given.seconds or (4.5 if given.quick else 6.0), given.quick, given.full)
    lacking = missing_here()
    parts: dict[str, Callable[[], Any]] = {"fuse": lambda: on_fuse(out, given.quick)}
    if not lacking["cgroup1"]:
        parts["cgroup1"] = lambda: on_host(out, cells, given.workers)
    if given.guest or given.only == "cgroup2":
        fewer = cells_of(given.seconds or 6.0, given.quick, given.full, guest=True)
        parts["cgroup2"] = lambda: in_guest(out, fewer, min(2, given.workers))
    rows: list[Row] = []
    try:
        for name, part in parts.items():
            if given.only in (None, name):
                rows += part()
        bars = criteria(rows)
        if given.only in (None, "planted"):
            bars += [Criterion("fuse", *slow_disk()), Criterion("fuse", *busy_host())]
    except PenstockError as error:
        print(f"validation-grid: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps({"rows": as_dicts(rows), "criteria": [vars(b) for b in bars]}))
    else:
        show(rows, bars)
    planted = [b for b in bars if b.asks.startswith("planted")]
    record.keep(
        given.record,
        [
            record.claim(b.of, b.asks, b.found, "" if b.holds is None else "holds", b.holds)
            for b in bars
            if b not in planted
        ],
        {f"{b.of}: {b.asks.removeprefix('planted: ')}": b.holds for b in planted},
        ABOUT,
    )
    if any(b.holds is False for b in planted):
        return 1
    return 0 if all(b.holds is not False for b in bars) else 3


if __name__ == "__main__":
    sys.exit(main())
