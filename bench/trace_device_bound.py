"""Overhead of tracing for programs that wait for their device: every mode and no tracer, in interleaved
rounds.

Each round runs the generator once with every mode, forwards and backwards in turn (AB/BA), so that a mode and
`none` of one round are a pair. Two results per case and mode, against the limit of 0.8 %:

- computed: events × added processor time per event (measured first, on cached reads) over the generator's
  time; the events of starting its server count too
- paired: time with over time without, with its 95 % interval

`met`: the upper end is at most the limit; `missed`: the lower end is above it; otherwise `undecided`. Time is
that of the generator's own clock. The emulated drive serves equal requests in equal times, so that pairs on
it differ less than on the device of a shared machine. Planted failures: a generator with five hundredths more
work on a small emulated drive, and reads with 20 more system calls each, taken for an event of which there
are 20,000 a second. Exit status 0 if all are met, 1 if a goal is missed or a planted failure is not detected,
3 if undecided.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parent / "device_bound"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cases import Case, Direct, Postgres, Rocks, missing

from bench import record
from penstock.emulate.disks.server import DiskServer
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import start_daemon
from penstock.host.processes.launch import launch
from penstock.observe.trace import MODES
from penstock.profile import load_profile

LIMIT = 0.008
TIME_SCALE = 4.0
GIB = 1 << 30
MIB = 1 << 20
RING_BYTES = 8 * MIB

FULL = {
    "direct, host's device": {"file": GIB, "bytes": 2 * GIB},
    "direct, emulated drive": {"file": GIB, "bytes": 256 * MIB},
    "rocksdb, emulated drive": {"entries": 400_000, "reads": 8_000},
    "postgres, emulated drive": {"scale": 20, "transactions": 6_000},
    "postgres, rate-limited": {"scale": 20, "transactions": 2_000, "rate": 250},
}
QUICK = {
    "direct, host's device": {"file": 64 * MIB, "bytes": 128 * MIB},
    "direct, emulated drive": {"file": 64 * MIB, "bytes": 16 * MIB},
    "rocksdb, emulated drive": {"entries": 100_000, "reads": 800},
    "postgres, emulated drive": {"scale": 8, "transactions": 500},
    "postgres, rate-limited": {"scale": 8, "transactions": 250, "rate": 250},
}
KINDS = {"direct": Direct, "rocksdb": Rocks, "postgres": Postgres}
MEMORY = {"direct": None, "rocksdb": 96 * MIB, "postgres": 96 * MIB}
#: planted: additional work, and system calls per read at N events per second
MORE, PLANTED_PAIRS, CALLS, EVENTS_PER_S = 0.05, 8, 20, 20_000
PLANTED = "planted"


@dataclass(frozen=True)
class Sample:
    """One run: generator's time [s], 99.9th percentile [ns] if known, the receipt if traced."""

    time_s: float
    p999_ns: float | None
    receipt: dict[str, Any]


