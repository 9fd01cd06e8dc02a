"""Deployment scenarios: names and addresses, utilisation, and results of the claims on shapes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from penstock.archive.bundle import Bundle
from penstock.errors import PenstockError
from studies.claims import Result, status

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies" / "scenarios"))

import judged
import scenario_runs
from inputs import FIRST_DATE_KEY, make_tables, make_texts
from judged import MET, MISSED, UNDECIDED, Cost, Means, measured, published, swap_detected, swapped
from layout import HOST, SCENARIOS, WIRE, hosts_file, racks

S = 1_000_000_000
SCENARIO_STUDY = Path(__file__).resolve().parents[1] / "scenarios.study.yaml"


def verdicts(means: Means) -> dict[str, Result]:
    claims = judged.shapes(means, judged.published_rates())
    return {c.of.removeprefix("shape "): c.result for c in claims}


def changed(program: str, scenario: str, factor: float) -> Means:
    """The published table with one mean multiplied by `factor`."""
    table = {p: dict(rows) for p, rows in published().items()}
    mean = table[program][scenario]
    table[program][scenario] = replace(mean, mean=factor * mean.mean)
    return table


def test_the_published_table_has_all_its_shapes() -> None:
    assert verdicts(published()) == dict.fromkeys("abcde", MET)
    first, _, tie, *_ = judged.shapes(published(), judged.published_rates())
    assert "within 1.5 %" in tie.evidence  # guest 222.33, host 218.96: 3.37 s
    ratios = first.evidence
    assert ratios == "wordcount 3.67 x, dfsio 12.98 x, tpcds 17.33 x the fastest"


def test_renaming_after_the_last_job_is_a_cost_of_objects() -> None:
    table, speeds = published(), judged.published_rates()
    seconds = {"dfsio": dict.fromkeys(SCENARIOS, 0.2) | {"objects": 3.0}}
    shape = judged.shapes(table, speeds, seconds)[0]
    assert shape.result is MET
    assert "dfsio 3.00 s, others 0.20 s at most" in shape.evidence
    seconds["dfsio"]["apart"] = 3.5
    assert judged.shapes(table, speeds, seconds)[0].result is MISSED


@pytest.mark.parametrize(
    ("letter", "program", "scenario", "factor", "verdict"),
    [
        ("a", "tpcds", "objects", 0.05, MISSED),  # no longer the slowest
        ("a", "wordcount", "apart-volumes", 2.8, UNDECIDED),  # nearly as slow
        ("b", "dfsio", "host-volumes", 0.45, MISSED),  # below host
        ("b", "dfsio", "apart", 1.3, MISSED),  # significantly slower than host
        ("c", "wordcount", "apart", 1.2, MISSED),  # no tie
        ("d", "tpcds", "apart-volumes", 1.3, MISSED),  # behind uncached data that are apart
        ("d", "tpcds", "apart", 0.86, UNDECIDED),  # hardly before them
        ("e", "wordcount", "objects", 6.0, UNDECIDED),  # costs most where waves are rarest
    ],
)
def test_a_changed_shape_is_reported(
    letter: str, program: str, scenario: str, factor: float, verdict: Result
) -> None:
    assert verdicts(changed(program, scenario, factor))[letter] == verdict


def test_swapped_scenarios_are_detected_unless_all_shapes_were_missed_before() -> None:
    real = judged.shapes(published(), judged.published_rates())
    planted = judged.shapes(swapped(published()), judged.published_rates())
    missed = {c.of for c in planted if c.result is MISSED}
    assert missed >= {"shape a", "shape b", "shape c"}
    assert swap_detected(real, planted) is True
    assert swap_detected(real, real) is False
    lost = [replace(c, result=MISSED) for c in real]
    assert swap_detected(lost, planted) is None


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("program", judged.PUBLISHED)
def test_a_removed_scenario_is_not_measured(program: str, scenario: str) -> None:
    table = {
        p: {s: m for s, m in rows.items() if (p, s) != (program, scenario)}
        for p, rows in published().items()
    }
    claims = judged.shapes(table, judged.published_rates())
    missing = {c.of[-1] for c in claims if c.result is Result.NOT_MEASURED}
    of_program = {
        "wordcount": "c" if scenario in judged.LOCAL else "",
        "dfsio": "b",
        "tpcds": "d" if scenario != "objects" else "",
    }
    assert missing == {"a", "e", *of_program[program]}
    assert status(claims) == 3
    assert f"no valid run of {program} {scenario}" in claims[0].evidence


def test_without_runs_every_shape_is_not_measured() -> None:
    claims = judged.shapes(measured(scenario_runs.times([])), {})
    assert {c.result for c in claims} == {Result.NOT_MEASURED}
    assert scenario_runs.costs([]) == []


def test_single_runs_are_never_significantly_different() -> None:
    times = {p: {s: [m.mean] for s, m in rows.items()} for p, rows in published().items()}
    results = verdicts(measured(times))
    assert MISSED not in results.values()
    assert results["a"] == UNDECIDED


def test_the_columns_of_waves() -> None:
    # tasks and slots of the published runs: WordCount 158 and DFSIO 1280 on 16
    for program, waves, run_time_s, mean_s, longer_s in (
        ("wordcount", 10, 218.96, 21.896, 0.010),
        ("dfsio", 80, 180.87, 2.2609, 0.080),
        ("tpcds", 6584, 2376.33, 0.36093, 6.584),
    ):
        cost = Cost(program, "guest", waves, run_time_s, 0, run_time_s)
        assert cost.sensitivity.mean_wave_s == pytest.approx(mean_s, rel=1e-4)
        assert cost.sensitivity.longer_s() == pytest.approx(longer_s)
        assert cost.longer_ms == 0
    apart = Cost("tpcds", "apart", 6584, 4999.28, 0, 2376.33)
    assert apart.longer_ms == pytest.approx(1e3 * 2622.95 / 6584)


def test_the_study_has_the_nodes_links_and_levels_of_its_programs() -> None:
    study = YAML(typ="safe", pure=True).load(SCENARIO_STUDY)
    nodes = {n["name"]: n for n in study["platform"]["nodes"]}
    on = {(name, i["network"]): i["address"] for name, n in nodes.items() for i in n["interfaces"]}
    assert {name: on[name, "net"] for name in nodes} == WIRE
    assert {name: a for (name, network), a in on.items() if network != "net"} == HOST
    # the first interface is e0, which counts as the wire
    assert {n["interfaces"][0]["network"] for n in nodes.values()} == {"net"}
    assert study["factors"]["scenario"]["levels"] == list(SCENARIOS)
    rate = study["platform"]["network"]["bandwidth"]
    assert rate == f"{scenario_runs.LINK_BPS * 8 / 1e6:.0f} Mbit/s"


def addresses_at(scenario: str, node: str) -> dict[str, str]:
    lines = (line.split() for line in hosts_file(SCENARIOS[scenario], node).splitlines())
    return {name: address for address, name in lines}


def test_a_node_uses_its_hosts_link_to_a_neighbour_with_near_data() -> None:
    for scenario in ("host", "host-volumes"):
        assert addresses_at(scenario, "w1")["s1"] == HOST["s1"]
        assert addresses_at(scenario, "s2")["w2"] == HOST["w2"]
        assert addresses_at(scenario, "w1")["s2"] == WIRE["s2"]
    for scenario in ("guest", "apart", "apart-volumes", "objects"):
        for node in WIRE:
            assert addresses_at(scenario, node) == WIRE


def test_racks_are_hosts() -> None:
    near = dict(line.split() for line in racks(SCENARIOS["host"]).splitlines())
    apart = dict(line.split() for line in racks(SCENARIOS["apart"]).splitlines())
    assert near[WIRE["w1"]] == near[WIRE["s1"]] != near[WIRE["w2"]] == near[WIRE["s2"]]
    assert len(set(apart.values())) == len(apart)


def test_inputs_follow_from_the_seed_and_keys_match(tmp_path: Path) -> None:
    make_texts(tmp_path / "texts", 3, 50_000, 5)
    files = sorted((tmp_path / "texts").iterdir())
    assert [f.stat().st_size for f in files] == [50_000] * 3
    assert files[0].read_bytes() != files[1].read_bytes()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        make_tables(tmp_path / name, 2, 500, 5)
    first, second = (
        pq.read_table(tmp_path / p / "store_sales").to_pandas() for p in ("one", "two")
    )
    pd.testing.assert_frame_equal(first, second)
    item = pq.read_table(tmp_path / "one" / "item").to_pandas()
    days = pq.read_table(tmp_path / "one" / "date_dim").to_pandas()
    assert set(first["ss_item_sk"]) <= set(item["i_item_sk"])
    assert set(first["ss_sold_date_sk"]) <= set(days["d_date_sk"])
    assert days["d_date_sk"].min() == FIRST_DATE_KEY


def test_busy_is_the_mean_over_nodes_of_a_role_during_the_program() -> None:
    rows = []
    for t in range(1, 11):
        for node, cpu in (("w1", 10.0), ("w2", 30.0), ("head", 5.0)):
            inside = 3 < t <= 7
            rows += [
                (t * S, "cgroup_cpu", node, cpu if inside else 99.0),
                (t * S, "emulated_disk", f"{node}.data", 50.0 if inside else 0.0),
            ]
    used = pd.DataFrame(rows, columns=["t_ns", "kind", "entity", "value"]).assign(metric="busy")
    rate = scenario_runs.LINK_BPS
    counted = pd.DataFrame(
        [
            (t * S, "links", node, direction, share * rate * max(0, t - 3))
            for t in range(1, 11)
            for node, direction, share in (("w1", "in", 0.5), ("w1", "out", 0.1), ("w2", "in", 0.7))
        ],
        columns=["t_ns", "source", "entity", "metric", "value"],
    )
    shares = scenario_runs.busy(used, counted, 3 * S, 7 * S)
    assert shares["workers"]["cpu"] == pytest.approx(20)
    assert shares["workers"]["disk"] == pytest.approx(50)
    assert shares["workers"]["in"] == pytest.approx(60)
    assert shares["head"]["cpu"] == pytest.approx(5)
    assert np.isnan(shares["head"]["in"])


def test_different_results_of_runs_are_reported() -> None:
    results = {
        "wordcount": {"made": 7},
        "dfsio": {"made": {"files": 2, "bytes": 9}},
        "tpcds": {"made": {"q3": {"rows": 1, "sum": "5", "seconds": 2.0}}},
    }
    seen: dict[str, object] = {}
    scenario_runs.same_results(seen, "r001", results)
    slower = {**results, "tpcds": {"made": {"q3": {"rows": 1, "sum": "5", "seconds": 9.0}}}}
    scenario_runs.same_results(seen, "r002", slower)
    with pytest.raises(PenstockError, match="r003: wordcount: found 6; expected 7"):
        scenario_runs.same_results(seen, "r003", {**results, "wordcount": {"made": 6}})


def test_seconds_of_a_program_are_on_one_clock(tmp_path: Path) -> None:
    """A task from 2 to 4 s and a link at full speed from 3 to 4 s have these times on the common clock."""
    boot = 5_000 * S
    rate = scenario_runs.LINK_BPS
    samples = [
        (boot + 2 * S, "spark", "all", "running_tasks", "tasks", 1.0, False),
        (boot + 4 * S, "spark", "all", "running_tasks", "tasks", 0.0, False),
        *(
            (boot + t * S, "links", "s1", "in", "B", rate * min(1, max(0, t - 3)), True)
            for t in range(7)
        ),
    ]
    names = ["t_ns", "source", "entity", "metric", "unit", "value", "cumulative"]
    used = pd.DataFrame(
        [(boot + t * S, "cgroup_cpu", w, "busy", 10.0 * t) for t in range(7) for w in ("w1", "w2")],
        columns=["t_ns", "kind", "entity", "metric", "value"],
    )
    with Bundle.create(tmp_path / "B", {"command": [], "run_id": "r001"}) as bundle:
        bundle.write_table("samples", pa.Table.from_pandas(pd.DataFrame(samples, columns=names)))
        bundle.write_table("utilisation", pa.Table.from_pandas(used))
    series = scenario_runs.by_second(bundle, boot + S, boot + 6 * S)
    x, y = series["tasks"]
    assert (x.tolist(), y.tolist()) == ([1, 3], [1, 0])
    x, y = series["links, in"]
    assert dict(zip(x.tolist(), y.round(6).tolist(), strict=True)) == {
        1: 0,
        2: 0,
        3: 100,
        4: 0,
        5: 0,
    }
    x, y = series["workers' cpu"]
    assert y[x == 3].tolist() == [80]
    assert not len(series["disks"][0])


def test_counters_of_links_are_converted_to_the_clock_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "links-s1.csv"
    file.write_text("time,e0 rx,e0 tx,e1 rx,e1 tx\n1000.5,10,20,100,200\n1001.5,30,50,100,260\n")
    read = scenario_runs.links(file)
    with Bundle.create(tmp_path / "B", {"command": [], "run_id": "r001"}) as bundle:
        scenario_runs.metrics.into_bundle(bundle, read)
    rows = bundle.table("samples").to_pandas()
    rows["metric"] = rows["metric"].astype(str)
    assert set(rows["entity"].astype(str)) == {"s1"}
    by = rows.groupby("metric")["value"].apply(list).to_dict()
    assert by == {"in": [10, 30], "out": [20, 50], "host_in": [100, 100], "host_out": [200, 260]}
    assert set(rows["t_ns"]) == {1_000_500_000_000, 1_001_500_000_000}
