"""Figures of the package's structure, from its sources alone: `python tools/house.py`.

A room is a top-level package, such as `penstock.analyse`, or a top-level module, such as `penstock.errors`.
Room A needs room B if a module of A imports one of B. All imports count, also those inside functions and
under TYPE_CHECKING, each kind separately. Names of modules in strings, which are started or loaded by name,
are counted separately and are no imports.

    python tools/house.py                 the figures
    python tools/house.py --parts         imports of parts in the core, and of a part in another
    python tools/house.py --record        write the figures that may only decrease to tools/house.json
    python tools/house.py --edges A B     imports of room B in room A
    python tools/house.py --up            imports against the order of the rooms

`--json` prints each of them as JSON; `--root` is the folder of the package.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools import wording

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "python" / "penstock"

#: features of a disk with unambiguous names, and the number of names that counts as a list of features
FEATURES = ("readahead", "faults", "bad_space", "read_only", "fail_stop", "credits", "volatile")
A_LIST = 3

CORE = "core"
#: parts that a part may import
DECLARED = {"stores": ("prediction", "conformity")}

#: limits of a function and of a folder
LONG_FUNCTION, MANY_PARAMETERS, FULL_FOLDER = 80, 8, 20
#: figures that may only decrease
RECORDED = PROJECT / "tools" / "house.json"

#: kinds of imports
MODULE, FUNCTION, TYPING = "module", "function", "typing"


@dataclass(frozen=True, order=True)
class Import:
    """One import of one module of the package by another."""

    file: str
    line: int
    #: its place: on the level of the module, in a function, or under TYPE_CHECKING
    kind: str
    importer: str
    imported: str


@dataclass
class Package:
    """Modules by dotted name, as paths and as trees, and their imports of each other."""

    name: str
    paths: dict[str, Path]
    trees: dict[str, ast.Module]
    lines: dict[str, int]
    imports: list[Import]

    @cached_property
    def nodes_of(self) -> dict[str, list[ast.AST]]:
        """Nodes of each module's tree, computed once because walking is slow."""
        return {module: list(ast.walk(tree)) for module, tree in self.trees.items()}

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes of all trees."""
        return [node for nodes in self.nodes_of.values() for node in nodes]

    def part(self, module: str) -> str:
        """Part to which a module belongs, or `core`."""
        names = module.split(".")
        return names[2] if names[1:2] == ["parts"] and len(names) > 2 else CORE

    def room(self, module: str) -> str:
        """Top-level subpackage of a module: the second part of its name."""
        parts = module.split(".")
        return parts[1] if len(parts) > 1 else "__init__"


def read_package(root: Path) -> Package:
    """The package in the folder `root`."""
    paths = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    compiled = {f"{root.name}.{p.name.split('.')[0]}" for p in root.glob("*.so")}
    trees, lines = {}, {}
    for module, path in paths.items():
        text = path.read_text()
        trees[module], lines[module] = ast.parse(text, str(path)), len(text.splitlines())
    package = Package(root.name, paths, trees, lines, [])
    names = set(paths) | compiled | {f"{root.name}._native"}
    for module, tree in trees.items():
        file = paths[module].relative_to(root.parent).as_posix()
        is_package = paths[module].name == "__init__.py"
        for node, kind in _import_nodes(tree, MODULE):
            for imported in sorted(set(_imported(node, module, is_package, names))):
                if imported != module:
                    package.imports.append(Import(file, node.lineno, kind, module, imported))
    return package


def _import_nodes(node: ast.AST, kind: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """All imports below a node, with the kind of each."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, kind
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _import_nodes(child, FUNCTION if kind == MODULE else kind)
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            for inner in child.body:
                yield from _import_nodes(ast.Module([inner], []), TYPING)
            for inner in child.orelse:
                yield from _import_nodes(ast.Module([inner], []), kind)
        else:
            yield from _import_nodes(child, kind)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _imported(
    node: ast.Import | ast.ImportFrom, module: str, is_package: bool, names: set[str]
) -> Iterator[str]:
    """Modules of the package that a statement imports; `from a import b` imports `a.b` if it is a module."""
    if isinstance(node, ast.Import):
        yield from (imported for alias in node.names if (imported := _module(alias.name, names)))
        return
    base = node.module or ""
    if node.level:
        parts = module.split(".")
        depth = len(parts) - node.level + is_package
        base = ".".join([*parts[:depth], *([node.module] if node.module else [])])
    for alias in node.names:
        if (submodule := f"{base}.{alias.name}") in names:
            yield submodule
        elif imported := _module(base, names):
            yield imported


def _module(name: str, existing: set[str]) -> str | None:
    """The longest part of a dotted name that is a module of the package."""
    parts = name.split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((n for n in names if n in existing), None)


