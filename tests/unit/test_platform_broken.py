"""Broken platform files: each gives the right places, all mistakes at once, exit status 2, no traceback."""

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
SOUND = BROKEN / "sound.platform.yaml"


def expected() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in (BROKEN / "expected.txt").read_text().splitlines():
        found[line.partition(":")[0]].append(line)
    return found


FILES = sorted(p.name for p in BROKEN.glob("*.platform.yaml") if p != SOUND)


def test_every_file_is_listed():
    assert sorted(expected()) == FILES
    assert len(FILES) >= 40


def test_the_sound_file_they_are_made_from_is_sound():
    assert load_platform(SOUND).name == "broken"


@pytest.mark.parametrize("name", FILES)
def test_mistakes(name: str):
    with pytest.raises(BadInput) as caught:
        load_platform(BROKEN / name)
    mistakes = caught.value.mistakes
    said = [f"{name}:{m.line}:{m.column}: {m.found}" for m in mistakes]
    assert said == expected()[name]
    assert all(m.expected and m.file.endswith(name) for m in mistakes)


@pytest.mark.parametrize("name", FILES)
def test_a_quoted_value_stands_where_the_mistake_says(name: str):
    lines = (BROKEN / name).read_text().splitlines()
    for line in expected()[name]:
        quoted = re.match(r"[^:]+:(\d+):(\d+): (?:the (?:unknown )?key )?'([^']*)'$", line)
        if quoted is None or quoted[3] == "0 GB/s":  # the end of a range that is given in percent
            continue
        there = lines[int(quoted[1]) - 1][int(quoted[2]) - 1 :].lstrip("'\"")
        assert there.startswith(quoted[3]), line


def test_the_json_schema_refuses_what_is_wrong_in_form():
    judge = jsonschema.Draft202012Validator(platform_schema())
    refused = {
        name
        for name in FILES
        if name not in ("empty.platform.yaml", "invalid-yaml.platform.yaml")
        and not judge.is_valid(read_source((BROKEN / name).read_bytes(), name).value)
    }
    assert judge.is_valid(read_source(SOUND.read_bytes(), "sound").value)
    assert refused >= {
        f"{name}.platform.yaml"
        for name in (
            "bandwidth-of-a-wrong-unit bandwidth-without-unit count-of-none estimate-with-unknown-key "
            "format-of-the-future many-at-once missing-keys negative-time not-a-mapping "
            "price-without-time unknown-key unknown-key-top unknown-role unknown-store"
        ).split()
    }


def test_every_broken_file_by_the_command(capsys, monkeypatch):
    from penstock import cli

    for name in FILES:
        command = ["penstock", "platform", "check", "--json", str(BROKEN / name)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capsys.readouterr()
        assert left.value.code == 2, name
        first = expected()[name][0]
        assert first.split(": ")[0] in err, name
        assert json.loads(out)["mistakes"][0]["line"] == int(first.split(":")[1])


def test_a_file_that_is_not_there():
    with pytest.raises(BadInput, match=r"nowhere\.yaml"):
        load_platform("nowhere.yaml")


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    for key, inner in pairs:
        inside = isinstance(inner, dict | list)
        found += _places(inner, (*path, key)) if inside else [(*path, key)]
    return found


DOCUMENT = read_source(SOUND.read_bytes(), "sound").value
PLACES = _places(DOCUMENT)
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


@pytest.mark.parametrize("odd", [*ODD, *ODDER, "gone"], ids=repr)
def test_whatever_stands_anywhere_is_taken_or_refused(odd: Any):
    """Every value of the sound file replaced, one after the other."""
    for place in PLACES:
        taken_or_refused(place, odd)


def taken_or_refused(place: tuple[Any, ...], odd: Any) -> None:
    document = copy.deepcopy(DOCUMENT)
    node = document
    for step in place[:-1]:
        node = node[step]
    if odd == "gone":
        del node[place[-1]]
    else:
        node[place[-1]] = odd
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
