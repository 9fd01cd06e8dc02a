"""Block latency of a real disk beside the kernel's own counts and fio's own times. Needs root and BPF."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.series.histogram import WIDTH, lower_edges, quantiles
from penstock.parts.monitoring.collectors.block_latency import BlockLatency
from penstock.testing import check_collector
from tests.integration.readings import RETAKEN
from tests.integration.tracing import NEEDS_TRACER, penstock
from tests.support import commands

pytestmark = [
    *NEEDS_TRACER,
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]

#: reads of fio, one after the other: a prime number of them
READS = 4001
#: requests that may end between the reading of one counter and that of the other, at both ends together
BETWEEN = 8
#: reads of others meanwhile, as a share, up to which the quantiles are fio's; and how often to take a reading
OTHERS, TRIES = 0.02, 6
#: programs that ask for the same flush of the device
SHARED = 4
#: the time on the device is this share at least of fio's completion latency, which has the way through the
#: kernel and the wait for a processor, too; and at most a bucket's width more (fio's own bins are 1.6 % wide)
LEAST, MOST = 0.45, 1 + WIDTH + 0.02


def device_of(path: Path) -> str:
    """The whole disk that a file lies on."""
    number = path.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if not place.exists():
        pytest.skip(f"{path} lies on no block device")
    return place.parent.name if (place / "partition").exists() else place.name


@pytest.fixture(scope="module")
def watched(
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
) -> dict[str, Any]:
    """What was sampled of fio, and what it says; again where, by the kernel's count, others read as well."""
    for _ in range(TRIES):
        found = reading(tmp_path_factory.mktemp("latency"))
        others = grown(found["samples"], "disk", found["device"], "reads") - READS
        slow = slower_than_fio(found)
        if others <= OTHERS * READS and not slow:
            return found
        record_testsuite_property(RETAKEN, f"{others:g} reads of others, {slow:g} slow ones")
    pytest.skip("others read from the disk all the time")


def slower_than_fio(found: dict[str, Any]) -> float:
    """The number of reads that are slower than the slowest one of fio: a few of them move the mean."""
    reads = counted(found["samples"], found["device"], "read_requests")
    edges = lower_edges(reads.index.to_numpy(float))
    return float(reads[edges > found["fio"]["clat_ns"]["max"] / 1e9].sum())


def reading(place: Path) -> dict[str, Any]:
    device = device_of(place)
    fio = ["fio", "--name=t", "--size=64m", "--bs=4k", "--direct=1", "--rw=randread", "--iodepth=1"]
    fio += ["--ioengine=psync", f"--number_ios={READS}", "--randseed=7", f"--filename={place}/file"]
    commands.run([*fio, "--create_only=1"], check=True, capture_output=True, timeout=60)
    report = place / "fio.json"
    # and a while after it, in which the last of it are sampled
    fio += ["--output-format=json", f"--output={report}"]
    words = ["sh", "-c", f"{shlex.join(fio)} && sleep 0.3"]
    options = ["--block-latency", "--interval", "0.1", "--json", "-o", place / "bundle"]
    said = penstock("monitor", "run", "--name", "latency", *options, "--", *words, env=own(place))
    bundle = Bundle.open(place / "bundle")
    return {
        "device": device,
        "samples": bundle.table("samples").to_pandas().astype({"source": str, "entity": str}),
        "utilisation": bundle.table("utilisation").to_pandas(),
        "receipt": json.loads(said.stdout)["receipt"],
        "fio": json.loads(report.read_text())["jobs"][0]["read"],
        "place": place,
    }


def own(place: Path) -> dict[str, str]:
    """An environment in which nothing is known of other experiments."""
    mine = {f"PENSTOCK_{n}": str(place / n.lower()) for n in ("ARCHIVE", "STATE", "RUNTIME")}
    return {**os.environ, **mine}


def counted(samples: pd.DataFrame, device: str, metric: str) -> pd.Series[float]:
    """Requests of each bucket in the whole time, by its edge [s]."""
    rows = samples[(samples.source == "block_latency") & (samples.metric == metric)]
    rows = rows[rows.entity.str.startswith(f"{device} le=")]
    edges = rows.entity.str.partition(" le=")[2].astype(float)
    ends = rows.assign(le=edges).sort_values("t_ns").groupby("le")["value"].agg(["first", "last"])
    return (ends["last"] - ends["first"]).sort_index()


def grown(samples: pd.DataFrame, source: str, entity: str, metric: str) -> float:
    rows = samples[
        (samples.source == source) & (samples.entity == entity) & (samples.metric == metric)
    ].sort_values("t_ns")
    return float(rows.value.iloc[-1] - rows.value.iloc[0])


