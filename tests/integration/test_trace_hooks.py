"""Which hooks are taken when some are refused, what each mode then sees, and that nothing stays behind."""

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
from tests.integration.tracing import with_known_cost

_native: Any = importlib.import_module("penstock._native")

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root"),
    pytest.mark.skipif(
        not Path("/sys/kernel/btf/vmlinux").exists(), reason="kernel: no type information"
    ),
]

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
    """A state directory that knows what tracing costs, so that no test measures it."""
    return with_known_cost(tmp_path)


def traced(target: Path, state: Path, mode: str, **how: Any) -> TraceResult:
    journal = Journal(state / "journal")
    with (
        create_run_cgroup("hooks", None, journal) as group,
        Tracer(journal, state, mode, **how) as tracer,
    ):
        tracer.arm(group, state / "spool")
        done = launch([sys.executable, "-S", "-c", PROGRAM.format(path=str(target))], group)
        assert done.exit_status == 0
        return tracer.disarm()


def rows(result: TraceResult, target: Path) -> dict[str, Any]:
    files = {row["path"]: row["file_id"] for row in result.tables["files"].to_pylist()}
    number = files[str(target)]
    return {row["direction"]: row for row in result.verdicts if row["file_id"] == number}


@pytest.mark.parametrize(
    ("mode", "how", "hook"),
    [
        ("count", {}, None),
        ("trace", {"hooks": "raw_tp"}, "raw_tp"),
        ("count", {"hooks": "raw_tp"}, "raw_tp"),
        ("pattern", {"deny": ["fentry", "tp_btf"]}, "raw_tp"),
        ("trace", {"deny": ["out_read"]}, "tp_btf"),
    ],
)
def test_every_way_sees_every_call(
    target: Path, state: Path, mode: str, how: dict[str, Any], hook: str | None
) -> None:
    result = traced(target, state, mode, **how)
    found = rows(result, target)
    assert found["read"]["calls"] == CALLS + 2
    assert found["read"]["errors"] == 1
    assert found["read"]["done_bytes"] == CALLS * 4096 + 10
    assert (found["write"]["calls"], found["write"]["done_bytes"]) == (101, 10100)
    receipt = result.receipt
    assert receipt["lost"] == 0
    assert receipt["added_ns_basis"] == "planted"
    metering = receipt["metering"]
    assert metering["windows"] > 0
    assert metering["calls"]["own"] > 0
    assert 0 < receipt["added_ns"] < receipt["wall_ns"]
    share = receipt["added_ns"] / (receipt["busy_ns"] - receipt["added_ns"])
    assert receipt["added_share"] == pytest.approx(share)
    for counts in receipt["per_probe"].values():
        assert counts["seen"] == counts["kept"] + counts["filtered"] + counts["lost"]
    calls = receipt["hooks"]["calls"]
    assert calls["state"] == "full"
    assert hook in (None, calls["hook"])
    if how.get("deny"):
        assert "EPERM (denied for a test)" in calls["reason"]


def test_what_is_refused_is_absent_and_said(target: Path, state: Path) -> None:
    result = traced(target, state, "pattern", deny=["fault_of_user"])
    faults = result.receipt["hooks"]["faults"]
    assert faults["state"] == "absent"
    assert "mapped" in faults["missing"]
    assert rows(result, target)["read"]["calls"] == CALLS + 2


def test_a_refusal_names_the_hook_and_the_error(target: Path, state: Path) -> None:
    """Whatever this kernel refuses, it is said of which hook and by which error."""
    hooks = traced(target, state, "trace").receipt["hooks"]
    for feature in hooks.values():
        for reason in filter(None, feature["reason"].split("; ")):
            assert re.search(r"(ENOENT \(|\w+/\w+: E[A-Z]+ \()", reason), reason


def test_what_is_required_and_absent_stops_before_the_start(state: Path) -> None:
    journal = Journal(state / "journal")
    with pytest.raises(PenstockError, match=r"mapped files \(fentry: EPERM"):
        Tracer(journal, state, "trace", require=["faults"], deny=["fault_of_user"])
    with pytest.raises(PenstockError, match="no feature telepathy"):
        Tracer(journal, state, "trace", require=["telepathy"])
    everything = ["fentry", "tp_btf", "raw_tp", "tracepoint"]
    with pytest.raises(PenstockError, match="denied for a test"):
        Tracer(journal, state, "trace", deny=everything)


def test_the_survey_says_the_same_as_a_receipt() -> None:
    told = json.loads(_native.trace_hooks("trace"))
    assert told["calls"]["state"] == "full"
    denied = json.loads(_native.trace_hooks("trace", deny=["fault_of_user"]))
    assert denied["faults"]["state"] == "absent"
