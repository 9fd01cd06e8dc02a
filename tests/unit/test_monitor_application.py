"""Processes, files and commands of a monitor: how they are asked for, their labels, what is owed of them."""

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


def test_options_are_paths_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = application(True, ["post*"], ["q=q.txt"], ["n=a=b; echo 1"], 2.0)
    assert asked.files == {"q": str(tmp_path / "q.txt")}
    assert asked.metrics == {"n": "a=b; echo 1"}
    assert (asked.processes, asked.processes_named, asked.metric_interval_s) == (
        True,
        ("post*",),
        2.0,
    )


@pytest.mark.parametrize(
    ("files", "metrics", "patterns", "interval_s", "said"),
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
    files: list[str], metrics: list[str], patterns: list[str], interval_s: float, said: str
) -> None:
    with pytest.raises(BadInput) as refused:
        application(False, patterns, files, metrics, interval_s)
    assert said in str(refused.value)


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


def test_a_study_says_it(tmp_path: Path) -> None:
    said = (
        "{processes: true, processes_named: [ceph*], files: {q: /run/q}, metrics: {n: pgrep -c x}, "
        "metric_interval: 5s}"
    )
    found = load_study(study(tmp_path, said)).observers.by_name()["monitor"]
    assert found == {
        "interval_s": 1.0,
        "block_latency": False,
        "processes": True,
        "processes_named": ("ceph*",),
        "files": {"q": "/run/q"},
        "metrics": {"n": "pgrep -c x"},
        "metric_interval_s": 5.0,
    }


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("{files: {q: run/q}}", "absolute paths"),
        ("{files: {q q: /run/q}}", "a name of letters"),
        ("{metrics: {q: ''}}", "text that is not empty"),
        ("{processes_named: [a/b]}", "patterns of names"),
        ("{metric_interval: 500ms}", "1 s to a day"),
        ("{processes: some}", "expected true or false"),
    ],
)
def test_a_study_that_says_it_wrongly(tmp_path: Path, said: str, expected: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_study(study(tmp_path, said))
    assert expected in str(refused.value)
    assert "s.study.yaml:11" in str(refused.value)


def rows(*told: tuple[int, str, str, str, float, bool]) -> pa.Table:
    names = ("t_ns", "source", "entity", "metric", "value", "cumulative")
    columns = dict(zip(names, zip(*told, strict=True), strict=True))
    arrays = {
        name: pa.array(columns.get(name, [""] * len(told)), SAMPLES_SCHEMA.field(name).type)
        for name in SAMPLES_SCHEMA.names
    }
    return pa.table(arrays, schema=SAMPLES_SCHEMA)


def test_what_is_owed_of_processes_files_and_commands() -> None:
    table = rows(
        *[(k * S, "sampler", "self", "lateness", 0.0, False) for k in range(10)],
        *[(k * S, "sampler", "source=cpu", "source_up", 1.0, False) for k in range(0, 10, 5)],
        *[(k * S, "process", "pid=7 comm=x", "cpu_time", k, True) for k in (3, 4)],
        # there from the second sample on to the eighth, and not in the fifth
        *[(k * S, "file", "q", "up", float(k in (1, 2, 3, 5, 6, 7)), False) for k in range(10)],
        *[(k * S, "file", "q", "value", 1.0, False) for k in (1, 2, 3, 5, 6, 7)],
        *[(k * S, "file", "never", "up", 0.0, False) for k in range(10)],
        *[(k * S, "command", "n", "up", 1.0, False) for k in (2, 7)],
        *[(k * S, "command", "n", "value", 1.0, False) for k in (2, 7)],
    )
    tables = {"samples": table, "utilisation": UTILISATION_SCHEMA.empty_table()}
    batch = sampled(tables, 10, 0)[0]
    owed = {(a.metric, a.labels): a.expected for a in batch.accounts}
    of = {entity: labels_of_entity(entity) for entity in ("q", "never", "n", "self")}
    assert owed == {
        ("sampler_lateness", of["self"]): 10,
        ("file_up", of["q"]): 10,
        ("file_up", of["never"]): 10,
        ("file_value", of["q"]): 7,
        ("command_value", of["n"]): 2,
        # what is not told in each sample: as many as there are
        ("command_up", of["n"]): 2,
        ("process_cpu_time", labels_of_entity("pid=7 comm=x")): 2,
        ("sampler_source_up", labels_of_entity("source=cpu")): 2,
    }


def test_what_a_command_came_to_is_kept_whenever_that_was() -> None:
    times = [*range(0, 10 * S, S // 10), *range(10 * S, 30 * S, S)]
    table = rows(
        *[(t, "cpu", "all", "user", 1.0, True) for t in times],
        (3 * S // 10, "command", "n", "value", 4.0, False),
    )
    told = {"start_ns": 0, "end_ns": 30 * S, "interval_ns": S, "close_ns": S // 10}
    found, _ = _of_use(table, {**told, "beginning_ns": 10 * S})
    frame = found.to_pandas()
    assert frame[frame.source == "command"].value.tolist() == [4.0]
    assert len(frame) == 31


def test_a_follower_leaves_processes_out(tmp_path: Path) -> None:
    """Breaks where the sample before a process woke up, told late, is taken for a new one of all series."""
    spool = tmp_path / "s"
    named = [
        ("file", "q", "value", False),
        ("process", "pid=7 comm=x", "cpu_time", True),
        ("network", "eth0", "sent_bytes", True),
        ("network", "eth0", "received_bytes", True),
    ]
    with open(f"{spool}.series", "w") as names:
        for number, (source, entity, metric, grows) in enumerate(named):
            said = {"series": number, "source": source, "entity": entity, "metric": metric}
            names.write(json.dumps({**said, "unit": "1", "cumulative": grows}) + "\n")
    follower = Follower(spool)
    found: list[tuple[str, list[float]]] = []
    for k in range(1, 5):
        told = [(k * S, 0, k), (k * S, 2, 10 * k), (k * S, 3, 0)]
        if k > 2:
            told = [*told[:2], ((k - 1) * S, 1, 5), (k * S, 1, 6), told[2]]
        with open(spool, "ab") as file:
            np.array(told, SAMPLE_DTYPE).tofile(file)
        if k % 2 == 0:
            found += [(v.metric, v.values.tolist()) for v in follower.look()]
    sent = [values for metric, values in found if metric == "network_send_rate"]
    assert sent == [[10.0], [10.0, 10.0]]
    assert [v for m, v in found if m == "file_value"] == [[1.0, 2.0], [3.0, 4.0]]
    assert not any(metric.startswith("process") for metric, _ in found)
    with open(spool, "ab") as file:  # nothing but what is left out
        np.array([(4 * S, 1, 7)], SAMPLE_DTYPE).tofile(file)
    assert follower.look() == []
    assert read_samples(spool).num_rows == 4 * 3 + 4 + 1


def test_what_was_not_sampled_is_said() -> None:
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
@pytest.mark.parametrize("words", [["run", "--", "true"], ["start", "x", "--sample"]])
def test_intervals_of_no_sampler_are_refused_before_anything_starts(
    words: list[str], interval: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    line = ["monitor", words[0], "--interval", interval, *words[1:]]
    error = CliRunner().invoke(_build(), line).exception
    assert isinstance(error, BadInput)
    assert "expected at least 10 ms, a day at most" in str(error)
    assert not list((tmp_path / "state").glob("experiments/*/*"))
