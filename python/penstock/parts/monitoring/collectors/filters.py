"""Which series of many a collector keeps, by patterns of their names: `keep`, `drop`.

A pattern (`*`, `?`, `[…]`) is one of metrics, `node_disk_*`, or with a brace of whole series, labels in the
order of their names: `node_disk_*{*device="sd?"*}`. What fits one of `keep` (where there is any) and none of
`drop` is kept.
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

MOST_PATTERNS = 100
MOST_PATTERN = 500
#: what tells how a scrape went is always kept
_OWN = frozenset(("scrape_success", "scrape_duration_seconds", "scrape_lateness_seconds"))


class Choice:
    """Whether a series is kept; the answer for each is found once. BadInput for what are no patterns."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._keep = _patterns(name, settings, "keep")
        self._drop = _patterns(name, settings, "drop")
        self._known: dict[tuple[str, str], bool] = {}

    def __call__(self, metric: str, labels: str) -> bool:
        """By the metric's name, and labels as `points.canonical_labels` gives them."""
        if not (self._keep or self._drop):
            return True
        found = self._known.get((metric, labels))
        if found is None:
            found = self._known[metric, labels] = self._found(metric, labels)
        return found

    def of(self, table: pa.Table) -> pa.Table:
        """The rows of a table of points that are kept."""
        if not (self._keep or self._drop) or not table.num_rows:
            return table
        metric, labels = (table[n].combine_chunks() for n in ("metric", "labels"))
        names, texts = metric.dictionary.to_pylist(), labels.dictionary.to_pylist()
        pairs = np.asarray(metric.indices, np.int64) * len(texts) + np.asarray(labels.indices)
        used, of_row = np.unique(pairs, return_inverse=True)
        kept = [self(names[p // len(texts)], texts[p % len(texts)]) for p in used.tolist()]
        return table if all(kept) else table.filter(pa.array(np.array(kept)[of_row.reshape(-1)]))

    def _found(self, metric: str, labels: str) -> bool:
        if metric in _OWN:
            return True
        said = ",".join(f'{k}="{v}"' for k, v in json.loads(labels).items())
        series = f"{metric}{{{said}}}"

        def fits(patterns: list[tuple[bool, re.Pattern[str]]]) -> bool:
            return any(p.match(series if whole else metric) for whole, p in patterns)

        return (not self._keep or fits(self._keep)) and not fits(self._drop)


def _patterns(
    name: str, settings: Mapping[str, Any], key: str
) -> list[tuple[bool, re.Pattern[str]]]:
    given = setting(name, settings, key, list, [])
    if len(given) > MOST_PATTERNS:
        raise BadInput(
            f"{name}: {key}: found {len(given)} patterns; expected {MOST_PATTERNS} at most"
        )
    for one in given:
        if not isinstance(one, str) or not 0 < len(one) <= MOST_PATTERN or not one.isprintable():
            raise BadInput(
                f"{name}: {key}: found {printable(str(one)[:80])!r}; expected a pattern of 1 to "
                f"{MOST_PATTERN} printable characters"
            )
    return [("{" in one, re.compile(fnmatch.translate(one))) for one in given]
