"""Salvage of a tracer that ended early: its spool, and a receipt with the missing parts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.observe.trace.capture.events import EVENT

#: number of events at the end of the spool that include the latest one
_LATEST = 1 << 18
#: kernel hook of page-cache misses
_ADDED = "mm_filemap_add_to_page_cache"


def salvaged_receipt(
    spool: Path, mode: str, group: int, started_ns: int, reason: str
) -> dict[str, Any]:
    """A receipt for the records in the spool; `incomplete` has the reason why it is not the daemon's.

    `group` is the number of the traced control group, `started_ns` the time of arming (time.monotonic_ns). In
    mode trace the spool has the events up to the last read of the rings; in the others only completed epochs.
    """
    count = spool.stat().st_size // EVENT.itemsize if mode == "trace" and spool.exists() else 0
    ended_ns = time.monotonic_ns()
    last_ns = _last_ns(spool, count) if count else started_ns
    return {
        "mode": mode,
        "seen": count,
        "kept": count,
        "filtered": 0,
        "lost": 0,
        "incomplete": reason,
        "lost_intervals": [{"start_ns": last_ns, "end_ns": ended_ns, "lost": None}],
        "per_probe": {},
        "compat_calls": 0,
        "nameless_files": 0,
        "marks_lost": 0,
        "presences_lost": 0,
        "overflowed": 0,
        "spooled": count,
        "in_flight": 0,
        "streams": 0,
        "hot": None,
        "cpu_ns": 0,
        "recorded_ns": last_ns - started_ns,
        "hooks": {},
        "ring_bytes": 0,
        "cgroups": {"0": group},
        "bpf": [],
    }


def _last_ns(spool: Path, events: int) -> int:
    """End of the last spooled event."""
    first = max(0, events - _LATEST)
    records = np.fromfile(spool, EVENT, count=events - first, offset=first * EVENT.itemsize)
    return int((records["t_ns"] + records["latency_ns"]).max())


def what_is_missing(receipt: Mapping[str, Any]) -> str:
    """A sentence for the summary and the manifest, empty if nothing is missing."""
    sentences = []
    if receipt.get("incomplete"):
        sentences.append(f"The trace is incomplete: {receipt['incomplete']}.")
    if receipt.get("spool_failure"):
        unwritten = receipt["lost_unspooled"]
        what = f"{unwritten:,} operations could not be written and count as lost"
        if not unwritten:
            what = "Some records other than operations could not be written"
        sentences.append(f"{what}: {receipt['spool_failure']}.")
    if receipt.get("marks_lost"):
        sentences.append(
            f"{receipt['marks_lost']:,} lines written to $PENSTOCK_MARKS were more than a trace takes "
            "and begin no phase."
        )
    if receipt.get("presences_lost"):
        sentences.append(
            f"Of what processes had mapped at their end {receipt['presences_lost']:,} pieces were lost: "
            "table mapped has lower bounds and no coverage."
        )
    return " ".join(sentences)


def what_layers_miss(layers: Mapping[str, Any]) -> str:
    """The sentence for the layers below the calls, from their own receipt."""
    sentences = []
    if layers.get("incomplete"):
        sentences.append(f"What lay under the calls is incomplete: {layers['incomplete']}.")
    if layers.get("lost"):
        sentences.append(
            f"{layers['lost']:,} of {layers['seen']:,} records of page cache and block devices were "
            "lost: misses may count as hits, and requests may be missing."
        )
    without = sorted({str(what) for what in (layers.get("missing") or {}).values() if what})
    if without:
        sentences.append(f"Below the calls, this kernel does not report: {'; '.join(without)}.")
    if misses_unseen(layers):
        sentences.append("Whatever was read counts as a hit of the page cache.")
    return " ".join(sentences)


def misses_unseen(layers: Mapping[str, Any]) -> bool:
    """True if additions to the page cache were not observed, so that no miss was counted."""
    return _ADDED in (layers.get("missing") or {})
