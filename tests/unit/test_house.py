"""Structure figures of `tools/house.py`, on small packages with an import cycle."""

from __future__ import annotations

import gc
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands
from tools import house


@pytest.fixture(scope="module")
def penstock() -> house.Package:
    """The penstock package, parsed once. Its million nodes are excluded from garbage collection."""
    gc.disable()
    package = house.read_package(house.PACKAGE)
    assert package.nodes
    gc.freeze()
    gc.enable()
    return package


@pytest.fixture(scope="module")
def figures(penstock: house.Package) -> dict[str, Any]:
    """All figures of the penstock package."""
    return house.figures(penstock)


def package_of(root: Path, **files: str) -> house.Package:
    """Write and read a package `barn`; `__` in the name of a file separates folders."""
    (root / "barn").mkdir()
    (root / "barn" / "__init__.py").write_text('"""A barn."""\n')
    for name, text in files.items():
        path = root / "barn" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return house.read_package(root / "barn")


STACK = {
    "roof__tiles": "from barn.wall import bricks\nfrom barn.floor.boards import nail\n",
    "wall__bricks": "import barn.floor.boards\nimport os\n",
    "floor__boards": "nail = 1\n",
}
UPWARD = {
    "floor__planted": "def lay() -> None:\n    from ..roof.tiles import hang\n    hang()\n",
}


def test_layered_package_has_no_cycle(tmp_path):
    figures = house.figures(package_of(tmp_path, **STACK))
    assert figures["modules"] == 4
    assert figures["circles_of_rooms"] == []
    assert figures["rooms_in_circles"] == 0


def test_cycle_of_an_import_in_a_function(tmp_path):
    package = package_of(tmp_path, **STACK, **UPWARD)
    (circle,) = house.figures(package)["circles_of_rooms"]
    assert circle["rooms"] == ["floor", "roof", "wall"]
    assert circle["edges"] == [
        {"from": "floor", "to": "roof", "imports": 1},
        {"from": "roof", "to": "floor", "imports": 1},
        {"from": "roof", "to": "wall", "imports": 1},
        {"from": "wall", "to": "floor", "imports": 1},
    ]
    assert house.edges(package, "floor", "roof") == [
        house.Import(
            "barn/floor/planted.py", 2, house.FUNCTION, "barn.floor.planted", "barn.roof.tiles"
        )
    ]


def test_upward_import_is_reported(tmp_path):
    package = package_of(tmp_path, **STACK, **UPWARD)
    (up,) = house.upward(package, (("floor",), ("wall",), ("roof",)))
    assert (up.importer, up.imported) == ("barn.floor.planted", "barn.roof.tiles")


def test_layers_of_one_rank_may_not_import_each_other(tmp_path):
    package = package_of(tmp_path, **STACK)
    (up,) = house.upward(package, (("floor",), ("wall", "roof")))
    assert (up.importer, up.imported) == ("barn.roof.tiles", "barn.wall.bricks")


def test_kinds_of_imports(tmp_path):
    package = package_of(
        tmp_path,
        low__a="",
        low__b="",
        low__c="",
        high__d=(
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from barn.low import a\nelse:\n    from barn.low import c\n"
            "class D:\n    def use(self):\n        import barn.low.b\n"
        ),
    )
    assert {i.imported: i.kind for i in package.imports} == {
        "barn.low.a": house.TYPING,
        "barn.low.b": house.FUNCTION,
        "barn.low.c": house.MODULE,
    }


def test_module_named_in_a_string_is_not_an_import(tmp_path):
    package = package_of(tmp_path, low__a="STARTED = 'barn.high.d:main'\n", high__d="")
    assert package.imports == []
    assert house.figures(package)["modules_named_in_strings"] == 1


def test_counts_of_types_features_schemas_and_untyped_dictionaries(tmp_path):
    package = package_of(
        tmp_path,
        emulate__a=(
            "class EmulatedDisk: ...\nclass Diskette: ...\nclass NodesStage: ...\n"
            "KEYS = ('readahead', 'faults', 'volatile')\nFEW = 1\n"
            "def f(said: dict[str, Any]) -> dict[str, object]: ...\n"
        ),
        emulate__b="KEYS = ('readahead', 'faults')\nT = pa.schema([])\n",
        archive__c="T = pa.schema([])\n",
    )
    figures = house.figures(package)
    assert figures["types_called"] == {
        "disk": ["barn.emulate.a.EmulatedDisk"],
        "node": ["barn.emulate.a.NodesStage"],
        "platform": [],
    }
    assert figures["places_of_a_disk_feature"] == ["barn.emulate.a"]
    assert figures["schemas_outside_archive"] == {"barn.emulate.b": 1}
    assert figures["dict_str_any"] == 2
    assert figures["lines_by_room"]["emulate"] == {"modules": 2, "lines": 8}


