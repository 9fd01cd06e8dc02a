"""Layers below the calls of a run: page cache, block requests, write-back, and layout of the files.

A separate daemon observes the page cache and the block layer while a control group is traced; afterwards its
records are joined with the traced operations (`layers_join`), and residency and extents of the files are read
(`layers_files`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.analyse.traces.served import Served, served_by, summed
from penstock.archive.sql import Database
from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.host.processes.daemon import start_daemon
from penstock.host.storage.blockdev import disk_name
from penstock.observe.trace.capture.overhead import Added, shares
from penstock.observe.trace.capture.salvage import what_is_missing
from penstock.observe.trace.capture.tracer import TraceResult
from penstock.observe.trace.layers.device_order import judge_device, with_reasons
from penstock.observe.trace.layers.files import extents_table, residency_table
from penstock.observe.trace.layers.join import RECORD, Joined, join
from penstock.observe.trace.show.closing_sentence import (
    Below,
    already_mapped,
    closing_sentence,
    of_paths,
    sizes_of,
    subject,
)
from penstock.observe.trace.verdicts.patterns import patterns_table

#: added ns per run of a program, by name (kernel.bpf_stats_enabled on the development machine)
NOMINAL_NS = {
    "layer_added": 300,
    "layer_dirtied": 300,
    "layer_direct": 200,
    "layer_part": 250,
    "layer_part_done": 60,
    "layer_request": 150,
    "layer_issued": 90,
    "layer_completed": 700,
}
#: overhead of the kernel's run time measurement per run [ns]
_ACCOUNT_NS = 60
#: fields of a block device's `stat` file that count requests and sectors, by direction
_STAT_FIELDS = {"read": (0, 2), "write": (4, 6)}
#: receipt of a daemon that died or failed
_SALVAGED: dict[str, Any] = {
    **dict.fromkeys(("seen", "kept", "lost", "unfinished", "cpu_ns"), 0),
    "missing": {},
    "devices": [],
    "bpf": [],
}
_ENDS_WITHIN_S = 2.0  # from hanging up to the end of a daemon
#: requests and bytes of each block device, by direction
DeviceCounters = dict[str, dict[str, tuple[int, int]]]
_DIRECTIONS = {0: "read", 1: "write", 7: "write", 9: "write"}


@dataclass(frozen=True)
class LayersResult:
    """Tables `device_requests`, `cache_use`, `writeback`, `residency`, `extents`; the receipt."""

    tables: dict[str, pa.Table]
    receipt: dict[str, Any]


class Layers:
    """BPF programs of the layers, loaded once; armed and disarmed around each run.

    `drop_every` plants losses, for tests. Raises PenstockError if the kernel refuses.
    """

    def __init__(self, journal: Journal, state_dir: Path, *, drop_every: int = 0):
        self._journal = journal
        self._spool_dir = Path(state_dir) / "spool"
        self._spool_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._daemon = start_daemon("layers", {"drop_every": drop_every}, journal)
        self._spool: Path | None = None
        self._entry: Entry | None = None
        self._receipt: dict[str, Any] | None = None
        self._counters: list[DeviceCounters] = []

    def arm(self, cgroup_id: int, out_dir: Path | None = None) -> None:
        """Start recording below the operations of a control group (its number)."""
        base = Path(out_dir) if out_dir is not None else self._spool_dir
        token = new_token()
        self._spool = base / f"layers-{token}"
        self._entry = self._journal.plan("file", self._spool, token=token)
        self._receipt = None
        self._counters = [device_counters()]
        self._daemon.call("arm", cgroup_id=cgroup_id, spool=str(self._spool))
        self._counters.append(device_counters())

    def halt(self, *, salvage: bool = False) -> None:
        """Stop recording. `disarm` does so too; this permits it before tables are built.

        With `salvage`, the spool of a daemon that died or failed is used (receipt: `incomplete`).
        """
        if self._spool is None:
            raise PenstockError("the layers are not armed")
        if self._receipt is None:
            self._counters.append(device_counters())
            try:
                self._receipt = self._daemon.call("disarm")
            except PenstockError as error:
                if not salvage:
                    raise
                gone = self._daemon.gone(_ENDS_WITHIN_S)
                why = "it ended before the trace did" if gone else str(error)
                self._receipt = _SALVAGED | {"incomplete": why}
            self._counters.append(device_counters())

    def disarm(self, files: pa.Table, events: Path | None = None) -> LayersResult:
        """Stop recording and join with the run's `files` and, in mode trace, its `io_events` (a path)."""
        self.halt()
        assert self._spool is not None
        assert self._receipt is not None
        try:
            count = self._spool.stat().st_size // RECORD.itemsize
            records = np.fromfile(self._spool, RECORD, count=count)
        finally:
            self._forget()
        joined = join(records, files, events)
        tables = {
            "device_requests": joined.requests,
            "writeback": joined.writeback,
            "residency": residency_table(files),
            "extents": extents_table(files),
        }
        if joined.cache_use is not None:
            tables["cache_use"] = joined.cache_use
        return LayersResult(tables, self._summary(self._receipt, joined))

    def stop(self) -> None:
        """End the daemon, and remove loaded programs and unread spools."""
        try:
            self._daemon.stop()
        finally:
            self._forget()

    def _forget(self) -> None:
        if self._spool is not None and self._entry is not None:
            with contextlib.suppress(OSError):
                self._spool.unlink(missing_ok=True)
                self._journal.undone(self._entry)
        self._spool = self._entry = None

    def __enter__(self) -> Layers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _summary(self, receipt: Mapping[str, Any], joined: Joined) -> dict[str, Any]:
        calls = estimated_calls(receipt)
        estimated = sum(NOMINAL_NS[name] * count for name, count in calls.items())
        metering = receipt.get("metering") or {}
        measured = bool(metering.get("windows"))
        # per run, without the two clock readings of the measurement
        others = metering.get("others") or {"time_ns": 0, "runs": 0}
        ns = max(others["time_ns"] - others["runs"] * _ACCOUNT_NS, 0.0)
        devices = conservation(receipt["devices"], self._counters, joined.attributed_bytes)
        # Some kernels skip programs in some tasks; requests in progress at the end are no loss.
        unseen = min(receipt["unfinished"], sum(row["unseen_requests"] for row in devices))
        return {
            "seen": receipt["seen"] + unseen,
            "kept": receipt["kept"],
            "lost": receipt["lost"] + unseen,
            "lost_unseen": unseen,
            "missing": receipt["missing"],
            "conservation": devices,
            "joins": joined.counts,
            "left_out": joined.omitted,
            "added_ns": ns if measured else estimated,
            "added_ns_basis": "the kernel's BPF statistics" if measured else "counts × nominal ns",
            "cpu_ns": receipt["cpu_ns"],
            "incomplete": receipt.get("incomplete") or _unwritten(receipt),
        }