def circles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Strongly connected components of more than one node, the largest first."""
    after: dict[str, set[str]] = {}
    for a, b in edges:
        after.setdefault(a, set()).add(b)
        after.setdefault(b, set())
    reached = {node: _reached(node, after) for node in after}
    components = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in after}
    return sorted((list(c) for c in components if len(c) > 1), key=lambda c: (-len(c), c))


def _reached(start: str, after: dict[str, set[str]]) -> set[str]:
    """Nodes to which edges lead from one; the node itself only if they lead back to it."""
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        new = after[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached


def between_rooms(package: Package) -> list[Import]:
    """Imports between rooms."""
    return [i for i in package.imports if package.room(i.importer) != package.room(i.imported)]


def edges(package: Package, a: str, b: str) -> list[Import]:
    """Imports by which room `a` needs room `b`."""
    rooms = (a, b)
    return [
        i
        for i in between_rooms(package)
        if (package.room(i.importer), package.room(i.imported)) == rooms
    ]


def order_of_rooms() -> list[list[str]]:
    """Rooms from bottom to top; rooms on one line are independent: the contract in pyproject.toml."""
    config = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = config["contracts"][0]["layers"]
    return [["_native"], *([r.strip() for r in layer.split("|")] for layer in reversed(layers))]


def upward(package: Package, order: Iterable[Iterable[str]]) -> list[Import]:
    """Imports that an order of the rooms does not allow: upward, or to a room on the same line."""
    level = {room: n for n, rooms in enumerate(order) for room in rooms}
    return [
        i
        for i in between_rooms(package)
        if package.room(i.importer) in level
        and level[package.room(i.importer)] <= level.get(package.room(i.imported), -1)
    ]


def undeclared(package: Package) -> list[Import]:
    """Undeclared imports: from the core to a part, or from a part to another."""
    crossing = []
    for edge in package.imports:
        a, b = package.part(edge.importer), package.part(edge.imported)
        if b not in (a, CORE) and b not in DECLARED.get(a, ()):
            crossing.append(edge)
    return crossing


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters of a function, without `self` and `cls`."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return sum(name not in ("self", "cls") for name in names)


def _is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True for the function of a command, whose parameters are its options."""
    return any(
        isinstance(value, ast.Call) and ast.unparse(value.func).startswith("typer.")
        for value in (*function.args.defaults, *filter(None, function.args.kw_defaults))
    )


def limited(package: Package) -> dict[str, int]:
    """Figures that may only decrease. Lines and modules are not among them: a feature adds some."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [node for node in package.nodes if isinstance(node, kinds)]
    folders = Counter(path.parent for path in package.paths.values())
    circle = {m for c in circles((i.importer, i.imported) for i in package.imports) for m in c}
    return {
        "modules in circles": len(circle),
        "modules that import a part, not declared": len(
            {(i.importer, package.part(i.imported)) for i in undeclared(package)}
        ),
        "vague names": wording.vague_names(package.nodes).total(),
        "vague names in compounds": wording.vague_compounds(package.nodes),
        "docstrings that begin with a clause": wording.clause_docstrings(package.nodes),
        "functions above 80 lines": sum(
            (f.end_lineno or f.lineno) - f.lineno + 1 > LONG_FUNCTION for f in functions
        ),
        "functions with more than 8 parameters": sum(
            _parameters(f) > MANY_PARAMETERS and not _is_command(f) for f in functions
        ),
        "folders with more than 20 modules": sum(n > FULL_FOLDER for n in folders.values()),
        "dict[str, Any]": _untyped(package),
    }


def figures(package: Package) -> dict[str, Any]:
    """All figures of the structure; names in addition to counts where a count is not sufficient."""
    pairs = Counter(
        (package.room(i.importer), package.room(i.imported)) for i in between_rooms(package)
    )
    rooms = circles(pairs)
    inside = {room: n for n, circle in enumerate(rooms) for room in circle}
    by_room: dict[str, dict[str, int]] = {}
    by_part: dict[str, dict[str, int]] = {}
    for module, lines in package.lines.items():
        for table, name in ((by_room, package.room(module)), (by_part, package.part(module))):
            row = table.setdefault(name, {"modules": 0, "lines": 0})
            row["modules"] += 1
            row["lines"] += lines
    return {
        "limited": limited(package),
        "lines_by_part": dict(sorted(by_part.items(), key=lambda kv: -kv[1]["lines"])),
        "modules": len(package.paths),
        "lines": sum(package.lines.values()),
        "rooms_in_circles": len(inside),
        "circles_of_rooms": [
            {
                "rooms": circle,
                "edges": [
                    {"from": a, "to": b, "imports": n}
                    for (a, b), n in sorted(pairs.items())
                    if a in inside and inside[a] == inside.get(b) == number
                ],
            }
            for number, circle in enumerate(rooms)
        ],
        "circles_of_modules": circles((i.importer, i.imported) for i in package.imports),
        "imports": dict(Counter(i.kind for i in package.imports)),
        "imports_between_rooms": dict(Counter(i.kind for i in between_rooms(package))),
        "imports_upward": len(upward(package, order_of_rooms())),
        "modules_named_in_strings": sum(len(list(_named(package, m))) for m in package.trees),
        "types_called": {
            noun: sorted(
                f"{module}.{node.name}"
                for module, nodes in package.nodes_of.items()
                for node in nodes
                if isinstance(node, ast.ClassDef) and noun.capitalize() in _words(node.name)
            )
            for noun in ("disk", "node", "platform")
        },
        "places_of_a_disk_feature": sorted(
            module for module, nodes in package.nodes_of.items() if len(_features(nodes)) >= A_LIST
        ),
        "schemas_outside_archive": Counter(
            module
            for module, nodes in package.nodes_of.items()
            if package.room(module) != "archive"
            for node in nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func) in ("pa.schema", "pyarrow.schema")
        ),
        "dict_str_any": _untyped(package),
        "lines_by_room": dict(sorted(by_room.items(), key=lambda kv: -kv[1]["lines"])),
    }


def _named(package: Package, module: str) -> Iterator[str]:
    """Modules whose names are strings in a module (`penstock.a.b`, `penstock.a:f`)."""
    for node in package.nodes_of[module]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if "." in name and name != module and name in package.paths:
                yield name


def _words(name: str) -> list[str]:
    """The words of a type's name, in the singular."""
    return [w.removesuffix("s") for w in re.findall(r"[A-Z][a-z0-9]*", name)]


