"""Evidence of where the time of a distributed system went: uneven nodes, hot spots, locks, retried connects.

Each function looks at one kind of rows of the table `measured` and gives findings, an empty list where there
is nothing, None where there are no rows to look at.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import pandas as pd

from penstock.analyse.findings.finding import Finding
from penstock.parts.conformity.comparison import (
    CONFIDENCE,
    OK,
    SLOW,
    UNSTABLE,
    Judged,
    half_width,
    judge,
)
from penstock.parts.conformity.expectation import ANY, CLIENT_TIME, MAKESPAN, SERVER_TIME
from penstock.parts.conformity.expected import Expectation
from penstock.parts.conformity.measured_rows import Measured
from penstock.spec.units import convert, parse_unit
from penstock.text import listed, percent

CONNECT_TIME, LOCK_WAIT, IN_FLIGHT, BYTES = "connect_time", "lock_wait", "in_flight", "bytes"
LAUNCH_TIME, TRANSFER_TIME = "launch_time", "transfer_time"

#: what each step needs to look at
NEEDS = {
    "homogeneity": f"no {SERVER_TIME} or {TRANSFER_TIME} by node",
    "launch skew": f"no {LAUNCH_TIME}",
    "modality": f"no {CLIENT_TIME} or {CONNECT_TIME} of single requests",
    "hot-spot timeline": f"no {IN_FLIGHT} by node and window",
    "locks": f"no {LOCK_WAIT} beside a {SERVER_TIME}",
}

#: how far a node may be from the others (the rule by which nodes get service times of their own)
_UNEVEN = 0.1
#: how much fuller the busiest node may be than a model says, and how equal the bytes of nodes are
_FULLER, _EQUAL_BYTES = 1.25, 1.1
#: share of its time that a call may wait for a lock beyond the model
_LOCKED = 0.2
#: first retransmission of a connection request, by RFC 6298 and Linux's TCP_TIMEOUT_INIT [s]
RETRY_S = 1.0
#: how near a multiple of it a delay is taken for retries; the kernel's timer and the way there and back
_NEAR_S = 0.15
#: of the delayed requests so many are near a multiple, where retries delayed them
_MOST_NEAR = 0.8
#: a node closed to the model is not computed exactly beyond so many requests or nodes
_EXACT = 200


@dataclass(frozen=True)
class Look:
    """What is looked at: what was expected, measured, and judged of it."""

    expected: Expectation
    measured: Measured
    rows: tuple[Judged, ...]

    def suffers(self, operation: str, *verdicts: str) -> bool:
        """Whether some row of the operation, of all operations or of a whole run has one of the verdicts."""
        return any(
            row.verdict in verdicts
            for row in self.rows
            if row.row.operation in (operation, ANY) or row.row.metric == MAKESPAN
        )

    def server_is_normal(self, operation: str) -> bool:
        """True if a server's time for the operation (or for all) was judged, and is not SLOW or UNSTABLE."""
        servers = [row for row in self.rows if row.row.metric == SERVER_TIME]
        same = [row for row in servers if row.row.operation == operation] or servers
        return bool(same) and not any(row.verdict in (SLOW, UNSTABLE) for row in same)

    def connects(self, operation: str) -> np.ndarray[Any, Any]:
        """Times of connecting for the operation, else of all operations [s]; empty if not measured."""
        measured = self.measured.modules(CONNECT_TIME)
        same = [one for one in measured if one[1] == operation] or measured
        rows = [self.measured.of(*one, CONNECT_TIME)["value"].to_numpy(float) for one in same]
        return np.concatenate(rows) if rows else np.empty(0)

    def moves_bytes(self, operation: str) -> bool:
        """True if the time of each byte was measured beside it: its requests are of several sizes."""
        return any(
            one == operation or one.endswith(f" {operation}")
            for _, one in self.measured.modules(TRANSFER_TIME)
        )


