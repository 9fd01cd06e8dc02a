"""Figures embedded in the page: JSON and compressed bytes, both safe inside a script element."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from penstock.analyse.traces.traced_run import TracedRun
from penstock.report.trace.gather import Drawing, drawn_spans, marks_of
from penstock.text import phase as phase_text

#: a file used for a smaller share of the run has its own time axis
_WIDE = 0.3


def script_json(value: Any) -> str:
    """JSON that cannot end a script element, whatever the names of files."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed(drawing: Drawing) -> str:
    """All sections concatenated, deflated, in base64."""
    content = b"".join(drawing.sections.values())
    return base64.b64encode(zlib.compress(content, 6)).decode("ascii")


def head_of(drawing: Drawing, run: TracedRun, origin_ns: int) -> dict[str, Any]:
    """Data of one file's figures for the page's script."""
    totals, head = drawing.totals, drawing.head
    first, last = totals["first_ns"] - origin_ns, totals["last_ns"] - origin_ns
    workload = run.workload
    if workload is not None and last - first >= _WIDE * (workload.end_ns - workload.start_ns):
        first, last = (
            min(first, workload.start_ns - origin_ns),
            max(last, workload.end_ns - origin_ns),
        )
    moments = sorted(marks_of(run, totals["file_id"]).moments)
    at = dict(zip(moments, head["moments"], strict=False))
    phases, lost = _stretches(drawing, run, origin_ns, at)
    flushes = run.flush_moments(totals["file_id"])
    return {
        **{k: head[k] for k in ("file_id", "form", "counts", "grids", "clock", "granule")},
        "sections": [[name, len(content)] for name, content in drawing.sections.items()],
        "low": totals["low"],
        "high": totals["high"],
        "tallest": totals["end"] - totals["high"],
        "from": first,
        "until": last,
        "flushes": {
            "number": [at.get(moment, 0) for moment in flushes],
            "time": [moment - origin_ns for moment in flushes],
        },
        "phases": phases,
        "lost": lost,
    }


def _stretches(
    drawing: Drawing, run: TracedRun, origin_ns: int, at: dict[int, int]
) -> tuple[Any, Any]:
    """Phases and gaps on both axes: time, and the request number at that time (`at`)."""
    spans, gaps = drawn_spans(run), run.gaps
    phases: dict[str, list[Any]] = {"number": [], "time": []}
    lost: dict[str, list[Any]] = {"number": [], "time": []}
    for many, into in ((spans, phases), (gaps, lost)):
        for span in many:
            times = (span.start_ns - origin_ns, span.end_ns - origin_ns)
            numbers = (at.get(span.start_ns, 0), at.get(span.end_ns, 0))
            for axis, (start, end) in (("time", times), ("number", numbers)):
                into[axis].append({"from": start, "to": end, "name": span.name, "line": 0})
    borders = iter(drawing.head["borders"])
    total = sum(drawing.head["counts"])
    last = drawing.totals["last_ns"] - origin_ns
    line = 1 if spans else 0
    of_all = run.class_phases(drawing.totals["file_id"])
    for direction, phases_of_class in of_all:
        for phase in phases_of_class:
            first = next(borders, None) or (0, 0)
            after = next(borders, None) or (last, total)
            name = phase_text(phase)
            name = f"{direction}s {name}" if len(of_all) > 1 else name
            for axis, which in (("time", 0), ("number", 1)):
                phases[axis].append(
                    {"from": first[which], "to": after[which], "name": name, "line": line}
                )
        line += 1
    return phases, lost
