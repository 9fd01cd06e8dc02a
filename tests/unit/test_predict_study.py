"""Prediction of a simulated study from the trace of one treatment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.archive.bundle import Bundle
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.errors import BadInput, PenstockError
from penstock.profile.model import native
from penstock.spec.study import Study
from penstock.study.load import load_study
from penstock.study.resolve import example_command, resolve
from penstock.study_prediction.disk_workload import beyond_model, closed_loop_of
from penstock.study_prediction.predict import predict_plan, predict_study, score
from penstock.study_prediction.think_times import ClientCosts, client_costs
from penstock.workload.parsers import parser

THINK_NS = 60_000.0
STUDY = """\
penstock: 1
name: access
question: Does random access cost anything on this disk?
factors:
  disk:    {levels: [hdd-7200, sata-ssd]}
  pattern: {levels: {sequential: read, random: randread}}
  jobs:    {levels: [1, 8]}
design: {kind: full, replicates: 2, seed: 7}
platform:
  nodes:
    - name: node1
      memory: 512MiB
      disks:
        - {name: data, profile: "{disk}", time_scale: 4}
workload:
  command: >
    fio --name=access --directory={data} --rw={pattern} --bs=4k --numjobs={jobs} --size=64m --direct=1
    --ioengine=psync --time_based --runtime=2 --output-format=json+ --output={run_dir}/fio.json
  timeout: 60s
  parser: fio
responses:
  bandwidth: {from: read_bandwidth, unit: MiB/s, better: higher}
observers:
  trace: {mode: trace}
