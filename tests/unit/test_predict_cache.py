"""Memory and the page cache in predictions of traced programs, compared with closed forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.archive.bundle import Bundle
from penstock.design.plan import make_plan
from penstock.study.load import load_study
from penstock.study.resolve import resolve
from penstock.study_prediction.predict import predict_study
from penstock.study_prediction.replay import (
    READAHEAD_BYTES,
    Traced,
    dirty_bytes,
    own_memory,
    traced,
)
from penstock.study_prediction.thread_groups import Part, parts_of

MIB = 1 << 20
FILE_PAGES = 6144
READS = 24_000
SERVICE_S = 0.005
HIT_NS, THINK_NS = 3_000, 20_000
STUDY = """\
penstock: 1
name: reader
question: Does memory make up for the disk?
factors:
  disk:   {levels: [service-5ms, sata-ssd]}
  memory: {levels: [20MiB, 128MiB]}
design: {kind: full, replicates: 1, seed: 7}
platform:
  nodes:
    - name: node1
      memory: "{memory}"
      disks: [{name: data, profile: "{disk}"}]
workload:
  prepare: make {data}/file
  command: my-reader {data}/file
  timeout: 300s
responses:
  time: {from: wall_s, unit: s, better: lower}
observers:
  trace: {mode: trace}
