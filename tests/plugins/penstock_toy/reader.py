"""A log: `# toys`, and lines of seconds since 1970 and a number."""

from __future__ import annotations

import re
from typing import Any

from penstock.errors import BadInput
from penstock.workload.metrics import Readings, samples, text_of

WHAT = "a log of toys"


def matches(path: Any, head: bytes) -> bool:
    return head.startswith(b"# toys\n")


def read(path: Any, options: Any) -> Readings:
    text = text_of(path)
    if re.fullmatch(r"# toys\n(\d+ \d+\n)*", text) is None:
        raise BadInput(f"{path}: expected {WHAT}")
    pairs = [line.split() for line in text.splitlines()[1:]]
    rows = [(int(t) * 10**9, "toys", "box", "toys", "toys", float(n), False) for t, n in pairs]
    return Readings(samples(rows))
