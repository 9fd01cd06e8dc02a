"""What made a run slow: places looked at in the order in which one would otherwise blame the wrong one.

Uneven nodes and late launches first, which are no fault of the program; then which row is off, on the
server's side or the client's; then what the single requests, the servers' queues and the locks say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.analyse.findings.finding import Finding
from penstock.parts.conformity import contention
from penstock.parts.conformity.comparison import OK, Judged
from penstock.parts.conformity.contention import Look
from penstock.parts.conformity.expectation import CLIENT, CLIENT_TIME, MAKESPAN, SERVER_TIME
from penstock.parts.conformity.expected import Expectation
from penstock.parts.conformity.measured_rows import Measured
from penstock.text import counted, listed

FOUND, CLEAR, NO_EVIDENCE = "found", "clear", "no evidence"


@dataclass(frozen=True)
class Step:
    """One place that was looked at: `found` with its findings, `clear`, or `no evidence` to look at."""

    name: str
    state: str
    statement: str
    findings: tuple[Finding, ...] = ()


def blamed(expected: Expectation, measured: Measured, rows: Sequence[Judged]) -> list[Step]:
    """Every step in order. Causes are only named where a row is not OK."""
    off = [row for row in rows if row.verdict != OK]
    look = Look(expected, measured, tuple(rows))
    made: list[Step] = [
        _looked("homogeneity", contention.uneven_nodes(look), off),
        _looked("launch skew", contention.late_launches(look), off),
        Step("model self-tests", NO_EVIDENCE, "not part of a run: `make test` of penstock"),
        _rows("end to end", rows, lambda r: r.row.metric == MAKESPAN),
        _rows("server per module", rows, lambda r: r.row.metric == SERVER_TIME),
        _rows("client", rows, lambda r: r.row.metric == CLIENT_TIME or r.row.module == CLIENT),
    ]
    for name, found in (
        ("modality", contention.second_modes(look)),
        ("hot-spot timeline", contention.hot_spots(look)),
        ("locks", contention.lock_waits(look)),
    ):
        made.append(_looked(name, found, off))
    return made


def causes(steps: Sequence[Step]) -> list[Finding]:
    """What was found to blame, in order, without the rows themselves."""
    return [finding for step in steps for finding in step.findings]


def _looked(name: str, found: list[Finding] | None, off: Sequence[Judged]) -> Step:
    if found is None:
        return Step(name, NO_EVIDENCE, contention.NEEDS[name])
    if not found:
        return Step(name, CLEAR, "nothing")
    if not off:
        said = "; ".join(finding.statement for finding in found)
        return Step(name, CLEAR, f"{said} (nothing suffers from it)")
    return Step(name, FOUND, "; ".join(finding.statement for finding in found), tuple(found))


def _rows(name: str, rows: Sequence[Judged], of: Callable[[Judged], bool]) -> Step:
    mine = [row for row in rows if of(row)]
    if not mine:
        return Step(name, NO_EVIDENCE, "no such row was expected and measured")
    off = [row for row in mine if row.verdict != OK]
    if not off:
        return Step(name, CLEAR, f"{counted(len(mine), 'row')} OK")
    said = [
        f"{row.row.module}/{row.row.operation} {row.verdict} ({100 * row.gap:+.0f} %)"
        for row in off
    ]
    return Step(name, FOUND, listed(said))
