"""The poller of Cassandra's statistics with valid and invalid output of nodetool."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.products.cassandra import CassandraPoller
from penstock.parts.monitoring.experiments.recorded import recorded
from penstock.testing import MemorySink, check_collector
from penstock.workload.metrics import cassandra
from tests.support.waiting import wait_for_end

GOLDEN = Path(__file__).parents[1] / "golden/metrics/cassandra-nodetool.txt"
#: from `nodetool` of a node of Cassandra 5.0.4
OUTPUTS = [
    output
    for output in re.split(r"(?m)^(?=\{|proxy|concurrent|\d{10}\.)", GOLDEN.read_text())
    if output.startswith("{")
]


def nodetool(tmp_path: Path, script: str) -> list[str]:
    """A program that runs `script` and then prints the file `tables` or `pools`."""
    for name, text in (("tables", OUTPUTS[0]), ("pools", OUTPUTS[1])):
        (tmp_path / name).write_text(text)
    program = tmp_path / "nodetool"
    directory = shlex.quote(str(tmp_path))
    program.write_text(
        f'#!/bin/sh\ncd {directory}\necho "$@" >> called\n{script}\n'
        'case "$*" in *tablestats*) cat tables ;; *) cat pools ;; esac\n'
    )
    program.chmod(0o700)
    return [str(program)]


def polled(
    sink: MemorySink, until: Callable[[CassandraPoller], bool], **settings: object
) -> CassandraPoller:
    async def poll() -> CassandraPoller:
        poller = CassandraPoller("db", {"interval_s": 0.1, "timeout_s": 20, **settings})
        await poller.start(sink)
        while not until(poller):
            await asyncio.sleep(0.02)
        await poller.stop()
        return poller

    return asyncio.run(asyncio.wait_for(poll(), 120))


def missing_points(sink: MemorySink) -> dict[str, int]:
    """Number of missing points by metric."""
    batches = [sink.batches[key] for key in sorted(sink.batches)]
    begin_ns = min(t for b in batches for t in b.points["utc_ns"].to_pylist())
    rows = recorded(batches, begin_ns, time.time_ns()).series.to_pylist()
    return {r["metric"]: r["expected"] - r["stored"] for r in rows}


def test_every_poll_stores_the_numbers_of_nodetool(tmp_path: Path) -> None:
    command = [*nodetool(tmp_path, ""), "-h", "db1"]
    sink = MemorySink()
    poller = polled(
        sink,
        lambda p: p._polled["tpstats"] >= 3,
        command=command,
        keyspaces=["bench"],
        labels={"node": "db1"},
    )
    called = (tmp_path / "called").read_text().splitlines()
    assert set(called) == {"-h db1 tablestats -F json bench", "-h db1 tpstats -F json"}
    labels = '{"entity":"bench.t","node":"db1"}'
    rows = [r for r in sink.rows() if r["labels"] == labels]
    written = {r["float"] for r in rows if r["metric"] == "cassandra_local_write_count"}
    assert written == {4099.0}
    assert {r["unit"] for r in rows if r["metric"] == "cassandra_space_used_live"} == {"B"}
    success = {r["float"] for r in sink.rows() if r["metric"] == "cassandra_success"}
    assert success == {1.0}
    assert poller.intake.receipt.counted["failed"] == 0
    # every number is stored each time, and only polled points are expected
    assert set(missing_points(sink).values()) == {poller.intake.receipt.counted["missed"]}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'Failed to connect' >&2; exit 1", "status 1: Failed to connect"),
        ("exit 3", "status 3"),
        ('echo \'{"bench": {"read_c\'; exit 0', "no JSON"),
        ("echo '[1]'; exit 0", "a list and no object"),
        ("exit 0", "no JSON"),
        ("echo '{}'; exit 0", "no number"),
        ('echo \'{"bench": {"read_count": 3}}\'; exit 0', "without tables"),
        ("head -c 17000000 /dev/zero; exit 0", "printed more than"),
    ],
)
def test_invalid_statistics_are_counted(script: str, message: str, tmp_path: Path) -> None:
    command = nodetool(tmp_path, f"if [ -e broken ]; then {script}; fi")
    (tmp_path / "broken").touch()
    sink = MemorySink()

    def until(poller: CassandraPoller) -> bool:
        if poller.intake.receipt.counted["failed"] >= 2:
            (tmp_path / "broken").unlink(missing_ok=True)
        return poller._succeeded["tablestats"] >= 2

    poller = polled(sink, until, command=command, statistics=["tablestats"])
    receipt = poller.intake.receipt
    assert any(message in error for error in receipt.errors), receipt.errors
    success = [r["float"] for r in sink.rows() if r["metric"] == "cassandra_success"]
    assert success.count(0.0) == receipt.counted["failed"]
    # failures before the first success were due, too
    missing, missed = missing_points(sink), receipt.counted["missed"]
    assert missing["cassandra_local_write_count"] == receipt.counted["failed"] + missed
    assert missing["cassandra_success"] == missed


def test_a_hanging_nodetool_is_ended_with_its_children(tmp_path: Path) -> None:
    # as nodetool: a shell that waits for its Java process
    command = nodetool(tmp_path, "sleep 1000 & echo $! >> children; wait")
    poller = polled(
        MemorySink(),
        lambda p: p.intake.receipt.counted["failed"] >= 2,
        command=command,
        statistics=["tpstats"],
        timeout_s=2,
    )
    assert "tpstats: nodetool did not end in 2 s" in poller.intake.receipt.errors
    check_ended(tmp_path / "children")


def check_ended(pids: Path) -> None:
    """Check that each process has ended."""
    for child in map(int, pids.read_text().split()):
        wait_for_end(child)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6])
def test_a_starting_nodetool_is_ended_with_its_children(steps: int, tmp_path: Path) -> None:
    """The collector stops while asyncio still connects to a program that already runs.

    asyncio then ends the shell, but not its child.
    """
    command = nodetool(tmp_path, "sleep 1000 & echo $! >> children; wait")

    async def start_and_stop() -> None:
        poller = CassandraPoller("db", {"command": command, "statistics": ["tpstats"]})
        await poller.start(MemorySink())
        for _ in range(steps):
            await asyncio.sleep(0)
        time.sleep(0.3)  # the program continues, the loop does not
        await poller.stop()

    asyncio.run(start_and_stop())
    if (tmp_path / "children").exists():
        check_ended(tmp_path / "children")


def test_a_missing_program_is_reported(tmp_path: Path) -> None:
    poller = polled(
        MemorySink(),
        lambda p: p.intake.receipt.counted["failed"] >= 1,
        command=[str(tmp_path / "none")],
    )
    assert (
        f"tablestats: {tmp_path / 'none'}: No such file or directory"
        in poller.intake.receipt.errors
    )


def test_protocol_and_invalid_settings(tmp_path: Path) -> None:
    check_collector(CassandraPoller, {"command": nodetool(tmp_path, ""), "interval_s": 0.1})
    invalid: dict[str, object]
    for invalid in (
        {"command": []},
        {"command": "nodetool"},
        {"command": ["x\0"]},
        {"statistics": ["ring"]},
        {"statistics": [1]},
        {"keyspaces": [""]},
        {"interval_s": 0},
        {"timeout_s": 0},
        {"labels": 3},
    ):
        with pytest.raises(BadInput, match="expected"):
            CassandraPoller("db", invalid)


def test_values_of_each_statistic() -> None:
    tables = {(v.entity, v.metric): v for v in cassandra.values_of("tablestats", OUTPUTS[0])}
    document = json.loads(OUTPUTS[0])
    table = document["bench"]["tables"]["t"]
    assert tables["bench.t", "local_write_count"].value == table["local_write_count"] == 4099
    assert tables["bench.t", "space_used_live"].value == int(table["space_used_live"])
    assert tables["bench.t", "percent_repaired"].unit == "%"
    assert ("bench.t", "sai_disk_used_bytes") not in tables, "null is no number"
    pools = {(v.entity, v.metric): v.value for v in cassandra.values_of("tpstats", OUTPUTS[1])}
    completed = json.loads(OUTPUTS[1])["ThreadPools"]["ReadStage"]["CompletedTasks"]
    assert pools["ReadStage", "CompletedTasks"] == completed
    assert pools["READ_REQ", "Dropped"] == 0
    for name in ("tablestats", "tpstats"):
        with pytest.raises(ValueError, match="no JSON"):
            cassandra.values_of(name, "[" * 100_000)


def test_polls_go_on_after_a_failed_write(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.fails = 1
    command = nodetool(tmp_path, "")
    poller = polled(sink, lambda _: len(sink.batches) >= 2, command=command, statistics=["tpstats"])
    assert poller.intake.receipt.counted["failed"] == 1
