"""Series sent to a server compatible with Prometheus, by remote write 1.0.

    server = RemoteWrite("http://prom:9090", token)
    for run in runs:
        sent = server.send(run)

Points are sent in the order of their times, because a Prometheus rejects points more than an hour older than
its newest, and points of a series older than the newest of that series. So a request that was accepted, but
whose answer was lost, is rejected as out of order when it is sent again: that is no error. Only numbers with
a time are sent; the protocol has no sequences and texts.
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
from penstock.parts.monitoring.queries.prometheus_names import exposed, with_added
from penstock.parts.monitoring.servers.reader import reached

_native: Any = importlib.import_module("penstock._native")

#: the environment variable that holds the token of the server
TOKEN = "PENSTOCK_REMOTE_WRITE_TOKEN"
#: points of one request, and the time that they cover [ms]: less than that hour
BATCH_POINTS, _MOST_MS = 5_000, 1_800_000
#: how long a server may be unreachable, or fail [s]
PATIENCE_S = 60.0
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
#: messages of a Prometheus, and of our receiver, about points that they have
_TAKEN = ("out of order", "backwards")
_NS_OF_MS = 10**6
#: limit of an answer that is shown [bytes]
_MOST_REPLY = 1_000
_WRONG = {
    401: f"its token in ${TOKEN}",
    403: f"its token in ${TOKEN}",
    404: "a URL that accepts remote write (Prometheus needs --web.enable-remote-write-receiver)",
    405: "a URL that accepts remote write",
}
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass
class Sent:
    """Points that a server accepted, and numbers of omitted points, by reason."""

    points: int = 0
    series: int = 0
    requests: int = 0
    omitted: Counter[str] = field(default_factory=Counter)


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
    """A server that accepts remote write; an address without a path means `/api/v1/write` there.

    BadInput for an invalid address.
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
        """Send the points of a run between its marks, labelled `penstock_experiment`.

        BadInput for a run without such series, and for a wrong address or token; Upstream if the server
        refuses points, or fails longer than the patience.
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
                raise type(trouble)(f"{trouble}; {before} points were sent before")
            self._tell(f"{trouble}; trying again")
            time.sleep(wait_s)
            wait_s = min(5.0, 2 * wait_s)

    def _tried(self, message: bytes, before: int, *, again: bool) -> Upstream | None:
        """None if the message was accepted; the error if it may be sent again."""
        try:
            with self._client.stream("POST", self.url, content=message, headers=_HEADERS) as answer:
                status = answer.status_code
                body = next(answer.iter_bytes(_MOST_REPLY), b"")
        except httpx.HTTPError as error:
            what = printable(str(error) or type(error).__name__)
            return NoAnswer(f"{self.url} does not answer: {what}")
        text = printable(body.decode("utf-8", "replace").strip())
        taken_before = again and status == 400 and any(word in text for word in _TAKEN)
        if 200 <= status < 300 or taken_before:
            return None
        failure = f"{self.url}: found status {status}" + (f" ({text})" if text else "")
        if status >= 500 or status == 429:
            return Upstream(failure)
        if status in _WRONG:
            raise BadInput(f"{failure}; expected {_WRONG[status]}")
        raise Upstream(
            f"{failure}; expected that it takes these points; {before} points were sent before"
        )


def _samples(recorded: Recorded, span: tuple[int, int], experiment: str, sent: Sent) -> _Samples:
    names = []
    for row in recorded.series.to_pylist():
        metric, labels = exposed(row)
        added = {"penstock_experiment": experiment}
        added |= {} if metric == row["metric"] else {"penstock_metric": row["metric"]}
        names.append((metric, with_added(labels, added)))
    points = recorded.points
    values = numbers_of(points)
    timed, numeric = (np.asarray(x) for x in (points["index"].is_null(), values.is_valid()))
    at_ns = np.asarray(points["utc_ns"].fill_null(0), np.int64)
    inside = (at_ns >= span[0]) & (at_ns <= span[1])
    sent.omitted["of sequences"] = int((~timed).sum())
    sent.omitted["texts"] = int((timed & ~numeric).sum())
    sent.omitted["outside of its marks"] = int((timed & numeric & ~inside).sum())
    taken = timed & numeric & inside
    ids = np.asarray(recorded.series["series_id"], np.int64)
    of = np.searchsorted(ids, np.asarray(points["series_id"], np.int64)[taken])
    at_ms = at_ns[taken] // _NS_OF_MS
    numbers = np.asarray(values.fill_null(0.0), np.float64)[taken]
    # sorted by series and time: the last point of a millisecond is sent
    last = np.ones(len(of), bool)
    last[:-1] = (of[1:] != of[:-1]) | (at_ms[1:] != at_ms[:-1])
    sent.omitted["before another of the same millisecond"] = int((~last).sum())
    sent.omitted = +sent.omitted
    order = np.flatnonzero(last)[np.argsort(at_ms[last], kind="stable")]
    return _Samples(names, of[order], at_ms[order], numbers[order])


def _name_of(bundle: Bundle) -> str:
    """`NAME#2` of an experiment, `STUDY_ID/r001` of a run of a study."""
    manifest = bundle.manifest
    if "experiment" in manifest:
        return f"{manifest['experiment']['name']}#{manifest['attempt']}"
    return (
        "/".join(manifest[key] for key in ("study_id", "run_id") if manifest[key])
        or bundle.path.name
    )


def open_server(url: str, tell: Callable[[str], None]) -> RemoteWrite:
    """A server at `url`, with the token of this process's environment."""
    return RemoteWrite(url, os.environ.get(TOKEN), tell=tell)