def uneven_nodes(look: Look) -> list[Finding] | None:
    """Nodes whose service, or the way there, takes 10 % more or less than the median node's, by its interval.

    What counts is the fastest request of each trial: others may have waited for one another, which makes a
    node slow that all go to first.
    """
    seen = False
    found: list[Finding] = []
    modules = [
        (*one, metric)
        for metric in (SERVER_TIME, TRANSFER_TIME)
        for one in look.measured.modules(metric)
    ]
    for module, operation, metric in modules:
        rows = look.measured.of(module, operation, metric)
        rows = rows[rows["node"] != ""]
        nodes = {
            str(node): [float(v) for v in mine.groupby("trial", observed=True)["value"].min()]
            for node, mine in rows.groupby("node", observed=True)
        }
        if len(nodes) < 3 or min(map(len, nodes.values())) < 2:
            continue
        seen = True
        middle = float(np.median([np.mean(v) for v in nodes.values()]))
        for node, values in sorted(nodes.items()) if middle > 0 else ():
            # all nodes together are called even with 95 %
            half = half_width(values, 1 - (1 - CONFIDENCE) / len(nodes)) / middle
            ratio = float(np.mean(values)) / middle
            if abs(ratio - 1) - half > _UNEVEN:
                way = "longer" if ratio > 1 else "shorter"
                said = f"{node} takes {percent(abs(ratio - 1))} {way} for {module}/{operation} than others"
                found.append(
                    Finding(
                        "uneven-nodes",
                        "warning",
                        said,
                        {"module": module, "operation": operation, "node": node, "ratio": ratio},
                        "Give that node service times of its own, or leave it out.",
                    )
                )
    return found if seen else None


def late_launches(look: Look) -> list[Finding] | None:
    """Whole runs that are SLOW by no more than the last of their programs was launched late."""
    launches: list[pd.DataFrame] = [
        look.measured.of(module, operation, LAUNCH_TIME)
        for module, operation in look.measured.modules(LAUNCH_TIME)
    ]
    if not launches:
        return None
    last = pd.concat(launches).groupby("trial", observed=True)["value"].max()
    found: list[Finding] = []
    for row in look.rows:
        timed = parse_unit(row.row.unit).dimension == "time"
        if row.row.metric != MAKESPAN or row.verdict != SLOW or not timed:
            continue
        rows = look.measured.of(*row.row.key, row.row.unit)
        took = rows.groupby("trial", observed=True)["value"].mean()
        if took.empty:
            continue
        late = last.reindex(took.index).fillna(0.0) * convert(1.0, "s", row.row.unit)
        if judge(row.row, list(took - late)).verdict != OK:
            continue
        said = (
            f"programs were launched up to {float(last.mean()):.2g} s late, which is all that "
            f"{row.row.module} lost"
        )
        found.append(
            Finding(
                "launch-skew",
                "warning",
                said,
                {"module": row.row.module, "launch_s": float(last.mean())},
                "Launch the programs before the time is taken, or give the model its launch time.",
            )
        )
    return found


def second_modes(look: Look) -> list[Finding] | None:
    """Requests that took whole multiples of a second longer than the others.

    Where the times of connecting show it, connection requests were dropped and sent again. Times of whole
    requests count where the servers' own time was judged and is normal, and requests are of one size; they
    speak of connects only while times of connecting that were measured do not speak against it.
    """
    seen = False
    found: list[Finding] = []
    for metric in (CONNECT_TIME, CLIENT_TIME):
        for module, operation in look.measured.modules(metric):
            values = look.measured.of(module, operation, metric)["value"].to_numpy(float)
            if len(values) < 8:
                continue
            seen = True
            if not look.suffers(operation, SLOW, UNSTABLE):
                continue
            whole = metric == CLIENT_TIME
            if whole and (look.moves_bytes(operation) or not look.server_is_normal(operation)):
                continue
            mode = second_mode(values)
            if mode is None or any(f.evidence["operation"] == operation for f in found):
                continue
            connects = look.connects(operation)
            normal = whole and len(connects) > 0 and second_mode(connects) is None
            found.append(_delayed(module, operation, metric, mode, len(connects) > 0, normal))
    return found if seen else None


