"""Selection of the series that a collector stores, by patterns of their names: `keep`, `drop`.

A pattern (`*`, `?`, `[…]`) matches the metric, `node_disk_*`, or, if it has a brace, the metric with its
labels in the order of their names: `node_disk_*{*device="sd?"*}`. A series is stored if it matches one of
`keep` (if there is any) and none of `drop`.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadInput, printable
from penstock.parts.monitoring.collectors.collector import setting
from penstock.parts.monitoring.experiments.points import series_of

MOST_PATTERNS = 100
MOST_PATTERN = 500
#: series about the scrape itself, which are always stored
OWN = frozenset(("scrape_success", "scrape_duration_seconds", "scrape_lateness_seconds"))


class Choice:
    """Predicate of the stored series, cached by series. BadInput for invalid patterns."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._keep = _patterns(name, settings, "keep")
        self._drop = _patterns(name, settings, "drop")
        self._cached: dict[tuple[str, str], bool] = {}

    def __call__(self, metric: str, labels: str) -> bool:
        """True if a series is stored; `labels` as returned by `points.canonical_labels`."""
        if not (self._keep or self._drop):
            return True
        stored = self._cached.get((metric, labels))
        if stored is None:
            stored = self._cached[metric, labels] = self._matches(metric, labels)
        return stored

    def of(self, table: pa.Table) -> pa.Table:
        """Rows of a table of points whose series are stored."""
        if not (self._keep or self._drop) or not table.num_rows:
            return table
        series, of_row = series_of(table)
        stored = [self(*one) for one in series]
        return table if all(stored) else table.filter(pa.array(np.array(stored)[of_row]))

    def _matches(self, metric: str, labels: str) -> bool:
        if metric in OWN:
            return True
        label_text = ",".join(f'{k}="{v}"' for k, v in json.loads(labels).items())
        series = f"{metric}{{{label_text}}}"

        def match_any(patterns: list[tuple[bool, re.Pattern[str]]]) -> bool:
            return any(p.match(series if with_labels else metric) for with_labels, p in patterns)

        return (not self._keep or match_any(self._keep)) and not match_any(self._drop)


def _patterns(
    name: str, settings: Mapping[str, Any], key: str
) -> list[tuple[bool, re.Pattern[str]]]:
    raw = setting(name, settings, key, list, [])
    if len(raw) > MOST_PATTERNS:
        raise BadInput(
            f"{name}: {key}: found {len(raw)} patterns; expected {MOST_PATTERNS} at most"
        )
    for pattern in raw:
        if (
            not isinstance(pattern, str)
            or not 0 < len(pattern) <= MOST_PATTERN
            or not pattern.isprintable()
        ):
            raise BadInput(
                f"{name}: {key}: found {printable(str(pattern)[:80])!r}; expected a pattern of 1 to "
                f"{MOST_PATTERN} printable characters"
            )
    return [("{" in pattern, re.compile(fnmatch.translate(pattern))) for pattern in raw]
