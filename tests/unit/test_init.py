"""`penstock init` writes a valid study for any program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.design.plan import make_plan
from penstock.study.draft import draft, draft_name
from penstock.study.load import read_study
from penstock.study.resolve import resolve
from tests.support import commands

TREATMENT = {"disk": "hdd-7200", "memory": "1GiB"}


def command_of(argv: list[str]) -> str:
    study = read_study(draft(argv, draft_name(argv), "x").encode(), Path("x.study.yaml"))
    assert len(make_plan(study).rows) == 8
    run = resolve(study, TREATMENT)
    return run.filling({"data": "/d"}, "/r").line(run.command)


def test_dd():
    argv = ["dd", "if=/dev/zero", "of={data}/f", "bs=1M", "count=16", "conv=fsync"]
    assert command_of(argv) == "dd if=/dev/zero of=/d/f bs=1M count=16 conv=fsync"


def test_fio_gets_its_report_and_directory():
    line = command_of(["fio", "--name=a", "--rw=write"])
    assert line.endswith("--directory=/d --output-format=json+ --output=/r/fio.json")
    assert "write_bandwidth" in draft(["fio", "--name=a", "--rw=write"], "fio", "x")


@pytest.mark.parametrize(
    ("argv", "name", "program"),
    [
        (["python3", "{study_dir}/load.py", "{data}"], "load", "load.py"),
        (["/usr/bin/bash measure.sh {data} | tail -1"], "measure", "measure.sh"),
        (["python3.11", "-m", "timeit"], "python3.11", "python3.11"),
        (["mkfs.ext4", "{data}/i"], "mkfs.ext4", "mkfs.ext4"),
    ],
)
def test_name_is_that_of_the_script(argv: list[str], name: str, program: str):
    assert draft_name(argv) == name
    assert f"How much does the disk cost {program}," in draft(argv, name, "x")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["kv/kv", "-db", "{data}/x"], "{study_dir}/kv/kv -db {data}/x"),
        (["./kv/kv -db {data}/x | wc -l"], "{study_dir}/kv/kv -db {data}/x | wc -l"),
        (["python3", "load.py", "{data}"], "python3 {study_dir}/load.py {data}"),
        (["kv/absent", "{data}"], "kv/absent {data}"),
        (["load.py", "{data}"], "load.py {data}"),  # found in PATH
    ],
)
def test_relative_program_is_relative_to_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], line: str
) -> None:
    """Runs have their own working directory; a relative path would fail with status 127."""
    (tmp_path / "kv").mkdir()
    for name in ("kv/kv", "load.py"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    assert f'  command: "{line}"\n' in draft(argv, "kv", "kv.study.yaml")
    below = line.replace("{study_dir}/", "{study_dir}/../")
    assert f'  command: "{below}"\n' in draft(argv, "kv", "studies/kv.study.yaml")


@settings(max_examples=50)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="{}"), max_size=8)
        | st.sampled_from(["{data}", "{", "}}", "'\"", "a\tb", "#x", ": "]),
        min_size=1,
        max_size=4,
    )
)
def test_arguments_are_passed_unchanged(rest: list[str]):
    import shlex

    argv = ["printf", *rest]
    assert shlex.split(command_of(argv)) == ["printf", *(a.replace("{data}", "/d") for a in rest)]


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_existing_file_needs_force(tmp_path, options: list[str]):
    (tmp_path / "ls.study.yaml").write_text("mine")
    run = "from penstock.cli import main; main()"
    result = commands.run(
        [sys.executable, "-c", run, "init", *options, "--", "ls", "-l"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == (0 if options else 2), result.stderr
    assert ((tmp_path / "ls.study.yaml").read_text() == "mine") == (not options)
