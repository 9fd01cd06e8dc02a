"""One profile in real time and in virtual time: an emulated disk under fio, and a simulation of its station.

Each workload runs on a mounted disk (fio, direct I/O). The requests in the disk's log, in their order and
with their clients, are then sent to the same station in virtual time, in a closed loop without think time.
fio's rate and latency quantiles are compared with those of the simulation. A round without a valid
certificate is repeated; a workload without a valid round is not evaluated. Planted failure: a disk 5 % slow,
whose throughput must be reported. Exit status 1 if a workload deviates or the planted failure is not
detected; 4 if too few workloads could be evaluated on this host.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock import _native as native
from penstock.analyse.fidelity.fidelity import certificate, is_valid
from penstock.analyse.fidelity.fio_witness import confirm_fio, served_by_log
from penstock.analyse.fidelity.second_source import doubts
from penstock.emulate.disks.request_log import read_disk_log
from penstock.emulate.disks.server import DiskServer
from penstock.host.journal.journal import Journal
from penstock.profile import load_profile

RATE_LIMIT, QUANTILE_LIMIT = 0.02, 0.10
#: minimum number of requests for p50 and p99
FEWEST = {"p50": 100, "p99": 500}
WITHIN = (
    f"throughput within {RATE_LIMIT:.0%}, p50 and p99 within {QUANTILE_LIMIT:.0%} of the simulator"
)
SIZE = 64 << 20
KIB, MIB = 1 << 10, 1 << 20


def device(servers: int, overhead: dict[str, Any], **more: Any) -> dict[str, Any]:
    accesses = {"sequential": {"overhead": overhead}, "random": {"overhead": overhead}}
    values = {"schema": "penstock/storage-profile/1", "name": "bench", "servers": servers}
    return {**values, "read": accesses, "write": accesses, **more}


def constant(milliseconds: float) -> dict[str, Any]:
    return {"kind": "constant", "value_s": milliseconds / 1e3}


def lognormal(milliseconds: float, sigma: float) -> dict[str, Any]:
    return {"kind": "lognormal", "mean_s": milliseconds / 1e3, "sigma": sigma}


def ready(name: str, time_scale: float) -> dict[str, Any]:
    return load_profile(name).scaled(time_scale).to_dict()


@dataclass(frozen=True)
class Workload:
    """A fio job on a device; `changes`: (seconds after the start, patch)."""

    name: str
    profile: dict[str, Any]
    fio: dict[str, Any]
    changes: tuple[tuple[float, dict[str, Any]], ...] = ()


def job(rw: str, block: str, depth: int = 1, **more: Any) -> dict[str, Any]:
    """A job. Random jobs get their depth from threads: at its end, fio collects the last requests of an
    asynchronous engine together and counts the first of them late.
    """
    engine: dict[str, Any] = {"ioengine": "psync"}
    if depth > 1 and rw.startswith("rand"):
        engine |= {"numjobs": depth, "thread": 1}
    elif depth > 1:
        engine = {"ioengine": "libaio", "iodepth": depth}
    return {"rw": rw, "bs": block, **engine, **more}


def workloads() -> list[Workload]:
    single, spread = device(1, constant(4)), device(1, lognormal(5, 0.5))
    four, quick = device(4, constant(4)), device(4, constant(1))
    flash, hard = ready("px05smb040", 150), load_profile("hdd-7200").to_dict()
    near = load_profile("hdd-7200-seek").to_dict()
    arm = {**near, "seek": {**near["seek"], "span_bytes": SIZE}}
    volume = ready("network-volume", 8)
    cache = {"size_bytes": 4 * MIB, "drain_rate_bps": 2.0 * MIB, "overhead": constant(2)}
    iops = {"baseline": 150.0, "burst": 600.0, "capacity": 400.0}
    bytes_ = {"baseline": 2.0 * MIB, "burst": 8.0 * MIB, "capacity": 6.0 * MIB}
    mixed = {"rwmixread": 70}
    return [
        Workload("4 ms, 4k random read", single, job("randread", "4k")),
        Workload("lognormal 5 ms, 4k random read", spread, job("randread", "4k")),
        Workload("lognormal 5 ms, 4k random write, depth 8", spread, job("randwrite", "4k", 8)),
        Workload("4 servers of 4 ms, depth 2", four, job("randread", "4k", 2)),
        Workload("4 servers of 4 ms, depth 4", four, job("randread", "4k", 4)),
        Workload("4 servers of 4 ms, depth 64", four, job("randread", "4k", 64)),
        Workload("4 servers of 4 ms, mixed, depth 8", four, job("randrw", "4k", 8, **mixed)),
        Workload("hard disk, 64k sequential read", hard, job("read", "64k", 2)),
        Workload("hard disk, 4k random read", hard, job("randread", "4k")),
        Workload("hard disk, 4k random write, depth 8", hard, job("randwrite", "4k", 8)),
        Workload("hard disk, 256k mixed, depth 4", hard, job("randrw", "256k", 4, **mixed)),
        Workload("arm, near, 4k random read", near, job("randread", "4k")),
        Workload("arm, far, 4k random read", arm, job("randread", "4k")),
        Workload("arm, far, 64k mixed, depth 4", arm, job("randrw", "64k", 4, **mixed)),
        Workload("flash x150, 4k sequential read", flash, job("read", "4k")),
        Workload("flash x150, 4k random read", flash, job("randread", "4k")),
        Workload("flash x150, 28k sequential read", flash, job("read", "28k")),
        Workload("flash x150, 28k random write", flash, job("randwrite", "28k")),
        Workload("flash x150, 4k random read, 16 jobs", flash, job("randread", "4k", 16)),
        Workload("flash x150, readahead off", flash, job("read", "4k"),
                 ((0.0, {"readahead": False}),)),
        Workload("read limit 4 MiB/s, 64k, depth 4", {**quick, "limits": {"read_bps": 4 * MIB}},
                 job("randread", "64k", 4)),
        Workload("write limit 200/s, 4k", {**quick, "limits": {"write_iops": 200}},
                 job("randwrite", "4k")),
        Workload("both limits, mixed, depth 16",
                 {**quick, "limits": {"read_iops": 300, "write_bps": 400 * KIB}},
                 job("randrw", "4k", 16, **mixed)),
        Workload("credits of requests run out", {**quick, "credits": {"iops": iops}},
                 job("randread", "4k", 8)),
        Workload("credits of bytes run out", {**quick, "credits": {"bytes": bytes_}},
                 job("write", "64k", 4)),
        Workload("write cache, fsync every 32", {**single, "write_cache": cache},
                 job("randwrite", "16k", fsync=32)),
        Workload("write cache that fills up",
                 {**quick, "write_cache": {**cache, "drain_rate_bps": 8.0 * MIB}},
                 job("write", "64k", 4)),
        Workload("network volume x8, 4k random read", volume, job("randread", "4k")),
        Workload("network volume x8, depth 32", volume, job("randread", "16k", 32)),
        Workload("a limit set and lifted", quick, job("randread", "4k", 2),
                 ((0.7, {"limits": {"read_iops": 200}}), (1.5, {"limits": {"read_iops": "max"}}))),
        Workload("slow by 4 for a while", four, job("randread", "4k", 8),
                 ((0.7, {"slow": {"factor": 4}}), (1.5, {"slow": "max"}))),
        # no stall at the end of a run, and so many that p99 is a delayed request
        Workload("stalls of 50 ms", single, job("randwrite", "4k"),
                 ((0.1, {"slow": {"stall": {"period_s": 0.25, "length_s": 0.05}}}),)),
    ]  # fmt: skip


@dataclass
class Seen:
    """Results of a workload: real and virtual values by metric, and the validity of the certificate."""

    real: dict[str, float]
    virtual: dict[str, float]
    n: dict[str, int]
    valid: bool
    reason: str

    def off(self) -> list[str]:
        """Metrics beyond their limits."""
        out = []
        for metric, virtual in self.virtual.items():
            limit = RATE_LIMIT if metric == "throughput" else QUANTILE_LIMIT
            if self.real.get(metric) and abs(self.real[metric] / virtual - 1) > limit:
                out.append(f"{metric} {100 * (self.real[metric] / virtual - 1):+.1f} %")
        return out


#: metrics of a workload in virtual time, and the number of requests of each
Virtual = tuple[dict[str, float], dict[str, int]]


@dataclass
class Bench:
    """A disk server with one disk at a time; `virtual` gives the expected values of a workload."""

    base: Path
    server: DiskServer
    seconds: float
    virtual: Callable[[Workload, Any, list[dict[str, Any]]], Virtual]
    count: int = field(default=0)

    def run(self, work: Workload, slow_by: float = 0.0, **planted: float) -> Seen:
        """One round of a workload, on a disk with a planted slowdown, or a server with `plant`."""
        self.count += 1
        disk_id = f"d{self.count}"
        mount = self.base / disk_id
        mount.mkdir()
        backing, plant = self.base / "backing", {"slow_by": slow_by, **planted}
        self.server.add(disk_id, mount, backing, work.profile, plant=plant, seed=5)
        try:
            return self._measure(work, disk_id, mount)
        finally:
            self.server.remove(disk_id)
            mount.rmdir()

    def _measure(self, work: Workload, disk_id: str, mount: Path) -> Seen:
        log = self.base / "requests"
        self.server.reset(disk_id)
        self.server.log(disk_id, log)
        now = time.monotonic_ns()
        for at_s, patch in work.changes:
            if at_s == 0:
                self.server.patch(disk_id, patch)
        later = [
            {"at_ns": now + int((at_s + 0.25) * 1e9), "patch": patch}
            for at_s, patch in work.changes
            if at_s
        ]
        if later:
            self.server.schedule(disk_id, later)
        output = fio(mount / "f", self.seconds, work.fio)
        self.server.log(disk_id, None)
        stats = self.server.stats(disk_id, closing=True)
        events = self.server.events(disk_id)["events"]
        table = read_disk_log(log, disk_id=disk_id)
        waits = self.server.host_waits(disk_id)
        judgement = certificate(table, stats, work.profile, events=events, host_waits=waits)
        virtual, n = self.virtual(work, table.to_pandas(), events)
        virtual = dict(virtual)
        valid, reason = is_valid(judgement.overall)
        # the same check as in a campaign
        direct = bool(work.fio.get("direct", 1))
        confirmation = confirm_fio({"jobs": [output]}, served_by_log(table), direct=direct)
        rows = confirmation.to_pylist()
        doubted = doubts(rows, "fio")
        valid, reason = valid and not doubted, "; ".join(filter(None, [reason, *doubted]))
        for row in rows:
            if row["metric"] == "p99" and not row["agrees"]:  # reported, not evaluated
                virtual.pop(f"p99 {row['direction']}", None)
        return Seen(from_fio(output), virtual, n, valid, reason)


def fio(path: Path, seconds: float, options: dict[str, Any]) -> dict[str, Any]:
    """fio's results of a job on the file; with `own_files`, on one file per thread."""
    own = "own_files" in options
    target = f"--directory={path.parent}" if own else f"--filename={path}"
    job_options = [f"--{name}={value}" for name, value in options.items() if name != "own_files"]
    argv = [
        "fio", "--name=crosscheck", target, f"--size={SIZE}", "--direct=1",
        "--time_based", f"--runtime={round(seconds * 1000)}ms", "--overwrite=1", "--norandommap",
        "--randseed=7", "--group_reporting", "--output-format=json", *job_options,
    ]  # fmt: skip
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    output: dict[str, Any] = json.loads(text[text.index("{") :])["jobs"][0]
    return output


