"""Time to write 10 M points of an experiment to a file, by `penstock monitor get` and `penstock export`.

The experiment has 10 M points, once in one series and once in 100 with the same times. Each command runs as a
user would run it, and is timed from its start to the end of its process. Each file must contain every point.
Planted failure: a file without its last row. Exit status 1 if a goal is missed, a point is missing, or the
planted failure is not detected.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq

from bench import record
from penstock.archive.catalogue import Catalogue, local_user
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Batch, canonical_labels, points

POINTS = 10_000_000
#: limit for 10 M points [s]
MOST_S = 10.0
T0_NS, STEP_NS = 1_700_000_000_000_000_000, 10_000_000
EACH = 1_000_000


def make(home: Path, name: str, series: int, total: int) -> None:
    """Create an experiment of N points in total, with values of six digits, like those of a disk."""
    store = Experiments(Catalogue(home / "archive.sqlite"), home / "experiments")
    (home / "experiments").mkdir(mode=0o700, exist_ok=True)
    rows = total // series
    experiment = store.start(name, local_user(), at_ns=T0_NS)
    rng = np.random.default_rng(1)
    number = 0
    for series_number in range(series):
        labels = canonical_labels({"node": f"n{series_number:03d}"})
        for low in range(0, rows, EACH):
            at = np.arange(low, min(rows, low + EACH), dtype=np.int64)
            values = np.round(rng.uniform(0, 100, len(at)), 4)
            table = points(
                metric="disk_busy",
                labels=labels,
                unit="%",
                utc_ns=T0_NS + at * STEP_NS,
                float=values,
            )
            store.sink(experiment).write(Batch("nodes", number, table))
            number += 1
    store.stop(experiment, at_ns=T0_NS + rows * STEP_NS)


def of_csv(path: Path) -> int:
    """Number of cells with a value, without the first column."""
    table = pyarrow.csv.read_csv(path)
    return sum(len(c) - c.null_count for c in table.columns[1:])


def of_parquet(path: Path) -> int:
    table = pq.read_table(path)
    return sum(len(c) - c.null_count for c in table.columns[1:])


def of_share(path: Path) -> int:
    """Number of points in the exported file."""
    with tempfile.TemporaryDirectory(prefix="penstock-export-", dir=path.parent) as place:
        plain = Path(place) / "it.tar"
        subprocess.run(["zstd", "-qd", str(path), "-o", str(plain)], check=True)
        with tarfile.open(plain) as packed:
            (name,) = (n for n in packed.getnames() if n.endswith("/points.parquet"))
            packed.extract(name, place, filter="data")
        return pq.read_metadata(Path(place) / name).num_rows


def without_last_row(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: content[:-1].rfind(b"\n") + 1])


#: case → arguments of the command, its file, number of points in it
Way = tuple[Callable[[str, Path], list[str]], str, Callable[[Path], int]]
WAYS: dict[str, Way] = {
    "monitor get, CSV": (
        lambda x, f: ["monitor", "get", x, "-m", "disk_busy", "-o", str(f)],
        "x.csv",
        of_csv,
    ),
    "monitor get, Parquet": (
        lambda x, f: ["monitor", "get", x, "-m", "disk_busy", "--format", "parquet", "-o", str(f)],
        "x.parquet",
        of_parquet,
    ),
    "export, a directory of CSV": (
        lambda x, f: ["export", x, "csv", "-o", str(f)],
        "x",
        lambda f: of_csv(f / "disk_busy.csv"),
    ),
    "export, one file of everything": (
        lambda x, f: ["export", x, str(f)],
        "x.tar.zst",
        of_share,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="1 M points, a tenth of the time limits"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    total = POINTS // 10 if arguments.quick else POINTS
    rows, planted = [], {}
    with tempfile.TemporaryDirectory(prefix="penstock-export-") as scratch:
        home = Path(scratch)
        environment = {**os.environ, "PENSTOCK_STATE": scratch}
        for name in ("PENSTOCK_ARCHIVE", "PENSTOCK_CATALOGUE", "PENSTOCK_SERVER"):
            environment.pop(name, None)
        for series in (1, 100):
            make(home, f"x{series}", series, total)
            for command, (arguments_of, file, counted) in WAYS.items():
                times_s = []
                for repeat in range(arguments.repeats):
                    place = home / f"out{series}-{repeat}"
                    place.mkdir(exist_ok=True)
                    line = [
                        sys.executable,
                        "-m",
                        "penstock",
                        *arguments_of(f"x{series}", place / file),
                    ]
                    began = time.monotonic()
                    subprocess.run(line, env=environment, check=True, stdout=subprocess.DEVNULL)
                    times_s.append(time.monotonic() - began)
                point_count = counted(home / f"out{series}-0" / file)
                case = f"{total / 1e6:g} M points in {series} series: {command}"
                time_row = record.row(case, "penstock", "wall time", times_s, "s")
                # for a tenth of the points, the start of the process takes as long
                limit_s = MOST_S / 10 + 2 if arguments.quick else MOST_S
                rows.append(record.at_most(time_row, limit_s))
                planted[f"{case}: every point is there"] = point_count == total
            without_last_row(home / f"out{series}-0" / "x.csv")
            short = of_csv(home / f"out{series}-0" / "x.csv") == total
            planted[f"{series} series: a file without its last row"] = not short
    status = record.report(rows, planted, as_json=arguments.json)
    record.keep(arguments.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
