"""Check of a trace bundle's completeness before a command reads it, and the message if incomplete."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive.schemas import TABLES
from penstock.archive.schemas.table import BUNDLE_SCHEMA, Column
from penstock.archive.selection import EXPECTED, select
from penstock.errors import BadInput, PenstockError, printable

if TYPE_CHECKING:
    from penstock.archive.bundle import Bundle
    from penstock.archive.series.series import Series

#: table → columns required for its rows; other tables have no required columns
_NEEDED = {
    "io_events": "t_ns op direction file_id offset_bytes size_bytes done_bytes latency_ns pid tid",
    "files": "file_id path",
    "patterns": "file_id direction class requests bytes tid evidence",
    "phases": "phase_id start_ns end_ns",
    "operations": "file_id op calls time_ns",
    "device_requests": "t_ns op size_bytes",
    "threads": "tid pid",
    "clocks": "point monotonic_ns",
}
#: fact of the manifest → its type, and its name in messages
_FACTS: dict[str, tuple[type, str]] = {
    "receipts": (dict, "an object"),
    "responses": (dict, "an object"),
    "losses": (dict, "an object"),
    "times": (dict, "an object"),
    "versions": (dict, "an object"),
    "closing": (str, "text"),
}


@contextlib.contextmanager
def reading(*named: Path) -> Iterator[list[Path]]:
    """Context manager for code that reads the bundles named by a user, one each (see `selection`).

    Checks each first, and reports damage in one line. Raises BadInput with the file, the actual and the
    expected content.
    """
    bundles = [select(name).one for name in named]
    for bundle in bundles:
        check_trace(bundle)
    try:
        yield bundles
    except PenstockError as error:
        if any(isinstance(cause, pa.ArrowException | OSError) for cause in _causes(error)):
            _look_for_damage(bundles)
        raise
    except Exception as error:
        if isinstance(error, pa.ArrowException) or type(error).__module__ in ("duckdb", "_duckdb"):
            _look_for_damage(bundles)
        elif isinstance(error, OSError) and error.errno is None:
            # Arrow reports invalid bytes this way
            _look_for_damage(bundles)
        raise


def check_trace(bundle: Path) -> None:
    """Raise BadInput unless the manifest has our schema and the tables are complete with their required
    columns."""
    manifest = check_manifest(bundle / "manifest.json")
    if not (bundle / "files.parquet").is_file():
        monitored = list(manifest.get("receipts") or {}) == ["monitor"]
        untraced = " (`penstock monitor` wrote it; nothing was traced)" if monitored else ""
        untraced = " (the run was not traced)" if manifest.get("treatment_id") else untraced
        raise BadInput(f"{bundle / 'files.parquet'}: found no such file{untraced}; {EXPECTED}")
    for path in sorted(bundle.glob("*.parquet")):
        _check_table(path)


#: verdicts accepted in an analysis: complete data, and data of unknown completeness
TAKEN = ("complete", "unknown")
Verdict = Literal["complete", "unknown", "partial", "unusable"]


def worst(verdicts: Iterable[str]) -> Verdict:
    """Combined verdict of several series."""
    present = set(verdicts)
    order: tuple[Verdict, ...] = ("unusable", "partial", "unknown")
    return next((v for v in order if v in present), "complete")


def verdict_of_run(manifest: Mapping[str, Any]) -> str:
    """`complete`, `unknown`, `partial` or `unusable`.

    The verdict of an experiment is its own; that of another run is its monitor's, if more than one sample is
    missing.
    """
    verdict = (manifest.get("experiment") or {}).get("verdict")
    if verdict is not None:
        return str(verdict)
    receipt = (manifest.get("receipts") or {}).get("monitor") or {}
    lacking = int(receipt.get("expected", 0)) - int(receipt.get("samples", 0))
    return str(receipt.get("complete", "complete")) if lacking > 1 else "complete"


def check_complete(bundle: Path, partial: bool, *, collected: bool = False) -> None:
    """Raise BadInput for a run with incomplete samples or points, unless `partial` data are accepted.

    With `collected` the verdict of its collectors counts, too.
    """
    manifest = check_manifest(bundle / "manifest.json")
    verdict = verdict_of_run(manifest)
    why = ""
    if (manifest.get("experiment") or {}).get("verdict") is None:
        receipt = (manifest.get("receipts") or {}).get("monitor") or {}
        why = f": {receipt.get('samples')} of {receipt.get('expected')} samples"
        if verdict == "complete" and collected:
            verdict, why = _of_collectors((manifest.get("receipts") or {}).get("collect"))
    elif manifest.get("state") == "ended" and manifest.get("reason"):
        why = f": {manifest['reason']}"
    if verdict not in TAKEN and not partial:
        raise BadInput(f"{bundle}: found {verdict} data{why}; expected complete ones, or --partial")


def check_drawn(bundle: Bundle, drawn: Sequence[Series], partial: bool) -> None:
    """Like `check_complete`, for some series of a run, whatever others lost."""
    if partial:
        return
    manifest = check_manifest(bundle.path / "manifest.json")
    of_experiment = (manifest.get("experiment") or {}).get("verdict") is not None
    judged = [s for s in drawn if s.verdict]
    if len(judged) < len(drawn) or not drawn:
        check_complete(bundle.path, partial)
    bad = [f"{printable(s.name)} ({s.verdict}{s.lacks})" for s in judged if s.verdict not in TAKEN]
    sources = {s.source for s in judged}
    if of_experiment:
        bad += _refusing(bundle, sources) if verdict_of_run(manifest) not in TAKEN else []
    else:
        receipt = (manifest.get("receipts") or {}).get("collect")
        verdict, why = _of_collectors(receipt, sources)
        bad += [why.removeprefix(": ") or verdict] if verdict not in TAKEN else []
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise BadInput(
            f"{bundle.path}: found partial data: {', '.join(bad[:5])}{more}; expected complete series, "
            "or --partial"
        )


def _refusing(bundle: Bundle, sources: Iterable[str]) -> list[str]:
    """Sources that refused points or messages of unknown series, as clauses."""
    if "gaps" not in bundle.tables:
        return []
    rows = bundle.table("gaps", ["source", "kind", "detail"]).to_pylist()
    refused = {
        r["source"]
        for r in rows
        if str(r["kind"]).startswith("refused")
        and not str(r["detail"]).startswith(("stale", "duplicate"))
    }
    return [f"{printable(s)} refused points" for s in sorted(refused & set(sources))]


def _of_collectors(receipt: Any, sources: Iterable[str] | None = None) -> tuple[str, str]:
    """Verdict of a run's collectors, or of some of them, and the incomplete ones."""
    if not isinstance(receipt, dict):
        return "complete", ""
    each = receipt.get("collectors")
    rows = each.items() if isinstance(each, dict) else ()
    bad = [
        f"{name} is {one.get('verdict')}"
        for name, one in rows
        if isinstance(one, dict)
        and one.get("verdict") not in TAKEN
        and (sources is None or name in sources)
    ]
    judged = bad or sources is None
    return str(
        receipt.get("complete", "complete")
    ) if judged else "complete", f": {', '.join(bad[:5])}" if bad else ""