def _delayed(
    module: str, operation: str, metric: str, mode: Mode, measured: bool, normal: bool
) -> Finding:
    """The finding of a second mode; `measured`: so were the times of connecting, which may be `normal`."""
    what = "connects" if metric == CONNECT_TIME else "requests"
    said = (
        f"{mode.delayed} of {mode.of} {what} of {module}/{operation} took {_seconds(mode)} longer than the "
        "others"
    )
    if metric == CLIENT_TIME:
        said += ", while the servers' own time is as it should be"
    if normal:
        code, said = (
            "whole-second-delay",
            f"{said}, and so are the connects: a time-out of another kind",
        )
        advice = (
            "Look for a time-out of so many seconds in the client, its libraries and name service."
        )
    else:
        code = "connect-retry"
        said += ": connects are tried again" if measured else ": connects may be tried again"
        advice = (
            "A full listen backlog drops connection requests: accept sooner, give listen() a longer one "
            "(net.core.somaxconn), or keep connections open."
        )
        if not measured:
            advice += f" Times of connecting ({CONNECT_TIME}) would show whether it is that."
    return Finding(
        code,
        "error" if measured and not normal else "warning",
        said,
        {
            "module": module,
            "operation": operation,
            "metric": metric,
            "delayed": mode.delayed,
            "requests": mode.of,
            "multiples": mode.multiples,
        },
        advice,
        f"{mode.near} of {mode.delayed} within {_NEAR_S:g} s of a whole second",
    )


@dataclass(frozen=True)
class Mode:
    """Requests that are whole multiples of a second behind the fast ones: how many of how many, how many of
    them near a multiple, and which multiples."""

    delayed: int
    of: int
    near: int
    multiples: list[int]


def second_mode(values_s: np.ndarray[Any, Any]) -> Mode | None:
    """The second mode of times [s], None where there is none.

    They are held against the fastest: with a short backlog most may be slow. What is delayed by more than
    half a second must be near whole seconds, and at least two requests must be.
    """
    behind = values_s - values_s.min()
    delayed = behind[behind > RETRY_S / 2]
    whole = np.round(delayed / RETRY_S)
    near = np.abs(delayed - whole * RETRY_S) <= _NEAR_S
    if len(delayed) < 2 or near.sum() < max(2, _MOST_NEAR * len(delayed)):
        return None
    multiples = sorted({int(k) for k in whole[near]})
    return Mode(len(delayed), len(values_s), int(near.sum()), multiples)


def _seconds(mode: Mode) -> str:
    return f"{listed([str(k) for k in mode.multiples[:4]], 'or')} s"


def hot_spots(look: Look) -> list[Finding] | None:
    """Operations whose requests meet at one node at a time, though each node gets the same bytes."""
    seen = False
    found: list[Finding] = []
    for module, operation in look.measured.modules(IN_FLIGHT):
        rows = look.measured.of(module, operation, IN_FLIGHT, "1")
        heat = in_flight(rows)
        if heat is None:
            continue
        seen = True
        told = look.expected.of(module, operation).in_flight_max_over_mean
        # without a model the bound is that of service times that vary as much as exponential ones
        model = balanced(heat.nodes, heat.requests) if told is None else told
        most = model if told is None else _FULLER * model
        if heat.ratio - heat.half <= most or not look.suffers(operation, SLOW):
            continue
        shares = byte_share(look.measured.of(module, operation, BYTES, "B"), heat.nodes)
        even = shares is None or shares <= _EQUAL_BYTES
        code = "hot-spot" if even else "uneven-placement"
        bytes_said = (
            "the bytes by node were not measured"
            if shares is None
            else f"bytes by node are {'equal' if even else 'not equal'} (largest over mean {shares:.2f})"
        )
        said = (
            f"of the requests of {module}/{operation} under way, the busiest of {heat.nodes} nodes has "
            f"{heat.ratio:.1f} times the mean (model: {model:.1f}), and {bytes_said}"
        )
        advice = (
            "All clients go from node to node in one order: draw the order anew for each request."
            if even
            else "Spread the chunks over the nodes."
        )
        found.append(
            Finding(
                code,
                "error",
                said,
                {
                    "module": module,
                    "operation": operation,
                    "in_flight_max_over_mean": heat.ratio,
                    "model": model,
                    "bytes_max_over_mean": shares,
                    "windows": heat.windows,
                },
                advice,
            )
        )
    return found if seen else None


@dataclass(frozen=True)
class Heat:
    """Requests under way at the busiest node over those at a node: the mean over trials with its half-width,
    how many nodes and requests there were, and of how many windows that is."""

    ratio: float
    half: float
    nodes: int
    requests: float
    windows: int


