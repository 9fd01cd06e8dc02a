"""Readers of logs and statistics of programs: rows of `plugins.METRIC_READERS`.

`read` selects the reader of a file and returns its `Readings`, in UTC; `into_bundle` converts them to a run's
clock.
"""

from __future__ import annotations

import codecs
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.archive.completeness import check_manifest
from penstock.archive.schemas import TABLES
from penstock.errors import BadInput, printable
from penstock.plugins import METRIC_READERS

#: bytes at the start of a file from which its format is recognised
HEAD_BYTES = 1 << 16
MOST_BYTES = 1 << 30
#: beginning of the note on values without a unit
UNITS_UNKNOWN = "units not known"
COLUMNS = ("utc_ns", "source", "entity", "metric", "unit", "value", "cumulative")
#: columns that identify a value
_KEYS = ["utc_ns", "source", "entity", "metric"]


@dataclass(frozen=True)
class Readings:
    """Report of a program: `samples` with the columns of `COLUMNS`, times in ns since 1970-01-01 UTC.

    `tables`: further tables by name; columns `utc_…_ns` are times, which a bundle has on the clock of its run
    as `…_ns`. `facts` go into its manifest, `notes` are messages for the user.
    """

    samples: pd.DataFrame
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class MetricReader(Protocol):
    """Reader of one program's report: a module.

    `WHAT` is part of the message about an unrecognised file. `matches` gets the path and its first 64 KiB;
    `read` reads the file with `options` from the user. Raises BadInput with the file's name; memory and time
    are bounded for any content.
    """

    WHAT: str

    def matches(self, path: Path, head: bytes) -> bool: ...

    def read(self, path: Path, options: Mapping[str, Any]) -> Readings: ...


def reader_of(path: Path) -> str | None:
    """Name of the first reader that recognises a file, None if none does."""
    try:
        head = b""
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES).removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; expected a file that can be read") from None
    for name in METRIC_READERS:
        if METRIC_READERS.load(name).matches(path, head):
            return name
    return None


def unknown_units(names: Iterable[str]) -> list[str]:
    """Note on values without a unit in the source; none if all have one."""
    listed = [printable(name) for name in dict.fromkeys(names)]
    more = ", …" if len(listed) > 10 else ""
    return [f"{UNITS_UNKNOWN}: {', '.join(listed[:10])}{more}"] if listed else []


def formats() -> str:
    """Formats of the readers of metrics."""
    return "; or ".join(METRIC_READERS.load(n).WHAT for n in METRIC_READERS)


def read(path: Path, form: str | None = None, options: Mapping[str, Any] | None = None) -> Readings:
    """Read a file; `form` is its reader, by default the one that recognises it."""
    if not path.exists():
        raise BadInput(f"{path}: No such file; expected {path.name} to be one")
    name = form or reader_of(path)
    if name is None:
        raise BadInput(f"{path}: found nothing known at its beginning; expected {formats()}")
    readings: Readings = METRIC_READERS.load(name).read(path, options or {})
    infinite = ~np.isfinite(readings.samples["value"].to_numpy(float))
    if infinite.any():
        notes = [*readings.notes, f"{int(infinite.sum())} values that are not finite were skipped"]
        finite = readings.samples[~infinite].reset_index(drop=True)
        readings = replace(readings, samples=finite, notes=notes)
    if readings.samples.empty and not readings.tables:
        raise BadInput(f"{path}: found no value; expected some ({name})")
    return readings


