"""The page of a trace: complete, self-contained, true to its events, safe against names of files."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.analyse.traces.traced_run import TracedRun
from penstock.errors import BadInput
from penstock.observe.trace.capture.events import NUMBERS
from penstock.report.trace import gather as gathering
from penstock.report.trace.gather import gather
from penstock.report.trace.page import write_trace_report
from tests.examples.trace_page import START_NS, events, write_bundle
from tests.unit.test_report import read

SECTIONS = "answer findings files figures evidence receipt repeat".split()
HOSTILE = '</script><script>alert("x")</script><!--\'"&amp;\n\\udcff\u202egpj'


class Numbers:
    """The page's own numbers, read here by a second implementation."""

    def __init__(self, content: bytes):
        self.content, self.at = content, 0

    def next(self) -> int:
        value = shift = 0
        while True:
            byte = self.content[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def signed(self) -> int:
        v = self.next()
        return (v >> 1) ^ -(v & 1)


def unlinked(text: str) -> str:
    """Words as they are said, without the links to what they mean."""
    return re.sub(r'<a class="word"[^>]*>([^<]*)</a>', r"\1", text)


def embedded(text: str) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
    """Every figure's head and sections, from the page alone."""
    found = []
    for name, head in re.findall(
        r'<script type="application/json" id="head-(\w+)">(.*?)</script>', text
    ):
        data = re.search(rf'id="data-{name}">([^<]*)</script>', text)
        assert data is not None
        told = json.loads(head)
        whole = zlib.decompress(base64.b64decode(data.group(1)))
        sections, at = {}, 0
        for section, length in told["sections"]:
            sections[section] = whole[at : at + length]
            at += length
        assert at == len(whole)
        found.append((told, sections))
    return found


def points(head: dict[str, Any], sections: dict[str, bytes]) -> np.ndarray[Any, Any]:
    """(channel, t, offset, done, latency) of every request."""
    t, offset, done, latency = (Numbers(sections[k]) for k in ("t", "offset", "done", "latency"))
    rows = []
    now = end = size = 0
    for _ in range(sum(head["counts"])):
        step = t.signed()
        now += step >> 2
        start = end + offset.signed()
        size += done.signed()
        end = start + size
        g = head["granule"]
        rows.append((step & 3, now, start * g, size * g, latency.next()))
    return np.array(rows, np.int64)


def cells(shape: dict[str, Any], content: bytes) -> dict[tuple[int, int], list[int]]:
    """Counts per (column, row)."""
    numbers, found = Numbers(content), {}
    for column in range(shape["columns"]):
        row = 0
        for _ in range(numbers.next()):
            row += numbers.next()
            v = numbers.next()
            form, n = v & 3, v >> 2
            counts = [0, n, 0] if form == 1 else [n, 0, 0]
            if form >= 2:
                counts[1] = numbers.next()
            if form == 3:
                counts[2] = numbers.next()
            found[column, row] = counts
    assert numbers.at == len(content)
    return found


def drawn(made: np.ndarray[Any, Any], file_id: int) -> np.ndarray[Any, Any]:
    here = (made["file_id"] == file_id) & (made["done_bytes"] > 0) & (made["op"] < NUMBERS["fsync"])
    return made[here]


@pytest.fixture(scope="module")
def made() -> np.ndarray[Any, Any]:
    return events(20_000)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, made: np.ndarray[Any, Any]) -> Path:
    bundle = write_bundle(tmp_path_factory.mktemp("traced") / "bundle", made)
    return write_trace_report(TracedRun(bundle))


def test_every_section_is_there(page: Path) -> None:
    text, parsed = read(page)
    assert set(SECTIONS) <= set(parsed.ids)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert text.index('class="closing"') < text.index('id="files"') < text.index('id="figures"')
    assert "seen = kept + filtered + lost" in unlinked(text)


