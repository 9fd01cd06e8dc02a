"""Generators that wait for a device; each measures its time by its own clock.

A case prepares its data once and then runs repeatedly in a control group. `run` returns the seconds of the
measured part (without starting servers) and, if the generator reports it, the 99.9th percentile [ns].
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.host.cgroups.cgroup import RunCgroup
from penstock.host.processes.launch import launch

HERE = Path(__file__).resolve().parent
BLOCK = 28 << 10


@dataclass
class Case:
    """`mount` is the directory that the generator reads, `backing` the one with its data (the same without a
    disk).
    """

    name: str
    mount: Path
    backing: Path
    size: dict[str, int]
    memory_bytes: int | None = None
    answer: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        raise NotImplementedError

    def argv(self) -> list[str]:
        raise NotImplementedError

    def read(self, output: str) -> tuple[float, float | None]:
        raise NotImplementedError

    def run(self, group: RunCgroup, log: Path) -> tuple[float, float | None]:
        drop(self.mount)
        log.unlink(missing_ok=True)
        finished = launch(self.argv(), group, stdout=log, stderr=log.with_suffix(".err"))
        if finished.exit_status != 0:
            raise RuntimeError(f"{self.name} ended with status {finished.exit_status}")
        return self.read(log.read_text())


def drop(directory: Path) -> None:
    """Remove the files below a directory from the page cache."""
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                fd = os.open(Path(root) / name, os.O_RDONLY)
            except OSError:
                continue
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Direct(Case):
    """fio: one process, direct reads of 28 KiB at random offsets, `bytes` of them from a file of `file`."""

    def prepare(self) -> None:
        with (self.backing / "direct").open("wb") as file:
            for _ in range(self.size["file"] >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())

    def argv(self) -> list[str]:
        return [
            "fio", "--name=direct", f"--filename={self.mount}/direct", "--rw=randread", f"--bs={BLOCK}",
            "--direct=1", "--ioengine=psync", f"--size={self.size['file']}",
            f"--io_size={self.size['bytes']}", "--norandommap", "--randseed=1",
            "--thread", "--output-format=json",
        ]  # fmt: skip

    def read(self, output: str) -> tuple[float, float | None]:
        job = json.loads(output[output.index("{") :])["jobs"][0]
        reads = job["read"]
        if reads["io_bytes"] < 0.99 * self.size["bytes"]:
            raise RuntimeError(f"fio read {reads['io_bytes']} bytes of {self.size['bytes']}")
        mean_s = reads["clat_ns"]["mean"] / 1e9
        return mean_s * reads["total_ios"], float(reads["clat_ns"]["percentile"]["99.900000"])


class Rocks(Case):
    """db_bench: `reads` random reads in a database of `entries` entries of 1 KB, several times the memory."""

    def _argv(self, directory: Path, *more: str) -> list[str]:
        return [
            "db_bench", f"--db={directory}/rocks", f"--num={self.size['entries']}", "--value_size=1000",
            "--compression_type=none", "--cache_size=1048576", "--seed=1", "--threads=1", *more,
        ]  # fmt: skip

    def prepare(self) -> None:
        line = self._argv(self.backing, "--benchmarks=fillseq", "--disable_wal=1")
        subprocess.run(line, check=True, capture_output=True)

    def argv(self) -> list[str]:
        reads = f"--reads={self.size['reads']}"
        return self._argv(self.mount, "--benchmarks=readrandom", "--use_existing_db=1", reads)

    def read(self, output: str) -> tuple[float, float | None]:
        time = re.search(r"readrandom\s*:\s*([\d.]+) micros/op", output)
        if time is None:
            raise RuntimeError("db_bench printed no time")
        return float(time[1]) * self.size["reads"] / 1e6, None


class Postgres(Case):
    """pgbench, select only: `transactions` as fast as possible, or at `rate` per second (their latency)."""

    def prepare(self) -> None:
        script = HERE.parents[1] / "examples" / "postgres" / "prepare.sh"
        line = [str(script), str(self.backing), str(self.size["scale"]), "1"]
        subprocess.run(line, check=True, capture_output=True)

    def argv(self) -> list[str]:
        arguments = [str(self.mount), str(self.size["transactions"]), str(self.size.get("rate", 0))]
        return [str(HERE / "pgbench.sh"), *arguments]

    def read(self, output: str) -> tuple[float, float | None]:
        transactions = self.size["transactions"]
        if f"processed: {transactions}/{transactions}" not in output:
            raise RuntimeError("pgbench did not process all transactions")
        latency = re.search(r"latency average = ([\d.]+) ms", output)
        lag = re.search(r"rate limit schedule lag: avg ([\d.]+)", output)
        if latency is None:
            raise RuntimeError("pgbench printed no latency")
        mean_ms = float(latency[1]) - (float(lag[1]) if lag else 0.0)
        return mean_ms * transactions / 1e3, None


def missing() -> dict[str, str]:
    """Missing requirement of each case."""
    by_case = {}
    if shutil.which("fio") is None:
        by_case["direct"] = "fio"
    if shutil.which("db_bench") is None:
        by_case["rocksdb"] = "db_bench (Debian: rocksdb-tools)"
    if not list(Path("/usr/lib/postgresql").glob("*/bin/pgbench")):
        by_case["postgres"] = "PostgreSQL (Debian: postgresql)"
    return by_case
