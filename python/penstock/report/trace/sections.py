"""What each section of a trace's page says, as plain values for the template."""

from __future__ import annotations

import shlex
from typing import Any

from penstock.analyse.served import Served
from penstock.archive.bundle import command_line
from penstock.errors import printable
from penstock.report.trace.gather import Drawing, Gathered, Totals, time_of
from penstock.report.trace.run import Bundle, Row
from penstock.text import FAULTS, basis_text, duration, percent, size

#: rows of the table of files that are shown at once
SHOWN_FILES = 12
#: of all time: files with less are folded away
WORTH_A_LOOK = 0.005
MOST_FILES = 500


def name_of(bundle: Bundle, file_id: int) -> str:
    """The file's path for a reader, or its number; of a path that was several files with how many."""
    return printable(bundle.run.name_of_all(file_id))


def tiles(bundle: Bundle, gathered: Gathered | None) -> list[dict[str, str]]:
    """The numbers at the top."""
    receipt = bundle.receipt
    found = []
    wall = bundle.run.wall_ns
    found.append({"value": duration(wall), "label": "wall time", "mark": ""})
    spent = sum(r["evidence"].get("time_ns") or 0 for r in _calls(bundle))
    if gathered is not None:
        spent = sum(time_of(f) for f in gathered.files)
    found.append({"value": percent(spent / wall), "label": "of it in calls on files", "mark": ""})
    kept = int(receipt.get("kept") or 0)
    found.append({"value": f"{kept:,}", "label": "operations recorded", "mark": ""})
    lost = int(receipt.get("lost") or 0)
    found.append({"value": f"{lost:,}", "label": "lost", "mark": "warn" if lost else ""})
    if below := int((receipt.get("layers") or {}).get("lost") or 0):
        found.append({"value": f"{below:,}", "label": "lost below the calls", "mark": "warn"})
    if receipt.get("added_share") is not None:
        share = float(receipt["added_share"])
        found.append(
            {"value": f"{100 * share:.2g} %", "label": "added by tracing (estimate)", "mark": ""}
        )
    return found


def _calls(bundle: Bundle) -> list[Row]:
    return [r for r in bundle.verdicts if r["basis"] != "device"]


def files(bundle: Bundle, gathered: Gathered | None) -> dict[str, Any]:
    """The table of files: a row per file and direction, most time first."""
    totals = {f["file_id"]: f for f in gathered.files} if gathered else {}
    rows = _judged(bundle) + _unjudged(bundle, totals) + _flushed(bundle)
    rows.sort(key=lambda r: (-r["time_ns"], -r["calls"], r["file_id"]))
    every = max(1, sum(r["time_ns"] for r in rows))
    busy = sum(1 for r in rows if r["time_ns"] >= WORTH_A_LOOK * every)
    for row in rows:
        share = percent(row["time_ns"] / every) if row["time_ns"] else ""
        row["share"] = share.replace("less than ", "<")
    return {
        "rows": rows[:MOST_FILES],
        "first": max(min(busy, SHOWN_FILES), 3),
        "left": len(rows) - min(len(rows), MOST_FILES),
        "cache": bool(bundle.run.all_served),
    }


def _judged(bundle: Bundle) -> list[dict[str, Any]]:
    """Paths that have verdicts: calls, bytes and time of all files, class and sentence of the largest."""
    rows: dict[tuple[int, str, str], dict[str, Any]] = {}
    for verdict in _calls(bundle):  # most requests first
        first = bundle.run.first_of.get(int(verdict["file_id"]), int(verdict["file_id"]))
        row = _file_row(bundle, verdict, first)
        kept = rows.setdefault((first, row["direction"], verdict["basis"]), row)
        if kept is not row:
            for name in ("calls", "nbytes", "time_ns"):
                kept[name] += row[name]
    return [
        {**row, "bytes": size(row["nbytes"]), "time": duration(row["time_ns"])}
        for row in rows.values()
    ]