def test_the_page_asks_nobody(page: Path) -> None:
    text, parsed = read(page)
    assert parsed.loads == []
    asking = r"\b(?:fetch|XMLHttpRequest|WebSocket|EventSource|importScripts|sendBeacon)\b"
    assert re.findall(asking, text) == []
    assert re.findall(r"(?:src|href)=[\"'](?:https?:)?//", text) == []
    assert "@import" not in text
    assert "connect-src" not in text
    assert "default-src 'none'" in text


def test_every_request_is_in_the_page(page: Path, made: np.ndarray[Any, Any]) -> None:
    told = embedded(page.read_text())
    assert {head["file_id"] for head, _ in told} <= {1, 2}
    for head, sections in told:
        mine = drawn(made, head["file_id"])
        got = points(head, sections)
        assert head["counts"] == [int((mine["op"] < 32).sum()), int((mine["op"] >= 32).sum()), 0]
        assert np.array_equal(got[:, 1], mine["t_ns"].astype(np.int64) - START_NS)
        assert np.array_equal(got[:, 2], mine["offset_bytes"])
        assert np.array_equal(got[:, 3], mine["done_bytes"])
        assert np.array_equal(got[:, 4], mine["latency_ns"].astype(np.int64))
        shown = f"Shown {len(mine):,} of {len(mine):,} requests"
        assert shown in unlinked(page.read_text())


@pytest.mark.parametrize("dropped", [0, 1])
def test_counts_in_cells_are_those_of_the_events(
    tmp_path: Path, made: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch, dropped: int
) -> None:
    monkeypatch.setattr(gathering, "POINTS_EACH", 100)
    monkeypatch.setattr(gathering, "CELLS_EACH", 3000)
    kept = made
    if dropped:  # the planted failure: one request that the page must then not hold
        place = np.flatnonzero(made["file_id"] == 1)[5000]
        kept = np.delete(made, place)
    page = write_trace_report(TracedRun(write_bundle(tmp_path / "bundle", kept)))
    head, sections = next(f for f in embedded(page.read_text()) if f[0]["file_id"] == 1)
    assert head["form"] == "cells"
    mine = drawn(made, 1)
    write = (mine["op"] >= 32).astype(int)
    for name, shape in head["grids"]:
        x, y = shape["x"], shape["y"]
        along = (
            np.arange(len(mine)) if name == "number" else mine["t_ns"].astype(np.int64) - START_NS
        )
        up = mine["offset_bytes"]
        if name == "latency":
            continue
        column, row = (along - x["origin"]) >> x["shift"], (up - y["origin"]) >> y["shift"]
        wanted: dict[tuple[int, int], list[int]] = {}
        for c, r, w in zip(column.tolist(), row.tolist(), write.tolist(), strict=True):
            wanted.setdefault((c, r), [0, 0, 0])[w] += 1
        got = cells(shape, sections[name])
        assert len(got) == shape["cells"] <= 3000
        assert sum(sum(n) for n in got.values()) == len(mine) - dropped
        assert (got == wanted) is (dropped == 0)


def test_extremes_are_kept_when_cells_are_drawn(
    tmp_path: Path, made: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "POINTS_EACH", 100)
    monkeypatch.setattr(gathering, "CELLS_EACH", 2000)
    odd = made.copy()
    places = np.flatnonzero((made["file_id"] == 1) & (made["done_bytes"] > 0) & (made["op"] < 32))
    odd["offset_bytes"][places[7000]] = 123_457 + (3 << 30)
    told = gather(TracedRun(write_bundle(tmp_path / "bundle", odd)))
    assert told is not None
    drawing = next(d for d in told.drawings if d.totals["file_id"] == 1)
    mine = drawn(odd, 1)
    name, shape = drawing.head["grids"][0]
    assert name == "number"
    grid = cells(shape, drawing.sections[name])
    edges = Numbers(drawing.sections["number_edges"])
    y = shape["y"]
    number = np.arange(len(mine))
    for column in range(shape["columns"]):
        rows = [r for (c, r) in grid if c == column]
        here = (number >> shape["x"]["shift"]) == column
        for channel in range(3):
            low = edges.next()
            if not low:
                continue
            high = edges.next()
            with_it = [r for r in rows if grid[column, r][channel]]
            mask = here & ((mine["op"] >= 32) == (channel == 1))
            assert (
                mine["offset_bytes"][mask].min()
                == y["origin"] + (min(with_it) << y["shift"]) + low - 1
            )
            assert (
                mine["offset_bytes"][mask].max()
                == y["origin"] + (max(with_it) << y["shift"]) + high
            )


