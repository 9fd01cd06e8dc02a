"""Processes, files and commands of a monitor: options, labels and expected numbers of points."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock.cli import _build
from penstock.errors import BadInput
from penstock.observe.sampler.monitor import _of_use
from penstock.observe.sampler.samples import SAMPLE_DTYPE, SAMPLES_SCHEMA, read_samples
from penstock.observe.sampler.spool_reader import Follower
from penstock.observe.sampler.utilisation import UTILISATION_SCHEMA
from penstock.parts.monitoring.cli.monitor.application import application, lacking
from penstock.parts.monitoring.experiments.entities import labels_of_entity
from penstock.parts.monitoring.outbox.sampled import sampled
from penstock.study.load import load_study

S = 10**9


@pytest.mark.parametrize(
    ("entity", "labels"),
    [
        ("pid=12 comm=a b", {"pid": "12", "comm": "a b"}),
        ("node=n1 pid=12 comm=", {"node": "n1", "pid": "12", "comm": ""}),
        ("source=disk", {"source": "disk"}),
        ("vda le=0.001", {"entity": "vda", "le": "0.001"}),
        ("all", {"entity": "all"}),
        ("/mnt/pid=x comm=y", {"entity": "/mnt/pid=x comm=y"}),
    ],
)
def test_labels_of_an_entity(entity: str, labels: dict[str, str]) -> None:
    assert json.loads(labels_of_entity(entity)) == labels


def test_relative_paths_of_options_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = application(True, ["post*"], ["q=q.txt"], ["n=a=b; echo 1"], 2.0)
    assert options.files == {"q": str(tmp_path / "q.txt")}
    assert options.metrics == {"n": "a=b; echo 1"}
    assert (options.processes, options.processes_named, options.metric_interval_s) == (
        True,
        ("post*",),
        2.0,
    )


@pytest.mark.parametrize(
    ("files", "metrics", "patterns", "interval_s", "message"),
    [
        (["q"], [], [], 1, "--file: found 'q'; expected NAME=PATH"),
        (["q="], [], [], 1, "expected NAME=PATH"),
        (["a=x", "a=y"], [], [], 1, "--file: found 'a' twice"),
        (["9=x"], [], [], 1, "expected a name of letters"),
        ([], ["n"], [], 1, "--metric: found 'n'; expected NAME=COMMAND"),
        ([], ["n= "], [], 1, "expected commands for /bin/sh"),
        ([], [f"n{i}=true" for i in range(17)], [], 1, "expected at most 16 commands"),
        ([f"n{i}=x" for i in range(65)], [], [], 1, "expected at most 64 files"),
        ([], [], ["/bin/x"], 1, "--processes-named: found ['/bin/x']; expected patterns of names"),
        ([], [], ["x"] * 17, 1, "expected at most 16 patterns"),
        ([], [], [], 0.5, "--metric-interval: found 0.5; expected 1 s to a day"),
        ([], [], [], float("nan"), "expected 1 s to a day"),
    ],
)
def test_wrong_options(
    files: list[str], metrics: list[str], patterns: list[str], interval_s: float, message: str
) -> None:
    with pytest.raises(BadInput) as error:
        application(False, patterns, files, metrics, interval_s)
    assert message in str(error.value)


STUDY = """penstock: 1
name: s
question: Is what is said of the monitor read?
factors:
  a: {levels: [1, 2]}
design: {kind: full, replicates: 1}
platform: {nodes: [{name: n}]}
workload: {command: "echo {a}"}
responses: {t: {from: wall_s, unit: s, better: lower}}
observers:
  monitor: %s
