"""Experiments and their series from Python: functions of `penstock` and `penstock.api`."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial as bound
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.archive.series.incomplete import PartialData
from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.experiments.points import Batch, canonical_labels
from penstock.parts.monitoring.outbox.buffered import Buffered, Series, table_of
from penstock.parts.monitoring.outbox.client import Patient, opened

if TYPE_CHECKING:
    import pandas as pd


class Recording:
    """An experiment while it runs, as `experiment` gives it."""

    def __init__(self, door: Any, name: str, source: str, buffered: Buffered | None = None) -> None:
        self._door = door
        #: its name and repeat, `NAME#n`
        self.name = name
        self._source = source
        self._number = 0
        self._buffered = buffered

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase, as long as the block lasts; inside of another it is a part of that."""
        self._door.mark(self.name, "begin", name)
        try:
            yield
        finally:
            self._door.mark(self.name, "end", name)

    def note(self, text: str) -> None:
        """Notes some words with the time."""
        self._door.mark(self.name, "note", text)

    def record(
        self,
        metric: str,
        values: Any,
        utc_ns: Any = None,
        *,
        index: Any = None,
        labels: Mapping[str, str] | None = None,
        unit: str = "",
    ) -> None:
        """Keeps values of a metric: one now, or many with their times [ns since 1970 UTC].

        `index`: their places in a sequence, from 0, instead of times or beside them. It is on the disk when
        this returns, where the server is up; of an experiment with `every_s` it is only gathered.
        """
        # a copy: whose values are changed after this is the caller's affair
        many = np.atleast_1d(np.array(values))
        kinds = {"f": "float", "i": "integer", "u": "integer", "b": "boolean", "U": "text"}
        if many.dtype.kind not in kinds:
            raise BadInput(f"found values of {many.dtype}; expected numbers, texts or truth values")
        if many.dtype.kind == "u":
            if many.size and int(many.max()) >= 1 << 63:
                raise BadInput(f"found {many.max()}; expected integers below 2^63")
            many = many.astype(np.int64)
        if utc_ns is None and index is None:
            utc_ns = time.time_ns()
        columns = {"utc_ns": utc_ns, "index": index}
        places = {
            k: np.atleast_1d(np.array(v, np.int64)) for k, v in columns.items() if v is not None
        }
        if {len(p) for p in places.values()} != {len(many)}:
            lengths = ", ".join(f"{len(p)} of {k}" for k, p in places.items())
            raise BadInput(f"found {len(many)} values and {lengths}; expected as many")
        kind = kinds[many.dtype.kind]
        series = Series(metric, canonical_labels(labels or {}), unit, kind, tuple(places))
        if self._buffered is not None:
            self._buffered.add(series, many, *places.values())
            return
        table = table_of(series, [(many, *places.values())])
        self._door.write(self.name, Batch(self._source, self._number, table))
        self._number += 1


@contextlib.contextmanager
def experiment(
    name: str,
    *,
    params: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    shared: bool = False,
    server: str | None = None,
    every_s: float | None = None,
) -> Iterator[Recording]:
    """An experiment, as long as the block lasts, or the next repeat of one of that name.

    It lies in this user's archive, or with `server` (`$PENSTOCK_SERVER`). Where that is down, or the archive
    cannot be used, stderr says so, and the block runs all the same. An exception makes it `aborted`, and
    goes on.

    `every_s`: what is recorded is gathered, and written every so many seconds (`math.inf`: not before the
    end) by a thread of its own, so that `record` waits for nobody; a server that is away meanwhile gets it
    when it is back, at the end for ten seconds. A kill loses what was gathered since. BadInput for 0 or less.
    """
    if every_s is not None and not every_s > 0:
        raise BadInput(f"found every_s {every_s:g}; expected more than 0")
    door = Patient.leniently(server)
    door.lenient = False  # what is wrong from here on is raised
    begun = door.start(name, params=dict(params or {}), tags=list(tags), shared=shared)
    source, buffered = f"python-{token_hex(4)}", None
    # where it could not be begun there is nothing to write to, whoever comes back
    store = door.client
    if every_s is not None and store is not None:
        buffered = Buffered(bound(store.write, begun), source, every_s)
    # a server that was away for a mark may be there again for the end
    ending = door if buffered is None or store is None else Patient(store)
    try:
        yield Recording(door, begun, source, buffered)
    except BaseException:
        if buffered is not None:
            with contextlib.suppress(PenstockError):
                buffered.close()
        ending.stop(begun, aborted=True)
        raise
    try:
        if buffered is not None:
            buffered.close()
    finally:
        ending.stop(begun)


def series(
    name: str,
    metric: str,
    *,
    phase: str | None = None,
    labels: Sequence[str] = (),
    axis: Literal["timestamp", "duration", "sample"] | None = None,
    partial: bool = False,
    server: str | None = None,
) -> pd.DataFrame:
    """A metric of an experiment: a column for each series, rows by time, or by number where it is a sequence.

    `labels` are those whose values name the columns. The experiment is of this user's archive, or with
    `server` (`$PENSTOCK_SERVER`) of that one. A warning PartialData names the series that are not complete,
    unless `partial` data will do. Raises BadInput for what there is not.
    """
    parameters = {"metric": metric, "format": "parquet", "phase": phase, "type": axis}
    options: dict[str, Any] = {k: v for k, v in parameters.items() if v is not None}
    if labels:
        options["labels"] = list(labels)
    import pandas as pd

    response = opened(server).get(name, options)
    if response.verdict.lines and not partial:
        warnings.warn("; ".join(response.verdict.lines), PartialData, stacklevel=2)
    content = b"".join(response.parts)
    frame = pd.read_parquet(io.BytesIO(content))
    return frame.set_index(str(frame.columns[0]))