def _file_row(bundle: Bundle, verdict: Row, number: int) -> dict[str, Any]:
    evidence = verdict["evidence"]
    k = verdict.get("k")
    kind = str(verdict["class"]) + (f" ({int(k)})" if k and k == k else "")
    return {
        "file_id": number,
        "path": name_of(bundle, number),
        "direction": str(verdict["direction"])
        + (f", {basis_text(FAULTS)}" if verdict["basis"] == FAULTS else ""),
        "calls": int(evidence.get("calls") or verdict["requests"] or 0),
        "nbytes": int(verdict["bytes"] or 0),
        "time_ns": int(evidence.get("time_ns") or 0),
        "kind": kind,
        "sentence": str(verdict["sentence"]),
        "cache": _cache(_served(bundle, number, verdict["direction"], verdict["basis"])),
    }


def _flushed(bundle: Bundle) -> list[dict[str, Any]]:
    """A row of flushes for each path that was flushed."""
    return [
        {
            "file_id": row["file_id"],
            "path": name_of(bundle, row["file_id"]),
            "direction": "flush",
            "calls": row["flushes"],
            "bytes": "",
            "nbytes": 0,
            "time_ns": row["ns"],
            "time": duration(row["ns"]),
            "kind": "",
            "sentence": f"{duration(row['ns'] / max(row['flushes'], 1))} each",
            "cache": "",
        }
        for row in bundle.run.flushes
    ]


def _unjudged(bundle: Bundle, totals: dict[int, Totals]) -> list[dict[str, Any]]:
    """Files that have events and no verdict: an old or foreign bundle."""
    known = {bundle.run.first_of.get(r["file_id"], r["file_id"]) for r in _calls(bundle)}
    rows = []
    for number, file in totals.items():
        if number in known:
            continue
        for way, direction in enumerate(("read", "write")):
            if file["calls"][way] == 0:
                continue
            rows.append(
                {
                    "file_id": number,
                    "path": name_of(bundle, number),
                    "direction": direction,
                    "calls": file["calls"][way],
                    "bytes": size(file["bytes"][way]),
                    "nbytes": file["bytes"][way],
                    "time_ns": file["time_ns"][way],
                    "time": duration(file["time_ns"][way]),
                    "kind": "not judged",
                    "sentence": "",
                    "cache": _cache(_served(bundle, number, direction)),
                }
            )
    return rows


def _served(
    bundle: Bundle, file_id: int, direction: str | None = None, basis: str | None = None
) -> list[Served]:
    """What served the calls on a path: all of them, or those of one direction, and basis."""
    of_path = set(bundle.run.files_of_path(file_id))
    return [
        served
        for served in bundle.run.all_served.values()
        if served.file_id in of_path
        and direction in (None, served.direction)
        and basis in (None, served.basis)
    ]


def _cache(use: list[Served]) -> str:
    """Pages by where they were, and the part of the calls' time in which a device was at work."""
    pages = {name: sum(u.pages[name] for u in use) for name in ("hit", "ahead", "missed")}
    total = sum(pages.values())
    named = (("cached", "hit"), ("read ahead", "ahead"), ("missed", "missed"))
    parts = [f"{percent(pages[key] / total)} {word}" for word, key in named if pages[key]]
    time_ns = sum(u.total_ns for u in use)
    if time_ns:
        parts.append(f"device {percent(sum(u.device_ns for u in use) / time_ns)} of its time")
    return ", ".join(parts)


