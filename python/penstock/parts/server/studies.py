"""Served studies: their runs, reports and traces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from penstock.analyse.outcome import Outcome
from penstock.archive.runs import bundles
from penstock.errors import BadInput

_LINK = re.compile(r'href="(?!#|https?:)([^"]*)"')
_RUN_REPORT = re.compile(r"runs/([^/]+)/report\.html")


class ServedStudy:
    """Results of one study. `first` is the number of its first trace, in the order of `traced`."""

    def __init__(self, out: Path, first: int):
        self.out = out
        self._runs = bundles(out)
        self.traced = [b.path for b in self._runs if (b.path / "files.parquet").is_file()]
        self._numbers = {path.name: first + n for n, path in enumerate(self.traced)}

    def document(self) -> dict[str, Any]:
        """Question and runs. `trace` is the number of a run's trace."""
        outcome = Outcome.read(self.out) if (self.out / "plan.json").exists() else None
        return {
            "name": outcome.name if outcome else self.out.resolve().name,
            "question": outcome.question if outcome else "",
            "report": (self.out / "report.html").is_file(),
            "runs": [
                {
                    **{key: run.manifest.get(key) for key in ("run_id", "treatment_id", "levels")},
                    **{key: run.manifest.get(key) for key in ("valid", "reason", "responses")},
                    "trace": self._numbers.get(run.path.name),
                }
                for run in self._runs
            ],
        }

    def page(self) -> str:
        """The HTML report, with links to served traces and without links to other files.

        Raises BadInput if there is no report.
        """
        try:
            text = (self.out / "report.html").read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise BadInput(
                f"found no report ({error.strerror}); `penstock report {self.out}` makes it"
            ) from None

        def served_link(link: re.Match[str]) -> str:
            run = _RUN_REPORT.fullmatch(link[1])
            number = self._numbers.get(run[1]) if run else None
            return "" if number is None else f'href="/traces/{number}"'

        return _LINK.sub(served_link, text)
