"""Types of values in files: quantities as text with their unit, and the expectation for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import WithJsonSchema
from pydantic_core import PydanticCustomError


def expect(expected: str) -> PydanticCustomError:
    """The error that says what is expected."""
    return PydanticCustomError("expected", "{expected}", {"expected": expected})


def quantity(parse: Callable[[str], float], example: str) -> Callable[[Any], Any]:
    """A validator of text that `parse` takes; `example` is expected where there is no text."""

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            raise expect(example)
        try:
            parse(value)
        except ValueError as error:
            raise expect(str(error)) from None
        return value

    return check


def schema(pattern: str, example: str) -> WithJsonSchema:
    """The JSON Schema of such a text."""
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})
