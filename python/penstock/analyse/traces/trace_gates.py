"""Gates on the input and output of two traces: `flushes > 5%`, `written_bytes@*.db > 0%`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.analyse.traces.trace_compare import Run
from penstock.analyse.treatments.compared import Gate
from penstock.errors import BadInput, printable
from penstock.text import matches_pattern, signed_percent

#: quantities of a gate: directions, and the summed quantity
_SUMS: dict[str, tuple[tuple[str, ...], str]] = {
    "requests": (("read", "write", "sync"), "requests"),
    "reads": (("read",), "requests"),
    "writes": (("write",), "requests"),
    "flushes": (("sync",), "requests"),
    "bytes": (("read", "write"), "bytes"),
    "read_bytes": (("read",), "bytes"),
    "written_bytes": (("write",), "bytes"),
    "time": (("read", "write", "sync"), "time_ns"),
    "read_time": (("read",), "time_ns"),
    "write_time": (("write",), "time_ns"),
    "flush_time": (("sync",), "time_ns"),
}


@dataclass(frozen=True)
class TraceGate:
    """A gate and the sums in both traces [requests, bytes, ns]. Any increase from 0 is infinite."""

    gate: str
    a: int
    b: int
    change: float
    failed: bool

    def document(self) -> dict[str, Any]:
        """As JSON; an infinite change is null."""
        change = self.change if math.isfinite(self.change) else None
        return {**vars(self), "change": change}

    @property
    def text(self) -> str:
        """One line for the terminal."""
        changed = signed_percent(self.change, 2) if math.isfinite(self.change) else "new"
        verdict = "failed" if self.failed else "passed"
        return f"{self.gate}: {self.a:,} in A, {self.b:,} in B ({changed}): {verdict}"


def is_of_traces(gate: Gate) -> bool:
    """True for a gate on requests, bytes or time of traces."""
    return gate.metric in _SUMS


def judge_traces(a: Run, b: Run, gates: Sequence[Gate]) -> list[TraceGate]:
    """Results of `is_of_traces` gates, each over the files that match its pattern after `@` (path or name).

    BadInput for a pattern that matches no file of either trace.
    """
    return [_judge(a, b, gate) for gate in gates]


def _judge(a: Run, b: Run, gate: Gate) -> TraceGate:
    pattern = gate.phase
    if pattern is not None and not any(
        _matches(pattern, r.path_of(f)) for r in (a, b) for f, _ in r.sums
    ):
        raise BadInput(
            f"--fail-on: found no file that {printable(pattern)!r} matches in either trace; expected a path "
            "or a file name, with * and ?"
        )
    before, after = (_sum(run, gate.metric, pattern) for run in (a, b))
    change = after / before - 1 if before else (math.inf if after else 0.0)
    failed = change > gate.share if gate.sign == ">" else change < gate.share
    return TraceGate(gate.text, before, after, change, failed)


def _sum(run: Run, metric: str, pattern: str | None) -> int:
    directions, column = _SUMS[metric]
    return sum(
        int(side[column])
        for (file_id, direction), side in run.sums.items()
        if direction in directions and (pattern is None or _matches(pattern, run.path_of(file_id)))
    )


def _matches(pattern: str, path: str) -> bool:
    names = (path, path.rpartition("/")[2])
    return any(matches_pattern(name, pattern) for name in names)
