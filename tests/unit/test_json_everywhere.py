"""`--json` of every verb."""

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

#: verbs that print the output of a command
OTHERS = {"hosts exec", "nodes exec"}


def all_commands() -> Iterator[tuple[str, Any]]:
    for verb in cli.VERBS:
        command = cli._command(verb)
        subcommands = getattr(command, "commands", None)
        if subcommands is None:
            yield verb, command
        else:
            yield from (
                (f"{verb} {name}", subcommand)
                for name, subcommand in subcommands.items()
                if not subcommand.hidden
            )


def test_every_verb_has_json() -> None:
    verbs = dict(all_commands())
    assert len(verbs) > 60
    without = {
        name
        for name, verb in verbs.items()
        if not any("--json" in parameter.opts for parameter in verb.params)
    }
    assert without == OTHERS


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    directories = {
        "PENSTOCK_STATE": str(tmp_path / "state"),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
    }
    return {**{k: v for k, v in os.environ.items() if k != "PENSTOCK_SERVER"}, **directories}


def test_experiment_from_start_to_end(environment: dict[str, str], tmp_path: Path) -> None:
    def json_of(*arguments: str) -> object:
        argv = [sys.executable, "-m", "penstock", *arguments, "--json"]
        result = commands.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    assert json_of("monitor", "start", "x") == {"experiment": "x#1"}
    assert json_of("monitor", "mark", "x", "--note", "now") == {
        "experiment": "x",
        "kind": "note",
        "name": "now",
    }
    assert json_of("monitor", "stop", "x", "--aborted") == {"experiment": "x#1", "aborted": True}
    assert json_of("monitor", "rm", "x") == {"removed": "x"}
    path = str(tmp_path / "w.json")
    workload = json_of("workload", "make", "pipeline", "--width", "1", "-o", path)
    assert workload == {"file": path, "tasks": 3, "files": 4, "notes": []}
    files = json_of("monitor", "grafana", str(tmp_path / "grafana"))
    assert all(Path(name).is_file() for name in files["files"])  # type: ignore[index]


def test_rows_of_a_metric(environment: dict[str, str]) -> None:
    monitor = [sys.executable, "-m", "penstock", "monitor"]
    run = [*monitor, "run", "--name", "y", "-i", "0.1", "--", "sleep", "1"]
    commands.run(run, env=environment, capture_output=True, check=True)
    result = commands.run(
        [*monitor, "get", "y", "-m", "cpu_user", "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    answer = json.loads(result.stdout)
    assert answer["metric"] == "cpu_user"
    assert len(answer["rows"]) >= 5
    assert all(len(row) == len(answer["columns"]) >= 2 for row in answer["rows"])
    assert all(isinstance(cell, float) for row in answer["rows"] for cell in row)
    both = commands.run(
        [*monitor, "get", "y", "-m", "cpu_user", "--json", "-o", "f"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert both.returncode == 2
