"""penstock predict WORKFLOW --platform on the real simulator: vectors, outputs, reasons, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.analyse.statistics.calibration import Pair, add_pairs, read_pairs
from penstock.archive.bundle import write_parquet
from penstock.cli import main
from penstock.errors import PenstockError
from penstock.parts.prediction.prediction import Prediction
from penstock.parts.prediction.queue_network.predict import predict, predict_many
from penstock.parts.prediction.report.prediction_figures import FIGURES
from penstock.parts.prediction.workloads.formats.native_format import workload_from_dict
from penstock.parts.prediction.workloads.read import read_workload
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import Platform, load_platform, read_platform
from penstock.platform.profiles import read_profile
from penstock.profile.model import StorageProfile

#: PR §12, set V: one client, one manager, one storage host, constant service times
SET_V = """\
penstock_platform: 1
name: set-v
hosts:
  - {group: app, count: 1, roles: [client]}
  - group: store
    count: 1
    roles: [storage]
    storage: {read: {per_byte: 1 ms/MiB}, write: {per_byte: 1 ms/MiB}}
  - {group: meta, count: 1, roles: [manager], manager: {service: 0.5ms}}
network: {bandwidth: 12.5 MB/s, loopback: 125 MB/s}
store: {chunk: 1MiB, shuffle: none}
"""

CLUSTER = """\
penstock_platform: 1
name: cluster
hosts:
  - group: nodes
    count: 4
    roles: [client, storage]
    storage: {read: {per_byte: 2 ms/MiB}, write: {per_byte: 4 ms/MiB}, capacity: 10GB}
  - {group: meta, count: 1, roles: [manager], manager: {service: 0.5ms}}
network: {bandwidth: 125 MB/s, loopback: 1 GB/s, latency: 50us}
store: {like: mosastore}
launch: {overhead: {kind: uniform, low_s: 0.1, high_s: 0.3}}
price: 0.36 EUR/h
power:
  idle: 91.6 W
  app: 125.2 W
  storage: 129.1 W
  network: 127.7 W
  states:
    - {frequency: 1.2 GHz, idle: 70 W, app: 90 W, storage: 100 W, network: 100 W, speed: 0.522}
    - {frequency: 2.3 GHz}
  frequency: 2.3 GHz
"""
ASSUMED = """\
assumed:
  - {path: hosts.nodes.storage.write.per_byte, within: 75%}
  - {path: network.latency, low: 20us, high: 100us}
