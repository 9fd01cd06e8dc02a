"""A finding: the result of a rule of the analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: in rising order
SEVERITIES = ("info", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """A statement with a stable code, its evidence (rows of a table) and what to do about it.

    `severity` is `info`, `warning` or `error`; `evidence` names the table and the rows in it; `detail` is
    the statistics behind the statement. `confidence` of a conclusion is `clear` (its interval excludes the
    alternative), `likely` (so does the interval with the bounds of degraded runs) or `open` (it cannot be
    decided); empty for any other statement.
    """

    code: str
    severity: str
    statement: str
    evidence: dict[str, Any] = field(default_factory=dict)
    what_to_do: str = ""
    detail: str = ""
    confidence: str = ""
