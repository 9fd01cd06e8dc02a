"""Utilisations: their formulas, the published example to 1e-9, counter resets, the spool."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.errors import PenstockError
from penstock.observe.sampler.formulas import (
    STATES,
    cpu_percent,
    disk_percent,
    disk_percent_of_time,
    network_percent,
)
from penstock.observe.sampler.samples import SAMPLE_DTYPE, SAMPLES_SCHEMA, read_samples
from penstock.observe.sampler.utilisation import utilisation

Row = tuple[int, str, str, str, str, float, bool]

# Δ(user, nice, system, idle, iowait, irq, softirq, steal) in ticks of 1/100 s on 4 processors
TICKS = dict(zip(STATES, (120, 10, 60, 150, 50, 0, 5, 5), strict=True))
GIGABIT = 1e9 / 8


def table(rows: list[Row]) -> pa.Table:
    frame = pd.DataFrame(rows, columns=SAMPLES_SCHEMA.names)
    return pa.Table.from_pandas(frame, schema=SAMPLES_SCHEMA, preserve_index=False)


def oracle_samples(base: float = 1000.0) -> list[Row]:
    """Two samples one second apart with the differences of the example."""
    rows: list[Row] = []
    for second in (0, 1):
        t = 5_000_000_000 + second * 1_000_000_000
        for state in STATES:
            ticks = base + second * TICKS[state]
            rows.append((t, "cpu", "all", state, "s", ticks / 100, True))
        for cpu in range(4):
            rows.append((t, "cpu", f"cpu{cpu}", "user", "s", 1.0, True))
        rows.append((t, "disk", "vda", "io_time", "ms", base + second * 370, True))
        rows.append((t, "network", "eth0", "sent_bytes", "B", base + second * 20e6, True))
        rows.append((t, "network", "eth0", "received_bytes", "B", base + second * 30e6, True))
        rows.append((t, "emulated_disk", "data", "busy", "ns", base + second * 0.25e9, True))
        rows.append((t, "cgroup", "run", "cpu_time", "ns", base + second * 1e9, True))
    return rows


def values(result: pa.Table) -> dict[tuple[str, str, str], float]:
    return {
        (r["kind"], r["entity"], r["metric"]): r["value"]
        for r in result.to_pylist()
        if r["value"] is not None
    }


def test_oracle_formulas() -> None:
    assert cpu_percent(TICKS) == pytest.approx(50.0, abs=1e-9)
    assert disk_percent(370, sum(TICKS.values()), 100, 4) == pytest.approx(37.0, abs=1e-9)
    assert disk_percent_of_time(370, 1.0) == pytest.approx(37.0, abs=1e-9)
    both, out, into = network_percent(20e6, 30e6, GIGABIT, 1.0)
    assert (both, out, into) == pytest.approx((40.0, 16.0, 24.0), abs=1e-9)


@pytest.mark.parametrize("base", [0.0, 1000.0, 987_654_321.0])
def test_oracle_through_the_table(base: float) -> None:
    by_metric = values(utilisation(table(oracle_samples(base)), hz=100, link_bps={"eth0": GIGABIT}))
    expected = {
        ("cpu", "all", "busy"): 50.0,
        ("disk", "vda", "busy"): 37.0,
        ("disk", "vda", "busy_of_time"): 37.0,
        ("network", "eth0", "used"): 40.0,
        ("network", "eth0", "used_out"): 16.0,
        ("network", "eth0", "used_in"): 24.0,
        ("emulated_disk", "data", "busy"): 25.0,
        ("cgroup_cpu", "run", "busy"): 25.0,  # one second of four processors
    }
    for key, value in expected.items():
        assert by_metric[key] == pytest.approx(value, abs=1e-9), key


def test_stolen_time_and_waiting_for_a_processor() -> None:
    rows = oracle_samples()
    for second in (0, 1):
        t = 5_000_000_000 + second * 1_000_000_000
        rows.append((t, "psi", "host", "cpu_some", "us", 7e6 + second * 250_000, True))
    by_metric = values(utilisation(table(rows), hz=100, cpus=4))
    assert by_metric["cpu", "all", "stolen"] == pytest.approx(100 * 5 / 400)
    assert by_metric["cpu", "all", "waited_for"] == pytest.approx(25.0)


def test_full_duplex_reaches_200_percent() -> None:
    both, _, _ = network_percent(GIGABIT, GIGABIT, GIGABIT, 1.0)
    assert both == pytest.approx(200.0)


def test_a_counter_that_goes_backwards_gives_an_empty_cell_and_a_mark() -> None:
    rows = oracle_samples(1e6)
    backwards = [
        (t + 2_000_000_000 * (t > 5_000_000_000), s, e, m, u, (v if m != "io_time" else 10.0), c)
        for t, s, e, m, u, v, c in oracle_samples(2e6)
        if t > 5_000_000_000
    ]
    later = [(t + 1_000_000_000, s, e, m, u, v + 1.0, c) for t, s, e, m, u, v, c in backwards]
    result = utilisation(table(rows + backwards + later), hz=100).to_pandas()
    disk = result[(result.kind == "disk") & (result.metric == "busy_of_time")].sort_values("t_ns")
    assert list(disk.reset) == [False, True, False]
    assert np.isnan(disk.value.iloc[1])
    assert (result.value.dropna() >= 0).all()
    assert not result[result.kind == "network"].reset.any()


def test_interfaces_without_a_known_speed_get_rates_only() -> None:
    by_metric = values(utilisation(table(oracle_samples()), hz=100))
    assert by_metric["network", "eth0", "send_rate"] == pytest.approx(20e6)
    assert not any(metric.startswith("used") for _, _, metric in by_metric)


def test_no_samples_no_rows() -> None:
    assert utilisation(SAMPLES_SCHEMA.empty_table()).num_rows == 0
    first_sample = [r for r in oracle_samples() if r[0] == 5_000_000_000]
    assert utilisation(table(first_sample)).num_rows == 0


def spooled(path: Path, names: list[str], records: list[tuple[int, int, float]]) -> Path:
    spool = path / "samples.spool"
    np.array(records, dtype=SAMPLE_DTYPE).tofile(spool)
    lines = [
        {
            "series": n,
            "source": "cpu",
            "entity": "all",
            "metric": m,
            "unit": "s",
            "cumulative": True,
        }
        for n, m in enumerate(names)
    ]
    Path(f"{spool}.series").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return spool


def test_a_spool_becomes_a_table_and_its_torn_tail_is_dropped(tmp_path: Path) -> None:
    spool = spooled(tmp_path, ["user", "idle"], [(5, 0, 1.5), (5, 1, 2.5), (6, 0, 3.5)])
    with open(spool, "ab") as file:
        file.write(b"torn by a crash")
    samples = read_samples(spool)
    assert samples.schema == SAMPLES_SCHEMA
    assert samples.select(["t_ns", "metric", "value"]).to_pydict() == {
        "t_ns": [5, 5, 6],
        "metric": ["user", "idle", "user"],
        "value": [1.5, 2.5, 3.5],
    }


def test_a_record_without_a_name_is_refused(tmp_path: Path) -> None:
    spool = spooled(tmp_path, ["user"], [(5, 1, 1.0)])
    with pytest.raises(PenstockError, match="does not name series 1"):
        read_samples(spool)


#: metrics computed from each counter
COMPUTED = {
    ("disk", "io_time"): {"busy", "busy_of_time"},
    ("disk", "queue_time"): {"queue_depth"},
    ("disk", "read_bytes"): {"read_rate"},
    ("disk", "writes"): {"write_operations"},
    ("network", "received_bytes"): {"receive_rate", "used", "used_in"},
    ("network", "sent_bytes"): {"send_rate", "used", "used_out"},
    ("emulated_disk", "busy"): {"busy"},
    ("emulated_disk", "written_bytes"): {"write_rate"},
}


@pytest.mark.parametrize(("source", "counter"), COMPUTED)
def test_a_counter_reset_empties_only_its_own_metrics(source: str, counter: str) -> None:
    """Fails if a reset of one counter of an interface empties the rate of the other."""
    counters = {
        "disk": ["io_time", "queue_time", "read_bytes", "written_bytes", "reads", "writes"],
        "network": ["sent_bytes", "received_bytes"],
        "emulated_disk": ["busy", "queue_time", "read_bytes", "written_bytes", "reads", "writes"],
    }
    entity = {"disk": "vda", "network": "eth0", "emulated_disk": "data"}[source]
    rows = [r for r in oracle_samples(1e6) if (r[1], r[2]) != (source, entity)]
    for second in (0, 1):
        t = 5_000_000_000 + second * 1_000_000_000
        for name in counters[source]:
            was_reset = second and name == counter
            rows.append((t, source, entity, name, "B", 10.0 if was_reset else 1e6 + second, True))
    result = utilisation(table(rows), hz=100, link_bps={"eth0": GIGABIT}).to_pandas()
    entity_rows = result[(result.kind == source) & (result.entity == entity)]
    empty = COMPUTED[source, counter]
    assert set(entity_rows[entity_rows.value.isna()].metric) == empty
    assert set(entity_rows[entity_rows.reset].metric) == empty
    assert len(entity_rows) > len(empty)
    other_rows = result[(result.kind != source) | (result.entity != entity)]
    assert not other_rows.reset.any()
