"""Runs as one file: opens without penstock, comes back as it was, refuses what was changed; RO-Crate."""

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
from penstock.parts.monitoring.experiments.points import Account, Batch, canonical_labels, points
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
    """With Arrow and tarfile alone, as another program would."""
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
    # every file has a sum, and there is no other
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=top, check=True)
    listed = {line.split("  ", 1)[1] for line in (top / "SHA256SUMS").read_text().splitlines()}
    assert listed == {
        str(p.relative_to(top)) for p in top.rglob("*") if p.is_file() and p.name != "SHA256SUMS"
    }
    points = pd.read_csv(top / "csv" / "points.csv")
    there = pq.read_table(top / "points.parquet").to_pandas()
    assert points["float"].tolist() == there["float"].tolist()
    assert len(points) == 120
    schema = json.loads((top / "schemas" / "series.json").read_text())
    assert {c["name"] for c in schema["columns"]} >= {"metric", "unit", "interval_ns"}
    assert "x#1; disk = fast, local; 60 s" in (top / "README.md").read_text()
    assert (top / "points.parquet").read_bytes() == (run.path / "points.parquet").read_bytes()


def test_it_comes_back_as_it_was_and_draws_the_same_figure(
    store: Experiments, tmp_path: Path
) -> None:
    """Moved to another directory, without the store, a figure has the same bytes."""
    recorded(store)
    penstock("export", "x", "x.tar.zst")
    assert penstock("import", "x.tar.zst").output.strip() == str(tmp_path / "x.1")
    penstock("export", "x.1", "again.tar.zst")
    assert Path("again.tar.zst").read_bytes() == Path("x.tar.zst").read_bytes()
    drawn = []
    for source, folder in (("x", "a"), ("x.1", "b")):
        os.mkdir(folder)
        result = penstock("plot", source, "lines", "-o", f"{folder}/fig.pdf")
        assert result.exit_code == 0, result.output
        drawn.append((Path(folder) / "fig.pdf").read_bytes())
    assert drawn[0] == drawn[1]


