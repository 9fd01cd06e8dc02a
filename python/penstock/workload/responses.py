"""From what a run left behind to the study's responses, each in its own unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.archive.bundle import Bundle
from penstock.errors import PenstockError
from penstock.plugins import RESPONSE_KINDS
from penstock.spec.study import Response
from penstock.spec.units import convert
from penstock.workload.measured import IncompleteError, Measured, Report
from penstock.workload.parsers import parser

if TYPE_CHECKING:
    from penstock.archive.series.series import Recorded


def measure(
    responses: Sequence[Response],
    parser_name: str,
    run_dir: Path,
    stdout: str,
    stderr: str,
    wall_s: float,
    bundle: Bundle | None = None,
) -> dict[str, Measured]:
    """Every response of a run by name, in its unit; PenstockError if one of them cannot be had.

    `bundle`: with what was recorded of the run, its tables and receipts.
    """
    given = Report({"wall_s": Measured(wall_s, "s")})
    if any(r.source.kind == "key" and r.source.key != "wall_s" for r in responses):
        parsed = parser(parser_name).parse(run_dir, stdout, stderr, wall_s)
        given = Report({**given, **parsed}, getattr(parsed, "missing", {}))
    left = _Left(run_dir, {"stdout": stdout, "stderr": stderr}, bundle)
    return {r.name: _one(r, given, left) for r in responses}


@dataclass
class _Left:
    """What a run left: files, the program's texts, what was recorded."""

    run_dir: Path
    streams: dict[str, str]
    bundle: Bundle | None

    def text(self, file: str) -> str:
        text = self.streams.get(file)
        return (self.run_dir / file).read_text(errors="replace") if text is None else text

    @cached_property
    def recorded(self) -> tuple[Recorded, str]:
        """Its series, read once, and the verdict on the run."""
        # pandas takes half a second to load, and most studies have no such response
        from penstock.archive.completeness import verdict_of_run
        from penstock.archive.series.read_series import of_bundle

        if self.bundle is None:
            raise PenstockError("found nothing recorded; expected a run's series")
        return of_bundle(self.bundle), verdict_of_run(self.bundle.manifest)


def _one(response: Response, given: Report, left: _Left) -> Measured:
    source = response.source
    if source.kind == "key":
        key = source.key or "wall_s"
        if key not in given:
            why = f" ({given.missing[key]})" if key in given.missing else ""
            raise PenstockError(f"response {response.name}: the program did not report {key}{why}")
        return Measured(convert(given[key].value, given[key].unit, response.unit), response.unit)
    try:
        if source.kind == "series":
            from penstock.workload.recorded import recorded_value

            value = recorded_value(*left.recorded, source, response.unit)
        else:
            kind = RESPONSE_KINDS.load(source.kind)
            text = left.text(source.file)
            options = {"decimal": source.decimal} if source.decimal else {}
            value = float(kind.number(source.expression or "", text, source.file, **options))
    except IncompleteError as error:
        raise IncompleteError(f"response {response.name}: {error}") from None
    except (OSError, PenstockError) as error:
        raise PenstockError(f"response {response.name}: {error}") from None
    return Measured(value, response.unit)
