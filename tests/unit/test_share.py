"""Runs as one file: opens without penstock, is restored unchanged, refuses modifications; RO-Crate."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.archive.catalogue import local_user
from penstock.parts.interchange import share
from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import (
    Account,
    Batch,
    Event,
    canonical_labels,
    points,
)
from tests.unit.shared_runs import T0, S, made, own_store, penstock, refused, study


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    monkeypatch.chdir(tmp_path)
    return own_store(tmp_path, monkeypatch)


def recorded(store: Experiments, name: str = "x") -> Experiment:
    at = np.arange(60.0)
    series = {("disk", node): (at, at * (1 + n)) for n, node in enumerate(("n1", "n2"))}
    return made(store, name, series, phases={"load": (10, 20)}, params={"disk": "fast, local"})


def unpacked(path: Path, place: Path) -> Path:
    """Unpack with Arrow and tarfile alone, as another program would."""
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as content:
        plain = io.BytesIO(content.read())
    with tarfile.open(fileobj=plain) as tar:
        tar.extractall(place, filter="data")
    (top,) = place.iterdir()
    return top


def test_it_opens_without_penstock(store: Experiments, tmp_path: Path) -> None:
    run = recorded(store)
    assert penstock("export", "x", "x.tar.zst").exit_code == 0
    top = unpacked(tmp_path / "x.tar.zst", tmp_path / "elsewhere")
    assert top.name == "x.1"
    # the list of checksums is complete
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=top, check=True)
    checksummed = {line.split("  ", 1)[1] for line in (top / "SHA256SUMS").read_text().splitlines()}
    assert checksummed == {
        str(p.relative_to(top)) for p in top.rglob("*") if p.is_file() and p.name != "SHA256SUMS"
    }
    points = pd.read_csv(top / "csv" / "points.csv")
    stored = pq.read_table(top / "points.parquet").to_pandas()
    assert points["float"].tolist() == stored["float"].tolist()
    assert len(points) == 120
    schema = json.loads((top / "schemas" / "series.json").read_text())
    assert {c["name"] for c in schema["columns"]} >= {"metric", "unit", "interval_ns"}
    assert "x#1; disk = fast, local; 60 s" in (top / "README.md").read_text()
    assert (top / "points.parquet").read_bytes() == (run.path / "points.parquet").read_bytes()


def test_an_imported_run_is_unchanged_and_plots_the_same_figure(
    store: Experiments, tmp_path: Path
) -> None:
    """A figure has the same bytes in another directory and without the store."""
    recorded(store)
    penstock("export", "x", "x.tar.zst")
    assert penstock("import", "x.tar.zst").output.strip() == str(tmp_path / "x.1")
    penstock("export", "x.1", "again.tar.zst")
    assert Path("again.tar.zst").read_bytes() == Path("x.tar.zst").read_bytes()
    figures = []
    for source, folder in (("x", "a"), ("x.1", "b")):
        os.mkdir(folder)
        result = penstock("plot", source, "lines", "-o", f"{folder}/fig.pdf")
        assert result.exit_code == 0, result.output
        figures.append((Path(folder) / "fig.pdf").read_bytes())
    assert figures[0] == figures[1]


def test_exports_of_equal_runs_are_independent_of_clock_and_file_order(
    store: Experiments, tmp_path: Path
) -> None:
    run = recorded(store)
    penstock("export", "x", "one.tar.zst")
    for path in sorted(run.path.iterdir(), reverse=True):
        os.utime(path, (1, 1))
    penstock("export", "x", "two.tar.zst")
    assert Path("one.tar.zst").read_bytes() == Path("two.tar.zst").read_bytes()


def test_a_study_a_treatment_and_repeats_are_exported_alike(
    store: Experiments, tmp_path: Path
) -> None:
    out = study(tmp_path / "out", {"t01": [1.0, 1.1], "t02": [2.0, 2.2]})
    (out / "study.yaml").write_text("study: s\n")
    (out / "link").symlink_to("/etc/hostname")
    for _ in range(3):
        recorded(store)
    for source, target, runs in (
        (str(out), "whole", ["r001", "r002", "r003", "r004"]),
        (f"{out}:t02", "part", ["r003", "r004"]),
        ("x#2..3", "repeats", ["x.2", "x.3"]),
    ):
        assert penstock("export", source, f"{target}.tar.zst").exit_code == 0
        assert penstock("import", f"{target}.tar.zst", "-o", target).exit_code == 0
        assert sorted(os.listdir(Path(target) / "runs")) == runs
    assert Path("whole/study.yaml").read_text() == "study: s\n"
    # a link may point anywhere: it is omitted, and the README names it
    assert not Path("whole/link").exists()
    assert "`link`" in Path("whole/README.md").read_text()
    assert "found no repeat 4" in refused("export", "x#1..4", "no.tar.zst")
    assert not Path("no.tar.zst").exists()


def packed(path: Path, members: list[tuple[str, bytes]], *, kind: bytes = tarfile.REGTYPE) -> None:
    """Write a file in the format of exports with other contents and matching checksums."""
    sums = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name.split('/', 1)[-1]}\n"
        for name, content in members
    )
    with (
        pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), "zstd") as out,
        tarfile.open(fileobj=out, mode="w|") as tar,
    ):
        for name, content in [*members, ("x/SHA256SUMS", sums.encode())]:
            head = tarfile.TarInfo(name)
            head.size = len(content)
            if name == members[0][0]:
                head.type = kind
                head.linkname = "/etc/passwd"
                head.size = len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(head, io.BytesIO(content))


@pytest.mark.parametrize(
    "name",
    ["/x/evil", "x/../evil", "../evil", "x/a/../../evil", "x", "x/\x1bevil", "y/evil", "x//evil"],
)
def test_import_writes_no_file_outside_its_directory(
    store: Experiments, tmp_path: Path, name: str
) -> None:
    packed(tmp_path / "f.tar.zst", [("x/good", b"1"), (name, b"1")])
    before = sorted(os.listdir(tmp_path))
    assert "no file beneath one directory" in refused("import", "f.tar.zst", "-o", "o")
    assert sorted(os.listdir(tmp_path)) == before
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_only_regular_files_are_imported(store: Experiments, tmp_path: Path, kind: bytes) -> None:
    packed(tmp_path / "f.tar.zst", [("x/link", b"")], kind=kind)
    assert "no file beneath one directory" in refused("import", "f.tar.zst", "-o", "o")
    assert not Path("o").exists()


def test_a_file_twice_too_many_or_too_large_is_refused(
    store: Experiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(tmp_path / "f.tar.zst", [("x/a", b"1"), ("x/a", b"2")])
    before = sorted(os.listdir(tmp_path))
    assert "twice" in refused("import", "f.tar.zst", "-o", "o")
    packed(tmp_path / "f.tar.zst", [(f"x/{n}", b"1") for n in range(9)])
    monkeypatch.setattr(share, "MOST_FILES", 5)
    assert "more than 5 files" in refused("import", "f.tar.zst", "-o", "o")
    # 64 MB of zeros compress to 3 kB: the limit is on the uncompressed size
    packed(tmp_path / "f.tar.zst", [("x/zeros", bytes(64 << 20))])
    monkeypatch.setattr(share, "MOST_BYTES", 1 << 20)
    assert "expected 1,048,576 at most" in refused("import", "f.tar.zst", "-o", "o")
    assert sorted(os.listdir(tmp_path)) == before


def test_header_size_is_limited(store: Experiments, tmp_path: Path) -> None:
    """A name of 300 MB of zeros takes 30 kB: it is refused before it is read."""
    with (
        pa.CompressedOutputStream(pa.OSFile("f.tar.zst", "wb"), "zstd") as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        head = tarfile.TarInfo("x/long")
        head.type = tarfile.GNUTYPE_LONGNAME
        head.size = 300 << 20
        tar.addfile(head, io.BytesIO(bytes(300 << 20)))
    assert Path("f.tar.zst").stat().st_size < 1 << 20
    tracemalloc.start()
    assert "a header of 314572800 bytes" in refused("import", "f.tar.zst", "-o", "o")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 << 20


def test_an_export_omits_earlier_exports_in_the_same_directory(
    store: Experiments, tmp_path: Path
) -> None:
    out = study(tmp_path / "out", {"t01": [1.0, 1.1]})
    penstock("export", str(out), str(out / "x.tar.zst"))
    first = (out / "x.tar.zst").read_bytes()
    penstock("export", str(out), str(out / "x.tar.zst"))
    assert (out / "x.tar.zst").read_bytes() == first


def test_a_changed_byte_is_refused_or_has_no_effect(store: Experiments, tmp_path: Path) -> None:
    """Change single bytes: the import refuses the file in one line, or its result is the same."""
    recorded(store)
    penstock("export", "x", "x.tar.zst")
    content = Path("x.tar.zst").read_bytes()
    penstock("import", "x.tar.zst", "-o", "good")
    good = {p.name: p.read_bytes() for p in Path("good").rglob("*") if p.is_file()}
    refusals = 0
    for at in range(0, len(content), max(1, len(content) // 60)):
        Path("y.tar.zst").write_bytes(
            content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :]
        )
        result = penstock("import", "y.tar.zst", "-o", f"o{at}")
        if result.exception is None or isinstance(result.exception, SystemExit):
            imported = {p.name: p.read_bytes() for p in Path(f"o{at}").rglob("*") if p.is_file()}
            assert imported == good
        else:
            refusals += 1
            assert not Path(f"o{at}").exists()
    assert refusals > 40
    for cut in (0, 3, 100, len(content) // 2, len(content) - 1):
        Path("y.tar.zst").write_bytes(content[:cut])
        assert "expected what `penstock export" in refused("import", "y.tar.zst", "-o", "cut")
    assert not list(tmp_path.glob(".*partial"))


def test_missing_and_additional_files_are_reported(store: Experiments, tmp_path: Path) -> None:
    recorded(store)
    penstock("export", "x", "x.tar.zst")
    top = unpacked(tmp_path / "x.tar.zst", tmp_path / "u")

    def repack(omit: str = "", add: str = "") -> None:
        with (
            pa.CompressedOutputStream(pa.OSFile("y.tar.zst", "wb"), "zstd") as out,
            tarfile.open(fileobj=out, mode="w|") as tar,
        ):
            for path in sorted(p for p in top.rglob("*") if p.is_file()):
                if path.name != omit:
                    tar.add(path, f"x.1/{path.relative_to(top)}")
            if add:
                tar.addfile(tarfile.TarInfo(f"x.1/{add}"))

    repack()
    assert penstock("import", "y.tar.zst", "-o", "o1").exit_code == 0
    repack(omit="points.parquet")
    assert "found no points.parquet, which its SHA256SUMS lists" in refused(
        "import", "y.tar.zst", "-o", "o2"
    )
    repack(add="new.txt")
    assert "new.txt with no sum of it" in refused("import", "y.tar.zst", "-o", "o3")
    repack(omit="SHA256SUMS")
    assert "found no SHA256SUMS" in refused("import", "y.tar.zst", "-o", "o4")
    assert "exists already" in refused("import", "y.tar.zst", "-o", "o1")


def test_the_crate_keeps_to_the_rules_of_ro_crate(store: Experiments, tmp_path: Path) -> None:
    """The requirements (MUST) of RO-Crate 1.1 for the descriptor, the root and data entities."""
    recorded(store)
    licence = "https://creativecommons.org/licenses/by/4.0/"
    penstock("export", "x", "x.tar.zst", "--license", licence)
    top = unpacked(tmp_path / "x.tar.zst", tmp_path / "u")
    crate = json.loads((top / "ro-crate-metadata.json").read_text())
    assert "https://w3id.org/ro/crate/1.1/context" in crate["@context"]
    graph = {e["@id"]: e for e in crate["@graph"]}
    # flattened: every entity once, with an @id and a @type, and no entity nested in another
    assert len(graph) == len(crate["@graph"])
    assert all("@type" in e for e in graph.values())
    for entity in graph.values():
        for value in entity.values():
            for inner in value if isinstance(value, list) else [value]:
                assert not isinstance(inner, dict) or list(inner) == ["@id"]
    descriptor = graph["ro-crate-metadata.json"]
    assert descriptor["@type"] == "CreativeWork"
    assert descriptor["about"] == {"@id": "./"}
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    root = graph["./"]
    assert root["@type"] == "Dataset"
    assert root["name"]
    assert root["description"]
    assert pd.Timestamp(root["datePublished"]) == pd.Timestamp(1_700_000_060, unit="s", tz="UTC")
    assert root["license"] == {"@id": licence}
    assert licence in graph
    # every file is an entity that the root links, and every entity of a file exists
    linked = [part["@id"] for part in root["hasPart"]]
    assert len(set(linked)) == len(linked)
    files = [e for e in graph.values() if e["@type"] == "File"]
    assert {e["@id"] for e in files} == set(linked)
    for entity in files:
        content = (top / entity["@id"]).read_bytes()
        assert entity["contentSize"] == str(len(content))
        assert entity["sha256"] == hashlib.sha256(content).hexdigest()
    existing = {str(p.relative_to(top)) for p in top.rglob("*") if p.is_file()}
    assert set(linked) == existing - {"ro-crate-metadata.json", "SHA256SUMS"}
    (run,) = (e for e in graph.values() if e["@type"] == "CreateAction")
    assert graph[run["instrument"]["@id"]]["name"] == "penstock"


# ---------------------------------------------------------------- tables of MonEx and other tools

#: published headers, with their peculiarities; the rows are our own
HDD = "duration,node1,node2,node3\r\n0,0,0,0.044444444444444446\r\n1,0,,0.1\r\n2,2.4444444444444446,4.5,7\r\n"
TORRENT = "duration,peer00,peer01,peer02\n0,0,0,0.004\n5,0,0.0051,1\n10,1,1,1\n"
PDU = (
    "duration,grimoire-pdu2,node3,node2,node1,grisou-pdu1,grisou-pdu1\r\n"
    "0,0,124,137,128,0,22\r\n10,0,125.5,125,128,,0\r\n"
)
_FILES = "2 cgroup cmdline io loadavg localtime meminfo random-read.1.0 stat statm status uptime"
_NAMES = ",".join(["sample", "duration", *(f"offset_{name}" for name in _FILES.split())])
#: the line of the header has it twice: 27 names over 14 fields
OFFSETS = f"{_NAMES}{_NAMES}\n" + "".join(
    f"{number},{at}{',' * 8}{offset}{',' * 4}\n"
    for number, at, offset in (
        (0, "0.925234944", 36880384),
        (1, "0.927110912", 96661504),
        (2, "0.929766912", 126414848),
    )
)


def exported_text(name: str, axis: str) -> str:
    argv = f"monitor get {name} -m m --type {axis} --label entity -o {name}.out".split()
    assert penstock(*argv).exit_code == 0
    return Path(f"{name}.out").read_bytes().decode()


def test_a_table_of_monex_survives_import_and_export(store: Experiments) -> None:
    """Disks and torrent: the bytes are the same, apart from Unix line ends."""
    Path("hdd.csv").write_bytes(HDD.encode())
    result = penstock("import", "hdd.csv", "--as", "mongo", "--metric", "m", "--unit", "%")
    assert result.output.splitlines() == [
        "8 points: mongo#1",
        "note: times are those since the begin: no clock is known",
        "note: duration names no unit: read as seconds",
    ]
    assert exported_text("mongo", "duration") == HDD.replace("\r\n", "\n")
    assert penstock("export", "mongo", "csv", "-o", "folder", "--type", "duration").exit_code == 0
    assert Path("folder/m.csv").read_text().splitlines()[1:] == HDD.split("\r\n")[1:-1]
    penstock("plot", "mongo", "lines", "-o", "fig.svg")
    assert Path("fig.svg").stat().st_size > 1000
    Path("torrent.csv").write_text(TORRENT)
    penstock("import", "torrent.csv", "--as", "torrent", "--metric", "m")
    assert exported_text("torrent", "duration") == TORRENT


def test_two_columns_with_one_name_stay_separate_with_a_note(store: Experiments) -> None:
    """Power of outlets: unordered columns, and `grisou-pdu1` twice."""
    Path("pdu.csv").write_bytes(PDU.encode())
    result = penstock("import", "pdu.csv", "--as", "power", "--metric", "m", "--unit", "W")
    assert result.output.splitlines()[0] == "11 points: power#1"
    assert result.output.splitlines()[-1] == (
        "note: names that are in its header row already: grisou-pdu1#2"
    )
    assert exported_text("power", "duration") == (
        "duration,grimoire-pdu2,grisou-pdu1,grisou-pdu1#2,node1,node2,node3\n"
        "0,0,0,22,128,137,124\n10,0,,0,128,125,125.5\n"
    )


def test_offsets_of_monex_are_a_sequence_with_times(store: Experiments) -> None:
    Path("offsets.csv").write_text(OFFSETS)
    assert len(OFFSETS.splitlines()[0].split(",")) == 27
    result = penstock("import", "offsets.csv", "--as", "offsets", "--metric", "m")
    assert result.output.splitlines() == [
        "3 points: offsets#1",
        "note: times are those since the begin: no clock is known",
        "note: its header row has 27 names over 14 fields: the last are of none",
    ]
    experiment = store.find("offsets", None)
    points = store.recorded(experiment).points.to_pydict()
    assert points["index"] == [0, 1, 2]
    assert points["utc_ns"] == [925234944, 927110912, 929766912]
    assert points["float"] == [36880384, 96661504, 126414848]
    # empty columns are dropped
    assert exported_text("offsets", "sample") == (
        "sample,offset_random-read.1.0\n0,36880384\n1,96661504\n2,126414848\n"
    )
    result = penstock("plot", "offsets", "sequence", "-o", "fig.svg")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("column", "times", "utc_ns"),
    [
        ("time_ms", (0, 5), [0, 5 * 10**6]),
        ("duration (us)", (0, 5), [0, 5000]),
        ("time (minutes)", (0, 5), [0, 300 * S]),
        (
            "timestamp",
            (1700000000123, 1700000000128),
            [1700000000123 * 10**6, 1700000000128 * 10**6],
        ),
    ],
)
def test_times_of_a_sequence_have_their_unit(
    store: Experiments, column: str, times: tuple[int, int], utc_ns: list[int]
) -> None:
    Path("t.csv").write_text(f"sample,{column},a\n0,{times[0]},4096\n1,{times[1]},0\n")
    result = penstock("import", "t.csv", "--as", "t", "--metric", "m")
    assert result.output.splitlines()[0] == "2 points: t#1"
    assert ("no clock is known" in result.output) == (utc_ns[0] == 0)
    assert store.recorded(store.find("t", None)).points.to_pydict()["utc_ns"] == utc_ns


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("duration,a,a,a", ["a", "a#2", "a#3"]),
        ("duration,a,a,a#2", ["a", "a#2", "a#3"]),
        ("duration,a.1,a,a", ["a", "a#2", "a.1"]),
        ('duration,"a,b","a,b",c', ["a,b", "a,b#2", "c"]),
    ],
)
def test_duplicate_column_names_are_numbered(
    store: Experiments, header: str, names: list[str]
) -> None:
    Path("t.csv").write_text(f"{header}\n0,1,2,3\n1,4,5,6\n")
    assert penstock("import", "t.csv", "--as", "t", "--metric", "m").exit_code == 0
    series = store.recorded(store.find("t", None)).series
    assert [json.loads(text)["entity"] for text in series["labels"].to_pylist()] == names


def test_a_table_with_fewer_names_than_fields_is_refused(store: Experiments) -> None:
    """Values would get the names of other columns."""
    Path("t.csv").write_text("duration,a,b\n0,1,2,3\n1,4,5,6\n")
    message = refused("import", "t.csv", "--as", "t", "--metric", "m")
    assert "found 4 fields below 3 names; expected a name for each" in message


@pytest.mark.parametrize("form", ["csv", "openmetrics"])
def test_losses_are_exported_next_to_the_tables(store: Experiments, form: str) -> None:
    """A complete series, one that lacks points, and a sequence with a gap: counts are those of the series."""
    at = np.arange(60.0)
    few = at[(at < 20) | (at >= 30)]
    experiment = store.start("x", local_user(), at_ns=T0)
    for number, (node, times) in enumerate((("a", at), ("b", few))):
        label = canonical_labels({"node": node})
        table = points(
            metric=["disk, %"] * len(times),
            labels=label,
            utc_ns=T0 + (times * S).astype(np.int64),
            float=times,
            unit="%",
        )
        accounts = [Account("disk, %", label, S, produced=60, late=number)]
        store.sink(experiment).write(Batch("test", number, table, accounts))
    # OpenMetrics cannot represent a sequence
    with_gap = int(form == "csv")
    table = points(metric=["offset"] * 3, index=[0, 1, 3], integer=[1, 2, 3])
    store.sink(experiment).write(Batch("test", 2, table))
    store.stop(experiment, at_ns=T0 + 60 * S)
    result = penstock("export", "x", form, "-o", "out", "--json")
    assert result.exit_code == 0, result.output
    assert ("not in OpenMetrics: sequences and texts of offset" in result.stderr) == (not with_gap)
    assert [Path(f).name for f in json.loads(result.stdout)["files"]][-1] == "losses.json"
    losses = json.loads(Path("out/losses.json").read_text())
    series = store.recorded(store.find("x", None)).series.to_pylist()
    verdicts = [entry["verdict"] for entry in losses["series"]]
    assert verdicts == ["complete", "partial"] + ["partial"] * with_gap
    assert losses["verdict"] == "partial"
    assert [entry["metric"] for entry in losses.get("omitted", [])] == ["offset"] * (not with_gap)
    for entry, row in zip(losses["series"], series[: 2 + with_gap], strict=True):
        assert entry["labels"] == json.loads(row["labels"])
        for key in entry.keys() - {"file", "column", "labels"}:
            assert entry[key] == row[key], key
    partial = losses["series"][1]
    assert (partial["produced"], partial["stored"], partial["lost"]) == (60, 50, 10)
    assert (partial["expected"], partial["gaps"], partial["late"]) == (60, 1, 1)
    assert losses["totals"]["lost"] == 10 + with_gap
    if with_gap:
        assert losses["series"][2]["lost"] == 1
        for entry in losses["series"]:
            head = next(csv.reader([Path("out", entry["file"]).read_text().splitlines()[0]]))
            assert entry["column"] in head[1:]


def test_refused_data_are_in_the_losses_of_an_export(store: Experiments) -> None:
    """Fails if they are counted once for each series of their source, or not at all."""
    experiment = store.start("x", local_user(), at_ns=T0)
    times = [T0 + k * S for k in range(10)]
    for number, node in enumerate("abc"):
        table = points(
            metric="m", labels=canonical_labels({"n": node}), utc_ns=times, float=[1.0] * 10
        )
        events = [Event("refused", T0, T0, detail="malformed", count=2)] if number == 0 else []
        store.sink(experiment).write(Batch("s", number, table, [], events))
    refused_messages = Event("refused-messages", T0, T0, detail="unauthorized: no token", count=4)
    store.sink(experiment).write(Batch("others", 0, points(metric=[]), [], [refused_messages]))
    store.stop(experiment, at_ns=T0 + 9 * S)
    assert penstock(*"export x csv -o out".split()).exit_code == 0
    losses = json.loads(Path("out/losses.json").read_text())
    assert losses["totals"]["refused"] == 2
    assert losses["refused"] == {
        "others": {"points": {}, "messages": {"unauthorized": 4}},
        "s": {"points": {"malformed": 2}, "messages": {}},
    }
    assert losses["verdict"] == "unusable"


@pytest.mark.parametrize("axis", ["duration", "sample"])
def test_each_series_is_exported_whatever_the_first_column(store: Experiments, axis: str) -> None:
    experiment = store.start("x", local_user(), at_ns=T0)
    sequence = points(metric=["m", "n"], index=[0, 0], float=[5.0, 6.0])
    store.sink(experiment).write(Batch("a", 0, sequence))
    store.sink(experiment).write(Batch("b", 0, points(metric="m", utc_ns=[T0], float=[7.0])))
    store.stop(experiment, at_ns=T0 + S)
    assert penstock(*f"export x csv -o out --type {axis}".split()).exit_code == 0
    tables = {path.name: path.read_text() for path in Path("out").glob("*.csv")}
    times = "duration,m\n0,7\n" if axis == "duration" else f"timestamp,m\n{T0 // S},7\n"
    assert sorted(tables.values()) == sorted([times, "sample,m\n0,5\n", "sample,n\n0,6\n"])


def test_a_sequence_beside_times_of_its_metric_is_exported(store: Experiments) -> None:
    """Fails if the series over time replaces the sequence."""
    experiment = store.start("x", local_user(), at_ns=T0)
    sequence = points(metric="m", index=[0, 1], float=[5.0, 6.0])
    store.sink(experiment).write(Batch("a", 0, sequence))
    store.sink(experiment).write(Batch("b", 0, points(metric="m", utc_ns=[T0], float=[7.0])))
    store.stop(experiment, at_ns=T0 + S)
    assert penstock(*"export x csv -o out".split()).exit_code == 0
    assert Path("out/m.csv").read_text() == f"timestamp,m\n{T0 // S},7\n"
    assert Path("out/m-2.csv").read_text() == "sample,m\n0,5\n1,6\n"
    losses = json.loads(Path("out/losses.json").read_text())
    assert [entry["file"] for entry in losses["series"]] == ["m.csv", "m-2.csv"]


def test_each_of_several_runs_has_its_own_losses(store: Experiments) -> None:
    for _ in range(2):
        recorded(store)
    assert penstock(*"export x#1..2 csv -o out".split()).exit_code == 0
    runs = list(Path("out").iterdir())
    assert len(runs) == 2
    for run in runs:
        losses = json.loads((run / "losses.json").read_text())
        assert (len(losses["series"]), losses["totals"]["stored"]) == (2, 120)


def test_kube_burner_and_sar_come_into_the_store(store: Experiments) -> None:
    documents = [
        {
            "metricName": "nodeCPU",
            "timestamp": f"2024-05-01T10:00:0{s}Z",
            "labels": {"instance": node},
            "value": s + n,
        }
        for s in range(3)
        for n, node in enumerate(("a", "b"))
    ]
    Path("kb.json").write_text(json.dumps(documents))
    assert "6 points: kb#1" in penstock("import", "kb.json", "--as", "kb").output
    penstock(*"monitor get kb -m nodeCPU --label entity --type duration -o kb.csv".split())
    assert Path("kb.csv").read_text() == "duration,a,b\n0,0,1\n1,1,2\n2,2,3\n"
    sar = Path(__file__).parents[1] / "golden" / "metrics" / "sar.json"
    assert "points: sar#1" in penstock("import", str(sar), "--as", "sar").output
    sar_metrics = store.recorded(store.find("sar", None)).series["metric"].to_pylist()
    assert {"rkB", "rd_sec"} <= set(sar_metrics)
    assert "expected one file of metrics" in refused("import", "kb.json", "--as", "kb", "-o", "o")
    # a refused import leaves nothing in the store
    Path("twice.csv").write_text("sample,a\n0,1\n-1,2\n")
    assert "index below 0" in refused("import", "twice.csv", "--as", "twice")
    assert [e.name for e in store.listed(None) if e.name == "twice"] == []
    Path("text").write_text("hello\n")
    assert "found nothing known at its beginning" in refused("import", "text", "--as", "t")
