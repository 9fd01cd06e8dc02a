"""Similarity of successive versions over time, as processes that are written as text."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import cycle, repeat

from penstock.spec.units import parse_share

#: similarity that the process has on average at a write, and that of the write
Point = tuple[float, float]
FORMS = (
    "70%, steps:70%,0%,40 (levels, then writes of each), sinusoid:35%,35%,200 (mean, amplitude, writes of a "
    "period), random:0%,100% (each write between the two), levels:0%,100%,40 (random levels that last 40 "
    "writes on average)"
)


def parse_similarity(text: str) -> str:
    """The text itself; ValueError with the accepted forms if it is not a process."""
    next(process(text, 0))
    return text


def process(text: str, seed: int) -> Iterator[Point]:
    """Endless points of a process; ValueError with the accepted forms."""
    kind, _, rest = text.partition(":")
    try:
        if not rest:
            return _constant(parse_share(text))
        items = rest.split(",")
        if kind == "steps" and len(items) >= 3:
            return _steps([parse_share(item) for item in items[:-1]], _writes(items[-1]))
        if kind == "sinusoid" and len(items) == 3:
            return _sinusoid(parse_share(items[0]), parse_share(items[1]), _writes(items[2]))
        if kind == "random" and len(items) == 2:
            return _uniform(parse_share(items[0]), parse_share(items[1]), seed)
        if kind == "levels" and len(items) == 3:
            low, high = parse_share(items[0]), parse_share(items[1])
            return _levels(low, high, _writes(items[2]), seed)
    except ValueError:
        pass
    raise ValueError(FORMS)


def _writes(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _constant(z: float) -> Iterator[Point]:
    return repeat((z, z))


def _steps(levels: list[float], writes: int) -> Iterator[Point]:
    return cycle((z, z) for z in levels for _ in range(writes))


def _sinusoid(mean: float, amplitude: float, period: int) -> Iterator[Point]:
    values = [
        min(1.0, max(0.0, mean + amplitude * math.sin(2 * math.pi * i / period)))
        for i in range(period)
    ]
    return cycle([(z, z) for z in values])


def _uniform(low: float, high: float, seed: int) -> Iterator[Point]:
    draw = random.Random(seed).uniform
    mean = (low + high) / 2
    while True:
        yield mean, draw(low, high)


def _levels(low: float, high: float, writes: int, seed: int) -> Iterator[Point]:
    source = random.Random(seed)
    z = source.uniform(low, high)
    while True:
        if source.random() < 1 / writes:
            z = source.uniform(low, high)
        yield z, z
