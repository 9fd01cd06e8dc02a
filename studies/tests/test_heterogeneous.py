"""Results of the claims of the studies on nodes with different disks."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from studies.claims import Claim, Result, status

STUDIES = Path(__file__).parents[2] / "studies"
PARTS = ("storage-layout", "heterogeneous", "hadoop")
MODULES = (
    "layout_claims", "steps", "settings", "jobs", "hadoop_claims", "shares", "records",
    "configured", "terasort",
)  # fmt: skip
TIMES = {
    "all-fast": 10.0, "one-slow": 19.0, "all-half": 20.0, "half-half": 30.0, "all-quarter": 40.0,
}  # fmt: skip
STORAGES = ("hard-disk", "flash")


@pytest.fixture(scope="module", name="parts")
def _parts() -> Iterator[dict[str, Any]]:
    before = list(sys.path)
    sys.path[:0] = [str(STUDIES / part) for part in PARTS]
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path[:] = before
        for name in (*MODULES, "nodes"):
            sys.modules.pop(name, None)


def runs(parts: dict[str, Any], **changed: Any) -> list[Any]:
    """Three replicates of every setting on both storages, which meet all claims."""
    all_runs = []
    for storage in STORAGES:
        for setting, time in TIMES.items():
            for replicate in range(3):
                values = {
                    "run_id": f"{storage}-{setting}-{replicate}",
                    "storage": storage,
                    "setting": setting,
                    "replicate": replicate,
                    "valid": True,
                    "time_s": time + 0.1 * replicate,
                    "last_reducer": "n5",
                    "checksum": "a",
                    "straggler": "n2" if setting == "one-slow" else "n4",
                    "predicted_s": time,
                    **changed,
                }
                all_runs.append(parts["jobs"].Run(**values))
    return all_runs


def results(claims: list[Claim], of: str = "job, flash") -> dict[str, Result]:
    return {claim.wording: claim.result for claim in claims if claim.of in (of, "job")}


def test_the_order_holds_and_a_planted_one_is_reported(parts: dict[str, Any]) -> None:
    module = parts["hadoop_claims"]
    claims = module.order_claims("job", runs(parts))
    assert {c.result for c in claims} == {Result.MET}
    assert len(claims) == 7
    planted = results(module.order_claims("job", module.planted(runs(parts))))
    assert planted["all-half is faster than half-half"] is Result.NOT_MET
    assert planted["half-half is faster than all-quarter"] is Result.MET


def test_overlapping_intervals_meet_the_relaxed_criterion_only(parts: dict[str, Any]) -> None:
    spread_runs = [
        parts["jobs"].Run(**{**vars(r), "time_s": r.time_s + (0, 9, 18)[r.replicate]})
        for r in runs(parts)
    ]
    claims = parts["hadoop_claims"].order_claims("job", spread_runs)
    by_wording = {c.wording: c for c in claims if c.of == "job, flash"}
    order = by_wording["all-fast is faster than all-half"]
    assert order.result is Result.NOT_MET
    assert order.relaxed is not None
    assert (order.relaxed.criterion, order.relaxed.result) == ("means in this order", Result.MET)


def test_single_runs_decide_no_order(parts: dict[str, Any]) -> None:
    first_runs = [r for r in runs(parts) if r.replicate == 0]
    claims = [c for c in parts["hadoop_claims"].order_claims("job", first_runs) if c.relaxed]
    assert {c.result for c in claims} == {Result.UNDECIDED}
    assert {c.relaxed.result for c in claims if c.relaxed} == {Result.MET}
    assert status(claims) == 3


def test_predictions_stragglers_and_checksums(parts: dict[str, Any]) -> None:
    module = parts["hadoop_claims"]
    assert set(results(module.job_claims(runs(parts))).values()) == {Result.MET}
    mispredicted = results(module.job_claims(runs(parts, predicted_s=100.0)))
    wording = "all-fast: time over that predicted from the disks' bytes, 0.85 to 1.15"
    assert mispredicted[wording] is Result.NOT_MET
    assert results(module.job_claims(runs(parts, predicted_s=0.0)))[wording] is Result.NOT_MEASURED
    wrong_straggler = results(module.job_claims(runs(parts, straggler="n1")))
    assert wrong_straggler["half-half: the straggler is one of n4, n5, n6"] is Result.NOT_MET
    sums = [parts["jobs"].Run(**{**vars(r), "checksum": r.run_id}) for r in runs(parts)]
    equal_output = results(module.order_claims("job", sums))["the output is the same in all runs"]
    assert equal_output is Result.NOT_MET


@pytest.mark.parametrize("setting", TIMES)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_removed_treatment_is_not_measured(
    parts: dict[str, Any], storage: str, setting: str
) -> None:
    module = parts["hadoop_claims"]
    remaining = [r for r in runs(parts) if (r.storage, r.setting) != (storage, setting)]
    claims = module.order_claims("job", remaining) + module.job_claims(remaining)
    missing = [c for c in claims if c.result is Result.NOT_MEASURED]
    expected = {c.wording for c in claims if c.wording.startswith(f"{setting}:")}
    expected |= {
        c.wording for c in claims
        if c.of == f"job, {storage}" and setting in c.wording.split(" is faster than ")
    }  # fmt: skip
    assert {c.wording for c in missing} == expected | {"the output is the same in all runs"}
    assert {c.missing for c in missing} == {(f"{storage} {setting}",)}
    assert status(claims) == 3


@pytest.mark.parametrize("name", ["job", "terasort"])
def test_a_study_without_runs_is_not_measured(
    parts: dict[str, Any], name: str, tmp_path: Path
) -> None:
    assert parts["jobs"].job_runs(tmp_path, invalid=False) == ([], ["no run"])
    claims = parts["hadoop_claims"].order_claims(name, [])
    claims += parts["hadoop_claims"].job_claims([]) if name == "job" else []
    assert {c.result for c in claims} == {Result.NOT_MEASURED}
    assert status(claims) == 3


def clients(parts: dict[str, Any], *names: str) -> list[Any]:
    """Requests of clients: two before, one in each window between the changes, two after."""
    at = np.array(
        [-1.0, -0.5, *np.linspace(0.1, 9.9, 20), *np.linspace(10.1, 19.9, 20), 22.0, 23.0]
    )
    aware = np.array([True, False, *[True] * 20, *[False] * 20, True, False])
    blind = np.arange(len(at)) % 2 == 0
    client_runs = []
    for name in names:
        times, second = (at, aware) if name == "aware" else (at[::2], blind[: len(at[::2])])
        client_runs.append(
            parts["shares"].ClientRun("r", name, True, (0.0, 10.0, 20.0), times, second, times * 0)
        )
    return client_runs


def test_without_one_kind_of_clients_its_claims_are_not_measured(parts: dict[str, Any]) -> None:
    load_balance = importlib.import_module("studies.load_balance")
    every = load_balance.balance_claims(clients(parts, "aware", "blind"))
    assert {c.result for c in every[:4]} == {Result.MET}
    assert every[5].result is Result.MET
    assert Result.NOT_MEASURED not in {c.result for c in every}
    for kind, absent in (("aware", {4, 5}), ("blind", {0, 1, 2, 3, 5})):
        claims = load_balance.balance_claims(clients(parts, kind))
        missing = {n for n, c in enumerate(claims) if c.result is Result.NOT_MEASURED}
        assert missing == absent
        assert status(claims) == 3
    assert {c.result for c in load_balance.balance_claims([])} == {Result.NOT_MEASURED}


def test_profiles_in_the_repository_match_the_settings(parts: dict[str, Any]) -> None:
    settings = parts["settings"]
    expected = {f"{name}.json": settings.text_of(p) for name, p in settings.profiles().items()}
    assert {p.name: p.read_text() for p in settings.PROFILES.iterdir()} == expected


def test_time_is_predicted_from_bytes(parts: dict[str, Any]) -> None:
    requests = pd.DataFrame(
        {
            "op": ["read", "write", "read", "flush", "write"],
            "disk_id": ["n1.data", "n1.data", "n2.data", "n2.data", "n2.data"],
            "done_ns": [5, 10, 10, 10, 15],
            "size_bytes": [100, 50, 120, 0, 80],
        }
    )
    stages = {"map": [0, 10], "write": [10, 20]}
    needed = parts["jobs"].needed(requests, stages, lambda node: {"n1": 10.0, "n2": 20.0}[node])
    assert needed == {"map": ("n1", 15.0), "write": ("n2", 4.0)}


def test_shares_between_changes(parts: dict[str, Any]) -> None:
    at = np.array([-1.0, -0.5, 0.0, 5.0, 10.0, 15.0, 20.5, 22.0])
    second = np.array([True, False, True, True, False, False, True, False])
    client = parts["shares"].ClientRun("r", "aware", True, (0.0, 10.0, 20.0), at, second, at * 0)
    assert [client.share(w) for w in ("before", "first", "second", "after")] == [0.5, 1.0, 0.0, 0.0]
    assert client.requests("first", "second") == 4


def test_records_are_sorted_divided_and_summed(parts: dict[str, Any]) -> None:
    module = parts["records"]
    unsorted = module.make(500, seed=3)
    unsorted[10, :10] = unsorted[11, :10]  # equal keys
    unsorted[20, :8] = unsorted[21, :8]  # equal but for the last two bytes
    ordered = module.ordered(unsorted)
    assert [bytes(r[:10]) for r in ordered] == sorted(bytes(r[:10]) for r in unsorted)
    assert module.in_order(ordered)
    assert not module.in_order(unsorted)
    parts_ = module.divided(ordered, 3)
    assert sum(len(p) for p in parts_) == 500
    for i, part in enumerate(parts_):
        for row in part:
            assert int.from_bytes(bytes(row[:8]), "big") * 3 >> 64 == i
    assert module.checksum(ordered) == module.checksum(unsorted)
    changed = unsorted.copy()
    changed[7, 99] ^= 1
    assert module.checksum(changed) != module.checksum(unsorted)


def test_tasks_of_hadoops_own_history(parts: dict[str, Any]) -> None:
    golden = Path(__file__).resolve().parents[2] / "tests" / "golden" / "metrics"
    tasks = parts["terasort"].history(golden / "hadoop.jhist")
    assert [t["kind"] for t in tasks] == ["map"] * 5 + ["reduce"] * 2
    assert {t["node"] for t in tasks} == {"localhost"}
    last = max(tasks, key=lambda t: t["end_s"])
    # REDUCE_ATTEMPT_FINISHED of the last reducer, and its REDUCE_ATTEMPT_STARTED
    assert (last["kind"], last["begin_s"], last["end_s"]) == (
        "reduce",
        pytest.approx(1795630494.767),
        pytest.approx(1795630500.801),
    )
    assert parts["terasort"].history(golden / "hadoop-failed.jhist") == []
    json.dumps(tasks)


def test_published_times_are_plotted_with_the_measured_ones(parts: dict[str, Any]) -> None:
    completed = [r for r in runs(parts) if (r.storage, r.setting) != ("flash", "one-slow")]
    disk, flash = parts["hadoop_claims"].ratios_figure(completed).axes
    for axes, ratio, dots in ((disk, 84 / 8, 15), (flash, 91 / 4.5, 12)):
        published, measured = axes.get_lines()
        assert max(published.get_ydata()) == pytest.approx(ratio)
        assert len(measured.get_ydata()) == dots
        assert max(measured.get_ydata()) == pytest.approx(40.2 / 10.1)
