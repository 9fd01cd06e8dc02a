"""Write docs/experiments.md, published experiments and their results, from bench/results.

`python tools/experiments.py > docs/experiments.md`; with --check it compares the page and ends with 1 if it
is out of date. An experiment without a recorded result is *not measured*, independent of its program.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import record  # noqa: E402
from bench.measurements import RESULTS, Result, figure, results  # noqa: E402

PAGE = ROOT / "docs" / "experiments.md"
#: figures of one experiment in the table
MOST_SHOWN = 3


@dataclass(frozen=True)
class Experiment:
    """A published experiment, and the recorded rows that reproduce it.

    `rows`: expressions for `CASE: METRIC` of the rows that decide, each of which must match one; `shown`: of
    those in the table, by default the same. `note`: differences from the published experiment, or why there
    is no result. `differs`: the difference prevents a comparison. `simulated`: rows are predictions of the
    model.
    """

    where: str
    what: str
    published: str
    script: str = ""
    rows: tuple[str, ...] = ()
    shown: str = ""
    note: str = ""
    differs: bool = False
    simulated: bool = False


THESIS = "Saif 2020"
IOSTACK, COSTA, MYTILINIS = "IOStack 2015", "Costa 2014", "Mytilinis 2015"

EXPERIMENTS: Mapping[str, Sequence[Experiment]] = {
    THESIS: (
        Experiment(
            "figures 3.4 to 3.6, and Saif et al. 2019",
            "rates of fio under limits",
            "direct and buffered rates follow the limits of cgroup v2; buffered writes exceed 130 % with v1",
            "validation_grid",
            (r"off in the mean|: farthest off|mean error 1 %|all within 5 %|buffered writes",),
            r"off in the mean",
            "one size of memory; the device is not a factor; penstock refuses buffered writes with v1",
        ),
        Experiment(
            "listing 3.1",
            "requests move to the replica whose disk is fast",
            "no figures",
            "load_balance",
            (r"fast replica|s-0 slow|s-1 slow|blind clients",),
            r"fast replica|in more than",
        ),
        Experiment(
            "tables 3.1 and 3.2, figures 3.7 and 3.8, and Saif et al. 2019",
            "TeraSort on unequal disks, five settings",
            "120, one at 5, 60, half 60 and half 30, 30 MB/s: 8, 21, 24, 51, 84 min (hard disk)",
            "hadoop",
            (r"TeraSort|terasort",),
            r"TeraSort, .*: time$|terasort, .*: time$",
            "4 nodes instead of 25, limits and data scaled down",
        ),
        Experiment(
            "table 4.1, figure 4.2",
            "a trace of fio's engines and patterns shows each pattern",
            "five engines of system calls and mmap, six workloads each",
            "trace_coverage",
            (r"fio's",),
            r"^(sync|psync|pvsync2|posixaio): ",
            "mmap is compared in tests, not in this result",
        ),
        Experiment(
            "section 4.2.3.1",
            "run time that tracing adds",
            "less than 0.8 % over 70 GB",
            "trace_device_bound",
            (r"longer than without",),
            r"longer than without",
        ),
        Experiment(
            "figure 4.4",
            "an index build on one MongoDB server, SSD and hard disk",
            "6.3 times as fast on the SSD",
            note="no MongoDB server in the packages of Debian 12",
        ),
        Experiment(
            "figures 4.5, 4.7 and 4.8",
            "equal executions on two to four shards differ, and the order of reads explains which is slow",
            "a shard takes 3000 s where one server takes 1500 s",
            note="no MongoDB server; the disorder of a table is an input of `studies/storage_layout.py`",
        ),
        Experiment(
            "figure 4.9",
            "dump and reload of a table",
            "12.4 times (hard disk) and 2.8 times (SSD) as fast",
            "storage_layout",
            (r"^(wiredtiger|postgres): ",),
            r"times as fast after",
            "WiredTiger and PostgreSQL",
        ),
        Experiment(
            "section 4.3, two shards",
            "the time of a shard follows the order of its reads",
            "each shard's time corresponds to its pattern",
            "storage_layout",
            (r"^shuffled: ",),
        ),
        Experiment(
            "figures 4.10 and 4.11",
            "Cassandra reads in order and computes",
            "disk 30 % busy, two nodes take half of the time each",
            "storage_layout",
            (r"^cassandra",),
        ),
        Experiment(
            "tables 4.2 to 4.4",
            "rates of three SSDs by pattern and size",
            "16 rates of two drives, 8 of a third",
            "ssd_patterns",
            (r"published numbers",),
            note="the rates are the input of the profiles; the third drive has none",
            differs=True,
        ),
        Experiment(
            "figures 4.12, 4.14 and 4.15",
            "the gap of random reads closes with larger blocks, 16 jobs, or without read-ahead",
            "nine shapes",
            "ssd_patterns",
            (r"shapes that follow",),
            note="blocks of 4, 28, 64 and 256 KiB; emulated drives",
        ),
        Experiment(
            "figure 4.13",
            "I/O schedulers",
            "no difference for one process",
            "ssd_schedulers",
            (r"the rate is that without a scheduler",),
            note="a slow device of a virtual machine",
        ),
        Experiment(
            "table 4.5",
            "parameters of real drives",
            "read cache, write cache and read-ahead of three drives",
            note="read-ahead and write cache of emulated disks only",
        ),
        Experiment(
            "figure 5.2",
            "disk use and power of three shards that build an index",
            "disks 84, 82 and 67 % busy; 120 to 156 W",
            "monitored_shards",
            (r"simulated power|slower with monitoring",),
            note="PostgreSQL; power is simulated from the use of the disk",
            differs=True,
        ),
        Experiment(
            "figure 5.3",
            "a torrent of 100 peers",
            "100 series up to 100 %; peers that join later need less time",
            "monitored_swarm",
            (r"^series: ", r"^completion: ", r"^peers: ", r"^scrapes: "),
            r"monotone|joining",
        ),
        Experiment(
            "figure 5.4",
            "offsets of random reads by the number of the request",
            "a cloud without a shape; 29,275 of 32,768 blocks",
            "monitored_offsets",
            (r"^(random read|sequential control): ",),
            r"requests stored|correlation",
        ),
        Experiment(
            "section 6.3",
            "96 cells × 5 runs × 2 responses",
            "960 measurements",
            "nfs_wan",
            (r"^point 1: 96 cells",),
            note="the recorded result counts planned runs",
        ),
        Experiment(
            "figures 6.2 to 6.4",
            "NFS throughput by cell",
            "falls 7 to 19 times with latency",
            "nfs_wan",
            (r"^point 2: tmpfs is", r"^point 3: ", r"^point 4: ", r"^point 5: 1 MB is"),
            r"^point [34]: ",
            "an emulated processor: 14 to 20 MB/s",
        ),
        Experiment(
            "figure 6.5",
            "the largest effects are file size, storage, mode and latency",
            "E, B, C, F",
            "nfs_wan",
            (r"^point 6: ", r"^point 12: "),
            r"^point 12: ",
            "the recorded result has no point 12",
        ),
        Experiment(
            "table 6.2, figure 6.6",
            "eight runs find the factors of the full design",
            "the same four",
            "nfs_wan",
            (
                r"^point 8: ",
                r"^point 9: the four largest main",
                r"^point 10: ",
                r"^point 11: the plan of the",
            ),
            r"^point 9: the four",
            "the recorded result has earlier criteria of points 9 and 11",
        ),
    ),
    IOSTACK: (
        *(
            Experiment(
                "table 3.3a",
                wording,
                published,
                "scenarios",
                (rf"^\({letter}\): ",),
                note="2 workers, links and disks scaled down; MooseFS and MinIO for Ceph and Swift",
            )
            for letter, wording, published in (
                ("a", "objects are slowest in every program", "3.7 to 17 times the fastest"),
                ("b", "DFSIO: volumes cost more than remote disks", "+128 and +117 % of guest"),
                ("c", "WordCount does not depend on the place", "within 1.5 %"),
                (
                    "d",
                    "cached volumes are ahead of remote data in queries",
                    "1.65 and 1.78 of guest; 2.10 and 2.50",
                ),
                ("e", "the cost grows with the waves per second", "13 of 15 pairs"),
            )
        ),
        Experiment(
            "table 3.3a", "Clustering", "288 to 1676 s", note="no study runs this program"
        ),
        Experiment(
            "figure 10",
            "two threads of one client on one Swift device",
            "block requests by thread and device",
            note="`export paraver` has calls, no devices",
        ),
    ),
    COSTA: (
        Experiment(
            "figure 3.4", "pipeline: a store that keeps files local", "faster", "published",
            (r"^pipeline: ",), simulated=True,
        ),
        Experiment(
            "figure 3.5", "reduce", "faster; 4.5 s and 39 s without hints", "published", (r"^reduce: ",),
            r"^reduce: .*takes", simulated=True,
        ),
        Experiment(
            "figure 3.6", "broadcast, one to four replicas", "no difference", "published",
            (r"^broadcast: ",), simulated=True,
        ),
        Experiment(
            "figures 3.4 to 3.6", "the same patterns on real stores", "faster with hints",
            "workflow_patterns", (r".",), note="MooseFS and CephFS on virtual nodes",
        ),
        Experiment(
            "figure 3.7", "weak scaling on 25 to 100 nodes", "faster in all", "published", (r"^scale: ",),
            simulated=True,
        ),
        Experiment(
            "figure 3.9", "BLAST: split", "14 + 5 nodes, 256 KiB, up to 10 times apart",
            "published", (r"^blast: the fastest chunk", r"^blast: slowest"),
            simulated=True, note="the split is an input",
        ),
        Experiment(
            "figure 1.1", "BLAST: chunk size", "up to twice as fast with 256 KiB", "published",
            (r"^blast: time with the default chunks",), simulated=True,
        ),
        Experiment(
            "figure 3.10", "BLAST: cost of 11 and 20 nodes",
            "8 + 2 is cheapest; 20 nodes almost twice as fast for 2 % more", "published",
            (
                r"^blast-cost: the cheapest",
                r"^blast-cost: 20 machines",
                r"^blast-cost: and cost more, within",
            ),
            simulated=True,
        ),
        Experiment(
            "figures 3.12 and 3.13", "Montage: gain by nodes",
            "little after 15, none after 75; four times cheaper for 20 % more time", "published",
            (r"^montage: ",), simulated=True,
        ),
        Experiment(
            "section 3.2.7", "predictions of single patterns", "within 10 %, median 5 %", "stores",
            (r"scenarios: streamed, places that occurred: predicted within",),
            note="MooseFS, nodes of tasks given",
        ),
        Experiment(
            "figure 3.24", "predictions of other stores", "within 15 % (Ceph)", "stores_cephfs",
            (r"scenarios: streamed: predicted within",), note="CephFS",
        ),
        Experiment(
            "figures 3.4 to 3.7", "predictions of scenarios that were frozen before", "within 15 to 22 %",
            "predictions", (r".",),
        ),
        Experiment(
            "figures 3.15 to 3.17", "cost of a prediction", "2,000 times less than the run", "stores",
            (r"node seconds that a run holds, over processor seconds of a prediction",),
        ),
        Experiment(
            "figure 3.19", "hints save energy", "saves", "published", (r"^energy: ",),
            simulated=True, note="published powers",
        ),
        Experiment(
            "figures 3.21 and 3.22", "lowest and highest frequency", "BLAST +85.5 %, pipeline −17 %",
            "published", (r"^dvfs: ",), simulated=True, note="published powers",
        ),
        Experiment(
            "figure 3.23", "reduce on spinning disks", "hints help one size and harm the other",
            note="no study has spinning disks below a store",
        ),
        Experiment(
            "figures 5.2 and 5.3", "controller of deduplication", "as fast as the best static choice",
            "dedup", (r".",), note="an emulated disk whose rate gives the published ratios",
        ),
        Experiment(
            "figures 5.4 and 5.5", "break-even of energy", "18 and 10 % measured, 21.4 and 18.1 % predicted",
            "dedup_controller", (r"energy|break-even",), note="powers from the published data sheets",
        ),
    ),
    MYTILINIS: (
        Experiment(
            "figure 3", "grep, fixed string: accuracy", "90 % local, 90 % distributed", "blackbox",
            (r"^grep, fixed string: accuracy",), r"^grep, fixed string: .*storage alone",
        ),
        Experiment(
            "figure 3", "grep, pattern: accuracy", "30 %, 40 %", "blackbox",
            (r"^grep, back reference: accuracy",), r"^grep, back reference: .*storage alone",
        ),
        Experiment(
            "figure 4", "table scan: accuracy", "60 %, 80 %", "blackbox", (r"^table scan: accuracy",),
            r"^table scan: .*storage alone", "PostgreSQL instead of MySQL",
        ),
        Experiment(
            "section VII", "identity MapReduce: accuracy", "70 %, 74 %",
            note="no study runs it with learnt disks",
        ),
        Experiment(
            "figure 5", "word count: accuracy", "31 % on 4 nodes, 60 % on 16", "blackbox",
            (r"^Spark word count: accuracy",), r"^Spark word count: .*storage alone", "Spark on one node",
        ),
        Experiment(
            "figure 6", "HBase scans: accuracy", "60 %, 50 %", note="no HBase in a study",
        ),
    ),
}  # fmt: skip

HEAD = """\
# Published experiments

