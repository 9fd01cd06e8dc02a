"""What an emulated disk of no service time can do at most, beside its bare backing directory.

Every round runs each case on both engines, in random order, on files that the host's page cache holds. The
mount is opened directly (O_DIRECT), so that every request passes the server; the bare directory is read from
and written to the page cache, which is what the server does behind the mount. `added p50` is the difference
within a round. CPU per GiB counts fio and, for the mount, the server.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock.emulate.disk import DiskServer
from penstock.host.journal import Journal

GIB = 1 << 30
SIZE = "256m"
CASES: dict[str, dict[str, Any]] = {
    "1 MiB sequential read": {"rw": "read", "bs": "1m", "ioengine": "psync"},
    "1 MiB sequential write": {"rw": "write", "bs": "1m", "ioengine": "psync"},
    "4 KiB random read, depth 1": {"rw": "randread", "bs": "4k", "ioengine": "psync"},
    "4 KiB random read, depth 32": {
        "rw": "randread",
        "bs": "4k",
        "ioengine": "libaio",
        "iodepth": 32,
    },
    "4 KiB random write, depth 32": {
        "rw": "randwrite",
        "bs": "4k",
        "ioengine": "libaio",
        "iodepth": 32,
    },
}
_NONE = {"overhead": {"kind": "constant", "value_s": 0.0}}
PROFILE = {
    "schema": "penstock/storage-profile/1",
    "name": "no-service",
    "servers": 64,
    "read": {"sequential": _NONE, "random": _NONE},
    "write": {"sequential": _NONE, "random": _NONE},
}


def fio(path: Path, direct: bool, runtime_s: float, options: dict[str, Any]) -> dict[str, float]:
    words = [f"--{name}={value}" for name, value in options.items()]
    line = [
        "fio", "--name=ceiling", f"--filename={path}", f"--size={SIZE}", "--output-format=json",
        f"--direct={int(direct)}", "--time_based", f"--runtime={runtime_s}", "--invalidate=0",
        "--norandommap", "--overwrite=1", *words,
    ]  # fmt: skip
    text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    job = json.loads(text[text.index("{") :])["jobs"][0]
    side = job["write" if "write" in options["rw"] else "read"]
    took_s = job["job_runtime"] / 1000
    return {
        "bytes": float(side["io_bytes"]),
        "bps": float(side["bw_bytes"]),
        "iops": float(side["iops"]),
        "p50_ns": float(side["clat_ns"]["percentile"]["50.000000"]),
        "cpu_s": (job["usr_cpu"] + job["sys_cpu"]) / 100 * took_s,
    }


def measure(rounds: int, runtime_s: float) -> list[dict[str, Any]]:
    seen: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-ceiling-") as place:
        base = Path(place)
        for name in ("mount", "backing"):
            (base / name).mkdir()
        subprocess.run(["fallocate", "-l", SIZE, base / "backing" / "f"], check=True)
        subprocess.run(["dd", "if=/dev/zero", f"of={base}/backing/f", "bs=1M", "count=256",
                        "conv=notrunc", "status=none"], check=True)  # fmt: skip
        with DiskServer(Journal(), base / "state") as server:
            server.add("d", base / "mount", base / "backing", PROFILE, calibrate=False)
            for number in range(rounds):
                turns = [(case, engine) for case in CASES for engine in ("bare", "penstock")]
                random.shuffle(turns)
                for case, engine in turns:
                    path = base / ("mount" if engine == "penstock" else "backing") / "f"
                    server.reset("d")
                    figures = fio(path, engine == "penstock", runtime_s, CASES[case])
                    if engine == "penstock":
                        figures["cpu_s"] += server.stats("d")["server_cpu_ns"] * 1e-9
                    seen.setdefault((case, engine), []).append(figures)
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return rows(seen) + many_disks()


def rows(seen: dict[tuple[str, str], list[dict[str, float]]]) -> list[dict[str, Any]]:
    out = []
    for case in CASES:
        for engine in ("bare", "penstock"):
            each = seen[case, engine]
            small = CASES[case]["bs"] == "4k"
            out.append(row(case, engine, "rate", [f["iops" if small else "bps"] for f in each],
                           "1/s" if small else "B/s"))  # fmt: skip
            per_gib = [f["cpu_s"] * GIB / f["bytes"] for f in each]
            out.append(row(case, engine, "CPU per GiB", per_gib, "s"))
        pairs = zip(seen[case, "penstock"], seen[case, "bare"], strict=True)
        added = [(ours["p50_ns"] - bare["p50_ns"]) / 1000 for ours, bare in pairs]
        out.append(row(case, "penstock", "added p50", added, "us"))
    return out


def many_disks() -> list[dict[str, Any]]:
    """How long 1, 10 and 100 disks take to come up, and what they cost when idle."""
    out = []
    for count in (1, 10, 100):
        with tempfile.TemporaryDirectory(prefix="penstock-ceiling-") as place:
            base = Path(place)
            with DiskServer(Journal(), base / "state") as server:
                began = time.monotonic()
                for number in range(count):
                    for name in ("m", "b"):
                        (base / f"{name}{number}").mkdir()
                    server.add(f"d{number}", base / f"m{number}", base / f"b{number}", PROFILE)
                up_s = time.monotonic() - began
                server.reset("d0")
                time.sleep(2)
                idle = server.stats("d0")["server_cpu_ns"] / 2e9 * 100
                status = Path(f"/proc/{server.daemon.pid}/status").read_text()
                resident = float(status.split("VmRSS:")[1].split()[0]) / 1024
                case = f"{count} disk{'s' if count > 1 else ''}"
                out.append(row(case, "penstock", "time to come up", [up_s], "s"))
                out.append(row(case, "penstock", "idle CPU", [idle], "%"))
                out.append(row(case, "penstock", "resident memory", [resident], "MiB"))
    return out


def row(case: str, engine: str, metric: str, values: list[float], unit: str) -> dict[str, Any]:
    return {
        "case": case,
        "engine": engine,
        "metric": metric,
        "value": statistics.median(values),
        "unit": unit,
        "low": min(values),
        "high": max(values),
        "n": len(values),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runtime", type=float, default=1.0, help="seconds per case and engine")
    arguments = parser.parse_args()
    found = measure(arguments.rounds, arguments.runtime)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{'case':<30}{'engine':<10}{'metric':<18}{'median':>12} {'low':>12} {'high':>12} unit")
    for r in found:
        scale, unit = (2**20, "MiB/s") if r["unit"] == "B/s" else (1, r["unit"])
        value, low, high = (r[name] / scale for name in ("value", "low", "high"))
        print(
            f"{r['case']:<30}{r['engine']:<10}{r['metric']:<18}"
            f"{value:>12.2f} {low:>12.2f} {high:>12.2f} {unit}"
        )


if __name__ == "__main__":
    main()
