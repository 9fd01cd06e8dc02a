"""Format a check as table rows, as lines below the table, and as the document `penstock/check/1`."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from penstock.parts.conformity.comparison import OK, VERDICTS, RowResult, amount
from penstock.parts.conformity.diagnosis import FOUND, Step, causes
from penstock.parts.conformity.expected import Expectation
from penstock.parts.conformity.what_if import Gain
from penstock.text import counted, signed_percent

SCHEMA = "penstock/check/1"
_WIDTH = 100

#: headings; those of numbers begin with `#`
COLUMNS = (
    *("operation", "metric", "#n", "#expected", "#measured"),
    *("#off", "#± 95 %", "#allowed", "verdict"),
)


def cells(result: RowResult) -> list[str]:
    """Format one row of the table."""
    row = result.expected
    return [
        f"{row.module}/{row.operation}",
        row.metric,
        f"{result.n:,}",
        amount(row.predicted, row.unit),
        amount(result.mean, row.unit),
        signed_percent(result.gap),
        f"{100 * result.half:.1f} %",
        f"{100 * row.tolerance:g} %",
        result.verdict,
    ]


def lines(results: Sequence[RowResult], steps: Sequence[Step], *, all_steps: bool) -> list[str]:
    """Lines below the table: reasons of rows that are not OK, causes, and the count of each verdict."""
    off = [result for result in results if result.verdict != OK]
    paragraphs = [""] if off else []
    paragraphs += [f"{result.expected.label} is {result.verdict}: {result.note}." for result in off]
    if all_steps:
        paragraphs += ["", "Steps, in this order:"]
        paragraphs += [f"  {step.name}: {step.state}: {step.statement}." for step in steps]
    for finding in causes(steps):
        paragraphs += ["", f"{finding.code}: {finding.statement}.", f"    {finding.what_to_do}"]
    if off and not causes(steps):
        paragraphs += [
            "",
            "No cause was identified: the measured rows show where time is lost, but not why.",
        ]
    count = Counter(result.verdict for result in results)
    parts = ", ".join(f"{count[v]} {v}" for v in VERDICTS if count[v])
    paragraphs += ["", f"{counted(len(results), 'row')}: {parts}."]
    return [line for text in paragraphs for line in _wrapped(text)]


def gain_lines(gains: Sequence[Gain]) -> list[str]:
    """Lines with the predicted effect of a change on each row."""
    paragraphs = ["", "With the change:"]
    for gain in gains:
        unit = gain.expected.unit
        ends = f"{amount(gain.low, unit)} to {amount(gain.high, unit)}"
        paragraphs.append(
            f"  {gain.expected.label}: {amount(gain.mean, unit)} ({ends}) instead of "
            f"{amount(gain.measured, unit)}, {signed_percent(-gain.share)}."
        )
    return [line for text in paragraphs for line in _wrapped(text)]


def document(
    expected: Expectation,
    origin: str,
    results: Sequence[RowResult],
    steps: Sequence[Step],
    gains: Sequence[Gain] = (),
) -> dict[str, Any]:
    """Build the document `penstock/check/1` of JSON types."""
    return {
        "schema": SCHEMA,
        "expected": expected.name,
        "run": origin,
        "ok": all(result.verdict == OK for result in results),
        "counts": {v: sum(result.verdict == v for result in results) for v in VERDICTS},
        "rows": [
            {
                **{k: getattr(r.expected, k) for k in ("module", "operation", "metric", "unit")},
                "predicted": r.expected.predicted,
                "tolerance": r.expected.tolerance,
                "n": r.n,
                "mean": r.mean,
                "sd": r.sd,
                "gap": r.gap,
                "half_width": r.half,
                "variance_ratio": _finite(r.variance_ratio),
                "verdict": r.verdict,
                "note": r.note,
            }
            for r in results
        ],
        "what_if": [
            {
                **{k: getattr(g.expected, k) for k in ("module", "operation", "metric")},
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
