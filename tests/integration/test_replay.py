"""A trace of a replay by fio resembles the original trace."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.analyse.traces.likeness import distance
from penstock.archive.traces.trace_tables import TraceTables
from penstock.observe.trace.replay import requests_of
from tests.support import commands

pytestmark = [
    pytest.mark.host,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root"),
    pytest.mark.skipif(
        not Path("/sys/kernel/btf/vmlinux").exists(), reason="kernel: no type information"
    ),
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]


def penstock(*arguments: str | Path, status: int = 0) -> str:
    result = commands.run(
        [Path(sys.executable).with_name("penstock"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == status, result.stderr
    return result.stdout if status == 0 else result.stderr


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replayed") / "file"
    path.write_bytes(os.urandom(16 << 20))
    return path


def traced(target: Path, output: Path, rw: str, *options: str) -> Path:
    penstock(
        *("trace", "--mode", "trace", "--json", "-o", output, "--"),
        *("fio", "--name=job", f"--filename={target}", "--size=16m", f"--rw={rw}"),
        *("--ioengine=psync", "--output=/dev/null", "--invalidate=0", *options),
    )
    return output


PATTERNS: dict[str, tuple[str, ...]] = {
    "read": ("--bs=4k",),
    "randread": ("--bs=4k", "--randrepeat=0"),
    "write": ("--bs=8k", "--fsync=64"),
    "randrw": ("--bssplit=4k/60:32k/40", "--rwmixread=70", "--numjobs=2", "--io_size=8m"),
}


@pytest.fixture(scope="module")
def bundles(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("bundles")
    return {rw: traced(target, directory / rw, rw, *options) for rw, options in PATTERNS.items()}


@pytest.mark.parametrize("rw", PATTERNS)
def test_replay_resembles_its_trace(bundles: dict[str, Path], tmp_path: Path, rw: str) -> None:
    summary: dict[str, Any] = json.loads(
        penstock("replay", bundles[rw], "--on", tmp_path, "--speed", "max", "--json")
    )
    assert summary["requests"] == summary["requests_of_replay"] > 500
    assert summary["lost_events"] == 0
    assert summary["likeness"]["distance"] <= 0.10
    assert not list(tmp_path.iterdir())


def test_distance_of_equal_runs_is_small_and_of_other_orders_large(
    bundles: dict[str, Path], target: Path, tmp_path: Path
) -> None:
    repeated = traced(target, tmp_path / "t", "randread", *PATTERNS["randread"])
    paths = (bundles["randread"], repeated, bundles["read"])
    requests = [requests_of(TraceTables(path)) for path in paths]
    assert distance(requests[0], requests[1]).mean <= 0.05
    assert distance(requests[0], requests[2]).mean >= 0.3


def test_replay_refuses_unusable_input(
    bundles: dict[str, Path], target: Path, tmp_path: Path
) -> None:
    message = penstock("replay", tmp_path / "none", status=2)
    assert "expected a bundle" in message
    penstock("trace", "--json", "-o", tmp_path / "p", "--", "sha256sum", target)
    assert "--mode trace" in penstock("replay", tmp_path / "p", "--on", tmp_path, status=2)
    bundle = bundles["read"]
    assert "found no directory" in penstock("replay", bundle, "--on", target, status=2)
    assert "--speed" in penstock("replay", bundle, "--on", tmp_path, "--speed", "5", status=2)