def from_fio(output: dict[str, Any]) -> dict[str, float]:
    """Bytes per second of both directions, and quantiles of each [ns]."""
    sides = [output["read"], output["write"]]
    runtime_s = max(side["runtime"] for side in sides) / 1e3
    seen = {"throughput": sum(side["io_bytes"] for side in sides) / runtime_s}
    for name, side in zip(("read", "write"), sides, strict=True):
        for metric, percentile in (("p50", "50.000000"), ("p99", "99.000000")):
            latency_ns = side["clat_ns"].get("percentile", {}).get(percentile)
            if latency_ns and side["total_ios"] >= FEWEST[metric]:
                seen[f"{metric} {name}"] = float(latency_ns)
    return seen


def simulated(work: Workload, log: Any, events: list[dict[str, Any]]) -> Virtual:
    """The same requests of the same clients in virtual time."""
    log = log.assign(code=log["op"].astype(str).map({"read": 0, "write": 1, "flush": 2}))
    begin_ns = int((log["t_ns"] - log["compensation_ns"]).min())
    depth = int(work.fio.get("iodepth", 1))
    jobs = log.groupby("pid", sort=False) if work.fio.get("numjobs") else [(0, log)]
    clients = []
    for _, part in jobs:
        pattern = {
            "kind": "explicit",
            "op": part["code"].tolist(),
            "offset_bytes": part["device_offset_bytes"].tolist(),
            "size_bytes": part["size_bytes"].tolist(),
        }
        clients.append({"iodepth": depth, "pattern": pattern, "device_offset_bytes": 0})
    changes = [
        {"t_ns": max(0, e["applied_ns"] - begin_ns), "patch": e["asked"]}
        for e in sorted(events, key=lambda e: e["applied_ns"])
    ]
    return in_virtual_time(work.profile, clients, changes)


