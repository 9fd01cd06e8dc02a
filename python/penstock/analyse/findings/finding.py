"""A finding: the result of a rule of the analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: in ascending order
SEVERITIES = ("info", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """A statement with a stable code, its evidence (rows of a table) and the recommended action.

    `severity` is `info`, `warning` or `error`; `evidence` names the table and the rows in it; `detail` has
    the statistics. `confidence` of a conclusion is `clear` (its interval excludes the alternative),
    `likely` (so does the interval with the bounds of degraded runs) or `open` (undecided); empty for any
    other statement.
    """

    code: str
    severity: str
    statement: str
    evidence: dict[str, Any] = field(default_factory=dict)
    what_to_do: str = ""
    detail: str = ""
    confidence: str = ""
