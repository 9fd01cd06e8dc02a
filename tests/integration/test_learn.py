"""`penstock learn` with fio: measurement, kill and resumption; unsuitable directories."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.archive.runs import bundles
from penstock.cli import main
from tests.integration.ground import is_clean, prepare_directory
from tests.support import commands

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="needs fio")

LINE = [sys.executable, "-c", "from penstock.cli import main; main()", "learn"]
SMALL = [
    "--dimension=pattern=sequential,skew-90-10",
    "--dimension=clients=0,1",
    "--dimension=request=4KiB,1MiB",
    "--dimension=size=2MiB",
    "--cell=100ms",
    "--points=10",
]


@pytest.fixture
def ground(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    return prepare_directory(tmp_path)


def penstock(argv: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return commands.run(
        [*LINE, *argv], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_killed_measurement_is_resumed(ground: tuple[Path, dict[str, str]]) -> None:
    device, environment = ground
    out = device.parent / "out"
    argv = [str(device), "-o", str(out), "--adaptive", *SMALL, "--json"]
    first = subprocess.Popen(
        [*LINE, *argv], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 90
    while not (out / "runs" / "r003").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    finished = {b.path.name: (b.path / "manifest.json").stat().st_mtime_ns for b in bundles(out)}
    assert len(finished) >= 3
    assert not (out / "model.json").exists()

    refused = penstock(argv, environment)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    mismatch = penstock([*argv, "--resume", "--dimension=request=8KiB"], environment)
    assert mismatch.returncode == 2
    assert "another space" in mismatch.stderr

    result = penstock([*argv, "--resume", "--predict", "scan size=2MiB"], environment)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["points"] == 10
    assert answer["left_out"] == []
    assert answer["overlap"]["runs"] == 3
    (task,) = answer["predictions"]
    assert task["bound"] == "lower"
    assert 0 < task["low"] < task["time_s"]
    for name, mtime_ns in finished.items():  # finished runs are not repeated
        assert (out / "runs" / name / "manifest.json").stat().st_mtime_ns == mtime_ns
    assert is_clean(device)
    assert len(bundles(out)) == 14  # one study with 10 points and 4 scans

    # the model alone predicts the same, and prints its tree
    prediction = penstock(
        [str(out / "model.json"), "--predict", "scan size=2MiB", "--json"], environment
    )
    assert json.loads(prediction.stdout)["predictions"] == answer["predictions"]
    page = penstock([str(out / "model.json")], environment).stdout
    assert page.startswith((out / "tree.txt").read_text())
    assert max(map(len, page.splitlines())) <= 100
    for name in ("tree.json", "tree.svg", "points.csv"):
        assert (out / name).stat().st_size > 100


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["{device}/none"], 2, "found no directory"),
        (["{device}", "-o", "{device}/out"], 2, "inside the directory"),
        (["{device}", "--dimension", "clients=x"], 2, "found 'x'"),
        (["{device}", "--model", "oracle"], 2, "tree, neighbours, boosted"),
        (["{device}", "--budget", "soon"], 2, "--budget"),
        (["{device}", "--predict", "sort size=1GB"], 2, "expected a task"),
        (["{device}", "--dimension", "size=100TiB", "-o", "{out}"], 1, "needed for"),
    ],
)
def test_bad_input_is_reported_and_leaves_nothing(
    ground: tuple[Path, dict[str, str]],
    arguments: list[str],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    device, environment = ground
    out = device.parent / "out"
    for name in ("PENSTOCK_STATE", "PENSTOCK_RUNTIME"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.chdir(device.parent)
    filled = [w.format(device=device, out=out) for w in arguments]
    monkeypatch.setattr(sys, "argv", ["penstock", "learn", *filled])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == status
    assert message in capsys.readouterr().err
    assert not out.exists()
    assert {p.name.removesuffix("-passable") for p in device.parent.iterdir()} <= {
        "device",
        "state",
        "run",
    }
    assert is_clean(device)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_full_and_a_read_only_directory(
    ground: tuple[Path, dict[str, str]],
) -> None:
    device, environment = ground
    out = device.parent / "out"
    argv = [str(device), "-o", str(out), *SMALL]
    mounted = commands.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(device)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting fails on this host")
    try:
        # planted: penstock sees more free space than there is
        module = "penstock.campaign.preparation.disk_space"
        hog = f"import {module} as s; s.free_bytes = lambda path: (1 << 40, 0)\n{LINE[2]}"
        large = [*argv, "--dimension=size=6MiB"]
        full = commands.run(
            [LINE[0], "-c", hog, "learn", *large], env=environment, capture_output=True, text=True
        )
        assert full.returncode == 1
        assert "No space left on device" in full.stderr
        assert "Traceback" not in full.stderr
        assert is_clean(device)
        assert not (out / "model.json").exists()
        # with the actual free space nothing is started
        shutil.rmtree(out)
        refused = penstock(large, environment)
        assert (refused.returncode, "needed for" in refused.stderr) == (1, True), refused.stderr
        assert not out.exists()
        commands.run(["mount", "-o", "remount,ro", str(device)], check=True)
        read_only = penstock(argv, environment)
        assert read_only.returncode == 2
        assert "cannot be written to" in read_only.stderr
        assert not out.exists()
    finally:
        commands.run(["umount", str(device)], check=True)
