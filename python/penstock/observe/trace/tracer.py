"""The tracer daemon, armed around a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.host.cgroup import RunCgroup
from penstock.host.daemon import start_daemon
from penstock.host.journal import Journal
from penstock.observe.trace.closing import closing_sentence
from penstock.observe.trace.events import FIRST_SYNC, events_table, files_table, read_spool
from penstock.observe.trace.names import read_names
from penstock.observe.trace.patterns import judge_events, judge_streams, patterns_table

MODES = ("trace", "pattern")
RING_BYTES = 64 << 20

#: added ns per kept call for the estimate in the receipt (bench/trace_overhead.py on the development machine)
NOMINAL_NS = {"trace": 170, "pattern": 110}


@dataclass(frozen=True)
class TraceResult:
    """What tracing one run left: tables `io_events` (mode trace), `files`, `patterns`; the receipt.

    `verdicts` are the rows behind `patterns`, one per file and direction; `closing` is the sentence.
    """

    tables: dict[str, pa.Table]
    receipt: dict[str, Any]
    verdicts: list[dict[str, Any]] = field(repr=False)
    closing: str


class Tracer:
    """Loads the BPF programs once; armed and disarmed for each run.

    `mode` is `trace` (every call is recorded) or `pattern` (only counters are kept). `ring_bytes` is for all
    CPUs together; `drop_every` plants losses, for tests. Raises PenstockError if the kernel refuses.
    """

    def __init__(
        self,
        journal: Journal,
        state_dir: Path,
        mode: str = "trace",
        *,
        ring_bytes: int = RING_BYTES,
        drop_every: int = 0,
    ):
        if mode not in MODES:
            raise ValueError(f"no tracing mode {mode}: it is one of {', '.join(MODES)}")
        self.mode = mode
        self._spool = Path(state_dir) / "spool"
        self._spool.mkdir(parents=True, exist_ok=True)
        self._daemon = start_daemon(
            "tracer", {"mode": mode, "ring_bytes": ring_bytes, "drop_every": drop_every}, journal
        )
        self._started_ns = 0
        self._where: tuple[Path, Path] | None = None
        self._disks: Mapping[tuple[int, int], str] = {}

    @property
    def pid(self) -> int:
        """Of the daemon."""
        return self._daemon.pid

    def arm(
        self,
        cgroup: RunCgroup | int,
        out_dir: Path | None = None,
        disks: Mapping[tuple[int, int], str] | None = None,
    ) -> None:
        """Records from now on what the group's members do, and those of groups inside it.

        `disks` maps the device (major, minor) of an emulated disk's mount to its disk_id. The spool lies in
        `out_dir` (default: the state directory) until `disarm`.
        """
        number = cgroup if isinstance(cgroup, int) else cgroup.cgroup_id
        if number == 0:
            raise PenstockError(
                "tracing needs the unified control-group hierarchy (mount -t cgroup2), "
                "by which the kernel side tells the run's processes from others"
            )
        base = Path(out_dir) if out_dir is not None else self._spool
        base.mkdir(parents=True, exist_ok=True)
        stem = f"trace-{self.pid}-{time.monotonic_ns()}"
        self._where = (base / f"{stem}.events", base / f"{stem}.files")
        self._disks = dict(disks or {})
        self._daemon.call(
            "arm", cgroup_id=number, spool=str(self._where[0]), files=str(self._where[1])
        )
        self._started_ns = time.monotonic_ns()

    def status(self) -> dict[str, Any]:
        """Counts so far: seen, kept, filtered, lost, spooled."""
        return self._daemon.call("status")

    def disarm(self) -> TraceResult:
        """Stops recording; tables, verdicts and the receipt of what was recorded."""
        if self._where is None:
            raise PenstockError("the tracer is not armed")
        receipt = self._daemon.call("disarm")
        wall_ns = time.monotonic_ns() - self._started_ns
        spool, names = self._where
        try:
            return self._result(receipt, spool, names, wall_ns)
        finally:
            self._where = None
            for path in (spool, names):
                with contextlib.suppress(OSError):
                    path.unlink()

    def stop(self) -> None:
        """Ends the daemon; nothing stays loaded."""
        self._daemon.stop()

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _result(
        self, receipt: dict[str, Any], spool: Path, names_path: Path, wall_ns: int
    ) -> TraceResult:
        files = files_table(names_path, self._disks)
        paths = dict(
            zip(files.column("file_id").to_pylist(), files.column("path").to_pylist(), strict=True)
        )
        names = read_names(names_path)
        tables = {"files": files, "file_names": names.table(), "operations": names.sums()}
        if self.mode == "trace":
            events = names.settle(read_spool(spool))
            cgroups = {int(slot): number for slot, number in receipt["cgroups"].items()}
            tables["io_events"] = events_table(events, cgroups)
            rows = judge_events(events[events["op"] < FIRST_SYNC])
        else:
            rows = judge_streams(spool)
        tables["patterns"] = patterns_table(rows, paths)
        receipt = dict(receipt) | {
            "added_ns_per_call": NOMINAL_NS[self.mode],
            "added_ns_basis": "nominal, of the machine that bench/trace_overhead.py was run on",
            "added_share": receipt["kept"] * NOMINAL_NS[self.mode] / max(wall_ns, 1),
            "tracer_cpu_share": receipt["cpu_ns"] / max(wall_ns, 1),
            "wall_ns": wall_ns,
        }
        closing = closing_sentence(rows, paths, wall_ns, receipt["lost"])
        return TraceResult(tables, receipt, rows, closing)