def test_equal_runs_give_equal_bytes_whatever_the_clock_and_the_order(
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
    for named, target, runs in (
        (str(out), "whole", ["r001", "r002", "r003", "r004"]),
        (f"{out}:t02", "part", ["r003", "r004"]),
        ("x#2..3", "repeats", ["x.2", "x.3"]),
    ):
        assert penstock("export", named, f"{target}.tar.zst").exit_code == 0
        assert penstock("import", f"{target}.tar.zst", "-o", target).exit_code == 0
        assert sorted(os.listdir(Path(target) / "runs")) == runs
    assert Path("whole/study.yaml").read_text() == "study: s\n"
    # a link may point anywhere: it is left out, and that is said
    assert not Path("whole/link").exists()
    assert "`link`" in Path("whole/README.md").read_text()
    assert "found no repeat 4" in refused("export", "x#1..4", "no.tar.zst")
    assert not Path("no.tar.zst").exists()


def packed(path: Path, members: list[tuple[str, bytes]], *, kind: bytes = tarfile.REGTYPE) -> None:
    """A file as ours, with other contents, its sums right."""
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
def test_no_file_leaves_its_directory(store: Experiments, tmp_path: Path, name: str) -> None:
    packed(tmp_path / "f.tar.zst", [("x/good", b"1"), (name, b"1")])
    before = sorted(os.listdir(tmp_path))
    assert "no file beneath one directory" in refused("import", "f.tar.zst", "-o", "o")
    assert sorted(os.listdir(tmp_path)) == before
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_only_files_come_in(store: Experiments, tmp_path: Path, kind: bytes) -> None:
    packed(tmp_path / "f.tar.zst", [("x/link", b"")], kind=kind)
    assert "no file beneath one directory" in refused("import", "f.tar.zst", "-o", "o")
    assert not Path("o").exists()


def test_a_file_twice_too_many_or_too_large_is_refused(
    store: Experiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(tmp_path / "f.tar.zst", [("x/a", b"1"), ("x/a", b"2")])
    assert "twice" in refused("import", "f.tar.zst", "-o", "o")
    packed(tmp_path / "f.tar.zst", [(f"x/{n}", b"1") for n in range(9)])
    monkeypatch.setattr(share, "MOST_FILES", 5)
    assert "more than 5 files" in refused("import", "f.tar.zst", "-o", "o")
    # 64 MB of zeros are 3 kB: what counts is what they become
    packed(tmp_path / "f.tar.zst", [("x/zeros", bytes(64 << 20))])
    monkeypatch.setattr(share, "MOST_BYTES", 1 << 20)
    assert "expected 1,048,576 at most" in refused("import", "f.tar.zst", "-o", "o")
    assert (
        sorted(os.listdir(tmp_path)) == ["archive", "f.tar.zst", "state"] or not Path("o").exists()
    )


def test_headers_have_an_end(store: Experiments, tmp_path: Path) -> None:
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
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50 << 20


def test_what_was_exported_into_it_is_not_exported_again(
    store: Experiments, tmp_path: Path
) -> None:
    out = study(tmp_path / "out", {"t01": [1.0, 1.1]})
    penstock("export", str(out), str(out / "x.tar.zst"))
    first = (out / "x.tar.zst").read_bytes()
    penstock("export", str(out), str(out / "x.tar.zst"))
    assert (out / "x.tar.zst").read_bytes() == first


def test_every_byte_that_is_changed_is_found_or_changes_nothing(
    store: Experiments, tmp_path: Path
) -> None:
    """Each of many single bytes is changed: it is refused in one line, or what comes out is the same."""
    recorded(store)
    penstock("export", "x", "x.tar.zst")
    whole = Path("x.tar.zst").read_bytes()
    penstock("import", "x.tar.zst", "-o", "good")
    good = {p.name: p.read_bytes() for p in Path("good").rglob("*") if p.is_file()}
    found = 0
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        Path("y.tar.zst").write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        result = penstock("import", "y.tar.zst", "-o", f"o{at}")
        if result.exception is None or isinstance(result.exception, SystemExit):
            came = {p.name: p.read_bytes() for p in Path(f"o{at}").rglob("*") if p.is_file()}
            assert came == good
        else:
            found += 1
            assert not Path(f"o{at}").exists()
    assert found > 40
    for cut in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        Path("y.tar.zst").write_bytes(whole[:cut])
        assert "expected what `penstock export" in refused("import", "y.tar.zst", "-o", "cut")
    assert not list(tmp_path.glob(".*partial"))


def test_what_is_lacking_or_added_is_told(store: Experiments, tmp_path: Path) -> None:
    recorded(store)
    penstock("export", "x", "x.tar.zst")
    top = unpacked(tmp_path / "x.tar.zst", tmp_path / "u")

    def again(leave: str = "", add: str = "") -> None:
        with (
            pa.CompressedOutputStream(pa.OSFile("y.tar.zst", "wb"), "zstd") as out,
            tarfile.open(fileobj=out, mode="w|") as tar,
        ):
            for path in sorted(p for p in top.rglob("*") if p.is_file()):
                if path.name != leave:
                    tar.add(path, f"x.1/{path.relative_to(top)}")
            if add:
                tar.addfile(tarfile.TarInfo(f"x.1/{add}"))

    again()
    assert penstock("import", "y.tar.zst", "-o", "o1").exit_code == 0
    again(leave="points.parquet")
    assert "found no points.parquet, which its SHA256SUMS lists" in refused(
        "import", "y.tar.zst", "-o", "o2"
    )
    again(add="new.txt")
    assert "new.txt with no sum of it" in refused("import", "y.tar.zst", "-o", "o3")
    again(leave="SHA256SUMS")
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
    # flattened: every entity once, with an @id and a @type, and no entity within another
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
    # every file is an entity, linked from the root, and every entity of a file is there
    linked = [part["@id"] for part in root["hasPart"]]
    assert len(set(linked)) == len(linked)
    files = [e for e in graph.values() if e["@type"] == "File"]
    assert {e["@id"] for e in files} == set(linked)
    for entity in files:
        content = (top / entity["@id"]).read_bytes()
        assert entity["contentSize"] == str(len(content))
        assert entity["sha256"] == hashlib.sha256(content).hexdigest()
    there = {str(p.relative_to(top)) for p in top.rglob("*") if p.is_file()}
    assert set(linked) == there - {"ro-crate-metadata.json", "SHA256SUMS"}
    (run,) = (e for e in graph.values() if e["@type"] == "CreateAction")
    assert graph[run["instrument"]["@id"]]["name"] == "penstock"


# ---------------------------------------------------------------- MonEx's tables, and others'

#: their headers are the published ones, with what is odd in them; the rows are ours
HDD = "duration,node1,node2,node3\r\n0,0,0,0.044444444444444446\r\n1,0,,0.1\r\n2,2.4444444444444446,4.5,7\r\n"
TORRENT = "duration,peer00,peer01,peer02\n0,0,0,0.004\n5,0,0.0051,1\n10,1,1,1\n"
PDU = (
    "duration,grimoire-pdu2,node3,node2,node1,grisou-pdu1,grisou-pdu1\r\n"
    "0,0,124,137,128,0,22\r\n10,0,125.5,125,128,,0\r\n"
)
_FILES = "2 cgroup cmdline io loadavg localtime meminfo random-read.1.0 stat statm status uptime"
_NAMES = ",".join(["sample", "duration", *(f"offset_{name}" for name in _FILES.split())])
#: the header row stands there twice, on one line: 27 names over 14 fields
OFFSETS = f"{_NAMES}{_NAMES}\n" + "".join(
    f"{number},{at}{',' * 8}{offset}{',' * 4}\n"
    for number, at, offset in (
        (0, "0.925234944", 36880384),
        (1, "0.927110912", 96661504),
        (2, "0.929766912", 126414848),
    )
)


def out_again(name: str, axis: str) -> str:
    got = f"monitor get {name} -m m --type {axis} --label entity -o {name}.out".split()
    assert penstock(*got).exit_code == 0
    return Path(f"{name}.out").read_bytes().decode()


def test_a_table_of_monex_comes_in_and_goes_out_the_same(store: Experiments) -> None:
    """Disks and torrent: bytes are the same, but that lines end as on Unix."""
    Path("hdd.csv").write_bytes(HDD.encode())
    result = penstock("import", "hdd.csv", "--as", "mongo", "--metric", "m", "--unit", "%")
    assert result.output.splitlines() == [
        "8 points: mongo#1",
        "note: times are those since the begin: no clock is known",
        "note: duration names no unit: read as seconds",
    ]
    assert out_again("mongo", "duration") == HDD.replace("\r\n", "\n")
    assert penstock("export", "mongo", "csv", "-o", "folder", "--type", "duration").exit_code == 0
    assert Path("folder/m.csv").read_text().splitlines()[1:] == HDD.split("\r\n")[1:-1]
    penstock("plot", "mongo", "lines", "-o", "fig.svg")
    assert Path("fig.svg").stat().st_size > 1000
    Path("torrent.csv").write_text(TORRENT)
    penstock("import", "torrent.csv", "--as", "torrent", "--metric", "m")
    assert out_again("torrent", "duration") == TORRENT


def test_two_columns_of_one_name_stay_two_and_are_told(store: Experiments) -> None:
    """The power of outlets: columns that are out of order, and `grisou-pdu1` twice."""
    Path("pdu.csv").write_bytes(PDU.encode())
    result = penstock("import", "pdu.csv", "--as", "power", "--metric", "m", "--unit", "W")
    assert result.output.splitlines()[0] == "11 points: power#1"
    assert result.output.splitlines()[-1] == (
        "note: names that are in its header row already: grisou-pdu1#2"
    )
    assert out_again("power", "duration") == (
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
    found = store.find("offsets", None)
    points = store.recorded(found).points.to_pydict()
    assert points["index"] == [0, 1, 2]
    assert points["utc_ns"] == [925234944, 927110912, 929766912]
    assert points["float"] == [36880384, 96661504, 126414848]
    # columns without a value are none
    assert out_again("offsets", "sample") == (
        "sample,offset_random-read.1.0\n0,36880384\n1,96661504\n2,126414848\n"
    )
    result = penstock("plot", "offsets", "sequence", "-o", "fig.svg")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("duration,a,a,a", ["a", "a#2", "a#3"]),
        ("duration,a,a,a#2", ["a", "a#2", "a#3"]),
        ("duration,a.1,a,a", ["a", "a#2", "a.1"]),
        ('duration,"a,b","a,b",c', ["a,b", "a,b#2", "c"]),
    ],
)
def test_names_of_columns_are_told_apart(store: Experiments, header: str, names: list[str]) -> None:
    Path("t.csv").write_text(f"{header}\n0,1,2,3\n1,4,5,6\n")
    assert penstock("import", "t.csv", "--as", "t", "--metric", "m").exit_code == 0
    series = store.recorded(store.find("t", None)).series
    assert [json.loads(text)["entity"] for text in series["labels"].to_pylist()] == names


def test_a_table_with_fewer_names_than_fields_is_refused(store: Experiments) -> None:
    """Its columns would be under each other's names."""
    Path("t.csv").write_text("duration,a,b\n0,1,2,3\n1,4,5,6\n")
    said = refused("import", "t.csv", "--as", "t", "--metric", "m")
    assert "found 4 fields below 3 names; expected a name for each" in said


@pytest.mark.parametrize("form", ["csv", "openmetrics"])
def test_losses_lie_beside_the_tables(store: Experiments, form: str) -> None:
    """Of a column that is whole, one that lacks points, a sequence with a hole: by the series' own count."""
    at = np.arange(60.0)
    few = at[(at < 20) | (at >= 30)]
    begun = store.start("x", local_user(), at_ns=T0)
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
        store.sink(begun).write(Batch("test", number, table, accounts))
    # which has no place in OpenMetrics
    holed = int(form == "csv")
    if holed:
        table = points(metric=["offset"] * 3, index=[0, 1, 3], integer=[1, 2, 3])
        store.sink(begun).write(Batch("test", 2, table))
    store.stop(begun, at_ns=T0 + 60 * S)
    done = penstock("export", "x", form, "-o", "out", "--json")
    assert done.exit_code == 0, done.output
    assert [Path(f).name for f in json.loads(done.stdout)["files"]][-1] == "losses.json"
    told = json.loads(Path("out/losses.json").read_text())
    made = store.recorded(store.find("x", None)).series.to_pylist()
    verdicts = [each["verdict"] for each in told["series"]]
    assert verdicts == ["complete", "partial"] + ["partial"] * holed
    assert told["verdict"] == "partial"
    for each, row in zip(told["series"], made, strict=True):
        assert each["labels"] == json.loads(row["labels"])
        for key in each.keys() - {"file", "column", "labels"}:
            assert each[key] == row[key], key
    lacking = told["series"][1]
    assert (lacking["produced"], lacking["stored"], lacking["lost"]) == (60, 50, 10)
    assert (lacking["expected"], lacking["gaps"], lacking["late"]) == (60, 1, 1)
    assert told["totals"]["lost"] == 10 + holed
    if holed:
        assert told["series"][2]["lost"] == 1
        for each in told["series"]:
            head = next(csv.reader([Path("out", each["file"]).read_text().splitlines()[0]]))
            assert each["column"] in head[1:]


def test_each_of_several_runs_has_its_own_losses(store: Experiments) -> None:
    for _ in range(2):
        recorded(store)
    assert penstock(*"export x#1..2 csv -o out".split()).exit_code == 0
    runs = list(Path("out").iterdir())
    assert len(runs) == 2
    for run in runs:
        told = json.loads((run / "losses.json").read_text())
        assert (len(told["series"]), told["totals"]["stored"]) == (2, 120)


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
    assert "rkB" in sar_metrics or "rd_sec" in sar_metrics or len(sar_metrics) > 20
    assert "expected one file of metrics" in refused("import", "kb.json", "--as", "kb", "-o", "o")
    # what cannot be taken in leaves nothing
    Path("twice.csv").write_text("sample,a\n0,1\n-1,2\n")
    assert "index below 0" in refused("import", "twice.csv", "--as", "twice")
    assert [e.name for e in store.listed(None) if e.name == "twice"] == []
    Path("text").write_text("hello\n")
    assert "found nothing known at its beginning" in refused("import", "text", "--as", "t")
