"""Every library that the package imports is a dependency, or part of a named extra."""

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
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
#: names of packages that differ from those of their libraries
PACKAGES = {
    "sklearn": "scikit-learn",
    "ruamel": "ruamel.yaml",
    "PIL": "pillow",
    "pydantic_core": "pydantic-core",
}
#: libraries that come with another one, and may be imported with it
BUNDLED = {
    "PIL": "matplotlib",
    "fontTools": "matplotlib",
    "markupsafe": "jinja2",
    "pydantic_core": "pydantic",
    "starlette": "fastapi",
    "dask": "distributed",
}
#: loaded by another library by name
BY_NAME = {"pg8000": "postgresql+pg8000"}
#: the program that loads a file of the package as a filter
HOSTS = {"swift": "parts/monitoring/usage/swift_bandwidth.py"}


def names_of(requirements: list[str]) -> set[str]:
    return {Requirement(text).name.lower() for text in requirements}


CORE = names_of(DECLARED["dependencies"])
OFFERED = {
    extra: names_of(required_names)
    for extra, required_names in DECLARED["optional-dependencies"].items()
    if extra != "all"
}


def imported(text: str) -> set[str]:
    """Libraries that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - {"penstock"}


@functools.cache
def imports() -> dict[str, set[str]]:
    """Libraries that each file of the package imports."""
    return {
        path.relative_to(PACKAGE).as_posix(): imported(path.read_text())
        for path in PACKAGE.rglob("*.py")
    }


def libraries() -> set[str]:
    """Libraries that the package imports."""
    return set().union(*imports().values())


def fault_of(library: str) -> str | None:
    """Fault of the dependency on a library, or None."""
    package = PACKAGES.get(library, library).lower()
    provider = BUNDLED.get(library)
    if provider is not None and package not in names_of(metadata.requires(provider) or []):
        return f"{provider} does not bring {library}"
    if (provider or package) in CORE or library in HOSTS:
        return None
    if library not in EXTRAS and provider not in EXTRAS:
        return f"{library} is no dependency, and not in EXTRAS"
    for extra in EXTRAS[library if library in EXTRAS else str(provider)].split(","):
        if (provider or package) not in OFFERED[extra]:
            return f"the extra {extra} lacks {library}"
    return None


def test_an_undeclared_import_is_detected() -> None:
    planted = "def f():\n    import nosuch.part\n    from nosuch2 import a\n    from . import b\n"
    assert imported(planted) == {"nosuch", "nosuch2"}
    assert fault_of("nosuch") == "nosuch is no dependency, and not in EXTRAS"


def test_every_import_is_a_dependency_or_part_of_an_extra() -> None:
    assert len(libraries()) > 20
    assert [fault for library in sorted(libraries()) if (fault := fault_of(library))] == []
    for library, file in HOSTS.items():
        assert [name for name, names in imports().items() if library in names] == [file]


def test_every_library_of_an_extra_is_used() -> None:
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    used = {PACKAGES.get(name, name).lower() for name in libraries()}
    used |= {name for name, url in BY_NAME.items() if url in text}
    assert {extra: sorted(required - used) for extra, required in OFFERED.items()} == {
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
def test_a_receiver_without_its_library_names_the_extra(library: str, tmp_path: Path) -> None:
    kind = "graphite" if library == "h11" else "remote-write"
    (tmp_path / "c.json").write_text(f'{{"collectors": {{"g": {{"type": "{kind}", "port": 0}}}}}}')
    arguments = "monitor run --config c.json --name x -- true".split()
    environment = {f"PENSTOCK_{n}": str(tmp_path / n) for n in ("ARCHIVE", "STATE", "RUNTIME")}
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, library, *arguments],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    message = f"penstock: this needs {library}: pip install 'penstock[monitor]'"
    assert (result.returncode, result.stderr.splitlines()) == (1, [message]), result.stderr
