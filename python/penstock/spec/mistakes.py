"""Errors of Pydantic as messages of penstock, with file, line and column."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import Mistake
from penstock.spec.names import suggestion
from penstock.spec.source import Path, Source

M = TypeVar("M", bound=BaseModel)


def in_order(mistakes: list[Mistake]) -> list[Mistake]:
    """In file order, without duplicates of a position and message."""
    once: dict[tuple[str, int, int, str], Mistake] = {}
    for m in mistakes:
        once.setdefault((m.file, m.line, m.column, m.found), m)
    return sorted(once.values(), key=lambda m: (m.file, m.line, m.column))


#: keys with the version of a file's format
_VERSIONS = (("penstock",), ("penstock_platform",), ("penstock_expected",))
_EXPECTED = {
    "string_type": "text",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "list_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "a number of at least {}"),
    "greater_than": ("gt", "a number above {}"),
    "less_than_equal": ("le", "a number of at most {}"),
    "less_than": ("lt", "a number below {}"),
}


def located(document: Any, detail: ErrorDetails) -> Path:
    """Path in the document: Pydantic's, without the names of union members."""
    node = document
    path: list[str | int] = []
    steps = detail["loc"]
    for i, step in enumerate(steps):
        inside = (isinstance(node, dict) and step in node) or (
            isinstance(node, list) and isinstance(step, int) and step < len(node)
        )
        if inside:
            path.append(step)
            node = node[step]
        elif i == len(steps) - 1 and detail["type"] == "missing":
            path.append(step)
    return tuple(path)


def validated(source: Source, model: type[M], page: str) -> M | None:
    """The source's value as a `model`; None if it is not one, with the mistakes added to `source`."""
    try:
        return model.model_validate(source.value)
    except ValidationError as error:
        for detail in error.errors():
            note(source, detail, model, page)
    return None


def note(source: Source, detail: ErrorDetails, model: type[BaseModel], page: str) -> None:
    """Add an error of Pydantic against `model` to `source`; `page` documents the model."""
    path = located(source.value, detail)
    note_at(source, path, path, detail, model, page)


def note_at(
    source: Source, where: Path, path: Path, detail: ErrorDetails, model: type[BaseModel], page: str
) -> None:
    """Like `note`, for a value at `where` in the file and at `path` in `model`."""
    kind = detail["type"]
    if kind == "missing":
        here, name = where[:-1], str(path[-1])
        what = _described(model, path[:-1], name, page)
        above = f" in {_dotted(here)}" if here else ""
        source.mistake(here, f"no '{name}'{above}", f"the key {name}: {what}", key=True)
    elif kind == "extra_forbidden":
        keys = keys_at(model, path[:-1])
        name = str(path[-1])
        expected = f"one of {', '.join(keys)}{suggestion(name, keys)}"
        source.mistake(where, f"the unknown key '{name}'", expected, key=True)
    else:
        source.mistake(where, _actual(detail["input"]), expected_of(detail))


def expected_of(detail: ErrorDetails) -> str:
    """Expected value of a Pydantic error as text."""
    context = detail.get("ctx", {})
    kind = detail["type"]
    if kind == "expected":
        return str(context["expected"])
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if detail["loc"] in _VERSIONS:
        return "1, the only version of this format"
    if kind in _BOUNDS:
        key, text = _BOUNDS[kind]
        return text.format(context[key])
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "")
        return choices + suggestion(str(detail["input"]), re.split(r", | or ", choices))
    if kind == "too_short":
        return "at least one entry"
    return detail["msg"][:1].lower() + detail["msg"][1:]


def _actual(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return f"a mapping ({', '.join(map(str, value))[:60]})" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        return f"'{value[:80]}'" if value.strip() else "an empty text"
    return str(value)


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))


@functools.cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def schema_at(model: type[BaseModel], path: Sequence[str | int]) -> dict[str, Any]:
    """JSON Schema of the value at `path`; empty for an invalid path."""
    return _deref(entry_at(model, path), _schema_of(model))


def entry_at(model: type[BaseModel], path: Sequence[str | int]) -> dict[str, Any]:
    """Like `schema_at`, with unresolved choices and references."""
    schema = _schema_of(model)
    node: dict[str, Any] = schema
    for step in path:
        node = _child(_deref(node, schema), step, schema)
    return node


def _deref(node: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for choices in (node.get("anyOf"), node.get("oneOf")):
        if choices and "properties" not in node:
            objects = [_deref(c, schema) for c in choices]
            merged: dict[str, Any] = {}
            for o in objects:
                merged |= o.get("properties", {})
            extra = next((o for o in objects if "additionalProperties" in o), {})
            return {"properties": merged, **({} if merged else extra)}
    return node


def _child(node: Mapping[str, Any], step: str | int, schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = node.get("properties", {})
    if step in properties:
        child: dict[str, Any] = properties[step]
        return child
    if isinstance(step, int) and isinstance(node.get("items"), dict):
        return dict(node["items"])
    extra = node.get("additionalProperties")
    return extra if isinstance(extra, dict) else {}


def keys_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Valid keys of `model` at `path`."""
    return list(schema_at(model, path).get("properties", {}))


def _described(model: type[BaseModel], path: Sequence[str | int], name: str, page: str) -> str:
    entry = schema_at(model, path).get("properties", {}).get(name, {})
    text = str(entry.get("description", f"see {page}"))
    return text[:1].lower() + text[1:].rstrip(".")
