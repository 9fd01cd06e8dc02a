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

#: PR §12, set V: one client, one manager, one storage host, everything constant
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


#: the disks decide
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


def codes(made: Prediction) -> dict[str, str]:
    return {r.code: r.severity for r in made.applies.reasons}


# ---------------------------------------------------------------- the model through the whole path


def test_set_v_write_through_the_platform_file() -> None:
    made = predict(workload([task("w0", write("f"))]), platform(SET_V), seeds=3)
    assert made.makespan_s == pytest.approx(0.84692288, rel=1e-6)
    assert made.bytes["network"] == 10_500_096
    assert (made.interval.low, made.interval.high) == (made.makespan_s, made.makespan_s)
    wrong = platform(SET_V, "hosts.store.storage.write.per_byte=100 ms/MiB")
    assert predict(workload([task("w0", write("f"))]), wrong, seeds=1).makespan_s > 1


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
    where = platform(SET_V, f"hosts.store.storage.write.per_byte={service}")
    made = predict(workload([task("w0", write("f"))]), where, seeds=1)
    found = {}
    for row in made.stations:
        if (row["kind"], row["host"]) in (("net_out", "app-0"), ("net_in", "store-0")):
            found[row["host"]] = row["utilisation"]
        if row["kind"] in ("storage", "manager"):
            found[row["kind"]] = row["utilisation"]
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    assert made.bottleneck is not None
    kind = "storage" if service.startswith("200") else "net_out"
    assert made.bottleneck.kind in (kind, "net_in" if kind == "net_out" else kind)


def test_critical_path_is_the_whole_makespan() -> None:
    made = predict(reduction(), platform(), seeds=5)
    assert sum(s["critical_share"] for s in made.stations) == pytest.approx(1, abs=0.02)


def test_seeds_give_spread_and_threads_alter_nothing() -> None:
    one, two = (predict(reduction(), platform(), seeds=39, threads=n) for n in (1, 2))
    assert one.interval.low < one.makespan_s < one.interval.high
    a, b = one.to_dict(), two.to_dict()
    del a["wall_s"], b["wall_s"]
    assert a == b
    assert one.simulations == 39
    assert one.wall_s > 0
    assert one.events == 39 * one.events // 39 > 1000


def test_uncertain_values_widen_the_interval() -> None:
    certain = predict(reduction(8, 0.1), platform(SLOW), seeds=39)
    unsure = predict(reduction(8, 0.1), platform(SLOW + ASSUMED), seeds=39)
    assert unsure.interval.width > 2 * certain.interval.width
    assert "2 uncertain values of the platform" in unsure.interval.sources
    assert unsure.makespan_s == pytest.approx(certain.makespan_s, rel=0.02)
    assert unsure.energy is not None
    assert unsure.energy.interval is not None
    assert unsure.energy.interval.low < unsure.energy.total_j < unsure.energy.interval.high


def test_many_predictions_are_the_single_ones() -> None:
    places = [platform(CLUSTER, f"hosts.nodes.count={n}") for n in (2, 4, 8)]
    many = predict_many(reduction(), places, seeds=[3, 4, 5])
    for place, made in zip(places, many, strict=True):
        alone = predict(reduction(), place, seeds=[3, 4, 5])
        assert made.makespan_s == alone.makespan_s
        assert made.interval == alone.interval
        assert made.energy_j == alone.energy_j
        assert made.bottleneck == alone.bottleneck
    assert many[0].makespan_s > many[1].makespan_s > many[2].makespan_s
    assert "19 runs are needed" in many[0].interval.method


def test_energy_and_cost_are_those_of_the_outcome() -> None:
    made = predict(reduction(), platform(), seeds=[7])
    expected = sum(
        91.6 * made.makespan_s + 33.6 * h["app_s"] + 37.5 * h["storage_s"] + 36.1 * h["network_s"]
        for h in made.hosts
        if h["name"].startswith("nodes")
    )
    assert made.energy_j == pytest.approx(expected, rel=1e-9)
    assert made.energy is not None
    assert made.energy.omitted == ("meta-0",)
    assert made.cost is not None
    assert made.cost.amount == pytest.approx(5 * 0.36 * made.makespan_s / 3600)


