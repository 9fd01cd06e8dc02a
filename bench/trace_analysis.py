"""A long trace from Parquet to verdicts: time, peak memory, bytes per event, and correctness.

The bundle has the real schema, nine files of different classes and a dozen threads; it is created once and
cached. The classification runs in a separate process, so that its peak memory is its own. Planted failure: a
small bundle with the requests of one file in another order, which must get another verdict. Exit status 1 if
it does not, if a verdict is wrong, or if a goal of the full size is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.archive.bundle import Bundle
from penstock.observe.trace.capture.events import DIRECTIONS, ENCODINGS, NUMBERS, SCHEMA

Array = npt.NDArray[np.int64]

EVENTS = 100_000_000
QUICK = 5_000_000
PLANTED = 1_000_000
#: the goals for 100 million events: seconds, GB
MOST_S, MOST_GB = 10.0, 2.0
PART = 1_000_000
KIB = 1024
#: share of the events on each file, in the order of FILES
SHARES = (0.2, 0.2, 0.15, 0.1, 0.05, 0.1, 0.1, 0.02, 0.08)


class Streams:
    """The next requests of each file: offsets that continue from part to part."""

    def __init__(self, total: int) -> None:
        self.draws = np.random.default_rng(4)
        self.done = np.zeros(10, np.int64)  # requests so far, by file
        self.ends = np.zeros((10, 4), np.int64)  # of each file's streams
        self.total = total
        blocks = 100_000
        self.zipf = np.cumsum(np.arange(1, blocks + 1) ** -1.2)
        self.where = self.draws.permutation(blocks)

    def consecutive(self, file: int, n: int) -> Array:
        return (self.done[file] + np.arange(n)) * 64 * KIB

    def random(self, file: int, n: int) -> Array:
        return self.draws.integers(0, 1 << 22, n) * 4 * KIB

    def hot(self, file: int, n: int) -> Array:
        ranks = np.searchsorted(self.zipf, self.draws.random(n) * self.zipf[-1])
        return self.where[np.minimum(ranks, len(self.where) - 1)] * 4 * KIB

    def streams(self, file: int, n: int) -> Array:
        stream_of = self.draws.integers(0, 4, n)
        return self._own(file, stream_of)

    def strided(self, file: int, n: int) -> Array:
        return (self.done[file] + np.arange(n)) * 1024 * KIB

    def gaps(self, file: int, n: int) -> Array:
        steps = 8 * KIB + self.draws.integers(0, 33, n) * KIB
        offsets = self.ends[file, 0] + np.cumsum(steps) - steps
        self.ends[file, 0] += steps.sum()
        return offsets

    def halves(self, file: int, n: int) -> Array:
        """Consecutive, then random from the middle on."""
        number = self.done[file] + np.arange(n)
        middle = round(self.total * SHARES[6] / 2)
        return np.where(number < middle, number * 4 * KIB, self.random(file, n) + (1 << 40))

    def reverse(self, file: int, n: int) -> Array:
        return (1 << 44) - (self.done[file] + np.arange(n)) * 16 * KIB

    def _own(self, file: int, stream_of: Array) -> Array:
        offsets = np.zeros(len(stream_of), np.int64)
        for stream in range(4):
            selected = stream_of == stream
            count = int(selected.sum())
            begin = self.ends[file, stream] + (stream << 36)
            offsets[selected] = begin + np.arange(count) * 16 * KIB
            self.ends[file, stream] += count * 16 * KIB
        return offsets


#: method, size, operation, thread(s), verdict
FILES: list[tuple[Callable[[Streams, int, int], Array], int, str, int, str]] = [
    (Streams.consecutive, 64 * KIB, "read", 11, "consecutive"),
    (Streams.random, 4 * KIB, "pread64", 12, "random"),
    (Streams.hot, 4 * KIB, "pread64", 13, "hot-set"),
    (Streams.streams, 16 * KIB, "pread64", 15, "interleaved"),
    (Streams.strided, 4 * KIB, "pread64", 16, "strided"),
    (Streams.gaps, 8 * KIB, "pwrite64", 17, "sequential"),
    (Streams.halves, 4 * KIB, "pread64", 18, "mixed"),
    (Streams.reverse, 16 * KIB, "pread64", 19, "reverse"),
    (Streams.streams, 16 * KIB, "pread64", 21, "interleaved"),  # a thread for each stream
]


def part(streams: Streams, first: int, n: int, t_ns: int, planted: bool) -> pa.Table:
    """The next events, as the tracer would write them; planted: the first file in random order."""
    draws = streams.draws
    file = draws.choice(len(FILES), n, p=SHARES).astype(np.int64)
    columns = {name: np.zeros(n, np.int64) for name in ("offset", "size", "op", "tid")}
    names = list(NUMBERS)
    for index, (offsets, size, op, tid, _) in enumerate(FILES):
        selected = file == index
        count = int(selected.sum())
        starts = offsets(streams, index + 1, count)
        if planted and index == 0:
            draws.shuffle(starts)
        columns["offset"][selected] = starts
        columns["size"][selected] = size
        columns["op"][selected] = names.index(op)
        columns["tid"][selected] = tid + ((starts >> 36) if tid == 21 else 0)
        streams.done[index + 1] += count
    pairs = file == 2  # two threads share the hot file
    columns["tid"][pairs] += draws.integers(0, 2, int(pairs.sum()))
    t = t_ns + np.cumsum(draws.exponential(3000, n)).astype(np.int64)
    op = columns["op"].astype(np.int8)
    direction = (np.array(list(NUMBERS.values()))[op] // 32).astype(np.int8)
    same = np.zeros(n, np.int64)
    values = {
        "t_ns": t,
        "seq": np.arange(first, first + n, dtype=np.uint64),
        "op": pa.DictionaryArray.from_arrays(pa.array(op), pa.array(names)),
        "direction": pa.DictionaryArray.from_arrays(pa.array(direction), pa.array(DIRECTIONS)),
        "file_id": file + 1,
        "offset_bytes": columns["offset"],
        "size_bytes": columns["size"],
        "done_bytes": columns["size"],
        "errno": same,
        "latency_ns": (draws.lognormal(0, 0.5, n) * 90_000).astype(np.int64),
        "pid": same + 10,
        "tid": columns["tid"],
        "cgroup_id": same.astype(np.uint64) + 4242,
        "flags": same + 1,
    }
    return pa.table([pa.array(values[name]) for name in SCHEMA.names], schema=SCHEMA)


def make(place: Path, events: int, planted: bool = False) -> None:
    """Create the bundle, once."""
    streams, written, t_ns = Streams(events), 0, 10**9
    with (
        Bundle.create(place, {"run_id": "r001"}) as bundle,
        bundle.table_writer("io_events", SCHEMA, ENCODINGS) as writer,
    ):
        while written < events:
            table = part(streams, written, min(PART, events - written), t_ns, planted)
            t_ns = table["t_ns"][-1].as_py()
            writer.write(table)
            written += table.num_rows
            print(
                f"\rmaking {written / 1e6:.0f} M of {events / 1e6:.0f} M", end="", file=sys.stderr
            )
    print(file=sys.stderr)


def faults(rows: list[dict[str, Any]], events: int) -> list[str]:
    """Wrong verdicts."""
    by_file = {row["file_id"]: row for row in rows}
    wrong = []
    for index, (*_, kind) in enumerate(FILES):
        row = by_file.pop(index + 1)
        verdict = row["together"]
        if verdict["class"] != kind:
            wrong.append(f"file {index + 1}: {verdict['class']} for {kind}")
        if kind == "interleaved" and verdict["k"] != 4:
            wrong.append(f"file {index + 1}: {verdict['k']} streams for 4")
        if kind == "mixed" and verdict["class"] == kind:
            middle, n = events * SHARES[index] / 2, verdict["requests"]
            border = verdict["evidence"]["phases"][1]["first"]
            if abs(border - middle) > 0.01 * n:
                wrong.append(f"file {index + 1}: border {border} for {middle}")
    threads = {t["tid"]: t["class"] for row in rows if row["file_id"] == 9 for t in row["threads"]}
    if threads != dict.fromkeys(range(21, 25), "consecutive"):
        wrong.append(f"threads of file 9: {threads}")
    if sum(row["calls"] for row in rows) != events:
        wrong.append(f"{sum(row['calls'] for row in rows)} calls for {events}")
    return wrong + [f"file {number} is not there" for number in by_file]


def judge_here(place: Path) -> None:
    """In a separate process: JSON with seconds, peak memory, faults."""
    begin_s = time.perf_counter()
    from penstock.archive.traces.trace_tables import TraceTables
    from penstock.observe.trace.verdicts.rejudge import judge_run

    rows = judge_run(TraceTables(place, {}), os.cpu_count() or 1)
    seconds = time.perf_counter() - begin_s
    peak = int(
        next(
            line.split()[1]
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
    )
    events = pq.ParquetFile(place / "io_events.parquet").metadata.num_rows
    print(
        json.dumps({"seconds": seconds, "peak_bytes": peak * 1024, "wrong": faults(rows, events)})
    )


def judge_in_subprocess(place: Path) -> dict[str, Any]:
    """One classification in a separate process: seconds, peak_bytes, wrong."""
    result = subprocess.run(
        [sys.executable, __file__, "--judge", str(place)],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(result.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 M events instead of 100 M")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/penstock/bench")
    parser.add_argument("--again", action="store_true", help="create the bundle again")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="number of evaluations (3)")
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    record.option(parser)
    arguments = parser.parse_args()
    if arguments.judge:
        judge_here(arguments.judge)
        return
    events = QUICK if arguments.quick else EVENTS
    place = arguments.cache / f"events-{events}"
    if arguments.again:
        shutil.rmtree(place, ignore_errors=True)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        make(place, events)
    size = (place / "io_events.parquet").stat().st_size
    results = [judge_in_subprocess(place) for _ in range(arguments.rounds)]
    wrong = [fault for f in results for fault in f["wrong"]]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        make(Path(folder) / "planted", PLANTED, planted=True)
        planted_faults = judge_in_subprocess(Path(folder) / "planted")["wrong"]
    detected = any(fault.startswith("file 1:") for fault in planted_faults)
    case = f"{events:,} events, file in the page cache"
    time_row = record.row(case, "", "time to verdicts", [f["seconds"] for f in results], "s")
    memory_row = record.row(case, "", "peak memory", [f["peak_bytes"] / 1e9 for f in results], "GB")
    if not arguments.quick:
        time_row = record.at_most(time_row, MOST_S)
        memory_row = record.at_most(memory_row, MOST_GB)
    rows = [
        time_row,
        memory_row,
        record.row(case, "", "on disk", [size / events], "B/event"),
        record.at_most(record.row(case, "", "wrong verdicts", [len(wrong)], ""), 0),
    ]
    if arguments.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            spread = f"[{row['low']:.3g}, {row['high']:.3g}], n={row['n']}"
            print(f"{row['case']}: {row['metric']} {row['value']:.3g} {row['unit']} {spread}")
        for line in wrong:
            print("  wrong:", line)
    outcome = "found" if detected else "NOT FOUND"
    print(
        f"planted, a file in another order: {outcome} ({'; '.join(planted_faults)})",
        file=sys.stderr,
    )
    record.keep(arguments.record, rows, {"a file in another order": detected})
    missed = any(row.get("verdict") == record.MISSED for row in rows)
    sys.exit(1 if missed or not detected else 0)


if __name__ == "__main__":
    main()
