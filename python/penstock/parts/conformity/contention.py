"""Find causes of lost time in a distributed system: uneven nodes, hot spots, locks, retried connects.

Each function reads one kind of rows of the table `measured`. It returns its findings, an empty list if there
are none, and None if the rows that it needs were not measured.
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
    RowResult,
    evaluate,
    half_width,
)
from penstock.parts.conformity.expectation import ANY, CLIENT_TIME, MAKESPAN, SERVER_TIME
from penstock.parts.conformity.expected import Expectation
from penstock.parts.conformity.measured_rows import Measured
from penstock.spec.units import convert, parse_unit
from penstock.text import listed, percent

CONNECT_TIME, LOCK_WAIT, IN_FLIGHT, BYTES = "connect_time", "lock_wait", "in_flight", "bytes"
LAUNCH_TIME, TRANSFER_TIME = "launch_time", "transfer_time"

#: message of each step whose rows were not measured
NEEDS = {
    "homogeneity": f"no {SERVER_TIME} or {TRANSFER_TIME} by node",
    "launch skew": f"no {LAUNCH_TIME}",
    "modality": f"no {CLIENT_TIME} or {CONNECT_TIME} of single requests",
    "hot-spot timeline": f"no {IN_FLIGHT} by node and window",
    "locks": f"no {LOCK_WAIT} together with {SERVER_TIME}",
}

#: largest deviation of a node from the median node, as a share (also the rule for separate service times)
_MAX_DEVIATION = 0.1
#: requests at the busiest node / mean over nodes, relative to the model: largest value without a finding
_MAX_IMBALANCE = 1.25
#: bytes of the largest node / mean over nodes: largest value that counts as equal
_EQUAL_BYTES = 1.1
#: largest share of a call's time in waits for locks, above that of the model
_MAX_LOCK_WAIT = 0.2
#: first retransmission of a connection request, by RFC 6298 and Linux's TCP_TIMEOUT_INIT [s]
RETRY_S = 1.0
#: largest distance of a delay by retries from a multiple of RETRY_S: kernel timer and round trip [s]
_NEAR_S = 0.15
#: least share of the delayed requests that must be near a multiple
_MIN_NEAR = 0.8
#: largest number of requests and of nodes for which `balanced` is exact
_MAX_EXACT = 200


@dataclass(frozen=True)
class Comparison:
    """Expected rows, measured rows, and the result of each expected row that was measured."""

    expected: Expectation
    measured: Measured
    results: tuple[RowResult, ...]

    def has_verdict(self, operation: str, *verdicts: str) -> bool:
        """True if a row of the operation, of all operations or of the makespan has one of the verdicts."""
        return any(
            result.verdict in verdicts
            for result in self.results
            if result.expected.operation in (operation, ANY) or result.expected.metric == MAKESPAN
        )

    def server_is_normal(self, operation: str) -> bool:
        """True if the server time of the operation (else of any) was compared and is not SLOW or UNSTABLE."""
        servers = [result for result in self.results if result.expected.metric == SERVER_TIME]
        same = [result for result in servers if result.expected.operation == operation] or servers
        return bool(same) and not any(result.verdict in (SLOW, UNSTABLE) for result in same)

    def connect_times(self, operation: str) -> np.ndarray[Any, Any]:
        """Connect times of the operation, else of all operations [s]; empty if not measured."""
        measured = self.measured.modules(CONNECT_TIME)
        same = [one for one in measured if one[1] == operation] or measured
        rows = [self.measured.of(*one, CONNECT_TIME)["value"].to_numpy(float) for one in same]
        return np.concatenate(rows) if rows else np.empty(0)

    def moves_bytes(self, operation: str) -> bool:
        """True if transfer times were measured too: the requests of the operation differ in size."""
        return any(
            one == operation or one.endswith(f" {operation}")
            for _, one in self.measured.modules(TRANSFER_TIME)
        )


def uneven_nodes(comparison: Comparison) -> list[Finding] | None:
    """Find nodes whose server or transfer time differs from the median node's by more than 10 %.

    The whole confidence interval of the node must be beyond 10 %. Only the fastest request of each trial
    counts: others may have queued, which would make the node slow that all clients use first.
    """
    seen = False
    findings: list[Finding] = []
    modules = [
        (*one, metric)
        for metric in (SERVER_TIME, TRANSFER_TIME)
        for one in comparison.measured.modules(metric)
    ]
    for module, operation, metric in modules:
        rows = comparison.measured.of(module, operation, metric)
        rows = rows[rows["node"] != ""]
        nodes = {
            str(node): [float(v) for v in subset.groupby("trial", observed=True)["value"].min()]
            for node, subset in rows.groupby("node", observed=True)
        }
        if len(nodes) < 3 or min(map(len, nodes.values())) < 2:
            continue
        seen = True
        middle = float(np.median([np.mean(v) for v in nodes.values()]))
        for node, values in sorted(nodes.items()) if middle > 0 else ():
            # Bonferroni: 95 % confidence for all nodes together
            half = half_width(values, 1 - (1 - CONFIDENCE) / len(nodes)) / middle
            ratio = float(np.mean(values)) / middle
            if abs(ratio - 1) - half > _MAX_DEVIATION:
                difference = f"{percent(abs(ratio - 1))} {'longer' if ratio > 1 else 'shorter'}"
                statement = f"{node} takes {difference} for {module}/{operation} than others"
                findings.append(
                    Finding(
                        "uneven-nodes",
                        "warning",
                        statement,
                        {"module": module, "operation": operation, "node": node, "ratio": ratio},
                        "Model that node with separate service times, or exclude it.",
                    )
                )
    return findings if seen else None


def late_launches(comparison: Comparison) -> list[Finding] | None:
    """Find SLOW makespans that are explained by the late launch of the last program."""
    launches: list[pd.DataFrame] = [
        comparison.measured.of(module, operation, LAUNCH_TIME)
        for module, operation in comparison.measured.modules(LAUNCH_TIME)
    ]
    if not launches:
        return None
    last = pd.concat(launches).groupby("trial", observed=True)["value"].max()
    findings: list[Finding] = []
    for result in comparison.results:
        expected = result.expected
        timed = parse_unit(expected.unit).dimension == "time"
        if expected.metric != MAKESPAN or result.verdict != SLOW or not timed:
            continue
        rows = comparison.measured.of(*expected.key, expected.unit)
        took = rows.groupby("trial", observed=True)["value"].mean()
        if took.empty:
            continue
        late = last.reindex(took.index).fillna(0.0) * convert(1.0, "s", expected.unit)
        if evaluate(expected, list(took - late)).verdict != OK:
            continue
        statement = (
            f"programs were launched up to {float(last.mean()):.2g} s late, which explains the delay of "
            f"{expected.module}"
        )
        findings.append(
            Finding(
                "launch-skew",
                "warning",
                statement,
                {"module": expected.module, "launch_s": float(last.mean())},
                "Start the measurement after the launch of the programs, or model the launch time.",
            )
        )
    return findings


def second_modes(comparison: Comparison) -> list[Finding] | None:
    """Find requests that took a multiple of one second longer than the others.

    In connect times this shows that connection requests were dropped and sent again. Client times count only
    if the server time was compared and is normal and all requests have one size. They indicate retried
    connects unless connect times were measured and show no such delay.
    """
    seen = False
    findings: list[Finding] = []
    for metric in (CONNECT_TIME, CLIENT_TIME):
        for module, operation in comparison.measured.modules(metric):
            values = comparison.measured.of(module, operation, metric)["value"].to_numpy(float)
            if len(values) < 8:
                continue
            seen = True
            if not comparison.has_verdict(operation, SLOW, UNSTABLE):
                continue
            of_request = metric == CLIENT_TIME
            if of_request and (
                comparison.moves_bytes(operation) or not comparison.server_is_normal(operation)
            ):
                continue
            mode = second_mode(values)
            if mode is None or any(f.evidence["operation"] == operation for f in findings):
                continue
            connects = comparison.connect_times(operation)
            normal = of_request and len(connects) > 0 and second_mode(connects) is None
            findings.append(_delayed(module, operation, metric, mode, len(connects) > 0, normal))
    return findings if seen else None


def _delayed(
    module: str, operation: str, metric: str, mode: Mode, measured: bool, normal: bool
) -> Finding:
    """Build the finding. `measured`: connect times were measured too; `normal`: they have no second mode."""
    what = "connects" if metric == CONNECT_TIME else "requests"
    statement = (
        f"{mode.delayed} of {mode.of} {what} of {module}/{operation} took {_seconds(mode)} longer than the "
        "others"
    )
    if metric == CLIENT_TIME:
        statement += ", while server times are normal"
    if normal:
        code, statement = (
            "whole-second-delay",
            f"{statement}, and so are connect times: another kind of time-out",
        )
        advice = (
            "Look for a time-out of that length in the client, its libraries and the name service."
        )
    else:
        code = "connect-retry"
        statement += ": connects are retried" if measured else ": connects may be retried"
        advice = (
            "A full listen backlog drops connection requests: accept sooner, give listen() a longer one "
            "(net.core.somaxconn), or keep connections open."
        )
        if not measured:
            advice += f" Measure connect times ({CONNECT_TIME}) to confirm this."
    return Finding(
        code,
        "error" if measured and not normal else "warning",
        statement,
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
    """Requests that are delayed by multiples of one second.

    `delayed` of `of` requests are later than the fastest by more than half a second, `near` of these are
    close to one of the `multiples` [s].
    """

    delayed: int
    of: int
    near: int
    multiples: list[int]


def second_mode(values_s: np.ndarray[Any, Any]) -> Mode | None:
    """Find the second mode of times [s]; None if there is none.

    Delays are relative to the fastest request, because with a short backlog most requests may be slow. Of
    those above half a second, at least two and a share of 0.8 must be close to whole seconds.
    """
    behind = values_s - values_s.min()
    delayed = behind[behind > RETRY_S / 2]
    rounded = np.round(delayed / RETRY_S)
    near = np.abs(delayed - rounded * RETRY_S) <= _NEAR_S
    if len(delayed) < 2 or near.sum() < max(2, _MIN_NEAR * len(delayed)):
        return None
    multiples = sorted({int(k) for k in rounded[near]})
    return Mode(len(delayed), len(values_s), int(near.sum()), multiples)


def _seconds(mode: Mode) -> str:
    return f"{listed([str(k) for k in mode.multiples[:4]], 'or')} s"


def hot_spots(comparison: Comparison) -> list[Finding] | None:
    """Find operations whose requests are concentrated on one node at a time.

    The code is `hot-spot` if all nodes get the same bytes, else `uneven-placement`.
    """
    seen = False
    findings: list[Finding] = []
    for module, operation in comparison.measured.modules(IN_FLIGHT):
        rows = comparison.measured.of(module, operation, IN_FLIGHT, "1")
        heat = in_flight(rows)
        if heat is None:
            continue
        seen = True
        declared = comparison.expected.of(module, operation).in_flight_max_over_mean
        # without a declared ratio, assume exponential service times
        model = balanced(heat.nodes, heat.requests) if declared is None else declared
        most = model if declared is None else _MAX_IMBALANCE * model
        if heat.ratio - heat.half <= most or not comparison.has_verdict(operation, SLOW):
            continue
        shares = byte_share(comparison.measured.of(module, operation, BYTES, "B"), heat.nodes)
        even = shares is None or shares <= _EQUAL_BYTES
        code = "hot-spot" if even else "uneven-placement"
        bytes_statement = (
            "bytes by node were not measured"
            if shares is None
            else f"bytes by node are {'equal' if even else 'not equal'} (largest over mean {shares:.2f})"
        )
        statement = (
            f"the busiest of {heat.nodes} nodes has {heat.ratio:.1f} times the mean number of requests of "
            f"{module}/{operation} in flight (model: {model:.1f}), and {bytes_statement}"
        )
        advice = (
            "All clients visit the nodes in the same order: choose a random order for each request."
            if even
            else "Spread the chunks over the nodes."
        )
        findings.append(
            Finding(
                code,
                "error",
                statement,
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
    return findings if seen else None


@dataclass(frozen=True)
class Heat:
    """Requests in flight at the busiest node / mean over nodes.

    `ratio` is the mean over trials, `half` the half-width of its interval. `requests` is the mean number in
    flight at all `nodes`, over `windows` windows.
    """

    ratio: float
    half: float
    nodes: int
    requests: float
    windows: int


def in_flight(rows: pd.DataFrame) -> Heat | None:
    """Compute the imbalance from rows of `in_flight` by trial, window and node.

    None for fewer than two nodes, or if all are idle. A node without a row in a window was idle. Windows with
    less than half of the trial's mean are its start and end, and are excluded.
    """
    rows = rows[(rows["node"] != "") & (rows["window"] >= 0)]
    if rows["node"].nunique() < 2:
        return None
    wide = rows.pivot_table(
        index=["trial", "window"], columns="node", values="value", fill_value=0.0, observed=True
    )
    total = wide.sum(axis=1)
    full = total.groupby(level="trial", observed=True).transform("mean")
    full_windows = (total > 0) & (total >= full / 2)
    most = wide.max(axis=1)[full_windows].groupby(level="trial", observed=True).sum()
    mean = wide.mean(axis=1)[full_windows].groupby(level="trial", observed=True).sum()
    ratios = (most / mean)[mean > 0].to_list()
    if not ratios:
        return None
    half = half_width(ratios) if len(ratios) > 1 else 0.0
    return Heat(
        float(np.mean(ratios)),
        half,
        wide.shape[1],
        float(total[full_windows].mean()),
        int(full_windows.sum()),
    )


def balanced(nodes: int, requests: float) -> float:
    """Expected value of the largest number of requests at a node / mean over identical nodes.

    In a closed network of identical exponential stations every distribution of `requests` over `nodes` is
    equally likely (Gordon and Newell 1967). Less variable service times give a smaller ratio. Above 200
    requests or nodes the limit for many requests is returned, the harmonic number of `nodes`.
    """
    m = max(1, round(requests))
    if m > _MAX_EXACT or nodes > _MAX_EXACT:
        return min(float(nodes), float(np.sum(1 / np.arange(1, nodes + 1))))
    ways = comb(m + nodes - 1, nodes - 1)

    def at_most(k: int) -> int:
        """Number of distributions in which no node has more than k requests."""
        most = range(min(nodes, m // (k + 1)) + 1)
        return sum(
            (-1) ** j * comb(nodes, j) * comb(m - j * (k + 1) + nodes - 1, nodes - 1) for j in most
        )

    largest = sum(1 - at_most(k) / ways for k in range(m))
    return largest * nodes / m


def byte_share(rows: pd.DataFrame, nodes: int) -> float | None:
    """Bytes of the largest node / mean over `nodes`, over all trials; None if not measured."""
    rows = rows[rows["node"] != ""]
    total = float(rows["value"].sum())
    if total <= 0:
        return None
    return float(rows.groupby("node", observed=True)["value"].sum().max()) * nodes / total


def lock_waits(comparison: Comparison) -> list[Finding] | None:
    """Find modules whose operations are SLOW because their server waits for a lock."""
    seen = False
    by_module: dict[str, dict[str, dict[str, float]]] = {}
    for module, operation in comparison.measured.modules(LOCK_WAIT):
        waits = comparison.measured.of(module, operation, LOCK_WAIT)
        took = comparison.measured.of(module, operation, SERVER_TIME)
        if took.empty or took["value"].sum() <= 0:
            continue
        seen = True
        share = float(waits["value"].sum() / took["value"].sum())
        ideal = comparison.expected.of(module, operation)
        if share - (ideal.lock_wait_share or 0.0) <= _MAX_LOCK_WAIT or not comparison.has_verdict(
            operation, SLOW
        ):
            continue
        p50, p99 = (float(v) for v in np.quantile(took["value"], (0.5, 0.99)))
        by_module.setdefault(module, {})[operation] = {
            "lock_wait_share": share,
            "model": ideal.lock_wait_share or 0.0,
            "p99_over_p50": p99 / p50 if p50 > 0 else 0.0,
        } | ({} if ideal.p99_over_p50 is None else {"p99_over_p50_of_model": ideal.p99_over_p50})
    if not seen:
        return None
    return [_locked(module, operations) for module, operations in by_module.items()]


def _locked(module: str, operations: dict[str, dict[str, float]]) -> Finding:
    parts = [
        f"{percent(row['lock_wait_share'])} of {operation} (model: {percent(row['model'])}; "
        f"p99 is {row['p99_over_p50']:.1f} times p50{_model_ratio(row.get('p99_over_p50_of_model'))})"
        for operation, row in operations.items()
    ]
    return Finding(
        "lock-contention",
        "error",
        f"{module} waits for a lock: {listed(parts)}",
        {"module": module, "operations": operations},
        "Hold the lock only in the critical section, not during the complete call.",
    )


def _model_ratio(model: float | None) -> str:
    return "" if model is None else f", model {model:.1f}"
