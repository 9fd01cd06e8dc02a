"""Stored pairs of a prediction and the subsequent measurement, for the calibration of intervals."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from penstock.analyse.statistics.prediction_intervals import Interval, calibrate, conformal_scores
from penstock.errors import BadInput
from penstock.state import state_dir

SCHEMA = "penstock/calibration/1"


@dataclass(frozen=True)
class Pair:
    """One prediction of a makespan and its measurement, both in seconds.

    `low` and `high` are the simulated interval's ends, None if not stored; `model` is the predictor
    (`queue`, `station`, `blackbox`).
    """

    workload: str
    platform: str
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None
    model: str = "queue"
    source: str = ""
    date: str = ""

    @property
    def residual(self) -> float:
        """Measured over predicted, minus 1."""
        return self.measured / self.predicted - 1


def default_store() -> Path:
    """The store in the user's state directory."""
    return state_dir() / "calibration.json"


def read_pairs(path: Path, *, missing_ok: bool = False) -> list[Pair]:
    """The pairs of a JSON or Parquet file; BadInput for another file, or a number not above 0."""
    if not path.exists() and missing_ok:
        return []
    if not path.is_file():
        raise BadInput(f"{path}: found no file; expected pairs of predicted and measured times")
    rows = _parquet(path) if path.suffix == ".parquet" else _json(path)
    return [_pair(row, f"{path}, pair {i}") for i, row in enumerate(rows, 1)]


def pairs_for(calibration: Path | None, platform: str, *, missing_ok: bool = False) -> list[Pair]:
    """Pairs of the given file, or those of this platform in the user's own store; of queue networks."""
    if calibration is not None:
        return [p for p in read_pairs(calibration, missing_ok=missing_ok) if p.model == "queue"]
    stored = read_pairs(default_store(), missing_ok=True)
    return [p for p in stored if p.model == "queue" and p.platform == platform]


def predictions_of(pairs: Sequence[Pair]) -> int:
    """Number of predictions in the pairs: repetitions of one prediction share their error."""
    return len({(p.workload, p.platform, p.predicted) for p in pairs})


def add_pairs(path: Path, pairs: Iterable[Pair]) -> int:
    """Add pairs to a JSON store, created if absent and replaced atomically; return the number in it."""
    today = datetime.date.today().isoformat()
    added = [_pair(asdict(p if p.date else replace(p, date=today)), "a pair") for p in pairs]
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        stored = read_pairs(path, missing_ok=True) + added
        _replace(path, {"schema": SCHEMA, "pairs": [asdict(p) for p in stored]})
    return len(stored)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Exclusive lock on the folder of a store; no lock file remains."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(path: Path, document: dict[str, Any]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".calibration-", suffix=".json")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as sink:
            json.dump(document, sink, indent=1)
            sink.write("\n")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def calibrated(interval: Interval, predicted: float, pairs: Sequence[Pair]) -> Interval:
    """The interval calibrated on these pairs; unchanged if there are none."""
    if not pairs:
        return interval
    scores, around = conformal_scores(
        [p.predicted for p in pairs],
        [p.measured for p in pairs],
        [p.low for p in pairs],
        [p.high for p in pairs],
    )
    return calibrate(interval, predicted, scores, around)


def _json(path: Path) -> list[Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: found a file that cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{path}:{error.lineno}:{error.colno}: found text that is not JSON; expected {SCHEMA}"
        ) from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        actual = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise BadInput(f"{path}: found schema {actual}; expected {SCHEMA}")
    rows = value.get("pairs")
    if not isinstance(rows, list):
        raise BadInput(f"{path}: found no list `pairs`; expected one of objects")
    return rows


def _parquet(path: Path) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[Any] = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInput(f"{path}: found a file that is not Parquet ({error})") from None
    return rows


def _pair(row: Any, where: str) -> Pair:
    names = {f.name for f in fields(Pair)}
    if not isinstance(row, dict):
        raise BadInput(f"{where}: found {type(row).__name__}; expected an object")
    unknown = sorted(set(row) - names)
    if unknown:
        raise BadInput(f"{where}: found {unknown[0]}; expected {', '.join(sorted(names))}")
    texts = {k: str(row.get(k) or "") for k in ("workload", "platform", "source", "date")}
    low, high = (_seconds(row, name, where, missing_ok=True) for name in ("low", "high"))
    return Pair(
        predicted=_seconds(row, "predicted", where) or 0.0,
        measured=_seconds(row, "measured", where) or 0.0,
        low=low,
        high=high,
        model=str(row.get("model") or "queue"),
        **texts,
    )


def _seconds(
    row: Mapping[str, Any], name: str, where: str, *, missing_ok: bool = False
) -> float | None:
    value = row.get(name)
    if value is None and missing_ok:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and (number > 0 or (name == "low" and number == 0)):
            return number
    raise BadInput(f"{where}: found {name} {value}; expected seconds above 0")
