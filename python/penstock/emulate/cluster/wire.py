"""Specifications as JSON and back, for requests to the supervisor."""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

T = TypeVar("T")
_PLAIN = {str, int, float, bool, types.NoneType}


def to_json(value: Any) -> Any:
    """A specification (a frozen dataclass of `spec/cluster.py`) as JSON values; defaults are left out."""
    if type(value) in _PLAIN:  # most values: names and addresses of thousands of nodes
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {}
        for field in dataclasses.fields(value):
            now = getattr(value, field.name)
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if default is dataclasses.MISSING or now != default:
                values[field.name] = to_json(now)
        return values
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list | set | frozenset):
        return [to_json(each) for each in value]
    if isinstance(value, dict):
        if any(not isinstance(key, str) for key in value):
            return [[to_json(key), to_json(each)] for key, each in value.items()]
        return {key: to_json(each) for key, each in value.items()}
    return value


def from_json(kind: type[T], value: Any) -> T:
    """The specification of that kind. Raises ValueError with the mismatch."""
    return typing.cast(T, _read(kind, value, kind.__name__))


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(
                f"{where}: found {value!r}; expected one of {', '.join(map(str, arguments))}"
            )
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _read(next(a for a in arguments if a is not type(None)), value, where)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: found {value!r}; expected a list")
        if arguments[1:] == (...,):
            return tuple(_read(arguments[0], each, where) for each in value)
        return tuple(_read(a, each, where) for a, each in zip(arguments, value, strict=True))
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else value
        return {_read(arguments[0], k, where): _read(arguments[1], v, where) for k, v in pairs}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if (
        isinstance(kind, type)
        and isinstance(value, kind)
        and (kind is bool) == isinstance(value, bool)
    ):
        return value
    raise ValueError(f"{where}: found {value!r}; expected {getattr(kind, '__name__', kind)}")


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: found {value!r}; expected an object")
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(value) - set(hints))
    if unknown:
        raise ValueError(f"{where}: found {unknown[0]!r}; expected any of {', '.join(hints)}")
    read = {name: _read(hints[name], each, f"{where}.{name}") for name, each in value.items()}
    try:
        return kind(**read)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error