def figure_facts(bundle: Bundle, drawing: Drawing) -> dict[str, Any]:
    """Name, verdicts and counts of one file that has figures."""
    totals, counts = drawing.totals, drawing.head["counts"]
    number = int(totals["file_id"])
    drawn = sum(counts)
    left = []
    if totals["empty"]:
        left.append(f"{totals['empty']:,} failed or moved nothing")
    if totals["others"]:
        left.append(f"{totals['others']:,} operations on its name or size")
    verdicts = [
        {
            "direction": f"{r['direction']}s",
            "basis": "" if r["basis"] == "calls" else f" by {basis_text(r['basis'])}",
            "sentence": str(r["sentence"]),
            "confidence": f"{float(r.get('confidence') or 0):.2f}",
        }
        for r in bundle.verdicts_of(number)
    ]
    joint = next((r for r in bundle.verdicts_of(number) if r.get("joint_sentence")), None)
    if joint is not None:
        verdicts.append(
            {
                "direction": "reads and writes together",
                "basis": "" if joint["basis"] == "calls" else f" by {joint['basis']}",
                "sentence": str(joint["joint_sentence"]),
                "confidence": f"{float(joint.get('joint_confidence') or 0):.2f}",
            }
        )
    return {
        "id": f"file{number}",
        "path": name_of(bundle, number),
        "verdicts": verdicts,
        "counts": [
            {"channel": c, "name": name, "n": counts[c]}
            for c, name in enumerate(("read", "write", "around"))
            if counts[c]
        ],
        "drawn": f"{drawn:,}",
        "form": "each as one mark"
        if drawing.head["form"] == "points"
        else "as counts per cell, the extremes of every column kept",
        "left": "; ".join(left),
        "flushes": _flushes(bundle, totals),
        "cache": _cache(_served(bundle, number)),
    }


def _flushes(bundle: Bundle, totals: Totals) -> str:
    """What the marks of flushes stand for; empty where there are none."""
    count, marked = totals["syncs"], len(bundle.flush_moments(totals["file_id"]))
    if not count:
        return ""
    part = f", {marked:,} of them marked" if marked < count else ""
    return f"{count:,} flushes to the device, {duration(totals['sync_ns'])}{part}"


def coverage(gathered: Gathered) -> str:
    """How much of all the figures show."""
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
    ("requests", "requests judged", "{:,.0f}"),
    ("confidence", "confidence", "{:.3f}"),
    ("consecutive_share", "start where the last one ended", "{:.4f}"),
    ("forward_share", "go forward", "{:.4f}"),
    ("sequential_share", "go forward by little", "{:.4f}"),
    ("reverse_share", "end where the last one began", "{:.4f}"),
)


def evidence(bundle: Bundle, drawings: list[Drawing]) -> list[dict[str, Any]]:
    """What each verdict on a drawn file rests on, and its threads; without figures, files of most time."""
    found = []
    for number in [int(d.totals["file_id"]) for d in drawings] or _most_time(bundle):
        for row in bundle.verdicts_of(number):
            facts = [
                (words, form.format(row[key]))
                for key, words, form in _EVIDENCE
                if row.get(key) is not None
            ]
            if row.get("median_size_bytes") is not None:
                facts.append(("median size", size(row["median_size_bytes"])))
            facts += [
                (key.replace("_", " "), _brief(v)) for key, v in sorted(row["evidence"].items())
            ]
            threads: dict[str, int] = {}
            for t in bundle.threads:
                same = (t["file_id"], t["direction"], t["basis"])
                if same == (number, row["direction"], row["basis"]):
                    threads[str(t["class"])] = threads.get(str(t["class"]), 0) + 1
            if threads:
                words = ", ".join(f"{n}× {kind}" for kind, n in sorted(threads.items()))
                facts.append(("threads", words))
            basis = "" if row["basis"] == "calls" else f", by {basis_text(row['basis'])}"
            found.append(
                {
                    "title": name_of(bundle, number),
                    "what": f"{row['direction']}s{basis}: {row['class']}",
                    "facts": facts,
                }
            )
    return found


def _most_time(bundle: Bundle) -> list[int]:
    """The judged files with most time, those of almost none left out."""
    spent: dict[int, int] = {}
    for row in bundle.verdicts:
        if row["class"] != "insufficient":
            number = int(row["file_id"])
            spent[number] = spent.get(number, 0) + int(row["evidence"].get("time_ns") or 0)
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
    "added_ns_per_call": "added per call, ns",
    "added_ns_basis": "where that number is from",
    "ring_bytes": "room in the kernel",
    "hook": "hooks",
    "mode": "mode",
}


