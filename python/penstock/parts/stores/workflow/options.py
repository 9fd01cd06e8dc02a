"""Options of a run of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.parts.stores.workflow.running.recovery import Recovery

#: longest time limit, a year [s]
_LONGEST_S = 366 * 86400.0
HINTS = ("file", "never", "always", "auto")


@dataclass(frozen=True)
class RunOptions:
    """`hints`: file (the workload's own), never, always (from the graph), or auto (those of the graph with a
    predicted gain). `emulate`: no programs. `inputs`: directory of the programs' input files; `results`: that
    for results. `scheduler`: kind of scheduler, in place of the platform's."""

    engine: str | None = None
    repeat: int = 1
    hints: str = "file"
    keep_cache: bool = False
    predicted: bool = True
    timeout_s: float = 3600.0
    emulate: bool = False
    inputs: Path | None = None
    results: Path | None = None
    checksums: bool = False
    scheduler: str | None = None
    recovery: Recovery = field(default_factory=Recovery)

    def check(self) -> None:
        """BadInput for an invalid value."""
        if self.hints not in HINTS:
            expected = f"{', '.join(HINTS[:-1])} or {HINTS[-1]}"
            raise BadInput(f"--hints: found {self.hints!r}; expected {expected}")
        if not 0 < self.timeout_s <= _LONGEST_S:
            raise BadInput(
                f"--timeout: found {self.timeout_s:g}; expected seconds up to {_LONGEST_S:g}"
            )
        if not 0 <= self.recovery.delay_s <= _LONGEST_S:
            raise BadInput(f"--retry-delay: found {self.recovery.delay_s:g}; expected seconds")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a journal; paths are absolute."""
        values = asdict(self)
        for key in ("inputs", "results"):
            values[key] = None if values[key] is None else str(values[key].absolute())
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunOptions:
        """Inverse of `to_dict`; unknown keys are ignored. BadInput for wrong types."""
        names = {f.name for f in fields(cls)}
        try:
            own = {k: v for k, v in values.items() if k in names}
            own["recovery"] = Recovery(**own["recovery"])
            for key in ("inputs", "results"):
                own[key] = None if own.get(key) is None else Path(own[key])
            return replace(cls(), **own)
        except (TypeError, KeyError) as error:
            raise BadInput(f"journal: found invalid options ({error})") from None
