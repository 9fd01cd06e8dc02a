"""The most reads per second that tracing keeps up with, and whether every one is accounted for.

A program reads one cached byte as often as it can on every CPU; its own count is the truth. For each mode:
operations per second, events lost, what is in no count at all (`unaccounted`: must be 0, else the exit
status is 1), the reader's CPU and the bytes it writes. `--stop` holds the reader for 5 s with a ring of
8 MiB: then events must be lost, and every loss counted. `--plant` drops a record in a million: the counts
must say so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from penstock.host.cgroup import create_run_cgroup
from penstock.host.daemon import start_daemon
from penstock.host.journal import Journal
from penstock.host.launch import launch

CASE = "1-byte cached pread on every CPU"
MIB = 1 << 20


def measure(
    mode: str, seconds: float, place: Path, ring_mib: int, stop_s: float, plant: int
) -> list[dict[str, Any]]:
    """Rows of one mode."""
    journal, answer, threads = Journal(), place / "answer", os.cpu_count() or 1
    spool = place / "spool"
    config = {"mode": mode, "ring_bytes": ring_mib * MIB, "drop_every": plant}
    with (
        create_run_cgroup("rate", None, journal) as group,
        start_daemon("tracer", config, journal) as daemon,
    ):
        daemon.call("arm", cgroup_id=group.cgroup_id, spool=str(spool), files=str(place / "files"))
        words = [str(place / "read_rate"), str(place / "file"), str(seconds), str(threads)]
        if stop_s:
            threading.Thread(target=hold, args=(daemon.pid, stop_s), daemon=True).start()
        done = launch([*words, str(answer)], group)
        receipt = daemon.call("disarm", timeout_s=300)
        resident = peak_bytes(daemon.pid)
    truth = int(answer.read_text())
    kept, lost = receipt["kept"], receipt["lost"]
    # what the program does besides its reads (starting, its answer) is below a thousand calls
    others = kept + lost - truth
    figures = {
        "operations_per_s": (truth / done.wall_s, "1/s"),
        "operations": (truth, ""),
        "lost": (lost, ""),
        "unaccounted": (0 if 0 <= others < 1000 else others, ""),
        "unbalanced": (receipt["seen"] - kept - lost - receipt["filtered"], ""),
        "missing_in_spool": (kept - receipt["spooled"] if mode == "trace" else 0, ""),
        "reader_cpu_per_event": (receipt["cpu_ns"] / max(kept, 1), "ns"),
        "written_per_s": (spool.stat().st_size / done.wall_s, "B/s"),
        "reader_peak_resident": (resident, "B"),
    }
    engine = f"penstock {mode}" + (f", reader held for {stop_s:g} s" if stop_s else "")
    spool.unlink()
    return [
        {
            "case": CASE,
            "engine": engine,
            "metric": metric,
            "value": round(value, 1),
            "unit": unit,
            "low": round(value, 1),
            "high": round(value, 1),
            "n": 1,
        }
        for metric, (value, unit) in figures.items()
    ]


def hold(pid: int, seconds: float) -> None:
    """Stops the reader for a while."""
    time.sleep(0.5)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def peak_bytes(pid: int) -> int:
    """Most memory a process had of its own; the rings are the kernel's, and shared."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quick", action="store_true", help="3 s instead")
    parser.add_argument("--stop", action="store_true", help="hold the reader for 5 s")
    parser.add_argument("--plant", action="store_true", help="drop one record in a million")
    asked = parser.parse_args()
    seconds = 3 if asked.quick else asked.seconds
    plant = 1_000_000 if asked.plant else 0
    rows = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        place = Path(name)
        (place / "file").write_bytes(os.urandom(4 * MIB))
        source = Path(__file__).with_name("read_rate.c")
        program = place / "read_rate"
        subprocess.run(["cc", "-O2", "-pthread", "-o", program, source], check=True)
        if asked.stop:
            rows = measure("trace", max(seconds, 7), place, 8, 5.0, plant)
        else:
            for mode in ("count", "pattern", "trace"):
                rows += measure(mode, seconds, place, 64, 0, plant)
    if asked.json:
        print(json.dumps({"rows": rows}))
    for row in rows if not asked.json else ():
        print(f"{row['engine']:<40} {row['metric']:<22} {row['value']:>16,} {row['unit']}")
    by_metric = [(row["metric"], row["value"]) for row in rows]
    bad = any(
        v != 0 for m, v in by_metric if m in {"unaccounted", "unbalanced", "missing_in_spool"}
    )
    lost = any(v > 0 for m, v in by_metric if m == "lost")
    return int(bad or ((asked.stop or asked.plant) and not lost))


if __name__ == "__main__":
    sys.exit(main())
