"""`penstock explore` through its command line: from a workload and a platform to a decision."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from penstock.archive.documents import EXPLORATION
from penstock.archive.schemas import TABLES
from penstock.cli import main
from penstock.host.processes.dask_cluster import connected
from penstock.parts.prediction.exploration.cluster import Clustered
from penstock.parts.prediction.exploration.simulate import Simulated
from penstock.parts.prediction.exploration.space.space import make_space, parse_axis
from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.workloads.read import read_workload
from penstock.platform.hosts import load_platform
from tests.model.explore_files import penstock, write_files
from tests.support import commands

VARY = ["--vary", "split=app:storage/10,13", "--vary", "store.chunk=256KiB,1MiB"]
MORE = ["--vary", "store.replicas=1,2"]


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Directory, JSON and output of one exploration."""
    folder = tmp_path_factory.mktemp("explore")
    command = write_files(folder)
    out = folder / "out"
    done = penstock(*command, *VARY, *MORE, "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return out, json.loads((out / "exploration.json").read_text()), done.stdout


def test_report_agrees_with_the_table(
    explored: tuple[Path, dict[str, Any], str],
) -> None:
    out, summary, printed = explored
    table = pd.read_parquet(out / "evaluations.parquet")
    assert summary["counts"]["configurations"] == 21 * 2 * 2
    assert summary["counts"]["evaluated"] == table["candidate_id"].nunique() == 80
    assert summary["counts"]["cannot_be_built"] == {"more replicas than storage hosts": 4}
    common = table[(table["draw"] == 0) & table["seed"].isin(summary["seeds"])]
    by_candidate = common.groupby("candidate_id")[["makespan_s", "cost", "energy_j"]]
    means = by_candidate.mean()[by_candidate.size() == len(summary["seeds"])]
    assert len(summary["seeds"]) >= 5
    assert len(means) < len(by_candidate)
    for row in summary["front"]:
        mean = means.loc[row["candidate_id"]]
        assert row["makespan_s"] == pytest.approx(mean["makespan_s"])
        # no configuration is better in all objectives
        assert not ((means <= mean).all(axis=1) & (means < mean).any(axis=1)).any()
    rec = summary["recommendation"]
    assert rec["state"] in ("decided", "undecided")
    assert " ".join(rec["text"].split()) in " ".join(printed.split())
    assert all(len(line) <= 100 for line in printed.splitlines())
    # the report includes the model's verdict
    assert summary["applies"]["verdict"] in ("ok", "caution")


def test_results_of_a_configuration_equal_those_of_predict(
    explored: tuple[Path, dict[str, Any], str],
) -> None:
    out, _, _ = explored
    table = pd.read_parquet(out / "evaluations.parquet")
    platform = load_platform(out.parent / "platform.yaml")
    workload = read_workload(out.parent / "work.json")
    for _, row in table[table["seed"] == 1].sample(4, random_state=1).iterrows():
        app, storage = map(int, row["split"].split("+"))
        values = {
            "hosts.app.count": app,
            "hosts.storage.count": storage,
            "store.chunk": row["store.chunk"],
            "store.replicas": int(row["store.replicas"]),
        }
        prediction = predict(workload, platform.with_values(values), seeds=[1], explained=False)
        assert prediction.makespan_s == row["makespan_s"]
        assert prediction.energy_j == pytest.approx(row["energy_j"])
        assert prediction.cost is not None
        assert prediction.cost.amount == pytest.approx(row["cost"])
        assert row["hosts"] == app + storage + 1


def test_the_table_is_described(explored: tuple[Path, dict[str, Any], str]) -> None:
    schema = pq.read_schema(explored[0] / "evaluations.parquet")
    columns = {c.name: c for c in TABLES["evaluations"].columns}
    axes = {"split", "store.chunk", "store.replicas"}
    assert set(schema.names) == set(columns) | axes
    for name, column in columns.items():
        assert schema.field(name).type == column.arrow
        assert schema.field(name).metadata[b"meaning"].decode() == column.meaning
    assert schema.metadata[b"penstock.key"] == b"candidate_id,seed,draw"


def test_page_has_no_external_references(explored: tuple[Path, dict[str, Any], str]) -> None:
    out, summary, _ = explored
    page = (out / "exploration.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page)
    assert "://" not in page.replace("http://www.w3.org", "")
    assert "Pareto front" in page
    assert page.count('<svg class="plot"') == 4  # two figures, wide and narrow
    sentence = summary["recommendation"]["text"].split(":")[0]
    assert sentence in page
    for name in ("front.svg", "front.pdf", "decisions.svg", "decisions.pdf"):
        assert (out / "figures" / name).stat().st_size > 1000
    assert not (out / "evaluations.parts").exists()


def test_json_objective_and_constraints(tmp_path: Path) -> None:
    command = write_files(tmp_path)
    result = penstock(
        *command,
        *VARY,
        "--objective",
        "time",
        "--constraint",
        "hosts <= 11",
        "--constraint",
        "makespan <= 10 min",
        "--seeds",
        "5",
        "--json",
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["objective"] == "time"
    assert summary["counts"]["against_constraints"] == 24
    assert {row["hosts"] for row in summary["compared"]} == {11}
    assert summary["compared"][0]["verdict"] == "best"
    described = {k.path.split("[")[0].split(".")[0] for k in EXPLORATION.keys}
    assert set(summary) == described
    one_seed = penstock(*command, *VARY, "--seeds", "1", "--json")
    assert one_seed.returncode == 0, one_seed.stderr
    one_seed_summary = json.loads(one_seed.stdout)
    # one seed has no interval, so there is no decision
    assert one_seed_summary["recommendation"]["state"] == "undecided"
    assert one_seed_summary["compared"][1]["difference"]["low"] is None


@pytest.mark.long
def test_threads_and_a_cluster_give_equal_results(tmp_path: Path) -> None:
    write_files(tmp_path)
    workload = read_workload(tmp_path / "work.json")
    platform = load_platform(tmp_path / "platform.yaml")
    space = make_space([parse_axis("split=app:storage/8"), parse_axis("store.replicas=1,2")])
    simulated = Simulated(workload, platform, space)
    candidates = [c for c in space if simulated.reason(c) is None]
    expected = simulated.evaluate(candidates, [1, 2])
    for threads in (1, 2):
        assert (
            Simulated(workload, platform, space, threads).evaluate(candidates, [1, 2]) == expected
        )
    assert [[m] for m, _ in expected] == simulated.evaluate(candidates, [1])
    with connected("local") as client:
        assert client.scheduler.address.startswith("tls://")
        clustered = Clustered(workload, platform, space, client)
        assert clustered.evaluate(candidates, [1, 2]) == expected


SLOW = ["--vary", "split=app:storage/19", "--vary", "store.chunk=64KiB..1MiB*2"]
SLOW += ["--vary", "store.replicas=1,2", "--vary", "store.stripe=1,2", "--seeds", "2"]
SLOW += ["--engine", "grid"]


#: penstock with an exploration in small parts that does not complete: it waits after thirty of them
WAITING = """
import time
from penstock.cli import main
from penstock.parts.prediction.exploration import record
record._BATCH_S = 0.0
evaluate_batch, batches = record.Record._evaluate_batch, []
def evaluate_or_wait(*arguments):
    batches.append(arguments)
    if len(batches) == 31:
        time.sleep(600)
    evaluate_batch(*arguments)
record.Record._evaluate_batch = evaluate_or_wait
main()
"""


def number_of_parts(out: Path) -> int:
    return len(list((out / "evaluations.parts").glob("0*.parquet")))


def start_exploration(command: list[str], out: Path, *options: str) -> subprocess.Popen[str]:
    """Start an exploration that does not end, and wait until it has written its first parts."""
    before = number_of_parts(out)
    process = commands.popen(
        [*commands.CODE, WAITING, *command, *SLOW, "-o", str(out), "-q", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(6000):
        if number_of_parts(out) >= before + 3:
            return process
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    raise AssertionError("no configuration was evaluated within 60 s")


@pytest.mark.long
def test_resume_continues_a_killed_exploration(tmp_path: Path) -> None:
    command = write_files(tmp_path, width=19, file_bytes=10 << 20)
    out = tmp_path / "out"
    process = start_exploration(command, out)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    stored_rows = sum(
        pq.read_metadata(p).num_rows for p in (out / "evaluations.parts").glob("0*.parquet")
    )
    assert stored_rows > 0

    repeated = penstock(*command, *SLOW, "-o", str(out))
    assert repeated.returncode == 2
    assert "--resume continues it" in repeated.stderr
    other_axes = penstock(*command, *SLOW[2:], "-o", str(out), "--resume")
    assert other_axes.returncode == 2
    assert "is of another axes" in other_axes.stderr

    process = start_exploration(command, out, "--resume")
    process.send_signal(signal.SIGINT)
    printed, complaints = process.communicate()
    assert process.returncode == 130, complaints
    assert "No recommendation: the exploration was stopped" in printed
    assert "--resume" in complaints
    assert not (out / "evaluations.parts").exists()
    stopped = pd.read_parquet(out / "evaluations.parquet")
    assert len(stopped) > stored_rows

    resumed = penstock(*command, *SLOW, "-o", str(out), "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    summary = json.loads(resumed.stdout)
    assert summary["counts"]["read_from_before"] == len(stopped)
    uninterrupted = penstock(*command, *SLOW, "-o", str(tmp_path / "whole"), "--json")
    assert json.loads(uninterrupted.stdout)["front"] == summary["front"]
    first, second = (pd.read_parquet(d / "evaluations.parquet") for d in (out, tmp_path / "whole"))
    assert first.equals(second)


def test_outside_the_model_there_is_no_recommendation(tmp_path: Path) -> None:
    command = write_files(tmp_path)
    result = penstock(*command, *VARY, "--set", "hosts.manager.manager.service=2s", "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["applies"]["verdict"] == "outside"
    assert summary["recommendation"]["state"] == "none"
    assert "saturated" in summary["recommendation"]["text"]
    assert summary["recommendation"]["configuration"] is None


def test_configurations_whose_store_fills_up_are_rejected(tmp_path: Path) -> None:
    command = write_files(tmp_path)
    # 12 inputs and 12 parts of 4 MiB and a result of 48 MiB: 144 MiB
    capacity = ["--set", "hosts.storage.storage.capacity=40MiB"]
    result = penstock(*command, "--vary", "split=app:storage/8", *capacity, "--json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert sum(summary["counts"]["failed"].values()) >= 3
    assert any("the store is full" in reason for reason in summary["counts"]["failed"])
    assert summary["front"]
    for row in summary["front"]:
        assert int(row["levels"]["split"].split("+")[1]) >= 4
    assert summary["counts"]["admissible"] + sum(summary["counts"]["failed"].values()) == 7


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "nothing to vary"),
        (["--vary", "store.chnk=1MiB"], "did you mean 'chunk'?"),
        (["--vary", "store.chunk=1MiB..64KiB*2"], "the smaller end first"),
        ([*VARY, "--objective", "cots"], "found 'cots'; expected time, cost, energy"),
        ([*VARY, "--constraint", "cost <= 2 USD"], "expected EUR, the platform's currency"),
        ([*VARY, "--constraint", "cost"], "expected a comparison"),
        ([*VARY, "--engine", "grid", "--budget", "5"], "the budget is 5"),
        ([*VARY, "--space", "none.yaml"], "no space file"),
        ([*VARY, "--cluster", "nowhere://x:1", "--insecure"], "--cluster nowhere://x:1"),
        ([*VARY, "--cluster", "tcp://127.0.0.1:1"], "found tcp, which others in the network"),
        ([*VARY, "--cluster", "127.0.0.1:1"], "found tcp, which others in the network"),
        ([*VARY, "--level", "1.5"], "level"),
        ([*VARY, "--set", "store.chunk=x"], "--set store.chunk=x:1:1"),
        (["--vary", "split=app:disks/9"], "'disks', which is not in hosts"),
    ],
)
def test_bad_input_gives_one_clear_error_and_no_output(
    tmp_path: Path,
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = write_files(tmp_path)
    out = tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["penstock", *command, *arguments, "-o", str(out)])
    with pytest.raises(SystemExit) as exited:
        main()
    printed, complaints = capsys.readouterr()
    assert exited.value.code == 2
    assert complaint in complaints
    assert printed == ""
    assert not out.exists()