class Bench:
    """Run generators with and without the tracer."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.journal = Journal()

    @contextlib.contextmanager
    def traced(self, mode: str, memory_bytes: int | None = None) -> Any:
        """A control group traced in `mode`; yields it with a dictionary that finally contains the receipt."""
        receipt: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(create_run_cgroup("bench", memory_bytes, self.journal))
            daemon = None
            if mode != "none":
                config = {"mode": mode, "ring_bytes": RING_BYTES}
                daemon = stack.enter_context(start_daemon("tracer", config, self.journal))
                places = {name: str(self.directory / name) for name in ("spool", "files")}
                daemon.call("arm", cgroup_id=group.cgroup_id, **places)
            yield group, receipt
            if daemon is not None:
                receipt |= daemon.call("disarm")

    def run(self, case: Case, mode: str) -> Sample:
        """Run the generator once."""
        with self.traced(mode, case.memory_bytes) as (group, receipt):
            time_s, p999_ns = case.run(group, self.directory / "answer")
        return Sample(time_s, p999_ns, receipt)

    def calibrate(self, modes: list[str], rounds: int, operations: int) -> dict[str, Interval]:
        """Added processor time per event of each mode [ns], on cached reads of 4 KiB, paired by round; also
        of the planted calls.
        """
        program = self.directory / "cached_read"
        source = Path(__file__).with_name("cached_read.c")
        subprocess.run(["cc", "-O2", "-o", program, source], check=True)
        file = self.directory / "cached"
        file.write_bytes(bytes(4 * MIB))
        took: dict[str, list[float]] = {mode: [] for mode in ("none", PLANTED, *modes)}
        for number in range(rounds):
            for mode in order(number, list(took)):
                answer = self.directory / "answer"
                argv = [str(program), str(file), str(operations)]
                argv += ["-", str(CALLS)] if mode == PLANTED else []
                with self.traced("none" if mode == PLANTED else mode) as (group, _):
                    launch(argv, group, stdout=answer)
                cpu_ns, _wall_ns, _late_ns = map(float, answer.read_text().split()[-3:])
                took[mode].append(cpu_ns)
        return {m: interval(np.subtract(took[m], took["none"])) for m in (PLANTED, *modes)}


@dataclass(frozen=True)
class Interval:
    """Median of pairs with its 95 % interval."""

    value: float
    low: float
    high: float

    def verdict(self) -> str:
        """Verdict relative to the limit."""
        if self.high < LIMIT:
            return record.MET
        return record.MISSED if self.low > LIMIT else record.UNDECIDED


def interval(values: Any) -> Interval:
    """Median and its interval by order statistics (exact, Conover 1999, section 3.2)."""
    x = sorted(float(v) for v in values)
    n = len(x)
    rank = int(stats.binom.ppf(0.025, n, 0.5)) - 1
    if rank < 0:  # too few pairs for an interval
        return Interval(statistics.median(x), float("-inf"), float("inf"))
    return Interval(statistics.median(x), x[rank], x[n - 1 - rank])


def order(number: int, modes: list[str]) -> list[str]:
    """Forwards and backwards in turn, each pair of rounds beginning with another mode."""
    turn = number // 2 % len(modes)
    turned = modes[turn:] + modes[:turn]
    return turned if number % 2 == 0 else turned[::-1]


def judge(case: str, mode: str, rounds: list[dict[str, Sample]], cost: Interval) -> dict[str, Any]:
    """One row: computed and paired overhead as shares of time."""
    pairs = [(samples[mode], samples["none"]) for samples in rounds]
    paired = interval([on.time_s / off.time_s - 1 for on, off in pairs])
    shares = [on.receipt["kept"] / on.time_s for on, _ in pairs]
    per_s = statistics.median(shares)
    computed = Interval(*(per_s * ns / 1e9 for ns in (cost.value, cost.low, cost.high)))
    row: dict[str, Any] = {
        "case": case,
        "mode": mode,
        "pairs": len(pairs),
        "events_per_s": per_s,
        "ns_per_event": [cost.value, cost.low, cost.high],
        "computed": [computed.value, computed.low, computed.high],
        "computed_verdict": computed.verdict(),
        "paired": [paired.value, paired.low, paired.high],
        "paired_verdict": paired.verdict(),
        "lost": sum(on.receipt["lost"] for on, _ in pairs),
        "reader_cpu_share": statistics.median(
            on.receipt["cpu_ns"] / 1e9 / on.time_s for on, _ in pairs
        ),
    }
    tails = [
        on.p999_ns / off.p999_ns for on, off in pairs if on.p999_ns is not None and off.p999_ns
    ]
    if tails:
        tail = interval(tails)
        row["p999_ratio"] = [tail.value, tail.low, tail.high]
    return row


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows, and the verdicts on the planted failures."""
    sizes = QUICK if arguments.quick else FULL
    rounds = arguments.rounds or (2 if arguments.quick else 15)
    modes = [m for m in ("count", "pattern", "trace") if m in MODES]
    absent = missing()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="penstock-device-", dir=arguments.directory) as name:
        base = Path(name)
        base.chmod(0o755)
        bench = Bench(base)
        operations = 50_000 if arguments.quick else 400_000
        costs = bench.calibrate(modes, max(rounds, 6), operations)
        with DiskServer(bench.journal, base / "state") as server:
            for label, size in sizes.items():
                kind = label.split(",")[0]
                if arguments.case and not any(text in label for text in arguments.case):
                    continue
                if kind in absent:
                    print(f"{label}: not run, needs {absent[kind]}", file=sys.stderr)
                    continue
                rows += one_case(bench, server, label, size, modes, rounds, costs)
            cost = costs[PLANTED]
            computed = (EVENTS_PER_S * ns / 1e9 for ns in (cost.value, cost.low, cost.high))
            planted = {
                "a generator with 5 % more to do": slower_generator(bench, server).verdict(),
                "an event that costs 20 system calls": Interval(*computed).verdict(),
            }
    return rows, planted


