"""Broken study files: all mistakes at once with their positions, exit status 2, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.study.load import load_study
from tests.support import commands

BROKEN = Path(__file__).parents[1] / "golden" / "broken"


def expected() -> dict[str, list[str]]:
    """`file:line:column: found` of every mistake, from a handwritten file."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for line in (BROKEN / "expected.txt").read_text().splitlines():
        by_file[line.partition(":")[0]].append(line)
    return by_file


FILES = sorted(p.name for p in BROKEN.glob("*.study.yaml") if p.name != "sound.study.yaml")


def test_every_file_is_listed():
    assert sorted(expected()) == FILES
    assert len(FILES) >= 20


def test_the_sound_file_has_no_mistakes():
    assert load_study(BROKEN / "sound.study.yaml").name == "broken"


@pytest.mark.parametrize("name", FILES)
def test_mistakes(name: str):
    with pytest.raises(BadInput) as caught:
        load_study(BROKEN / name)
    mistakes = caught.value.mistakes
    actual = [f"{name}:{m.line}:{m.column}: {m.found}" for m in mistakes]
    assert actual == expected()[name]
    assert all(m.expected and m.file.endswith(name) for m in mistakes)


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.run(
        [sys.executable, "-c", "from penstock.cli import main; main()", "plan", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", ["many-at-once.study.yaml", "not-utf-8.study.yaml"])
def test_command_line(name: str):
    result = plan(str(BROKEN / name))
    assert result.returncode == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == len(expected()[name])
    for line, expected_line in zip(lines, expected()[name], strict=True):
        place = expected_line.split(": ")[0]
        assert place in line
        assert "found" in line
        assert "expected" in line


def test_every_broken_file_by_the_command(capsys, monkeypatch):
    from penstock import cli

    for name in FILES:
        monkeypatch.setattr(sys, "argv", ["penstock", "plan", "--json", str(BROKEN / name)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        assert exit_.value.code == 2, name
        first = expected()[name][0]
        assert first.split(": ")[0] in err, name
        assert json.loads(out)["mistakes"][0]["line"] == int(first.split(":")[1])


def test_a_missing_file_is_reported():
    result = plan("nowhere.study.yaml")
    assert result.returncode == 2
    assert "nowhere.study.yaml" in result.stderr


def test_a_recursive_value_is_a_mistake(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("penstock: 1\nname: &a [*a]\n")
    with pytest.raises(BadInput) as caught:
        load_study(path)
    assert caught.value.mistakes


@pytest.mark.parametrize(
    ("levels", "disk", "message"),
    [
        ('{healthy: "{"}', "features: {fault}", "'{'; expected a mapping"),
        (
            '{odd: {faults: [{op: read, error: EIO, probability: "{x}"}]}}',
            "features: {fault}",
            "'{x}'; expected a share",
        ),
        ("{two: [a, b]}", "profile: {fault}", "a list; expected text"),
    ],
)
def test_a_level_is_a_value_and_no_template(
    levels: str, disk: str, message: str, tmp_path: Path
) -> None:
    key, value = disk.split(": ")
    other = "profile: sata-ssd, " if key != "profile" else ""
    (tmp_path / "s.yaml").write_text(
        f"""penstock: 1
name: levels
question: Is a level a template?
factors:
  fault: {{levels: {levels}}}
design: {{kind: full, replicates: 1}}
platform: {{nodes: [{{name: n, disks: [{{name: data, {other}{key}: "{value}"}}]}}]}}
workload: {{command: "ls {{data}} {{fault}}"}}
responses: {{wall: {{from: wall_s, unit: s, better: lower}}}}
"""
    )
    with pytest.raises(BadInput) as error:
        load_study(tmp_path / "s.yaml")
    assert message in str(error.value)