def unknown_note(manifest: Mapping[str, Any]) -> str:
    """Note on a run analysed with unknown completeness; empty for others."""
    if verdict_of_run(manifest) != "unknown":
        return ""
    name = (manifest.get("experiment") or {}).get("name", manifest.get("run_id", ""))
    return (
        f"{printable(str(name))}#{manifest.get('attempt', 1)}: it is not known how complete it is; "
        "some of its series have no interval"
    )


def check_manifest(path: Path) -> dict[str, Any]:
    """Content of the manifest. Raises BadInput for other files and unsupported versions."""
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: found no JSON ({error}); {EXPECTED}") from None
    if not isinstance(manifest, dict):
        raise BadInput(f"{path}: found {type(manifest).__name__}; expected a JSON object")
    schema = manifest.get("schema")
    if schema != BUNDLE_SCHEMA:
        raise BadInput(f"{path}: found schema {schema!r}; expected {BUNDLE_SCHEMA!r}")
    for name, (kind, expected) in _FACTS.items():
        value = manifest.get(name)
        if value is not None and not isinstance(value, kind):
            raise BadInput(f"{path}: found {name} {_short(value)}; expected {expected}")
    for group, name in (("receipts", "trace"), ("responses", "wall_s")):
        value = (manifest.get(group) or {}).get(name)
        if value is not None and not isinstance(value, dict):
            raise BadInput(f"{path}: found {group}.{name} {_short(value)}; expected an object")
    for name, value in (manifest.get("times") or {}).items():
        integral, unit = (True, "ns") if name.endswith("_ns") else (False, "seconds")
        if not isinstance(value, int if integral else int | float):
            raise BadInput(
                f"{path}: found times.{name} {_short(value)}; expected a number of {unit}"
            )
    return manifest


def _check_table(path: Path) -> None:
    try:
        columns = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path}: found {_one_line(error)}; expected Parquet") from None
    for name in _NEEDED.get(path.stem, "").split():
        if name not in columns.names:
            raise BadInput(
                f"{path}: found columns {_listed(columns.names)}; expected {name!r} among them"
            )
    schema = TABLES.get(path.stem)
    for column in schema.columns if schema else ():
        if column.name in columns.names:
            kind = columns.field(column.name).type
            if not _fits(kind, column):
                raise BadInput(
                    f"{path}: found column {column.name!r} of type {kind}; expected {column.arrow}"
                )


def _fits(kind: pa.DataType, column: Column) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return True
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if column.type == "text":
        return bool(text)
    if column.type == "evidence":
        return bool(text or pa.types.is_struct(kind))
    if column.type == "bool":
        return bool(pa.types.is_boolean(kind))
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _look_for_damage(bundles: list[Path]) -> None:
    """Read everything: an intact footer does not imply intact data."""
    for bundle in bundles:
        for path in sorted(bundle.glob("*.parquet")):
            try:
                for _ in pq.ParquetFile(path).iter_batches():
                    pass
            except (pa.ArrowException, OSError) as error:
                raise BadInput(f"{path}: found {_one_line(error)}; expected Parquet") from None


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or os.strerror(getattr(error, "errno", 0) or 0)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "none"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
