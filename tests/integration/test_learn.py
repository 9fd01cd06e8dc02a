"""`penstock learn` with a real fio: measured, killed, gone on with; directories that cannot be measured."""

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
from tests.integration.ground import clean, prepared
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
    return prepared(tmp_path)


def penstock(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return commands.run(
        [*LINE, *words], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.timed
@pytest.mark.long
@pytest.mark.timeout(240)
def test_learning_is_killed_and_gone_on_with(ground: tuple[Path, dict[str, str]]) -> None:
    device, environment = ground
    out = device.parent / "out"
    words = [str(device), "-o", str(out), "--adaptive", *SMALL, "--json"]
    first = subprocess.Popen(
        [*LINE, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 90
    while not (out / "runs" / "r003").exists() and time.monotonic() < until:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    made = {b.path.name: (b.path / "manifest.json").stat().st_mtime_ns for b in bundles(out)}
    assert len(made) >= 3
    assert not (out / "model.json").exists()

    refused = penstock(words, environment)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    other = penstock([*words, "--resume", "--dimension=request=8KiB"], environment)
    assert other.returncode == 2
    assert "another space" in other.stderr

    done = penstock([*words, "--resume", "--predict", "scan size=2MiB"], environment)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["points"] == 10
    assert answer["left_out"] == []
    assert answer["overlap"]["runs"] == 3
    (task,) = answer["predictions"]
    assert task["bound"] == "lower"
    assert 0 < task["low"] < task["time_s"]
    for name, when in made.items():  # nothing that was finished is made again
        assert (out / "runs" / name / "manifest.json").stat().st_mtime_ns == when
    assert clean(device)
    assert len(bundles(out)) == 14  # 10 points and 4 scans, of one study

    # the model alone predicts the same, and prints its tree
    again = penstock(
        [str(out / "model.json"), "--predict", "scan size=2MiB", "--json"], environment
    )
    assert json.loads(again.stdout)["predictions"] == answer["predictions"]
    page = penstock([str(out / "model.json")], environment).stdout
    assert page.startswith((out / "tree.txt").read_text())
    assert max(map(len, page.splitlines())) <= 100
    for name in ("tree.json", "tree.svg", "points.csv"):
        assert (out / name).stat().st_size > 100


@pytest.mark.parametrize(
    ("words", "status", "said"),
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
def test_what_cannot_be_measured_is_said_and_leaves_nothing(
    ground: tuple[Path, dict[str, str]],
    words: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    device, environment = ground
    out = device.parent / "out"
    for name in ("PENSTOCK_STATE", "PENSTOCK_RUNTIME"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.chdir(device.parent)
    filled = [w.format(device=device, out=out) for w in words]
    monkeypatch.setattr(sys, "argv", ["penstock", "learn", *filled])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == status
    assert said in capsys.readouterr().err
    assert not out.exists()
    assert {p.name.removesuffix("-passable") for p in device.parent.iterdir()} <= {
        "device",
        "state",
        "run",
    }
    assert clean(device)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_directory_that_fills_up_and_one_that_is_read_only(
    ground: tuple[Path, dict[str, str]],
) -> None:
    device, environment = ground
    out = device.parent / "out"
    words = [str(device), "-o", str(out), *SMALL]
    mounted = commands.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(device)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("cannot mount here")
    try:
        # what penstock sees as free is gone when the data are laid out
        module = "penstock.campaign.preparation.disk_space"
        hog = f"import {module} as s; s.free_bytes = lambda path: (1 << 40, 0)\n{LINE[2]}"
        large = [*words, "--dimension=size=6MiB"]
        full = commands.run(
            [LINE[0], "-c", hog, "learn", *large], env=environment, capture_output=True, text=True
        )
        assert full.returncode == 1
        assert "No space left on device" in full.stderr
        assert "Traceback" not in full.stderr
        assert clean(device)
        assert not (out / "model.json").exists()
        # and when it is known before, nothing begins
        shutil.rmtree(out)
        known = penstock(large, environment)
        assert (known.returncode, "needed for" in known.stderr) == (1, True), known.stderr
        assert not out.exists()
        commands.run(["mount", "-o", "remount,ro", str(device)], check=True)
        read_only = penstock(words, environment)
        assert read_only.returncode == 2
        assert "cannot be written to" in read_only.stderr
        assert not out.exists()
    finally:
        commands.run(["umount", str(device)], check=True)