"""


#: the disks limit the makespan
SLOW = CLUSTER.replace("write: {per_byte: 4 ms", "write: {per_byte: 400 ms")


def platform(text: str = CLUSTER, *overrides: str) -> Platform:
    return read_platform(text.encode(), Path("platform.yaml"), overrides)


def workload(tasks: list[dict[str, Any]], files: list[dict[str, Any]] | None = None) -> Workload:
    return workload_from_dict(
        {"schema": "penstock/workload/1", "name": "work", "files": files or [], "tasks": tasks}
    )


def write(file: str, size: int = 10 << 20) -> dict[str, Any]:
    return {"op": "write", "file": file, "offset_bytes": 0, "size_bytes": size}


def read(file: str, size: int = 10 << 20) -> dict[str, Any]:
    return {"op": "read", "file": file, "offset_bytes": 0, "size_bytes": size}


def compute(seconds: float) -> dict[str, Any]:
    return {"op": "compute", "seconds": seconds}


def task(name: str, *operations: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "stage": name.rstrip("0123456789"),
        "operations": list(operations),
        **more,
    }


def reduction(n: int = 8, seconds: float = 3.0) -> Workload:
    """`n` tasks write 10 MiB each, one reads all of them."""
    maps = [task(f"map{i}", compute(seconds), write(f"part{i}")) for i in range(n)]
    last = task("reduce0", *(read(f"part{i}") for i in range(n)), write("result"))
    return workload([*maps, last])


def codes(prediction: Prediction) -> dict[str, str]:
    return {r.code: r.severity for r in prediction.applies.reasons}


# ---------------------------------------------------------------- the model through the whole path


def test_set_v_write_through_the_platform_file() -> None:
    result = predict(workload([task("w0", write("f"))]), platform(SET_V), seeds=3)
    assert result.makespan_s == pytest.approx(0.84692288, rel=1e-6)
    assert result.bytes["network"] == 10_500_096
    assert (result.interval.low, result.interval.high) == (
        result.makespan_s,
        result.makespan_s,
    )
    slow = platform(SET_V, "hosts.store.storage.write.per_byte=100 ms/MiB")
    assert predict(workload([task("w0", write("f"))]), slow, seeds=1).makespan_s > 1


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (
            "1 ms/MiB",
            {"app-0": 0.990674, "store-0": 0.990481, "storage": 0.011807, "manager": 0.001181},
        ),
        ("200 ms/MiB", {"storage": 0.956504, "app-0": 0.401265}),
    ],
)
def test_utilisation_vector(service: str, expected: dict[str, float]) -> None:
    cluster = platform(SET_V, f"hosts.store.storage.write.per_byte={service}")
    prediction = predict(workload([task("w0", write("f"))]), cluster, seeds=1)
    utilisations = {}
    for row in prediction.stations:
        if (row["kind"], row["host"]) in (("net_out", "app-0"), ("net_in", "store-0")):
            utilisations[row["host"]] = row["utilisation"]
        if row["kind"] in ("storage", "manager"):
            utilisations[row["kind"]] = row["utilisation"]
    for name, value in expected.items():
        assert utilisations[name] == pytest.approx(value, abs=1e-6), name
    assert prediction.bottleneck is not None
    kind = "storage" if service.startswith("200") else "net_out"
    assert prediction.bottleneck.kind in (kind, "net_in" if kind == "net_out" else kind)


def test_critical_path_covers_the_makespan() -> None:
    prediction = predict(reduction(), platform(), seeds=5)
    assert sum(s["critical_share"] for s in prediction.stations) == pytest.approx(1, abs=0.02)


def test_seeds_widen_the_interval_and_threads_do_not_matter() -> None:
    single_threaded, two_threads = (
        predict(reduction(), platform(), seeds=39, threads=n) for n in (1, 2)
    )
    assert single_threaded.interval.low < single_threaded.makespan_s < single_threaded.interval.high
    a, b = single_threaded.to_dict(), two_threads.to_dict()
    del a["wall_s"], b["wall_s"]
    assert a == b
    assert single_threaded.simulations == 39
    assert single_threaded.wall_s > 0
    assert single_threaded.events > 1000
    of_seeds = [predict(reduction(), platform(), seeds=[seed]).events for seed in (1, 2, 3)]
    assert predict(reduction(), platform(), seeds=[1, 2, 3]).events == sum(of_seeds)


def test_uncertain_values_widen_the_interval() -> None:
    certain = predict(reduction(8, 0.1), platform(SLOW), seeds=39)
    unsure = predict(reduction(8, 0.1), platform(SLOW + ASSUMED), seeds=39)
    assert unsure.interval.width > 2 * certain.interval.width
    assert "2 uncertain values of the platform" in unsure.interval.sources
    assert unsure.makespan_s == pytest.approx(certain.makespan_s, rel=0.02)
    assert unsure.energy is not None
    assert unsure.energy.interval is not None
    assert unsure.energy.interval.low < unsure.energy.total_j < unsure.energy.interval.high


def test_predict_many_equals_single_predictions() -> None:
    platforms = [platform(CLUSTER, f"hosts.nodes.count={n}") for n in (2, 4, 8)]
    predictions = predict_many(reduction(), platforms, seeds=[3, 4, 5])
    for cluster, prediction in zip(platforms, predictions, strict=True):
        single = predict(reduction(), cluster, seeds=[3, 4, 5])
        assert prediction.makespan_s == single.makespan_s
        assert prediction.interval == single.interval
        assert prediction.energy_j == single.energy_j
        assert prediction.bottleneck == single.bottleneck
    assert predictions[0].makespan_s > predictions[1].makespan_s > predictions[2].makespan_s
    assert "19 runs are needed" in predictions[0].interval.method


def test_energy_and_cost_follow_from_the_simulated_times() -> None:
    prediction = predict(reduction(), platform(), seeds=[7])
    expected = sum(
        91.6 * prediction.makespan_s
        + 33.6 * h["app_s"]
        + 37.5 * h["storage_s"]
        + 36.1 * h["network_s"]
        for h in prediction.hosts
        if h["name"].startswith("nodes")
    )
    assert prediction.energy_j == pytest.approx(expected, rel=1e-9)
    assert prediction.energy is not None
    assert prediction.energy.omitted == ("meta-0",)
    assert prediction.cost is not None
    assert prediction.cost.amount == pytest.approx(5 * 0.36 * prediction.makespan_s / 3600)


def test_frequencies_trade_time_for_energy() -> None:
    compute_bound = predict(reduction(8, 30.0), platform(), seeds=3, explained=True)
    assert compute_bound.frequencies is not None
    slow, fast = compute_bound.frequencies["states"]
    assert (slow["frequency"], fast["frequency"]) == ("1.2 GHz", "2.3 GHz")
    assert slow["makespan_s"] > 1.7 * fast["makespan_s"]
    assert slow["energy_j"] > 1.2 * fast["energy_j"]
    assert not compute_bound.frequencies["conflict"]
    storage_bound = predict(reduction(8, 0.01), platform(), seeds=3, explained=True)
    assert storage_bound.frequencies is not None
    slow, fast = storage_bound.frequencies["states"]
    assert slow["makespan_s"] < 1.05 * fast["makespan_s"]
    assert slow["energy_j"] < 0.9 * fast["energy_j"]


# ---------------------------------------------------------------- sensitivity


def test_most_sensitive_value_is_recommended_for_measurement() -> None:
    prediction = predict(reduction(8, 0.1), platform(SLOW + ASSUMED), seeds=39, explained=True)
    assert prediction.sensitivity is not None
    assert prediction.measure_next is not None
    first, second = prediction.sensitivity
    assert first["path"] == "hosts.nodes.storage.write.per_byte"
    assert first["elasticity"] == pytest.approx(0.9, abs=0.2)
    assert first["change_low"] < -0.4
    assert first["change_high"] > 0.4
    assert abs(second["change_high"]) < 0.01
    assert prediction.measure_next["path"] == first["path"]
    assert prediction.measure_next["narrows"] > 0.5
    assert "penstock profile DIR" in prediction.measure_next["method"]


def test_measured_values_with_an_interval_count_as_uncertain_too() -> None:
    estimate = "{value: 4 ms/MiB, low: 2 ms/MiB, high: 6 ms/MiB, converged: false}"
    text = CLUSTER.replace("write: {per_byte: 4 ms/MiB}", f"write: {{per_byte: {estimate}}}")
    prediction = predict(reduction(8, 0.1), platform(text), seeds=39, explained=True)
    assert prediction.sensitivity is not None
    assert [r["path"] for r in prediction.sensitivity] == ["hosts.nodes.storage.write.per_byte"]
    assert codes(prediction)["unconverged"] == "caution"


def test_without_assumed_values_no_measurement_is_recommended() -> None:
    prediction = predict(reduction(), platform(), seeds=3, explained=True)
    assert prediction.sensitivity == []
    assert prediction.measure_next is not None
    assert prediction.measure_next["path"] is None


# ---------------------------------------------------------------- applicability on real outcomes


def test_saturated_manager_is_outside() -> None:
    tasks = [task(f"touch{i}", *(write(f"f{i}-{j}", 0) for j in range(200))) for i in range(16)]
    cluster = platform(CLUSTER, "hosts.meta.manager.service=20ms")
    prediction = predict(workload(tasks), cluster, seeds=3)
    assert codes(prediction)["manager-saturated"] == "outside"
    assert prediction.applies.verdict == "outside"
    assert "manager-saturated" not in codes(predict(reduction(), cluster, seeds=3))


def test_short_tasks_and_devices_with_a_history() -> None:
    disk = CLUSTER.replace(
        "{read: {per_byte: 2 ms/MiB}, write: {per_byte: 4 ms/MiB}, capacity: 10GB}",
        "{profile: hdd-7200, capacity: 10GB}",
    )
    prediction = predict(reduction(8, 0.1), platform(disk), seeds=3)
    assert codes(prediction) == {
        "short-tasks": "caution",
        "history-dependent": "caution",
        "not-calibrated": "note",
        "few-seeds": "caution",
    }
    long_tasks = predict(reduction(8, 60.0), platform(), seeds=39)
    assert codes(long_tasks) == {"not-calibrated": "note"}
    assert long_tasks.applies.verdict == "ok"


def test_chunk_larger_than_the_measured_request_sizes(tmp_path: Path) -> None:
    profile = json.loads(StorageProfile.from_dict(read_profile("nvme", tmp_path)).json)
    profile["source"] = [{"what": "request sizes 4096 to 1048576 B", "where": "measured"}]
    (tmp_path / "mine.json").write_text(json.dumps(profile))
    text = CLUSTER.replace(
        "{read: {per_byte: 2 ms/MiB}, write: {per_byte: 4 ms/MiB}, capacity: 10GB}",
        "{profile: mine.json}",
    )
    (tmp_path / "p.yaml").write_text(text)
    for chunk, severity in (("1MiB", None), ("4MiB", "caution"), ("16MiB", "outside")):
        cluster = load_platform(tmp_path / "p.yaml", [f"store.chunk={chunk}"])
        prediction = predict(reduction(8, 60), cluster, seeds=19)
        assert codes(prediction).get("beyond-measured") == severity, chunk


def test_nearly_full_store_is_a_caution_and_full_store_a_failure() -> None:
    # nine files of ten chunks; the first two of the four nodes store three files each
    limited = ("hosts.nodes.storage.capacity=28MiB", "store.shuffle=none")
    prediction = predict(reduction(), platform(CLUSTER, *limited), seeds=3)
    assert codes(prediction)["capacity"] == "caution"
    with pytest.raises(PenstockError, match=r"work cannot end on cluster: .*nodes-\d") as error:
        predict(reduction(), platform(CLUSTER, "hosts.nodes.storage.capacity=15MiB"), seeds=3)
    assert error.value.exit_status == 1
    full = platform(CLUSTER, "hosts.nodes.storage.capacity=15MiB")
    (failure,) = predict_many(reduction(), [full], seeds=2)
    assert failure.error is not None
    assert failure.applies.verdict == "outside"
    assert failure.makespan_s == float("inf")


def test_uncertain_capacity_may_fail_the_run() -> None:
    text = CLUSTER + "assumed: [{path: hosts.nodes.storage.capacity, low: 15MiB, high: 100MiB}]\n"
    cluster = platform(text.replace("capacity: 10GB", "capacity: 60MiB"))
    prediction = predict(reduction(), cluster, seeds=39, explained=True)
    assert codes(prediction)["may-fail"] == "caution"
    assert prediction.to_dict()["interval"]["high"] is None
    assert prediction.sensitivity is not None
    assert prediction.sensitivity[0]["makespan_low_s"] is None
    json.dumps(prediction.to_dict(), allow_nan=False)


def test_calibration_changes_the_interval_and_its_method() -> None:
    uncalibrated = predict(reduction(), platform(), seeds=39)
    pairs = [Pair(f"w{i}", "cluster", 100, 100 + i) for i in range(19)]
    prediction = predict(reduction(), platform(), seeds=39, pairs=pairs)
    assert prediction.interval.high == pytest.approx(1.17 * prediction.makespan_s)
    assert "rank 18 of 19" in prediction.interval.method
    assert "not-calibrated" in codes(uncalibrated)
    assert not {"not-calibrated", "few-pairs"} & set(codes(prediction))
    few = predict(reduction(), platform(), seeds=39, pairs=pairs[:8])
    assert codes(few)["few-pairs"] == "caution"
    assert few.interval.low == uncalibrated.interval.low


def test_wide_calibration_changes_the_verdict() -> None:
    """The widest of ten calibration pairs sets the verdict."""
    good = [Pair(f"w{i}", "cluster", 100, 100 + i % 4) for i in range(9)]
    verdicts = []
    for worst in (0.19, 0.21, 0.33, 0.34):
        pairs = [*good, Pair("late", "cluster", 100, 100 * (1 + worst))]
        prediction = predict(reduction(), platform(), seeds=39, pairs=pairs)
        verdicts.append(codes(prediction).get("wide-calibration"))
        assert prediction.interval.high == pytest.approx((1 + worst) * prediction.makespan_s)
    assert verdicts == [None, "caution", "caution", "outside"]
    twice = [Pair("w", "cluster", 100, 101 + i / 10) for i in range(9)]
    prediction = predict(reduction(), platform(), seeds=39, pairs=twice)
    assert codes(prediction)["few-predictions"] == "note", "nine measurements of one prediction"
    assert "few-predictions" not in codes(predict(reduction(), platform(), seeds=39, pairs=good))


# ---------------------------------------------------------------- the command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(SLOW + ASSUMED)
    (tmp_path / "w.json").write_text(json.dumps(reduction(8, 0.1).to_dict()))
    return tmp_path


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *argv: str
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `penstock predict …`."""
    monkeypatch.setattr("sys.argv", ["penstock", "predict", *argv])
    with pytest.raises(SystemExit) as exited:
        main()
    out, err = capsys.readouterr()
    return int(exited.value.code or 0), out, err


