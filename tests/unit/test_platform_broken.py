"""Broken platform files: positions of all errors at once, exit status 2 and no traceback."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from penstock.errors import BadInput
from penstock.platform.hosts import Platform, load_platform
from penstock.platform.schema import platform_schema
from penstock.spec.source import read_source

BROKEN = Path(__file__).parents[1] / "golden" / "broken-platforms"
VALID = BROKEN / "sound.platform.yaml"


def expected() -> dict[str, list[str]]:
    by_file: dict[str, list[str]] = defaultdict(list)
    for line in (BROKEN / "expected.txt").read_text().splitlines():
        by_file[line.partition(":")[0]].append(line)
    return by_file


FILES = sorted(p.name for p in BROKEN.glob("*.platform.yaml") if p != VALID)


def test_every_file_is_listed():
    assert sorted(expected()) == FILES
    assert len(FILES) >= 40


def test_original_file_is_valid():
    assert load_platform(VALID).name == "broken"


@pytest.mark.parametrize("name", FILES)
def test_errors_and_their_positions(name: str):
    with pytest.raises(BadInput) as error:
        load_platform(BROKEN / name)
    mistakes = error.value.mistakes
    actual = [f"{name}:{m.line}:{m.column}: {m.found}" for m in mistakes]
    assert actual == expected()[name]
    assert all(m.expected and m.file.endswith(name) for m in mistakes)


@pytest.mark.parametrize("name", FILES)
def test_quoted_value_is_at_the_reported_position(name: str):
    lines = (BROKEN / name).read_text().splitlines()
    for line in expected()[name]:
        quoted = re.match(r"[^:]+:(\d+):(\d+): (?:the (?:unknown )?key )?'([^']*)'$", line)
        if quoted is None or quoted[3] == "0 GB/s":  # bound of a range in percent
            continue
        text = lines[int(quoted[1]) - 1][int(quoted[2]) - 1 :].lstrip("'\"")
        assert text.startswith(quoted[3]), line


def test_json_schema_refuses_bad_structure():
    validator = jsonschema.Draft202012Validator(platform_schema())
    refused = {
        name
        for name in FILES
        if name not in ("empty.platform.yaml", "invalid-yaml.platform.yaml")
        and not validator.is_valid(read_source((BROKEN / name).read_bytes(), name).value)
    }
    assert validator.is_valid(read_source(VALID.read_bytes(), "sound").value)
    assert refused >= {
        f"{name}.platform.yaml"
        for name in (
            "bandwidth-of-a-wrong-unit bandwidth-without-unit count-of-none estimate-with-unknown-key "
            "format-of-the-future many-at-once missing-keys negative-time not-a-mapping "
            "price-without-time unknown-key unknown-key-top unknown-role unknown-store"
        ).split()
    }


def test_check_command_refuses_every_broken_file(capsys, monkeypatch):
    from penstock import cli

    for name in FILES:
        command = ["penstock", "platform", "check", "--json", str(BROKEN / name)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as exited:
            cli.main()
        out, err = capsys.readouterr()
        assert exited.value.code == 2, name
        first = expected()[name][0]
        assert first.split(": ")[0] in err, name
        assert json.loads(out)["mistakes"][0]["line"] == int(first.split(":")[1])


def test_missing_file():
    with pytest.raises(BadInput, match=r"nowhere\.yaml"):
        load_platform("nowhere.yaml")


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    paths = [path] if path else []
    for key, inner in pairs:
        inside = isinstance(inner, dict | list)
        paths += _paths(inner, (*path, key)) if inside else [(*path, key)]
    return paths


DOCUMENT = read_source(VALID.read_bytes(), "sound").value
PATHS = _paths(DOCUMENT)
ODD = (
    None,
    True,
    -1,
    0,
    1e40,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "x",
    "1ms",
    "1 GB/s",
    "-1 W",
    "{a}",
)
ODDER: tuple[Any, ...] = ([], {}, ["x"], {"value": "1ms"}, {"value": None}, {"low": "1ms"}, [[1]])


@pytest.mark.parametrize("value", [*ODD, *ODDER, "gone"], ids=repr)
def test_any_value_anywhere_is_accepted_or_refused(value: Any):
    """Replace each value of the valid file in turn."""
    for path in PATHS:
        check_replacement(path, value)


def check_replacement(path: tuple[Any, ...], value: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    node = document
    for step in path[:-1]:
        node = node[step]
    if value == "gone":
        del node[path[-1]]
    else:
        node[path[-1]] = value
    mistakes = None
    try:
        platform = Platform.from_dict(document, BROKEN)
    except BadInput as error:
        mistakes = error.mistakes
    if mistakes is not None:
        assert mistakes
        assert all(m.found and m.expected for m in mistakes)
    else:
        json.dumps(platform.lower(), allow_nan=False)
        assert len(platform.assumed) <= 4
        assert platform.hosts
        assert Platform.from_dict(platform.document, BROKEN).lower() == platform.lower()