def test_package_has_no_upward_import(penstock, figures):
    order = house.order_of_rooms()
    placed = {room for rooms in order for room in rooms} | {"__init__", "__main__"}
    assert {penstock.room(module) for module in penstock.paths} <= placed
    assert house.upward(penstock, order) == []
    assert figures["circles_of_rooms"] == []


def test_import_linter_refuses_the_upward_import(tmp_path):
    contract = """[importlinter]
root_package = barn
[importlinter:contract:rooms]
name = rooms
type = layers
containers = barn
layers =
    roof
    wall
    floor
"""
    (tmp_path / "contract.ini").write_text(contract)
    package_of(tmp_path, **STACK)
    for layer in ("roof", "wall", "floor"):
        (tmp_path / "barn" / layer / "__init__.py").touch()

    def lint() -> subprocess.CompletedProcess[str]:
        code = "from importlinter.cli import lint_imports_command as c; c()"
        argv = [*commands.CODE, code, "--no-cache", "--no-logo", "--config", "contract.ini"]
        return commands.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert lint().returncode == 0
    for name, text in UPWARD.items():
        (tmp_path / "barn" / f"{name.replace('__', '/')}.py").write_text(text)
    result = lint()
    assert result.returncode == 1
    assert "barn.floor.planted -> barn.roof.tiles" in result.stdout


def test_command_prints_figures_and_imports(tmp_path, capsys: pytest.CaptureFixture[str]):
    package_of(tmp_path, **STACK, **UPWARD)
    root = ["--root", str(tmp_path / "barn")]
    house.main([*root, "--json"])
    assert json.loads(capsys.readouterr().out)["rooms_in_circles"] == 3
    house.main(root)
    assert "circle of 3 rooms: floor, roof, wall" in capsys.readouterr().out
    house.main([*root, "--edges", "floor", "roof"])
    assert capsys.readouterr().out == (
        "barn/floor/planted.py:2: barn.floor.planted → barn.roof.tiles (function)\n"
    )


WORDED = '''"""What this module does."""
from os import path as told


def found(words: list[str], found_at: int) -> int:
    """The number of words."""
    self.left = kept = found_at
    return kept


class Whole:
    """Whether it is complete."""

    asked: int
'''


def test_counts_of_vague_names_and_clauses(tmp_path):
    package = package_of(tmp_path, hay__bale=WORDED)
    counts = house.wording.vague_names(package.nodes)
    names = ("told", "found", "words", "left", "kept", "asked")
    assert counts == dict.fromkeys(names, 1)
    assert house.wording.vague_compounds(package.nodes) == 1
    assert house.wording.clause_docstrings(package.nodes) == 2


def test_undeclared_imports_of_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(house, "DECLARED", {"cheese": ("milk",)})
    package = package_of(
        tmp_path,
        bell="",
        parts__cow__calf="import barn.bell\nimport barn.parts.milk.pail\n",
        parts__milk__pail="import barn.bell\n",
        shed__floor="def f():\n    import barn.parts.cow.calf\nimport barn.bell\n",
        parts__cheese__round="import barn.parts.milk.pail\n",
    )
    assert [(i.importer, i.imported) for i in house.undeclared(package)] == [
        ("barn.parts.cow.calf", "barn.parts.milk.pail"),
        ("barn.shed.floor", "barn.parts.cow.calf"),
    ]


def test_long_functions_and_full_folders_are_counted(tmp_path):
    long = "def f(a, b, c, d, e, f, g, h, *, i):\n" + "    a = 1\n" * 80
    command = "import typer\ndef g(a, b, c, d, e, f, g, h, i=typer.Option(1)):\n    pass\n"
    files = {f"hay__bale{n}": "" for n in range(19)}
    counts = house.limited(package_of(tmp_path, hay__long=long, hay__command=command, **files))
    assert counts["functions above 80 lines"] == 1
    assert counts["functions with more than 8 parameters"] == 1
    assert counts["folders with more than 20 modules"] == 1


def test_no_recorded_figure_has_grown(figures):
    """Lower the recorded figures with `python tools/house.py --record`."""
    recorded = json.loads(house.RECORDED.read_text())
    counts = figures["limited"]
    assert set(counts) == set(recorded)
    assert {k: n for k, n in counts.items() if n > recorded[k]} == {}