def receipt(bundle: Bundle) -> dict[str, Any]:
    """What observing cost and what it missed: counts per probe, cost, hooks, what they cannot see."""
    given = bundle.receipt
    probes = given.get("sources") or given.get("per_probe") or {}
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
    total = [f"{_number(given.get(k)):,}" for k in ("seen", "kept", "filtered", "lost")]
    rows.append({"probe": "all", "cells": total, "why": "", "mark": ""})
    facts = []
    mode = str(given.get("mode") or "trace")  # the others need room for next to nothing
    for key, words in _WORDS.items():
        if given.get(key) is not None and not (key == "ring_bytes" and mode != "trace"):
            facts.append((words, _receipt_value(key, given[key])))
    hooks = {k: v for k, v in (given.get("hooks") or {}).items() if isinstance(v, dict)}
    return {
        "rows": rows,
        "facts": facts,
        "missing": [
            f"{name.replace('_', ' ')}: {how['missing']}"
            for name, how in hooks.items()
            if how.get("missing")
        ],
        "features": [(name.replace("_", " "), _hook(how)) for name, how in hooks.items()],
        "balanced": _number(given.get("seen"))
        == sum(_number(given.get(k)) for k in ("kept", "filtered", "lost")),
        "gaps": [
            f"{gap.name} between {duration(gap.start_ns - bundle.workload.start_ns)} and "
            f"{duration(gap.end_ns - bundle.workload.start_ns)}"
            for gap in bundle.gaps[:20]
            if bundle.workload is not None
        ],
    }


def _hook(how: dict[str, Any]) -> str:
    """`full, by tp_btf (fentry: Operation not permitted)`."""
    said = str(how.get("state") or "")
    if how.get("hook"):
        said += f", by {how['hook']}"
    return said + (f" ({how['reason']})" if how.get("reason") else "")


def _receipt_value(key: str, value: Any) -> str:
    if key == "cpu_ns":
        return duration(value)
    if key == "tracer_cpu_share":
        return f"{100 * float(value):.2g} %"
    if key == "ring_bytes":
        return size(value)
    return str(value)


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else 0


def repeat(bundle: Bundle) -> dict[str, Any]:
    """How to make the trace and the page again, and on what this one was made."""
    manifest = bundle.manifest
    mode = str(bundle.receipt.get("mode") or "trace")
    command = printable(command_line(manifest))
    given = f"penstock trace --mode {mode} -o AGAIN"
    lines = [f"{given} -- {command}" if command else f"{given} …"]
    if manifest.get("treatment_id"):
        run = f"{manifest.get('run_id')}, {manifest['treatment_id']}"
        lines = [
            f"penstock run ../../study.yaml -o AGAIN    # the study that this is a run of ({run})"
        ]
    lines.append(f"penstock report {_quoted(bundle)}              # this page again")
    if bundle.run.has("io_events"):
        lines += [
            f"penstock serve {_quoted(bundle)}               # the same, and zoom down to every request",
            f"penstock plot {_quoted(bundle)} offsets -o offsets.pdf",
            f"penstock replay {_quoted(bundle)}              # run the same I/O again",
        ]
    host = manifest.get("host") or {}
    facts = [
        ("command", command or "none: a running process or group was traced"),
        ("exit status", str(manifest.get("exit_status", ""))),
        *((f"version of {k}", str(v)) for k, v in (manifest.get("versions") or {}).items()),
        *((f"host {k}", str(v)) for k, v in host.items() if isinstance(v, str | int | float)),
    ]
    tables = sorted(p.name for p in bundle.path.glob("*.parquet"))
    return {
        "commands": "\n".join(lines),
        "facts": [(k, printable(v)) for k, v in facts if v],
        "tables": tables,
    }


def _quoted(bundle: Bundle) -> str:
    return shlex.quote(printable(bundle.path.resolve().name))