def test_frequencies_trade_time_for_energy() -> None:
    computing = predict(reduction(8, 30.0), platform(), seeds=3, explained=True)
    assert computing.frequencies is not None
    slow, fast = computing.frequencies["states"]
    assert (slow["frequency"], fast["frequency"]) == ("1.2 GHz", "2.3 GHz")
    assert slow["makespan_s"] > 1.7 * fast["makespan_s"]
    assert slow["energy_j"] > 1.2 * fast["energy_j"]
    assert not computing.frequencies["conflict"]
    storing = predict(reduction(8, 0.01), platform(), seeds=3, explained=True)
    assert storing.frequencies is not None
    slow, fast = storing.frequencies["states"]
    assert slow["makespan_s"] < 1.05 * fast["makespan_s"]
    assert slow["energy_j"] < 0.9 * fast["energy_j"]


# ---------------------------------------------------------------- sensitivity


def test_the_value_that_matters_is_named_and_known_it_narrows_the_interval() -> None:
    made = predict(reduction(8, 0.1), platform(SLOW + ASSUMED), seeds=39, explained=True)
    assert made.sensitivity is not None
    assert made.measure_next is not None
    first, second = made.sensitivity
    assert first["path"] == "hosts.nodes.storage.write.per_byte"
    assert first["elasticity"] == pytest.approx(0.9, abs=0.2)
    assert first["change_low"] < -0.4
    assert first["change_high"] > 0.4
    assert abs(second["change_high"]) < 0.01
    assert made.measure_next["path"] == first["path"]
    assert made.measure_next["narrows"] > 0.5
    assert "penstock profile DIR" in made.measure_next["method"]


def test_measured_values_with_an_interval_count_as_uncertain_too() -> None:
    estimate = "{value: 4 ms/MiB, low: 2 ms/MiB, high: 6 ms/MiB, converged: false}"
    text = CLUSTER.replace("write: {per_byte: 4 ms/MiB}", f"write: {{per_byte: {estimate}}}")
    made = predict(reduction(8, 0.1), platform(text), seeds=39, explained=True)
    assert made.sensitivity is not None
    assert [r["path"] for r in made.sensitivity] == ["hosts.nodes.storage.write.per_byte"]
    assert codes(made)["unconverged"] == "caution"


def test_nothing_assumed_leaves_nothing_to_measure() -> None:
    made = predict(reduction(), platform(), seeds=3, explained=True)
    assert made.sensitivity == []
    assert made.measure_next is not None
    assert made.measure_next["path"] is None


# ---------------------------------------------------------------- applicability on real outcomes


def test_saturated_manager_is_outside() -> None:
    tasks = [task(f"touch{i}", *(write(f"f{i}-{j}", 0) for j in range(200))) for i in range(16)]
    where = platform(CLUSTER, "hosts.meta.manager.service=20ms")
    made = predict(workload(tasks), where, seeds=3)
    assert codes(made)["manager-saturated"] == "outside"
    assert made.applies.verdict == "outside"
    assert "manager-saturated" not in codes(predict(reduction(), where, seeds=3))


def test_short_tasks_and_devices_with_a_history() -> None:
    disk = CLUSTER.replace(
        "{read: {per_byte: 2 ms/MiB}, write: {per_byte: 4 ms/MiB}, capacity: 10GB}",
        "{profile: hdd-7200, capacity: 10GB}",
    )
    made = predict(reduction(8, 0.1), platform(disk), seeds=3)
    assert codes(made) == {
        "short-tasks": "caution",
        "history-dependent": "caution",
        "not-calibrated": "note",
        "few-seeds": "caution",
    }
    good = predict(reduction(8, 60.0), platform(), seeds=39)
    assert codes(good) == {"not-calibrated": "note"}
    assert good.applies.verdict == "ok"


