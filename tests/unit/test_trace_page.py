"""The page of a trace: complete, self-contained, equal to its events, safe against names of files."""

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
    """Numbers as the page encodes them, read by a second implementation."""

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
    """Text of the page without the links of its terms."""
    return re.sub(r'<a class="word"[^>]*>([^<]*)</a>', r"\1", text)


def embedded(text: str) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
    """Head and sections of every figure of a page."""
    figures = []
    for name, head in re.findall(
        r'<script type="application/json" id="head-(\w+)">(.*?)</script>', text
    ):
        data = re.search(rf'id="data-{name}">([^<]*)</script>', text)
        assert data is not None
        fields = json.loads(head)
        content = zlib.decompress(base64.b64decode(data.group(1)))
        sections, at = {}, 0
        for section, length in fields["sections"]:
            sections[section] = content[at : at + length]
            at += length
        assert at == len(content)
        figures.append((fields, sections))
    return figures


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
    numbers, counted = Numbers(content), {}
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
            counted[column, row] = counts
    assert numbers.at == len(content)
    return counted


def transfers(table: np.ndarray[Any, Any], file_id: int) -> np.ndarray[Any, Any]:
    selected = (
        (table["file_id"] == file_id) & (table["done_bytes"] > 0) & (table["op"] < NUMBERS["fsync"])
    )
    return table[selected]


@pytest.fixture(scope="module")
def io_events() -> np.ndarray[Any, Any]:
    return events(20_000)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, io_events: np.ndarray[Any, Any]) -> Path:
    bundle = write_bundle(tmp_path_factory.mktemp("traced") / "bundle", io_events)
    return write_trace_report(TracedRun(bundle))


def test_every_section_is_present(page: Path) -> None:
    text, parsed = read(page)
    assert set(SECTIONS) <= set(parsed.ids)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert text.index('class="closing"') < text.index('id="files"') < text.index('id="figures"')
    assert "seen = kept + filtered + lost" in unlinked(text)


def test_page_makes_no_requests(page: Path) -> None:
    text, parsed = read(page)
    assert parsed.loads == []
    request_apis = r"\b(?:fetch|XMLHttpRequest|WebSocket|EventSource|importScripts|sendBeacon)\b"
    assert re.findall(request_apis, text) == []
    assert re.findall(r"(?:src|href)=[\"'](?:https?:)?//", text) == []
    assert "@import" not in text
    assert "connect-src" not in text
    assert "default-src 'none'" in text


def test_every_request_is_in_the_page(page: Path, io_events: np.ndarray[Any, Any]) -> None:
    figures = embedded(page.read_text())
    assert {head["file_id"] for head, _ in figures} <= {1, 2}
    for head, sections in figures:
        expected = transfers(io_events, head["file_id"])
        actual = points(head, sections)
        assert head["counts"] == [
            int((expected["op"] < 32).sum()),
            int((expected["op"] >= 32).sum()),
            0,
        ]
        assert np.array_equal(actual[:, 1], expected["t_ns"].astype(np.int64) - START_NS)
        assert np.array_equal(actual[:, 2], expected["offset_bytes"])
        assert np.array_equal(actual[:, 3], expected["done_bytes"])
        assert np.array_equal(actual[:, 4], expected["latency_ns"].astype(np.int64))
        shown = f"Shown {len(expected):,} of {len(expected):,} requests"
        assert shown in unlinked(page.read_text())


