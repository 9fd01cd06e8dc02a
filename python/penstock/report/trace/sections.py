"""Contents of each section of a trace's page, as plain values for the template."""

from __future__ import annotations

import heapq
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.analyse.traces.served import Served
from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.bundle import command_line
from penstock.archive.traces.verdicts import Verdict
from penstock.errors import printable
from penstock.report.trace.gather import Drawing, Gathered, Totals, time_of
from penstock.text import FAULTS, basis_text, duration, percent, size

#: number of rows of the table of files shown initially
SHOWN_FILES = 12
#: minimum share of all time of a file that is not folded away
WORTH_A_LOOK = 0.005
MOST_FILES = 500


def name_of(run: TracedRun, file_id: int) -> str:
    """The file's path for display, or its number; with the number of files if the path named several."""
    return printable(run.name_of_all(file_id))


def tiles(run: TracedRun, gathered: Gathered | None) -> list[dict[str, str]]:
    """The numbers at the top."""
    receipt = run.receipt
    numbers = []
    wall = run.wall_ns
    numbers.append({"value": duration(wall), "label": "wall time", "mark": ""})
    spent = sum(r.time_ns for r in run.judged)
    if gathered is not None:
        spent = sum(time_of(f) for f in gathered.files)
    if spent <= wall:
        numbers.append(
            {"value": percent(spent / wall), "label": "of it in calls on files", "mark": ""}
        )
    else:
        label = "threads in calls on files, in the mean"
        numbers.append({"value": f"{spent / wall:.3g}", "label": label, "mark": ""})
    recorded = int(receipt.get("kept") or 0)
    numbers.append({"value": f"{recorded:,}", "label": "operations recorded", "mark": ""})
    lost = int(receipt.get("lost") or 0)
    numbers.append({"value": f"{lost:,}", "label": "lost", "mark": "warn" if lost else ""})
    if below := int((receipt.get("layers") or {}).get("lost") or 0):
        numbers.append({"value": f"{below:,}", "label": "lost below the calls", "mark": "warn"})
    if receipt.get("added_share") is not None:
        share = float(receipt["added_share"])
        numbers.append(
            {"value": f"{100 * share:.2g} %", "label": "added by tracing (estimate)", "mark": ""}
        )
    return numbers