def _features(nodes: Iterable[ast.AST]) -> set[str]:
    """Features of a disk that a module names: as a string, a field, a parameter or an argument."""
    names = set()
    for node in nodes:
        match node:
            case ast.Constant(value=str(name)) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names & set(FEATURES)


def _untyped(package: Package) -> int:
    """Number of annotations with `dict[str, Any]` or `dict[str, object]`."""
    return sum(
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "dict"
        and ast.unparse(node) in ("dict[str, Any]", "dict[str, object]")
        for node in package.nodes
    )


def _shown(all_figures: dict[str, Any]) -> str:
    types = all_figures["types_called"]
    rows = [
        ("modules", all_figures["modules"]),
        ("lines", all_figures["lines"]),
        ("rooms in circles", all_figures["rooms_in_circles"]),
        ("modules in circles", sum(map(len, all_figures["circles_of_modules"]))),
        *((f"types called {noun}", len(names)) for noun, names in types.items()),
        ("places of a disk feature", len(all_figures["places_of_a_disk_feature"])),
        ("schemas outside archive/", sum(all_figures["schemas_outside_archive"].values())),
        ("dict[str, Any]", all_figures["dict_str_any"]),
        *((f"imports, {k}", n) for k, n in all_figures["imports"].items()),
        *(
            (f"imports between rooms, {k}", n)
            for k, n in all_figures["imports_between_rooms"].items()
        ),
        ("imports upward", all_figures["imports_upward"]),
        ("modules named in strings", all_figures["modules_named_in_strings"]),
    ]
    limits = all_figures["limited"].items()
    lines = [f"{metric:40}{n:8}" for metric, n in limits]
    lines += [
        "",
        *(f"{metric:40}{n:8}" for metric, n in rows if metric not in all_figures["limited"]),
    ]
    for circle in all_figures["circles_of_rooms"]:
        lines += ["", f"circle of {len(circle['rooms'])} rooms: {', '.join(circle['rooms'])}"]
        lines += [f"    {e['from']:10} → {e['to']:10}{e['imports']:5}" for e in circle["edges"]]
    lines += ["", f"{'part':12}{'modules':>8}{'lines':>8}"]
    lines += [
        f"{part:12}{row['modules']:8}{row['lines']:8}"
        for part, row in all_figures["lines_by_part"].items()
    ]
    lines += ["", f"{'room':12}{'modules':>8}{'lines':>8}"]
    lines += [
        f"{room:12}{row['modules']:8}{row['lines']:8}"
        for room, row in all_figures["lines_by_room"].items()
    ]
    return "\n".join(lines)


def _listed(imports: list[Import]) -> str:
    return "\n".join(f"{i.file}:{i.line}: {i.importer} → {i.imported} ({i.kind})" for i in imports)


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Figures of the package's structure.")
    parser.add_argument("--root", type=Path, default=PACKAGE, help="the package's folder")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--edges", nargs=2, metavar=("A", "B"), help="why room A needs room B")
    parser.add_argument("--up", action="store_true", help="imports against the order of the rooms")
    parser.add_argument("--parts", action="store_true", help="imports of parts, undeclared")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    args = parser.parse_args(arguments)
    package = read_package(args.root)
    if args.record:
        RECORDED.write_text(json.dumps(limited(package), indent=1) + "\n")
        return
    if args.edges or args.up or args.parts:
        imports = (
            undeclared(package)
            if args.parts
            else edges(package, *args.edges)
            if args.edges
            else upward(package, order_of_rooms())
        )
        print(json.dumps([asdict(i) for i in imports], indent=1) if args.json else _listed(imports))
        return
    all_figures = figures(package)
    print(json.dumps(all_figures, indent=1) if args.json else _shown(all_figures))


if __name__ == "__main__":
    main()