Published experiments and the results of penstock. Written by `python tools/experiments.py >
docs/experiments.md` from the files in `bench/results`. An experiment is

- **reproduced** if every goal of it is met, *in simulation* if the figures are predictions of the model;
- **not reproduced** if one is missed;
- *undecided* if none is missed, but an interval contains a goal, or a treatment has no valid run;
- *not comparable* if the named difference prevents a comparison;
- **not measured** if a goal has no recorded result, or only one by another criterion.

All goals, with their commands, hosts and ages, are in [measurements](measurements.md). *By hand*: entered
from the output of the command, before it recorded its results. Figures in the column *here* have the names
of the recorded rows; *n* is the number of runs or values behind them.
"""


def key(row: record.Row) -> str:
    """`CASE: METRIC` of a row, with the engine if it has one."""
    parts = (row["case"], row.get("engine"), row["metric"])
    return ": ".join(str(part) for part in parts if part)


def matching(files: Sequence[Result], pattern: str) -> Iterator[tuple[Result, record.Row]]:
    """Rows whose `key` matches, with their results; relaxed criteria are omitted."""
    for result in files:
        for row in result["rows"]:
            if re.search(pattern, key(row)) and not row["metric"].endswith("(relaxed)"):
                yield result, row


def verdict(experiment: Experiment, verdicts: Sequence[str], *, complete: bool) -> str:
    """Verdict on an experiment from those of its recorded goals; `complete`: all of them are recorded."""
    if verdicts and (experiment.differs or record.NOT_COMPARABLE in verdicts):
        return "*not comparable*"
    if record.MISSED in verdicts:
        return "**not reproduced**"
    if not verdicts or not complete:
        return "**not measured**"
    if set(verdicts) != {record.MET}:
        return "*undecided*"
    return "reproduced in simulation" if experiment.simulated else "reproduced"


def line(experiment: Experiment, by_script: Mapping[str, list[Result]]) -> list[str]:
    """Cells of one experiment, from the results of each script."""
    files = by_script.get(experiment.script, [])
    by_goal = [
        [(recorded, row) for recorded, row in matching(files, goal) if row.get("verdict")]
        for goal in experiment.rows
    ]
    decisive = [pair for pairs in by_goal for pair in pairs]
    used = [recorded for recorded, _ in decisive]
    verdicts = [row["verdict"] for _, row in decisive]
    measured = ""
    if decisive:
        shown = [row for _, row in matching(used[:1], experiment.shown)] if experiment.shown else []
        shown = list({key(row): row for row in shown or [row for _, row in decisive]}.values())
        measured = "; ".join(f"{_short(key(row))}: {figure(row)}" for row in shown[:MOST_SHOWN])
        met = verdicts.count(record.MET)
        measured += f" ({met} of {len(verdicts)} goals met)"
    measured = ". ".join(
        filter(None, [measured, experiment.note[:1].upper() + experiment.note[1:]])
    )
    runs = sorted({row["n"] for _, row in decisive if isinstance(row.get("n"), int)})
    n = "" if not runs else str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]:,}"
    dates = sorted({_date(recorded) for recorded in used})
    commands = list(dict.fromkeys(recorded["command"] for recorded in used))
    if not commands and experiment.script:
        commands = [_script(experiment.script)]
    command = ", ".join(f"`{text}`" for text in commands)
    title = f"{experiment.where}: {experiment.what}"
    result = verdict(experiment, verdicts, complete=all(by_goal))
    return [title, experiment.published, measured, result, n, ", ".join(dates), command]


def _script(name: str) -> str:
    folder = "studies" if (ROOT / "studies" / f"{name}.py").exists() else "bench"
    return f"{folder}/{name}.py"


def _date(result: Result) -> str:
    by_hand = "" if result["recorded"] == "by the command" else " by hand"
    return f"{result['date']}{by_hand}"


def _short(text: str) -> str:
    return text if len(text) <= 70 else f"{text[:67]}…"


def page(folder: Path = RESULTS) -> str:
    """The complete page."""
    by_script = results(folder)
    parts: list[str] = []
    count: Counter[str] = Counter()
    for text, experiments in EXPERIMENTS.items():
        rows = [line(experiment, by_script) for experiment in experiments]
        count.update(row[3] for row in rows)
        head = ["experiment", "published", "here", "result", "n", "date", "command"]
        table = [head, ["---"] * len(head), *rows]
        cells = ("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in table)
        parts.append(f"## [{text}](sources.md)\n\n" + "\n".join(cells) + "\n")
    total = ", ".join(f"{number} {result}" for result, number in sorted(count.items()))
    return "\n".join([HEAD, f"Of {count.total()} experiments: {total}.\n", *parts])


def main() -> int:
    """Print the page, or compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="compare docs/experiments.md")
    if not parser.parse_args().check:
        print(page(), end="")
        return 0
    if PAGE.read_text("utf-8") == page():
        return 0
    command = "python tools/experiments.py > docs/experiments.md"
    print(f"docs/experiments.md is out of date: {command}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