@dataclass
class _Row:
    """A path in one direction: its calls, bytes and time [ns], and a function for the remaining columns."""

    file_id: int
    calls: int
    nbytes: int
    time_ns: int
    describe: Callable[[_Row], dict[str, Any]]

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: descending time."""
        return -self.time_ns, -self.calls, self.file_id

    def document(self, run: TracedRun, every_ns: int) -> dict[str, Any]:
        """Values for the template; `every_ns` is the time of all rows."""
        share = percent(self.time_ns / every_ns) if self.time_ns else ""
        return {
            "file_id": self.file_id,
            "path": name_of(run, self.file_id),
            "calls": self.calls,
            "nbytes": self.nbytes,
            "bytes": size(self.nbytes),
            "time_ns": self.time_ns,
            "time": duration(self.time_ns),
            "share": share.replace("less than ", "<"),
            **self.describe(self),
        }


def files(run: TracedRun, gathered: Gathered | None) -> dict[str, Any]:
    """The table of files: a row per file and direction, most time first. Only shown rows are complete."""
    totals = {f["file_id"]: f for f in gathered.files} if gathered else {}
    rows = _judged(run) + _unjudged(run, totals) + _flushed(run)
    every = max(1, sum(r.time_ns for r in rows))
    busy = sum(1 for r in rows if r.time_ns >= WORTH_A_LOOK * every)
    shown = heapq.nsmallest(MOST_FILES, rows, key=lambda row: row.order)
    return {
        "rows": [row.document(run, every) for row in shown],
        "first": max(min(busy, SHOWN_FILES), 3),
        "left": len(rows) - len(shown),
        "cache": bool(run.all_served),
    }


def _judged(run: TracedRun) -> list[_Row]:
    """Paths with verdicts: calls, bytes and time of all files, class and sentence of the largest."""
    rows: dict[tuple[int, str, str], _Row] = {}
    for verdict in run.overall_verdicts:  # most requests first
        if verdict.basis == "device":
            continue
        first = run.first_of.get(verdict.file_id, verdict.file_id)
        key = first, verdict.direction, verdict.basis
        row = rows.get(key)
        if row is None:
            describe = partial(_of_verdict, run, verdict)
            rows[key] = _Row(first, verdict.calls, verdict.nbytes, verdict.time_ns, describe)
        else:
            row.calls += verdict.calls
            row.nbytes += verdict.nbytes
            row.time_ns += verdict.time_ns
    return list(rows.values())


def _of_verdict(run: TracedRun, verdict: Verdict, row: _Row) -> dict[str, Any]:
    faults = f", {basis_text(FAULTS)}" if verdict.basis == FAULTS else ""
    return {
        "direction": verdict.direction + faults,
        "kind": verdict.kind + (f" ({verdict.k})" if verdict.k else ""),
        "sentence": verdict.sentence,
        "cache": _cache(run.served_on(row.file_id, verdict.direction, verdict.basis)),
    }


def _flushed(run: TracedRun) -> list[_Row]:
    """A row of flushes for each flushed path."""
    return [_Row(row["file_id"], row["flushes"], 0, row["ns"], _of_flushes) for row in run.flushes]


def _of_flushes(row: _Row) -> dict[str, Any]:
    each = f"{duration(row.time_ns / max(row.calls, 1))} each"
    return {"direction": "flush", "bytes": "", "kind": "", "sentence": each, "cache": ""}


def _unjudged(run: TracedRun, totals: dict[int, Totals]) -> list[_Row]:
    """Files with events but without a verdict: an old or foreign run."""
    judged = (r.file_id for r in run.overall_verdicts if r.basis != "device")
    judged_files = {run.first_of.get(number, number) for number in judged}
    return [
        _Row(
            number,
            file["calls"][way],
            file["bytes"][way],
            file["time_ns"][way],
            partial(_of_events, run, direction),
        )
        for number, file in totals.items()
        if number not in judged_files
        for way, direction in enumerate(("read", "write"))
        if file["calls"][way]
    ]


def _of_events(run: TracedRun, direction: str, row: _Row) -> dict[str, Any]:
    use = _cache(run.served_on(row.file_id, direction))
    return {"direction": direction, "kind": "not evaluated", "sentence": "", "cache": use}


def _cache(use: list[Served]) -> str:
    """Pages by source, and the part of the calls' time in which a device was busy."""
    pages = {name: sum(u.pages[name] for u in use) for name in ("hit", "ahead", "missed")}
    total = sum(pages.values())
    named = (("cached", "hit"), ("read ahead", "ahead"), ("missed", "missed"))
    parts = [f"{percent(pages[key] / total)} {word}" for word, key in named if pages[key]]
    time_ns = sum(u.total_ns for u in use)
    if time_ns:
        parts.append(f"device {percent(sum(u.device_ns for u in use) / time_ns)} of its time")
    return ", ".join(parts)


def figure_facts(run: TracedRun, drawing: Drawing) -> dict[str, Any]:
    """Name, verdicts and counts of one file with figures."""
    totals, counts = drawing.totals, drawing.head["counts"]
    number = int(totals["file_id"])
    drawn = sum(counts)
    not_drawn = []
    if totals["empty"]:
        not_drawn.append(f"{totals['empty']:,} failed or moved nothing")
    if totals["others"]:
        not_drawn.append(f"{totals['others']:,} operations on its name or size")
    verdicts = [
        {
            "direction": f"{r.direction}s",
            "basis": "" if r.basis == "calls" else f" by {basis_text(r.basis)}",
            "sentence": r.sentence,
            "confidence": f"{r.confidence or 0:.2f}",
        }
        for r in run.verdicts_on(number)
    ]
    joint = next((r for r in run.verdicts_on(number) if r.joint_sentence), None)
    if joint is not None:
        verdicts.append(
            {
                "direction": "reads and writes together",
                "basis": "" if joint.basis == "calls" else f" by {joint.basis}",
                "sentence": str(joint.joint_sentence),
                "confidence": f"{joint.joint_confidence or 0:.2f}",
            }
        )
    return {
        "id": f"file{number}",
        "path": name_of(run, number),
        "verdicts": verdicts,
        "counts": [
            {"channel": c, "name": name, "n": counts[c]}
            for c, name in enumerate(("read", "write", "around"))
            if counts[c]
        ],
        "drawn": f"{drawn:,}",
        "form": "each as one mark"
        if drawing.head["form"] == "points"
        else "as counts per cell, with the extremes of every column",
        "left": "; ".join(not_drawn),
        "flushes": _flushes(run, totals),
        "cache": _cache(run.served_on(number)),
    }