def text_of(path: Path) -> str:
    """Content of a text file of at most `MOST_BYTES`, with LF line ends. BadInput for other files."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput(f"{path}: found more than {MOST_BYTES} bytes; expected that at most")
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; expected a file that can be read") from None
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path}: found bytes that are no UTF-8 at {error.start}; expected text"
        ) from None


def json_documents(text: str, path: Path, what: str) -> list[Any]:
    """JSON documents in the text of a file, one after another. BadInput, with the expected content `what`."""
    decoder = json.JSONDecoder()
    documents: list[Any] = []
    at = len(text) - len(text.lstrip())
    try:
        while at < len(text):
            document, at = decoder.raw_decode(text, at)
            documents.append(document)
            while at < len(text) and text[at].isspace():
                at += 1
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{path}: found {reason}; expected {what}") from None
    return documents


def complete_lines(text: str) -> tuple[list[str], list[str]]:
    """Lines of a text without an unterminated last line, and a note on that line if there is one."""
    lines = text.splitlines()
    if not text or text.endswith("\n"):
        return lines, []
    return lines[:-1], [
        "the last line has no end and was skipped: the file is cut, or still written"
    ]


def samples(rows: Any) -> pd.DataFrame:
    """Samples from rows (tuples in the order of `COLUMNS`, or a table with them), sorted by time."""
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame = frame.astype({"utc_ns": "int64", "value": "float64", "cumulative": "bool"})
    return frame.sort_values("utc_ns", kind="stable", ignore_index=True)


def unrepeated(
    frame: pd.DataFrame,
    notes: list[str],
    what: str = "values that the file has several times were read once",
) -> pd.DataFrame:
    """Rows of a program that reports each once, without repeated ones, whose number and `what` are noted."""
    repeated = frame.duplicated()
    if not repeated.any():
        return frame
    notes.append(f"{int(repeated.sum())} {what}")
    return frame[~repeated].reset_index(drop=True)


def contradictory(frame: pd.DataFrame) -> list[str]:
    """A note on several values of one series at one time, as of hosts of one name; empty if none."""
    same = frame[frame.duplicated(_KEYS, keep=False)]
    if same.empty:
        return []
    first = same.iloc[0]
    named = f"{printable(first['metric'])} of {printable(first['entity'])}"
    return [
        f"{len(same)} values have the time and name of another one, as {named}: are they of several hosts?"
    ]


def simultaneous(frame: pd.DataFrame, remedy: str = "") -> list[str]:
    """A note on values at the time of another value of their series, with a `remedy`; empty if none."""
    count = int(frame.duplicated(_KEYS).sum())
    if not count:
        return []
    return [f"{count} values have the time of another value of their series{remedy}"]


def import_metrics(
    path: Path, output: Path, form: str | None, options: Mapping[str, Any], beside: Path | None
) -> tuple[Bundle, Readings]:
    """Create a bundle of a program's report; with `beside`, a run, on its clock and with its tables."""
    readings = read(path, form, options)
    manifest: dict[str, Any] = {"command": [], "run_id": "r001"}
    if beside is not None:
        manifest = dict(check_manifest(beside / "manifest.json"))
        manifest.pop("schema", None)
    manifest["imported"] = [
        *manifest.get("imported", []),
        {"file": path.name, "reader": form or reader_of(path), **readings.facts},
    ]
    with Bundle.create(output, manifest) as bundle:
        if beside is not None:
            for table in sorted(beside.glob("*.parquet")):
                shutil.copyfile(table, bundle.path / table.name)
        into_bundle(bundle, readings)
    return bundle, readings


def into_bundle(bundle: Bundle, readings: Readings) -> None:
    """Write readings into a bundle, times on its clock: that of its table `clocks`, else UTC."""
    offset_ns = _offset_ns(bundle)
    if offset_ns is None:
        offset_ns = 0
        every = readings.samples["utc_ns"]
        ends = [("start", every.min()), ("end", every.max())] if len(every) else []
        rows = [
            dict.fromkeys(("monotonic_ns", "realtime_ns", "boottime_ns"), int(t))
            | {"point": point, "offset_ns": 0, "offset_bound_ns": 0}
            for point, t in ends
        ]
        if rows:
            bundle.write_table("clocks", pa.Table.from_pylist(rows))
    table_rows = readings.samples.rename(columns={"utc_ns": "t_ns"})
    table_rows["t_ns"] -= offset_ns
    table = pa.Table.from_pandas(table_rows, schema=TABLES["samples"].arrow, preserve_index=False)
    if "samples" in bundle.tables:
        before = bundle.table("samples", TABLES["samples"].arrow.names)
        table = pa.concat_tables([before.cast(table.schema), table]).sort_by("t_ns")
    bundle.write_table("samples", table)
    for name, frame in readings.tables.items():
        times = {c: c.removeprefix("utc_") for c in map(str, frame) if c.startswith("utc_")}
        own = frame.assign(**{c: frame[c] - offset_ns for c in times}).rename(columns=times)
        schema = TABLES[name].arrow if name in TABLES else None
        bundle.write_table(name, pa.Table.from_pandas(own, schema=schema, preserve_index=False))


def _offset_ns(bundle: Bundle) -> int | None:
    """UTC minus the monotonic clock of the run, None for a bundle without clocks."""
    if "clocks" not in bundle.tables:
        return None
    rows = bundle.table("clocks").to_pandas()
    if not len(rows):
        return None
    return int(np.round((rows["realtime_ns"] - rows["monotonic_ns"]).mean()))
