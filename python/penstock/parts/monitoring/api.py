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
import numpy.typing as npt

from penstock.archive.series.incomplete import PartialData
from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.experiments.points import Batch, canonical_labels
from penstock.parts.monitoring.outbox.buffered import Buffered, Series, table_of
from penstock.parts.monitoring.outbox.client import Patient, opened

if TYPE_CHECKING:
    import pandas as pd


class Recording:
    """A running experiment, as returned by `experiment`."""

    def __init__(
        self, client: Any, name: str, source: str, buffered: Buffered | None = None
    ) -> None:
        self._client = client
        #: name and repeat, `NAME#n`
        self.name = name
        self._source = source
        self._number = 0
        self._buffered = buffered
        #: unit and axes by metric and labels
        self._recorded: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the block as a phase; a phase within another one is a part of it."""
        self._client.mark(self.name, "begin", name)
        try:
            yield
        finally:
            self._client.mark(self.name, "end", name)

    def note(self, text: str) -> None:
        """Add a note with the current time."""
        self._client.mark(self.name, "note", text)

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
        """Record one value of a metric now, or many values with their times [ns since 1970 UTC].

        `index`: positions in a sequence, from 0, instead of times or in addition. When this returns, the
        values are on disk if the server is up; with `every_s`, they are in memory until the next write.
        """
        # a copy: the caller may change its values afterwards
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
        places = {k: _positions(k, v) for k, v in columns.items() if v is not None}
        if {len(p) for p in places.values()} != {len(many)}:
            lengths = ", ".join(f"{len(p)} of {k}" for k, p in places.items())
            raise BadInput(f"found {len(many)} values and {lengths}; expected as many")
        kind = kinds[many.dtype.kind]
        label_text = canonical_labels(labels or {})
        series = Series(metric, label_text, unit, kind, tuple(places))
        earlier = self._recorded.get((metric, label_text), (unit, series.axes))
        for what, actual, expected in zip(
            ("unit", "axes"), (unit, series.axes), earlier, strict=True
        ):
            if actual != expected:
                raise BadInput(
                    f"{metric}: found {what} {actual!r}; expected {expected!r}, as before"
                )
        if self._buffered is not None:
            self._buffered.add(series, many, *places.values())
        else:
            table = table_of(series, [(many, *places.values())])
            self._client.write(self.name, Batch(self._source, self._number, table))
            self._number += 1
        self._recorded[metric, label_text] = unit, series.axes


def _positions(name: str, values: Any) -> npt.NDArray[np.int64]:
    """A copy of times [ns since 1970 UTC] or indices. BadInput unless they are whole numbers, or times of
    NumPy, which are UTC, or of pandas."""
    dated = getattr(getattr(values, "dtype", None), "kind", "") == "M"
    # with a dtype, times of pandas that have a zone are converted to UTC
    array = np.atleast_1d(np.asarray(values, "datetime64[ns]" if dated else None))
    if name == "utc_ns" and array.dtype.kind == "M" and not np.isnat(array).any():
        array = array.astype("datetime64[ns]").astype(np.int64)
    integral = array.dtype.kind == "i" or (
        array.dtype.kind in "uf"
        and bool(((array == np.trunc(array)) & (np.abs(array) < 2.0**63)).all())
    )
    if not integral:
        shown = "times in ns since 1970 UTC" if name == "utc_ns" else "numbers from 0"
        raise BadInput(
            f"found {name} of {array.dtype} that are not whole numbers; expected {shown}"
        )
    return array.astype(np.int64)


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
    """Record the block as an experiment, or as the next repeat of an experiment of that name.

    It is stored in this user's archive, or on `server` (default: `$PENSTOCK_SERVER`). If the server is down
    or the archive unusable, a message on stderr reports it, and the block runs without recording. After an
    exception, which is re-raised, the experiment is `aborted`.

    `every_s`: values are collected in memory and written at this interval [s] (`math.inf`: only at the end)
    by a separate thread, so that `record` does not wait. A server that is unreachable meanwhile receives them
    later; at the end, for ten seconds at most. If the process is killed, values since the last write are
    lost. BadInput unless `every_s` is above 0.
    """
    if every_s is not None and not every_s > 0:
        raise BadInput(f"found every_s {every_s:g}; expected more than 0")
    client = Patient.leniently(server)
    client.lenient = False  # later errors are raised
    begun = client.start(name, params=dict(params or {}), tags=list(tags), shared=shared)
    source, buffered = f"python-{token_hex(4)}", None
    # without a started experiment, a server that returns has none to write to
    store = client.client
    if every_s is not None and store is not None:
        buffered = Buffered(bound(store.write, begun), source, every_s)
    # a server that was unreachable for a mark may be reachable at the end
    ending = client if buffered is None or store is None else Patient(store)
    try:
        yield Recording(client, begun, source, buffered)
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
    """A metric of an experiment: a column for each series, rows by time, or by index for sequences.

    `labels`: labels whose values name the columns. The experiment is from this user's archive, or from
    `server` (default: `$PENSTOCK_SERVER`). A PartialData warning names the incomplete series, unless
    `partial`. Raises BadInput for an unknown experiment or metric.
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