"""
OWN_BYTES = 8 * MIB


def reads() -> pd.DataFrame:
    """Random reads of cached single pages; a distance of three pages prevents streams."""
    page = np.random.default_rng(3).integers(0, FILE_PAGES, READS) * 3 + 1
    return pd.DataFrame(
        {
            "t_ns": np.arange(READS) * (HIT_NS + THINK_NS),
            "seq": np.arange(READS, dtype=np.uint64),
            "direction": "read",
            "file_id": 1,
            "offset_bytes": page * 4096,
            "size_bytes": 4096,
            "done_bytes": 4096,
            "latency_ns": HIT_NS,
            "tid": 7,
            "flags": 0,
        }
    )


def expected_s(memory_bytes: int) -> float:
    """Time of the reads with this memory: each page misses once, and again if it was evicted.

    Uniform random references hit with probability resident/pages for any replacement policy.
    """
    pages = min(FILE_PAGES, (memory_bytes - OWN_BYTES) // 4096)
    hits = np.zeros(READS, dtype=bool)
    seen: set[int] = set()
    draw = np.random.default_rng(11).random(READS)
    for i, page in enumerate(reads()["offset_bytes"].to_numpy()):
        cached = page in seen
        seen.add(page)
        hits[i] = cached and draw[i] < min(1.0, pages / len(seen))
    return float((~hits).sum() * SERVICE_S + READS * (HIT_NS + THINK_NS) / 1e9)


def samples(own_bytes: int = OWN_BYTES) -> pa.Table:
    rows = []
    for t in range(3):
        used = own_bytes if t else 0
        rows += [
            (t, "cgroup", "run", "memory", "B", float(used + 30 * MIB)),
            (t, "cgroup", "run", "page_cache", "B", float(30 * MIB)),
            (t, "memory", "host", "shared", "B", 5.0 * MIB),
        ]
    columns = ["t_ns", "source", "entity", "metric", "unit", "value"]
    return pa.Table.from_pandas(pd.DataFrame(rows, columns=columns), preserve_index=False)


@pytest.fixture(scope="module")
def truths() -> dict[str, float]:
    return {"20MiB": expected_s(20 * MIB), "128MiB": expected_s(128 * MIB)}


def archive(out: Path, truths: dict[str, float], own_bytes: int = OWN_BYTES) -> Path:
    """Write a finished study on service-5ms. The traced run has 128 MiB and cached pages."""
    out.mkdir()
    (out / "study.yaml").write_text(STUDY)
    plan = make_plan(load_study(out / "study.yaml"))
    (out / "plan.json").write_text(json.dumps(plan.to_json()))
    for row in plan.rows:
        value = truths[row.levels["memory"]] if row.levels["disk"] == "service-5ms" else None
        manifest: dict[str, Any] = {
            "schema": "penstock/bundle/1",
            "treatment_id": row.treatment_id,
            "run_id": row.run_id,
            "levels": row.levels,
            "valid": True,
            "cpu_ns": READS * (HIT_NS + THINK_NS),
            "responses": {"time": {"value": value, "unit": "s"}},
        }
        with Bundle.create(out / "runs" / row.run_id, manifest) as bundle:
            if row.levels == {"disk": "service-5ms", "memory": "128MiB"}:
                bundle.write_table("io_events", pa.Table.from_pandas(reads(), preserve_index=False))
                bundle.write_table("samples", samples(own_bytes))
    return out


def ratio(frame: pd.DataFrame) -> float:
    rows = frame.set_index(["disk", "memory"])["ratio"]
    return float(rows["service-5ms", "20MiB"])


def test_effect_of_memory_follows_the_closed_form(tmp_path: Path, truths: dict[str, float]) -> None:
    """Half of the file fits: 12 of 24 MiB. The time nearly triples."""
    assert truths["20MiB"] > 1.9 * truths["128MiB"]
    frame = predict_study(archive(tmp_path / "out", truths), seeds=2)
    assert ratio(frame) == pytest.approx(1.0, abs=0.05)
    assert "the whole run" in frame["note"].iloc[0]
    predicted = frame.set_index(["disk", "memory"])["predicted"]
    # also the faster disk, which was not measured
    assert predicted["sata-ssd", "20MiB"] < 0.1 * predicted["service-5ms", "20MiB"]


def test_wrong_sample_of_program_memory_changes_the_prediction(
    tmp_path: Path, truths: dict[str, float]
) -> None:
    """The samples assign 18 of 20 MiB to the program, which is wrong."""
    frame = predict_study(archive(tmp_path / "out", truths, 18 * MIB), seeds=2)
    assert ratio(frame) > 1.2


def basis(tmp_path: Path, tables: dict[str, pa.Table], manifest: dict[str, Any]) -> Traced:
    (tmp_path / "study.yaml").write_text(STUDY)
    study = load_study(tmp_path / "study.yaml")
    run = resolve(study, {"disk": "sata-ssd", "memory": "128MiB"})
    with Bundle.create(tmp_path / "bundle", {"treatment_id": "t1", **manifest}) as bundle:
        for name, table in tables.items():
            bundle.write_table(name, table)
    return traced(Bundle.open(tmp_path / "bundle"), run)


def test_program_memory_reduces_the_page_cache(tmp_path: Path) -> None:
    events = pa.Table.from_pandas(reads().head(100), preserve_index=False)
    sampled = basis(tmp_path, {"io_events": events, "samples": samples()}, {})
    assert sampled.own.bytes == OWN_BYTES
    assert sampled.cache_bytes(sampled.run) == 120 * MIB
    assert own_memory(sampled.bundle).anonymous_bytes == OWN_BYTES
    (tmp_path / "2").mkdir()
    unknown = basis(tmp_path / "2", {"io_events": events}, {})
    assert unknown.own.anonymous_bytes is None
    assert unknown.cache_bytes(unknown.run) == 128 * MIB


def test_dirty_limits_equal_those_of_the_disk_server() -> None:
    from penstock.emulate.disks.server import dirty_bytes as of_the_server

    for memory in (None, 8 * MIB, 96 * MIB, 512 * MIB, 4 << 30):
        assert dirty_bytes(memory) == of_the_server(memory)
    assert READAHEAD_BYTES == 128 << 10


def two_readers() -> pd.DataFrame:
    """Thread 7 reads 8 MiB in 0.2 s, then threads 8 and 9 read single pages for 3 s."""
    frames = []
    for tid, begin, n, step, size in (
        (7, 0, 64, 3_125_000, 128 << 10),
        (8, 10**9, 600, 5_000_000, 4096),
    ):
        for number in (tid,) if tid == 7 else (8, 9):
            frame = reads().head(n).copy()
            frame["t_ns"] = begin + np.arange(n) * step
            frame["size_bytes"] = frame["done_bytes"] = size
            frame["offset_bytes"] = np.arange(n) * size
            frames.append(frame.assign(tid=number))
    return pd.concat(frames, ignore_index=True).assign(
        seq=lambda d: np.arange(len(d), dtype=np.uint64)
    )


@pytest.mark.parametrize(
    ("response", "value", "tids", "counts"),
    [
        ("{from: {regex: 'a ([0-9]+)'}, unit: MiB/s, better: higher}", 39.0, (7,), "read_bytes"),
        ("{from: {regex: 'a ([0-9]+)'}, unit: 1/s, better: higher}", 400.5, (8, 9), "reads"),
        ("{from: {regex: 'a ([0-9]+)'}, unit: s, better: lower}", 3.05, (8, 9), "time"),
        ("{from: {regex: 'a ([0-9]+)'}, unit: ms, better: lower}", 5.0, (8, 9), "reads"),
        ("{from: {regex: 'a ([0-9]+)'}, unit: MiB/s, better: higher}", 900.0, (), "calls"),
        ("{from: wall_s, unit: s, better: lower}", 4.2, (), "time"),
    ],
)
def test_threads_and_unit_of_a_response(
    tmp_path: Path, response: str, value: float, tids: tuple[int, ...], counts: str
) -> None:
    text = STUDY.replace("{from: wall_s, unit: s, better: lower}", response)
    events = pa.Table.from_pandas(two_readers(), preserve_index=False)
    traced_run = basis(tmp_path, {"io_events": events}, {"responses": {"time": {"value": value}}})
    (tmp_path / "study.yaml").write_text(text)
    part: Part = parts_of(traced_run, load_study(tmp_path / "study.yaml").responses)["time"]
    assert (part.tids, part.counts) == (tids, counts), part
    assert part.seconds is None
    if not tids and counts == "calls":
        assert part.why.startswith("assumed")


def test_a_thread_that_only_syncs_is_compared_with_other_bases(tmp_path: Path) -> None:
    """Fails if its number of calls, 0, is a divisor."""
    syncs = pd.DataFrame(
        {"t_ns": 5 * 10**9 + np.arange(300) * 10_000_000, "op": "flush", "pid": 10}
    )
    syncs = syncs.assign(done_ns=syncs["t_ns"] + 1_000_000, offset_bytes=0, size_bytes=0)
    syncs = syncs.assign(disk_id="node1.data", file="f")
    response = "{from: {regex: 'a ([0-9]+)'}, unit: 1/s, better: higher}"
    bases = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        tables = {
            "io_events": pa.Table.from_pandas(two_readers(), preserve_index=False),
            "device_requests": pa.Table.from_pandas(syncs, preserve_index=False),
        }
        bases.append(basis(tmp_path / name, tables, {"responses": {"time": {"value": 100.0}}}))
    file = tmp_path / "study.yaml"
    file.write_text(STUDY.replace("{from: wall_s, unit: s, better: lower}", response))
    part = parts_of(bases[0], load_study(file).responses, bases[1:])["time"]
    assert (part.tids, part.counts, part.seconds) == ((10,), "syncs", None)


def test_random_files_follow_only_from_calls(tmp_path: Path) -> None:
    from penstock.study_prediction.replay import _random

    row = {"direction": "read", "tid": None, "basis": "calls", "class": "consecutive"}
    rows = [row | {"file_id": 1, "path": "/a"}, row | {"file_id": 2, "path": "/b"}]
    rows += [r | {"basis": "device", "class": "random"} for r in rows]
    rows[1]["class"] = "random"
    with Bundle.create(tmp_path / "t", {"run_id": "r001"}) as bundle:
        bundle.write_table("patterns", pa.Table.from_pylist(rows))
    assert _random(Bundle.open(tmp_path / "t")) == ["/b"]
