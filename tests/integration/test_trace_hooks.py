"""Choice of hooks if the kernel refuses some, and the calls that each mode then records."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import launch
from penstock.observe.trace.capture.tracer import Tracer, TraceResult
from tests.integration.tracing import NEEDS_TRACER, with_known_cost

_native: Any = importlib.import_module("penstock._native")

pytestmark = NEEDS_TRACER

CALLS = 10007  # a prime
PROGRAM = f"""
import os
fd = os.open({{path!r}}, os.O_RDWR)
for i in range({CALLS}):
    os.pread(fd, 4096, i * 37 % 64 * 4096)
for i in range(101):
    os.pwrite(fd, b"x" * 100, i * 100)
os.lseek(fd, 0, 0)
os.read(fd, 10)
try:
    os.pread(fd, 10, -1)
except OSError:
    pass
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hooks") / "file"
    path.write_bytes(os.urandom(64 * 4096))
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with a recorded cost of tracing, so that no test measures it."""
    return with_known_cost(tmp_path)


def traced(target: Path, state: Path, mode: str, **options: Any) -> TraceResult:
    journal = Journal(state / "journal")
    with (
        create_run_cgroup("hooks", None, journal) as group,
        Tracer(journal, state, mode, **options) as tracer,
    ):
        tracer.arm(group, state / "spool")
        finished = launch([sys.executable, "-S", "-c", PROGRAM.format(path=str(target))], group)
        assert finished.exit_status == 0
        return tracer.disarm()


def rows(result: TraceResult, target: Path) -> dict[str, Any]:
    files = {row["path"]: row["file_id"] for row in result.tables["files"].to_pylist()}
    number = files[str(target)]
    return {row["direction"]: row for row in result.verdicts if row["file_id"] == number}


@pytest.mark.parametrize(
    ("mode", "options", "hook"),
    [
        ("count", {}, None),
        ("trace", {"hooks": "raw_tp"}, "raw_tp"),
        ("count", {"hooks": "raw_tp"}, "raw_tp"),
        ("pattern", {"deny": ["fentry", "tp_btf"]}, "raw_tp"),
        ("trace", {"deny": ["out_read"]}, "tp_btf"),
    ],
)
def test_every_hook_records_every_call(
    target: Path, state: Path, mode: str, options: dict[str, Any], hook: str | None
) -> None:
    result = traced(target, state, mode, **options)
    verdicts = rows(result, target)
    assert verdicts["read"]["calls"] == CALLS + 2
    assert verdicts["read"]["errors"] == 1
    assert verdicts["read"]["done_bytes"] == CALLS * 4096 + 10
    assert (verdicts["write"]["calls"], verdicts["write"]["done_bytes"]) == (101, 10100)
    stats = result.receipt
    assert stats["lost"] == 0
    assert stats["added_ns_basis"] == "planted"
    metering = stats["metering"]
    assert metering["windows"] > 0
    assert metering["calls"]["own"] > 0
    assert 0 < stats["added_ns"] < stats["wall_ns"]
    share = stats["added_ns"] / (stats["busy_ns"] - stats["added_ns"])
    assert stats["added_share"] == pytest.approx(share)
    for counts in stats["per_probe"].values():
        assert counts["seen"] == counts["kept"] + counts["filtered"] + counts["lost"]
    calls = stats["hooks"]["calls"]
    assert calls["state"] == "full"
    assert hook in (None, calls["hook"])
    if options.get("deny"):
        assert "EPERM (denied for a test)" in calls["reason"]


def test_a_refused_feature_is_reported_as_absent(target: Path, state: Path) -> None:
    result = traced(target, state, "pattern", deny=["fault_of_user"])
    faults = result.receipt["hooks"]["faults"]
    assert faults["state"] == "absent"
    assert "mapped" in faults["missing"]
    assert rows(result, target)["read"]["calls"] == CALLS + 2


def test_a_refusal_names_the_hook_and_the_error(target: Path, state: Path) -> None:
    """The reason of each refusal of this kernel names a hook and an error."""
    hooks = traced(target, state, "trace").receipt["hooks"]
    for feature in hooks.values():
        for reason in filter(None, feature["reason"].split("; ")):
            assert re.search(r"(ENOENT \(|\w+/\w+: E[A-Z]+ \()", reason), reason


def test_an_absent_required_feature_stops_the_trace_before_its_start(state: Path) -> None:
    journal = Journal(state / "journal")
    with pytest.raises(PenstockError, match=r"mapped files \(fentry: EPERM"):
        Tracer(journal, state, "trace", require=["faults"], deny=["fault_of_user"])
    with pytest.raises(PenstockError, match="no feature telepathy"):
        Tracer(journal, state, "trace", require=["telepathy"])
    all_hooks = ["fentry", "tp_btf", "raw_tp", "tracepoint"]
    with pytest.raises(PenstockError, match="denied for a test"):
        Tracer(journal, state, "trace", deny=all_hooks)


@pytest.mark.parametrize("deny", [[], ["fault_of_user"]])
def test_survey_and_trace_report_the_same_hooks(target: Path, state: Path, deny: list[str]) -> None:
    survey = json.loads(_native.trace_hooks("trace", deny=deny))
    assert survey["calls"]["state"] == "full"
    if deny:
        assert survey["faults"]["state"] == "absent"
    assert survey == traced(target, state, "trace", deny=deny).receipt["hooks"]
