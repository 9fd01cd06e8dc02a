"""What can be added: our own rows, and a package with one of each, keep to their protocols."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock import testing
from penstock.analyse.findings.finding import Finding
from penstock.design.kinds.base import Asked, Claim
from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.workloads.make import make_workload
from penstock.plugins import (
    DESIGNS,
    RESPONSE_KINDS,
    STORE_ENGINES,
    STORE_HINTS,
    STUDY_FINDINGS,
    TABLES,
    TRACE_IMPORTERS,
    WORKLOAD_FORMATS,
    WORKLOAD_PARSERS,
    PartTable,
    Table,
)
from penstock.workload.parsers import fio
from tests.examples.report import write_example
from tests.support import commands

PLUGINS = Path(__file__).parents[1] / "plugins"
PROJECT = Path(__file__).parents[2]


def with_toys(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Python, or `penstock` where the first word is no option, with the package of toys installed."""
    start = commands.CODE[:-1] if words[0] == "-c" else (sys.executable, "-m", "penstock")
    line = [*start, *words]
    env = {**os.environ, "PYTHONPATH": str(PLUGINS)}
    return commands.run(line, env=env, capture_output=True, text=True, timeout=120, **more)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_every_row_of_ours_can_be_loaded(table: Table) -> None:
    for name in table:
        assert table.load(name) is not None
    with pytest.raises(BadInput, match=f"found {table.what} 'toys'; expected"):
        table.load("toys")


def test_a_row_that_cannot_be_imported_is_named() -> None:
    broken = Table("no-such-table", "thing", {})
    broken.__dict__["_rows"] = {"bad": "no_such_module:x"}
    with pytest.raises(PenstockError, match=r"the thing bad \(no_such_module:x\)"):
        broken.load("bad")


