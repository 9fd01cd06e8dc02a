"""Whether a study's *why* names flushes: its share of the run beside what strace counts in the same run.

Three studies on two emulated disks: a SQLite loader (journal x synchronous), PostgreSQL (synchronous_commit)
and RocksDB (sync), each command under `strace -f -c -w` within the run. For every treatment the share of
flushes that the answer rests on is put beside strace's, and the answer has to speak of waiting for flushes
where the slower treatment compared spends a fifth of its run and more in them, and only there.

A treatment holds if the shares are within 2 points. Planted: flushes of directories left out. Treatments
without a valid run are named and count as missed. Status 1 if one misses or the plant is not found.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow.parquet as pq

from bench import record
from bench.flush_share import FLUSHES, LIMIT_POINTS, LOADER, PGBENCH, ROOT, TOLD, by_strace
from penstock.analyse.findings import findings
from penstock.analyse.outcome import Outcome
from penstock.analyse.why import accounts

DISKS = ("hdd-7200", "network-volume")
#: in the answer's first sentence where flushes are what the slower one waits for
WAITING = "waiting for"


@dataclass(frozen=True)
class Asked:
    """A study: its factors beside the disk, its command as words of a shell line, what makes its data."""

    name: str
    factors: Mapping[str, Sequence[str]]
    command: str
    prepare: str = ""
    time_scale: float = 4


def studies(quick: bool) -> list[Asked]:
    """Those whose programs are there."""
    count = 8 if quick else 20
    found = [
        Asked(
            "sqlite",
            {"journal": ("DELETE", "WAL"), "synchronous": ("FULL", "OFF")},
            f"{sys.executable} {{study_dir}}/loader.py {{data}}/t.db {{journal}} {{synchronous}} {count}",
        )
    ]
    if list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        found.append(
            Asked(
                "postgresql",
                {"commit": ("on", "off")},
                f"bash {{study_dir}}/pgbench.sh {ROOT} {{data}} {{commit}} {5 * count}",
                f"{ROOT}/examples/postgres/prepare.sh {{data}} 1 1",
            )
        )
    if shutil.which("db_bench"):
        options = "--benchmarks=fillrandom --threads=1"
        found.append(
            Asked(
                "rocksdb",
                {"sync": ("1", "0")},
                f"db_bench --db={{data}}/rocks {options} --num={10 * count} --sync={{sync}}",
            )
        )
    return found


def text_of(asked: Asked, rounds: int) -> str:
    """The study file."""
    factors = {
        "disk": list(DISKS),
        **{name: list(levels) for name, levels in asked.factors.items()},
    }
    lines = "\n".join(f"  {name}: {{levels: {json.dumps(v)}}}" for name, v in factors.items())
    strace = f"strace -f --seccomp-bpf -c -w -e trace={','.join(FLUSHES)} -o {{run_dir}}/strace.txt"
    prepare = f"\n  prepare: {json.dumps(asked.prepare)}\n  mutates: true" if asked.prepare else ""
    return f"""penstock: 1
name: {asked.name}
question: Which disk and which {next(iter(asked.factors))} should it be?
factors:
{lines}
design: {{kind: full, replicates: {rounds}, seed: 13}}
platform:
  nodes:
    - name: node1
      memory: 1GiB
      disks: [{{name: data, profile: "{{disk}}", time_scale: {asked.time_scale:g}}}]
workload:{prepare}
  command: {json.dumps(f"{strace} {asked.command}")}
  timeout: 120s
responses:
  time: {{from: wall_s, unit: s, better: lower}}
observers:
  monitor: null
  trace: {{mode: pattern}}