def in_flight(rows: pd.DataFrame) -> Heat | None:
    """Of rows of `in_flight` by trial, window and node; None for fewer than two nodes, or none busy.

    A node without a row in a window had nothing under way. Windows with less under way than half of the
    trial's mean are its beginning and end, and left out.
    """
    rows = rows[(rows["node"] != "") & (rows["window"] >= 0)]
    if rows["node"].nunique() < 2:
        return None
    wide = rows.pivot_table(
        index=["trial", "window"], columns="node", values="value", fill_value=0.0, observed=True
    )
    total = wide.sum(axis=1)
    full = total.groupby(level="trial", observed=True).transform("mean")
    kept = (total > 0) & (total >= full / 2)
    most = wide.max(axis=1)[kept].groupby(level="trial", observed=True).sum()
    mean = wide.mean(axis=1)[kept].groupby(level="trial", observed=True).sum()
    ratios = (most / mean)[mean > 0].to_list()
    if not ratios:
        return None
    half = half_width(ratios) if len(ratios) > 1 else 0.0
    return Heat(
        float(np.mean(ratios)), half, wide.shape[1], float(total[kept].mean()), int(kept.sum())
    )


def balanced(nodes: int, requests: float) -> float:
    """Mean of the largest over the mean, of requests under way at alike nodes.

    In a closed network of alike exponential stations every way of distributing `requests` over `nodes` is
    equally likely (Gordon and Newell 1967); requests that take less varying times meet less often. Beyond
    some hundred requests the limit of large numbers of them, the harmonic number of the nodes.
    """
    m = max(1, round(requests))
    if m > _EXACT or nodes > _EXACT:
        return min(float(nodes), float(np.sum(1 / np.arange(1, nodes + 1))))
    ways = comb(m + nodes - 1, nodes - 1)

    def at_most(k: int) -> int:
        """Ways in which no node has more than k."""
        most = range(min(nodes, m // (k + 1)) + 1)
        return sum(
            (-1) ** j * comb(nodes, j) * comb(m - j * (k + 1) + nodes - 1, nodes - 1) for j in most
        )

    largest = sum(1 - at_most(k) / ways for k in range(m))
    return largest * nodes / m


def byte_share(rows: pd.DataFrame, nodes: int) -> float | None:
    """Bytes of the node with most over those of a node, in all trials together; None if not measured."""
    rows = rows[rows["node"] != ""]
    total = float(rows["value"].sum())
    if total <= 0:
        return None
    return float(rows.groupby("node", observed=True)["value"].sum().max()) * nodes / total


def lock_waits(look: Look) -> list[Finding] | None:
    """Modules whose operations are SLOW because their server waits for a lock."""
    seen = False
    held: dict[str, dict[str, dict[str, float]]] = {}
    for module, operation in look.measured.modules(LOCK_WAIT):
        waits = look.measured.of(module, operation, LOCK_WAIT)
        took = look.measured.of(module, operation, SERVER_TIME)
        if took.empty or took["value"].sum() <= 0:
            continue
        seen = True
        share = float(waits["value"].sum() / took["value"].sum())
        ideal = look.expected.of(module, operation)
        if share - (ideal.lock_wait_share or 0.0) <= _LOCKED or not look.suffers(operation, SLOW):
            continue
        p50, p99 = (float(v) for v in np.quantile(took["value"], (0.5, 0.99)))
        held.setdefault(module, {})[operation] = {
            "lock_wait_share": share,
            "model": ideal.lock_wait_share or 0.0,
            "p99_over_p50": p99 / p50 if p50 > 0 else 0.0,
        } | ({} if ideal.p99_over_p50 is None else {"p99_over_p50_of_model": ideal.p99_over_p50})
    if not seen:
        return None
    return [_locked(module, operations) for module, operations in held.items()]


def _locked(module: str, operations: dict[str, dict[str, float]]) -> Finding:
    parts = [
        f"{percent(row['lock_wait_share'])} of {operation} (model: {percent(row['model'])}; "
        f"p99 is {row['p99_over_p50']:.1f} times p50{_beside(row.get('p99_over_p50_of_model'))})"
        for operation, row in operations.items()
    ]
    return Finding(
        "lock-contention",
        "error",
        f"{module} waits for a lock: {listed(parts)}",
        {"module": module, "operations": operations},
        "Hold the lock for what must not change meanwhile, not for the whole call.",
    )


def _beside(model: float | None) -> str:
    return "" if model is None else f", model {model:.1f}"