def _unwritten(receipt: Mapping[str, Any]) -> str | None:
    """Reason why records are missing though the daemon is alive."""
    if not receipt.get("spool_failure"):
        return None
    return f"{receipt['lost_unspooled']:,} records could not be written: {receipt['spool_failure']}"


def estimated_calls(receipt: Mapping[str, Any]) -> dict[str, int]:
    """Lower bound of the number of runs of each program, from its records and requests of devices."""
    requests = sum(row["requests"] for row in receipt["devices"])
    return {
        "layer_added": receipt["seen"],
        "layer_request": requests,
        "layer_issued": requests,
        "layer_completed": requests,
        "layer_part_done": requests,
    }


def device_counters() -> DeviceCounters:
    """Requests and bytes of each block device since boot, by its own counters."""
    counters = {}
    for name in os.listdir("/sys/block"):
        with contextlib.suppress(OSError):
            fields = Path("/sys/block", name, "stat").read_text().split()
            counters[name] = {
                direction: (int(fields[requests]), int(fields[sectors]) * 512)
                for direction, (requests, sectors) in _STAT_FIELDS.items()
            }
    return counters


def conservation(
    requests: list[dict[str, int]],
    counters: Sequence[DeviceCounters],
    attributed: dict[tuple[str, str], int],
) -> list[dict[str, Any]]:
    """Per device and direction: bytes by its counters, bytes of its requests, attributed and not.

    `counters` were read before and after the start of the recording, then before and after its end. A request
    that completed between two readings may be recorded or not: the device's bytes are `device_bytes` to
    `device_bytes_max`. `difference_share` is the distance from that range (0: nothing is missing).
    `unseen_requests` is a lower bound of the number of requests whose completion was not recorded.
    """
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    for row in requests:
        direction = _DIRECTIONS.get(row["op"])
        if direction is not None:
            key = (disk_name(row["major"], row["minor"]), direction)
            count, size = seen.get(key, (0, 0))
            seen[key] = (count + row["requests"], size + row["bytes"])
    rows = []
    for name, last in counters[-1].items():
        for direction in last:
            first, start, end, stop = (
                moment.get(name, {}).get(direction, (0, 0)) for moment in counters
            )
            low, high = max(end[1] - start[1], 0), stop[1] - first[1]
            requests_seen, bytes_seen = seen.get((name, direction), (0, 0))
            if not high and not bytes_seen:
                continue
            attributed_bytes = attributed.get((name, direction), 0)
            rows.append(
                {
                    "disk_id": name,
                    "direction": direction,
                    "device_bytes": low,
                    "device_bytes_max": high,
                    "seen_bytes": bytes_seen,
                    "attributed_bytes": attributed_bytes,
                    "unattributed_bytes": bytes_seen - attributed_bytes,
                    "unseen_requests": max(end[0] - start[0] - requests_seen, 0),
                    "difference_share": (bytes_seen - min(max(bytes_seen, low), high))
                    / max(low, 1),
                }
            )
    return rows