"""


def study(tmp_path: Path, monitor: str) -> Path:
    path = tmp_path / "s.study.yaml"
    path.write_text(STUDY % monitor)
    return path


def test_monitor_options_of_a_study(tmp_path: Path) -> None:
    spec = (
        "{processes: true, processes_named: [ceph*], files: {q: /run/q}, metrics: {n: pgrep -c x}, "
        "metric_interval: 5s}"
    )
    options = load_study(study(tmp_path, spec)).observers.by_name()["monitor"]
    assert options == {
        "interval_s": 1.0,
        "block_latency": False,
        "processes": True,
        "processes_named": ("ceph*",),
        "files": {"q": "/run/q"},
        "metrics": {"n": "pgrep -c x"},
        "metric_interval_s": 5.0,
    }


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("{files: {q: run/q}}", "absolute paths"),
        ("{files: {q q: /run/q}}", "a name of letters"),
        ("{metrics: {q: ''}}", "text that is not empty"),
        ("{processes_named: [a/b]}", "patterns of names"),
        ("{metric_interval: 500ms}", "1 s to a day"),
        ("{processes: some}", "expected true or false"),
    ],
)
def test_bad_monitor_options_of_a_study(tmp_path: Path, spec: str, expected: str) -> None:
    with pytest.raises(BadInput) as error:
        load_study(study(tmp_path, spec))
    assert expected in str(error.value)
    assert "s.study.yaml:11" in str(error.value)


def rows(*samples: tuple[int, str, str, str, float, bool]) -> pa.Table:
    names = ("t_ns", "source", "entity", "metric", "value", "cumulative")
    columns = dict(zip(names, zip(*samples, strict=True), strict=True))
    arrays = {
        name: pa.array(columns.get(name, [""] * len(samples)), SAMPLES_SCHEMA.field(name).type)
        for name in SAMPLES_SCHEMA.names
    }
    return pa.table(arrays, schema=SAMPLES_SCHEMA)


def test_expected_points_of_processes_files_and_commands() -> None:
    table = rows(
        *[(k * S, "sampler", "self", "lateness", 0.0, False) for k in range(10)],
        *[(k * S, "sampler", "source=cpu", "source_up", 1.0, False) for k in range(0, 10, 5)],
        *[(k * S, "process", "pid=7 comm=x", "cpu_time", k, True) for k in (3, 4)],
        # present in the second to the eighth sample, except the fifth
        *[(k * S, "file", "q", "up", float(k in (1, 2, 3, 5, 6, 7)), False) for k in range(10)],
        *[(k * S, "file", "q", "value", 1.0, False) for k in (1, 2, 3, 5, 6, 7)],
        *[(k * S, "file", "never", "up", 0.0, False) for k in range(10)],
        *[(k * S, "command", "n", "up", 1.0, False) for k in (2, 7)],
        *[(k * S, "command", "n", "value", 1.0, False) for k in (2, 7)],
    )
    tables = {"samples": table, "utilisation": UTILISATION_SCHEMA.empty_table()}
    batch = sampled(tables, 10, 0)[0]
    expected = {(a.metric, a.labels): a.expected for a in batch.accounts}
    labels = {entity: labels_of_entity(entity) for entity in ("q", "never", "n", "self")}
    assert expected == {
        ("sampler_lateness", labels["self"]): 10,
        ("file_up", labels["q"]): 10,
        ("file_up", labels["never"]): 10,
        ("file_value", labels["q"]): 7,
        ("command_value", labels["n"]): 2,
        # not part of each sample: as many as there are
        ("command_up", labels["n"]): 2,
        ("process_cpu_time", labels_of_entity("pid=7 comm=x")): 2,
        ("sampler_source_up", labels_of_entity("source=cpu")): 2,
    }


def test_values_of_commands_outside_the_window_are_kept() -> None:
    times = [*range(0, 10 * S, S // 10), *range(10 * S, 30 * S, S)]
    table = rows(
        *[(t, "cpu", "all", "user", 1.0, True) for t in times],
        (3 * S // 10, "command", "n", "value", 4.0, False),
    )
    window = {"start_ns": 0, "end_ns": 30 * S, "interval_ns": S, "close_ns": S // 10}
    reduced, _ = _of_use(table, {**window, "beginning_ns": 10 * S})
    frame = reduced.to_pandas()
    assert frame[frame.source == "command"].value.tolist() == [4.0]
    assert len(frame) == 31


def test_follower_omits_processes(tmp_path: Path) -> None:
    """Fails if the late sample before a process wakes up counts as a new sample of all series."""
    spool = tmp_path / "s"
    series = [
        ("file", "q", "value", False),
        ("process", "pid=7 comm=x", "cpu_time", True),
        ("network", "eth0", "sent_bytes", True),
        ("network", "eth0", "received_bytes", True),
    ]
    with open(f"{spool}.series", "w") as names:
        for number, (source, entity, metric, cumulative) in enumerate(series):
            row = {"series": number, "source": source, "entity": entity, "metric": metric}
            names.write(json.dumps({**row, "unit": "1", "cumulative": cumulative}) + "\n")
    follower = Follower(spool)
    followed: list[tuple[str, list[float]]] = []
    for k in range(1, 5):
        records = [(k * S, 0, k), (k * S, 2, 10 * k), (k * S, 3, 0)]
        if k > 2:
            records = [*records[:2], ((k - 1) * S, 1, 5), (k * S, 1, 6), records[2]]
        with open(spool, "ab") as file:
            np.array(records, SAMPLE_DTYPE).tofile(file)
        if k % 2 == 0:
            followed += [(v.metric, v.values.tolist()) for v in follower.look()]
    sent = [values for metric, values in followed if metric == "network_send_rate"]
    assert sent == [[10.0], [10.0, 10.0]]
    assert [v for m, v in followed if m == "file_value"] == [[1.0, 2.0], [3.0, 4.0]]
    assert not any(metric.startswith("process") for metric, _ in followed)
    with open(spool, "ab") as file:  # only a series that is left out
        np.array([(4 * S, 1, 7)], SAMPLE_DTYPE).tofile(file)
    assert follower.look() == []
    assert read_samples(spool).num_rows == 4 * 3 + 4 + 1


def test_missing_samples_are_reported() -> None:
    receipt = {
        "process": {"most": 512, "most_not_sampled": 3},
        "command": {"n": {"runs": 5, "late": 2, "no_number": 1}, "fine": {"runs": 5}},
        "sources": {"disk": {"readings": 9, "failed": 1}, "cpu": {"readings": 9, "failed": 0}},
    }
    assert list(lacking(receipt)) == [
        "3 processes were not sampled: there is room for 512",
        "metric n: of 5 runs 2 late, 1 no number",
        "source disk: 1 of 9 readings failed",
    ]
    assert list(lacking({"died": True})) == []


@pytest.mark.parametrize("interval", ["nan", "inf", "-1", "0", "1e18", "1e308"])
@pytest.mark.parametrize("arguments", [["run", "--", "true"], ["start", "x", "--sample"]])
def test_bad_intervals_are_refused_before_anything_starts(
    arguments: list[str], interval: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    argv = ["monitor", arguments[0], "--interval", interval, *arguments[1:]]
    error = CliRunner().invoke(_build(), argv).exception
    assert isinstance(error, BadInput)
    assert "expected at least 10 ms, a day at most" in str(error)
    assert not list((tmp_path / "state").glob("experiments/*/*"))
