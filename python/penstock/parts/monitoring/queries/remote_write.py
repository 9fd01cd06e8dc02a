"""Series sent to a server of Prometheus' kind, by remote write 1.0.

    server = RemoteWrite("http://prom:9090", token)
    for run in runs:
        sent = server.send(run)

Points go in the order of their times, as a Prometheus takes nothing that is older than its newest hour, and
nothing of a series that is older than its newest point. So a request that it had taken already, but whose
answer was lost, is refused as out of order when it is sent again: that is no error. What has a value at a
time is sent; sequences and texts have no place in the protocol.
"""

from __future__ import annotations

import importlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput, NoAnswer, Upstream, printable
from penstock.parts.monitoring.collectors.http_push import snapped
from penstock.parts.monitoring.experiments.points import numbers_of
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded_in, span_of
from penstock.parts.monitoring.queries.prometheus_names import exposed
from penstock.parts.monitoring.servers.reader import reached

_native: Any = importlib.import_module("penstock._native")

#: the environment variable that holds the token of the server
TOKEN = "PENSTOCK_REMOTE_WRITE_TOKEN"
#: points of one request, and the time that they cover [ms]: less than that hour
BATCH_POINTS, _MOST_MS = 5_000, 1_800_000
#: how long a server may be away, or fail [s]
PATIENCE_S = 60.0
_WORDS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
#: what a Prometheus, and a receiver of ours, say of points that they have
_TAKEN = ("out of order", "backwards")
_NS_OF_MS = 10**6
#: of an answer that is told [bytes]
_MOST_SAID = 1_000
_WRONG = {
    401: f"its token in ${TOKEN}",
    403: f"its token in ${TOKEN}",
    404: "where it takes remote write (of Prometheus: --web.enable-remote-write-receiver)",
    405: "where it takes remote write",
}
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass
class Sent:
    """What a server took, and how many points were not sent, by reason."""

    points: int = 0
    series: int = 0
    requests: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Samples:
    """Points in the order of their times [ms since 1970 UTC]; `of` are places in `names`."""

    names: list[tuple[str, dict[str, str]]]
    of: Ints
    at_ms: Ints
    values: Floats

    def messages(self) -> Iterator[tuple[bytes, int]]:
        """Requests, and how many points each has."""
        low = 0
        while low < len(self.of):
            until = int(np.searchsorted(self.at_ms, self.at_ms[low] + _MOST_MS))
            part = slice(low, min(low + BATCH_POINTS, until))
            low = part.stop
            order = np.argsort(self.of[part], kind="stable")
            of, at_ms, values = (x[part][order] for x in (self.of, self.at_ms, self.values))
            edges = np.flatnonzero(np.diff(of)) + 1
            samples = [
                list(zip(t.tolist(), v.tolist(), strict=True))
                for t, v in zip(np.split(at_ms, edges), np.split(values, edges), strict=True)
            ]
            names = [self.names[i] for i in of[np.concatenate([[0], edges])]]
            yield snapped(_native.remote_write_message(names, samples)), len(of)


