"""`penstock profile` with a real fio: interrupted, resumed, and nothing remains on the host."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.runs import bundles
from penstock.profile import StorageProfile
from tests.integration.ground import is_clean, prepare_directory
from tests.support import commands

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="needs fio")

LINE = [sys.executable, "-c", "from penstock.cli import main; main()", "profile"]


@pytest.fixture
def ground(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    return prepare_directory(tmp_path)


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_profile_is_interrupted_and_resumed(
    ground: tuple[Path, dict[str, str]],
) -> None:
    device, environment = ground
    out = device.parent / "out"
    argv = [*LINE, str(device), "--quick", "-o", str(out), "--json"]
    first = subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 90
    while not list(out.glob("runs/r002")) and time.monotonic() < until:
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=60)
    assert (first.returncode, output) == (130, "")
    assert is_clean(device)
    finished = {b.path.name: (b.path / "manifest.json").stat().st_mtime_ns for b in bundles(out)}
    assert 2 <= len(finished) < 17

    refused = commands.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr

    second = commands.run(
        [*argv, "--resume"], env=environment, capture_output=True, text=True, check=False
    )
    assert second.returncode == 0, second.stderr
    summary = json.loads(second.stdout)
    assert len(summary["fit_errors"]) == 16  # all cells except fsync
    profile = StorageProfile.from_dict(summary["profile"])
    assert profile.to_dict() == json.loads((out / "profile.json").read_text())
    assert is_clean(device)
    for name, mtime_ns in finished.items():
        assert (out / "runs" / name / "manifest.json").stat().st_mtime_ns == mtime_ns
    manifest = Bundle.open(out / "runs" / "r001").manifest
    assert manifest["disks"] == {"host.data": {"name": "data", "directory": str(device.resolve())}}
    assert {"iops", "bandwidth"} == set(manifest["responses"])


def test_unusable_arguments_are_refused(ground: tuple[Path, dict[str, str]]) -> None:
    device, environment = ground
    for arguments, message in (
        ([str(device / "none")], "found no directory"),
        ([str(device), "--resume"], "--resume"),
        ([str(device), "-o", str(device / "none" / "p.json")], "found no directory"),
    ):
        result = commands.run([*LINE, *arguments], env=environment, capture_output=True, text=True)
        assert result.returncode == 2
        assert message in result.stderr
        assert "Traceback" not in result.stderr
