"""Alert rules: syntax, the evaluator against a reference, live values against tables."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput
from penstock.observe.sampler.alerts import Evaluator, judged, of_bundle, recorded_values
from penstock.observe.sampler.formulas import STATES
from penstock.observe.sampler.samples import SAMPLE_DTYPE, read_samples
from penstock.observe.sampler.spool_reader import Follower, Values
from penstock.observe.sampler.utilisation import utilisation
from penstock.parts.monitoring.cli.monitor import app as monitor
from penstock.spec.alert import METRICS, Rule, parse_rule
from penstock.study.load import load_study

SECOND = 1_000_000_000


def test_a_rule_is_read_with_its_unit_and_time() -> None:
    rule = parse_rule("emulated_disk_read_rate{entity=db*}>=100 MiB/s  for 2min then abort")
    assert (rule.comparison, rule.threshold, rule.unit) == (">=", 100 * 2**20, "B/s")
    assert (rule.lasting_s, rule.action, rule.labels) == (120.0, "abort", {"entity": "db*"})
    assert parse_rule("memory_available < 1GiB").threshold == 2**30
    assert parse_rule("block_latency_read_p99 > 20ms").threshold == pytest.approx(0.02)
    assert parse_rule("disk_queue_depth > 8").lasting_s == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("disk_busy", "METRIC > VALUE"),
        ("disk_busy > 90", "a threshold in %"),
        ("disk_busy > 90 MB", "a threshold in %"),
        ("disk_read_rate > 90 MB", "a threshold in B/s"),
        ("disc_busy > 90%", "a metric of the monitor: cpu_busy"),
        ("disk_busy > 90% for 5", "`for` and a duration"),
        ("disk_busy > 90% then stop", "`then note` or `then abort`"),
        ("disk_busy{disk=vda} > 90%", "labels such as"),
        ("disk_queue_depth > nan", "a threshold in 1"),
        ("disk_busy > 90% " + "x" * 1000, "METRIC > VALUE"),
    ],
)
def test_invalid_rules_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_rule(text)


def one_by_one(rule: Rule, t: list[int], values: list[float], gap_ns: int) -> list[tuple[int, ...]]:
    """Reference evaluation, one sample at a time: since, fired, until."""
    fires: list[list[int]] = []
    since: int | None = None
    fired: list[int] | None = None
    for index, (now, value) in enumerate(zip(t, values, strict=True)):
        if index and now - t[index - 1] > gap_ns:
            since = fired = None
        if not value > rule.threshold:  # an empty value satisfies no rule
            since = fired = None
            continue
        since = now if since is None else since
        if fired is not None:
            fired[2] = now
        elif now - since >= round(rule.lasting_s * 1e9):
            fired = [since, now, now]
            fires.append(fired)
    return [tuple(f) for f in fires]


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 1, 2, 9]), st.sampled_from([0.0, 95.0, 99.0, np.nan])),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 4),
    st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_rules_fire_as_in_the_reference_for_any_batches(
    steps: list[tuple[int, float]], lasting: int, cuts: list[int]
) -> None:
    rule = parse_rule(f"disk_busy > 90% for {lasting}s")
    t = np.cumsum([step for step, _ in steps]) * SECOND
    values = np.array([value for _, value in steps])
    expected = one_by_one(rule, t.tolist(), values.tolist(), 5 * SECOND)
    at_once, parts = Evaluator([rule], SECOND), Evaluator([rule], SECOND)
    at_once.feed([Values("disk_busy", "vda", t, values)])
    start = 0
    for size in [*cuts, len(t)]:
        parts.feed(
            [Values("disk_busy", "vda", t[start : start + size], values[start : start + size])]
        )
        start += size
    for evaluator in (at_once, parts):
        assert [(s.since_ns, s.fired_ns, s.until_ns) for s in evaluator.stretches] == expected
    assert [s.worst for s in at_once.stretches] == [s.worst for s in parts.stretches]


def test_labels_select_entities_of_one_metric() -> None:
    evaluator = Evaluator([parse_rule("disk_busy{entity=vd*} > 90%")], SECOND)
    t, high = np.array([SECOND]), np.array([99.0])
    evaluator.feed([Values("disk_busy", "sda", t, high), Values("cpu_busy", "vda", t, high)])
    assert not evaluator.stretches
    evaluator.feed([Values("disk_busy", "vda", t, high)])
    assert [s.summary for s in evaluator.stretches] == [
        "disk_busy{entity=vd*} > 90%: disk_busy of vda was 99 %"
    ]


STUDY = """
penstock: 1
name: watched
question: Does it get hot?
factors: {word: {levels: [a, b]}}
platform: {nodes: [{name: here}]}
workload: {command: "echo {word}"}
responses: {wall: {from: wall_s, unit: s, better: lower}}
"""


def test_errors_in_rules_of_a_study_have_positions(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        STUDY + "alerts:\n  - cpu_busy > 90% for 1s then abort\n  - memory_free < 1 GB\n"
    )
    assert [r.action for r in load_study(path).alerts] == ["abort", "note"]
    path.write_text(STUDY + "alerts:\n  - cpu_busy > 90%\n  - cpu_bsy > 90%\n  - disk_busy > 5 B\n")
    with pytest.raises(BadInput) as caught:
        load_study(path)
    assert [(m.line, m.column) for m in caught.value.mistakes] == [(11, 5), (12, 5)]
    path.write_text(STUDY + "observers: {monitor: null}\nalerts: [cpu_busy > 90%]\n")
    with pytest.raises(BadInput, match=r"alerts without a monitor; expected observers\.monitor"):
        load_study(path)


def planted_spool(place: Path, ticks: int = 40) -> Path:
    """A spool of the sampler: disks, processors, an interface, a group; one counter resets."""
    spool = place / "samples.spool"
    rng = np.random.default_rng(7)
    names: list[tuple[str, str, str, str, bool]] = [
        ("cpu", e, s, "s", True) for e in ("all", "cpu0", "cpu1") for s in STATES
    ]
    counters = ("io_time", "queue_time", "read_bytes", "written_bytes", "reads", "writes")
    names += [("disk", e, c, "ms", True) for e in ("vda", "vdb") for c in counters]
    names += [("emulated_disk", "db.data", c, "ns", True) for c in ("busy", *counters[1:])]
    names += [("block_latency", "all", "lost", "1", True)]
    names += [
        ("block_latency", f"{disk}{at}", metric, unit, True)
        for disk in ("vda", "vdb")
        for metric, at, unit in (
            ("read_requests", " le=0.000131072", "1"),
            ("read_requests", " le=0.016777216", "1"),
            ("read_time", "", "ns"),
            ("read_queued", " le=0.000001024", "1"),
            ("read_queue_time", "", "ns"),
        )
    ]
    names += [("network", "eth0", c, "B", True) for c in ("sent_bytes", "received_bytes")]
    names += [("cgroup", "run", "cpu_time", "ns", True), ("cgroup", "run", "memory", "B", False)]
    names += [("psi", "host", "cpu_some", "us", True), ("memory", "host", "available", "B", False)]
    values = np.zeros(len(names))
    records = []
    for tick in range(ticks):
        for series, (_, entity, metric, _, cumulative) in enumerate(names):
            step = float(rng.integers(0, 1000))
            values[series] = values[series] + step if cumulative else step
            if entity.startswith("vdb") and tick == 20:
                values[series] = 0.0
            if metric in ("read_bytes", "sent_bytes") and tick == 30:  # and no other counter
                values[series] = 0.0
            records.append(((tick + 1) * SECOND, series, values[series]))
    np.array(records, SAMPLE_DTYPE).tofile(spool)
    keys = ("source", "entity", "metric", "unit", "cumulative")
    lines = [
        json.dumps({"series": n, **dict(zip(keys, name, strict=True))})
        for n, name in enumerate(names)
    ]
    Path(f"{spool}.series").write_text("".join(f"{line}\n" for line in lines))
    return spool


def as_rows(live: list[Values]) -> dict[tuple[str, str, int], float]:
    return {
        (item.metric, item.entity, int(t)): float(v)
        for item in live
        for t, v in zip(item.t_ns, item.values, strict=True)
    }


@pytest.mark.parametrize("pieces", [1, 7])
def test_values_of_a_growing_spool_are_those_of_the_tables(tmp_path: Path, pieces: int) -> None:
    """Two implementations of the formulas agree: fails if only one of them is changed."""
    spool = planted_spool(tmp_path)
    samples = read_samples(spool)
    links = {"eth0": 1e6}
    expected = as_rows(recorded_values(samples, utilisation(samples, link_bps=links)))
    content = spool.read_bytes()
    grown = tmp_path / "grown.spool"
    Path(f"{grown}.series").write_bytes(Path(f"{spool}.series").read_bytes())
    follower = Follower(grown, links)
    assert follower.look() == []
    live: list[Values] = []
    edges = np.linspace(0, len(content), pieces + 1).astype(int)
    if pieces > 1:  # complete samples, as written; a torn record is read later
        tick = len(content) // 40
        edges = edges // tick * tick
    with open(grown, "ab", buffering=0) as file:
        for low, high in itertools.pairwise(edges):
            file.write(content[low : high - 5])
            file.write(content[high - 5 : high])
            live += follower.look()
    rows = as_rows(live)
    assert rows.keys() == expected.keys()
    for key, value in expected.items():
        assert rows[key] == pytest.approx(value, rel=1e-9, nan_ok=True), key


def test_rules_are_evaluated_on_recorded_runs(tmp_path: Path) -> None:
    """The verb on a bundle: status 3 if a rule fires, else 0; refused without a monitor."""
    samples = read_samples(planted_spool(tmp_path))
    bundle = Bundle.create(tmp_path / "run", {"run_id": "r001", "valid": True})
    bundle.write_table("samples", samples)
    bundle.write_table("utilisation", utilisation(samples))
    bundle.manifest["receipts"] = {"monitor": {"used_ns": SECOND, "interval_ns": SECOND}}
    path = str(bundle.finish())
    arguments = ["alerts", path, "--json", "--alert"]
    result = CliRunner().invoke(monitor, [*arguments, "cgroup_memory >= 0 B for 10s"])
    assert result.exit_code == 3, result.output
    (row,) = json.loads(result.stdout)["alerts"]
    assert row["fired_ns"] - row["since_ns"] == 10 * SECOND
    assert row["until_ns"] - row["since_ns"] == 39 * SECOND
    assert CliRunner().invoke(monitor, [*arguments, "cgroup_memory > 1 TB"]).exit_code == 0
    plain = Bundle.create(tmp_path / "plain", {"run_id": "r001"}).finish()
    with pytest.raises(BadInput, match="found no samples"):
        of_bundle([], plain)
    (Path(path) / "utilisation.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadInput, match=r"utilisation\.parquet: found .*; expected the table"):
        of_bundle([], Path(path))


def test_every_metric_of_a_utilisation_may_be_in_a_rule(tmp_path: Path) -> None:
    samples = read_samples(planted_spool(tmp_path))
    table = utilisation(samples, link_bps={"eth0": 1e6})
    assert table.num_rows > 0
    for row in table.select(["kind", "metric", "unit"]).to_pylist():
        assert METRICS[f"{row['kind']}_{row['metric']}"] == row["unit"]


def test_a_live_alert_marks_its_row_of_the_table(tmp_path: Path) -> None:
    rule = parse_rule("memory_available >= 0 B then abort")
    samples = read_samples(planted_spool(tmp_path))
    live = Evaluator([rule], SECOND)
    live.feed(recorded_values(samples.slice(0, samples.num_rows // 2), None))
    (seen,) = live.stretches
    seen.aborted = True
    table = judged([rule], SECOND, samples, None, live.stretches).table()
    assert table.num_rows == 1
    assert table["aborted"].to_pylist() == [True]
    from_live = judged([rule], SECOND, None, None, live.stretches).table()
    assert from_live["fired_ns"].to_pylist() == [seen.fired_ns]
    assert isinstance(from_live, pa.Table)
