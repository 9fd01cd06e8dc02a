"""Types of values in files: quantities as text with their unit, and the expected form for messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import WithJsonSchema
from pydantic_core import PydanticCustomError


def expect(expected: str) -> PydanticCustomError:
    """Error with the expected form."""
    return PydanticCustomError("expected", "{expected}", {"expected": expected})


def is_json(value: Any) -> bool:
    """True if JSON can express a plain value of a YAML text: no dates, and finite numbers."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def quantity(parse: Callable[[str], float], example: str) -> Callable[[Any], Any]:
    """A validator of text parsed by `parse`; `example` is the expected form of other values."""

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
    """JSON Schema of such a text."""
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})
