"""Move modules and names of the package, and rewrite references to them.

A table is a text file. Each line is either a module and its new name, or a name of a module and the module
that has it now; `#` begins a comment:

    penstock.analyse.why -> penstock.analyse.time_breakdown
    penstock.design.plan:Plan -> penstock.design.planned

Modules are moved with `git mv`. Names must already have been moved: only imports of them are rewritten.

    python tools/move.py TABLE
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "python"
#: files in which dotted names of modules are replaced
TEXT = (
    ".py",
    ".md",
    ".toml",
    ".in",
    ".yaml",
    ".rs",
    ".sh",
    ".json",
    ".cfg",
    ".ini",
    ".html",
    ".pyi",
)

#: marks names of modules that are new already: a folder may have the name of a module that was moved
_DONE = "moved__"

Names = dict[tuple[str, str], str]


def read_table(path: Path) -> tuple[dict[str, str], Names]:
    """The modules and the names that a table moves."""
    modules: dict[str, str] = {}
    names: Names = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        old, arrow, new = (part.strip() for part in text.partition("->"))
        if not (old and arrow and new):
            raise SystemExit(f"{path}:{number}: found {line!r}; expected OLD -> NEW")
        module, colon, name = old.partition(":")
        if colon:
            names[module, name] = new
        else:
            modules[old] = new
    return modules, names


def path_of(module: str) -> Path:
    """File or folder of a module."""
    base = SOURCE.joinpath(*module.split("."))
    file = base.with_suffix(".py")
    return file if file.exists() or not base.is_dir() else base


def files() -> list[Path]:
    """The text files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [ROOT / name for name in listed if name.endswith(TEXT) or name == "Makefile"]


def move_modules(modules: dict[str, str]) -> None:
    """Move the files. The packages to which they move must exist."""
    for old, new in modules.items():
        source, base = path_of(old), SOURCE.joinpath(*new.split("."))
        target = base if source.is_dir() else base.with_suffix(".py")
        for folder in list(target.parents)[::-1]:
            if SOURCE in folder.parents and not (folder / "__init__.py").exists():
                raise SystemExit(
                    f"{folder}: found no __init__.py; expected a package with a docstring"
                )
        subprocess.run(["git", "mv", source, target], cwd=ROOT, check=True)


def renamed(text: str, modules: dict[str, str]) -> str:
    """Text with the dotted names and the paths of modules replaced."""
    if not modules:
        return text
    longest_first = sorted(modules, key=len, reverse=True)
    for old in longest_first:  # before the packages of other modules are renamed
        package, _, name = old.rpartition(".")
        text = _from_package(text, package, name, modules[old])
    dotted = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, longest_first))})(?!\w)")
    text = dotted.sub(lambda match: modules[match[1]], text).replace(_DONE, "")
    paths = {_path(old): _path(new) for old, new in modules.items()}
    names = "|".join(map(re.escape, sorted(paths, key=len, reverse=True)))
    for pattern in (rf"(?<![\w/])({names})(\.py\b)", rf"(?<=\bpenstock/)({names})(\.py\b|(?=/))"):
        text = re.sub(pattern, lambda match: paths[match[1]] + match[2], text)
    return text


def _path(module: str) -> str:
    """Path of a module in its package, without the suffix."""
    return module.replace(".", "/").removeprefix("penstock/")


def _from_package(text: str, package: str, name: str, new: str) -> str:
    """Rewrite `from package import name` as an import of the new module under its new name."""
    pattern = re.compile(
        rf"^(\s*)from {re.escape(package)} import ([^\n(]+|\([^)]*\))$", re.MULTILINE
    )

    def replaced(match: re.Match[str]) -> str:
        listed = [part.strip() for part in match[2].strip("()").replace("\n", " ").split(",")]
        listed = [part for part in listed if part]
        moved = [part for part in listed if part.split(" as ")[0] == name]
        if not moved:
            return match[0]
        rest = [part for part in listed if part not in moved]
        new_package, _, new_name = new.rpartition(".")
        alias = moved[0].partition(" as ")[2] or (name if name != new_name else "")
        lines = [f"{match[1]}from {package} import {', '.join(rest)}"] if rest else []
        suffix = f" as {alias}" if alias else ""
        lines.append(f"{match[1]}from {_DONE}{new_package} import {new_name}{suffix}")
        return "\n".join(lines)

    return pattern.sub(replaced, text)


def with_names_moved(text: str, names: Names, path: Path) -> str:
    """Python source with the imports of moved names rewritten."""
    if not any(module in text for module, _ in names):
        return text
    edits: list[tuple[int, int, str]] = []
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text, str(path))):
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        homes: dict[str, list[str]] = {}
        for alias in node.names:
            home = names.get((node.module, alias.name), node.module)
            homes.setdefault(home, []).append(
                f"{alias.name} as {alias.asname}" if alias.asname else alias.name
            )
        if list(homes) == [node.module]:
            continue
        indent = " " * node.col_offset
        new = "".join(
            f"{indent}from {home} import {', '.join(listed)}\n" for home, listed in homes.items()
        )
        edits.append((node.lineno - 1, node.end_lineno or node.lineno, new))
    for first, last, new in sorted(edits, reverse=True):
        lines[first:last] = [new]
    text = "".join(lines)
    for (module, name), home in names.items():
        text = re.sub(rf"\b{re.escape(module)}([:.]){name}\b", rf"{home}\g<1>{name}", text)
    return text


def rewrite(paths: Iterable[Path], modules: dict[str, str], names: Names) -> None:
    """Rewrite the files that refer to moved modules and names."""
    for path in paths:
        if not path.is_file() or path.is_symlink():
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        new = renamed(text, modules)
        if path.suffix == ".py":
            new = with_names_moved(new, names, path)
        if new != text:
            path.write_text(new, "utf-8")


def main() -> None:
    """The command."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    table = Path(sys.argv[1])
    own = (table.resolve(), Path(__file__).resolve())
    modules, names = read_table(table)
    move_modules(modules)
    rewrite([p for p in files() if p.resolve() not in own], modules, names)
    subprocess.run(["ruff", "check", "-q", "--fix", "--select", "I", "."], cwd=ROOT, check=False)
    subprocess.run(["ruff", "format", "-q", "."], cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
