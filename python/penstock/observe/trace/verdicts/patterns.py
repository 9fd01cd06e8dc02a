"""Verdicts per file, direction and thread: the table `patterns`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.archive.traces.verdicts import evidence_of
from penstock.observe.trace.capture.events import Events
from penstock.text import counted
from penstock.text import phase as phase_text
from penstock.text import size as size_text

_native: Any = importlib.import_module("penstock._native")

_SCHEMA = TABLES["patterns"].arrow

Row = dict[str, Any]


def judge_events(events: Events) -> list[Row]:
    """One row per file, direction and basis: the verdict on all threads, and on each one under `threads`.

    For a file that is both read and written, `both` is the verdict on reads and writes together.

    `events` (records as in the spool) are in order of time. Calls that failed or transferred nothing are
    counted but excluded from the verdict; page faults on mapped files are evaluated separately, with `basis`
    `faults`.
    """
    judge = _native.Judge()
    done = events["done_bytes"].astype(np.int64)
    wide = [
        np.ascontiguousarray(column, np.int64)
        for column in (
            *(events["t_ns"], events["file_id"], events["offset_bytes"]),
            *(np.maximum(done, 0), np.maximum(-done, 0), events["latency_ns"], events["tid"]),
        )
    ]
    op, flags = (np.ascontiguousarray(events[name]) for name in ("op", "flags"))
    judge.feed(wide[0], op, *wide[1:], flags)
    return verdicts(judge)


def verdicts(judge: Any) -> list[Row]:
    """Rows of a `_native.Judge` that has received all events."""
    return _with_only_thread(json.loads(judge.verdicts()))


def judge_spool(spool: Path, threads: Sequence[tuple[int, int]] = ()) -> tuple[list[Row], pa.Table]:
    """Rows as those of `verdicts`, and table `epochs`, from the spool of mode `pattern`.

    Times are those of the sampled calls, scaled up. An optional `.singles` file has the calls of sequences in
    excess of the kernel's limit. `threads` as of `thread_starts`.
    """
    path = spool.with_suffix(".singles")
    singles = path if path.exists() else None
    text, columns, count = _native.classify_spool(spool, singles, list(threads))
    rows = _with_only_thread(json.loads(text))
    for row in rows:
        mean_ns = row["sampled_ns"] / row["sampled"] if row["sampled"] else 0
        row["time_ns"] = round(mean_ns * row["calls"])
    arrays = {
        name: pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(values)])
        for name, values in columns.items()
    }
    kind = arrays.pop("kind").to_numpy()
    names = pa.array(["read", "write"])
    arrays["direction"] = names.take(pa.array(kind % 2))
    arrays["basis"] = pa.array(["calls", "faults"]).take(pa.array(kind // 2))
    order = TABLES["epochs"].arrow.names
    return list(rows), pa.table({name: arrays[name] for name in order})


def _with_only_thread(rows: list[Row]) -> list[Row]:
    """Rows in which the verdict of a single thread is that of all threads."""
    for row in rows:
        tid = row.pop("only_tid", None)
        if tid is not None:
            row["threads"] = [row["together"] | {"tid": tid}]
    return rows


def patterns_table(
    rows: list[Row], paths: Mapping[int, str | None], phases: Sequence[str] = ()
) -> pa.Table:
    """Table `patterns` (docs/formats.md): a row for all threads together (tid null), then one per thread.

    `phases` are the names of the judge's phases, in order.
    """
    columns: dict[str, list[Any]] = {field: [] for field in _SCHEMA.names}
    evidence: list[str] = []
    for row in rows:
        named = {
            "file_id": row["file_id"],
            "path": paths.get(row["file_id"]),
            "direction": row["direction"],
            "basis": row["basis"],
            "phase_id": None if row["phase"] is None else phases[row["phase"]],
        }
        together = row["together"]
        evidence.append(json.dumps(together["evidence"]))
        text = sentence(together)
        both = row.get("both")
        joint = {
            "joint_class": both and both["class"],
            "joint_k": both and both["k"],
            "joint_confidence": both and both["confidence"],
            "joint_sentence": both and sentence(both),
        }
        summed = {"tid": None, "calls": row["calls"], "time_ns": row["time_ns"]}
        named["evidence"] = len(evidence) - 1
        _append(columns, named | joint | summed | {"sentence": text}, together)
        for verdict in row["threads"]:
            if verdict["evidence"] is not together["evidence"]:  # identical for a single thread
                named["evidence"], text = len(evidence), sentence(verdict)
                evidence.append(json.dumps(verdict["evidence"]))
            _append(columns, named | {"tid": verdict["tid"], "sentence": text}, verdict)
    evidence_array = evidence_of(evidence).take(pa.array(columns.pop("evidence"), pa.int64()))
    arrays = [
        evidence_array if field.name == "evidence" else pa.array(columns[field.name], field.type)
        for field in _SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


def _append(columns: dict[str, list[Any]], named: Row, verdict: Row) -> None:
    for field, column in columns.items():
        column.append(named[field] if field in named else verdict.get(field))


def sentence(verdict: Row) -> str:
    """The verdict as text, with the number it rests on."""
    kind, n = verdict["class"], verdict["requests"]
    if kind == "insufficient":
        return f"{counted(n, 'request')} {'is' if n == 1 else 'are'} too few to classify (32 are needed)"
    size = size_text(verdict["median_size_bytes"])
    evidence = verdict["evidence"]
    match kind:
        case "counted":
            return (
                f"{counted(n, 'request')}, {size} each on average; mode count does not classify "
                "their order"
            )
        case "consecutive":
            why = f"{_percent(verdict['consecutive_share'])} start where the last one ended"
        case "reverse":
            why = f"{_percent(verdict['reverse_share'])} end where the last one began"
        case "interleaved":
            why = _streams(verdict["k"], evidence.get("streams") or [])
        case "strided":
            why = f"steps of {', '.join(map(str, evidence['strides_bytes']))} bytes"
        case "sequential":
            near = size_text(evidence.get("near_bytes", 131072))
            why = f"{_percent(verdict['sequential_share'])} go forward by at most {near}"
        case "hot-set":
            top = _percent(evidence["spread"]["top_fifth_share"])
            why = f"{top} go to a fifth of the blocks touched{_law(evidence['spread'])}"
        case "random":
            why = f"{_percent(verdict['forward_share'])} go forward, the others back"
        case "mixed":
            parts = evidence["phases"]
            why = ", then ".join(f"{phase_text(p)} from request {p['first']}" for p in parts)
        case _:
            why = f"{_percent(verdict['consecutive_share'])} consecutive, "
            why += f"{_percent(verdict['forward_share'])} forward"
    return f"{kind}: {why} ({n} requests, median {size})"


_GOES_ON = {
    "adjacent": "each continuing where it ended",
    "reverse": "each continuing backwards from where it ended",
}


def _streams(k: int, streams: Sequence[Mapping[str, Any]]) -> str:
    """Continuation for interleaved streams; the share of each kind if there are several."""
    shares: dict[str, float] = {}
    for stream in streams:
        shares[stream["kind"]] = shares.get(stream["kind"], 0.0) + stream["share"]
    if len(shares) < 2:
        kind = next(iter(shares), "adjacent")
        return f"{k} streams at once, {_GOES_ON.get(kind, _GOES_ON['adjacent'])}"
    steps = [s["stride_bytes"] for s in streams if s.get("stride_bytes")]
    parts = [
        f"{_percent(share)} {kind}"
        + (f" by {', '.join(map(str, steps[:4]))} bytes" if kind == "strided" and steps else "")
        for kind, share in sorted(shares.items(), key=lambda item: -item[1])
    ]
    return f"{k} streams at once: {', '.join(parts)}"


def _law(spread: Mapping[str, Any]) -> str:
    """The zipf exponent with its interval, if one was fitted."""
    exponent, half = spread.get("zipf_exponent"), spread.get("zipf_half_width")
    if not exponent or not half:
        return ""
    return f", zipf exponent {exponent:.3g} [{exponent - half:.3g}, {exponent + half:.3g}]"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
