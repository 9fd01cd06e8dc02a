"""No finding about a traced run contradicts the tables of the run.

Complete bundles are generated: files whose calls were cached, read ahead, waited, fell into holes, or have no
cache record, with consistent or inconsistent latencies; flushes and other operations; device requests that
match the calls or do not; lost events, missing hooks, and modes that store less. Each finding is then
compared with an independent evaluation of the tables, row by row in pandas.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.analyse.findings.findings import Finding
from penstock.analyse.traces.traced_run import TracedRun
from penstock.observe.trace.layers.tables import served_under
from penstock.observe.trace.show.closing_sentence import Below, closing_sentence

PAGE = 4096
#: per call: pages in memory, read ahead, missed; requests; true if they took time; flags
SOURCES: dict[str, tuple[int, int, int, int, bool, int]] = {
    "cached": (4, 0, 0, 0, False, 0),
    "cached and began read-ahead": (4, 0, 0, 1, False, 0),
    "ahead": (3, 1, 0, 0, False, 0),
    "waited": (0, 0, 4, 1, True, 0),
    "waited for read-ahead": (0, 4, 0, 1, True, 0),
    "without a request": (0, 0, 4, 0, False, 0),
    "direct": (0, 0, 0, 1, True, 1),
    "direct, not joined": (0, 0, 0, 0, False, 1),
    "sync write": (4, 0, 0, 0, False, 4),
    "not told": (0, 0, 0, 0, False, 0),
}
#: sources that findings depend on
OFTEN = ["cached", "waited", "without a request", "direct, not joined"]
KINDS = ["random", "random", "irregular", "consecutive", "sequential", "hot-set", "insufficient"]
#: time between calls
GAP_NS = 1000

groups = st.fixed_dictionaries(
    {
        "source": st.sampled_from(sorted(SOURCES)) | st.sampled_from(OFTEN),
        "count": st.sampled_from([20, 100, 120]),
        "latency_ns": st.sampled_from([500, 5_000, 19_999, 20_001, 60_000, 400_000, 5_000_000]),
        "again": st.booleans(),
    }
)
rows_of_a_file = st.fixed_dictionaries(
    {
        "direction": st.sampled_from(["read", "read", "write"]),
        "basis": st.sampled_from(["calls", "calls", "faults"]),
        "kind": st.sampled_from(KINDS),
        "size": st.sampled_from([512, 4096, 65536, 1 << 20]),
        "groups": st.lists(groups, min_size=1, max_size=2),
    }
)
files = st.fixed_dictionaries(
    {
        "dev_major": st.sampled_from([0, 8]),
        "rows": st.lists(
            rows_of_a_file, min_size=1, max_size=2, unique_by=lambda r: (r["direction"], r["basis"])
        ),
        "flushes": st.sampled_from([0, 0, 0, 5, 100, 300]),
        "flush_ns": st.sampled_from([1_000, 130_000, 5_000_000]),
        "requests": st.sampled_from(["as the calls", "none", "three times", "half"]),
        "below": st.sampled_from([None, "random", "consecutive"]),
        "contiguous": st.sampled_from([0.1, 0.999]),
    }
)
bundles = st.fixed_dictionaries(
    {
        "files": st.lists(files, min_size=1, max_size=2),
        "mode": st.sampled_from(
            ["trace", "trace", "trace", "trace without layers", "pattern", "count"]
        ),
        "idle": st.sampled_from([0.0, 0.0, 0.5, 30.0]),
        "open_ns": st.sampled_from([0, 0, 1_000_000, 200_000_000]),
        "lost": st.sampled_from([0, 0, 0, 0, 1, 500]),
        "layers": st.sampled_from(
            [
                *([{}] * 4),
                {"lost": 5_000},
                {"missing": {"mm_filemap_add_to_page_cache": "page-cache misses"}},
                {"missing": {"block_rq_complete": "requests"}},
                {"incomplete": "it ended before the trace did"},
            ]
        ),
        "in_flight": st.sampled_from([0] * 6 + [2]),
    }
)


@dataclass
class DrawnBundle:
    """A bundle and its tables as rows."""

    path: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    use: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    operations: list[dict[str, Any]] = field(default_factory=list)
    patterns: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    extents: list[dict[str, Any]] = field(default_factory=list)
    wall_ns: int = 0
    layers: dict[str, Any] | None = None


def build(path: Path, parameters: dict[str, Any]) -> DrawnBundle:
    """Create the bundle that the parameters describe."""
    bundle = DrawnBundle(path)
    now = 0
    for number, file in enumerate(parameters["files"], 1):
        bundle.files.append(
            {
                "file_id": number,
                "path": f"/data/{number}",
                "size_bytes": 64 << 20,
                "dev_major": file["dev_major"],
                "dev_minor": 1,
            }
        )
        bundle.extents.append(
            {"file_id": number, "count": 500, "contiguous_share": file["contiguous"]}
        )
        for row in file["rows"]:
            offset = calls = time_ns = 0
            for group in row["groups"]:
                first = offset
                for n in range(group["count"]):
                    if group["again"] and n % 3:
                        offset -= row["size"]
                    now += GAP_NS
                    _call(bundle, number, row, group, now, offset)
                    now += group["latency_ns"]
                    offset += row["size"]
                calls += group["count"]
                time_ns += group["count"] * group["latency_ns"]
                times = {"as the calls": 1, "none": 0, "three times": 3, "half": 1}
                if row["direction"] == "read" and group["source"].startswith(("waited", "direct")):
                    end = first + (offset - first) // (2 if file["requests"] == "half" else 1)
                    for _ in range(times[file["requests"]]):
                        if end > first:
                            bundle.requests.append(_request(number, first, end - first))
            if parameters["mode"] == "count":
                time_ns = 0
            bundle.patterns.append(_verdict(number, row, row["basis"], row["kind"], calls, time_ns))
            if file["below"] and parameters["mode"] == "trace" and row["basis"] == "calls":
                bundle.patterns.append(_verdict(number, row, "device", file["below"], 200, 10**6))
        if file["flushes"]:
            ns = file["flushes"] * file["flush_ns"]
            bundle.operations.append(
                {"file_id": number, "op": "fdatasync", "calls": file["flushes"], "time_ns": ns}
            )
            now += ns
    if parameters["open_ns"]:
        bundle.operations.append(
            {"file_id": 1, "op": "open", "calls": 9, "time_ns": parameters["open_ns"]}
        )
        now += parameters["open_ns"]
    bundle.wall_ns = int(now * (1 + parameters["idle"]))
    mode = parameters["mode"].split()[0]
    receipt = {
        "seen": 10_000,
        "lost": parameters["lost"],
        "mode": mode,
        "in_flight": parameters["in_flight"],
    }
    if parameters["mode"] == "trace":
        bundle.layers = {"seen": 10_000, "lost": 0, "missing": {}} | parameters["layers"]
        receipt["layers"] = bundle.layers
    _write(bundle, parameters["mode"], receipt)
    return bundle


def _call(
    bundle: DrawnBundle,
    number: int,
    row: dict[str, Any],
    group: dict[str, Any],
    now: int,
    offset: int,
) -> None:
    hit, ahead, missed, requests, waits, flags = SOURCES[group["source"]]
    seq = len(bundle.events)
    faults = row["basis"] == "faults"
    op = (
        f"fault_{row['direction']}"
        if faults
        else ("pread64", "pwrite64")[row["direction"] == "write"]
    )
    bundle.events.append(
        {
            "seq": seq,
            "t_ns": now,
            "op": op,
            "direction": row["direction"],
            "file_id": number,
            "offset_bytes": offset,
            "size_bytes": row["size"],
            "done_bytes": row["size"],
            "latency_ns": group["latency_ns"],
            "flags": 0 if faults else flags,
        }
    )
    if group["source"] != "not told":
        bundle.use.append(
            {
                "seq": seq,
                "pages_hit": hit,
                "pages_readahead": ahead,
                "pages_missed": missed,
                "requests": requests,
                "device_ns": group["latency_ns"] // 2 if waits else 0,
                "join": "exact" if requests or not missed else "none",
            }
        )


def _request(number: int, offset: int, size: int) -> dict[str, Any]:
    row = {"t_ns": 0, "done_ns": 1, "op": "read", "file_id": number, "file": f"/data/{number}"}
    return row | {"offset_bytes": offset, "size_bytes": size}


def _verdict(
    number: int, row: dict[str, Any], basis: str, kind: str, calls: int, time_ns: int
) -> dict[str, Any]:
    return {
        "file_id": number,
        "path": f"/data/{number}",
        "direction": row["direction"],
        "tid": None,
        "phase_id": None,
        "basis": basis,
        "class": kind,
        "requests": calls,
        "bytes": calls * row["size"],
        "median_size_bytes": float(row["size"]),
        "evidence": json.dumps({"calls": calls, "time_ns": time_ns}),
    }


def _write(bundle: DrawnBundle, mode: str, receipt: dict[str, Any]) -> None:
    times = {"start_ns": 0, "end_ns": bundle.wall_ns}
    (bundle.path / "manifest.json").write_text(
        json.dumps({"receipts": {"trace": receipt}, "times": times})
    )
    tables = {"files": bundle.files, "patterns": bundle.patterns, "operations": bundle.operations}
    if mode.startswith("trace"):
        tables |= {"io_events": bundle.events}
    if mode == "trace":
        tables |= {"cache_use": bundle.use, "device_requests": bundle.requests}
        tables |= {"extents": bundle.extents}
    for name, rows in tables.items():
        if rows:
            pq.write_table(pa.Table.from_pylist(rows), bundle.path / f"{name}.parquet")


class Reading:
    """Independent evaluation of the same bundle, row by row."""

    def __init__(self, path: Path) -> None:
        def table(name: str) -> pd.DataFrame:
            exists = (path / f"{name}.parquet").exists()
            return pq.read_table(path / f"{name}.parquet").to_pandas() if exists else pd.DataFrame()

        manifest = json.loads((path / "manifest.json").read_text())
        self.receipt = manifest["receipts"]["trace"]
        self.layers = self.receipt.get("layers") or {}
        self.wall_ns = manifest["times"]["end_ns"]
        self.patterns = table("patterns")
        self.operations = table("operations")
        self.requests = table("device_requests")
        extents = table("extents")
        self.extents = extents.set_index("file_id") if len(extents) else extents
        events, use = table("io_events"), table("cache_use")
        self.files = table("files").set_index("file_id")
        self.watched = len(events) > 0 and len(use) > 0
        self.calls = events.merge(use, on="seq", how="left") if self.watched else events

    def requests_of(self, number: int) -> list[tuple[int, int]]:
        if not len(self.requests):
            return []
        rows = self.requests[self.requests["file_id"] == number]
        return list(zip(rows["offset_bytes"], rows["size_bytes"], strict=True))

    def waits(self, call: Any) -> bool:
        """True if the call waited for a device, or for the server of a file system without a device."""
        if pd.isna(call.pages_hit):
            return False
        if call.requests > 0 and (call.device_ns > 0 or call.flags & 1):
            return True
        # a file system with a virtual device number, for none of whose files there are device requests
        virtual = self.files.loc[call.file_id, "dev_major"] == 0
        requested = any(
            self.requests_of(n) for n in self.files.index if self.files.loc[n, "dev_major"] == 0
        )
        return bool(call.pages_missed > 0 and virtual and not requested)

    def hit(self, call: Any) -> bool:
        """True if the page cache alone served the call, according to the tables."""
        synced = call.direction == "write" and call.flags & 4
        if pd.isna(call.pages_hit) or call.flags & 1 or synced:
            return False
        return bool(
            call.pages_hit > 0 and not (call.pages_missed or call.pages_readahead)
        ) and not (call.requests > 0 and call.device_ns > 0)

    def calls_of(self, number: int, direction: str, basis: str) -> list[Any]:
        rows = [
            c for c in self.calls.itertuples() if (c.file_id, c.direction) == (number, direction)
        ]
        return [c for c in rows if str(c.op).startswith("fault") == (basis == "faults")]

    @property
    def total_ns(self) -> int:
        """Time of all calls: reads and writes by the verdicts, other operations by their sums."""
        verdicts = self.patterns[self.patterns["basis"] != "device"]
        total = sum(json.loads(e)["time_ns"] for e in verdicts["evidence"])
        return total + (int(self.operations["time_ns"].sum()) if len(self.operations) else 0)

    def flushes(self, numbers: list[int]) -> tuple[int, int]:
        rows = self.operations[self.operations["op"] == "fdatasync"]
        rows = rows[rows["file_id"].isin(numbers)]
        return int(rows["calls"].sum()), int(rows["time_ns"].sum())


def shown(ns: float, wall_ns: float) -> str:
    """A share in the form of the statements."""
    share = ns / wall_ns
    return "less than 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def check(finding: Finding, read: Reading) -> None:
    """Fail if the tables contradict the finding."""
    statement, evidence = finding.statement, finding.evidence
    match finding.code:
        case "trace-not-io-bound":
            assert read.total_ns < 0.05 * read.wall_ns
            assert read.receipt["mode"] != "count"
            assert not read.receipt["in_flight"]
            assert shown(read.total_ns, read.wall_ns) in statement
        case "trace-cached":
            verdicts = read.patterns[read.patterns["basis"] != "device"]
            reads_and_writes = sum(json.loads(e)["time_ns"] for e in verdicts["evidence"])
            assert 0.5 * read.total_ns <= evidence["time_ns"] <= reads_and_writes
            assert f"{evidence['calls']:,} reads and writes" in statement
            assert shown(evidence["time_ns"], read.wall_ns) in statement
            if evidence["inferred"]:
                assert "judging by their time" in statement
                return
            assert read.watched
            assert "mm_filemap_add_to_page_cache" not in (read.layers.get("missing") or {})
            assert not read.layers.get("incomplete")
            hits = [c for c in read.calls.itertuples() if read.hit(c)]
            assert 0 < evidence["calls"] <= len(hits)
            assert evidence["time_ns"] <= sum(c.latency_ns for c in hits)
        case "trace-random-reads" if "files" in evidence:
            check_many_random_reads(finding, read)
        case "trace-random-reads":
            of = evidence["patterns"]
            kinds = read.patterns[
                (read.patterns["file_id"] == of["file_id"])
                & (read.patterns["direction"] == "read")
                & (read.patterns["class"] == of["class"])
            ]
            bases = [b for b in kinds["basis"] if b != "device"]
            assert bases
            if evidence["inferred"]:
                assert "inferred from that time" in statement
                assert read.receipt["mode"] != "count"
                return
            waiting_calls = [
                [c for c in read.calls_of(of["file_id"], "read", basis) if read.waits(c)]
                for basis in bases
            ]
            sums = [(len(calls), sum(c.latency_ns for c in calls)) for calls in waiting_calls]
            assert (evidence["calls"], evidence["time_ns"]) in sums
            assert evidence["calls"] >= 100
            assert shown(evidence["time_ns"], read.wall_ns) in statement
        case "trace-rereads":
            if evidence["inferred"]:
                assert "inferred from that time" in statement
                assert "devices read" not in statement
                return
            ranges = read.requests_of(evidence["device_requests"]["file_id"])
            pages = {p for o, n in ranges for p in range(o // PAGE, -(-(o + n) // PAGE))}
            ratio = sum(n for _, n in ranges) / (len(pages) * PAGE)
            assert ratio >= 2
            assert f"each byte {ratio:.1f} times" in statement
        case "trace-fsync-storm" | "trace-flush-bound":
            numbers = evidence["operations"]["file_id"]
            count, ns = read.flushes([numbers] if isinstance(numbers, int) else numbers)
            assert f" {count:,} flushes" in statement
            assert shown(ns, read.wall_ns) in statement
            assert ns >= 0.2 * read.wall_ns
        case "trace-low-concurrency":
            numbers = evidence["io_events"]["file_id"]
            calls = [
                c for c in read.calls.itertuples() if c.file_id in numbers and c.direction == "read"
            ]
            if "inferred" not in statement:
                assert sum(map(read.waits, calls)) >= 100
        case "trace-device-disorder":
            of = evidence["patterns"]
            patterns = read.patterns[
                (read.patterns["file_id"] == of["file_id"])
                & (read.patterns["direction"] == of["direction"])
            ]
            assert set(patterns[patterns["basis"] == "device"]["class"]) == {"random"}
            above = set(patterns[patterns["basis"] != "device"]["class"])
            assert not above & {"random", "irregular", "hot-set"}
        case "trace-many-files":
            names = read.patterns[
                (read.patterns["direction"] == evidence["patterns"]["direction"])
                & (read.patterns["basis"] != "device")
            ]
            assert 0 < evidence["files"] <= len(set(names["file_id"]))
            assert evidence["time_ns"] <= read.total_ns
            assert shown(evidence["time_ns"], read.wall_ns) in statement
        case "trace-unaligned-direct":
            direct = read.calls[
                (read.calls["file_id"] == evidence["io_events"]["file_id"])
                & (read.calls["flags"] & 1 == 1)
            ]
            unaligned = (direct["offset_bytes"] % PAGE != 0) | (direct["size_bytes"] % PAGE != 0)
            assert f": {sum(unaligned):,} of {len(direct):,} direct requests" in statement
        case "trace-fragmented":
            extents = read.extents.loc[evidence["extents"]["file_id"]]
            assert extents["contiguous_share"] < 0.5
            assert f"{extents['count']:,.0f} fragments" in statement
        case "trace-lost":
            if "events were seen and not stored" in statement:
                assert f"{read.receipt['lost']:,} of {read.receipt['seen']:,}" in statement
        case code:
            raise AssertionError(f"found {code}, which has no check")


def check_many_random_reads(finding: Finding, read: Reading) -> None:
    """Fail if the tables contradict the sum over files of which none takes much time."""
    statement, evidence = finding.statement, finding.evidence
    numbers = evidence["patterns"]["file_id"]
    assert evidence["files"] == len(numbers) == len(set(numbers))
    more = re.search(r"and (\d+) more file", statement)
    assert (int(more[1]) if more else 0) == len(numbers) - 1
    assert evidence["calls"] >= 100
    assert shown(evidence["time_ns"], read.wall_ns) in statement
    if "inferred from that time" in statement:
        assert read.receipt["mode"] != "count"
        return
    scattered = read.patterns[
        read.patterns["file_id"].isin(numbers)
        & (read.patterns["direction"] == "read")
        & (read.patterns["basis"] != "device")
        & read.patterns["class"].isin(["random", "irregular", "hot-set"])
    ]
    waiting = [
        [call.latency_ns for call in read.calls_of(file_id, "read", basis) if read.waits(call)]
        for file_id, basis in zip(scattered["file_id"], scattered["basis"], strict=True)
    ]
    sums = {(0, 0)}
    for latencies in waiting:
        sums |= {(calls + len(latencies), ns + sum(latencies)) for calls, ns in sums}
    assert (evidence["calls"], evidence["time_ns"]) in sums


@pytest.mark.long
@given(bundles)
@settings(max_examples=200)
def test_no_finding_contradicts_a_table_of_its_bundle(drawn: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as work:
        bundle = build(Path(work), drawn)
        findings = TracedRun(bundle.path).findings
        read = Reading(bundle.path)
        for finding in findings:
            check(finding, read)
        codes = {finding.code for finding in findings}
        if "trace-not-io-bound" in codes:
            assert not codes & {"trace-cached", "trace-fsync-storm", "trace-flush-bound"}
        _check_closing(bundle, read)


def _check_closing(bundle: DrawnBundle, read: Reading) -> None:
    """Check the closing sentence against the same tables."""
    rows = []
    for row in bundle.patterns:
        sums = json.loads(row["evidence"])
        if row["basis"] == "device" or not sums["time_ns"]:
            continue
        together = {"class": row["class"], "k": None, "median_size_bytes": row["median_size_bytes"]}
        names = ("file_id", "direction", "basis")
        rows.append(
            {name: row[name] for name in names}
            | {"calls": sums["calls"], "time_ns": sums["time_ns"], "done_bytes": row["bytes"]}
            | {"together": together}
        )
    flushes = [
        {"file_id": r["file_id"], "direction": "sync", "calls": r["calls"], "time_ns": r["time_ns"]}
        for r in bundle.operations
        if r["op"] == "fdatasync"
    ]
    others_ns = sum(r["time_ns"] for r in bundle.operations if r["op"] != "fdatasync")
    all_rows = rows + flushes
    if not all_rows:
        return
    top = max(all_rows, key=lambda row: row["time_ns"])
    served = None
    if top["direction"] != "sync" and (bundle.path / "cache_use.parquet").exists():
        names = ("cache_use", "files", "device_requests")
        existing = [n for n in names if (bundle.path / f"{n}.parquet").exists()]
        tables = {name: pq.read_table(bundle.path / f"{name}.parquet") for name in existing}
        events = bundle.path / "io_events.parquet"
        key = (top["file_id"], top["direction"], top["basis"])
        for entry in served_under(tables, events, bundle.layers or {}, only=top["file_id"]):
            served = entry if (entry.file_id, entry.direction, entry.basis) == key else served
    sentence = closing_sentence(
        all_rows, {}, bundle.wall_ns, below=Below(served), others_ns=others_ns
    )
    if "not what it waits for" in sentence:
        assert read.total_ns < 0.05 * bundle.wall_ns
    if top["direction"] == "sync":
        return
    flushed = sum(row["time_ns"] for row in flushes)
    if "not a faster disk" in sentence:
        assert flushed < 0.2 * top["time_ns"]
    calls = (
        read.calls_of(*(top[n] for n in ("file_id", "direction", "basis"))) if read.watched else []
    )
    if (waited := re.search(r"\((.*) of them waited", sentence)) is not None:
        assert waited[1] == shown(sum(map(read.waits, calls)), len(calls))
    if "the page cache serves them" in sentence and "judging by their time" not in sentence:
        assert any(map(read.hit, calls))
        slow = sum(c.latency_ns for c in calls if read.waits(c))
        assert slow < 0.2 * sum(c.latency_ns for c in calls)