def served_under(
    tables: Mapping[str, pa.Table], events: Path, layers: dict[str, Any], only: int | None = None
) -> list[Served]:
    """Layers that served the calls of each file (or of `only`), from tables that are not yet in a bundle."""
    present = {
        name: tables[name] for name in ("cache_use", "files", "device_requests") if name in tables
    }
    base = Database({"io_events": events, **present})
    return served_by(base.arrays, base.columns, layers, only)


def with_layers(result: TraceResult, layers: Layers | None) -> TraceResult:
    """Result of a trace with the tables of the layers, verdicts in device order, and their receipt."""
    if layers is None:
        return result
    under = layers.disarm(result.tables["files"], result.events_path)
    tables = result.tables | under.tables
    below: list[dict[str, Any]] = []
    if "device_requests" in under.tables:
        below = with_reasons(judge_device(under.tables["device_requests"], {}), result.verdicts)
        files = result.tables["files"].select(["file_id", "path"]).to_pylist()
        patterns = patterns_table(below, {row["file_id"]: row["path"] for row in files})
        tables["patterns"] = pa.concat_tables([result.tables["patterns"], patterns])
    return dataclasses.replace(
        result,
        tables=tables,
        receipt=_with_cost_below(result.receipt, under.receipt) | {"layers": under.receipt},
        closing=_closing(result, tables, under.receipt, below),
    )


def _with_cost_below(receipt: dict[str, Any], layers: Mapping[str, Any]) -> dict[str, Any]:
    """Receipt of the tracer, including the overhead of the programs below the calls."""
    below = float(layers["added_ns"])
    low, high = receipt["added_ns_interval"]
    added = Added(receipt["added_ns"], low, high) + Added(below, below, below)
    return receipt | shares(added, receipt["kept"] + receipt["lost"], receipt["busy_ns"])


def _closing(
    result: TraceResult,
    tables: dict[str, pa.Table],
    layers: dict[str, Any],
    device: Sequence[Mapping[str, Any]],
) -> str:
    """Closing sentence, with the layers that served the most costly calls.

    `device` are the verdicts on the order at devices.
    """
    listed = result.tables["files"].select(["file_id", "path"]).to_pylist()
    paths = {row["file_id"]: row["path"] for row in listed}
    rows = of_paths([*result.verdicts, *result.flushes], paths)
    subjects = subject(rows)
    if not subjects or subjects[0]["direction"] == "sync" or result.events_path is None:
        return result.closing
    direction, basis = subjects[0]["direction"], subjects[0]["basis"]
    numbers = {number for row in subjects for number in row["file_ids"]}
    only = next(iter(numbers)) if len(numbers) == 1 else None
    served = served_under(tables, result.events_path, layers, only=only)
    own = [
        row
        for row in served
        if row.file_id in numbers and (row.direction, row.basis) == (direction, basis)
    ]
    below = Below(summed(own))
    at_device = [
        row for row in device if row["file_id"] in numbers and row["direction"] == direction
    ]
    if at_device:
        most = max(at_device, key=lambda row: row["calls"])
        below = Below(
            below.served,
            sum(row["calls"] for row in at_device),
            str(most["together"]["class"]),
            sum(row["done_bytes"] for row in at_device),
        )
    receipt = result.receipt
    sentence = closing_sentence(
        rows,
        paths,
        receipt["run_ns"],
        receipt["lost"],
        below=below,
        others_ns=result.others_ns,
        before=already_mapped(receipt),
        sizes=sizes_of(result.tables["files"]),
    )
    return " ".join(filter(None, [sentence, what_is_missing(receipt)]))