@pytest.mark.parametrize("dropped", [0, 1])
def test_counts_in_cells_are_those_of_the_events(
    tmp_path: Path, io_events: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch, dropped: int
) -> None:
    monkeypatch.setattr(gathering, "POINTS_EACH", 100)
    monkeypatch.setattr(gathering, "CELLS_EACH", 3000)
    stored = io_events
    if dropped:  # the planted failure: the page lacks one request
        place = np.flatnonzero(io_events["file_id"] == 1)[5000]
        stored = np.delete(io_events, place)
    page = write_trace_report(TracedRun(write_bundle(tmp_path / "bundle", stored)))
    head, sections = next(f for f in embedded(page.read_text()) if f[0]["file_id"] == 1)
    assert head["form"] == "cells"
    requests = transfers(io_events, 1)
    write = (requests["op"] >= 32).astype(int)
    for name, shape in head["grids"]:
        x, y = shape["x"], shape["y"]
        abscissa = (
            np.arange(len(requests))
            if name == "number"
            else requests["t_ns"].astype(np.int64) - START_NS
        )
        ordinate = requests["offset_bytes"]
        if name == "latency":
            continue
        column, row = (abscissa - x["origin"]) >> x["shift"], (ordinate - y["origin"]) >> y["shift"]
        expected: dict[tuple[int, int], list[int]] = {}
        for c, r, w in zip(column.tolist(), row.tolist(), write.tolist(), strict=True):
            expected.setdefault((c, r), [0, 0, 0])[w] += 1
        actual = cells(shape, sections[name])
        assert len(actual) == shape["cells"] <= 3000
        assert sum(sum(n) for n in actual.values()) == len(requests) - dropped
        assert (actual == expected) is (dropped == 0)


def test_extremes_are_kept_when_cells_are_plotted(
    tmp_path: Path, io_events: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "POINTS_EACH", 100)
    monkeypatch.setattr(gathering, "CELLS_EACH", 2000)
    odd = io_events.copy()
    places = np.flatnonzero(
        (io_events["file_id"] == 1) & (io_events["done_bytes"] > 0) & (io_events["op"] < 32)
    )
    odd["offset_bytes"][places[7000]] = 123_457 + (3 << 30)
    gathered = gather(TracedRun(write_bundle(tmp_path / "bundle", odd)))
    assert gathered is not None
    drawing = next(d for d in gathered.drawings if d.totals["file_id"] == 1)
    requests = transfers(odd, 1)
    name, shape = drawing.head["grids"][0]
    assert name == "number"
    grid = cells(shape, drawing.sections[name])
    edges = Numbers(drawing.sections["number_edges"])
    y = shape["y"]
    number = np.arange(len(requests))
    for column in range(shape["columns"]):
        rows = [r for (c, r) in grid if c == column]
        in_column = (number >> shape["x"]["shift"]) == column
        for channel in range(3):
            low = edges.next()
            if not low:
                continue
            high = edges.next()
            filled = [r for r in rows if grid[column, r][channel]]
            mask = in_column & ((requests["op"] >= 32) == (channel == 1))
            assert (
                requests["offset_bytes"][mask].min()
                == y["origin"] + (min(filled) << y["shift"]) + low - 1
            )
            assert (
                requests["offset_bytes"][mask].max()
                == y["origin"] + (max(filled) << y["shift"]) + high
            )


def test_hostile_names_stay_text(tmp_path: Path, io_events: np.ndarray[Any, Any]) -> None:
    bundle = write_bundle(
        tmp_path / "bundle",
        io_events,
        names={1: f"/data/{HOSTILE}", 2: "/data/" + "x" * 4000},
        command=("sh", "-c", HOSTILE),
        phases=((HOSTILE, START_NS + 1000, START_NS + 10**9),),
    )
    text, parsed = read(write_trace_report(TracedRun(bundle)))
    assert parsed.loads == []
    assert "alert(" in text  # present as text …
    assert "<script>alert" not in text.lower()  # … and nowhere as an element
    assert text.count("<script") == text.count("</script>") == 1 + 2 * len(embedded(text))
    assert "\u202e" not in text
    assert any(p["name"] == HOSTILE for head, _ in embedded(text) for p in head["phases"]["time"])


def test_lost_events_and_phases_are_marked(tmp_path: Path, io_events: np.ndarray[Any, Any]) -> None:
    gap = {"start_ns": START_NS + 10**8, "end_ns": START_NS + 2 * 10**8, "lost": 1234}
    bundle = write_bundle(
        tmp_path / "bundle",
        io_events,
        receipt={"lost": 1234, "seen": len(io_events) + 1234, "lost_intervals": [gap]},
        phases=(
            ("load", START_NS, START_NS + 10**9),
            ("query", START_NS + 10**9, START_NS + 2 * 10**9),
        ),
    )
    text = write_trace_report(TracedRun(bundle)).read_text()
    head = embedded(text)[0][0]
    assert [p["name"] for p in head["phases"]["time"]] == ["load", "query"]
    border = head["phases"]["number"][0]["to"]
    requests = transfers(io_events, head["file_id"])
    assert border == int((requests["t_ns"].astype(np.int64) < START_NS + 10**9).sum())
    assert head["lost"]["time"][0] == {
        "from": 10**8,
        "to": 2 * 10**8,
        "name": "1,234 lost",
        "line": 0,
    }
    assert "1,234 lost" in text


