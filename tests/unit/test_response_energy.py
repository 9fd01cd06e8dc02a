"""Energy of a run by the power model: the published example, and mistakes reported before a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Study
from penstock.study.load import read_study
from penstock.workload.measured import IncompleteError
from penstock.workload.responses import measure

S = 10**9
#: start of the workload, after the start of the sampler [s]
BEGIN = 5
STUDY = """penstock: 1
name: watts
question: Which?
factors: {size: {levels: [1, 2]}}
platform: {nodes: [{name: n}]}
workload: {command: "true {size}"}
responses:
  NAME: {from: FROM, unit: UNIT, better: lower}
observers: {monitor: MONITOR}
"""
#: Costa 2014, table 3.5
POWERS = "{idle: 91.6 W, app: 125.2 W, storage: 129.1 W, network: 127.7 W}"


def study(
    source: str = f"{{energy: {POWERS}}}",
    name: str = "modelled_energy",
    unit: str = "J",
    monitor: str = "{}",
) -> Study:
    text = STUDY.replace("NAME", name).replace("FROM", source).replace("UNIT", unit)
    return read_study(text.replace("MONITOR", monitor).encode(), Path("watts.study.yaml"))


def rows(
    kind: str, entity: str, metric: str, value: float, seconds: range
) -> Iterator[dict[str, Any]]:
    """A value in some seconds of the workload, 0 in all others."""
    for second in range(-BEGIN, 65):
        at = (BEGIN + second + 1) * S  # the end of the interval
        level = value if second in seconds else 0.0
        yield {"t_ns": at, "kind": kind, "entity": entity, "metric": metric, "value": level}


def bundle(place: Path, table: list[dict[str, Any]]) -> Bundle:
    """A run whose workload takes 60 s."""
    run_bundle = Bundle.create(place, {"run_id": "r001"})
    phase = {"phase_id": "workload", "start_ns": BEGIN * S, "end_ns": (BEGIN + 60) * S}
    run_bundle.write_table("phases", pa.Table.from_pylist([phase]))
    schema = TABLES["utilisation"].arrow
    complete_rows = [{**dict.fromkeys(schema.names), **row} for row in table]
    run_bundle.write_table("utilisation", pa.Table.from_pylist(complete_rows, schema=schema))
    return run_bundle


def node(name: str, cores: float = 1.0) -> list[dict[str, Any]]:
    """20 s of computing, 10 s of storage, 15 s of network; 0 outside of these."""
    return [
        *rows("cgroup_cpu", name, "cores", cores, range(20)),
        *rows("emulated_disk", f"{name}.data", "busy", 100.0, range(20, 30)),
        *rows("network", f"{name} e0", "used", 100.0, range(30, 45)),
        *rows("network", f"{name} e0", "used_out", 100.0, range(30, 45)),
    ]


def energy(run: Bundle, **changed: str) -> float:
    (response,) = study(**changed).responses
    return measure([response], "none", run.path, "", "", 60.0, run)[response.name].value


def test_the_published_example(tmp_path: Path) -> None:
    table = [row for number in range(10) for row in node(f"n-{number}")]
    assert energy(bundle(tmp_path / "r", table)) == pytest.approx(70_845.0)
    assert energy(bundle(tmp_path / "s", table), unit="Wh") == pytest.approx(70_845 / 3600)


def test_nodes_with_a_common_name_prefix_have_separate_disks(tmp_path: Path) -> None:
    table = [*node("n-1"), *rows("cgroup_cpu", "n-10", "cores", 0.0, range(0))]
    assert energy(bundle(tmp_path / "r", table)) == pytest.approx(7084.5 + 91.6 * 60)


def test_computing_is_a_share_of_the_processors(tmp_path: Path) -> None:
    table = node("n", cores=2.0)
    for processor in ("all", "cpu0", "cpu1", "cpu2", "cpu3"):
        table += rows("cpu", processor, "busy", 50.0, range(60))
    run = bundle(tmp_path / "r", table)
    without_computing = 7084.5 - 20 * (125.2 - 91.6)
    assert energy(run) == pytest.approx(without_computing + 10 * (125.2 - 91.6))
    source = f"{{energy: {POWERS}, processors: 2}}"
    assert energy(run, source=source) == pytest.approx(7084.5)
    # at most all processors
    source = f"{{energy: {POWERS}, processors: 1}}"
    assert energy(run, source=source) == pytest.approx(7084.5)


def test_a_run_without_nodes_is_one_host_with_all_disks(tmp_path: Path) -> None:
    table = [
        *rows("cgroup_cpu", "run", "cores", 1.0, range(20)),
        *rows("emulated_disk", "node1.data", "busy", 100.0, range(20, 30)),
        *rows("emulated_disk", "node1.log", "busy", 50.0, range(25, 35)),
        *rows("network", "eth0", "used", 100.0, range(60)),
    ]
    expected = 91.6 * 60 + 20 * (125.2 - 91.6) + 12.5 * (129.1 - 91.6)
    assert energy(bundle(tmp_path / "r", table)) == pytest.approx(expected)


def test_states_cap_and_proportional_idle_power(tmp_path: Path) -> None:
    run = bundle(tmp_path / "r", node("n"))
    slow = POWERS.replace("}", ", states: [{frequency: 1.2 GHz, app: 109 W}], frequency: 1.2 GHz}")
    assert energy(run, source=f"{{energy: {slow}}}") == pytest.approx(7084.5 - 20 * 16.2)
    capped = POWERS.replace("}", ", peak: 100 W, cap: true}")
    assert energy(run, source=f"{{energy: {capped}}}") == pytest.approx(6000)
    idle = POWERS.replace("}", ", proportional: true}")
    assert energy(run, source=f"{{energy: {idle}}}") == pytest.approx(7084.5 - 15 * 91.6)


def test_gaps_and_missing_samples_do_not_count_as_zero(tmp_path: Path) -> None:
    table = node("n")
    table[30]["value"] = None
    with pytest.raises(IncompleteError, match="found gaps in cgroup_cpu cores of n"):
        energy(bundle(tmp_path / "r", table))
    with pytest.raises(PenstockError, match="found no processor time of the run"):
        energy(bundle(tmp_path / "s", list(rows("cpu", "all", "busy", 1.0, range(60)))))
    without_values = bundle(tmp_path / "u", node("n"))
    without_values.write_table(
        "utilisation", without_values.table("utilisation").drop_columns(["value"])
    )
    with pytest.raises(PenstockError, match="not as penstock writes it"):
        energy(without_values)
    empty = Bundle.create(tmp_path / "t", {})
    with pytest.raises(PenstockError, match="found no samples of the run"):
        energy(empty)


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"name": "energy"}, "the name 'energy' of a modelled energy"),
        ({"unit": "W"}, "the unit 'W'"),
        ({"monitor": "null"}, "an energy without a monitor"),
        ({"source": "{energy: {app: 120 W}}"}, "no 'idle'"),
        ({"source": "{energy: {idle: 91.6}}"}, "91.6"),
        ({"source": "{energy: {idle: 90 W, app: 80 W}}"}, "80 W"),
        ({"source": "{energy: {idle: 90 W, manager: true}}"}, "manager"),
        ({"source": "{energy: {idle: 90 W, frequency: 1 GHz}}"}, "the frequency '1 GHz'"),
    ],
)
def test_mistakes_are_reported_before_a_run(changed: dict[str, str], found: str) -> None:
    with pytest.raises(BadInput) as caught:
        study(**changed)
    assert any(found in mistake.found for mistake in caught.value.mistakes), caught.value.mistakes