def _flushes(run: TracedRun, totals: Totals) -> str:
    """Meaning of the marks of flushes; empty if there are none."""
    count, marked = totals["syncs"], len(run.flush_moments(totals["file_id"]))
    if not count:
        return ""
    part = f", {marked:,} of them marked" if marked < count else ""
    return f"{count:,} flushes to the device, {duration(totals['sync_ns'])}{part}"


def coverage(gathered: Gathered) -> str:
    """Share of all requests and time that the figures show."""
    shown = sum(sum(d.head["counts"]) for d in gathered.drawings)
    time = sum(time_of(f) for f in gathered.files)
    drawn = sum(time_of(d.totals) for d in gathered.drawings)
    active = sum(1 for f in gathered.files if sum(f["drawn"]))
    share = f", {percent(drawn / time)} of the time" if time else ""
    return (
        f"Figures of {len(gathered.drawings)} of {active:,} files: shown {shown:,} of "
        f"{gathered.events:,} requests{share}."
    )


_EVIDENCE = (
    ("requests", "requests evaluated", "{:,.0f}"),
    ("confidence", "confidence", "{:.3f}"),
    ("consecutive_share", "start where the last one ended", "{:.4f}"),
    ("forward_share", "go forward", "{:.4f}"),
    ("sequential_share", "go forward by little", "{:.4f}"),
    ("reverse_share", "end where the last one began", "{:.4f}"),
)


def evidence(run: TracedRun, drawings: list[Drawing]) -> list[dict[str, Any]]:
    """Evidence for each verdict on a drawn file, and its threads; without figures, on the top files."""
    entries = []
    for number in [int(d.totals["file_id"]) for d in drawings] or _most_time(run):
        of_threads = run.thread_verdicts(number)
        for row in run.verdicts_on(number):
            facts = [
                (label, form.format(value))
                for key, label, form in _EVIDENCE
                if (value := getattr(row, key)) is not None
            ]
            if row.median_size_bytes:
                facts.append(("median size", size(row.median_size_bytes)))
            facts += [(key.replace("_", " "), _brief(v)) for key, v in sorted(row.facts.items())]
            threads: dict[str, int] = {}
            for t in of_threads:
                if (t.direction, t.basis) == (row.direction, row.basis):
                    threads[t.kind] = threads.get(t.kind, 0) + 1
            if threads:
                label = ", ".join(f"{n}× {kind}" for kind, n in sorted(threads.items()))
                facts.append(("threads", label))
            basis = "" if row.basis == "calls" else f", by {basis_text(row.basis)}"
            entries.append(
                {
                    "title": name_of(run, number),
                    "what": f"{row.direction}s{basis}: {row.kind}",
                    "facts": facts,
                }
            )
    return entries


def _most_time(run: TracedRun) -> list[int]:
    """The files with verdicts in descending order of time, without those of almost none."""
    spent: dict[int, int] = {}
    for row in run.overall_verdicts:
        if row.kind != "insufficient":
            spent[row.file_id] = spent.get(row.file_id, 0) + row.time_ns
    worth = WORTH_A_LOOK * sum(spent.values())
    most = sorted((n for n in spent if spent[n] >= worth), key=lambda n: -spent[n])
    return most[:SHOWN_FILES]


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k.replace('_', ' ')} {_brief(v)}" for k, v in value.items())
    if isinstance(value, list):
        shown = "; ".join(_brief(v) for v in value[:8])
        return shown + (f"; and {len(value) - 8} more" if len(value) > 8 else "")
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


_WORDS = {
    "cpu_ns": "the tracer's own CPU",
    "tracer_cpu_share": "of the wall time",
    "added_ns_per_call": "added per call",
    "added_ns_basis": "where that number is from",
    "ring_bytes": "room in the kernel",
    "hook": "hooks",
    "mode": "mode",
}


