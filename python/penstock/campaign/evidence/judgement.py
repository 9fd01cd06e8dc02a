"""Decide if a run may be used, before its responses are read. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.host.processes.launch import Finished

#: a run is complete if the monitor took this share of its samples, or missed at most one
COMPLETE_SHARE = 0.99
#: exit status of a shell for an unknown command
_NO_SUCH_COMMAND = 127
_PRIVATE = (
    "it ran on virtual nodes, which have a /tmp and a /run of their own: keep the program elsewhere"
)
#: maximum share of a run's events that may be faults whose mapping could not be looked up
UNPLACED_SHARE = 0.001


@dataclass(frozen=True)
class Evidence:
    """Evidence on a run besides its responses. Empty texts: no fault."""

    finished: Finished
    timeout_s: float | None
    last_line: str
    oom_kills: int
    node_faults: tuple[str, ...]
    #: deviations of the initial state from the declared one: page cache, write-back, levels
    state_faults: tuple[str, ...]
    data_altered: bool
    fidelity_faults: tuple[str, ...]
    lost_events: int
    recorded_events: int
    #: lost events that are faults during a change of mappings by another thread (docs/trace.md)
    unplaced_faults: int
    missed_samples: int
    expected_samples: int
    #: message of the alert that ended it
    alert: str = ""
    #: run on virtual nodes, which have private /tmp and /run
    on_nodes: bool = False


@dataclass(frozen=True)
class Judgement:
    """State, validity and reason; `repeatable` if the reason is transient; `causes` as named in
    `spec.study.Retry`."""

    state: str
    valid: bool
    reason: str
    repeatable: bool
    causes: tuple[str, ...] = ()
    #: valid, with a bound on its delay
    degraded: bool = False


def judge(evidence: Evidence) -> Judgement:
    """Judgement on a run: first on its end, then on its conformance to the request."""
    ended = _ending(evidence)
    if ended is not None:
        return ended
    if evidence.data_altered:
        reason = "the command changed the prepared data, which all runs share; say mutates: true"
        return Judgement("finished", False, reason, False)
    faults = list(evidence.state_faults)
    causes = ["state"] * bool(faults) + ["disk"] * bool(evidence.fidelity_faults)
    faults += evidence.fidelity_faults
    served = len(faults)
    seen = evidence.lost_events + evidence.recorded_events
    few = evidence.unplaced_faults <= UNPLACED_SHARE * seen
    if evidence.lost_events > (evidence.unplaced_faults if few else 0):
        faults.append(f"the tracer lost {evidence.lost_events} of {seen} events")
    if evidence.missed_samples > max(1, (1 - COMPLETE_SHARE) * evidence.expected_samples):
        missed, expected = evidence.missed_samples, evidence.expected_samples
        faults.append(f"the monitor missed {missed} of {expected} samples")
    causes += ["losses"] * (len(faults) > served)
    return Judgement("finished", not faults, "; ".join(faults), bool(faults), tuple(causes))


def _ending(evidence: Evidence) -> Judgement | None:
    """Judgement on a workload that failed, None if it succeeded."""
    finished = evidence.finished
    if evidence.alert:
        return Judgement("aborted", False, f"alert: {evidence.alert}", False)
    details = f": {evidence.last_line}" if evidence.last_line else ""
    if finished.timed_out:
        reason = f"it took longer than {evidence.timeout_s:g} s"
        return Judgement("timed-out", False, reason, False, ("timed_out",))
    if finished.exit_status == 0:
        if evidence.node_faults:
            reason = "; ".join(evidence.node_faults)
            return Judgement("failed", False, reason, False, ("failed",))
        if evidence.oom_kills:  # the program continued without one of its processes
            kills = evidence.oom_kills
            reason = f"out of the memory of its group ({kills} processes killed)"
            return Judgement("failed", False, reason, False, ("failed",))
        return None
    if evidence.oom_kills:
        details = (
            f": out of the memory of its group ({evidence.oom_kills} processes killed)" + details
        )
    if evidence.node_faults:
        details = f": {'; '.join(evidence.node_faults)}" + details
    if finished.signal is not None:
        reason = f"the workload was ended by signal {finished.signal}{details}"
    else:
        reason = f"the workload ended with status {finished.exit_status}{details}"
        if finished.exit_status == _NO_SUCH_COMMAND and evidence.on_nodes:
            reason += f" ({_PRIVATE})"
    return Judgement("failed", False, reason, False, ("failed",))
