"""A check as a table, as lines below it, and as the document `penstock/check/1`."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from penstock.parts.conformity.comparison import OK, VERDICTS, Judged, amount
from penstock.parts.conformity.diagnosis import FOUND, Step, causes
from penstock.parts.conformity.expected import Expectation
from penstock.parts.conformity.what_if import Gain
from penstock.text import counted

SCHEMA = "penstock/check/1"
_WIDTH = 100

#: heading, and whether it is a number
COLUMNS = (
    ("operation", False),
    ("metric", False),
    ("n", True),
    ("expected", True),
    ("measured", True),
    ("off", True),
    ("± 95 %", True),
    ("allowed", True),
    ("verdict", False),
)


def cells(judged: Judged) -> list[str]:
    """One row of the table."""
    row = judged.row
    return [
        f"{row.module}/{row.operation}",
        row.metric,
        f"{judged.n:,}",
        amount(row.predicted, row.unit),
        amount(judged.mean, row.unit),
        _signed(100 * judged.gap),
        f"{100 * judged.half:.1f} %",
        f"{100 * row.tolerance:g} %",
        judged.verdict,
    ]


def _signed(percent: float) -> str:
    # a sum with 0 has no sign of its own
    return f"{round(percent, 1) + 0.0:+.1f} %".replace("-", "−")


def lines(rows: Sequence[Judged], steps: Sequence[Step], *, all_steps: bool) -> list[str]:
    """What stands below the table: why rows are not OK, what is to blame, how many are what."""
    off = [row for row in rows if row.verdict != OK]
    said = [""] if off else []
    said += [f"{judged.row.words} is {judged.verdict}: {judged.note}." for judged in off]
    if all_steps:
        said += ["", "Looked at, in this order:"]
        said += [f"  {step.name}: {step.state}: {step.statement}." for step in steps]
    for finding in causes(steps):
        said += ["", f"{finding.code}: {finding.statement}.", f"    {finding.what_to_do}"]
    if off and not causes(steps):
        said += [
            "",
            "No cause is named: the rows say where, the evidence measured does not say why.",
        ]
    count = Counter(row.verdict for row in rows)
    parts = ", ".join(f"{count[v]} {v}" for v in VERDICTS if count[v])
    said += ["", f"{counted(len(rows), 'row')}: {parts}."]
    return [line for text in said for line in _wrapped(text)]


def gain_lines(gains: Sequence[Gain]) -> list[str]:
    """What the rows would be with a change that is not made yet."""
    said = ["", "With the change:"]
    for one in gains:
        unit = one.row.unit
        ends = f"{amount(one.low, unit)} to {amount(one.high, unit)}"
        said.append(
            f"  {one.row.words}: {amount(one.mean, unit)} ({ends}) instead of "
            f"{amount(one.measured, unit)}, {_signed(-100 * one.share)}."
        )
    return [line for text in said for line in _wrapped(text)]


def document(
    expected: Expectation,
    origin: str,
    rows: Sequence[Judged],
    steps: Sequence[Step],
    gains: Sequence[Gain] = (),
) -> dict[str, Any]:
    """The document `penstock/check/1`, plain values only."""
    return {
        "schema": SCHEMA,
        "expected": expected.name,
        "run": origin,
        "ok": all(row.verdict == OK for row in rows),
        "counts": {v: sum(row.verdict == v for row in rows) for v in VERDICTS},
        "rows": [
            {
                **{k: getattr(r.row, k) for k in ("module", "operation", "metric", "unit")},
                "predicted": r.row.predicted,
                "tolerance": r.row.tolerance,
                "n": r.n,
                "mean": r.mean,
                "sd": r.sd,
                "gap": r.gap,
                "half_width": r.half,
                "variance_ratio": _finite(r.variance_ratio),
                "verdict": r.verdict,
                "note": r.note,
            }
            for r in rows
        ],
        "what_if": [
            {
                **{k: getattr(g.row, k) for k in ("module", "operation", "metric")},
                "mean": g.mean,
                "low": g.low,
                "high": g.high,
                "share": g.share,
            }
            for g in gains
        ],
        "causes": [asdict(finding) for finding in causes(steps)],
        "blame": [
            {"step": s.name, "state": s.state, "statement": s.statement}
            | ({"causes": [f.code for f in s.findings]} if s.state == FOUND else {})
            for s in steps
        ],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _wrapped(text: str) -> list[str]:
    indent = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent + "    " * (not indent)) or [""]
