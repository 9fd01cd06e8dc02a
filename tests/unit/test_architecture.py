"""docs/architecture.md describes the existing code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "python" / "penstock"
TEXT = (PROJECT / "docs" / "architecture.md").read_text()


def layer_names() -> list[str]:
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(c for c in contracts if c["id"] == "rooms")["layers"]
    return [name.strip() for layer in layers for name in layer.split("|")]


def test_the_picture_has_every_layer_in_order() -> None:
    picture = (PROJECT / "docs" / "figures" / "architecture.svg").read_text()
    names = re.findall(r'class="name"[^>]*>([^<]*)<', picture)
    shown = [layer.strip() for name in names for layer in re.split(r"[|·]", name)]
    assert shown[: len(layer_names())] == layer_names()
    crates = {path.parent.name for path in (PROJECT / "crates").glob("*/Cargo.toml")}
    assert set(shown[len(layer_names()) :]) == crates


def test_every_named_file_exists() -> None:
    layer = ""
    named = re.findall(r"`([a-z_./]+\.(?:py|rs))`", TEXT)
    assert len(named) > 30
    for path in named:
        if "/" in path and (PACKAGE / path.split("/")[0]).is_dir():
            layer = path.split("/")[0]
        places = [PROJECT / path, PACKAGE / path, PACKAGE / layer / path]
        places += [
            PACKAGE / "observe" / "trace" / path,
            PROJECT / "crates" / "probe" / "src" / path,
        ]
        assert any(place.is_file() for place in places), path


@pytest.mark.parametrize("layer", layer_names())
def test_every_layer_exists(layer: str) -> None:
    assert (PACKAGE / layer).is_dir() or (PACKAGE / f"{layer}.py").is_file()
