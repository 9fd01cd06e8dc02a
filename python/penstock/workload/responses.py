"""From what a run left behind to the study's responses, each in its own unit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.archive.bundle import Bundle
from penstock.errors import PenstockError
from penstock.plugins import RESPONSE_KINDS
from penstock.spec.study import Response
from penstock.spec.units import convert
from penstock.workload.measured import IncompleteError, Measured
from penstock.workload.parsers import parser


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
    given: dict[str, Measured] = {"wall_s": Measured(wall_s, "s")}
    if any(r.source.kind == "key" and r.source.key != "wall_s" for r in responses):
        given |= parser(parser_name).parse(run_dir, stdout, stderr, wall_s)
    return {
        r.name: _one(r, given, run_dir, {"stdout": stdout, "stderr": stderr}, bundle)
        for r in responses
    }


def _one(
    response: Response,
    given: dict[str, Measured],
    run_dir: Path,
    streams: dict[str, str],
    bundle: Bundle | None,
) -> Measured:
    source = response.source
    if source.kind == "key":
        key = source.key or "wall_s"
        if key not in given:
            raise PenstockError(f"response {response.name}: the program did not report {key}")
        return Measured(convert(given[key].value, given[key].unit, response.unit), response.unit)
    try:
        if source.kind == "series":
            if bundle is None:
                raise PenstockError("found nothing recorded; expected a run's series")
            from penstock.workload.recorded import recorded_value

            return Measured(recorded_value(bundle, source, response.unit), response.unit)
        text = streams.get(source.file)
        if text is None:
            text = (run_dir / source.file).read_text(errors="replace")
        kind = RESPONSE_KINDS.load(source.kind)
        value = float(kind.number(source.expression or "", text, source.file))
    except IncompleteError as error:
        raise IncompleteError(f"response {response.name}: {error}") from None
    except (OSError, PenstockError) as error:
        raise PenstockError(f"response {response.name}: {error}") from None
    return Measured(value, response.unit)
