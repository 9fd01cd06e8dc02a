"""Responses of a study from a run's output, each in its own unit."""

from __future__ import annotations

import re
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
from penstock.workload.traced import traced_value

if TYPE_CHECKING:
    from penstock.archive.series.series import Recorded

#: the squares of larger values would be infinite in the analysis
_MOST = 1e100
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
#: kinds of responses from tables of a run, which another program may have written
_OF_TABLES = ("trace", "energy")


def measure(
    responses: Sequence[Response],
    parser_name: str,
    run_dir: Path,
    stdout: str,
    stderr: str,
    wall_s: float,
    bundle: Bundle | None = None,
) -> dict[str, Measured]:
    """All responses of a run by name, in their units; PenstockError if one is unavailable.

    `bundle`: has the run's recorded series, tables and receipts.
    """
    parsed_values = Report({"wall_s": Measured(wall_s, "s")})
    if any(r.source.kind == "key" and r.source.key != "wall_s" for r in responses):
        parsed = parser(parser_name).parse(run_dir, stdout, stderr, wall_s)
        parsed_values = Report({**parsed_values, **parsed}, getattr(parsed, "missing", {}))
    output = _Output(run_dir, {"stdout": stdout, "stderr": stderr}, bundle, wall_s)
    values = {r.name: _one(r, parsed_values, output) for r in responses}
    for name, measured in values.items():
        if not abs(measured.value) < _MOST:
            raise PenstockError(
                f"response {name}: found {measured.value}; expected a finite number below {_MOST:g}"
            )
    return values


@dataclass
class _Output:
    """Output of a run: files, the program's output, recorded series and trace; its time [s]."""

    run_dir: Path
    streams: dict[str, str]
    bundle: Bundle | None
    wall_s: float

    def text(self, file: str) -> str:
        """Text of a file or stream, without colour codes, whose digits an expression could match."""
        text = self.streams.get(file)
        text = (self.run_dir / file).read_text(errors="replace") if text is None else text
        return _COLOURS.sub("", text)

    @property
    def tables(self) -> Bundle:
        """Bundle of the run; PenstockError without one."""
        if self.bundle is None:
            raise PenstockError("found nothing recorded; expected a run's tables")
        return self.bundle

    @cached_property
    def recorded(self) -> tuple[Recorded, str]:
        """Its series, read once, and the verdict on the run."""
        # importing pandas takes half a second, and most studies have no such response
        from penstock.archive.completeness import verdict_of_run
        from penstock.archive.series.read_series import of_bundle

        return of_bundle(self.tables), verdict_of_run(self.tables.manifest)


def _one(response: Response, parsed_values: Report, output: _Output) -> Measured:
    source = response.source
    if source.kind == "key":
        key = source.key or "wall_s"
        if key not in parsed_values:
            why = f" ({parsed_values.missing[key]})" if key in parsed_values.missing else ""
            raise PenstockError(f"response {response.name}: the program did not report {key}{why}")
        return Measured(
            convert(parsed_values[key].value, parsed_values[key].unit, response.unit), response.unit
        )
    try:
        if source.kind == "series":
            from penstock.workload.recorded import recorded_value

            value = recorded_value(*output.recorded, source, response.unit)
        elif source.kind == "trace":
            value = traced_value(output.tables, source, response.unit, output.wall_s)
        elif source.kind == "energy":
            from penstock.workload.energy import modelled_energy

            value = modelled_energy(output.tables, source, response.unit)
        else:
            kind = RESPONSE_KINDS.load(source.kind)
            text = output.text(source.file)
            options: dict[str, str] = {"decimal": source.decimal} if source.decimal else {}
            if getattr(kind, "CHECKS_UNIT", False):
                options["unit"] = response.unit
            value = float(kind.number(source.expression or "", text, source.file, **options))
    except IncompleteError as error:
        raise IncompleteError(f"response {response.name}: {error}") from None
    except (OSError, PenstockError) as error:
        raise PenstockError(f"response {response.name}: {error}") from None
    except (LookupError, TypeError, ValueError) as error:
        if source.kind not in _OF_TABLES:
            raise
        raise PenstockError(
            f"response {response.name}: found a table of the run that is not as penstock writes it: "
            f"{type(error).__name__}: {error}"
        ) from None
    return Measured(value, response.unit)
