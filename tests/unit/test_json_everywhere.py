"""`--json` on every verb, as README has it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import cli
from tests.support import commands

#: verbs whose output is that of a command or of the document that was asked for
OTHERS = {"hosts exec", "nodes exec"}


def leaves() -> Iterator[tuple[str, Any]]:
    for verb in cli.VERBS:
        command = cli._command(verb)
        below = getattr(command, "commands", None)
        if below is None:
            yield verb, command
        else:
            yield from ((f"{verb} {name}", one) for name, one in below.items() if not one.hidden)


def test_every_verb_has_it() -> None:
    verbs = dict(leaves())
    assert len(verbs) > 60
    without = {
        name
        for name, verb in verbs.items()
        if not any("--json" in parameter.opts for parameter in verb.params)
    }
    assert without == OTHERS


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    place = {"PENSTOCK_STATE": str(tmp_path / "state"), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    return {**{k: v for k, v in os.environ.items() if k != "PENSTOCK_SERVER"}, **place}


def test_an_experiment_from_begin_to_end(own: dict[str, str], tmp_path: Path) -> None:
    def answer_of(*words: str) -> object:
        line = [sys.executable, "-m", "penstock", *words, "--json"]
        done = commands.run(line, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert answer_of("monitor", "start", "x") == {"experiment": "x#1"}
    assert answer_of("monitor", "mark", "x", "--note", "now") == {
        "experiment": "x",
        "kind": "note",
        "name": "now",
    }
    assert answer_of("monitor", "stop", "x", "--aborted") == {"experiment": "x#1", "aborted": True}
    assert answer_of("monitor", "rm", "x") == {"removed": "x"}
    place = str(tmp_path / "w.json")
    workload = answer_of("workload", "make", "pipeline", "--width", "1", "-o", place)
    assert workload == {"file": place, "tasks": 3, "files": 4, "notes": []}
    files = answer_of("monitor", "grafana", str(tmp_path / "grafana"))
    assert all(Path(name).is_file() for name in files["files"])  # type: ignore[index]


def test_rows_of_a_metric(own: dict[str, str]) -> None:
    line = [sys.executable, "-m", "penstock", "monitor"]
    run = [*line, "run", "--name", "y", "-i", "0.1", "--", "sleep", "1"]
    commands.run(run, env=own, capture_output=True, check=True)
    got = commands.run(
        [*line, "get", "y", "-m", "cpu_user", "--json"], env=own, capture_output=True, text=True
    )
    answer = json.loads(got.stdout)
    assert answer["metric"] == "cpu_user"
    assert len(answer["rows"]) >= 5
    assert all(len(row) == len(answer["columns"]) >= 2 for row in answer["rows"])
    assert all(isinstance(cell, float) for row in answer["rows"] for cell in row)
    both = commands.run(
        [*line, "get", "y", "-m", "cpu_user", "--json", "-o", "f"],
        env=own,
        capture_output=True,
        text=True,
    )
    assert both.returncode == 2