def test_a_table_of_parts_looks_for_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them takes about 15 ms for each table, at each command that names runs."""

    def never(**_: str) -> None:
        raise AssertionError("entry points were read")

    monkeypatch.setattr("importlib.metadata.entry_points", never)
    table = PartTable("run-names", "kind of names")
    assert list(table)
    assert "toys" not in table


def test_nobody_takes_the_name_of_a_row_of_ours() -> None:
    code = (
        "from penstock.plugins import *\n"
        "for t in TABLES: print(t.name, list(t))\n"
        "print(OBSERVERS.load('toy').__module__, WORKLOAD_PARSERS.load('fio').__name__)"
    )
    done = with_toys("-c", code)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(TABLES) + 1
    for line in lines[:-1]:
        assert line.endswith("'toy']"), line
    assert lines[-1] == "penstock_toy.observer penstock.workload.parsers.fio"


def test_a_package_adds_one_of_each_and_nothing_else_names_it() -> None:
    points = (PLUGINS / "penstock_toy-1.0.dist-info" / "entry_points.txt").read_text()
    assert set(re.findall(r"^\[penstock\.(.+)\]$", points, re.MULTILINE)) == {
        t.name for t in TABLES
    }
    for path in (PROJECT / "python").rglob("*.py"):
        assert "toy" not in path.read_text().split(), path


def test_a_verb_of_another_package_is_on_the_help_page_and_runs() -> None:
    page = with_toys("--help").stdout
    assert re.search(r"From other packages:\n +toy +Print a word\.", page)
    done = with_toys("toy", "ball")
    assert (done.returncode, done.stdout) == (0, "ball\n"), done.stderr
    assert "Usage: penstock toy" in with_toys("toy", "--help").stdout
    assert with_toys("toi").returncode == 2


def test_the_toys_keep_to_their_protocols() -> None:
    code = (
        "from penstock import testing\n"
        "from penstock.plugins import *\n"
        "testing.check_parser(WORKLOAD_PARSERS.load('toy'), stdout='toy: 12\\n', gives={'toys'})\n"
        "testing.check_design(DESIGNS.load('toy'))\n"
        "testing.check_observer(OBSERVERS.load('toy'), {})\n"
        "assert len(testing.check_collector(COLLECTORS.load('toy'), {}).rows()) == 2\n"
        "server = METRIC_SERVERS.load('toy')('toy', {})\n"
        "testing.check_metric_server(server, 'q', 0, 3_000_000_000)\n"
        "import numpy as np\n"
        "from penstock.archive.series.series import Recorded, Series\n"
        "drawn = Recorded([Series('a', np.arange(3.0), np.arange(3.0), 'W')])\n"
        "testing.check_figure(FIGURE_KINDS.load('toy'), drawn)\n"
        "from pathlib import Path\n"
        "import tempfile\n"
        "log = Path(tempfile.mkdtemp()) / 'log'\n"
        "log.write_text('# toys\\n1700000000 3\\n')\n"
        "testing.check_metric_reader(METRIC_READERS.load('toy'), log)\n"
    )
    done = with_toys("-c", code)
    assert done.returncode == 0, done.stderr


def test_a_response_that_a_toy_finds(tmp_path: Path) -> None:
    code = (
        "from penstock import testing\n"
        "from penstock.plugins import RESPONSE_KINDS\n"
        "testing.check_response_kind(RESPONSE_KINDS.load('toy'), 'ha', 'ha ha no', 2.0)\n"
        "from penstock.study.load import load_study\n"
        "from penstock.workload.responses import measure\n"
        "study = load_study('toys.study.yaml')\n"
        "print(measure(study.responses, 'none', None, 'ha ha', '', 1.0)['laughs'])\n"
    )
    asks = STUDY.replace("from: toys, unit: 1/s", "from: {toy: ha}, unit: laughs")
    (tmp_path / "toys.study.yaml").write_text(asks.replace("{toys: {from", "{laughs: {from"))
    done = with_toys("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Measured(value=2.0, unit='laughs')\n"
    (tmp_path / "toys.study.yaml").write_text(asks.replace("{toy: ha}", "{toy: ha ha}"))
    done = with_toys("plan", "toys.study.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "found 'ha ha'; expected one word" in done.stderr
    for name, words in (("regex", r"x=(\d+)"), ("json", "x")):
        text = 'x=2 {"x": 1}\nx=3\n{"x": 3}'
        testing.check_response_kind(RESPONSE_KINDS.load(name), words, text, 3.0)


@pytest.mark.parametrize("name", STORE_ENGINES.own)
def test_engines_of_stores_say_how_each_hint_is_met(name: str) -> None:
    testing.check_store_engine(STORE_ENGINES.load(name))


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("Replication", "3", "0"),
        ("ChunkSize", "256KiB", "-1"),
        ("StripeWidth", "2", "two"),
        ("CacheSize", "1MiB", "much"),
        ("deduplication", "true", "maybe"),
        ("DP", "collocation g", "somewhere"),
        ("DP", "scatter 4", "scatter 0"),
    ],
)
def test_hints_of_stores(key: str, value: str, wrong: str) -> None:
    testing.check_store_hint(STORE_HINTS.load(key), value, wrong=wrong)


def test_a_toy_engine_and_a_toy_hint() -> None:
    code = (
        "from penstock import testing\n"
        "from penstock.plugins import STORE_ENGINES, STORE_HINTS\n"
        "testing.check_store_engine(STORE_ENGINES.load('toy'))\n"
        "testing.check_store_hint(STORE_HINTS.load('toy'), '3', wrong='x')\n"
    )
    done = with_toys("-c", code)
    assert done.returncode == 0, done.stderr


TRACE = "toy trace\n" + "".join(f"{1000 * n} /data/a {4096 * n} 4096\n" for n in range(40))


def test_a_toy_trace_is_imported(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(TRACE)
    code = (
        "from pathlib import Path\n"
        "from penstock import testing\n"
        "from penstock.plugins import TRACE_IMPORTERS\n"
        "testing.check_importer(TRACE_IMPORTERS.load('toy'), [Path('t')], 40)\n"
    )
    done = with_toys("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = with_toys("import", "t", "-o", "b", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["source"]["format"], found["events"]) == ("toy", 40)
    assert found["verdicts"][0]["class"] == "consecutive"
    (tmp_path / "t").write_text(TRACE + "nothing\n")
    done = with_toys("import", "t", "-o", "c", cwd=tmp_path)
    assert done.returncode == 2
    assert "t:42: found 'nothing'; expected a call" in done.stderr


def test_runs_in_archives(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(TRACE)
    assert with_toys("import", "t", "-o", "b", cwd=tmp_path).returncode == 0
    code = (
        "from pathlib import Path\n"
        "from penstock import testing\n"
        "from penstock.archive.selection import select\n"
        "from penstock.plugins import ARCHIVE_FORMATS\n"
        "for name in ARCHIVE_FORMATS:\n"
        "    testing.check_archive_format(ARCHIVE_FORMATS.load(name), select(Path('b')), name)\n"
    )
    done = with_toys("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = with_toys("export", "b", "b.toy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("; `unzip` opens it\n")
    done = with_toys("import", "b.toy", "-o", "c", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "c\n"), done.stderr
    assert (tmp_path / "c" / "manifest.json").is_file()
    done = with_toys("export", "b", "toys", cwd=tmp_path)
    assert "expected where to, or FILE.tar.zst, or FILE.toy" in done.stderr


def test_a_platform_in_a_toys_format(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("3 toys\n")
    code = (
        "from pathlib import Path\n"
        "from penstock import testing\n"
        "from penstock.plugins import PLATFORM_FORMATS\n"
        "testing.check_platform_format(PLATFORM_FORMATS.load('toy'), Path('t'))\n"
    )
    done = with_toys("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = with_toys("platform", "import", "t", "--from", "toy", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hosts"][0]["count"] == 3
    done = with_toys("platform", "import", "t", "--from", "doll", cwd=tmp_path)
    assert done.returncode == 2
    assert "found 'doll'; expected distem or simgrid or toy" in done.stderr


def test_an_empty_table_says_so() -> None:
    with pytest.raises(BadInput, match="expected none: the part that adds it is not installed"):
        Table("no-such-table", "thing", {}).load("toys")


def test_a_workload_in_a_toys_format(tmp_path: Path) -> None:
    steps = (
        ("workload", "make", "pipeline", "-o", "w.json"),
        ("workload", "convert", "w.json", "--to", "toy", "-o", "boxed.json"),
        ("workload", "convert", "boxed.json", "-o", "again.json"),
    )
    for words in steps:
        done = with_toys(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert list(json.loads((tmp_path / "boxed.json").read_text())) == ["box"]
    assert (tmp_path / "again.json").read_text() == (tmp_path / "w.json").read_text()


def test_our_importers_and_formats_keep_to_their_protocols(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("fio version 2 iolog\n/f add\n/f open\n/f read 0 4096\n/f close\n")
    testing.check_importer(TRACE_IMPORTERS.load("iolog"), [log], 1)
    with pytest.raises(AssertionError, match="not recognised"):
        testing.check_importer(TRACE_IMPORTERS.load("dxt"), [log], 1)
    workload = make_workload("pipeline", "small", {})
    for name in WORKLOAD_FORMATS:
        testing.check_format(WORKLOAD_FORMATS.load(name), workload)


def test_findings_of_studies_keep_to_their_protocol(tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", events=100)
    made = [
        f
        for n in STUDY_FINDINGS
        for f in testing.check_study_finding(STUDY_FINDINGS.load(n), [out])
    ]
    assert {"recommendation", "effect-dominant", "cost"} <= {f.code for f in made}
    with pytest.raises(AssertionError):
        testing.check_study_finding(lambda _: [Finding("x", "info", "no full stop", {})], [out])


def test_our_rows_keep_to_their_protocols() -> None:
    for name, options in (
        ("full", {}),
        ("plackett-burman", {}),
        ("orthogonal-array", {}),
        ("definitive-screening", {}),
        ("d-optimal", {"runs": 20}),
        ("i-optimal", {"runs": 20}),
        ("latin-hypercube", {"runs": 20}),
        ("sobol", {"runs": 20}),
    ):
        testing.check_design(DESIGNS.load(name), options)
    report = json.dumps({"jobs": [{"jobname": "j", "read": {"iops": 1}, "write": {}}]})
    with pytest.raises((AssertionError, PenstockError)):
        testing.check_parser(fio, stdout=report, gives={"no-such-response"})


@pytest.mark.parametrize(
    ("design", "says"),
    [
        (lambda levels: np.zeros((2, 9)), "9 columns"),
        (lambda levels: np.full((1, len(levels)), 7), "levels"),
        (lambda levels: np.zeros((1, len(levels))), "one level only"),
        (lambda levels: np.zeros((2, len(levels))), "twice"),
        (
            lambda levels: np.unique([[i % n for n in levels] for i in range(12)], axis=0),
            "not orthogonal",
        ),
    ],
)
def test_a_wrong_design_is_found(design: Any, says: str) -> None:
    class Kind:
        WHAT, CANNOT = "A wrong one.", ()
        OPTIONS: ClassVar[dict[str, str]] = {}

        def fault(self, asked: Asked) -> str:
            return ""

        def treatments(self, asked: Asked) -> Any:
            return design(asked.levels)

        def claim(self, asked: Asked) -> Claim:
            return Claim(model=None, strength=2 if len(asked.levels) > 1 else 0)

    with pytest.raises((AssertionError, PenstockError), match=says):
        testing.check_design(Kind())


class Parser:
    """One that takes anything for its report."""

    def __init__(self) -> None:
        self.RESPONSES = {"ops": "1/s"}

    def parse(self, run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Any]:
        from penstock.workload.measured import Measured

        return {"ops": Measured(1.0, "1/s")}

    def operations(self, command: str) -> None:
        return None


def test_a_parser_that_takes_anything_is_found() -> None:
    with pytest.raises(AssertionError, match="no report of it"):
        testing.check_parser(Parser(), stdout="ops 1", gives={"ops"})
    with pytest.raises(AssertionError, match="not found"):
        testing.check_parser(WORKLOAD_PARSERS.load("none"), gives={"ops"})


STUDY = """
penstock: 1
name: toys
question: Which toy is the fastest?
factors:
  size: {levels: [1, 2, 3]}
  colour: {levels: [red, blue, green]}
design: {kind: {toy: {runs: 3}}, replicates: 2}
platform: {nodes: [{name: n, disks: [{name: d, profile: service-5ms, backend: toy}]}]}
workload: {command: "echo {size} {colour} {n.d}", parser: toy}
observers: {monitor: null, toy: {file: /proc/loadavg}}
responses: {toys: {from: toys, unit: 1/s, better: higher}}
"""


def test_a_study_of_toys_is_planned(tmp_path: Path) -> None:
    (tmp_path / "toys.study.yaml").write_text(STUDY)
    done = with_toys("plan", "toys.study.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    treatments = {tuple(row["levels"].values()) for row in plan["rows"]}
    assert treatments == {("1", "red"), ("2", "blue"), ("3", "green")}


@pytest.mark.parametrize("word", ["kind", "observers", "parser"])
def test_without_the_package_its_words_are_mistakes(tmp_path: Path, word: str) -> None:
    (tmp_path / "toys.study.yaml").write_text(STUDY)
    line = [sys.executable, "-m", "penstock", "plan", "toys.study.yaml"]
    done = commands.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    told = {
        "kind": "toy",
        "observers": "the unknown key 'toy'",
        "parser": "the unknown parser 'toy'",
    }
    assert told[word] in done.stderr
