"""A format of platforms: `N toys` is a group of N hosts."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import BadInput
from penstock.platform.foreign import Foreign


def read(path: Path, raw: bytes) -> Foreign:
    match = re.fullmatch(rb"([1-9][0-9]*) toys\n", raw)
    if match is None:
        raise BadInput(f"{path}: found {raw[:20]!r}; expected a number of toys")
    hosts = [{"group": "toy", "count": int(match[1])}]
    return Foreign({"penstock_platform": 1, "name": "toys", "hosts": hosts})