def disagreements(samples: pd.DataFrame, device: str, fio: dict[str, Any]) -> list[str]:
    """Where the histograms are not what /proc/diskstats, their own sums and fio say."""
    found = []
    room, lost = BETWEEN, grown(samples, "block_latency", "all", "lost")
    for operation, theirs in (("read", "reads"), ("write", "writes")):
        mine = counted(samples, device, f"{operation}_requests")
        kernel = grown(samples, "disk", device, theirs)
        # there a write is also each flush that a program asks for; here one of the device, for several maybe
        flushes = counted(samples, device, "flush_requests").sum() if theirs == "writes" else 0
        if not -room - lost <= mine.sum() - kernel + flushes * SHARED <= flushes * SHARED + room:
            found.append(f"{mine.sum():g} {theirs}, and {kernel:g} by /proc/diskstats")
        for metric, total in (("requests", "time"), ("queued", "queue_time")):
            counts = counted(samples, device, f"{operation}_{metric}")
            if not counts.sum() or not np.isfinite(counts.index).all():
                continue
            le_s = counts.index.to_numpy(float)
            spent = grown(samples, "block_latency", device, f"{operation}_{total}") / 1e9
            low, high = counts @ lower_edges(le_s), counts @ le_s
            # a reading may lie between the bucket and the sum of one request
            between_s = BETWEEN * le_s[-1]
            if not low - between_s <= spent <= high + between_s:
                found.append(f"{operation} {total} {spent:g} s, by the buckets {low:g} to {high:g}")
    reads = counted(samples, device, "read_requests")
    if reads.sum() + lost < READS - room:
        found.append(f"{reads.sum():g} reads and {lost:g} lost; fio made {READS}")
    counts = reads.to_numpy(float)[:, None]
    told = {float(k): v / 1e9 for k, v in fio["clat_ns"]["percentile"].items()}
    for q in (50.0, 90.0):
        mine_s = float(quantiles(counts, reads.index.to_numpy(float), q / 100)[0])
        if not LEAST * told[q] <= mine_s <= MOST * told[q]:
            found.append(f"p{q:g} {mine_s:g} s, by fio {told[q]:g} s")
    mean_s = grown(samples, "block_latency", device, "read_time") / 1e9 / reads.sum()
    if not LEAST * fio["clat_ns"]["mean"] / 1e9 <= mean_s <= MOST * fio["clat_ns"]["mean"] / 1e9:
        found.append(f"mean {mean_s:g} s, by fio {fio['clat_ns']['mean'] / 1e9:g} s")
    return found


@pytest.mark.timed
def test_histograms_agree_with_the_kernel_and_with_fio(watched: dict[str, Any]) -> None:
    assert watched["fio"]["total_ios"] == READS
    assert disagreements(watched["samples"], watched["device"], watched["fio"]) == []
    told = watched["receipt"]["block_latency"]
    assert told["runs"] > 0
    assert told["run_ns"] > 0


@pytest.mark.timed
def test_planted_errors_are_seen(watched: dict[str, Any]) -> None:
    samples, device, fio = watched["samples"], watched["device"], watched["fio"]
    reads = counted(samples, device, "read_requests")
    # a bucket that is lost, the smallest that matters
    lost = f"{device} le={np.format_float_positional(reads[reads > BETWEEN].idxmin())}"
    dropped = samples[~((samples.entity == lost) & (samples.metric == "read_requests"))]
    assert len(dropped) < len(samples)
    assert any("diskstats" in said for said in disagreements(dropped, device, fio))
    # each request one octave too high, or too low
    for factor in (2.0, 0.5):
        edges = samples.entity.str.partition(" le=")
        mine = (samples.metric == "read_requests") & (edges[2] != "")
        moved = edges[2].where(~mine, "0").astype(str)
        at = edges[2][mine].astype(float) * factor
        moved[mine] = [np.format_float_positional(e) for e in at]
        wrong = samples.assign(entity=samples.entity.where(~mine, device + " le=" + moved))
        said = disagreements(wrong, device, fio)
        assert any("by the buckets" in s for s in said)
        assert any("by fio" in s for s in said)


@pytest.mark.timed
def test_intervals_have_quantiles_and_the_experiment_its_buckets(watched: dict[str, Any]) -> None:
    mine = watched["utilisation"].astype({"kind": str, "entity": str, "metric": str})
    mine = mine[(mine.kind == "block_latency") & (mine.entity == watched["device"])]
    wide = mine.pivot_table(index="t_ns", columns="metric", values="value", aggfunc="last")
    use = wide.dropna(subset=["read_p50", "read_p99"])
    assert len(use) >= 2
    assert (use.read_p50 <= use.read_p99 * (1 + 1e-9)).all()
    env = own(watched["place"])
    got = penstock(
        *("monitor", "get", "latency", "--metric", "block_latency_read_requests"),
        *("--label", "entity", "--label", "le"),
        env=env,
    )
    assert f"{watched['device']}_0.0" in got.stdout.splitlines()[0]
    made = penstock(
        *("monitor", "derive", "latency", "p99=quantile(0.99, block_latency_read_requests, 1)"),
        *("--table", "points", "--json"),
        env=env,
    )
    assert sum(json.loads(made.stdout)["points"].values()) >= 2


@pytest.mark.timed
def test_the_collector_brings_what_the_kernel_counts(tmp_path: Path) -> None:
    device_of(tmp_path)
    sink = check_collector(BlockLatency, {"interval_s": 0.02})
    metrics = {r["metric"] for r in sink.rows("it")}
    assert {"block_latency_lost", "block_latency_reading_time"} <= metrics


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_without_the_privilege_it_is_said_before_the_command_runs(tmp_path: Path) -> None:
    lacking = "-bpf,-perfmon,-sys_admin"
    ran = tmp_path / "ran"
    words = [
        *("setpriv", f"--inh-caps={lacking}", f"--bounding-set={lacking}"),
        *(Path(sys.executable).with_name("penstock"), "monitor", "run", "--block-latency"),
        *("--", "touch", ran),
    ]
    done = commands.run(words, env=own(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 125, done.stderr
    assert "block latency cannot be had" in done.stderr
    assert "CAP_BPF" in done.stderr
    assert not ran.exists()
