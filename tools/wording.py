"""Counts of names and docstrings that `docs/naming.md` replaces, in the sources of a package."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

#: names whose meaning differs from file to file
VAGUE = (
    *("found", "said", "told", "asked", "made", "held", "kept", "mine"),
    *("known", "whole", "left", "given", "wanted", "words"),
)
#: first words of docstrings that are clauses instead of noun phrases or imperatives
CLAUSES = ("What", "Whether", "Those", "Of", "How", "Which", "Who", "Whose", "Where", "That")


def bindings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that nodes bind, once for each place: variables, parameters, fields, functions, classes."""
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


def vague_names(nodes: Iterable[ast.AST]) -> Counter[str]:
    """Bindings of each vague name, with or without leading underscores."""
    names = (name.strip("_") for name in bindings(nodes))
    return Counter(name for name in names if name in VAGUE)


def vague_compounds(nodes: Iterable[ast.AST]) -> int:
    """Bindings of names that contain a vague name: `told_of`, `asked_s`."""
    parts = (name.strip("_").lower().split("_") for name in bindings(nodes))
    return sum(len(each) > 1 and not set(VAGUE).isdisjoint(each) for each in parts)


def clause_docstrings(nodes: Iterable[ast.AST]) -> int:
    """Docstrings of modules, classes and functions that begin with a clause."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = (ast.get_docstring(node) for node in nodes if isinstance(node, kinds))
    return sum(text.split(maxsplit=1)[0].rstrip(",") in CLAUSES for text in texts if text)
