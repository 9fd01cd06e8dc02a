"""Plug-in tables: built-in rows and a test package of toys follow their protocols."""

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


def with_toys(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run Python (first argument `-c`) or `penstock` with the package of toys installed."""
    start = commands.CODE[:-1] if arguments[0] == "-c" else (sys.executable, "-m", "penstock")
    argv = [*start, *arguments]
    env = {**os.environ, "PYTHONPATH": str(PLUGINS)}
    return commands.run(argv, env=env, capture_output=True, text=True, timeout=120, **more)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_every_built_in_row_can_be_loaded(table: Table) -> None:
    for name in table:
        assert table.load(name) is not None
    with pytest.raises(BadInput, match=f"found {table.what} 'toys'; expected"):
        table.load("toys")


def test_import_error_names_the_row() -> None:
    broken = Table("no-such-table", "thing", {})
    broken.__dict__["_rows"] = {"bad": "no_such_module:x"}
    with pytest.raises(PenstockError, match=r"the thing bad \(no_such_module:x\)"):
        broken.load("bad")


def test_part_tables_read_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading entry points takes about 15 ms per table in each command that names runs."""

    def never(**_: str) -> None:
        raise AssertionError("entry points were read")

    monkeypatch.setattr("importlib.metadata.entry_points", never)
    table = PartTable("run-names", "kind of names")
    assert list(table)
    assert "toys" not in table


def test_plugins_cannot_replace_built_in_rows() -> None:
    code = (
        "from penstock.plugins import *\n"
        "for t in TABLES: print(t.name, list(t))\n"
        "print(OBSERVERS.load('toy').__module__, WORKLOAD_PARSERS.load('fio').__name__)"
    )
    result = with_toys("-c", code)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == len(TABLES) + 1
    for line in lines[:-1]:
        assert line.endswith("'toy']"), line
    assert lines[-1] == "penstock_toy.observer penstock.workload.parsers.fio"


def test_toy_package_has_a_row_for_each_table() -> None:
    points = (PLUGINS / "penstock_toy-1.0.dist-info" / "entry_points.txt").read_text()
    assert set(re.findall(r"^\[penstock\.(.+)\]$", points, re.MULTILINE)) == {
        t.name for t in TABLES
    }
    for path in (PROJECT / "python").rglob("*.py"):
        assert "toy" not in path.read_text().split(), path


def test_verb_of_a_plugin_runs_and_has_help() -> None:
    page = with_toys("--help").stdout
    assert re.search(r"From other packages:\n +toy +Print a word\.", page)
    result = with_toys("toy", "ball")
    assert (result.returncode, result.stdout) == (0, "ball\n"), result.stderr
    assert "Usage: penstock toy" in with_toys("toy", "--help").stdout
    assert with_toys("toi").returncode == 2


def test_toys_follow_their_protocols() -> None:
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
    result = with_toys("-c", code)
    assert result.returncode == 0, result.stderr


def test_response_kind_of_a_toy(tmp_path: Path) -> None:
    code = (
        "from penstock import testing\n"
        "from penstock.plugins import RESPONSE_KINDS\n"
        "testing.check_response_kind(RESPONSE_KINDS.load('toy'), 'ha', 'ha ha no', 2.0)\n"
        "from penstock.study.load import load_study\n"
        "from penstock.workload.responses import measure\n"
        "study = load_study('toys.study.yaml')\n"
        "print(measure(study.responses, 'none', None, 'ha ha', '', 1.0)['laughs'])\n"
    )
    spec = STUDY.replace("from: toys, unit: 1/s", "from: {toy: ha}, unit: laughs")
    (tmp_path / "toys.study.yaml").write_text(spec.replace("{toys: {from", "{laughs: {from"))
    result = with_toys("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "Measured(value=2.0, unit='laughs')\n"
    (tmp_path / "toys.study.yaml").write_text(spec.replace("{toy: ha}", "{toy: ha ha}"))
    result = with_toys("plan", "toys.study.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert "found 'ha ha'; expected one word" in result.stderr
    for name, pattern in (("regex", r"x=(\d+)"), ("json", "x")):
        output = 'x=2 {"x": 1}\nx=3\n{"x": 3}'
        testing.check_response_kind(RESPONSE_KINDS.load(name), pattern, output, 3.0)


@pytest.mark.parametrize("name", STORE_ENGINES.own)
def test_store_engines_state_their_support_of_each_hint(name: str) -> None:
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


def test_store_engine_and_hint_of_a_toy() -> None:
    code = (
        "from penstock import testing\n"
        "from penstock.plugins import STORE_ENGINES, STORE_HINTS\n"
        "testing.check_store_engine(STORE_ENGINES.load('toy'))\n"
        "testing.check_store_hint(STORE_HINTS.load('toy'), '3', wrong='x')\n"
    )
    result = with_toys("-c", code)
    assert result.returncode == 0, result.stderr


TRACE = "toy trace\n" + "".join(f"{1000 * n} /data/a {4096 * n} 4096\n" for n in range(40))


def test_trace_importer_of_a_toy(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(TRACE)
    code = (
        "from pathlib import Path\n"
        "from penstock import testing\n"
        "from penstock.plugins import TRACE_IMPORTERS\n"
        "testing.check_importer(TRACE_IMPORTERS.load('toy'), [Path('t')], 40)\n"
    )
    result = with_toys("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    result = with_toys("import", "t", "-o", "b", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["source"]["format"], summary["events"]) == ("toy", 40)
    assert summary["verdicts"][0]["class"] == "consecutive"
    (tmp_path / "t").write_text(TRACE + "nothing\n")
    result = with_toys("import", "t", "-o", "c", cwd=tmp_path)
    assert result.returncode == 2
    assert "t:42: found 'nothing'; expected a call" in result.stderr


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
    result = with_toys("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    result = with_toys("export", "b", "b.toy", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("; `unzip` opens it\n")
    result = with_toys("import", "b.toy", "-o", "c", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "c\n"), result.stderr
    assert (tmp_path / "c" / "manifest.json").is_file()
    result = with_toys("export", "b", "toys", cwd=tmp_path)
    assert "expected where to, or FILE.tar.zst, or FILE.toy" in result.stderr


def test_platform_format_of_a_toy(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("3 toys\n")
    code = (
        "from pathlib import Path\n"
        "from penstock import testing\n"
        "from penstock.plugins import PLATFORM_FORMATS\n"
        "testing.check_platform_format(PLATFORM_FORMATS.load('toy'), Path('t'))\n"
    )
    result = with_toys("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    result = with_toys("platform", "import", "t", "--from", "toy", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["hosts"][0]["count"] == 3
    result = with_toys("platform", "import", "t", "--from", "doll", cwd=tmp_path)
    assert result.returncode == 2
    assert "found 'doll'; expected distem or simgrid or toy" in result.stderr


def test_lookup_in_an_empty_table() -> None:
    with pytest.raises(BadInput, match="expected none: the part that adds it is not installed"):
        Table("no-such-table", "thing", {}).load("toys")


def test_workload_format_of_a_toy(tmp_path: Path) -> None:
    steps = (
        ("workload", "make", "pipeline", "-o", "w.json"),
        ("workload", "convert", "w.json", "--to", "toy", "-o", "boxed.json"),
        ("workload", "convert", "boxed.json", "-o", "again.json"),
    )
    for argv in steps:
        result = with_toys(*argv, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert list(json.loads((tmp_path / "boxed.json").read_text())) == ["box"]
    assert (tmp_path / "again.json").read_text() == (tmp_path / "w.json").read_text()


def test_built_in_importers_and_formats_follow_their_protocols(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("fio version 2 iolog\n/f add\n/f open\n/f read 0 4096\n/f close\n")
    testing.check_importer(TRACE_IMPORTERS.load("iolog"), [log], 1)
    with pytest.raises(AssertionError, match="not recognised"):
        testing.check_importer(TRACE_IMPORTERS.load("dxt"), [log], 1)
    workload = make_workload("pipeline", "small", {})
    for name in WORKLOAD_FORMATS:
        testing.check_format(WORKLOAD_FORMATS.load(name), workload)


def test_study_findings_follow_their_protocol(tmp_path: Path) -> None:
    out = write_example(tmp_path / "out", events=100)
    findings = [
        f
        for n in STUDY_FINDINGS
        for f in testing.check_study_finding(STUDY_FINDINGS.load(n), [out])
    ]
    assert {"recommendation", "effect-dominant", "cost"} <= {f.code for f in findings}
    with pytest.raises(AssertionError):
        testing.check_study_finding(lambda _: [Finding("x", "info", "no full stop", {})], [out])


def test_built_in_designs_follow_their_protocol() -> None:
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
    ("design", "message"),
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
def test_check_design_detects_a_wrong_design(design: Any, message: str) -> None:
    class Kind:
        WHAT, CANNOT = "A wrong one.", ()
        OPTIONS: ClassVar[dict[str, str]] = {}

        def fault(self, request: Asked) -> str:
            return ""

        def treatments(self, request: Asked) -> Any:
            return design(request.levels)

        def claim(self, request: Asked) -> Claim:
            return Claim(model=None, strength=2 if len(request.levels) > 1 else 0)

    with pytest.raises((AssertionError, PenstockError), match=message):
        testing.check_design(Kind())


class Parser:
    """Parser that accepts any output as its report."""

    def __init__(self) -> None:
        self.RESPONSES = {"ops": "1/s"}

    def parse(self, run_dir: Path, stdout: str, stderr: str, wall_s: float) -> dict[str, Any]:
        from penstock.workload.measured import Measured

        return {"ops": Measured(1.0, "1/s")}

    def operations(self, command: str) -> None:
        return None


def test_check_parser_detects_a_parser_that_accepts_anything() -> None:
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


def test_study_of_toys_is_planned(tmp_path: Path) -> None:
    (tmp_path / "toys.study.yaml").write_text(STUDY)
    result = with_toys("plan", "toys.study.yaml", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    treatments = {tuple(row["levels"].values()) for row in plan["rows"]}
    assert treatments == {("1", "red"), ("2", "blue"), ("3", "green")}


@pytest.mark.parametrize("key", ["kind", "observers", "parser"])
def test_without_the_package_its_keys_are_errors(tmp_path: Path, key: str) -> None:
    (tmp_path / "toys.study.yaml").write_text(STUDY)
    argv = [sys.executable, "-m", "penstock", "plan", "toys.study.yaml"]
    result = commands.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    messages = {
        "kind": "toy",
        "observers": "the unknown key 'toy'",
        "parser": "the unknown parser 'toy'",
    }
    assert messages[key] in result.stderr