"""


def true_bandwidth(study: Study, levels: dict[str, str], seed: int) -> float:
    """Bandwidth [MiB/s] of a program with a think time of THINK_NS per operation."""
    run = resolve(study, levels)
    jobs = parser("fio").operations(example_command(run))
    assert jobs
    closed_loop = closed_loop_of(run, jobs, ClientCosts(think_ns=THINK_NS))
    outcome = json.loads(native.simulate_closed(json.dumps(closed_loop.spec | {"seed": seed})))
    return float(outcome["read"]["rate_bps"]) / (1 << 20)


def traced(study: Study, levels: dict[str, str]) -> pa.Table:
    """Trace of one thread that reads sequentially in requests of 4 KiB."""
    n = 2000
    offset = np.arange(n, dtype=np.uint64) * 4096
    served = native.station_serve(
        json.dumps(resolve(study, levels).disks[0].profile),
        99,
        np.arange(n, dtype=np.uint64) * 1_000_000_000,
        np.zeros(n, dtype=np.uint8),
        offset,
        np.full(n, 4096, dtype=np.uint64),
    )
    latency = np.frombuffer(served["service_ns"], dtype=np.uint64).astype(np.int64)
    think = np.random.default_rng(5).exponential(THINK_NS, n).astype(np.int64)
    start = np.concatenate([[0], np.cumsum(latency + think)[:-1]])
    return pa.table(
        {
            "t_ns": start,
            "seq": np.arange(n, dtype=np.uint64),
            "direction": ["read"] * n,
            "file_id": np.zeros(n, dtype=np.int64),
            "offset_bytes": offset.astype(np.int64),
            "size_bytes": np.full(n, 4096),
            "latency_ns": latency,
            "tid": np.full(n, 77),
            "flags": np.full(n, 1),
        }
    )


def write_study(out: Path, study: Study, plan: Plan, spoil: float = 1.0) -> None:
    """Write a finished study with responses, and the trace of a run of the first SSD treatment."""
    (out / "study.yaml").write_text(STUDY)
    (out / "plan.json").write_text(json.dumps(plan.to_json()))
    for row in plan.rows:
        value = true_bandwidth(study, row.levels, seed=1000 + row.run_order)
        if row.levels["disk"] == "hdd-7200":
            value *= spoil
        manifest: dict[str, Any] = {
            "schema": "penstock/bundle/1",
            "study_id": plan.study_id,
            "treatment_id": row.treatment_id,
            "run_id": row.run_id,
            "run_order": row.run_order,
            "attempt": 1,
            "levels": row.levels,
            "state": "finished",
            "valid": row.replicate == 1 or row.levels["jobs"] == "8",
            "responses": {"bandwidth": {"value": value, "unit": "MiB/s"}},
        }
        with Bundle.create(out / "runs" / row.run_id, manifest) as bundle:
            levels = (row.levels["disk"], row.levels["pattern"], row.levels["jobs"])
            if levels == ("sata-ssd", "sequential", "1"):
                bundle.write_table("io_events", traced(study, row.levels))


@pytest.fixture
def plan_and_study(tmp_path: Path) -> tuple[Study, Plan]:
    file = tmp_path / "access.study.yaml"
    file.write_text(STUDY)
    study = load_study(file)
    return study, make_plan(study)


def test_all_treatments_from_one_trace(tmp_path: Path, plan_and_study: tuple[Study, Plan]) -> None:
    write_study(tmp_path, *plan_and_study)
    frame = predict_study(tmp_path, seeds=5)
    assert len(frame) == 8
    assert set(frame["basis_treatment"]) == {"t05"}
    assert list(frame.loc[frame["is_basis"], "treatment_id"]) == ["t05"]
    assert (frame["ratio"] - 1).abs().max() < 0.10
    result = score(frame)
    assert (result.treatments, result.share) == (7, 1.0)
    assert (frame["ci_low"] <= frame["predicted"]).all()
    assert (frame["predicted"] <= frame["ci_high"]).all()
    # the measured mean excludes invalid runs
    assert set(frame["measured_n"]) == {1, 2}
    table = pq.read_table(tmp_path / "predictions.parquet")
    assert {"disk", "pattern", "jobs", "source", "basis_treatment"} <= set(table.column_names)
    assert set(table["source"].to_pylist()) == {"station"}


def test_disk_that_differs_from_its_profile_is_detected(
    tmp_path: Path, plan_and_study: tuple[Study, Plan]
) -> None:
    write_study(tmp_path, *plan_and_study, spoil=0.7)
    result = score(predict_study(tmp_path, "t05", seeds=3))
    assert result.share == pytest.approx(3 / 7)


def test_think_time_follows_from_gaps(tmp_path: Path, plan_and_study: tuple[Study, Plan]) -> None:
    study, plan = plan_and_study
    write_study(tmp_path, study, plan)
    traced_run = next((tmp_path / "runs").glob("*/io_events.parquet")).parent
    costs = client_costs(Bundle.open(traced_run))
    assert costs.think_ns == pytest.approx(THINK_NS, rel=0.08)
    assert costs.think_ns_per_byte == 0
    assert costs.path_ns == 0


def test_missing_traces_and_unknown_treatments_are_errors(
    tmp_path: Path, plan_and_study: tuple[Study, Plan]
) -> None:
    write_study(tmp_path, *plan_and_study)
    with pytest.raises(BadInput, match="no treatment t99"):
        predict_study(tmp_path, "t99")
    with pytest.raises(PenstockError, match="of treatment t01 was traced"):
        predict_study(tmp_path, "t01")


def test_prediction_of_a_study_without_runs(plan_and_study: tuple[Study, Plan]) -> None:
    frame = predict_plan(plan_and_study[0], seeds=2)
    assert frame["predicted"].notna().all()
    assert frame["measured_mean"].isna().all()
    assert score(frame).treatments == 0
    by = frame.set_index(["disk", "pattern", "jobs"])["predicted"]
    # small random reads are slow on the SSD with one job, not with eight jobs
    penalty = {j: by["sata-ssd", "sequential", j] / by["sata-ssd", "random", j] for j in ("1", "8")}
    assert penalty["1"] > 2
    assert penalty["8"] < 1.5
    assert by["hdd-7200", "sequential", "1"] > 50 * by["hdd-7200", "random", "1"]


def test_calls_of_a_buffered_reader_are_smaller_than_its_requests(tmp_path: Path) -> None:
    """Requests of the kernel's read-ahead counted as calls of the program."""
    file = tmp_path / "buffered.study.yaml"
    text = STUDY.replace("--direct=1", "--number_ios=3200").replace("--time_based --runtime=2", "")
    text = text.replace(
        "observers:",
        "  iops: {from: read_iops, unit: 1/s, better: higher}\n"
        "  p99: {from: read_p99_latency, unit: ms, better: lower}\n"
        "  bytes: {from: read_bytes, unit: KiB, better: lower}\nobservers:",
    )
    file.write_text(text)
    keys = ["disk", "pattern", "jobs", "response"]
    predicted = predict_plan(load_study(file), seeds=1).set_index(keys)["predicted"].sort_index()
    of = predicted["sata-ssd", "sequential", "1"]
    assert of["bytes"] == pytest.approx(3200 * 4)
    assert of["iops"] * 4 / 1024 == pytest.approx(of["bandwidth"])
    assert np.isnan(of["p99"])
    assert predicted["sata-ssd", "random", "1", "p99"] > 0


