"""Degraded runs: the causes that make a run degraded, and bounds that contain the undisturbed time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.analyse.fidelity.degraded import crowded as crowding
from penstock.analyse.fidelity.degraded import degraded
from penstock.analyse.fidelity.fidelity import certificate
from penstock.analyse.fidelity.second_source import doubts
from penstock.analyse.fidelity.validity import Delay, delay_of, graded
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.findings import findings
from penstock.analyse.outcome import Outcome
from penstock.archive.bundle import Bundle
from penstock.archive.runs import runs_table
from penstock.campaign.evidence.collect import grade, less_delayed
from penstock.campaign.evidence.judgement import Judgement
from penstock.host.cgroups.cgroup import RunCgroup
from penstock.spec.study import Response, ResponseSource
from tests.unit.test_fidelity import closed_loop, constant_profile, log_table

MS = 1_000_000
SECOND = 1_000_000_000
DISK = "n.data"
#: time that a crowded run may have lost
LATE_S = 0.6 + 0.1 * 2 / 3


def response(key: str, unit: str) -> Response:
    source = ResponseSource(kind="key", key=key)
    return Response(name=key, source=source, unit=unit, better="lower")


WALL = response("wall_s", "s")


def bundle_of(
    place: Path,
    log: pa.Table,
    wall_s: float,
    stats: dict[str, float],
    *,
    servers: int = 1,
    certificate: pa.Table | None = None,
    host_waits: pa.Table | None = None,
    **manifest: Any,
) -> Bundle:
    contents = {
        "run_id": "r001",
        "times": {"wall_s": wall_s},
        "responses": {"wall_s": {"value": wall_s, "unit": "s"}},
        "host": {"cpus": 2},
        "disks": {DISK: {"emulated": {"servers": servers}}},
        "valid": False,
        "cpu_ns": int(0.1 * SECOND),
        **manifest,
    }
    bundle = Bundle.create(place / "r001", contents)
    named = pa.array([DISK] * log.num_rows, pa.string())
    bundle.write_table("device_requests", log.append_column("disk_id", named))
    counters = {
        "disk_id": [DISK] * len(stats),
        "metric": list(stats),
        "value": list(stats.values()),
    }
    bundle.write_table("disk_stats", pa.table(counters))
    if certificate is not None:
        bundle.write_table("fidelity", certificate)
    if host_waits is not None:
        bundle.write_table("host_waits", host_waits)
    return bundle


def crowded(place: Path, **manifest: Any) -> Bundle:
    """A run of 10 s on a host with two busy processors; it waited 0.6 s for one of them."""
    log = closed_loop(2000, 1, 5 * MS)
    stats = {"host_cpu_ns": 20.0 * SECOND, "host_busy_ns": 19.8 * SECOND, "server_cpu_ns": 2e8}
    table = certificate(log, stats, constant_profile(0.005), disk_id=DISK, run_cpu_ns=10**8).overall
    fields = {
        "reason": f"{DISK}: {table['reason'][0].as_py()}",
        "cpu_waited_ns": int(0.6 * SECOND),
        **manifest,
    }
    lost = fields.pop("lost", 0)
    return bundle_of(place, log, 10.8, {**stats, "lost_records": lost}, certificate=table, **fields)


def test_a_crowded_run_is_degraded_and_bounded_by_the_time_it_waited(tmp_path: Path) -> None:
    manifest = graded(crowded(tmp_path), [WALL]).manifest
    assert (manifest["validity"], manifest["valid"]) == ("degraded", True)
    # 0.6 s of waiting, two thirds of 0.1 s of processor time next to other programs
    assert manifest["delay"]["late_s"] == pytest.approx(LATE_S)
    assert manifest["responses"]["wall_s"]["low"] == pytest.approx(10.8 - LATE_S)
    assert manifest["responses"]["wall_s"]["high"] == 10.8
    assert manifest["delay"]["others_cpus"] == pytest.approx(1.95)


def test_a_delay_is_at_most_the_time_without_disk_service(tmp_path: Path) -> None:
    manifest = graded(crowded(tmp_path, cpu_waited_ns=9 * SECOND), [WALL]).manifest
    assert manifest["delay"]["late_s"] == pytest.approx(0.8)  # 2000 requests of 5 ms in 10.8 s


@pytest.mark.parametrize(
    "change",
    [
        {"state": "failed"},
        {"lost": 3},
        {"reason": "n.data: replies were overdue; the monitor missed 30 of 100 samples"},
        {"responses": {}},
    ],
)
def test_other_faults_leave_a_run_invalid(tmp_path: Path, change: dict[str, Any]) -> None:
    manifest = graded(crowded(tmp_path, **change), [WALL]).manifest
    assert (manifest["validity"], manifest["valid"]) == ("invalid", False)


def test_a_disk_without_its_log_leaves_a_run_invalid(tmp_path: Path) -> None:
    bundle = crowded(tmp_path)
    (bundle.path / "device_requests.parquet").unlink()
    assert graded(bundle, [WALL]).manifest["validity"] == "invalid"


def test_a_disk_that_missed_without_a_measured_cause_is_invalid(tmp_path: Path) -> None:
    log = closed_loop(2000, 1, 5 * MS, slow=0.05)
    table = certificate(log, {}, constant_profile(0.005), disk_id=DISK).overall
    assert set(table["verdict"].to_pylist()) == {"not-honoured"}
    reason = f"{DISK}: {table['reason'][0].as_py()}"
    bundle = bundle_of(tmp_path, log, 10.8, {}, certificate=table, reason=reason)
    assert graded(bundle, [WALL]).manifest["validity"] == "invalid"


def test_only_latencies_above_those_of_the_log_degrade_a_run(
    tmp_path: Path,
) -> None:
    for name, traced, validity in (("a", 5.5, "degraded"), ("b", 4.5, "invalid")):
        bundle = crowded(tmp_path / name)
        row = {"file": "f", "direction": "read", "metric": "time", "traced": traced * MS}
        row |= {"disk": 5.0 * MS, "ratio": 5.0 / traced, "unit": "ns", "n": 2000, "agrees": False}
        bundle.write_table("confirmation", pa.Table.from_pylist([row]))
        bundle.manifest["reason"] += f"; {doubts([row], 'traced')[0]}"
        bundle.manifest["times"] = {"wall_s": 13.0}
        manifest = graded(bundle, [WALL]).manifest
        assert manifest["validity"] == validity
        if validity == "degraded":  # and 2000 requests took 0.5 ms more than in the log
            assert manifest["delay"]["late_s"] == pytest.approx(LATE_S + 1.0)


def test_a_tail_has_no_bound_and_a_run_without_other_responses_is_invalid(tmp_path: Path) -> None:
    tail = response("read_p99_latency", "ms")
    values = {"wall_s": {"value": 10.8, "unit": "s"}, "read_p99_latency": {"value": 9.0}}
    manifest = graded(crowded(tmp_path / "a", responses=values), [WALL, tail]).manifest
    assert manifest["validity"] == "degraded"
    assert manifest["responses"]["read_p99_latency"]["low"] is None
    of_tail_only = graded(crowded(tmp_path / "b", responses=values), [tail]).manifest
    assert of_tail_only["validity"] == "invalid"


def test_of_two_degraded_attempts_the_less_delayed_is_used(tmp_path: Path) -> None:
    def attempt(name: str, waited_s: float, **change: Any) -> Bundle:
        return graded(
            crowded(tmp_path / name, cpu_waited_ns=int(waited_s * SECOND), **change), [WALL]
        )

    little, much = attempt("a", 0.1), attempt("b", 0.5)
    assert less_delayed(little, much)
    assert not less_delayed(much, little)
    assert less_delayed(much, attempt("c", 0.1, state="failed"))
    assert not less_delayed(little, attempt("d", 0.1, valid=True, reason=""))
    assert not less_delayed(attempt("e", 0.1, state="failed"), much)


def test_a_degraded_judgement_is_used_and_does_not_count_as_spoilt(tmp_path: Path) -> None:
    study = SimpleNamespace(responses=[WALL])
    judgement = Judgement("finished", False, "busy", True, ("disk",))
    bundle = crowded(tmp_path / "a")
    graded_judgement = grade(bundle, study, judgement)  # type: ignore[arg-type]
    assert (graded_judgement.valid, graded_judgement.degraded, graded_judgement.repeatable) == (
        True,
        True,
        False,
    )
    assert graded_judgement.causes == ("degraded",)
    assert bundle.manifest["validity"] == "degraded"
    assert bundle.manifest["causes"] == ["degraded"]
    failed = crowded(tmp_path / "b", state="failed")
    assert grade(failed, study, judgement) == judgement  # type: ignore[arg-type]
    assert failed.manifest["validity"] == "invalid"


def test_the_tables_of_runs_have_the_ends_of_degraded_runs(tmp_path: Path) -> None:
    first = graded(crowded(tmp_path / "a"), [WALL])
    second = graded(crowded(tmp_path / "b", valid=True, reason="", run_id="r002"), [WALL])
    plain = ["study_id", "treatment_id"]
    for bundle in (first, second):
        bundle.manifest.update(dict.fromkeys(plain, "t"))
    runs = runs_table([first, second], [], ["wall_s2"]).to_pandas()
    assert "wall_s2:low" not in runs
    first.manifest["responses"]["took"] = first.manifest["responses"]["wall_s"]
    second.manifest["responses"]["took"] = {"value": 10.8, "unit": "s"}
    runs = runs_table([first, second], [], ["took"]).to_pandas()
    assert runs["validity"].tolist() == ["degraded", "valid"]
    assert runs["valid"].all()
    assert runs["took:low"].tolist() == pytest.approx([10.8 - LATE_S, 10.8])
    assert runs["took:high"].tolist() == [10.8, 10.8]
    assert runs["delay_share"].iloc[0] == pytest.approx(LATE_S / 10.8)


def test_a_finding_reports_the_number_of_degraded_runs_and_the_cause() -> None:
    runs = pd.DataFrame({"run_id": ["r001", "r002"], "validity": ["valid", "degraded"]})
    runs = runs.assign(valid=True, delay_share=[np.nan, 0.2], others_cpus=[np.nan, 0.93])
    outcome = Outcome(Path("/nowhere"), {}, {}, runs, None, None, None)
    outcome._manifests["r002"] = {"host": {"cpus": 2}}
    (finding,) = degraded(outcome)
    assert finding.statement.startswith(
        "1 of 2 runs is degraded: other programs used 0.9 of 2 processors; its bound widens"
    )
    assert finding.evidence["run_id"] == ["r002"]
    assert "--repeat degraded" in finding.what_to_do
    outcome.runs = runs.assign(validity="valid")
    del outcome.measured
    assert list(degraded(outcome)) == []


def test_a_valid_run_without_an_emulated_disk_records_other_cpu_use(tmp_path: Path) -> None:
    """Half of two processors were busy; the run itself used 0.1 s of 10.8 s."""
    bundle = crowded(tmp_path, valid=True, reason="")
    (bundle.path / "fidelity.parquet").unlink()
    shares = {"kind": "cpu", "entity": "all", "metric": "busy", "value": 50.0}
    bundle.write_table("utilisation", pa.Table.from_pylist([shares]))
    manifest = graded(bundle, [WALL]).manifest
    assert (manifest["validity"], manifest["valid"]) == ("valid", True)
    assert manifest["delay"] == {"others_cpus": pytest.approx(10.7 / 10.8), "cpus": 2}
    row = runs_table([graded(bundle, [WALL])], [], []).to_pandas().iloc[0]
    assert row["others_cpus"] == pytest.approx(10.7 / 10.8)
    assert np.isnan(row["delay_share"])


@pytest.mark.parametrize(("used", "count"), [(0.4, 0), (1.2, 2)])
def test_programs_next_to_runs_without_a_bound_are_reported(
    used: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = pd.DataFrame({"run_id": ["r001", "r002", "r003"], "valid": True})
    runs = runs.assign(validity="valid", delay_share=np.nan, others_cpus=[used, used, np.nan])
    outcome = Outcome(Path("/nowhere"), {}, {}, runs, None, None, None)
    outcome._manifests |= {run: {"host": {"cpus": 2}} for run in ("r001", "r002")}
    crowding_findings = list(crowding(outcome))
    assert [len(f.evidence["run_id"]) for f in crowding_findings] == [count] * bool(count)
    clear = Finding("cost", "info", "It costs twice.", {}, "", "", "clear")
    rules = {"cost": lambda _: [clear], "crowded": crowding}
    monkeypatch.setattr("penstock.analyse.findings.findings.STUDY_FINDINGS", Rules(rules))
    assert findings(outcome)[0].confidence == ("likely" if count else "clear")


class Rules(dict[str, Any]):
    """The rules of findings by name."""

    def load(self, name: str) -> Any:
        """A rule."""
        return self[name]


def test_waiting_of_a_group_is_read_from_its_pressure(tmp_path: Path) -> None:
    group = RunCgroup("g", {"unified": tmp_path}, None, [])
    assert group.cpu_waited_ns() is None
    (tmp_path / "cpu.pressure").write_text(
        "some avg10=9.41 avg60=1.70 avg300=0.35 total=1541108\nfull avg10=0 avg60=0 avg300=0 total=12\n"
    )
    assert group.cpu_waited_ns() == 1_541_108_000
    assert RunCgroup("g", {}, None, []).cpu_waited_ns() is None


def test_a_valid_run_stays_valid_without_a_bound(tmp_path: Path) -> None:
    manifest = graded(crowded(tmp_path, valid=True, reason=""), [WALL]).manifest
    assert manifest["validity"] == "valid"
    assert "delay" not in manifest
    assert "low" not in manifest["responses"]["wall_s"]


def test_rates_and_times_are_corrected_the_way_delays_act() -> None:
    delay = Delay(wall_s=10.0, span_s=8.0, active_s=5.0, late_s=1.0, early_s=0.0)
    assert delay.of(100.0, "MiB/s") == (100.0, pytest.approx(100 / (1 - 1 / 8)))
    assert delay.of(2.0, "ms") == (pytest.approx(2 * 0.8), 2.0)
    assert delay.of(9000.0, "ms") == (pytest.approx(8000.0), 9000.0)  # a duration
    assert delay.of(3.0, "s", wall=True) == (pytest.approx(2.0), 3.0)
    low, high = delay.of(50.0, "%") or (0.0, 0.0)
    assert low < 50 < high
    assert Delay(10.0, 8.0, 0.5, 1.0, 0.0).of(2.0, "ms") is None


def test_corrected_times_are_at_least_the_service_times() -> None:
    """A program that started slowly: its requests took at least their service times."""
    delay = Delay(wall_s=3.0, span_s=0.05, active_s=0.042, late_s=1.5, early_s=0.0, served_s=0.04)
    assert delay.of(0.043, "s") == (pytest.approx(0.04), 0.043)
    assert delay.of(100.0, "1/s") == (100.0, pytest.approx(100 * 0.05 / 0.04))
    assert delay.of(2.0, "ms") == (pytest.approx(2 * 0.04 / 0.042), 2.0)
    assert delay.of(3.0, "s", wall=True) == (pytest.approx(1.5), 3.0)


@dataclass
class SimulatedRun:
    """Results of a run on the simulated host."""

    log: pa.Table
    wall_s: float
    waited_s: float
    own_s: float


def simulated_runs(
    rng: np.random.Generator, jobs: int, servers: int, busy: float
) -> tuple[SimulatedRun, SimulatedRun]:
    """A closed loop of `jobs`, undisturbed and disturbed.

    A disturbed step may wait for a processor, compute more slowly and get its reply late; `busy` is the
    probability of each.
    """
    each = 60
    thinks = rng.exponential(1.5e6, (jobs, each))
    services = rng.lognormal(np.log(4e6), 0.3, (jobs, each))
    waits = rng.exponential(4e6, (jobs, each)) * (rng.random((jobs, each)) < busy)
    slowed = 1 + 0.6 * (rng.random((jobs, each)) < busy)
    lates = rng.exponential(3e6, (jobs, each)) * (rng.random((jobs, each)) < busy / 2)
    zeros = np.zeros_like(waits)
    return (
        _loop(thinks, services, servers, zeros, zeros),
        _loop(thinks * slowed, services, servers, waits, lates),
    )


def _loop(
    thinks: np.ndarray, services: np.ndarray, servers: int, waits: np.ndarray, lates: np.ndarray
) -> SimulatedRun:
    jobs, each = thinks.shape
    free = [0.0] * servers
    rows, spans = [], []
    arrivals = [(waits[j, 0] + thinks[j, 0], j, 0) for j in range(jobs)]
    spans += [(0.0, waits[j, 0]) for j in range(jobs)]
    heapq.heapify(arrivals)
    while arrivals:
        t, j, i = heapq.heappop(arrivals)
        start = max(t, heapq.heappop(free))
        due = start + services[j, i]
        heapq.heappush(free, due)
        done = due + lates[j, i]
        rows.append((t, due, done, services[j, i], start - t))
        if i + 1 < each:
            spans.append((done, done + waits[j, i + 1]))
            heapq.heappush(arrivals, (done + waits[j, i + 1] + thinks[j, i + 1], j, i + 1))
    t, due, done, service, wait = (
        np.array(c).round().astype(np.int64) for c in zip(*rows, strict=True)
    )
    waited = until = 0.0
    for begin, end in sorted(spans):  # time in which at least one thread waited
        waited += max(end - max(begin, until), 0.0)
        until = max(until, end)
    table = log_table(t, due, done, service, wait)
    return SimulatedRun(table, done.max() / SECOND, waited / SECOND, float(thinks.sum()) / SECOND)


@pytest.mark.parametrize(("jobs", "servers"), [(1, 1), (4, 1), (4, 4), (8, 2)])
def test_the_undisturbed_time_lies_within_the_bound(
    tmp_path: Path, jobs: int, servers: int
) -> None:
    rng = np.random.default_rng(20261128 + jobs + servers)
    contained, widths, effects = 0, [], []
    for number in range(40):
        undisturbed, disturbed = simulated_runs(rng, jobs, servers, (0.05, 0.2, 0.5)[number % 3])
        stats = {
            "host_cpu_ns": 2 * disturbed.wall_s * SECOND,
            "host_busy_ns": (disturbed.wall_s + disturbed.own_s) * SECOND,
        }
        bundle = bundle_of(
            tmp_path / str(number),
            disturbed.log,
            disturbed.wall_s,
            stats,
            servers=servers,
            cpu_ns=int(disturbed.own_s * SECOND),
            cpu_waited_ns=int(disturbed.waited_s * SECOND),
        )
        delay = delay_of(bundle)
        assert delay is not None
        # jobs that share servers may end in another order: one request earlier or later
        order_s = 0.004 if jobs > servers else 1e-6
        contained += delay.wall_s - delay.late_s <= undisturbed.wall_s <= delay.wall_s + order_s
        widths.append(delay.share)
        effects.append(1 - undisturbed.wall_s / disturbed.wall_s)
    assert contained >= 38
    if jobs <= servers:  # else the disk is the bottleneck, and CPU contention hardly matters
        assert np.mean(effects) > 0.03
    assert np.mean(widths) < 0.8