def in_virtual_time(
    profile: dict[str, Any], clients: list[dict[str, Any]], changes: list[dict[str, Any]]
) -> Virtual:
    """Results of a closed loop of clients on a device."""
    spec = {"profile": profile, "seed": 5, "clients": clients, "quantiles": [0.5, 0.99],
            "changes": changes}  # fmt: skip
    outcome = json.loads(native.simulate_closed(json.dumps(spec)))
    sides = [outcome["read"], outcome["write"]]
    bytes_ = sum(side["bytes"] for side in sides)
    seen = {"throughput": bytes_ / outcome["elapsed_s"]}
    counts = {"throughput": sum(side["operations"] for side in sides)}
    for name, side in zip(("read", "write"), sides, strict=True):
        for metric, (_, latency_ns) in zip(("p50", "p99"), side["latency_ns"], strict=True):
            if side["operations"] >= FEWEST[metric]:
                seen[f"{metric} {name}"] = float(latency_ns)
                counts[f"{metric} {name}"] = int(side["operations"])
    return seen, counts


def bench_on(base: Path, seconds: float, virtual: Any = simulated) -> Iterator[Bench]:
    (base / "backing").mkdir()
    (base / "backing" / "f").write_bytes(np.random.default_rng(1).bytes(SIZE))
    with DiskServer(Journal(), base / "state") as server:
        yield Bench(base, server, seconds, virtual)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="every fourth workload, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=2.5, help="duration of each workload and round"
    )
    parser.add_argument("--only", default="", help="only workloads whose name contains this text")
    record.option(parser)
    parser.add_argument(
        "--anyway", action="store_true", help="accept rounds on a busy host as well"
    )
    arguments = parser.parse_args()
    chosen = [w for w in workloads() if arguments.only in w.name]
    rounds, seconds = arguments.rounds, arguments.seconds
    if arguments.quick:
        chosen, rounds, seconds = chosen[::4], 1, min(seconds, 2.0)
    rows: list[dict[str, Any]] = []
    deviations, not_evaluated = [], []
    with tempfile.TemporaryDirectory(prefix="penstock-crosscheck-") as place:
        for bench in bench_on(Path(place), seconds):
            for work in chosen:
                seen, tries = [], 0
                while len(seen) < rounds and tries < rounds + 2:
                    tries += 1
                    outcome = bench.run(work)
                    if outcome.valid or arguments.anyway:
                        seen.append(outcome)
                    else:
                        print(f"{work.name}: not evaluated: {outcome.reason[:90]}", file=sys.stderr)
                if not seen:
                    not_evaluated.append(work.name)
                    continue
                rows += rows_of(work.name, seen)
                deviations += verdict(work.name, seen)
            planted = bench.run(workloads()[0], slow_by=0.05)
            rows += rows_of("planted 5 % slow", [planted])
            detected = any(deviation.startswith("throughput") for deviation in planted.off())
    if arguments.json:
        print(json.dumps(rows))
    else:
        show(rows)
        print(
            f"{len(chosen) - len(not_evaluated)} of {len(chosen)} workloads evaluated, {len(deviations)} off"
        )
        print(f"a disk planted 5 % slow: {'found' if detected else 'NOT FOUND'} ({planted.off()})")
    for deviation in deviations:
        print(deviation, file=sys.stderr)
    evaluated = len(chosen) - len(not_evaluated)
    deviating = {deviation.rsplit(": ", 1)[0] for deviation in deviations}
    totals = [
        record.share("workloads", "", "judged", evaluated, len(chosen), 0.8),
        record.share("workloads", "", WITHIN, evaluated - len(deviating), evaluated),
        *(
            {"case": name, "engine": "", "metric": "off", "value": metric, "unit": ""}
            for name, metric in (deviation.rsplit(": ", 1) for deviation in deviations)
        ),
    ]
    totals = [{**row, "quoted": True} for row in totals]
    record.keep(arguments.record, totals + rows, {"a disk 5 % slow": detected})
    if deviations or not detected:
        return 1
    return 4 if len(not_evaluated) > len(chosen) // 5 else 0