def test_jobs_are_on_the_disk_of_their_files(tmp_path: Path) -> None:
    """A relative name of a file was on the first disk, as were all jobs."""
    two = '        - {name: data, profile: "{disk}", time_scale: 4}\n'
    two += "        - {name: log, profile: hdd-7200, time_scale: 4, mount: /var/log/db}\n"
    first = STUDY.index("        - {name: data")
    text = STUDY[:first] + two + STUDY[STUDY.index("workload:") :]
    file = tmp_path / "disks.study.yaml"
    file.write_text(text.replace("--directory={data}", "--directory={log} --filename=x"))
    study = load_study(file)
    run = resolve(study, make_plan(study).rows[0].levels)
    (job,) = parser("fio").operations(example_command(run)) or []
    assert closed_loop_of(run, [job], ClientCosts()).disk.name == "log"
    assert beyond_model(run, [job]) == ""
    other = replace(job, filename="/data/y")
    mounted = replace(job, filename="/var/log/db/y")
    assert beyond_model(run, [job, mounted]) == ""
    assert beyond_model(run, [job, other]) == "the model has no jobs on several disks"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--rate_iops=100", "the model has no --rate_iops of fio"),
        ("--name=second --stonewall", "the model has no --stonewall of fio"),
        ("--name=second --runtime=9", "the model has no jobs that end separately"),
        ("--name=a; fio --name=b", "the model has no calls of fio one after the other"),
    ],
)
def test_options_beyond_the_model_have_no_prediction(
    tmp_path: Path, options: str, why: str
) -> None:
    """Fails if options are ignored, such as a limited rate that is predicted as an unlimited one."""
    file = tmp_path / "limited.study.yaml"
    file.write_text(STUDY.replace("--output-format", f"{options} --output-format"))
    frame = predict_plan(load_study(file), seeds=1)
    assert frame["predicted"].isna().all()
    assert set(frame["note"]) == {why}


def test_without_operations_the_trace_is_replayed(
    tmp_path: Path, plan_and_study: tuple[Study, Plan]
) -> None:
    text = STUDY.replace("parser: fio", "parser: none").replace(
        "from: read_bandwidth", "from: wall_s"
    )
    text = text.replace("unit: MiB/s, better: higher", "unit: s, better: lower")
    file = tmp_path / "replay.study.yaml"
    file.write_text(text)
    study = load_study(file)
    plan = make_plan(study)
    out = tmp_path / "out"
    out.mkdir()
    write_study(out, study, plan)
    (out / "study.yaml").write_text(text)
    basis = next(iter((out / "runs").glob("*/io_events.parquet"))).parent
    manifest = json.loads((basis / "manifest.json").read_text())
    for path in (out / "runs").glob("*/manifest.json"):
        document = json.loads(path.read_text())
        document["responses"] = {"bandwidth": {"value": 0.4, "unit": "s"}}
        path.write_text(json.dumps(document))
    frame: pd.DataFrame = predict_study(out, manifest["treatment_id"], seeds=2)
    predicted = frame.set_index(["disk", "pattern", "jobs"])["predicted"].dropna()
    # only treatments with another disk can be predicted
    assert set(predicted.index) == {
        ("hdd-7200", "sequential", "1"),
        ("sata-ssd", "sequential", "1"),
    }
    assert predicted["sata-ssd", "sequential", "1"] == pytest.approx(0.4, rel=0.01)
    assert predicted["hdd-7200", "sequential", "1"] > 0.8
    assert frame["note"].str.contains("more than disk and memory").sum() == 6


def test_jobs_with_separate_offsets_are_separate_streams(tmp_path: Path) -> None:
    text = STUDY.replace("--directory={data}", "--filename={data}/file --offset_increment=4m")
    file = tmp_path / "access.study.yaml"
    file.write_text(text)
    by = predict_plan(load_study(file), seeds=2).set_index(["disk", "pattern", "jobs"])["predicted"]
    # a disk with one head: eight parallel streams are as slow as random access
    eight, random = by["hdd-7200", "sequential", "8"], by["hdd-7200", "random", "8"]
    assert eight == pytest.approx(random, rel=0.15)
    assert by["hdd-7200", "sequential", "1"] > 20 * eight
