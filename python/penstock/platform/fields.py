"""Values of a platform file: text with its unit, validated; most may also be an estimate."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, WithJsonSchema

from penstock.spec.fields import expect, quantity
from penstock.spec.units import (
    parse_bandwidth,
    parse_bounded_size,
    parse_duration,
    parse_frequency,
    parse_power,
    parse_price,
    parse_share,
    parse_time_per_size,
)

#: in the JSON Schema: this value may also be an estimate (see `schema.py`)
UNCERTAIN = "x-uncertain"


def _text(pattern: str, example: str) -> WithJsonSchema:
    return WithJsonSchema(
        {"type": "string", "pattern": pattern, "examples": [example], UNCERTAIN: True}
    )


_NUMBER = "[0-9.][0-9.eE+-]*"


def _of_units(units: str) -> str:
    return rf"^\s*\+?{_NUMBER}\s*({units})\s*$"


_SIZE = "[kMGTPE]?B|[KMGTPE]iB"
_TIME = "ns|us|µs|ms|s|min|h|d"
_TIME_TEXT = _text(_of_units(_TIME), "50us")

Duration = Annotated[
    str,
    BeforeValidator(quantity(parse_duration, "a duration with its unit, such as 50us or 0.1s")),
    _TIME_TEXT,
]
Bandwidth = Annotated[
    str,
    BeforeValidator(
        quantity(parse_bandwidth, "a bandwidth with its unit, such as 1 Gbit/s or 125 MB/s")
    ),
    _text(_of_units(f"({_SIZE}|[kMGT]?bit)/({_TIME})"), "1 Gbit/s"),
]
TimePerSize = Annotated[
    str,
    BeforeValidator(
        quantity(parse_time_per_size, "a time per size with its units, such as 1 ms/MiB")
    ),
    _text(_of_units(f"({_TIME})/({_SIZE})"), "1 ms/MiB"),
]
Watts = Annotated[
    str,
    BeforeValidator(quantity(parse_power, "a power with its unit, such as 91.6 W")),
    _text(_of_units("m?W|kW"), "91.6 W"),
]
Frequency = Annotated[
    str,
    BeforeValidator(quantity(parse_frequency, "a frequency with its unit, such as 2.3 GHz")),
    WithJsonSchema({"type": "string", "pattern": _of_units("[kMG]?Hz"), "examples": ["2.3 GHz"]}),
]
PricePerTime = Annotated[
    str,
    BeforeValidator(quantity(lambda t: parse_price(t)[0], "a price per time, such as 0.10 EUR/h")),
    _text(_of_units(f"[A-Z]+/({_TIME})"), "0.10 EUR/h"),
]


def _positive_size(text: str) -> int:
    size = parse_bounded_size(text)
    if size <= 0:
        raise ValueError("a size above 0, such as 1MiB")
    return size


PositiveSize = Annotated[
    str,
    BeforeValidator(quantity(_positive_size, "a size with its unit, such as 1MiB")),
    _text(_of_units(_SIZE), "1MiB"),
]
PlainSize = Annotated[
    str,
    BeforeValidator(quantity(parse_bounded_size, "a size with its unit, such as 1KiB")),
    _text(_of_units(_SIZE), "1KiB"),
]


def _or_word(
    parse: Callable[[str], float], keywords: tuple[str, ...], expected: str
) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value in keywords:
            return value
        if not isinstance(value, str):
            raise expect(expected)
        try:
            parse(value)
        except ValueError:
            raise expect(expected) from None
        return value

    return check


def _size_or_share(text: str) -> float:
    return parse_share(text) if text.rstrip().endswith("%") else _positive_size(text)


def _share_or_bool(value: Any) -> Any:
    expected = "true, false or a share, such as 60%"
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise expect(expected)
    try:
        parse_share(value)
    except ValueError:
        raise expect(expected) from None
    return value


Capacity = Annotated[
    str,
    BeforeValidator(
        _or_word(
            _size_or_share,
            ("memory", "disk", "unlimited"),
            "a size such as 300GB, a share such as 50% (of the disk's size, else of the memory), "
            "memory, disk or unlimited",
        )
    ),
    _text(rf"^\s*({_NUMBER}\s*({_SIZE}|%)|memory|disk|unlimited)\s*$", "300GB"),
]
Wait = Annotated[
    str,
    BeforeValidator(
        _or_word(parse_duration, ("forever",), "a duration with its unit, such as 2s, or forever")
    ),
    _text(rf"^\s*({_NUMBER}\s*({_TIME})|forever)\s*$", "2s"),
]
Proportional = Annotated[
    bool | str,
    BeforeValidator(_share_or_bool),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "%\\s*$"}]}),
]


def _width(value: Any) -> Any:
    if value == "all":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise expect("all, or an integer number of storage hosts of at least 1")
    return value


Stripe = Annotated[
    int | str,
    BeforeValidator(_width),
    WithJsonSchema({"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 1}]}),
]


def _window(value: Any) -> Any:
    if value == "unlimited":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise expect("unlimited, or an integer number of chunks of at least 1")
    return value


Window = Annotated[
    int | str,
    BeforeValidator(_window),
    WithJsonSchema({"anyOf": [{"const": "unlimited"}, {"type": "integer", "minimum": 1}]}),
]


PlacementUnit = Annotated[
    str,
    BeforeValidator(
        _or_word(
            _positive_size, ("request", "file"), "request, file, or a size above 0, such as 64MiB"
        )
    ),
    _text(rf"^\s*({_NUMBER}\s*({_SIZE})|request|file)\s*$", "64MiB"),
]


def _time(value: Any) -> Any:
    """A duration, or a distribution, whose numbers are validated with the rest of the file."""
    expected = (
        "a duration with its unit, such as 5ms, or a distribution, such as "
        "{kind: exponential, mean_s: 0.005}"
    )
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise expect(expected)
    try:
        parse_duration(value)
    except ValueError as error:
        raise expect(str(error)) from None
    return value


Time = Annotated[
    str | dict[str, Any],
    BeforeValidator(_time),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _of_units(_TIME)},
                {"type": "object", "required": ["kind"]},
            ],
            "examples": ["5ms", {"kind": "exponential", "mean_s": 0.005}],
            UNCERTAIN: True,
        }
    ),
]


def _factor(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise expect("a number above 0, such as 1.5")
    if not (math.isfinite(value) and value > 0):
        raise expect("a number above 0, such as 1.5")
    return float(value)


Factor = Annotated[
    float,
    BeforeValidator(_factor),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, UNCERTAIN: True}),
]


#: payload and frame bytes of one TCP segment over Ethernet with an MTU of 1500: the difference is headers of
#: Ethernet (14), IP (20) and TCP with timestamps (32)
ETHERNET = (1448, 1514)


def parse_payload(value: float | str) -> float:
    """Share of a link's rate for data; arrays of draws are unchanged. ValueError for an invalid word."""
    if isinstance(value, str) and value == "ethernet":
        return ETHERNET[0] / ETHERNET[1]
    return value if isinstance(value, np.ndarray) else float(value)


def _payload(value: Any) -> Any:
    if value == "ethernet":
        return value
    if isinstance(value, str):  # in the form of an estimate's bounds
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise expect("a number above 0 and at most 1, such as 0.95, or ethernet")
    return float(value)


Payload = Annotated[
    float | str,
    BeforeValidator(_payload),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "ethernet"},
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1, UNCERTAIN: True},
            ]
        }
    ),
]


def _rack(value: Any) -> Any:
    several = value if isinstance(value, list) and value else [value]
    if any(isinstance(r, bool) or not isinstance(r, int) or not 0 <= r < 2**31 for r in several):
        raise expect("the number of a rack, from 0, or a list of such numbers")
    return value


Rack = Annotated[
    int | list[int],
    BeforeValidator(_rack),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
            ]
        }
    ),
]


#: patterns of the short forms, for the JSON Schema
TIME_PATTERN = _of_units(_TIME)
BANDWIDTH_PATTERN = _of_units(f"({_SIZE}|[kMGT]?bit)/({_TIME})")
PRICE_PATTERN = _of_units(f"[A-Z]+/({_TIME})")
