"""Derived series and series on common times, compared with NumPy, and refused expressions."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.catalogue import local_user
from penstock.archive.series.expression import FUNCTIONS, derived
from penstock.archive.series.grid import on_grid
from penstock.archive.series.series import Recorded, Series
from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.accounting import verdict
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Batch, points
from tests.unit.shared_runs import T0, made, own_store, penstock, refused

X = np.arange(20.0)
RNG = np.random.default_rng(5)
A, B, TOTAL = (
    RNG.uniform(0, 90, 20),
    RNG.uniform(0, 90, 20),
    np.cumsum(RNG.integers(1, 9, 20)) * 1.0,
)
SERIES = Recorded(
    [
        Series("disk a busy", X, A, "%", "a", "disk busy"),
        Series("disk b busy", X + 0.2, B, "%", "b", "disk busy"),
        Series("bytes", X, TOTAL, "B", "", "bytes"),
    ]
)


def series_of(expression: str) -> list[Series]:
    return derived(SERIES, "n", expression).series


def values_of(expression: str) -> np.ndarray:
    (series,) = series_of(expression)
    return series.y


def test_each_function_agrees_with_numpy() -> None:
    assert np.allclose(values_of("sum(disk_busy)"), A + B)
    assert np.allclose(values_of("mean(disk_busy)"), (A + B) / 2)
    assert np.allclose(values_of("min(disk_busy)"), np.minimum(A, B))
    assert np.allclose(values_of("max(disk_busy)"), np.maximum(A, B))
    assert np.allclose(values_of("rate(bytes)"), np.diff(TOTAL))
    assert np.allclose(values_of("delta(bytes)"), np.diff(TOTAL))
    assert np.allclose(values_of('ratio("disk a busy", "disk b busy")'), A / B)
    assert np.allclose(values_of("abs(disk_busy{a} - 50)"), np.abs(A - 50))
    assert np.allclose(
        values_of("moving_mean(bytes, 3)")[2:], np.convolve(TOTAL, np.ones(3) / 3, "valid")
    )
    assert np.allclose(values_of("join(bytes, disk_busy{a})"), A)
    # at t the last value of b, whose points are 0.2 s later, is that of t - 0.8
    last = values_of("join(bytes, disk_busy{b}, last)")
    assert np.isnan(last[0])
    assert np.allclose(last[1:], B[:-1])
    assert np.isnan(values_of("join(bytes, disk_busy{b}, exact)")).all()
    assert np.allclose(values_of("-disk_busy{a} * 2 / (1 + 3) - -1"), -A / 2 + 1)
    of_one = Recorded([Series("r vda", X, TOTAL, "1", "vda 0.000131072", "r")])
    (middle,) = derived(of_one, "n", "quantile(0.5, r)").series
    assert np.allclose(middle.y, (122_880e-9 + 131_072e-9) / 2)  # all in the middle of one bucket
    assert set(FUNCTIONS) == set(
        "sum mean min max rate delta ratio join moving_mean abs quantile".split()
    ), "a function is not tested above"


CPUS = Recorded(
    [
        Series(
            f"node_cpu_seconds_total {cpu} n1 {mode}",
            X,
            TOTAL * (1 + cpu) + k,
            "s",
            f"{cpu} n1 {mode}",
            "node_cpu_seconds_total",
            labels={"cpu": str(cpu), "instance": "n1", "mode": mode},
        )
        for cpu in range(2)
        for k, mode in enumerate(("idle", "iowait", "user"))
    ]
)


@pytest.mark.parametrize(
    ("expression", "nodes"),
    [
        ('node_cpu_seconds_total{mode="idle"}', ["0 n1 idle", "1 n1 idle"]),
        ("node_cpu_seconds_total{idle}", ["0 n1 idle", "1 n1 idle"]),
        ('{mode="idle", cpu="0"}', ["0 n1 idle"]),
        ('node_cpu_seconds_total{mode=~"i.*",cpu!="1"}', ["0 n1 idle", "0 n1 iowait"]),
        ('node_cpu_seconds_total{mode!~"i.*", cpu=1}', ["1 n1 user"]),
        ('node_cpu_seconds_total{rack=""} + 0', [s.node for s in CPUS.series]),
        ("sum by (mode) (node_cpu_seconds_total)", ["idle", "iowait", "user"]),
        (
            "sum(rate(node_cpu_seconds_total)) by (cpu, mode)",
            [f"{c} {m}" for c in (0, 1) for m in ("idle", "iowait", "user")],
        ),
        ("max by (instance)(node_cpu_seconds_total)", ["n1"]),
    ],
)
def test_series_are_selected_and_summed_by_labels(expression: str, nodes: list[str]) -> None:
    assert [s.node for s in derived(CPUS, "n", expression).series] == nodes


@pytest.mark.parametrize(
    ("matcher", "paths"),
    [
        (r'path=~"/a\\.b"', ["/a.b"]),
        (r'path=~"/a\.b"', ["/a.b"]),
        (r'path!~"/a\\.b"', ["/aXb", "\n"]),
        (r'path="\n"', ["\n"]),
    ],
)
def test_escapes_of_matchers_are_those_of_prometheus(matcher: str, paths: list[str]) -> None:
    texts = ("/a.b", "/aXb", "\n")
    every = [Series(f"m {p}", X, TOTAL, node=p, quantity="m", labels={"path": p}) for p in texts]
    chosen = derived(Recorded(every), "n", f"m{{{matcher}}}").series
    assert [s.labels["path"] for s in chosen] == paths


def test_a_sum_by_label_is_that_of_its_series() -> None:
    idle, iowait, user = derived(CPUS, "n", "sum by (mode) (node_cpu_seconds_total)").series
    for k, total in enumerate((idle, iowait, user)):
        assert np.allclose(total.y, TOTAL * 3 + 2 * k)
    # the sums have this label, too
    selected = derived(Recorded([idle, iowait, user]), "m", 'n{mode="user"}').series
    assert [s.name for s in selected] == ["m user"]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            'node_cpu_seconds_total{mode="nope"}',
            'expected one of cpu="0", instance="n1", mode="idle"',
        ),
        ("node_cpu_seconds_total{mode=}", 'expected LABEL="VALUE"'),
        ('node_cpu_seconds_total{mode=~"("}', "expected a regular expression"),
        ("node_cpu_second_total", "expected one like node_cpu_seconds_total"),
        ("cpu_seconds{idle}", "expected one like node_cpu_seconds_total"),
        ("sum by (rack) (node_cpu_seconds_total)", "found no label rack; expected one of cpu"),
        ("sum by mode (node_cpu_seconds_total)", "expected labels in ( )"),
        ("rate by (mode) (node_cpu_seconds_total)", "found no series rate"),
    ],
)
def test_missing_labels_are_refused(expression: str, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        derived(CPUS, "n", expression)
    assert message in str(refusal.value)


def test_operations_match_nodes_and_derive_units() -> None:
    shares = series_of("disk_busy / 100")
    assert [(s.name, s.node, s.unit) for s in shares] == [("n a", "a", "%"), ("n b", "b", "%")]
    assert [s.unit for s in series_of("bytes / disk_busy")] == ["B/%", "B/%"]
    assert series_of("disk_busy / disk_busy")[1].unit == ""
    assert np.allclose(series_of("disk_busy / disk_busy")[1].y, 1)
    assert series_of("rate(bytes)")[0].unit == "B/s"
    assert series_of("bytes * bytes")[0].unit == "B·B"


def test_missing_values_stay_missing() -> None:
    holes = Recorded(
        [
            Series("a", X, np.where(X == 5, np.nan, 1.0), "", "", "a"),
            Series("b", X[:10], np.arange(10.0), "", "", "b"),
            Series("c", X, np.where(X < 10, X, X - 10), "B", "", "c"),
        ]
    )
    (total,) = derived(holes, "n", "sum(a, b)").series
    assert np.isnan(total.y[5])
    assert np.isnan(total.y[10:]).all()
    assert np.isnan(derived(holes, "n", "a / b").series[0].y[0])
    # a counter that decreases was reset: no negative rate
    rate = derived(holes, "n", "rate(c)").series[0].y
    assert np.isnan(rate[9])
    assert (rate[~np.isnan(rate)] >= 0).all()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("__import__('os')", "found \"'os')\""),
        ("1 +", "found the end"),
        ("2 * 3", "found a number"),
        ("nothing", "found no series nothing; expected one of disk busy, bytes"),
        ("disk_busy{c}", "found no series disk_busy{c}; expected one of"),
        ("eval(bytes)", "expected a function: sum"),
        ("bytes + disk_busy", "expected values of one unit"),
        ("sum(bytes, disk_busy)", "found units"),
        ("moving_mean(bytes)", "expected a series and seconds"),
        ("moving_mean(bytes, 0)", "expected more than 0"),
        ("rate(2)", "expected 1 series"),
        ("(bytes", "expected a )"),
        ("bytes)", "expected the end"),
        ("(" * 60 + "bytes" + ")" * 60, "brackets"),
        ("+".join(["bytes"] * 300), "fewer than 400 words"),
        ("bytes" + " " * 3000 + "+ 1", "characters"),
        ("bytes; import os", "found '; import os'"),
    ],
)
def test_invalid_expressions_are_refused(expression: str, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        series_of(expression)
    assert message in str(refusal.value)


# ---------------------------------------------------------------- stored with the recorded series


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    monkeypatch.chdir(tmp_path)
    return own_store(tmp_path, monkeypatch)


def test_metrics_are_listed_and_similar_names_suggested(
    store: Experiments,
) -> None:
    times = np.arange(30.0)
    both = {("disk_busy", "n1"): (times, times), ("disk_busy", "n2"): (times, times)}
    made(store, "x", {**both, ("load", ""): (times, times)}, lasted_s=30)
    output = penstock("monitor", "get", "x").stdout
    assert [line.split() for line in output.splitlines()] == [
        ["metric", "unit", "series", "points", "labels"],
        ["disk_busy", "B/s", "2", "60", "node=n1,n2"],
        ["load", "B/s", "1", "30"],
    ]
    (first, _) = json.loads(penstock("monitor", "get", "x", "--json").stdout)["metrics"]
    assert first["labels"] == {"node": ["n1", "n2"]}
    assert "did you mean 'disk_busy'?" in refused("monitor", "get", "x", "-m", "disk_bussy")
    assert "expected one like disk_busy n1 or disk_busy n2" in refused(
        "plot", "x", "lines", "-s", "disk_bussy n1"
    )
    assert "expected which one" in refused("monitor", "get", "x", "--label", "node")
    chosen = ("plot", "x", "lines", "-s", 'disk_busy{node="n2"}', "-o", "fig.svg")
    assert penstock(*chosen).exit_code == 0
    assert set(pd.read_csv("fig.data.csv")["series"]) == {"disk_busy n2"}


def test_json_of_texts_truth_values_and_long_integers(store: Experiments) -> None:
    values = {"text": ["1.10", "x, y"], "boolean": [True, False], "integer": [2**53 + 1, 7]}
    running = store.start("x", local_user(), at_ns=T0)
    for number, (kind, column) in enumerate(values.items()):
        table = points(metric=kind, utc_ns=[T0, T0 + 10**9], **{kind: column})
        store.sink(running).write(Batch("test", number, table))
    store.stop(running, at_ns=T0 + 2 * 10**9)
    for kind, column in values.items():
        result = penstock("monitor", "get", "x", "-m", kind, "--type", "duration", "--json")
        answer = json.loads(result.stdout)
        assert answer["columns"] == ["duration", kind]
        assert answer["rows"] == [[0.0, column[0]], [1.0, column[1]]]
        assert [type(value) for _, value in answer["rows"]] in ([str] * 2, [bool] * 2, [int, float])
    none = made(store, "y", {("m", ""): ([0.0], [1.0])}, phases={"late": (10, 20)})
    assert none.phases
    result = penstock("monitor", "get", "y", "-m", "m", "--phase", "late", "--json")
    assert json.loads(result.stdout)["columns"] == ["timestamp", "m"]
    assert json.loads(result.stdout)["rows"] == []


def test_a_complete_series_is_plotted_despite_a_partial_one(store: Experiments) -> None:
    times = np.arange(30.0)
    gap = np.concatenate([times[:5], times[20:]])
    made(store, "x", {("load", ""): (times, times), ("busy", ""): (gap, gap)}, lasted_s=30)
    plot = ("plot", "x", "lines", "-o", "fig.svg")
    assert penstock(*plot, "-s", "load").exit_code == 0
    assert "busy (partial, 15 of 30 points)" in refused(*plot, "-s", "load", "-s", "b*")
    assert "found partial data" in refused(*plot)
    assert penstock(*plot, "--partial").exit_code == 0


@pytest.mark.parametrize(
    ("stored", "expected", "gap_s", "expected_verdict"),
    [
        (17, 18, 2, "complete"),
        (9, 10, 2, "complete"),
        (8, 9, 2, "partial"),
        (16, 18, 2, "partial"),
        (17, 18, 6, "partial"),
        (990, 1000, 2, "complete"),
    ],
)
def test_one_point_of_ten_may_be_missing(
    stored: int, expected: int, gap_s: int, expected_verdict: str
) -> None:
    assert verdict(stored, expected, gap_s * 10**9, 10**9, 1) == expected_verdict


def test_a_derived_series_is_stored_with_its_expression(store: Experiments) -> None:
    times = np.arange(30.0)
    series = {("m", "n1"): (times, times), ("m", "n2"): (times, 2 * times)}
    run = made(store, "x", series, phases={"late": (10, 20)}, lasted_s=30)
    assert penstock("monitor", "derive", "x", "total=sum(m)").exit_code == 0
    assert penstock("monitor", "derive", "x", "half = total / 2", "--unit", "B/s").exit_code == 0
    table = Bundle.open(run.path).table("derived").to_pandas()
    assert set(table["expression"]) == {"sum(m)", "total / 2"}
    exported = penstock("monitor", "get", "x", "-m", "half", "--type", "duration", "-o", "half.csv")
    assert exported.exit_code == 0, exported.output
    frame = pd.read_csv("half.csv")
    assert frame["half"].tolist() == (1.5 * times).tolist()
    assert frame["duration"].tolist() == times.tolist()
    # the recorded series are unchanged
    penstock("monitor", "get", "x", "-m", "m", "--label", "node", "-o", "m.csv")
    assert pd.read_csv("m.csv")["n2"].tolist() == (2 * times).tolist()
    # a repeated name replaces the series, which cannot refer to itself
    assert penstock("monitor", "derive", "x", "total=max(m)").exit_code == 0
    assert "no series total" in refused("monitor", "derive", "x", "total=total + 1")
    assert "that of a recorded series" in refused("monitor", "derive", "x", "m=sum(m)")
    assert "expected NAME=EXPRESSION" in refused("monitor", "derive", "x", "sum(m)")
    # values that are not finite are not stored
    assert "none: 0 points" in penstock("monitor", "derive", "x", "none = total / 0").output
    # figures and comparisons include it
    result = penstock("plot", "x", "lines", "-s", "half", "-o", "fig.svg", "--phase", "late")
    assert result.exit_code == 0, result.output
    plotted = pd.read_csv("fig.data.csv")
    assert plotted["y"].tolist() == [15 + 1.5 * k for k in range(11)]
    # exports include it
    penstock("export", "x", "x.tar.zst")
    penstock("import", "x.tar.zst")
    assert (Path("x.1") / "csv" / "derived.csv").is_file()
    assert (
        "total"
        in json.loads(penstock("compare", "x", "x.1", "-m", "total", "--json").stdout)["rows"][0][
            "metric"
        ]
    )


def test_points_outside_of_an_experiment_are_in_no_figure(store: Experiments) -> None:
    """Fails if a point of another clock is drawn, or in a mean."""
    times = np.array([-1.0, 0.0, 1.0, 2.0, 3600.0])
    made(store, "x", {("m", ""): (times, np.array([100.0, 1.0, 2.0, 3.0, 100.0]))}, lasted_s=10)
    assert penstock(*"plot x lines -s m --partial -o fig.svg".split()).exit_code == 0
    assert pd.read_csv("fig.data.csv")["y"].tolist() == [1.0, 2.0, 3.0]


def test_several_results_for_one_node_are_not_stored_as_one(store: Experiments) -> None:
    times = np.arange(30.0)
    made(
        store,
        "x",
        {("disk_reads", "n1"): (times, times), ("disk_writes", "n1"): (times, 2 * times)},
    )
    message = "d: found 2 series of n1; expected one, such as their sum"
    assert message in refused("monitor", "derive", "x", 'd=rate("disk_*")')
    assert penstock("monitor", "derive", "x", 'd=rate(sum("disk_*"))').exit_code == 0


def test_a_running_experiment_has_no_derived_series(store: Experiments) -> None:
    from penstock.archive.catalogue import local_user

    store.start("going", local_user())
    assert "going#1, which is running" in refused("monitor", "derive", "going", "a=b")


# ---------------------------------------------------------------- on common times


def test_values_of_a_grid() -> None:
    s = Recorded([Series("a", np.array([0.1, 0.9, 1.4, 2.1, 5.2]), np.array([1.0, 2, 3, 4, 5]))])

    def grid(value: str) -> list[float]:
        (series,) = on_grid(s, 1.0, value).series
        assert series.x.tolist() == [0, 1, 2, 3, 4, 5]
        return series.y.tolist()

    nan = float("nan")
    for value, expected in {
        "nearest": [1, 2, 4, nan, nan, 5],
        "last": [nan, 2, 3, 4, 4, 4],
        "mean": [1, 2.5, 4, nan, nan, 5],
        "sum": [1, 5, 4, nan, nan, 5],
        "count": [1, 2, 1, nan, nan, 1],
        "max": [1, 3, 4, nan, nan, 5],
        "min": [1, 2, 4, nan, nan, 5],
        "median": [1, 2.5, 4, nan, nan, 5],
    }.items():
        assert np.array_equal(grid(value), expected, equal_nan=True), value
    with pytest.raises(BadInput, match="expected one of nearest"):
        on_grid(s, 1.0, "eval")
    with pytest.raises(BadInput, match="more than 0"):
        on_grid(s, 0.0)
    with pytest.raises(BadInput, match="at most"):
        on_grid(s, 1e-9)


def test_plot_resamples_derives_and_aligns(tmp_path: Path, store: Experiments) -> None:
    text = io.StringIO()
    pd.DataFrame({"time": np.arange(0, 10, 0.5), "a": np.arange(20.0), "b": 2.0}).to_csv(
        text, index=False
    )
    Path("f.csv").write_text(text.getvalue())
    result = penstock(
        *"plot f.csv lines --derive c=a*b -s c --step 2 --value mean -o fig.svg".split()
    )
    assert result.exit_code == 0, result.output
    plotted = pd.read_csv("fig.data.csv")
    assert plotted["x"].tolist() == [0, 2, 4, 6, 8, 10]
    # at 2 the mean of those at 1, 1.5, 2, 2.5 s: a = 2, 3, 4, 5
    assert plotted["y"].tolist()[1] == 7
    for number in range(2):
        times = np.arange(40.0)
        made(
            store,
            "x",
            {("m", ""): (times, np.where(times < 10 + number, 0.0, 1.0))},
            phases={"load": (10.0 + number, 20.0)},
            lasted_s=40,
        )
    result = penstock(*"plot x#* bands --align load -o bands.svg".split())
    assert result.exit_code == 0, result.output
    plotted = pd.read_csv("bands.data.csv")
    # aligned at the load, both step up at 0
    assert (plotted[plotted["x"] < 0]["y"] == 0).all()
    assert (plotted[plotted["x"] >= 0]["y"] == 1).all()
    assert set(plotted["run"]) == {"x#1", "x#2"}
    assert json.loads(Path("bands.json").read_text())["align"] == "load"
    assert "--align: found f.csv" in refused(*"plot f.csv lines --align load".split())