"""


@dataclass(frozen=True)
class Compared:
    """A treatment: shares of its runs by the answer, by the same without directories, by strace."""

    words: str
    answer: float
    of_files: float
    strace: float
    runs: int


def compared(outcome: Outcome, treatment: str) -> Compared | None:
    """None where no run of it is valid."""
    account = accounts(outcome, treatment)
    words = outcome.phrase(outcome.levels(treatment), " + ")
    if account is None:
        return None
    counted, of_files = [], []
    for run_id in account.run_ids:
        run = outcome.path / "runs" / run_id
        wall_s = json.loads((run / "manifest.json").read_text())["times"]["wall_s"]
        counted.append(by_strace(run / "workload" / "strace.txt") / wall_s)
        paths = {r["file_id"]: r["path"] or "" for r in rows(run / "files.parquet")}
        flushed = [r for r in rows(run / "operations.parquet") if r["op"] in FLUSHES]
        ns = sum(r["time_ns"] for r in flushed if not paths.get(r["file_id"], "").endswith("/"))
        of_files.append(ns / 1e9 / wall_s)
    shares = (account.share("flushes"), statistics.mean(of_files), statistics.mean(counted))
    return Compared(words, *(100 * share for share in shares), len(counted))


def rows(path: Path) -> list[dict[str, object]]:
    """A table's rows."""
    found: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return found


def right(outcome: Outcome) -> tuple[bool, str]:
    """Whether the answer's *why* speaks of flushes where it should; and what it says."""
    said = [f for f in findings(outcome) if f.code == "why"]
    if not said:
        return False, "no why"
    told = said[0].statement.split(". ")[0]
    run_ids = said[0].evidence["run_id"]
    known = [accounts(outcome, t) for t in dict.fromkeys(outcome.measured["treatment_id"])]
    (slow,) = (a for a in known if a is not None and run_ids[: len(a.run_ids)] == a.run_ids)
    speaks = WAITING in told and "flush" in told
    return speaks == (slow.share("flushes") >= TOLD), said[0].statement


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer transactions, one run each")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each treatment")
    parser.add_argument("--only", default="", help="studies whose name has this")
    record.option(parser)
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    table: list[record.Row] = []
    held, of, planted = 0, 0, 0.0
    with tempfile.TemporaryDirectory(prefix="penstock-why-") as place:
        base = Path(place)
        base.chmod(0o755)  # PostgreSQL's own user goes through it
        (base / "loader.py").write_text(LOADER)
        (base / "pgbench.sh").write_text(f"set -eu\n{PGBENCH}")
        for asked in (s for s in studies(arguments.quick) if arguments.only in s.name):
            study, out = base / f"{asked.name}.study.yaml", base / asked.name
            study.write_text(text_of(asked, rounds))
            words = [
                sys.executable,
                "-m",
                "penstock",
                "run",
                study,
                "-o",
                out,
                "--keep-going",
                "-q",
            ]
            subprocess.run(list(map(str, words)), check=False, stdout=subprocess.DEVNULL)
            outcome = Outcome.read(out)
            for treatment in dict.fromkeys(r["treatment_id"] for r in outcome.plan["rows"]):
                found = compared(outcome, treatment)
                of += 1
                if found is None:
                    print(f"{asked.name} {treatment}: no valid run  MISSED", flush=True)
                    continue
                holds = abs(found.answer - found.strace) <= LIMIT_POINTS
                held, planted = held + holds, max(planted, found.strace - found.of_files)
                print(
                    f"{asked.name}, {found.words}: {found.answer:.1f} % by the answer, "
                    f"{found.strace:.1f} % by strace{'' if holds else '  MISSED'}",
                    flush=True,
                )
                case = f"{asked.name}, {found.words}"
                table.append(record.row(case, "answer", "flushes", [found.answer], "%"))
                table.append(record.row(case, "strace", "flushes", [found.strace], "%"))
            says, why = right(outcome)
            held, of = held + says, of + 1
            print(f"{asked.name}: {why}{'' if says else '  MISSED'}", flush=True)
    seen = planted > LIMIT_POINTS
    print(
        f"without flushes of directories: {planted:.1f} points off, {'found' if seen else 'NOT FOUND'}"
    )
    told = f"treatments within {LIMIT_POINTS:g} points of strace, and answers that name flushes rightly"
    total = record.share("studies", "", told, held, of)
    record.keep(
        arguments.record,
        [{**total, "quoted": True}, *table],
        {"flushes of directories left out": seen},
    )
    return 0 if held == of and seen else 1


if __name__ == "__main__":
    sys.exit(main())