def test_a_chunk_beyond_what_a_fitted_profile_was_measured_with(tmp_path: Path) -> None:
    profile = json.loads(StorageProfile.from_dict(read_profile("nvme", tmp_path)).json)
    profile["source"] = [{"what": "request sizes 4096 to 1048576 B", "where": "measured"}]
    (tmp_path / "mine.json").write_text(json.dumps(profile))
    text = CLUSTER.replace(
        "{read: {per_byte: 2 ms/MiB}, write: {per_byte: 4 ms/MiB}, capacity: 10GB}",
        "{profile: mine.json}",
    )
    (tmp_path / "p.yaml").write_text(text)
    for chunk, severity in (("1MiB", None), ("4MiB", "caution"), ("16MiB", "outside")):
        where = load_platform(tmp_path / "p.yaml", [f"store.chunk={chunk}"])
        made = predict(reduction(8, 60), where, seeds=19)
        assert codes(made).get("beyond-measured") == severity, chunk


def test_a_nearly_full_store_is_a_caution_and_a_full_one_a_failure() -> None:
    # nine files of ten chunks, of which the first two of four nodes get three each
    limited = ("hosts.nodes.storage.capacity=28MiB", "store.shuffle=none")
    made = predict(reduction(), platform(CLUSTER, *limited), seeds=3)
    assert codes(made)["capacity"] == "caution"
    with pytest.raises(PenstockError, match=r"work cannot end on cluster: .*nodes-\d") as failed:
        predict(reduction(), platform(CLUSTER, "hosts.nodes.storage.capacity=15MiB"), seeds=3)
    assert failed.value.exit_status == 1
    full = platform(CLUSTER, "hosts.nodes.storage.capacity=15MiB")
    (kept,) = predict_many(reduction(), [full], seeds=2)
    assert kept.error is not None
    assert kept.applies.verdict == "outside"
    assert kept.makespan_s == float("inf")


def test_an_uncertain_capacity_may_end_no_run() -> None:
    text = CLUSTER + "assumed: [{path: hosts.nodes.storage.capacity, low: 15MiB, high: 100MiB}]\n"
    where = platform(text.replace("capacity: 10GB", "capacity: 60MiB"))
    made = predict(reduction(), where, seeds=39, explained=True)
    assert codes(made)["may-fail"] == "caution"
    assert made.to_dict()["interval"]["high"] is None
    assert made.sensitivity is not None
    assert made.sensitivity[0]["makespan_low_s"] is None
    json.dumps(made.to_dict(), allow_nan=False)


def test_calibration_alters_the_interval_and_says_so() -> None:
    bare = predict(reduction(), platform(), seeds=39)
    pairs = [Pair(f"w{i}", "cluster", 100, 100 + i) for i in range(19)]
    made = predict(reduction(), platform(), seeds=39, pairs=pairs)
    assert made.interval.high == pytest.approx(1.17 * made.makespan_s)
    assert "rank 18 of 19" in made.interval.method
    assert "not-calibrated" in codes(bare)
    assert not {"not-calibrated", "few-pairs"} & set(codes(made))
    few = predict(reduction(), platform(), seeds=39, pairs=pairs[:8])
    assert codes(few)["few-pairs"] == "caution"
    assert few.interval.low == bare.interval.low