def test_command_prints_the_answer(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = run(capsys, monkeypatch, "w.json", "--platform", "p.yaml")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("work takes ")
    for phrase in (
        "(90 % between",
        "bottleneck",
        "EUR",
        "kJ",
        "map",
        "reduce",
        "crossed the network",
    ):
        assert phrase in out, phrase
    for phrase in ("The model applies", "measure hosts.nodes.storage", "2.3 GHz", "Interval:"):
        assert phrase in out, phrase
    assert sorted(p.name for p in place.iterdir()) == ["p.yaml", "state", "w.json"]


def test_command_prints_one_object(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = run(
        capsys,
        monkeypatch,
        "w.json",
        "-p",
        "p.yaml",
        "--set",
        "hosts.nodes.count=8",
        "--json",
        "--seeds",
        "19",
    )
    assert status == 0
    document = json.loads(out)
    assert document["schema"] == "penstock/prediction/1"
    for (
        key
    ) in "makespan_s interval stages stations bytes energy_j cost applies events wall_s".split():
        assert key in document, key
    assert len([h for h in document["hosts"] if h["name"].startswith("nodes")]) == 8
    assert "tasks" not in document
    status, out, _ = run(
        capsys, monkeypatch, "w.json", "-p", "p.yaml", "--json", "--detail", "--seeds", "1"
    )
    tasks = json.loads(out)["tasks"]
    assert len(tasks) == 9
    assert any(t["critical"] for t in tasks)


def test_command_writes_page_figures_and_trace(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("w.json", "-p", "p.yaml", "-o", "out", "--html", "x.html", "--perfetto", "x.json")
    status, out, _ = run(capsys, monkeypatch, *argv, "--seeds", "19")
    assert status == 0
    assert "Wrote out/prediction.html." in out
    names = {p.relative_to(place).as_posix() for p in (place / "out").rglob("*") if p.is_file()}
    figures = {f"out/figures/{n}.{e}" for n in FIGURES for e in ("svg", "pdf")}
    assert names == {"out/prediction.json", "out/prediction.html", "out/trace.json", *figures}
    assert (place / "x.html").read_text() == (place / "out/prediction.html").read_text()
    events = json.loads((place / "x.json").read_text())["traceEvents"]
    assert len({e["pid"] for e in events}) <= 4
    names = {e["name"] for e in events if e["ph"] == "X"}
    assert {"map0", "reduce0", "write part0", "read part7"} <= names


def test_command_uses_the_pairs_of_its_platform(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("w.json", "-p", "p.yaml", "--json", "--no-explain")
    uncalibrated = json.loads(run(capsys, monkeypatch, *argv)[1])
    add_pairs(place / "state" / "calibration.json", [Pair("w", "cluster", 10, 11)] * 9)
    add_pairs(place / "state" / "calibration.json", [Pair("w", "other", 10, 99)] * 20)
    document = json.loads(run(capsys, monkeypatch, *argv)[1])
    assert document["interval"]["calibration"] == {
        "pairs": 9,
        "rank": 9,
        "half_width": pytest.approx(0.1),
        "status": "calibrated",
        "simulated_low": pytest.approx(uncalibrated["interval"]["low"]),
        "simulated_high": pytest.approx(uncalibrated["interval"]["high"]),
    }
    assert document["interval"]["high"] == pytest.approx(1.1 * document["makespan_s"])


def test_measured_runs_are_stored_and_calibrate_later_predictions(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = (
        "w.json",
        "-p",
        "p.yaml",
        "--no-explain",
        "--calibration",
        "pairs.json",
        "--seeds",
        "19",
    )
    for i in range(9):
        status, out, err = run(capsys, monkeypatch, *argv, "--measured", f"{8 + i / 10:g}s")
        assert status == 0, err
        assert "Stored in pairs.json" in out
    pairs = read_pairs(place / "pairs.json")
    assert [p.measured for p in pairs] == pytest.approx([8 + i / 10 for i in range(9)])
    assert len({(p.predicted, p.low, p.high) for p in pairs}) == 1, (
        "calibration changed the stored interval"
    )
    document = json.loads(run(capsys, monkeypatch, *argv, "--json")[1])
    assert document["interval"]["calibration"]["status"] == "calibrated"
    furthest = max(max(p.low - p.measured, p.measured - p.high) for p in pairs)  # type: ignore[operator]
    assert document["interval"]["high"] == pytest.approx(pairs[0].high + furthest)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (("w.json",), 2, "found a workflow; expected --platform"),
        (("study.yaml", "--html", "x.html"), 2, "--html is for workflows"),
        (("study.yaml", "--level", "0.5"), 2, "--level is for workflows"),
        (("p.yaml", "--basis", "t01"), 2, "p.yaml: found a study file with --basis"),
        (("w.json", "-p", "none.yaml"), 2, "none.yaml"),
        (("none.json", "-p", "p.yaml"), 2, "none.json"),
        (("w.json", "-p", "p.yaml", "--level", "2"), 2, "between 0 and 1"),
        (
            ("w.json", "-p", "p.yaml", "--set", "hosts.nodes.count=0"),
            2,
            "--set hosts.nodes.count=0",
        ),
        (("w.json", "-p", "p.yaml", "--set", "hosts.nods.count=2"), 2, "nods"),
        (("w.json", "-p", "p.yaml", "--html", "no/x.html"), 2, "found no directory"),
        (("w.json", "-p", "p.yaml", "-o", "w.json"), 2, "found a file"),
        (("w.json", "-p", "p.yaml", "--calibration", "w.json"), 2, "penstock/calibration/1"),
        (("w.json", "-p", "p.yaml", "--measured", "12"), 2, "--measured: found '12'"),
        (("w.json", "-p", "p.yaml", "--measured", "0s"), 2, "above 0"),
        (("w.json", "-p", "p.yaml", "--basis", "t01"), 2, "--basis is for studies"),
        (("w.json", "-p", "p.yaml", "--size-model", "zipf"), 2, "zipf"),
        (("w.json", "-p", "p.yaml", "--placement", "none.json"), 2, "expected a placement"),
        (("w.json", "-p", "p.yaml", "--placement", "p.yaml"), 2, "penstock: placement: "),
        (("w.json", "--placement", "p.yaml"), 2, "--platform"),
        (("w.json", "-p", "p.yaml", "--set", "store.replicas=5"), 2, "replica"),
        (
            ("w.json", "-p", "p.yaml", "-o", "out", "--set", "hosts.nodes.storage.capacity=15MiB"),
            1,
            "nodes-",
        ),
    ],
)
def test_bad_input_writes_no_files(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: tuple[str, ...],
    status: int,
    message: str,
) -> None:
    before = sorted(p.name for p in place.rglob("*") if p.name != "state")
    actual, out, err = run(capsys, monkeypatch, *argv)
    assert (actual, out) == (status, "")
    assert err.startswith("penstock: ")
    assert message in err
    assert sorted(p.name for p in place.rglob("*") if p.name != "state") == before


def extent(offset: int, length: int, *hosts: str) -> dict[str, Any]:
    return {"offset_bytes": offset, "length_bytes": length, "hosts": list(hosts)}


def test_placement_assigns_files_to_hosts(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts are on one storage host, which stores all output of the map tasks."""
    workflow = json.loads((place / "w.json").read_text())
    parts = [o["file"] for t in workflow["tasks"] for o in t["operations"] if o["op"] == "write"]
    parts = [name for name in parts if name.startswith("part")]
    placement = {name: [extent(0, 10 << 20, "nodes-2")] for name in parts}
    (place / "where.json").write_text(json.dumps(placement))
    argv = ("w.json", "-p", "p.yaml", "--no-explain", "--placement", "where.json")
    status, out, err = run(capsys, monkeypatch, *argv)
    assert (status, err) == (0, "")
    assert f"found for {len(parts)} of {len(parts) + 1} files; the store places the other 1." in out
    status, out, _ = run(capsys, monkeypatch, *argv, "--json")
    document = json.loads(out)
    assert document["placement"] == {"files": len(parts), "of": len(parts) + 1}
    stored = {h["name"]: h["stored_bytes"] for h in document["hosts"]}
    assert stored["nodes-2"] >= len(parts) * (10 << 20)
    placement[parts[0]] = [extent(0, 10 << 20, "nodes-77")]
    (place / "where.json").write_text(json.dumps(placement))
    status, out, err = run(capsys, monkeypatch, *argv)
    assert (status, out) == (2, "")
    assert 'placement: host "nodes-77"; a host of the platform is expected' in err


# ---------------------------------------------------------------- reasons from readers of workloads


def instance(sizes: list[int]) -> dict[str, Any]:
    """A WfFormat 1.5 instance: one task reads a file of each of these sizes."""
    files = [{"id": f"in{i}.dat", "sizeInBytes": size} for i, size in enumerate(sizes)]
    job = {"name": "sum", "id": "sum", "parents": [], "children": []}
    job |= {"inputFiles": [f["id"] for f in files], "outputFiles": ["out.dat"]}
    execution = {"id": "sum", "runtimeInSeconds": 30, "avgCPU": 90}
    return {
        "name": "wf",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": [job],
                "files": [*files, {"id": "out.dat", "sizeInBytes": 1 << 20}],
            },
            "execution": {
                "makespanInSeconds": 30,
                "executedAt": "2024-01-01T00:00:00Z",
                "tasks": [execution],
            },
        },
    }


def test_uniform_file_sizes_are_a_caution_without_a_size_model(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "wf.json").write_text(json.dumps(instance([1 << 20] * 12)))
    (place / "uneven.json").write_text(json.dumps(instance([(i + 1) << 20 for i in range(12)])))

    def reasons(*argv: str) -> set[str]:
        status, out, err = run(capsys, monkeypatch, *argv, "-p", "p.yaml", "--json", "--no-explain")
        assert status == 0, err
        return {r["code"] for r in json.loads(out)["applies"]["reasons"]}

    assert "uniform-sizes" in reasons("wf.json")
    assert "uniform-sizes" not in reasons("wf.json", "--size-model", "lognormal:0.5")
    assert "uniform-sizes" not in reasons("uneven.json")


def test_flushes_and_synchronous_writes_of_a_traced_run_are_not_simulated(tmp_path: Path) -> None:
    bundle = tmp_path / "traced"
    bundle.mkdir()
    n = 20
    synchronous = 4
    events = {
        "t_ns": [i * 1_000_000 for i in range(n)],
        "direction": ["write"] * n,
        "file_id": [1] * n,
        "offset_bytes": [i * 4096 for i in range(n)],
        "size_bytes": [4096] * n,
        "done_bytes": [4096] * n,
        "latency_ns": [1000] * n,
        "pid": [7] * n,
        "tid": [7] * n,
        "flags": [synchronous if i < 3 else 0 for i in range(n)],
    }
    files = {"file_id": [1], "path": ["/data/log"], "size_bytes": [n * 4096], "disk_id": [None]}
    write_parquet(bundle / "io_events.parquet", pa.table(events))
    write_parquet(bundle / "files.parquet", pa.table(files))
    requests = pa.table({"op": ["write", "flush", "flush"]})
    write_parquet(bundle / "device_requests.parquet", requests)
    (bundle / "manifest.json").write_text(
        json.dumps({"schema": "penstock/bundle/1", "run_id": "r001"})
    )
    prediction = predict(read_workload(bundle), platform(), seeds=1)
    (reason,) = [r for r in prediction.applies.reasons if r.code == "unmodelled-operations"]
    assert reason.severity == "caution"
    assert "2 flushes of a disk" in reason.text
    assert "3 waits of synchronous writes" in reason.text


# ---------------------------------------------------------------- platforms of emulation

EMULATED = """\
penstock_platform: 1
name: put-up
hosts:
  - {group: app, count: 1, roles: [client]}
  - group: store
    count: 1
    roles: [storage]
    disks: [{name: d, profile: nvme, limits: {write: 20 MB/s}, features: {cache: false}}]
network: {bandwidth: 10 Gbit/s, loopback: 2 GB/s}
store: {allocation: none, chunk: 1MiB}
schedule: [{at: 1s, nodes: store-0, disk: d, limits: {write: max}}]
"""


def test_limit_applies_to_its_direction_only() -> None:
    load = workload([task("w0", write("f", 100 << 20))])
    limited = predict(load, platform(EMULATED), seeds=1)
    assert limited.makespan_s == pytest.approx((100 << 20) / 20e6, rel=0.05)
    read_limited = platform(EMULATED.replace("limits: {write: 20 MB/s}", "limits: {read: 20 MB/s}"))
    assert predict(load, read_limited, seeds=1).makespan_s < 1


def test_latency_matrix_adds_its_mean_to_the_network_latency() -> None:
    text = EMULATED.replace("2 GB/s}", "2 GB/s, latency: 1ms, matrix: {app-0: {store-0: 4ms}}}")
    assert platform(text).lower()["fabric"]["latency_s"] == pytest.approx(0.005)
    one_way = text.replace("{store-0: 4ms}}", "{store-0: 4ms}, store-0: {app-0: 0s}}")
    assert platform(one_way).lower()["fabric"]["latency_s"] == pytest.approx(0.003)


def test_different_latencies_of_a_matrix_are_noted() -> None:
    load = workload([task("w0", write("f", 1 << 20))])

    def notes(matrix: str, hosts: int = 1) -> str:
        text = EMULATED.replace("2 GB/s}", f"2 GB/s, matrix: {matrix}}}")
        text = text.replace("group: app, count: 1", f"group: app, count: {hosts}")
        reasons = predict(load, platform(text), seeds=1).applies.reasons
        return " ".join(r.text for r in reasons)

    unequal = "latencies of 0 ns to 4 ms between pairs of hosts; it has their mean"
    assert unequal in notes("{app-0: {store-0: 4ms}}", 2)
    assert "latencies of 1 ms to 4 ms" in notes("{'*': {'*': 1ms}, app-0: {store-0: 4ms}}")
    assert "between pairs" not in notes("{app-0: {store-0: 4ms}}")
    assert "between pairs" not in notes("{'*': {'*': 4ms}}", 2)
    assert "between pairs" not in notes("{'app-*': {'app-*': 4ms, store-0: 4ms}}", 2)
    assert "between pairs" not in notes("{'app-*': {store-0: 1ms}, '*': {'*': 4ms}}", 2)


def test_hosts_without_power_or_price_are_noted_beside_others() -> None:
    load = workload([task("w0", write("f", 1 << 20))])

    def notes(*overrides: str) -> str:
        reasons = predict(load, platform(EMULATED, *overrides), seeds=1).applies.reasons
        return " ".join(r.text for r in reasons)

    power, price = "{idle: 50 W, app: 90 W}", "0.10 EUR/h"
    some = notes(f"hosts.app.power={power}", f"hosts.app.price={price}")
    assert "not in the prediction: the energy of store" in some
    assert "not in the prediction: the price of store" in some
    for complete in (notes(), notes(f"power={power}", f"price={price}")):
        assert "the energy of" not in complete
        assert "the price of" not in complete


def test_parts_missing_from_the_prediction_are_listed() -> None:
    prediction = predict(workload([task("w0", write("f", 1 << 20))]), platform(EMULATED), seeds=1)
    reasons = " ".join(r.text for r in prediction.applies.reasons)
    assert "not in the prediction: features of the disks store.d" in reasons
    assert "the schedule (1 change)" in reasons
