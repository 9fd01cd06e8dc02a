"""The same limits by kernel throttles, container engines and penstock: mean and distribution.

The specified device takes a lognormal time of mean 2 ms and sigma 0.5 for each of 500 requests of 4 KiB per
second, and 16.4 ms for each request of 64 KiB, at 4 MB/s. A throttle can only limit the mean. Every round
runs all engines in random order on the same file system on the same kind of loop device, penstock on a mount
over it. `rate` is delivered over specified, p50 and p99 are fio's completion latencies over the specified
ones, `KS` is the largest difference of the two distributions. `--guest` adds plain io.max in the virtual
machine, whose processor is emulated: only its mean is meaningful. Planted failure: a throttle set 10 % wrong,
which must be detected (else exit status 1). Needs root and fio.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "throttles"))
sys.path.insert(0, str(HERE.parent / "studies" / "validation-grid"))
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402
from engines import Blkio, Docker, Ground, Podman, Runc  # noqa: E402
from judge import ks_distance, latencies  # noqa: E402

from bench import record  # noqa: E402
from penstock.emulate.backends import Place  # noqa: E402
from penstock.emulate.backends.image import put_up  # noqa: E402
from penstock.emulate.disks.server import DiskServer  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from penstock.host.journal.journal import Journal  # noqa: E402
from penstock.profile.model import StorageProfile  # noqa: E402
from penstock.spec.cluster import DiskSpec  # noqa: E402

MIB = 1 << 20
GRID = HERE.parent / "studies" / "validation-grid"
SHAPED = StorageProfile.from_json((GRID / "lognormal-2ms.json").read_text())
_FLAT = {"overhead": {"kind": "constant", "value_s": 65536 / 4e6}}
STEADY = StorageProfile.from_dict(
    {"schema": "penstock/storage-profile/1", "name": "64k-at-4mb", "servers": 1,
     "read": {"sequential": _FLAT, "random": _FLAT},
     "write": {"sequential": _FLAT, "random": _FLAT}}
)  # fmt: skip
#: case → limits for a throttle, profile for penstock, fio's pattern and block
CASES: dict[str, tuple[dict[str, float], StorageProfile, str, int]] = {
    "500 reads/s": ({"read_iops": 500.0}, SHAPED, "randread", 4096),
    "500 writes/s": ({"write_iops": 500.0}, SHAPED, "randwrite", 4096),
    "4 MB/s, 64 KiB reads": ({"read_bps": 4e6}, STEADY, "read", 65536),
}
PLANTED = "blkio v1, 10 % off (planted)"
#: accepted deviation of penstock's mean rate [%]
RATE_WITHIN = 1.0


def fio_argv(case: str, path: str, seconds: float) -> list[str]:
    """Arguments of fio for a case."""
    _, _, pattern, block = CASES[case]
    return ["fio", "--name=t", f"--filename={path}", f"--rw={pattern}", f"--bs={block}",
            "--direct=1", "--ioengine=psync", "--time_based", f"--runtime={seconds}",
            "--size=16m", "--randseed=7", "--output-format=json+"]  # fmt: skip


def figures(case: str, text: str) -> dict[str, float]:
    """Rate, quantiles and distance, relative to the specification."""
    limits, profile, pattern, block = CASES[case]
    direction = "write" if "write" in pattern else "read"
    side = json.loads(text[text.index("{") :])["jobs"][0][direction]
    ((limit, limit_value),) = limits.items()
    rate = float(side["iops"] if limit.endswith("iops") else side["bw_bytes"])
    points = list((np.arange(2000) + 0.5) / 2000)
    expected_ns = 1e9 * np.array(profile.quantiles_s(direction, False, block, points))
    percentiles = side["clat_ns"]["percentile"]
    return {
        "rate": 100 * rate / limit_value,
        "p50": percentiles["50.000000"] / float(np.quantile(expected_ns, 0.5)),
        "p99": percentiles["99.000000"] / float(np.quantile(expected_ns, 0.99)),
        "KS": ks_distance(latencies(text, direction), expected_ns),
    }  # fmt: skip


def measure(rounds: int, seconds: float) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows of all engines that this host can run, and the reasons why the others cannot run."""
    journal = Journal()
    absent = {e.name: reason for e in (Blkio, Runc, Podman, Docker) if (reason := e.unavailable())}
    engines: dict[str, Any] = {
        e.name: e() for e in (Blkio, Runc, Podman, Docker) if e.name not in absent
    }
    if Blkio.name in engines:
        engines[PLANTED] = engines[Blkio.name]
    seen: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-throttles-") as place:
        base = Path(place)
        for name in ("loop", "image", "mount", "state"):
            (base / name).mkdir()
        spec = DiskSpec("d", size_bytes=128 * MIB)
        disk = put_up(spec, Place("d", base / "loop", base / "image"), journal)
        try:
            ground = Ground(disk, journal)
            backing = disk.mount / "penstock"
            backing.mkdir()
            for file in (disk.mount / "file", backing / "file"):
                file.write_bytes(os.urandom(16 * MIB))
            os.sync()
            with DiskServer(journal, base / "state") as server:
                server.add("d", base / "mount", backing, SHAPED)
                for number in range(rounds):
                    turns = [(c, e) for c in CASES for e in (*engines, "penstock")]
                    random.shuffle(turns)
                    for case, engine in turns:
                        try:
                            text = _run_case(case, engine, engines, ground, server, base, seconds)
                        except PenstockError as error:
                            absent[engine] = str(error)
                            engines.pop(engine, None)
                            continue
                        seen.setdefault((case, engine), []).append(figures(case, text))
                    print(f"round {number + 1} of {rounds}", file=sys.stderr)
        finally:
            disk.down()
    return rows(seen), absent


