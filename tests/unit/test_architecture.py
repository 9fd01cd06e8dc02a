"""docs/architecture.md speaks of the code that is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "python" / "penstock"
TEXT = (PROJECT / "docs" / "architecture.md").read_text()


def rooms() -> list[str]:
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(c for c in contracts if c["id"] == "rooms")["layers"]
    return [room.strip() for layer in layers for room in layer.split("|")]


def test_the_picture_has_every_room_in_order() -> None:
    picture = (PROJECT / "docs" / "figures" / "architecture.svg").read_text()
    names = re.findall(r'class="name"[^>]*>([^<]*)<', picture)
    drawn = [room.strip() for name in names for room in re.split(r"[|·]", name)]
    assert drawn[: len(rooms())] == rooms()
    crates = {path.parent.name for path in (PROJECT / "crates").glob("*/Cargo.toml")}
    assert set(drawn[len(rooms()) :]) == crates


def test_every_file_it_names_is_there() -> None:
    room = ""
    named = re.findall(r"`([a-z_./]+\.(?:py|rs))`", TEXT)
    assert len(named) > 30
    for path in named:
        if "/" in path and (PACKAGE / path.split("/")[0]).is_dir():
            room = path.split("/")[0]
        places = [PROJECT / path, PACKAGE / path, PACKAGE / room / path]
        places += [
            PACKAGE / "observe" / "trace" / path,
            PROJECT / "crates" / "probe" / "src" / path,
        ]
        assert any(place.is_file() for place in places), path


@pytest.mark.parametrize("room", rooms())
def test_every_room_is_there(room: str) -> None:
    assert (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file()