def test_a_bundle_without_events_has_a_note_instead_of_figures(
    tmp_path: Path, io_events: np.ndarray[Any, Any]
) -> None:
    bundle = write_bundle(tmp_path / "bundle", io_events[:500])
    (bundle / "io_events.parquet").unlink()
    text, _ = read(write_trace_report(TracedRun(bundle)))
    assert "Not shown: mode trace stores counters" in unlinked(text)


def test_missing_and_truncated_events_are_bad_input(
    tmp_path: Path, io_events: np.ndarray[Any, Any]
) -> None:
    with pytest.raises(BadInput):
        write_trace_report(TracedRun(tmp_path))
    bundle = write_bundle(tmp_path / "bundle", io_events[:500])
    content = (bundle / "io_events.parquet").read_bytes()
    (bundle / "io_events.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(BadInput, match="io_events"):
        write_trace_report(TracedRun(bundle))
    assert not (bundle / "report.html").exists()


def journalled() -> np.ndarray[Any, Any]:
    """Events of a database whose journal is recreated for each of 40 commits, each with two flushes."""
    table = events(400, files=1)
    table["op"][table["op"] == NUMBERS["fsync"]] = NUMBERS["pread64"]
    table["done_bytes"] = table["size_bytes"]
    for n in range(40):
        at = slice(10 * n, 10 * n + 6)
        table["file_id"][at] = 2 + n
        table["op"][at] = [NUMBERS["pwrite64"]] * 4 + [NUMBERS["fsync"]] * 2
        table["offset_bytes"][at] = [0, 512, 4096, 8192, 0, 0]
        table["latency_ns"][10 * n + 4 : 10 * n + 6] = 2_000_000
    return table


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
    # most time goes to the journal, which is plotted first, all files of the path in one figure
    (first, _), *other_figures = embedded(text)
    assert (first["file_id"], first["counts"], len(other_figures)) == (2, [0, 160, 0], 1)
    # two flushes after every four writes, at their times
    assert first["flushes"]["number"] == [4 * (n // 2 + 1) for n in range(80)]
    journal = journalled()
    flushed = journal["t_ns"][journal["op"] == NUMBERS["fsync"]].astype(np.int64) - START_NS
    assert first["flushes"]["time"] == flushed.tolist()
    assert "80 flushes to the device, 160 ms" in unlinked(text)
    assert ". Not drawn: " not in text
    assert other_figures[0][0]["flushes"] == {"number": [], "time": []}


def test_only_some_of_many_flushes_are_marked(tmp_path: Path) -> None:
    table = events(6000, files=1)
    table["op"][::2] = NUMBERS["fsync"]
    text = write_trace_report(TracedRun(write_bundle(tmp_path / "b", table))).read_text()
    ((head, _),) = embedded(text)
    count = int((table["op"] == NUMBERS["fsync"]).sum())
    assert len(head["flushes"]["time"]) == -(-count // 4)
    assert f"{count:,} flushes to the device" in unlinked(text)
    assert f", {-(-count // 4)} of them marked" in text


def n_writes(table: np.ndarray[Any, Any]) -> int:
    """Writes of file 1."""
    return int(((table["file_id"] == 1) & (table["op"] == NUMBERS["pwrite64"])).sum())


@pytest.mark.parametrize("command", ["fio --name=a | cat\n", ["fio", "--name=a", "|", "cat"]])
def test_the_command_of_a_run_is_a_line(tmp_path: Path, command: str | list[str]) -> None:
    bundle = write_bundle(tmp_path / "b", events(100))
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest |= {"command": command, "treatment_id": "t01", "run_id": "r001"}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    text = write_trace_report(TracedRun(bundle)).read_text()
    line = "fio --name=a | cat" if isinstance(command, str) else "fio --name=a &#39;|&#39; cat"
    assert f"<h1>{line}</h1>" in text
    assert "the study that this is a run of (r001, t01)" in unlinked(text)
    assert "penstock trace --mode" not in text
