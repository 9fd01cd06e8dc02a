"""Values of a platform that were sampled several times: the numbers of all draws in place of one number.

The texts and numbers of the file are validated as usual. `placed` puts the draws back into the validated
models, and the conversion to numbers then yields arrays, one number per draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import numpy as np
from pydantic import BaseModel

from penstock.spec import units

T = TypeVar("T")


class DrawnText(str):
    """A quantity of the file; `numbers` are its draws in the base unit."""

    numbers: np.ndarray


class DrawnNumber(float):
    """A number of the file without a unit, and its draws."""

    numbers: np.ndarray


def with_draws(value: str | float, numbers: np.ndarray) -> DrawnText | DrawnNumber:
    """`value` of the file, with its draws."""
    drawn = DrawnText(value) if isinstance(value, str) else DrawnNumber(value)
    drawn.numbers = numbers
    return drawn


def placed(part: Any, plain: Any) -> Any:
    """`part`, which was validated from `plain`, with the draws of `plain`."""
    if isinstance(plain, DrawnText):
        return plain if isinstance(part, str) else plain.numbers
    if isinstance(plain, DrawnNumber):
        return plain.numbers
    if isinstance(plain, list) and isinstance(part, list):
        return [placed(a, b) for a, b in zip(part, plain, strict=True)]
    if not isinstance(plain, Mapping):
        return part
    if isinstance(part, BaseModel):
        changes = {}
        for name, info in type(part).model_fields.items():
            old, key = getattr(part, name), info.alias or name
            if key in plain and (new := placed(old, plain[key])) is not old:
                changes[name] = new
        return part.model_copy(update=changes) if changes else part
    if isinstance(part, dict):
        return {key: placed(value, plain.get(key)) for key, value in part.items()}
    return part


def _array_of(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse`, with an array for a text with draws."""

    def parsed(text: str) -> T:
        return cast(T, text.numbers) if isinstance(text, DrawnText) else parse(text)

    return parsed


parse_bandwidth = _array_of(units.parse_bandwidth)
parse_duration = _array_of(units.parse_duration)
parse_power = _array_of(units.parse_power)
parse_share = _array_of(units.parse_share)
parse_size = _array_of(units.parse_size)
parse_time_per_size = _array_of(units.parse_time_per_size)


def parse_price(text: str) -> tuple[float, str]:
    """Amount per second, an array for a text with draws, and currency."""
    amount, currency = units.parse_price(text)
    return (cast(float, text.numbers) if isinstance(text, DrawnText) else amount), currency


def integer_part(number: float) -> int:
    """Integer part of a number or of each number of an array."""
    return cast(int, number.astype(int)) if isinstance(number, np.ndarray) else int(number)


def above_zero(number: float) -> float:
    """A number, 0 if it is negative; of an array each number."""
    return cast(float, number.clip(0)) if isinstance(number, np.ndarray) else max(0.0, number)


def of_draw(values: Mapping[str, T], draw: int) -> dict[str, T]:
    """Dataclasses by name with the numbers of one draw in place of arrays."""
    parts = {id(part): _of_draw(part, draw) for part in values.values()}
    return {name: parts[id(part)] for name, part in values.items()}


def _of_draw(part: Any, draw: int) -> Any:
    arrays = {f.name: getattr(part, f.name) for f in fields(part)}
    numbers = {k: float(v[draw]) for k, v in arrays.items() if isinstance(v, np.ndarray)}
    return replace(part, **numbers) if numbers else part