def slower_generator(bench: Bench, server: DiskServer) -> Interval:
    """The first planted failure: pairs of generators, one of which reads more."""
    size = QUICK["direct, emulated drive"]
    with generator(bench, server, "direct, emulated drive, planted", size) as case:
        more = Direct(case.name, case.mount, case.backing, {**size})
        more.size["bytes"] = round(size["bytes"] * (1 + MORE))
        ratios = []
        for number in range(PLANTED_PAIRS):
            turns = (more, case) if number % 2 else (case, more)
            seconds = {id(program): bench.run(program, "none").time_s for program in turns}
            ratios.append(seconds[id(more)] / seconds[id(case)] - 1)
    return interval(ratios)


@contextlib.contextmanager
def generator(bench: Bench, server: DiskServer, label: str, size: dict[str, int]) -> Iterator[Case]:
    """A case with its data, on an emulated drive unless it needs the host's device; run once to warm up."""
    kind = label.split(",")[0]
    ground = bench.directory / label.replace(", ", "-").replace(" ", "-").replace("'", "")
    places = {name: ground / name for name in ("backing", "mount")}
    for place in places.values():
        place.mkdir(parents=True)
    emulated = "host" not in label
    mount = places["mount"] if emulated else places["backing"]
    case = KINDS[kind](label, mount, places["backing"], size, MEMORY[kind])
    case.prepare()
    if emulated:
        profile = load_profile("px05smb040").scaled(TIME_SCALE)
        memory = MEMORY[kind]
        server.add(
            label.replace(" ", "-"),
            places["mount"],
            places["backing"],
            profile,
            memory_bytes=memory,
        )
    try:
        bench.run(case, "none")  # not counted
        yield case
    finally:
        if emulated:
            server.remove(label.replace(" ", "-"))


def one_case(
    bench: Bench,
    server: DiskServer,
    label: str,
    size: dict[str, int],
    modes: list[str],
    rounds: int,
    costs: dict[str, Interval],
) -> list[dict[str, Any]]:
    with generator(bench, server, label, size) as case:
        seen: list[dict[str, Sample]] = []
        for number in range(rounds):
            seen.append({m: bench.run(case, m) for m in order(number, ["none", *modes])})
            print(f"{label}: round {number + 1} of {rounds}", file=sys.stderr)
    return [judge(label, mode, seen, costs[mode]) for mode in modes]


def percent(values: list[float]) -> str:
    return f"{100 * values[0]:.3f} % [{100 * values[1]:.3f}, {100 * values[2]:.3f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds of small cases")
    parser.add_argument("--rounds", type=int, help="pairs per mode (15; quick 2)")
    parser.add_argument("--case", action="append", help="only cases whose name contains this text")
    parser.add_argument(
        "--directory", type=Path, help="directory of the data (default: a temporary one)"
    )
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    rows, planted = measure(arguments)
    if arguments.json:
        print(json.dumps({"limit": LIMIT, "rows": rows, "planted": planted}))
    else:
        for r in rows:
            print(
                f"{r['case']:<25} {r['mode']:<8} computed {percent(r['computed'])} {r['computed_verdict']}; "
                f"paired {percent(r['paired'])} {r['paired_verdict']} (n={r['pairs']}, "
                f"{r['events_per_s']:.0f} events/s, lost {r['lost']}, "
                f"reader {100 * r['reader_cpu_share']:.2f} % CPU)"
            )
    for failure, verdict in planted.items():
        print(f"planted, {failure}: {verdict} (to be {record.MISSED})", file=sys.stderr)
    results = {record.MISSED: True, record.MET: False, record.UNDECIDED: None}
    detected = {failure: results[verdict] for failure, verdict in planted.items()}
    record.keep(arguments.record, [row for r in rows for row in record_rows(r)], detected)
    verdicts = {r[which] for r in rows for which in ("computed_verdict", "paired_verdict")}
    if record.MISSED in verdicts or False in detected.values():
        return 1
    return 3 if record.UNDECIDED in verdicts or None in detected.values() else 0


def record_rows(case_row: dict[str, Any]) -> Iterator[record.Row]:
    """A row of the bench as two rows of the results."""
    for which, metric in (
        ("computed", "events × their cost, of the run"),
        ("paired", "longer than without, by pairs"),
    ):
        value, low, high = (100 * x for x in case_row[which])
        ends = {"low": low, "high": high} if abs(low) != float("inf") else {}
        yield {
            "case": f"{case_row['case']}, {case_row['events_per_s']:,.0f} events/s",
            "engine": f"mode {case_row['mode']}",
            "metric": metric,
            "value": value,
            "unit": "%",
            **ends,
            "n": case_row["pairs"],
            "spread": record.INTERVAL,
            "bar": f"at most {100 * LIMIT:g} %",
            "verdict": case_row[f"{which}_verdict"],
        }


if __name__ == "__main__":
    sys.exit(main())