def test_a_calibration_that_has_become_too_wide_changes_the_verdict() -> None:
    """The same runs, and one more pair each time: the verdict follows the widest of them."""
    good = [Pair(f"w{i}", "cluster", 100, 100 + i % 4) for i in range(9)]
    verdicts = []
    for worst in (0.19, 0.21, 0.33, 0.34):
        pairs = [*good, Pair("late", "cluster", 100, 100 * (1 + worst))]
        made = predict(reduction(), platform(), seeds=39, pairs=pairs)
        verdicts.append(codes(made).get("wide-calibration"))
        assert made.interval.high == pytest.approx((1 + worst) * made.makespan_s)
    assert verdicts == [None, "caution", "caution", "outside"]
    twice = [Pair("w", "cluster", 100, 101 + i / 10) for i in range(9)]
    made = predict(reduction(), platform(), seeds=39, pairs=twice)
    assert codes(made)["few-predictions"] == "note", "nine repetitions of one prediction"
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
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `penstock predict …`."""
    monkeypatch.setattr("sys.argv", ["penstock", "predict", *words])
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def test_command_prints_the_answer(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = run(capsys, monkeypatch, "w.json", "--platform", "p.yaml")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("work takes ")
    for told in (
        "(90 % between",
        "bottleneck",
        "EUR",
        "kJ",
        "map",
        "reduce",
        "crossed the network",
    ):
        assert told in out, told
    for told in ("The model applies", "measure hosts.nodes.storage", "2.3 GHz", "Interval:"):
        assert told in out, told
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
    made = json.loads(out)
    assert made["schema"] == "penstock/prediction/1"
    for (
        key
    ) in "makespan_s interval stages stations bytes energy_j cost applies events wall_s".split():
        assert key in made, key
    assert len([h for h in made["hosts"] if h["name"].startswith("nodes")]) == 8
    assert "tasks" not in made
    status, out, _ = run(
        capsys, monkeypatch, "w.json", "-p", "p.yaml", "--json", "--detail", "--seeds", "1"
    )
    tasks = json.loads(out)["tasks"]
    assert len(tasks) == 9
    assert any(t["critical"] for t in tasks)


def test_command_writes_page_figures_and_trace(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("w.json", "-p", "p.yaml", "-o", "out", "--html", "x.html", "--perfetto", "x.json")
    status, out, _ = run(capsys, monkeypatch, *words, "--seeds", "19")
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
    words = ("w.json", "-p", "p.yaml", "--json", "--no-explain")
    bare = json.loads(run(capsys, monkeypatch, *words)[1])
    add_pairs(place / "state" / "calibration.json", [Pair("w", "cluster", 10, 11)] * 9)
    add_pairs(place / "state" / "calibration.json", [Pair("w", "other", 10, 99)] * 20)
    made = json.loads(run(capsys, monkeypatch, *words)[1])
    assert made["interval"]["calibration"] == {
        "pairs": 9,
        "rank": 9,
        "half_width": pytest.approx(0.1),
        "status": "calibrated",
        "simulated_low": pytest.approx(bare["interval"]["low"]),
        "simulated_high": pytest.approx(bare["interval"]["high"]),
    }
    assert made["interval"]["high"] == pytest.approx(1.1 * made["makespan_s"])


def test_measured_runs_are_kept_and_calibrate_the_next_ones(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
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
        status, out, err = run(capsys, monkeypatch, *words, "--measured", f"{8 + i / 10:g}s")
        assert status == 0, err
        assert "Stored in pairs.json" in out
    pairs = read_pairs(place / "pairs.json")
    assert [p.measured for p in pairs] == pytest.approx([8 + i / 10 for i in range(9)])
    assert len({(p.predicted, p.low, p.high) for p in pairs}) == 1, "ends before any calibration"
    made = json.loads(run(capsys, monkeypatch, *words, "--json")[1])
    assert made["interval"]["calibration"]["status"] == "calibrated"
    furthest = max(max(p.low - p.measured, p.measured - p.high) for p in pairs)  # type: ignore[operator]
    assert made["interval"]["high"] == pytest.approx(pairs[0].high + furthest)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("w.json",), 2, "found a workflow; expected --platform"),
        (("study.yaml", "--html", "x.html"), 2, "--html is for workflows"),
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
def test_mistakes_leave_nothing(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    status: int,
    told: str,
) -> None:
    before = sorted(p.name for p in place.rglob("*") if p.name != "state")
    found, out, err = run(capsys, monkeypatch, *words)
    assert (found, out) == (status, "")
    assert err.startswith("penstock: ")
    assert told in err
    assert sorted(p.name for p in place.rglob("*") if p.name != "state") == before


def extent(offset: int, length: int, *hosts: str) -> dict[str, Any]:
    return {"offset_bytes": offset, "length_bytes": length, "hosts": list(hosts)}


def test_a_placement_puts_files_where_they_were(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parts on one storage host, which then stores all that the map tasks write."""
    known = json.loads((place / "w.json").read_text())
    parts = [o["file"] for t in known["tasks"] for o in t["operations"] if o["op"] == "write"]
    parts = [name for name in parts if name.startswith("part")]
    there = {name: [extent(0, 10 << 20, "nodes-2")] for name in parts}
    (place / "where.json").write_text(json.dumps(there))
    words = ("w.json", "-p", "p.yaml", "--no-explain", "--placement", "where.json")
    status, out, err = run(capsys, monkeypatch, *words)
    assert (status, err) == (0, "")
    assert f"found for {len(parts)} of {len(parts) + 1} files; the store places the other 1." in out
    status, out, _ = run(capsys, monkeypatch, *words, "--json")
    made = json.loads(out)
    assert made["placement"] == {"files": len(parts), "of": len(parts) + 1}
    stored = {h["name"]: h["stored_bytes"] for h in made["hosts"]}
    assert stored["nodes-2"] >= len(parts) * (10 << 20)
    there[parts[0]] = [extent(0, 10 << 20, "nodes-77")]
    (place / "where.json").write_text(json.dumps(there))
    status, out, err = run(capsys, monkeypatch, *words)
    assert (status, out) == (2, "")
    assert 'placement: host "nodes-77"; a host of the platform is expected' in err