def receipt(run: TracedRun) -> dict[str, Any]:
    """Costs and losses of the observation: counts per probe, cost, hooks, and their limits."""
    stats = run.receipt
    probes = stats.get("sources") or stats.get("per_probe") or {}
    rows = []
    named = probes.items() if isinstance(probes, dict) else [(p.get("source"), p) for p in probes]
    for probe, counts in named:
        if not isinstance(counts, dict):
            continue
        lost = _number(counts.get("lost"))
        why = ", ".join(
            f"{key.removeprefix('lost_').replace('_', ' ')} {_number(value):,}"
            for key, value in counts.items()
            if key.startswith("lost_") and _number(value)
        )
        rows.append(
            {
                "probe": str(probe),
                "cells": [
                    f"{_number(counts.get(k)):,}" for k in ("seen", "kept", "filtered", "lost")
                ],
                "why": why,
                "mark": "warn" if lost else "",
            }
        )
    total = [f"{_number(stats.get(k)):,}" for k in ("seen", "kept", "filtered", "lost")]
    rows.append({"probe": "all", "cells": total, "why": "", "mark": ""})
    facts = []
    mode = str(stats.get("mode") or "trace")  # other modes need almost no space
    for key, label in _WORDS.items():
        if stats.get(key) is not None and not (key == "ring_bytes" and mode != "trace"):
            facts.append((label, _receipt_value(key, stats[key])))
    hooks = {k: v for k, v in (stats.get("hooks") or {}).items() if isinstance(v, dict)}
    return {
        "rows": rows,
        "facts": facts,
        "missing": [
            f"{name.replace('_', ' ')}: {how['missing']}"
            for name, how in hooks.items()
            if how.get("missing")
        ],
        "features": [(name.replace("_", " "), _hook(how)) for name, how in hooks.items()],
        "balanced": _number(stats.get("seen"))
        == sum(_number(stats.get(k)) for k in ("kept", "filtered", "lost")),
        "gaps": [
            f"{gap.name} between {duration(gap.start_ns - run.workload.start_ns)} and "
            f"{duration(gap.end_ns - run.workload.start_ns)}"
            for gap in run.gaps[:20]
            if run.workload is not None
        ],
    }


def _hook(how: dict[str, Any]) -> str:
    """`full, by tp_btf (fentry: Operation not permitted)`."""
    text = str(how.get("state") or "")
    if how.get("hook"):
        text += f", by {how['hook']}"
    return text + (f" ({how['reason']})" if how.get("reason") else "")


def _receipt_value(key: str, value: Any) -> str:
    if key in ("cpu_ns", "added_ns_per_call"):
        return duration(value)
    if key == "tracer_cpu_share":
        return f"{100 * float(value):.2g} %"
    if key == "ring_bytes":
        return size(value)
    return str(value)


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else 0


def repeat(run: TracedRun) -> dict[str, Any]:
    """Commands that reproduce the trace and the page, and the environment of this one."""
    manifest = run.manifest
    mode = str(run.receipt.get("mode") or "trace")
    command = printable(command_line(manifest))
    trace_command = f"penstock trace --mode {mode} -o AGAIN"
    lines = [f"{trace_command} -- {command}" if command else f"{trace_command} …"]
    if manifest.get("treatment_id"):
        which = f"{manifest.get('run_id')}, {manifest['treatment_id']}"
        lines = [
            f"penstock run ../../study.yaml -o AGAIN    # the study that this is a run of ({which})"
        ]
    lines.append(f"penstock report {_quoted(run)}              # this page again")
    if run.has("io_events"):
        lines += [
            f"penstock serve {_quoted(run)}               # the same, and zoom down to every request",
            f"penstock plot {_quoted(run)} offsets -o offsets.pdf",
            f"penstock replay {_quoted(run)}              # run the same I/O again",
        ]
    host = manifest.get("host") or {}
    facts = [
        ("command", command or "none: a running process or group was traced"),
        ("exit status", str(manifest.get("exit_status", ""))),
        *((f"version of {k}", str(v)) for k, v in (manifest.get("versions") or {}).items()),
        *((f"host {k}", str(v)) for k, v in host.items() if isinstance(v, str | int | float)),
    ]
    tables = sorted(p.name for p in run.path.glob("*.parquet"))
    return {
        "commands": "\n".join(lines),
        "facts": [(k, printable(v)) for k, v in facts if v],
        "tables": tables,
    }


def _quoted(run: TracedRun) -> str:
    return shlex.quote(printable(run.path.resolve().name))
