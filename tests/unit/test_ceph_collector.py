"""The poller of Ceph's counters with valid and invalid answers of daemons."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.products.admin_socket import MOST_BYTES
from penstock.parts.monitoring.collectors.products.ceph import CephPoller
from penstock.parts.monitoring.collectors.products.ceph_daemon import labels_of
from penstock.parts.monitoring.collectors.products.perf_counters import (
    MOST_COUNTERS,
    USUAL,
    Counters,
)
from penstock.testing import check_collector
from tests.unit.ceph_socket import FakeDaemon, Run, action_step, daemon, framed, recorded_answers

SMALL: dict[str, Any] = {
    "perf schema": {"osd": {"op_w": {"type": 10}, "op_w_latency": {"type": 5}}},
    "perf dump": {"osd": {"op_w": 7, "op_w_latency": {"avgcount": 7, "sum": 0.5, "avgtime": 0.07}}},
}


@pytest.fixture
def osd(tmp_path: Path) -> Iterator[FakeDaemon]:
    with daemon(tmp_path / "ceph-osd.0.asok", copy.deepcopy(SMALL)) as running:
        yield running


def test_every_poll_stores_the_counters_of_an_osd(tmp_path: Path) -> None:
    # fails if a part of an average is missing, a unit is wrong, or each poll asks for the schema
    answers = recorded_answers("osd")
    labels = '{"daemon":"osd.0","host":"n1"}'
    run = Run(tmp_path, labels={"host": "n1"})
    with daemon(tmp_path / "ceph-osd.0.asok", answers) as osd:
        poller = run.until(lambda p: len(run.values("ceph_osd_op_w", labels)) >= 3)
    counted = answers["perf dump"]["osd"]
    assert counted["op_w"] > 0
    expected = {
        "ceph_osd_op_w": (counted["op_w"], ""),
        "ceph_osd_op_w_in_bytes": (counted["op_w_in_bytes"], "B"),
        "ceph_osd_op_w_latency_sum": (counted["op_w_latency"]["sum"], "s"),
        "ceph_osd_op_w_latency_count": (counted["op_w_latency"]["avgcount"], ""),
        "ceph_bluestore_commit_lat_sum": (
            answers["perf dump"]["bluestore"]["commit_lat"]["sum"],
            "s",
        ),
        "ceph_osd_stat_bytes": (counted["stat_bytes"], "B"),
        "ceph_success": (1, ""),
    }
    for metric, (value, unit) in expected.items():
        assert set(run.values(metric, labels)) == {value}, metric
        assert run.series(metric)["unit"] == unit, metric
    assert {r["labels"] for r in run.sink.rows()} == {labels}
    assert osd.commands[:2] == ["perf schema", "perf dump"]
    assert set(osd.commands[2:]) == {"perf dump"}
    receipt = poller.intake.receipt
    assert (receipt.counted["failed"], receipt.errors) == (0, [])
    for row in run.result().series.to_pylist():
        assert row["expected"] - row["stored"] == receipt.counted["missed"], row["metric"]
        assert row["resets"] == row["restarts"] == 0


@pytest.mark.parametrize(
    ("kind", "metrics"),
    [
        ("mds", {"ceph_mds_request", "ceph_mds_reply_latency_count", "ceph_objecter_op_w"}),
        ("mon", {"ceph_paxos_commit", "ceph_cluster_num_osd_up", "ceph_mon_num_sessions"}),
        ("client", {"ceph_client_wrlat_sum", "ceph_objecter_op_w", "ceph_client_rdlat_count"}),
        ("osd", {"ceph_osd_op_r_latency_sum", "ceph_bluestore_kv_flush_lat_count"}),
    ],
)
def test_each_daemon_has_default_counters_and_more_on_request(kind: str, metrics: set[str]) -> None:
    answers = {name: json.dumps(answer).encode() for name, answer in recorded_answers(kind).items()}
    usual = Counters(answers["perf schema"], USUAL)
    values, strange = usual.read(answers["perf dump"])
    assert not strange
    assert metrics <= {s.metric for s, _ in values}
    every = Counters(answers["perf schema"], ["all"])
    all_values, _ = every.read(answers["perf dump"])
    assert {s for s, _ in values} < {s for s, _ in all_values}
    selected, _ = Counters(answers["perf schema"], [f"{kind}.*"]).read(answers["perf dump"])
    assert {s.collection for s, _ in selected} == {kind}
    # each number of the dump is a point, except averages over all time and histograms
    dump = recorded_answers(kind)["perf dump"]
    numbers = sum(
        2 if isinstance(value, dict) else 1
        for counters_of in dump.values()
        for value in counters_of.values()
    )
    assert len(all_values) == numbers


def test_collections_of_one_kind_are_distinct_entities() -> None:
    schema = {"throttle-a": {"val": {"type": 2}}, "throttle-b-c": {"val": {"type": 2}}}
    counters = Counters(json.dumps(schema).encode(), ["throttle-*"])
    dump = {"throttle-a": {"val": 1}, "throttle-b-c": {"val": 2}}
    values, _ = counters.read(json.dumps(dump).encode())
    assert [(s.metric, s.entity, v) for s, v in values] == [
        ("ceph_throttle_val", "a", 1.0),
        ("ceph_throttle_val", "b-c", 2.0),
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "found 0 bytes and the end; expected the 4 of a length"),
        (framed(b"{}" * 100)[:50], "found 46 bytes and the end; expected 200"),
        ((MOST_BYTES + 1).to_bytes(4, "big"), f"expected {MOST_BYTES} at most"),
        (framed(b"ERROR: (2) No such file"), "no JSON"),
        (framed(b"[1]"), "found a list and no object"),
        (framed(b"[" * 1_000_000), "too deep"),
        (framed(b"9" * 100_000), "no JSON"),
        (framed(b"\xff\xfe{}"), "no JSON"),
    ],
)
def test_an_invalid_answer_is_a_lost_point(
    answer: bytes, message: str, tmp_path: Path, osd: FakeDaemon
) -> None:
    run = Run(tmp_path)
    poller = run.until(
        run.polls(2),
        action_step(lambda: setattr(osd, "answer", lambda _: answer)),
        run.polls(4),
        action_step(lambda: setattr(osd, "answer", osd.recorded)),
        lambda _: run.values("ceph_success")[-1] == 1.0,
    )
    receipt = poller.intake.receipt
    assert any(message in error for error in receipt.errors), receipt.errors
    failed = run.values("ceph_success").count(0.0)
    assert failed == receipt.counted["failed"] > 0
    row = run.series("ceph_osd_op_w")
    assert row["expected"] - row["stored"] == failed + receipt.counted["missed"]
    assert any(message in error for error in run.gaps("lost"))
    assert row["restarts"] == row["resets"] == 0


def test_a_hanging_daemon_delays_no_other(tmp_path: Path, osd: FakeDaemon) -> None:
    osd.answer = lambda _: None
    with daemon(tmp_path / "ceph-osd.1.asok", SMALL):
        run = Run(tmp_path, timeout_s=2)
        other = '{"daemon":"osd.1"}'
        poller = run.until(lambda _: len(run.values("ceph_osd_op_w", other)) >= 2)
    assert set(run.values("ceph_success")) == {0.0}
    assert set(run.values("ceph_success", other)) == {1.0}
    assert poller.intake.receipt.errors == ["osd.0: no answer in 2 s"]


def test_no_points_are_lost_without_a_socket(tmp_path: Path, osd: FakeDaemon) -> None:
    # fails if the time without a socket counts as lost, or counters of a new process as old ones
    run = Run(tmp_path)
    restarted: list[FakeDaemon] = []
    small = copy.deepcopy(SMALL)
    small["perf dump"]["osd"]["op_w"] = 1
    poller = run.until(
        run.polls(2),
        action_step(osd.end),
        run.polls(8),
        action_step(lambda: restarted.append(FakeDaemon(osd.path, small))),
        lambda _: run.values("ceph_osd_op_w")[-1] == 1.0,
    )
    restarted[0].end()
    assert "osd.0: its socket is gone" in poller.intake.receipt.errors
    row = run.series("ceph_osd_op_w")
    # a poll may have hit the socket while it was bound or unlinked
    assert row["expected"] - row["stored"] <= 2 + poller.intake.receipt.counted["missed"]
    assert (row["restarts"], row["resets"]) == (1, 0)
    assert run.gaps("restart") == ["osd.0 was restarted"] * 1
    rows = run.result().gaps.to_pylist()
    assert [g for g in rows if g["kind"] == "disabled" and g["series_id"] == row["series_id"]]
    assert run.values("ceph_success").count(0.0) >= 7


def test_a_killed_daemon_leaves_a_gap(tmp_path: Path, osd: FakeDaemon) -> None:
    run = Run(tmp_path)
    poller = run.until(run.polls(2), action_step(osd.kill), run.polls(8))
    assert "osd.0: nothing listens at its socket" in poller.intake.receipt.errors
    row = run.series("ceph_osd_op_w")
    assert row["expected"] - row["stored"] >= 7
    assert row["verdict"] == "partial"
    assert "osd.0: nothing listens at its socket" in run.gaps("lost")


def test_an_abandoned_socket_is_no_daemon(tmp_path: Path, osd: FakeDaemon) -> None:
    # as those of librados' programs that do not unlink theirs
    path = tmp_path / "client.admin.31.asok"
    FakeDaemon(path, SMALL).kill()
    FakeDaemon(tmp_path / "client.admin.32.asok", SMALL).kill()
    run = Run(tmp_path)
    other = '{"daemon":"client.admin","process":"31"}'
    late: list[FakeDaemon] = []
    poller = run.until(
        run.polls(8),
        action_step(lambda: late.append(FakeDaemon(path, SMALL))),
        lambda _: len(run.values("ceph_success", other)) >= 3,
    )
    late[0].end()
    (error,) = poller.intake.receipt.errors
    assert re.fullmatch(r"client.admin 3\d: nothing listens at its socket, and at 1 more", error)
    assert poller.intake.receipt.counted["failed"] == 0
    rows = [r for r in run.result().series.to_pylist() if r["labels"] == other]
    missed = poller.intake.receipt.counted["missed"]
    assert all(0 <= r["expected"] - r["stored"] <= missed for r in rows)
    ids = {r["series_id"] for r in rows}
    kinds = {g["kind"] for g in run.result().gaps.to_pylist() if g["series_id"] in ids}
    assert kinds - ({"lost"} if missed else set()) == {"disabled"}


def test_a_daemon_that_starts_later_loses_no_points(tmp_path: Path, osd: FakeDaemon) -> None:
    run = Run(tmp_path)
    other = '{"daemon":"client.admin","process":"12.94"}'
    late: list[FakeDaemon] = []
    poller = run.until(
        run.polls(8),
        action_step(
            lambda: late.append(FakeDaemon(tmp_path / "ceph-client.admin.12.94.asok", SMALL))
        ),
        lambda _: len(run.values("ceph_osd_op_w", other)) >= 3,
    )
    late[0].end()
    by_labels = {
        r["labels"]: r for r in run.result().series.to_pylist() if r["metric"] == "ceph_osd_op_w"
    }
    missing = by_labels[other]["expected"] - by_labels[other]["stored"]
    missed = poller.intake.receipt.counted["missed"]
    assert missing <= 1 + missed
    assert by_labels[other]["restarts"] == 0
    kinds = {
        g["kind"]
        for g in run.result().gaps.to_pylist()
        if g["series_id"] == by_labels[other]["series_id"]
    }
    assert kinds - ({"lost"} if missed else set()) == {"disabled"}


def test_reset_counters_are_reported(tmp_path: Path, osd: FakeDaemon) -> None:
    # as after `perf reset all`; sums and gauges may fall
    run = Run(tmp_path)

    def reset() -> None:
        counters = osd.answers["perf dump"]["osd"]
        counters["op_w"], counters["op_w_latency"]["sum"] = 2, 0.1

    poller = run.until(
        run.polls(2), action_step(reset), lambda _: run.values("ceph_osd_op_w")[-1] == 2.0
    )
    assert run.series("ceph_osd_op_w")["resets"] == 1
    assert run.series("ceph_osd_op_w_latency_sum")["resets"] == 0
    assert run.gaps("reset") == ["osd.0: ceph_osd_op_w went back from 7 to 2"]
    assert poller.intake.receipt.counted["failed"] == 0


def test_an_image_is_counted_from_its_opening(tmp_path: Path, osd: FakeDaemon) -> None:
    run = Run(tmp_path)

    def opened() -> None:
        osd.answers["perf schema"]["librbd-1-rbd-disk"] = {"wr": {"type": 10}}
        osd.answers["perf dump"]["librbd-1-rbd-disk"] = {"wr": 5}
        # the schema is read once for a counter that it never has
        osd.answers["perf dump"]["secret"] = {"wr": 6}

    image = '{"daemon":"osd.0","entity":"1-rbd-disk"}'
    poller = run.until(
        run.polls(2), action_step(opened), lambda _: len(run.values("ceph_librbd_wr", image)) >= 3
    )
    assert osd.commands.count("perf schema") == 2
    row = run.series("ceph_librbd_wr")
    assert 0 <= row["expected"] - row["stored"] <= poller.intake.receipt.counted["missed"]
    assert not [s for s in run.result().series.to_pylist() if "secret" in s["metric"]]


def test_invalid_names_are_cleaned_or_skipped(tmp_path: Path, osd: FakeDaemon) -> None:
    osd.answers["perf schema"] = {
        "osd": {"op_w\n": {"type": 10}, "op\u202ew": {"type": 2}, "x" * 300: {"type": 2}},
        "a-\x1b[2J": {"val": {"type": 2}},
        "b": {"odd": {"type": "10"}, "none": 3, "wide": {"type": 2}, "not": {"type": 2}},
        "many": {f"c{n}": {"type": 2} for n in range(MOST_COUNTERS + 10)},
    }
    osd.answers["perf dump"] = {
        "osd": {"op_w\n": 1, "op\u202ew": 2, "x" * 300: 3},
        "a-\x1b[2J": {"val": 1},
        "b": {"odd": 1, "none": 1, "wide": 10**400, "not": float("nan")},
        "many": {f"c{n}": n for n in range(MOST_COUNTERS + 10)},
    }
    run = Run(tmp_path, counters=["all"])
    poller = run.until(lambda _: len(run.values("ceph_success")) >= 2)
    metrics = {r["metric"] for r in run.sink.rows()}
    assert {m for m in metrics if "many" not in m} == {
        "ceph_success",
        "ceph_osd_op_w",
        "ceph_osd_op_w_",
    }
    assert len(metrics) <= MOST_COUNTERS
    assert "counters more than 5000" in " ".join(poller.intake.receipt.errors)


@pytest.mark.parametrize(
    ("path", "labels"),
    [
        ("/var/run/ceph/ceph-osd.12.asok", {"daemon": "osd.12"}),
        ("/run/penstock-ceph/osd.0.4711.asok", {"daemon": "osd.0"}),
        ("/var/run/ceph/my-cluster-mon.node1.example.asok", {"daemon": "mon.node1.example"}),
        ("/var/run/ceph/mds.a.55.asok", {"daemon": "mds.a"}),
        (
            "/var/run/ceph/ceph-client.admin.7.9435.asok",
            {"daemon": "client.admin", "process": "7.9435"},
        ),
        ("/x/client.admin.31.asok", {"daemon": "client.admin", "process": "31"}),
        ("/x/mine.sock", {"daemon": "mine.sock"}),
    ],
)
def test_daemons_are_named_after_their_sockets(path: str, labels: dict[str, str]) -> None:
    assert labels_of(path) == labels


def test_the_newer_of_two_sockets_of_a_daemon_is_polled(tmp_path: Path) -> None:
    FakeDaemon(tmp_path / "osd.0.10.asok", SMALL).kill()
    with daemon(tmp_path / "osd.0.9.asok", SMALL):
        run = Run(tmp_path)
        poller = run.until(lambda _: len(run.values("ceph_osd_op_w")) >= 2)
    assert set(run.values("ceph_success")) == {1.0}
    assert poller.intake.receipt.errors == []


def test_without_a_socket_the_poller_waits(tmp_path: Path) -> None:
    (tmp_path / "file.asok").touch()
    run = Run(tmp_path, sockets=[str(tmp_path / "*.asok"), str(tmp_path / "none-*")])
    poller = run.until(lambda p: p.intake.receipt.counted["due"] >= 3)
    assert not run.sink.rows()
    assert any("found no socket" in error for error in poller.intake.receipt.errors)


def test_points_that_cannot_be_stored_are_lost(tmp_path: Path, osd: FakeDaemon) -> None:
    run = Run(tmp_path)
    run.sink.fails = 2
    poller = run.until(lambda _: len(run.values("ceph_success")) >= 3)
    assert poller.intake.receipt.counted["failed"] == 2
    row = run.series("ceph_osd_op_w")
    assert row["expected"] - row["stored"] == 2 + poller.intake.receipt.counted["missed"]


def test_protocol_and_invalid_settings(tmp_path: Path, osd: FakeDaemon) -> None:
    check_collector(CephPoller, {"sockets": [str(osd.path)], "interval_s": 0.1})
    invalid: dict[str, object]
    for invalid in (
        {"sockets": []},
        {"sockets": "/x"},
        {"sockets": ["x.asok"]},
        {"sockets": [3]},
        {"sockets": [{"labels": {}}]},
        {"sockets": [{"path": "/x", "host": "a"}]},
        {"counters": []},
        {"counters": ["a\0"]},
        {"counters": [1]},
        {"interval_s": 0},
        {"timeout_s": 0},
        {"labels": 3},
    ):
        with pytest.raises(BadInput, match="expected"):
            CephPoller("ceph", invalid)