def _run_case(
    case: str, engine: str, engines: dict[str, Any], ground: Ground, server: DiskServer,
    base: Path, seconds: float,
) -> str:  # fmt: skip
    limits, profile, _, _ = CASES[case]
    if engine == "penstock":
        import subprocess

        server.set("d", profile)
        server.reset("d")
        argv = fio_argv(case, str(base / "mount" / "file"), seconds)
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    if engine not in engines:
        raise PenstockError("the engine failed in an earlier round")
    if engine == PLANTED:
        limits = {k: 0.9 * v for k, v in limits.items()}
    argv = fio_argv(case, str(ground.disk.mount / "file"), seconds)
    output: str = engines[engine].run(ground, limits, argv)
    return output


def in_guest(rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Plain io.max in the guest."""
    import shutil

    import penstock
    from tests.guest import machine

    with tempfile.TemporaryDirectory(prefix="penstock-throttles-") as place:
        job = Path(place) / "job"
        job.mkdir()
        machine.carry_penstock(job, Path(penstock.__file__).parent)
        shutil.copy(HERE / "throttles" / "guest_job.py", job / "job.py")
        cases = {c: (CASES[c][0], fio_argv(c, "{file}", seconds)) for c in CASES}
        (job / "cases.json").write_text(json.dumps(cases))
        python = machine.python_name()
        run = machine.RUN_PYTHON.format(python=python)
        (job / "run").write_text(run.replace("/job/job.py", f"/job/job.py cases.json {rounds}"))
        programs = ("bash", os.path.realpath(sys.executable), "fio", "mkfs.ext4")
        limit_s = 120 + rounds * len(CASES) * (seconds + 15)
        outcome = machine.run(job, programs, Path(place) / "out", timeout_s=limit_s)
    if outcome.status != 0:
        raise PenstockError(f"the guest: {outcome.log[-800:]}{outcome.console[-400:]}")
    seen: dict[tuple[str, str], list[dict[str, float]]] = {}
    for line in outcome.log.splitlines():
        if line.startswith("ROUND "):
            case, report = json.loads(line.removeprefix("ROUND "))
            seen.setdefault((case, "io.max (guest)"), []).append(figures(case, json.dumps(report)))
    return rows(seen)


def rows(seen: dict[tuple[str, str], list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Median and range of each figure."""
    units = {"rate": "% of asked", "p50": "of asked", "p99": "of asked", "KS": "1"}
    out = []
    for (case, engine), each in sorted(seen.items()):
        for metric, unit in units.items():
            values = [f[metric] for f in each]
            out.append({"case": case, "engine": engine, "metric": metric,
                        "value": statistics.median(values), "unit": unit, "low": min(values),
                        "high": max(values), "n": len(values)})  # fmt: skip
    return out


def planted_detected(result_rows: list[dict[str, Any]]) -> bool | None:
    """True if a throttle set 10 % wrong deviates by more than 5 % wherever the correct one does not. None:
    undecided everywhere, because it was not run or the host was too busy for the correct one as well.
    """
    rates = {(r["case"], r["engine"]): r["value"] for r in result_rows if r["metric"] == "rate"}
    detected = [rates[c, PLANTED] < 95 for c, e in rates if e == Blkio.name and rates[c, e] >= 95
            and (c, PLANTED) in rates]  # fmt: skip
    return all(detected) if detected else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one round of short runs")
    parser.add_argument("--guest", action="store_true", help="io.max in the guest as well")
    record.option(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runtime", type=float, default=5.0, help="seconds per case and engine")
    arguments = parser.parse_args()
    rounds, seconds = (1, 1.5) if arguments.quick else (arguments.rounds, arguments.runtime)
    try:
        result_rows, absent = measure(rounds, seconds)
        if arguments.guest:
            result_rows += in_guest(min(rounds, 3), seconds)
    except PenstockError as error:
        print(f"throttles: {error}", file=sys.stderr)
        return 1
    seen = planted_detected(result_rows)
    if arguments.json:
        print(json.dumps({"rows": result_rows, "not_run": absent, "planted_found": seen}))
    else:
        print(f"{'case':<22}{'engine':<30}{'metric':<7}{'median':>9}{'low':>9}{'high':>9} unit, n")
        for r in result_rows:
            print(f"{r['case']:<22}{r['engine']:<30}{r['metric']:<7}{r['value']:>9.3f}"
                  f"{r['low']:>9.3f}{r['high']:>9.3f} {r['unit']}, {r['n']}")  # fmt: skip
        for name, reason in absent.items():
            print(f"not run: {name}: {reason}")
        verdicts = {True: "found", False: "NOT FOUND", None: "undecided"}
        print(f"planted failure (limit 10 % off): {verdicts[seen]}")
    record.keep(
        arguments.record, [record_row(r) for r in result_rows], {"a throttle set 10 % wrong": seen}
    )
    return 0 if seen is not False else 1


def record_row(r: record.Row) -> record.Row:
    """A row with the goal of penstock's rate; the other figures have none."""
    if r["metric"] not in ("rate", "KS") or r["engine"] == PLANTED:
        return r
    if (r["engine"], r["metric"]) != ("penstock", "rate"):
        return {**r, "quoted": True}
    verdict = record.MET if abs(r["value"] - 100) <= RATE_WITHIN else record.MISSED
    return {**r, "quoted": True, "bar": f"within {RATE_WITHIN:g} %", "verdict": verdict}


if __name__ == "__main__":
    sys.exit(main())
