"""Random mutations of samples: bytes, JSON values, words; equal draws give equal inputs."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import yaml

Input = Callable[[Random], bytes]

NUMBERS = (
    *(0, 1, -1, 2, 7, 127, 128, 255, 256, 4095, 4096, 32767, 65535, 65536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
)
LEAVES: tuple[Any, ...] = (
    *(None, True, False, *NUMBERS, 2**64, -(2**70), 10**400),
    *(0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        " ",
        "max",
        "0",
        "-1",
        "nan",
        "1e999",
        "1%",
        "4KiB",
        "10 ms",
        "5MB/s",
        "none",
        "{",
        "[",
        "a\0b",
    ),
    *(
        "..",
        "/",
        "./x",
        "x" * 300,
        "\u20ac\U0001f600",
        "\ud800",
        "\n",
        "*",
        "%s%n",
        "$(id)",
        "'",
        "null",
    ),
)


def nested(depth: int) -> list[Any]:
    """A list nested `depth` times."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def odd_value(draw: Random) -> Any:
    """Return a value that few readers expect."""
    kind = draw.random()
    if kind < 0.75:
        return draw.choice(LEAVES)
    if kind < 0.85:
        return {draw.choice(("a", "name", "", "0")): draw.choice(LEAVES)}
    if kind < 0.95:
        return [draw.choice(LEAVES) for _ in range(draw.randrange(4))]
    return nested(draw.choice((3, 30, 200)))


def entries_of(value: Any) -> list[tuple[Any, Any]]:
    """Return every container within a value, with each of its keys."""
    entries: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        container = pending.pop()
        if isinstance(container, dict):
            keys: Sequence[Any] = list(container)
        elif isinstance(container, list):
            keys = range(len(container))
        else:
            continue
        for key in keys:
            entries.append((container, key))
            pending.append(container[key])
    return entries


def mutate_values(draw: Random, sample: Any) -> Any:
    """Return a copy of the sample with one to three values inserted, removed or moved."""
    value = copy.deepcopy(sample)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        entries = entries_of(value)
        if not entries or draw.random() < 0.01:
            return odd_value(draw)
        container, key = draw.choice(entries)
        kind = draw.random()
        if kind < 0.6:
            container[key] = odd_value(draw)
        elif kind < 0.75:
            source, source_key = draw.choice(entries)
            container[key] = copy.deepcopy(source[source_key])
        elif kind < 0.9 and isinstance(container, dict):
            moved_value = container.pop(key)
            if draw.random() < 0.5:
                container[draw.choice(("", "x", str(key).upper(), f"{key}s"))] = moved_value
        elif isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            container[key] = [copy.deepcopy(container[key])]
    return value


def mutate_bytes(draw: Random, sample: bytes) -> bytes:
    """Return a copy of the sample with one to four changes of its bytes."""
    data = bytearray(sample)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(data) + 1)
        length = draw.choice((1, 2, 4, 8, 16, 48, 64))
        kind = draw.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at : at + 1] = bytes(
                [draw.choice((0, 1, 9, 10, 32, 34, 58, 91, 123, 127, 128, 255))]
            )
        elif kind in (2, 3):
            form = draw.choice(("<I", ">I", "<Q", ">Q", "<H", ">H"))
            size = struct.calcsize(form)
            number = draw.choice(NUMBERS) % (1 << 8 * size)
            data[at : at + size] = struct.pack(form, number)
        elif kind == 4:
            data[at:at] = draw.randbytes(length)
        elif kind == 5:
            del data[at : at + length]
        elif kind == 6:
            target = draw.randrange(len(data) + 1)
            data[target:target] = data[at : at + length]
        else:
            del data[at:]
    return bytes(data)


def mutate_words(draw: Random, sample: bytes) -> bytes:
    """Return a copy of the text with one or two words or numbers replaced."""
    words = sample.split(b" ")
    for _ in range(draw.choice((1, 1, 2))):
        replacement = draw.choice(LEAVES)
        words[draw.randrange(len(words))] = str(replacement).encode("utf-8", "replace")
    return b" ".join(words)


def text_of(value: Any) -> bytes:
    """Format any value as JSON, valid or not."""
    return json.dumps(value, separators=(",", ":")).encode()


def of_bytes(*samples: bytes) -> Input:
    """Samples with changed bytes."""
    return lambda draw: mutate_bytes(draw, draw.choice(samples))


def of_text(*samples: bytes) -> Input:
    """Lines with replaced words or changed bytes."""

    def make(draw: Random) -> bytes:
        mutate = mutate_words if draw.random() < 0.5 else mutate_bytes
        return mutate(draw, draw.choice(samples))

    return make


def of_json(*samples: Any) -> Input:
    """Documents with changed values; one in eight is also invalid JSON."""

    def make(draw: Random) -> bytes:
        text = text_of(mutate_values(draw, draw.choice(samples)))
        kind = draw.random()
        if kind < 0.01:  # deeper than Python writes
            at, depth = text.find(b":") + 1, draw.choice((500, 2000, 100_000))
            return text[:at] + b"[" * depth + b"]" * depth + text[at:]
        return mutate_bytes(draw, text) if kind < 0.125 else text

    return make


def of_yaml(*samples: bytes) -> Input:
    """YAML texts with replaced words, or their changed values as JSON, which is YAML as well."""
    values = [yaml.safe_load(text) for text in samples]
    as_text, as_values = of_text(*samples), of_json(*values)
    return lambda draw: (as_text if draw.random() < 0.4 else as_values)(draw)
