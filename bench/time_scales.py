"""Smallest time scale at which this host sustains each storage profile, for 1, 4 and 16 jobs.

For each profile and transport, a study runs fio (direct random reads of 4 KiB, psync) with 1, 4 and 16 jobs
at rising time scales. A time scale is sustained if most runs are valid by their disk's certificate; one that
`run` refuses, as faster than this host, is not.

    python bench/time_scales.py [--quick] [--profiles NAME,…] [--resume]

Each profile is stored in out/time-scales.json as soon as it is measured; `--resume` continues from there.

Exit status 1 if `sata-ssd` with 16 jobs needs a time scale above 6 over io_uring, or if the planted disk, an
NVMe drive at ten times its speed, passes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import record
from penstock.emulate.disks.transport import IO_URING, TRANSPORTS, missing
from penstock.profile import ready_names

JOBS = (1, 4, 16)
SCALES = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 50)
GOAL_PROFILE, GOAL_JOBS, GOAL = "sata-ssd", 16, 6.0
#: runs of each number of jobs at a time scale; more than half of them must be valid
PASSES = 3
STATE = record.ROOT / "out" / "time-scales.json"
STUDY = """
penstock: 1
name: time-scales
question: Which number of jobs does the disk sustain?
factors:
  jobs: {{levels: [{jobs}]}}
design: {{kind: full, replicates: {passes}, order: standard}}
platform:
  nodes:
    - name: node1
      disks: [{{name: data, profile: {profile}, time_scale: {scale}, size: 1GiB}}]
workload:
  prepare: dd if=/dev/zero of={{data}}/file bs=1M count=256
  command: >
    fio --name=read --filename={{data}}/file --size=256m --rw=randread --bs=4k --direct=1 --ioengine=psync
    --numjobs={{jobs}} --group_reporting --time_based --runtime={runtime:g} --randrepeat=0 --thread
    --output-format=json+ --output={{run_dir}}/fio.json
  expected: {runtime:g}s
  timeout: 5min
  parser: fio
responses:
  iops: {{from: read_iops, unit: 1/s, better: higher}}
"""


def sustained(
    profile: str, scale: float, jobs: tuple[int, ...], transport: str, passes: int, runtime_s: float
) -> set[int]:
    """Numbers of jobs with mostly valid runs at a time scale."""
    levels = jobs if len(jobs) > 1 else (*jobs, min(set(JOBS) - set(jobs)))  # a factor has two
    with tempfile.TemporaryDirectory(prefix="penstock-scales-") as name:
        place = Path(name)
        (place / "s.study.yaml").write_text(
            STUDY.format(
                jobs=", ".join(map(str, levels)),
                passes=passes,
                profile=profile,
                scale=scale,
                runtime=runtime_s,
            )
        )
        command = [sys.executable, "-m", "penstock", "run", str(place / "s.study.yaml")]
        command += ["-o", str(place / "out"), "--transport", transport]
        done = subprocess.run(
            [*command, "--quiet", "--keep-going", "--no-report"],
            capture_output=True,
            text=True,
            check=False,
        )
        table = place / "out" / "runs.parquet"
        if done.returncode == 2 and "too fast for this host" in done.stderr:
            return set()
        if not table.exists():
            print(done.stderr.strip(), file=sys.stderr)
            raise SystemExit(f"{profile} at {scale:g}: the study ended with {done.returncode}")
        runs = pd.read_parquet(table)
    valid = runs["validity"].eq("valid").groupby(runs["jobs"].astype(int)).mean()
    return {number for number in jobs if valid.get(number, 0.0) > 0.5}


def smallest(profile: str, transport: str, passes: int, runtime_s: float) -> dict[int, float]:
    """First sustained time scale for each number of jobs; infinity without any."""
    least = dict.fromkeys(JOBS, float("inf"))
    for scale in SCALES:
        pending = tuple(number for number in JOBS if least[number] == float("inf"))
        if not pending:
            break
        for number in sustained(profile, scale, pending, transport, passes, runtime_s):
            least[number] = scale
    return least


def _stored(resume: bool) -> dict[str, dict[int, float]]:
    """Smallest time scale by number of jobs, for each `PROFILE TRANSPORT` of an interrupted measurement."""
    if not (resume and STATE.exists()):
        return {}
    by_case = json.loads(STATE.read_text())
    return {case: {int(n): v for n, v in least.items()} for case, least in by_case.items()}


def main() -> int:
    """Measure each profile over each transport and print a line for each."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="two profiles, one run of each")
    options.add_argument("--profiles", help="comma-separated; default: all ready ones")
    options.add_argument("--resume", action="store_true", help="continue from out/time-scales.json")
    record.option(options)
    arguments = options.parse_args()
    names = ["hdd-7200", GOAL_PROFILE] if arguments.quick else ready_names()
    if arguments.profiles:
        names = arguments.profiles.split(",")
    passes, runtime_s = (1, 1.0) if arguments.quick else (PASSES, 2.0)
    transports: tuple[str, ...] = TRANSPORTS
    if reason := missing():
        print(f"io_uring: {reason}", file=sys.stderr)
        transports = TRANSPORTS[:1]
    print(f"{os.cpu_count()} processors; time scale for {', '.join(map(str, JOBS))} jobs")
    rows: list[record.Row] = []
    failed = False
    stored = _stored(arguments.resume)
    for name in names:
        for transport in transports:
            case = f"{name} {transport}"
            least = stored.get(case) or smallest(name, transport, passes, runtime_s)
            stored[case] = least
            STATE.parent.mkdir(exist_ok=True)
            STATE.write_text(json.dumps(stored))
            print(
                f"{name:22} {transport:9} {'  '.join(f'{least[n]:5g}' for n in JOBS)}", flush=True
            )
            for number, scale in least.items():
                if scale == float("inf"):
                    failed = True
                    continue
                case = f"{name}, {number} job{'s' * (number > 1)}"
                row = record.row(case, transport, "smallest sustained time scale", [scale], "")
                if (name, number, transport) == (GOAL_PROFILE, GOAL_JOBS, IO_URING):
                    row = record.at_most(row, GOAL)
                    failed |= scale > GOAL
                rows.append(row)
    refused = not sustained("nvme", 0.1, (16,), transports[-1], 1, runtime_s)
    print(f"planted: an NVMe drive at ten times its speed: {'refused' if refused else 'PASSES'}")
    record.keep(arguments.record, rows, {"an NVMe drive at ten times its speed": refused})
    return int(failed or not refused)


if __name__ == "__main__":
    sys.exit(main())