class RemoteWrite:
    """A server that takes remote write; an address without a path means `/api/v1/write` there.

    BadInput for an address that is none.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.url, self._client = reached(url, token=token)
        if not httpx.URL(self.url).path.strip("/"):
            self.url += "/api/v1/write"
        self._patience_s, self._tell = patience_s, tell

    def send(self, run: Path) -> Sent:
        """Sends what a run recorded between its marks, labelled `penstock_experiment`.

        BadInput for a run without such series, and where the address or token is wrong; Upstream where the
        server refuses points, or fails for as long as one has patience.
        """
        bundle = Bundle.open(run)
        sent = Sent()
        samples = _samples(recorded_in(bundle), span_of(bundle), _name_of(bundle), sent)
        if not len(samples.of):
            raise BadInput(f"{run}: found no number with a time; expected some to send")
        sent.series = len(np.unique(samples.of))
        for message, points in samples.messages():
            self._post(message, sent.points)
            sent.points += points
            sent.requests += 1
        return sent

    def _post(self, message: bytes, before: int) -> None:
        until = time.monotonic() + self._patience_s
        wait_s = 0.1
        trouble: Upstream | None = None
        while True:
            trouble = self._tried(message, before, again=trouble is not None)
            if trouble is None:
                return
            if time.monotonic() + wait_s > until:
                raise type(trouble)(f"{trouble}; {before} points were taken before")
            self._tell(f"{trouble}; trying again")
            time.sleep(wait_s)
            wait_s = min(5.0, 2 * wait_s)

    def _tried(self, message: bytes, before: int, *, again: bool) -> Upstream | None:
        """None where the message was taken; what to tell where it may be sent again."""
        try:
            with self._client.stream("POST", self.url, content=message, headers=_WORDS) as answer:
                status = answer.status_code
                said = next(answer.iter_bytes(_MOST_SAID), b"")
        except httpx.HTTPError as error:
            what = printable(str(error) or type(error).__name__)
            return NoAnswer(f"{self.url} does not answer: {what}")
        words = printable(said.decode("utf-8", "replace").strip())
        taken_before = again and status == 400 and any(word in words for word in _TAKEN)
        if 200 <= status < 300 or taken_before:
            return None
        found = f"{self.url}: found status {status}" + (f" ({words})" if words else "")
        if status >= 500 or status == 429:
            return Upstream(found)
        if status in _WRONG:
            raise BadInput(f"{found}; expected {_WRONG[status]}")
        raise Upstream(
            f"{found}; expected that it takes these points; {before} points were taken before"
        )


def _samples(made: Recorded, span: tuple[int, int], experiment: str, sent: Sent) -> _Samples:
    names = []
    for row in made.series.to_pylist():
        metric, labels = exposed(row)
        changed = {} if metric == row["metric"] else {"penstock_metric": row["metric"]}
        names.append((metric, {**labels, **changed, "penstock_experiment": experiment}))
    points = made.points
    values = numbers_of(points)
    timed, numeric = (np.asarray(x) for x in (points["index"].is_null(), values.is_valid()))
    at_ns = np.asarray(points["utc_ns"].fill_null(0), np.int64)
    inside = (at_ns >= span[0]) & (at_ns <= span[1])
    sent.left_out["of sequences"] = int((~timed).sum())
    sent.left_out["texts"] = int((timed & ~numeric).sum())
    sent.left_out["outside of its marks"] = int((timed & numeric & ~inside).sum())
    taken = timed & numeric & inside
    ids = np.asarray(made.series["series_id"], np.int64)
    of = np.searchsorted(ids, np.asarray(points["series_id"], np.int64)[taken])
    at_ms = at_ns[taken] // _NS_OF_MS
    numbers = np.asarray(values.fill_null(0.0), np.float64)[taken]
    # sorted by series and time: of one millisecond the last is kept
    last = np.ones(len(of), bool)
    last[:-1] = (of[1:] != of[:-1]) | (at_ms[1:] != at_ms[:-1])
    sent.left_out["before another of the same millisecond"] = int((~last).sum())
    sent.left_out = +sent.left_out
    order = np.flatnonzero(last)[np.argsort(at_ms[last], kind="stable")]
    return _Samples(names, of[order], at_ms[order], numbers[order])


def _name_of(bundle: Bundle) -> str:
    """`NAME#2` of an experiment, `STUDY_ID/r001` of a run of a study."""
    said = bundle.manifest
    if "experiment" in said:
        return f"{said['experiment']['name']}#{said['attempt']}"
    return "/".join(said[key] for key in ("study_id", "run_id") if said[key]) or bundle.path.name


def open_server(url: str, tell: Callable[[str], None]) -> RemoteWrite:
    """A server at `url`, with the token of this process's environment."""
    return RemoteWrite(url, os.environ.get(TOKEN), tell=tell)
