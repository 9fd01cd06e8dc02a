"""The fio validation grid: specified and delivered rates on every back end and data path.

`studies/validation_grid.py` makes the runs of `studies/validation-grid*.study.yaml` on emulated disks
(`fuse`), the same cells on loop devices throttled by the blkio hierarchy (`cgroup1`) and, with `--guest`, by
`io.max` in a virtual machine with a current kernel (`cgroup2`); then it prints the criteria. Every run
includes planted failures: a limit set 5 % wrong, a disk 5 % slow, a host with two busy loops per core.
Existing results are not measured again. `--full`: the complete factorial on throttled disks (hours). Needs
root and fio. After section 3.3.3 of A. Saif, Experimental Methods for the Evaluation of Big Data Systems
(2020). Exit status 3 if a claim is not met or not measured (a cell without a valid run), 1 if something
failed or a planted failure is not detected. `--only` and `--guest` select the back ends, and with them the
claims.
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

from matplotlib.figure import Figure

from penstock.emulate.backends.choice import missing_here
from penstock.errors import PenstockError
from penstock.report import style

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "blackbox"))
sys.path.insert(0, str(HERE / "validation-grid"))
sys.path.insert(0, str(HERE.parent))

from cells import MB, Cell, crossed, full, some, sustained  # noqa: E402
from cells import quick as quick_cells  # noqa: E402
from disks import finish  # noqa: E402
from judge import (  # noqa: E402
    Planned,
    Row,
    as_dicts,
    criteria,
    fuse_rows,
    kind_of,
    notes,
    planted_limits,
    throttled_rows,
)
from planted import busy_host, slow_disk  # noqa: E402

from bench import record  # noqa: E402
from penstock.design.plan import make_plan  # noqa: E402
from penstock.study.load import load_study  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.common.published_figures import Rate, rate_ratios, save  # noqa: E402

LIMITS = {"512k": 512e3, "1m": 1e6, "4m": 4e6, "16m": 16e6, "64m": 64e6}
STUDIES = ("", "-limits", "-shape")
ABOUT = (
    "On `fuse`, delivered is what the disk server's own log says, against the draws that it made; fio's own "
    "rate is judged beside it, and its times void a run that they contradict. A cell is one direction of a "
    "run."
)
#: runs of each study under --quick: its smallest version
QUICK = {
    "": ["factors.engine={levels: [sync, io_uring]}", "factors.pattern={levels: [read, write]}"],
    "-shape": ["factors.shape={levels: [lognormal-2ms, constant-1ms-4]}",
               "factors.depth={levels: [1, 4]}", "factors.pattern={levels: [randread, randwrite]}"],
}  # fmt: skip


def on_fuse(out: Path, quick: bool) -> list[Row]:
    """The studies on emulated disks."""
    rows: list[Row] = []
    for name in STUDIES:
        if quick and name != "":
            continue
        runs = out / f"fuse{name}{'-quick' if quick else ''}"
        overrides = ["--quick", *(w for s in QUICK[name] for w in ("--set", s))] if quick else []
        finish(HERE / f"validation-grid{name}.study.yaml", runs, overrides)
        rows += fuse_rows(runs, limit_of={} if name == "-shape" else LIMITS)
    return rows


#: length of the cells of the studies `` and `-limits` at their limit, and of `-shape` [s]
LONGEST_S, SHAPE_S = 4.0, 6.0


def planned_on_fuse() -> list[Planned]:
    """Cells of all studies on emulated disks."""
    planned = []
    for name in STUDIES:
        for row in make_plan(load_study(HERE / f"validation-grid{name}.study.yaml")).rows:
            levels = {factor: str(level) for factor, level in row.levels.items()}
            engine, pattern = levels.get("engine", ""), levels["pattern"]
            direct = levels.get("path", "direct") == "direct"
            if engine == "mmap" and direct:
                continue  # this combination has no cell
            seconds = SHAPE_S if name == "-shape" else LONGEST_S
            if name == "-limits":
                seconds = min(LONGEST_S, float(levels["size"]) * MB / LIMITS[levels["limit"]])
            kind = kind_of(engine, pattern, direct, "write" if "write" in pattern else "read")
            cell = " ".join(levels.values())
            planned.append(Planned("fuse", cell, kind, seconds, name == "-shape"))
    return planned


def planned_on_throttles(backend: str, cells: list[Cell]) -> list[Planned]:
    """Cells of the grid on throttled disks."""
    planned = []
    for cell in cells:
        if cell.planted or (backend == "cgroup1" and not honoured(cell)):
            continue
        kind = kind_of(cell.engine, cell.pattern, cell.direct, cell.directions[-1])
        planned.append(Planned(backend, cell.name, kind, cell.bytes / cell.limit_bps))
    return planned


def honoured(cell: Cell) -> bool:
    """True if the blkio hierarchy controls the cell: it refuses buffered writes."""
    return cell.direct or cell.directions == ("read",)


def cells_of(seconds: float, quick: bool, complete: bool, guest: bool = False) -> list[Cell]:
    """The cells of throttled disks, and a planted failure; fewer in the guest, unless all are requested."""
    planted = replace(
        sustained(seconds, Cell("psync", "read", True, 4 * MB, 64 * MB)), planted=0.05
    )
    if quick:
        few = [c for c in quick_cells(seconds) if c.engine == "io_uring"]
        return [*few, planted]
    chosen = full if complete else some if guest else crossed
    return [*chosen(seconds), planted]


def on_host(out: Path, cells: list[Cell], workers: int) -> list[Row]:
    """Throttled by the blkio hierarchy of this host."""
    stored = out / "cgroup1.json"
    if not stored.exists():
        cells = [c for c in cells if honoured(c)]
        with tempfile.TemporaryDirectory(prefix="penstock-grid-") as place:
            (Path(place) / "cells.json").write_text(json.dumps([asdict(c) for c in cells]))
            argv = [sys.executable, HERE / "validation-grid" / "throttled.py", "cgroup1",
                     place, Path(place) / "cells.json", str(workers)]  # fmt: skip
            result = subprocess.run(list(map(str, argv)), stdout=subprocess.PIPE, text=True)
            if result.returncode != 0:
                raise PenstockError("the cells on throttled disks of this host failed")
        stored.write_text(_result(result.stdout))
    return throttled_rows(json.loads(stored.read_text()))


def in_guest(out: Path, cells: list[Cell], workers: int) -> list[Row]:
    """Throttled by `io.max` in the guest."""
    import guest

    stored = out / "cgroup2.json"
    if not stored.exists():
        stored.write_text(_result(guest.run(cells, out / "guest", workers)))
    return throttled_rows(json.loads(stored.read_text()))


def lacking(backend: str) -> str:
    """Reason why this host cannot run the cells of a back end; empty if it can."""
    if backend == "cgroup2":
        import guest

        return guest.missing()
    return missing_here()[backend] if backend == "cgroup1" else ""


def _result(text: str) -> str:
    line = next((x for x in text.splitlines() if x.startswith("RESULT ")), None)
    if line is None:
        raise PenstockError(f"no result: {text[-500:]}")
    return line.removeprefix("RESULT ")


def show_unusable(rows: list[Row]) -> None:
    """Cells that are not valid, with the reason, and figures without a goal."""
    missed = [r for r in rows if not r.planted and not r.valid]
    for row in missed[:20]:
        print(f"not used: {row.backend} {row.cell}: {row.reason[:120]}", file=sys.stderr)
    if len(missed) > 20:
        print(f"not used: {len(missed) - 20} more", file=sys.stderr)
    for backend, subject, figure in notes(rows):
        print(f"{backend}: {subject}: {figure}")


def described(evidence: tuple[str, str, bool]) -> tuple[str, bool]:
    """Planted failure, its figure, and true if it was detected."""
    wording, figure, detected = evidence
    return f"fuse: {wording.removeprefix('planted: ')} ({figure})", detected


def main() -> int:
    """Exit status: 0 every claim is met, 1 something failed, 3 a claim is not met or not measured."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("-o", "--out", type=Path, default=HERE.parent / "out" / "validation-grid")
    options.add_argument("--quick", action="store_true", help="a few cells, half a minute")
    options.add_argument("--guest", action="store_true", help="io.max in the guest as well")
    options.add_argument("--only", choices=("fuse", "cgroup1", "cgroup2", "planted"))
    options.add_argument("--full", action="store_true", help="the complete factorial on throttles")
    options.add_argument("--seconds", type=float, help="longest cell on throttled disks")
    options.add_argument(
        "--workers", type=int, default=4, help="number of concurrent throttled cells"
    )
    options.add_argument("--figures", type=Path, help="directory of the SVG file (default OUT)")
    options.add_argument("--json", action="store_true", help="the result as one object")
    record.option(options)
    arguments = options.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    seconds = arguments.seconds or (4.5 if arguments.quick else 6.0)
    cells = cells_of(seconds, arguments.quick, arguments.full)
    in_guest_cells = cells_of(arguments.seconds or 6.0, arguments.quick, arguments.full, guest=True)
    backends = (
        [arguments.only]
        if arguments.only
        else ["fuse", "cgroup1", *(["cgroup2"] if arguments.guest else [])]
    )
    parts: dict[str, Callable[[], list[Row]]] = {
        "fuse": lambda: on_fuse(out, arguments.quick),
        "cgroup1": lambda: on_host(out, cells, arguments.workers),
        "cgroup2": lambda: in_guest(out, in_guest_cells, min(2, arguments.workers)),
    }
    planned: list[Planned] = []
    rows: list[Row] = []
    planted: dict[str, bool | None] = {}
    try:
        for name in (n for n in backends if n in parts):
            planned += planned_of(name, seconds, arguments.full)
            if reason := lacking(name):
                print(f"validation-grid: {name}: {reason}", file=sys.stderr)
            else:
                rows += parts[name]()
        if arguments.only in (None, "planted"):
            planted |= dict([described(slow_disk()), described(busy_host())])
    except PenstockError as error:
        print(f"validation-grid: {error}", file=sys.stderr)
        return 1
    claims = criteria(rows, planned)
    planted |= planted_limits(rows)
    if rows:
        with style.look():
            save(ratio_figure(rows), (arguments.figures or out) / "validation-grid.svg")
    if arguments.json:
        document = {"rows": as_dicts(rows), "claims": checks.as_json(claims), "planted": planted}
        print(json.dumps(document))
    else:
        show_unusable(rows)
        checks.show(claims)
    without_goal = [record.claim(*note, "", None) for note in notes(rows)]
    record.keep(arguments.record, [*checks.rows(claims), *without_goal], planted, ABOUT)
    if arguments.only == "planted":
        return int(not all(planted.values()))
    return checks.finish("validation-grid", claims, planted)


def ratio_figure(rows: list[Row]) -> Figure:
    """Rates by fio over the limits, in the form of the published figures 3.4 to 3.6."""
    return rate_ratios(
        Rate(r.backend, r.kind, r.limit_bps, r.program, r.verdict == "device-bound")
        for r in rows
        if not r.planted and r.verdict != "failed"
    )


def planned_of(backend: str, seconds: float, complete: bool) -> list[Planned]:
    """Cells of the grid on a back end, those of `--quick` or not."""
    if backend == "fuse":
        return planned_on_fuse()
    cells = cells_of(seconds, False, complete, guest=backend == "cgroup2")
    return planned_on_throttles(backend, cells)


if __name__ == "__main__":
    sys.exit(main())