# ---------------------------------------------------------------- what readers of workloads say


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


def test_files_as_from_a_generator_are_a_caution_unless_they_get_sizes(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "wf.json").write_text(json.dumps(instance([1 << 20] * 12)))
    (place / "uneven.json").write_text(json.dumps(instance([(i + 1) << 20 for i in range(12)])))

    def reasons(*words: str) -> set[str]:
        status, out, err = run(
            capsys, monkeypatch, *words, "-p", "p.yaml", "--json", "--no-explain"
        )
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
    made = predict(read_workload(bundle), platform(), seeds=1)
    (reason,) = [r for r in made.applies.reasons if r.code == "unmodelled-operations"]
    assert reason.severity == "caution"
    assert "2 flushes of a disk" in reason.text
    assert "3 waits of synchronous writes" in reason.text


# ---------------------------------------------------------------- what is emulated can be predicted

PUT_UP = """\
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


def test_a_limit_lowers_the_station_s_rate_in_its_direction_only() -> None:
    load = workload([task("w0", write("f", 100 << 20))])
    limited = predict(load, platform(PUT_UP), seeds=1)
    assert limited.makespan_s == pytest.approx((100 << 20) / 20e6, rel=0.05)
    other = platform(PUT_UP.replace("limits: {write: 20 MB/s}", "limits: {read: 20 MB/s}"))
    assert predict(load, other, seeds=1).makespan_s < 1


def test_a_matrix_of_latencies_is_in_the_network_as_its_mean() -> None:
    text = PUT_UP.replace("2 GB/s}", "2 GB/s, latency: 1ms, matrix: {app-0: {store-0: 4ms}}}")
    assert platform(text).lower()["fabric"]["latency_s"] == pytest.approx(0.005)
    one_way = text.replace("{store-0: 4ms}}", "{store-0: 4ms}, store-0: {app-0: 0s}}")
    assert platform(one_way).lower()["fabric"]["latency_s"] == pytest.approx(0.003)


def test_what_a_prediction_leaves_out_of_the_nodes_is_said() -> None:
    made = predict(workload([task("w0", write("f", 1 << 20))]), platform(PUT_UP), seeds=1)
    said = " ".join(r.text for r in made.applies.reasons)
    assert "not in the prediction: features of the disks store.d" in said
    assert "the schedule (1 change)" in said