def verdict(name: str, seen: list[Seen]) -> list[str]:
    """Deviations of the median of the rounds."""
    out = []
    for metric in seen[0].virtual:
        ratios = [s.real[metric] / s.virtual[metric] for s in seen if metric in s.real]
        limit = RATE_LIMIT if metric == "throughput" else QUANTILE_LIMIT
        if ratios and abs(statistics.median(ratios) - 1) > limit:
            out.append(f"{name}: {metric} {100 * (statistics.median(ratios) - 1):+.1f} %")
    return out


def rows_of(name: str, seen: list[Seen]) -> list[dict[str, Any]]:
    out = []
    for metric in seen[0].virtual:
        pairs = [(s.real[metric], s.virtual[metric]) for s in seen if metric in s.real]
        if not pairs:
            continue
        unit = "B/s" if metric == "throughput" else "ns"
        for engine, values in (
            ("disk", [a for a, _ in pairs]),
            ("simulator", [b for _, b in pairs]),
            ("disk / simulator", [a / b for a, b in pairs]),
        ):
            out.append(
                {
                    "case": name,
                    "engine": engine,
                    "metric": metric,
                    "value": statistics.median(values),
                    "unit": "1" if engine == "disk / simulator" else unit,
                    "low": min(values),
                    "high": max(values),
                    "n": seen[0].n.get(metric, len(values)),
                }
            )
    return out


def show(rows: list[dict[str, Any]]) -> None:
    print(
        f"{'workload':<42}{'metric':<12}{'disk':>12}{'simulator':>12}{'ratio':>8}{'low':>8}{'high':>8}"
    )
    for case, metric in dict.fromkeys((r["case"], r["metric"]) for r in rows):
        three = {r["engine"]: r for r in rows if (r["case"], r["metric"]) == (case, metric)}
        scale, unit = (MIB, "MiB/s") if metric == "throughput" else (1e6, "ms")
        ratio = three["disk / simulator"]
        print(
            f"{case:<42}{metric:<12}{three['disk']['value'] / scale:>9.3f} {unit[:2]}"
            f"{three['simulator']['value'] / scale:>9.3f} {unit[:2]}"
            f"{ratio['value']:>8.3f}{ratio['low']:>8.3f}{ratio['high']:>8.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
