"""Every library that the package imports is one that it depends on, or an extra that says its name."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from penstock.cli import EXTRAS

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "python" / "penstock"
SAID = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
#: what a library is installed as, where that is another name
PACKAGES = {
    "sklearn": "scikit-learn",
    "ruamel": "ruamel.yaml",
    "PIL": "pillow",
    "pydantic_core": "pydantic-core",
}
#: what comes with another library, and may be imported where that is
BROUGHT = {
    "PIL": "matplotlib",
    "fontTools": "matplotlib",
    "markupsafe": "jinja2",
    "pydantic_core": "pydantic",
    "starlette": "fastapi",
    "dask": "distributed",
}
#: loaded by another library, which is given the name
BY_NAME = {"pg8000": "postgresql+pg8000"}
#: the program in which a file of ours is a filter
HOSTS = {"swift": "parts/monitoring/usage/swift_bandwidth.py"}


def names_of(requirements: list[str]) -> set[str]:
    return {Requirement(text).name.lower() for text in requirements}


CORE = names_of(SAID["dependencies"])
OFFERED = {
    extra: names_of(wanted)
    for extra, wanted in SAID["optional-dependencies"].items()
    if extra != "all"
}


def imported(text: str) -> set[str]:
    """The libraries that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {each.name.split(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"penstock"}


@functools.cache
def imports() -> dict[str, set[str]]:
    """The libraries that each file of the package imports."""
    return {
        path.relative_to(PACKAGE).as_posix(): imported(path.read_text())
        for path in PACKAGE.rglob("*.py")
    }


def libraries() -> set[str]:
    """The libraries that the package imports."""
    return set().union(*imports().values())


def wrong_of(library: str) -> str | None:
    """What is wrong with how a library is depended on."""
    package = PACKAGES.get(library, library).lower()
    of = BROUGHT.get(library)
    if of is not None and package not in names_of(metadata.requires(of) or []):
        return f"{of} does not bring {library}"
    if (of or package) in CORE or library in HOSTS:
        return None
    if library not in EXTRAS and of not in EXTRAS:
        return f"{library} is no dependency, and not in EXTRAS"
    for extra in EXTRAS[library if library in EXTRAS else str(of)].split(","):
        if (of or package) not in OFFERED[extra]:
            return f"the extra {extra} lacks {library}"
    return None


def test_an_import_that_nothing_brings_is_found() -> None:
    planted = "def f():\n    import nosuch.part\n    from nosuch2 import a\n    from . import b\n"
    assert imported(planted) == {"nosuch", "nosuch2"}
    assert wrong_of("nosuch") == "nosuch is no dependency, and not in EXTRAS"


def test_every_import_is_of_a_dependency_or_of_an_extra() -> None:
    assert len(libraries()) > 20
    assert [said for library in sorted(libraries()) if (said := wrong_of(library))] == []
    for library, file in HOSTS.items():
        assert [name for name, found in imports().items() if library in found] == [file]


def test_every_library_of_an_extra_is_used() -> None:
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    used = {PACKAGES.get(name, name).lower() for name in libraries()}
    used |= {name for name, said in BY_NAME.items() if said in text}
    assert {extra: sorted(wanted - used) for extra, wanted in OFFERED.items()} == {
        extra: [] for extra in OFFERED
    }
    assert set(EXTRAS) <= libraries() | set(BY_NAME)
    locked = (PROJECT / "requirements" / "runtime.in").read_text().splitlines()
    assert names_of(locked) == CORE.union(*OFFERED.values())


WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from penstock.cli import main
main()
"""


@pytest.mark.parametrize("library", ["h11", "cramjam"])
def test_a_receiver_without_its_library_says_what_to_install(library: str, tmp_path: Path) -> None:
    kind = "graphite" if library == "h11" else "remote-write"
    (tmp_path / "c.json").write_text(f'{{"collectors": {{"g": {{"type": "{kind}", "port": 0}}}}}}')
    words = "monitor run --config c.json --name x -- true".split()
    places = {f"PENSTOCK_{n}": str(tmp_path / n) for n in ("ARCHIVE", "STATE", "RUNTIME")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, library, *words],
        cwd=tmp_path,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
    )
    told = f"penstock: this needs {library}: pip install 'penstock[monitor]'"
    assert (done.returncode, done.stderr.splitlines()) == (1, [told]), done.stderr
