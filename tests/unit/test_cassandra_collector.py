"""The poller of Cassandra's statistics against programs that print, or do not print, what nodetool does."""

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

GOLDEN = Path(__file__).parents[1] / "golden/metrics/cassandra-nodetool.txt"
#: from `nodetool` of a node of Cassandra 5.0.4
OUTPUTS = [
    output
    for output in re.split(r"(?m)^(?=\{|proxy|concurrent|\d{10}\.)", GOLDEN.read_text())
    if output.startswith("{")
]


def nodetool(tmp_path: Path, script: str) -> list[str]:
    """A program that prints what the file `tables` or `pools` holds, after `script`."""
    for name, text in (("tables", OUTPUTS[0]), ("pools", OUTPUTS[1])):
        (tmp_path / name).write_text(text)
    program = tmp_path / "nodetool"
    here = shlex.quote(str(tmp_path))
    program.write_text(
        f'#!/bin/sh\ncd {here}\necho "$@" >> called\n{script}\n'
        'case "$*" in *tablestats*) cat tables ;; *) cat pools ;; esac\n'
    )
    program.chmod(0o700)
    return [str(program)]


def polled(
    sink: MemorySink, until: Callable[[CassandraPoller], bool], **settings: object
) -> CassandraPoller:
    async def one() -> CassandraPoller:
        poller = CassandraPoller("db", {"interval_s": 0.1, "timeout_s": 20, **settings})
        await poller.start(sink)
        while not until(poller):
            await asyncio.sleep(0.02)
        await poller.stop()
        return poller

    return asyncio.run(asyncio.wait_for(one(), 120))


def lacking(sink: MemorySink) -> dict[str, int]:
    """By metric, how many points were due and are not there."""
    batches = [sink.batches[key] for key in sorted(sink.batches)]
    begun = min(t for b in batches for t in b.points["utc_ns"].to_pylist())
    rows = recorded(batches, begun, time.time_ns()).series.to_pylist()
    return {r["metric"]: r["expected"] - r["stored"] for r in rows}


def test_every_poll_keeps_what_nodetool_prints(tmp_path: Path) -> None:
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
    # every number is kept each time, and no more is expected of a series than was polled
    assert set(lacking(sink).values()) == {poller.intake.receipt.counted["missed"]}


@pytest.mark.parametrize(
    ("script", "said"),
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
def test_what_is_no_statistics_is_counted_and_the_poller_lives(
    script: str, said: str, tmp_path: Path
) -> None:
    command = nodetool(tmp_path, f"if [ -e broken ]; then {script}; fi")
    (tmp_path / "broken").touch()
    sink = MemorySink()

    def until(poller: CassandraPoller) -> bool:
        if poller.intake.receipt.counted["failed"] >= 2:
            (tmp_path / "broken").unlink(missing_ok=True)
        return poller._succeeded["tablestats"] >= 2

    poller = polled(sink, until, command=command, statistics=["tablestats"])
    receipt = poller.intake.receipt
    assert any(said in told for told in receipt.errors), receipt.errors
    success = [r["float"] for r in sink.rows() if r["metric"] == "cassandra_success"]
    assert success.count(0.0) == receipt.counted["failed"]
    # what failed before the first success was due, too
    lacks, missed = lacking(sink), receipt.counted["missed"]
    assert lacks["cassandra_local_write_count"] == receipt.counted["failed"] + missed
    assert lacks["cassandra_success"] == missed


def test_a_nodetool_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    # as nodetool does: a shell that waits for its Java
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
    """Each process is gone, or dead. One that was killed may take a while on a busy host."""
    for child in map(int, pids.read_text().split()):
        until = time.monotonic() + 20
        while (state := state_of(child)) not in ("", "Z") and time.monotonic() < until:
            time.sleep(0.02)
        assert state in ("", "Z"), f"process {child} goes on"


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6])
def test_a_nodetool_that_is_being_started_is_ended_with_what_it_started(
    steps: int, tmp_path: Path
) -> None:
    """The collector is stopped while asyncio still connects to a program that already runs. asyncio ends the
    shell then, and not its child."""
    command = nodetool(tmp_path, "sleep 1000 & echo $! >> children; wait")

    async def stopped() -> None:
        poller = CassandraPoller("db", {"command": command, "statistics": ["tpstats"]})
        await poller.start(MemorySink())
        for _ in range(steps):
            await asyncio.sleep(0)
        time.sleep(0.3)  # the program goes on, the loop does not
        await poller.stop()

    asyncio.run(stopped())
    if (tmp_path / "children").exists():
        check_ended(tmp_path / "children")


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    poller = polled(
        MemorySink(),
        lambda p: p.intake.receipt.counted["failed"] >= 1,
        command=[str(tmp_path / "none")],
    )
    assert (
        f"tablestats: {tmp_path / 'none'}: No such file or directory"
        in poller.intake.receipt.errors
    )


def test_it_keeps_to_the_protocol_and_wrong_settings_are_told(tmp_path: Path) -> None:
    check_collector(CassandraPoller, {"command": nodetool(tmp_path, ""), "interval_s": 0.1})
    wrong: dict[str, object]
    for wrong in (
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
            CassandraPoller("db", wrong)


def test_each_statistic_gives_the_numbers_that_it_printed() -> None:
    tables = {(v.entity, v.metric): v for v in cassandra.values_of("tablestats", OUTPUTS[0])}
    said = json.loads(OUTPUTS[0])
    own = said["bench"]["tables"]["t"]
    assert tables["bench.t", "local_write_count"].value == own["local_write_count"] == 4099
    assert tables["bench.t", "space_used_live"].value == int(own["space_used_live"])
    assert tables["bench.t", "percent_repaired"].unit == "%"
    assert ("bench.t", "sai_disk_used_bytes") not in tables, "null is no number"
    pools = {(v.entity, v.metric): v.value for v in cassandra.values_of("tpstats", OUTPUTS[1])}
    done = json.loads(OUTPUTS[1])["ThreadPools"]["ReadStage"]["CompletedTasks"]
    assert pools["ReadStage", "CompletedTasks"] == done
    assert pools["READ_REQ", "Dropped"] == 0
    for name in ("tablestats", "tpstats"):
        with pytest.raises(ValueError, match="no JSON"):
            cassandra.values_of(name, "[" * 100_000)
