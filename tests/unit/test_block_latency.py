"""Histograms of block latency: edges, quantiles against exact ones, samples, points, collector."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.archive.series.bucket_series import by_bucket
from penstock.archive.series.expression import derived
from penstock.archive.series.histogram import (
    FIRST_NS,
    LAST_NS,
    WIDTH,
    lower_edges,
    quantiles,
)
from penstock.archive.series.series import Array, Recorded, Series
from penstock.errors import BadInput, PenstockError
from penstock.observe.sampler.latency import with_beginnings
from penstock.observe.sampler.samples import SAMPLES_SCHEMA
from penstock.observe.sampler.utilisation import utilisation
from penstock.parts.monitoring.collectors import block_latency
from penstock.parts.monitoring.collectors.block_latency import BlockLatency
from penstock.parts.monitoring.collectors.collector import Receipt
from penstock.parts.monitoring.experiments.entities import labels_of_entity
from penstock.parts.monitoring.experiments.recorded import recorded
from penstock.parts.monitoring.outbox.sampled import sampled
from penstock.testing import MemorySink, check_collector

SECOND = 1_000_000_000
QS = (0.01, 0.5, 0.9, 0.99, 1.0)
#: eight per octave from 1.024 µs, and the bucket without an end
EDGES_NS = [FIRST_NS] + [
    (9 + part) * 2 ** (octave - 3) for octave in range(10, 36) for part in range(8)
]
EDGES = np.array([*EDGES_NS, np.inf]) / 1e9


def bucket_counts(values_s: Array) -> Array:
    """Number of times in each bucket, the longest included."""
    return np.bincount(np.searchsorted(EDGES, values_s, side="left"), minlength=len(EDGES)).astype(
        float
    )


def test_buckets_meet_and_are_an_eighth_wide_at_most() -> None:
    lower = lower_edges(EDGES)
    assert lower[0] == 0
    assert EDGES_NS[-1] == LAST_NS
    assert np.allclose(lower[1:], EDGES[:-1], rtol=1e-12)
    assert ((EDGES[1:-1] - lower[1:-1]) / lower[1:-1]).max() == pytest.approx(WIDTH)
    # a subset of the buckets has the same lower edges
    assert np.allclose(lower_edges(EDGES[[3, 90, 150]]), lower[[3, 90, 150]])


@pytest.mark.parametrize("edge", [0.005, 1.0, 1e-6, 80.0, 0.000131073])
def test_edges_of_other_histograms_are_refused(edge: float) -> None:
    with pytest.raises(BadInput, match="eight an octave"):
        lower_edges(np.array([edge]))


@pytest.mark.parametrize(("centre_s", "sigma"), [(80e-6, 0.5), (4e-3, 1.2), (0.9, 0.1)])
def test_quantiles_are_within_a_bucket_of_the_exact_ones(centre_s: float, sigma: float) -> None:
    values = np.random.default_rng(3).lognormal(np.log(centre_s), sigma, 5000)
    exact = np.quantile(values, QS, method="inverted_cdf")
    counts = bucket_counts(values)[:, None]
    computed = np.array([quantiles(counts, EDGES, q)[0] for q in QS])
    assert (np.abs(computed - exact) <= WIDTH * exact).all()
    # buckets without a request may be missing
    occupied = counts[:, 0] > 0
    of_occupied = [quantiles(counts[occupied], EDGES[occupied], q)[0] for q in QS]
    assert np.allclose(of_occupied, computed)
    # planted error: requests one octave too low exceed the bound
    moved = [quantiles(np.roll(counts, -8, axis=0), EDGES, q)[0] for q in QS]
    assert (np.abs(moved - exact) > WIDTH * exact).all()


def test_quantiles_of_no_requests_and_of_the_last_bucket() -> None:
    nothing = np.zeros((len(EDGES), 1))
    assert np.isnan(quantiles(nothing, EDGES, 0.5)[0])
    nothing[-1] = 3
    assert quantiles(nothing, EDGES, 0.5)[0] == pytest.approx(LAST_NS / 1e9)


# ---------------------------------------------------------------- samples


def rows_of(counts: list[dict[str, int]], spent_ns: list[int]) -> pa.Table:
    """Samples of vda each second: requests read so far by edge, and the sum of their times."""
    rows: list[tuple[Any, ...]] = []
    for second, (buckets, spent) in enumerate(zip(counts, spent_ns, strict=True)):
        t = (5 + second) * SECOND
        rows.append((t, "block_latency", "all", "lost", "1", 0.0, True))
        for le, number in buckets.items():
            rows.append((t, "block_latency", f"vda le={le}", "read_requests", "1", number, True))
        if spent:
            rows.append((t, "block_latency", "vda", "read_time", "ns", float(spent), True))
    frame = pd.DataFrame(rows, columns=SAMPLES_SCHEMA.names).astype({"value": float})
    return pa.Table.from_pandas(frame, schema=SAMPLES_SCHEMA, preserve_index=False)


FAST, SLOW = "0.000131072", "0.016777216"
SAMPLES = rows_of(
    [{}, {FAST: 90}, {FAST: 90}, {FAST: 180, SLOW: 10}, {FAST: 3, SLOW: 1}],
    [0, 90 * 120_000, 90 * 120_000, 180 * 120_000 + 10 * 16_000_000, 1],
)


def values(table: pa.Table, metric: str) -> list[tuple[int, float | None]]:
    return [
        (r["t_ns"] // SECOND - 5, r["value"])
        for r in table.to_pylist()
        if r["kind"] == "block_latency" and r["metric"] == metric
    ]


def test_each_interval_with_requests_has_its_quantiles() -> None:
    table = utilisation(SAMPLES)
    p50, p99 = values(table, "read_p50"), values(table, "read_p99")
    # no request ended in the second interval; the counters were reset in the last one
    assert [t for t, _ in p50] == [1, 3, 4]
    assert p50[2][1] is None
    assert p99[2][1] is None
    low, high = 122_880e-9, 131_072e-9
    for _, value in p50[:2]:
        assert value is not None
        assert low <= value <= high
    assert p99[0][1] is not None
    assert p99[0][1] <= high
    assert p99[1][1] is not None
    assert 15_728_640e-9 <= p99[1][1] <= 16_777_216e-9
    mean = values(table, "read_mean")
    assert mean[0][1] == pytest.approx(120e-6)
    assert mean[1][1] == pytest.approx((90 * 120e-6 + 10 * 16e-3) / 100)
    assert {(r["entity"], r["unit"]) for r in table.to_pylist()} == {("vda", "s")}


def test_a_bucket_begins_with_zero() -> None:
    completed = with_beginnings(SAMPLES).to_pandas()
    first = completed[completed.entity == f"vda le={SLOW}"].sort_values("t_ns")
    assert first.t_ns.to_list()[0] == 7 * SECOND
    assert first.value.to_list()[:2] == [0.0, 10.0]
    assert len(completed) == SAMPLES.num_rows + 3  # two buckets, and the sum
    without_buckets = SAMPLES.filter(pa.array([e == "all" for e in SAMPLES["entity"].to_pylist()]))
    assert with_beginnings(without_buckets).equals(without_buckets)


def test_points_of_a_command_have_edges_as_labels() -> None:
    table = with_beginnings(SAMPLES)
    batches = sampled({"samples": table, "utilisation": utilisation(table)}, 5, 0)
    result = recorded(batches, 5 * SECOND, 9 * SECOND)
    series = {(r["metric"], r["labels"]): r for r in result.series.to_pylist()}
    slow = series["block_latency_read_requests", f'{{"entity":"vda","le":"{SLOW}"}}']
    # no request in the first half is no loss
    assert (slow["stored"], slow["verdict"], slow["lost"]) == (3, "complete", 0)
    assert series["block_latency_lost", '{"entity":"all"}']["expected"] == 5
    assert ("block_latency_read_p99", '{"entity":"vda"}') in series
    assert result.verdict == "complete"
    assert labels_of_entity("/mnt/a le=b") == '{"entity":"/mnt/a le=b"}'


# ---------------------------------------------------------------- derive, plot


MIDDLE = "0.000262144"
SOME = np.array([float(FAST), float(MIDDLE), float(SLOW)])


def buckets(unit: str) -> Recorded:
    """Requests of three edges for two devices, each second; as counters, or as their rates."""
    rng = np.random.default_rng(8)
    x = np.arange(30.0)
    series = []
    for device in ("vda", "vdb"):
        for edge in (FAST, SLOW, MIDDLE):
            requests = rng.integers(1, 40, len(x)).astype(float)
            times, y, node = x, np.cumsum(requests), f"{device} {edge}"
            if unit == "1/s":
                times, y, node = x[1:], requests[1:], f"{device} le={edge}"
            series.append(Series(f"reads {node}", times, y, unit, node, "block_latency"))
    return Recorded(series)


def test_quantiles_of_a_window_by_derive() -> None:
    of_counters = derived(buckets("1"), "p", "quantile(0.9, block_latency, 10)").series
    assert [(s.node, s.unit) for s in of_counters] == [("vda", "s"), ("vdb", "s")]
    rates = derived(buckets("1/s"), "p", "quantile(0.9, block_latency, 10)").series
    for a, b in zip(of_counters, rates, strict=True):
        assert np.allclose(a.x, b.x)
        assert np.allclose(a.y, b.y)
    # by hand: the requests of the last ten seconds
    by_node = {s.node: s for s in buckets("1").series}
    grown = np.array([by_node[f"vda {e}"].y for e in (FAST, MIDDLE, SLOW)])
    counts = grown[:, 25] - grown[:, 15]
    assert of_counters[0].y[24] == pytest.approx(quantiles(counts[:, None], SOME, 0.9)[0])
    since_last = derived(buckets("1"), "p", "quantile(0.9, block_latency)").series[0]
    counts = grown[:, 12] - grown[:, 11]
    assert since_last.y[11] == pytest.approx(quantiles(counts[:, None], SOME, 0.9)[0])


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("quantile(2, block_latency)", "from 0 to 1"),
        ("quantile(block_latency, 0.9)", "expected a share"),
        ("quantile(0.9, block_latency, 0)", "more than 0"),
        ("quantile(0.9, disk)", "expected buckets"),
        ("quantile(0.9, other)", "eight an octave"),
    ],
)
def test_invalid_quantiles_are_refused(expression: str, message: str) -> None:
    x = np.arange(3.0)
    series = buckets("1").series
    series.append(Series("disk", x, x, "1", "sda1", "disk"))
    series.append(Series("other", x, x, "1", "n1 0.005", "other"))
    with pytest.raises(BadInput, match=message):
        derived(Recorded(series), "p", expression)


def test_a_reset_counter_has_no_quantile() -> None:
    counters = buckets("1")
    counters.series[0].y[12:] -= counters.series[0].y[12] - 1
    quantile = derived(counters, "p", "quantile(0.5, block_latency)").series[0]
    assert np.isnan(quantile.y[11])
    assert np.isfinite(quantile.y[12])


def test_rows_of_a_heat_map_are_in_the_order_of_their_edges() -> None:
    series = buckets("1/s").series
    nodes = [s.node for s in by_bucket(series)]
    assert nodes[:3] == [f"vda le={e}" for e in (SLOW, MIDDLE, FAST)]
    others = [Series("a", series[0].x, series[0].y, "1", n) for n in ("n 2", "n 1")]
    assert by_bucket(others) == others


# ---------------------------------------------------------------- the collector


class Kernel:
    """A replacement for the BPF programs: each reading is the next one of a list."""

    readings: list[list[tuple[Any, ...]]]

    def __init__(self) -> None:
        self.read_so_far = 0

    def read(self) -> tuple[list[tuple[Any, ...]], list[int]]:
        index = min(self.read_so_far, len(self.readings) - 1)
        self.read_so_far += 1
        return self.readings[index], [0, 64 * index, 12_800 * index, 30_000]

    def close(self) -> None:
        self.read_so_far = -1


class Refused:
    def __init__(self) -> None:
        raise RuntimeError("block latency cannot be had: EPERM")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> type[Kernel]:
    class Readings(Kernel):
        pass

    Readings.readings = [
        [],
        [("vda", FAST, "read_requests", "1", 5), ("vda", None, "read_time", "ns", 600_000)],
        [
            ("vda", FAST, "read_requests", "1", 5),
            ("vda", SLOW, "read_requests", "1", 2),
            ("vda", None, "read_time", "ns", 30_600_000),
        ],
    ]
    monkeypatch.setattr(block_latency.native, "BlockLatency", Readings, raising=False)
    return Readings


def test_the_collector_conforms_to_the_protocol(kernel: type[Kernel]) -> None:
    check_collector(BlockLatency, {"interval_s": 0.01})


def test_the_collector_reports_buckets_from_their_first_request(kernel: type[Kernel]) -> None:
    sink = MemorySink()

    async def collect() -> Receipt:
        collector = BlockLatency("latency", {"interval_s": 0.5})
        await collector.start(sink)
        while collector.intake.receipt.batches < 5:
            await asyncio.sleep(0.01)
        receipt = await collector.stop()
        assert receipt.stored == receipt.received > 0
        return receipt

    missed = asyncio.run(collect()).counted["missed"]  # on a busy host
    rows = [r for r in sink.rows("latency") if r["metric"] == "block_latency_read_requests"]
    by_edge: dict[str, list[tuple[int, int]]] = {}
    for r in rows:
        by_edge.setdefault(json.loads(r["labels"])["le"], []).append((r["utc_ns"], r["integer"]))
    assert [v for _, v in by_edge[FAST][:2]] == [0, 5]
    assert [v for _, v in by_edge[SLOW][:2]] == [0, 2]
    assert by_edge[SLOW][0][0] == by_edge[FAST][1][0]
    # no loss before the first request of a bucket
    batches = list(sink.batches.values())
    times = [t for batch in batches for t in batch.points["utc_ns"].to_pylist()]
    result = recorded(batches, min(times), max(times))
    verdicts = {r["verdict"] for r in result.series.to_pylist()}
    assert verdicts <= ({"complete", "partial"} if missed else {"complete"})
    slow = next(r for r in result.series.to_pylist() if f'"{SLOW}"' in r["labels"])
    assert slow["expected"] == slow["stored"] + slow["lost"]
    assert slow["lost"] <= missed


def test_the_collector_reports_refused_bpf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_latency.native, "BlockLatency", Refused, raising=False)
    with pytest.raises(PenstockError, match="latency: block latency cannot be had: EPERM"):
        asyncio.run(BlockLatency("latency", {}).start(MemorySink()))


@pytest.mark.parametrize("settings", [{"interval_s": 0.001}, {"interval_s": "1"}, {"devices": []}])
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="expected"):
        BlockLatency("latency", settings)
