"""Diagnose why a run is slow, in an order that avoids wrong conclusions.

Uneven nodes and late launches come first, because they are not caused by the program. Then the rows that are
not OK, by server and client. Then the times of single requests, the queues of the servers, and the locks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.analyse.findings.finding import Finding
from penstock.parts.conformity import contention
from penstock.parts.conformity.comparison import OK, RowResult
from penstock.parts.conformity.contention import Comparison
from penstock.parts.conformity.expectation import CLIENT, CLIENT_TIME, MAKESPAN, SERVER_TIME
from penstock.parts.conformity.expected import Expectation
from penstock.parts.conformity.measured_rows import Measured
from penstock.text import counted, listed, signed_percent

FOUND, CLEAR, NO_EVIDENCE = "found", "clear", "no evidence"


@dataclass(frozen=True)
class Step:
    """One step of the diagnosis. `state`: `found`, with findings; `clear`; or `no evidence`, not measured."""

    name: str
    state: str
    statement: str
    findings: tuple[Finding, ...] = ()


def diagnose(expected: Expectation, measured: Measured, results: Sequence[RowResult]) -> list[Step]:
    """Run every step in order. Findings are reported as causes only if a row is not OK."""
    off = [result for result in results if result.verdict != OK]
    comparison = Comparison(expected, measured, tuple(results))
    steps: list[Step] = [
        _step("homogeneity", contention.uneven_nodes(comparison), off),
        _step("launch skew", contention.late_launches(comparison), off),
        Step("model self-tests", NO_EVIDENCE, "not part of a run: `make test` of penstock"),
        _rows("end to end", results, lambda r: r.expected.metric == MAKESPAN),
        _rows("server per module", results, lambda r: r.expected.metric == SERVER_TIME),
        _rows(
            "client",
            results,
            lambda r: r.expected.metric == CLIENT_TIME or r.expected.module == CLIENT,
        ),
    ]
    for name, findings in (
        ("modality", contention.second_modes(comparison)),
        ("hot-spot timeline", contention.hot_spots(comparison)),
        ("locks", contention.lock_waits(comparison)),
    ):
        steps.append(_step(name, findings, off))
    return steps


def causes(steps: Sequence[Step]) -> list[Finding]:
    """Findings of all steps, in order."""
    return [finding for step in steps for finding in step.findings]


def _step(name: str, findings: list[Finding] | None, off: Sequence[RowResult]) -> Step:
    if findings is None:
        return Step(name, NO_EVIDENCE, contention.NEEDS[name])
    if not findings:
        return Step(name, CLEAR, "nothing")
    statement = "; ".join(finding.statement for finding in findings)
    if not off:
        return Step(name, CLEAR, f"{statement} (no row is affected)")
    return Step(name, FOUND, statement, tuple(findings))


def _rows(name: str, results: Sequence[RowResult], selects: Callable[[RowResult], bool]) -> Step:
    subset = [result for result in results if selects(result)]
    if not subset:
        return Step(name, NO_EVIDENCE, "no such row was expected and measured")
    off = [result for result in subset if result.verdict != OK]
    if not off:
        return Step(name, CLEAR, f"{counted(len(subset), 'row')} OK")
    statements = [
        f"{r.expected.module}/{r.expected.operation} {r.verdict} ({signed_percent(r.gap, 0)})"
        for r in off
    ]
    return Step(name, FOUND, listed(statements))