def test_hostile_names_stay_text(tmp_path: Path, made: np.ndarray[Any, Any]) -> None:
    bundle = write_bundle(
        tmp_path / "bundle",
        made,
        names={1: f"/data/{HOSTILE}", 2: "/data/" + "x" * 4000},
        command=("sh", "-c", HOSTILE),
        phases=((HOSTILE, START_NS + 1000, START_NS + 10**9),),
    )
    text, parsed = read(write_trace_report(TracedRun(bundle)))
    assert parsed.loads == []
    assert "alert(" in text  # as text it is there …
    assert "<script>alert" not in text.lower()  # … and nowhere as an element
    assert text.count("<script") == text.count("</script>") == 1 + 2 * len(embedded(text))
    assert "\u202e" not in text
    assert any(p["name"] == HOSTILE for head, _ in embedded(text) for p in head["phases"]["time"])


def test_lost_events_and_phases_are_marked(tmp_path: Path, made: np.ndarray[Any, Any]) -> None:
    gap = {"start_ns": START_NS + 10**8, "end_ns": START_NS + 2 * 10**8, "lost": 1234}
    bundle = write_bundle(
        tmp_path / "bundle",
        made,
        receipt={"lost": 1234, "seen": len(made) + 1234, "lost_intervals": [gap]},
        phases=(
            ("load", START_NS, START_NS + 10**9),
            ("query", START_NS + 10**9, START_NS + 2 * 10**9),
        ),
    )
    text = write_trace_report(TracedRun(bundle)).read_text()
    head = embedded(text)[0][0]
    assert [p["name"] for p in head["phases"]["time"]] == ["load", "query"]
    border = head["phases"]["number"][0]["to"]
    mine = drawn(made, head["file_id"])
    assert border == int((mine["t_ns"].astype(np.int64) < START_NS + 10**9).sum())
    assert head["lost"]["time"][0] == {
        "from": 10**8,
        "to": 2 * 10**8,
        "name": "1,234 lost",
        "line": 0,
    }
    assert "1,234 lost" in text


def test_a_bundle_without_events_says_why_it_has_no_figures(
    tmp_path: Path, made: np.ndarray[Any, Any]
) -> None:
    bundle = write_bundle(tmp_path / "bundle", made[:500])
    (bundle / "io_events.parquet").unlink()
    text, _ = read(write_trace_report(TracedRun(bundle)))
    assert "Not shown: mode trace stores counters" in unlinked(text)


