"""Intervals of programs that compute: their sources, and their coverage of synthetic programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from penstock.cli import main
from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.black_box.model import BlackBoxModel, Overlap, learnt
from penstock.parts.prediction.black_box.predict import parse_task, task_time
from penstock.parts.prediction.black_box.programs import (
    ProgramRun,
    attainable,
    over_programs,
    read_programs,
    scores,
)
from penstock.parts.prediction.black_box.space import MIB, Space
from penstock.parts.prediction.black_box.tasks import TaskTime, further_run, with_computing
from penstock.parts.prediction.learning.learn import points_in
from penstock.parts.prediction.learning.processor_time import of_command, of_runs

SPACE = Space(
    operation=("read",),
    pattern=("sequential",),
    clients=(0, 1, 2, 3),
    request_bytes=(4096, 65536, MIB),
    data_bytes=(64 * MIB, 128 * MIB),
)
SIZE = 128 * MIB


@pytest.fixture(scope="module")
def model() -> BlackBoxModel:
    """A storage of 100 MB/s, ± 3 %, shared by its clients."""
    rng = np.random.default_rng(4)
    points = SPACE.grid()
    rates = [1e8 / (p.clients + 1) * math.exp(rng.normal(0, 0.03)) for p in points]
    trained = learnt(SPACE, points, rates, complete=False)
    trained.overlap = Overlap(0.9, 3, 0.02)
    return trained


def test_an_interval_includes_computing(model: BlackBoxModel) -> None:
    io = task_time(model, "scan", size=SIZE)
    single = task_time(model, "scan", size=SIZE, cpu_s=2.0)
    # any overlap of computing and storage, with either end of the storage
    assert single.low == pytest.approx(max(io.low, 2.0))
    assert single.high == pytest.approx(io.high + 2.0)
    assert single.time_s == pytest.approx(with_computing(io.time_s, 2.0, 0.9))
    assert (single.cpu_range_s, single.overlap_range) == ((2.0, 2.0), (0.0, 1.0))
    assert "left out" in single.covers[1]
    # with a specified overlap only the storage varies
    fixed = task_time(model, "scan", size=SIZE, cpu_s=2.0, overlap=0.5)
    assert fixed.high == pytest.approx(with_computing(io.high, 2.0, 0.5))
    assert fixed.high < single.high
    # several processor times widen the interval by their variation
    several = task_time(model, "scan", size=SIZE, cpu_s=(1.8, 2.0, 2.2))
    low, high = further_run((1.8, 2.0, 2.2), 0.9)
    assert several.time_s == pytest.approx(single.time_s)
    assert several.low == pytest.approx(max(io.low, low))
    assert several.high == pytest.approx(io.high + high)
    assert "from 3 runs" in several.covers[1]


def further_run_covers(rng: np.random.Generator, planted: bool) -> bool:
    times = rng.normal(10, 1, 5)
    low, high = further_run(times[:4].tolist(), 0.9)
    if planted:  # the interval of the mean, not of a further run
        low, high = (float(times[:4].mean() + (end - times[:4].mean()) / 3) for end in (low, high))
    return bool(low <= times[4] <= high)


def test_range_of_a_further_processor_time() -> None:
    rng = np.random.default_rng(8)
    hits = sum(further_run_covers(rng, planted=False) for _ in range(1000))
    assert binomtest(hits, 1000, 0.9).pvalue > 0.05
    short = sum(further_run_covers(rng, planted=True) for _ in range(1000))
    assert binomtest(short, 1000, 0.9, alternative="less").pvalue < 1e-6
    assert further_run((3.0,), 0.9) == (3.0, 3.0)
    assert further_run((0.0, 1.0), 0.9)[0] == 0.0


def task(time_s: float, low: float, high: float) -> TaskTime:
    return TaskTime(time_s, low, high, "none", time_s, 0.0, 0.0, 0.9)


def program_runs(rng: np.random.Generator, programs: int, runs: int = 3) -> list[ProgramRun]:
    """Programs with individual overheads unknown to the prediction, and runs that vary little."""
    measured_runs = []
    for number in range(programs):
        overhead = math.exp(rng.normal(0.2, 0.3))
        for _ in range(runs):
            measured = overhead * math.exp(rng.normal(0, 0.02))
            measured_runs.append(ProgramRun(f"p{number}", task(1.0, 0.9, 1.1), measured))
    return measured_runs


def covers(rng: np.random.Generator, programs: int, planted: bool) -> bool:
    """True if all runs of one more program are inside."""
    runs = program_runs(rng, programs + 1)
    name = f"p{programs}"
    new = [r for r in runs if r.program == name]
    others = [r for r in runs if r.program != name]
    score_of = scores(others)
    if planted:  # each run counted as a program: too many scores of too few programs
        name_of = [ProgramRun(f"{i}", r.predicted, r.measured_s) for i, r in enumerate(others[:9])]
        score_of = scores(name_of)
    interval = over_programs(new[0].predicted, score_of)
    return all(interval.low <= r.measured_s <= interval.high for r in new)


def test_coverage_of_a_further_program() -> None:
    rng = np.random.default_rng(1)
    nine = sum(covers(rng, 9, planted=False) for _ in range(500))
    assert binomtest(nine, 500, 0.9, alternative="less").pvalue > 0.05
    three = sum(covers(rng, 3, planted=False) for _ in range(500))
    assert binomtest(three, 500, 0.75).pvalue > 0.01
    runs = sum(covers(rng, 9, planted=True) for _ in range(500))
    assert binomtest(runs, 500, 0.9, alternative="less").pvalue < 1e-6


def test_few_programs_attain_less() -> None:
    rng = np.random.default_rng(2)
    assert attainable(9, 0.9) == 0.9
    for n in (1, 2, 3, 5, 6, 8):
        assert attainable(n, 0.9) == pytest.approx(n / (n + 1), abs=1e-5)
        interval = over_programs(task(1.0, 0.9, 1.1), scores(program_runs(rng, n)))
        assert interval.level == attainable(n, 0.9)
        assert f"the {n} measured ({9 - n} more are needed" in interval.covers[-1]
    assert over_programs(task(1, 0.9, 1.1), {}) == task(1, 0.9, 1.1)
    unbounded = task(1, 0, math.inf)
    assert over_programs(unbounded, {"a": 0.1}) == unbounded


def test_programs_narrow_an_interval_to_the_prediction_at_most() -> None:
    runs = [ProgramRun(f"p{i}", task(1.0, 0.5, 2.0), 1.0) for i in range(9)]
    interval = over_programs(task(1.0, 0.5, 2.0), scores(runs))
    assert 0.5 < interval.low <= 1.0 <= interval.high < 2.0


def write(path: Path, *rows: Sequence[str]) -> Path:
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    return path


def test_measured_programs_are_read(model: BlackBoxModel, tmp_path: Path) -> None:
    def predict(text: str) -> TaskTime:
        kind, options = parse_task(text)
        return task_time(model, kind, **options)

    head = ("program", "task", "time")
    file = write(tmp_path / "runs.csv", head, ("grep", '"scan size=128MiB cpu=1s,2s"', "3.5s"))
    (run,) = read_programs(file, predict)
    assert (run.program, run.measured_s) == ("grep", 3.5)
    assert run.predicted == predict("scan size=128MiB cpu=1s,2s")
    for row, expected in (
        (("grep", "scan size=128MiB cpu=1s", "soon"), r"runs\.csv:2: .*duration"),
        (("grep", "scan size=128MiB", "3s"), "with its processor time"),
        (("grep", "sort size=1GB", "3s"), "expected a task"),
        (("grep", "scan size=128MiB cpu=1s"), "expected program, task, time"),
        (("grep", "scan size=128MiB cpu=1s", "0s"), "above 0"),
    ):
        with pytest.raises(BadInput, match=expected):
            read_programs(write(tmp_path / "runs.csv", head, row), predict)
    with pytest.raises(BadInput, match="found the columns program"):
        read_programs(write(tmp_path / "runs.csv", ("program", "time")), predict)
    with pytest.raises(BadInput, match="found no run"):
        read_programs(write(tmp_path / "runs.csv", head), predict)


def test_command_prints_what_an_interval_includes(
    model: BlackBoxModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model.save(tmp_path / "model.json")
    head = ("program", "task", "time")
    rows = [(f"p{i}", "scan size=128MiB cpu=1s", "9s") for i in range(3)]
    file = write(tmp_path / "runs.csv", head, *rows)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(
            "sys.argv", ["penstock", "learn", str(tmp_path / "model.json"), *arguments]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    arguments = ["--predict", "scan size=128MiB cpu=1s", "--programs", str(file)]
    output = run(*arguments)
    assert "75 % interval" in output
    assert "in the interval: computing: one processor time" in output
    assert "a further program like the 3 measured" in output
    answer = json.loads(run(*arguments, "--json", "--model", "neighbours"))
    assert answer["model"] == "neighbours"
    assert set(answer["errors"]) == {"tree", "neighbours", "boosted"}
    assert answer["predictions"][0]["high"] == pytest.approx(9.0, rel=0.01)


def test_a_stored_model_predicts_with_its_own_learner(
    model: BlackBoxModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if `learn` predicts with a tree without --model, or ignores options of a measurement."""
    values = model.to_dict() | {"chosen": "neighbours"}
    path = tmp_path / "model.json"
    path.write_text(json.dumps(values))

    def run(*arguments: str) -> int | str | None:
        monkeypatch.setattr("sys.argv", ["penstock", "learn", str(path), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    assert not run("--json")
    assert json.loads(capsys.readouterr().out)["model"] == "neighbours"
    assert run("--budget", "1min", "-o", str(tmp_path / "out")) == 2
    assert "found --budget, --output; expected none of them" in capsys.readouterr().err


def test_points_are_those_of_the_budget_and_the_limit() -> None:
    assert points_in(240.0, 1.5) == points_in(240.0, 1.5, 1000) > 20
    assert points_in(240.0, 1.5, 20) == points_in(math.inf, 1.5, 20) == 20


def test_processor_time_of_commands_and_runs(tmp_path: Path) -> None:
    idle = of_command("sleep 0.2", runs=2)
    busy = of_command("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done", runs=2)
    assert len(idle) == len(busy) == 2
    assert max(idle) < min(busy)
    of_command("test ! /dev/null -ef /proc/self/fd/1", runs=1)  # grep stops early otherwise
    with pytest.raises(PenstockError, match="status 3"):
        of_command("exit 3")
    with pytest.raises(BadInput, match="no run with a processor time"):
        of_runs(tmp_path)
    _, options = parse_task("scan size=1GiB command='grep -c a file'")
    assert options["command"] == "grep -c a file"
    with pytest.raises(BadInput, match="found cpu and command"):
        parse_task("scan size=1GiB cpu=1s command=true")
