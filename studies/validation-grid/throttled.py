"""Run cells on throttled disks (`cgroup1`, `cgroup2`), on this host or in the guest; print one JSON object.

Arguments: BACKEND PLACE CELLS.json WORKERS. Each worker has its own disk and control group. Cells of
different workers run concurrently, which their devices sustain as long as the sum of the limits is small.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cells import BLOCK_BYTES, MEMORY_BYTES, Cell, by_direction

from penstock.emulate.backends import Backends, Place
from penstock.emulate.backends.throttled import ThrottledDisk
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.storage.residency import drop_file_cache
from penstock.spec.cluster import DiskSpec

#: free space of a disk beyond its largest file [bytes]
ROOM_BYTES = 96 << 20
ENTER = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ >"$1" || exit 125; shift; n=$((n-1)); done; exec "$@"'


class Worker:
    """A disk and a group, and the cells that run on them one after the other."""

    def __init__(
        self,
        backends: Backends,
        journal: Journal,
        backend: Any,
        base: Path,
        number: int,
        size_bytes: int,
    ) -> None:
        place = base / f"w{number}"
        for name in ("mount", "files"):
            (place / name).mkdir(parents=True)
        self.group: RunCgroup = create_run_cgroup(f"grid{number}", MEMORY_BYTES, journal)
        spec = DiskSpec("data", backend=backend, size_bytes=size_bytes, allow_unhonoured=True)
        disk_place = Place(f"w{number}", place / "mount", place / "files", self.group)
        disk = backends.up(spec, disk_place)
        assert isinstance(disk, ThrottledDisk)
        self.disk = disk
        self.base = base

    def run(self, cell: Cell) -> dict[str, Any]:
        """Create the file, limit the disk, run fio in the group."""
        path = self.disk.mount / "file"
        self.disk.set_limits(dict.fromkeys(("read_bps", "write_bps")))
        # by a process of the group: write-back is charged to the group that first wrote to the file
        created = self._inside(["dd", "if=/dev/zero", f"of={path}", "bs=65536", "conv=fsync",
                             f"count={cell.file_bytes // BLOCK_BYTES}"], 120)  # fmt: skip
        if created.returncode != 0:
            raise PenstockError(f"cannot create the file: {created.stderr.strip()[-200:]}")
        drop_file_cache(path)
        limit = cell.limit_bps * (1 - cell.planted)
        applied = self.disk.set_limits({"read_bps": limit, "write_bps": limit})
        self.disk.begin(self.base)
        pulse, began = Pulse(), time.monotonic_ns()
        result = self._inside(cell.fio(str(path)), timeout_s=60 + 4 * cell.bytes / cell.limit_bps)
        took_s = (time.monotonic_ns() - began) / 1e9
        late, busy = pulse.stop()
        counts = self.disk.stats()
        windows = self.disk.end_rows() or []
        path.unlink()
        return {
            "cell": asdict(cell),
            "backend": self.disk.backend,
            "error": applied.error or (result.stderr.strip()[-300:] if result.returncode else ""),
            "seconds": took_s,
            "late": late,
            "busy": busy,
            "fio": by_direction(result.stdout) if result.returncode == 0 else {},
            "device": counts,
            "windows": windows,
        }

    def down(self) -> None:
        """Remove disk and group."""
        self.disk.down()
        self.group.remove()

    def _inside(self, argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        enter = self.group.enter_args()
        line = ["/bin/sh", "-c", ENTER, "sh", str(len(enter)), *enter, *argv]
        return subprocess.run(line, capture_output=True, text=True, timeout=timeout_s)


class Pulse:
    """A thread that repeatedly sleeps 10 ms and sums its oversleep, and the times of the processors. Both
    indicate a busy host: late sleepers, and no idle processor.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._late_s = 0.0
        self._began = time.monotonic()
        self._processors = _processor_times()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            before = time.monotonic()
            time.sleep(0.01)
            self._late_s += max(0.0, time.monotonic() - before - 0.012)

    def stop(self) -> tuple[float, float]:
        """Relative lateness, and share of time in which processors were not idle."""
        self._ended.set()
        self._thread.join()
        late = self._late_s / (time.monotonic() - self._began)
        idle, total = (b - a for a, b in zip(self._processors, _processor_times(), strict=True))
        return late, 1.0 - idle / total if total else 0.0


def _processor_times() -> tuple[int, int]:
    """Ticks in which processors were idle or waited for I/O, and all ticks (proc_stat(5))."""
    ticks = [int(t) for t in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def run(backend: str, base: Path, cells: list[Cell], workers: int) -> dict[str, Any]:
    """Run all cells, those of one worker one after the other."""
    journal = Journal(base / "journal.jsonl")
    backends = Backends(journal, base / "state")
    size_bytes = max(c.file_bytes for c in cells) + ROOM_BYTES
    crew = [Worker(backends, journal, backend, base, n, size_bytes) for n in range(workers)]
    queue, results, lock = list(cells), [], threading.Lock()

    def work(worker: Worker) -> None:
        while True:
            with lock:
                if not queue:
                    return
                cell = queue.pop(0)
            try:
                result = worker.run(cell)
            except Exception as error:  # one cell's failure is a result of that cell
                result = {
                    "cell": asdict(cell),
                    "backend": backend,
                    "error": f"{type(error).__name__}: {error}",
                }
            with lock:
                results.append(result)
                print(f"{len(results)}/{len(cells)} {cell.name}", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=work, args=(w,)) for w in crew]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    facts, notes = crew[0].disk.facts(), list(crew[0].disk.notes)
    for worker in crew:
        worker.down()
    backends.stop()
    return {"results": results, "facts": facts, "notes": notes, "left": len(journal.open_entries())}


def main() -> None:
    """Read the cells, run them, print the results."""
    backend, base, cells, workers = sys.argv[1:5]
    chosen = [Cell(**c) for c in json.loads(Path(cells).read_text())]
    print("RESULT " + json.dumps(run(backend, Path(base), chosen, int(workers))))


if __name__ == "__main__":
    main()