def test_what_is_no_bundle_is_bad_input(tmp_path: Path, made: np.ndarray[Any, Any]) -> None:
    with pytest.raises(BadInput):
        write_trace_report(TracedRun(tmp_path))
    bundle = write_bundle(tmp_path / "bundle", made[:500])
    whole = (bundle / "io_events.parquet").read_bytes()
    (bundle / "io_events.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match="io_events"):
        write_trace_report(TracedRun(bundle))
    assert not (bundle / "report.html").exists()


def journalled() -> np.ndarray[Any, Any]:
    """A database of one file whose journal is made again for each of 40 commits, each with two flushes."""
    made = events(400, files=1)
    made["op"][made["op"] == NUMBERS["fsync"]] = NUMBERS["pread64"]
    made["done_bytes"] = made["size_bytes"]
    for n in range(40):
        at = slice(10 * n, 10 * n + 6)
        made["file_id"][at] = 2 + n
        made["op"][at] = [NUMBERS["pwrite64"]] * 4 + [NUMBERS["fsync"]] * 2
        made["offset_bytes"][at] = [0, 512, 4096, 8192, 0, 0]
        made["latency_ns"][10 * n + 4 : 10 * n + 6] = 2_000_000
    return made


def test_flushes_have_rows_and_a_path_is_one_row(tmp_path: Path) -> None:
    names = {1: "/d/t.db"} | dict.fromkeys(range(2, 42), "/d/t.db-journal")
    text, _ = read(
        write_trace_report(TracedRun(write_bundle(tmp_path / "b", journalled(), names=names)))
    )
    table = text[text.index('id="files"') : text.index('id="figures"')]
    rows = [
        re.sub("<[^>]*>", "|", row) for row in re.findall("<tr>(.*?)</tr>", table) if "<bdi" in row
    ]
    cells = [[cell for cell in row.split("|") if cell] for row in rows]
    assert sorted((row[0], row[1], row[2]) for row in cells) == [
        ("/d/t.db", "read", str(int(400 - 240 - n_writes(journalled())))),
        ("/d/t.db", "write", str(n_writes(journalled()))),
        ("/d/t.db-journal × 40 files", "flush", "80"),
        ("/d/t.db-journal × 40 files", "write", "160"),
    ]
    flush = next(row for row in cells if row[1] == "flush")
    assert flush[3] == "160 ms"
    assert flush[-1] == "2 ms each"
    # most time goes to the journal, which is drawn first, all files of the path in one figure
    (first, _), *others = embedded(text)
    assert (first["file_id"], first["counts"], len(others)) == (2, [0, 160, 0], 1)
    # two flushes after every four writes, at their times
    assert first["flushes"]["number"] == [4 * (n // 2 + 1) for n in range(80)]
    made = journalled()
    flushed = made["t_ns"][made["op"] == NUMBERS["fsync"]].astype(np.int64) - START_NS
    assert first["flushes"]["time"] == flushed.tolist()
    assert "80 flushes to the device, 160 ms" in unlinked(text)
    assert ". Not drawn: " not in text
    assert others[0][0]["flushes"] == {"number": [], "time": []}


def test_of_many_flushes_some_are_marked(tmp_path: Path) -> None:
    made = events(6000, files=1)
    made["op"][::2] = NUMBERS["fsync"]
    text = write_trace_report(TracedRun(write_bundle(tmp_path / "b", made))).read_text()
    ((head, _),) = embedded(text)
    count = int((made["op"] == NUMBERS["fsync"]).sum())
    assert len(head["flushes"]["time"]) == -(-count // 4)
    assert f"{count:,} flushes to the device" in unlinked(text)
    assert f", {-(-count // 4)} of them marked" in text


def n_writes(made: np.ndarray[Any, Any]) -> int:
    """Writes of file 1."""
    return int(((made["file_id"] == 1) & (made["op"] == NUMBERS["pwrite64"])).sum())


@pytest.mark.parametrize("command", ["fio --name=a | cat\n", ["fio", "--name=a", "|", "cat"]])
def test_the_command_of_a_run_is_a_line(tmp_path: Path, command: str | list[str]) -> None:
    bundle = write_bundle(tmp_path / "b", events(100))
    told = json.loads((bundle / "manifest.json").read_text())
    told |= {"command": command, "treatment_id": "t01", "run_id": "r001"}
    (bundle / "manifest.json").write_text(json.dumps(told))
    text = write_trace_report(TracedRun(bundle)).read_text()
    line = "fio --name=a | cat" if isinstance(command, str) else "fio --name=a &#39;|&#39; cat"
    assert f"<h1>{line}</h1>" in text
    assert "the study that this is a run of (r001, t01)" in unlinked(text)
    assert "penstock trace --mode" not in text
