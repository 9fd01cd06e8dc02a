"""Client of experiments in this user's store or on a remote server.

`$PENSTOCK_SERVER` (or `server`) is the URL of a server, `$PENSTOCK_TOKEN` its token; for a server of the same
user on this host the token is read from its private file. A program that only starts, marks and stops
experiments must not fail if the server is down: `Patient` reports it once and continues.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa

from penstock.archive.series.incomplete import Verdict, of_headers
from penstock.errors import Away, BadInput, PenstockError
from penstock.host.probe.clock_offset import CLOCK, CLOCK_BOUND, Offset, measure
from penstock.host.processes.servers import server_at, verification
from penstock.parts.monitoring.experiments.points import Account, Batch, canonical_labels, points
from penstock.parts.monitoring.experiments.targets import Targets
from penstock.parts.monitoring.experiments.timestamps import seconds_text

if TYPE_CHECKING:
    import httpx

#: header of the response to a stop: series that could not be fetched from other servers, percent-encoded
NOT_FETCHED = "X-Penstock-Not-Fetched"
#: header of the response to a start: receivers that do not listen
NOT_LISTENING = "X-Penstock-Not-Listening"
#: timeout of a response [s]
_RESPONSE_S = 0.8
#: timeout of long requests (stop, data), and interval and timeout of checks that the server is alive [s]
_LONG_S, _PAUSE_S, _ALIVE_S = 900.0, 0.3, 0.5
#: wait for a locked catalogue by a command that runs in any case [s]
LENIENT_WAIT_S = 5.0
#: timeout of a start, which waits for receivers [s]
_START_S = 10.0
#: timeout of the comparison of clocks [s]
_CLOCK_S = 2.0

#: metadata key of an Arrow stream of points: accounts as JSON; their keys that older servers do not accept
ACCOUNTS = b"penstock.accounts"
#: and its events as JSON
EVENTS = b"penstock.events"
_NEW = ("since_ns", "counter")
_T = TypeVar("_T")


class Unreachable(Away):
    """The server is down, or does not respond."""


class Conflicting(BadInput):
    """A request that conflicts with the state of the server: another experiment of that name runs."""


#: exceptions by HTTP status; others are PenstockError
_ERRORS = {**dict.fromkeys((400, 404, 422), BadInput), 409: Conflicting, 503: Away}


@dataclass(frozen=True)
class Data:
    """Data of an experiment in parts, and its verdict of completeness."""

    parts: Iterator[bytes]
    verdict: Verdict


class Client(Protocol):
    """Operations on experiments, by name. Raises the errors of `experiments.Experiments`."""

    def start(self, name: str, **options: Any) -> str:
        """Start an experiment, or its next repeat; returns `NAME#n`. Options as of `Experiments.start`."""

    def mark(self, name: str, kind: str, text: str, at_ns: int | None = None) -> None:
        """Mark the `begin` or `end` of the phase `text`, or store the `note` `text`."""

    def stop(
        self,
        name: str,
        *,
        at_ns: int | None = None,
        exit_status: int | None = None,
        aborted: bool = False,
        receipts: Mapping[str, Any] | None = None,
    ) -> str:
        """Stop an experiment; returns `NAME#n`. `receipts`: counts and costs by observer."""

    def write(self, name: str, batch: Batch) -> None:
        """Store a batch of points."""

    def spool(self, name: str) -> Path | None:
        """Directory of the points of a running experiment; None if it is on another host."""

    def get(self, name: str, options: Mapping[str, Any]) -> Data:
        """Data of an experiment, by the options of a request."""

    def series(self, name: str) -> list[dict[str, Any]]:
        """Rows of the table `series` of an experiment."""

    def clock(self) -> Offset | None:
        """Offset of the store's clock to the local one; None if they are the same, or unknown."""

    def listed(self, **by: str | None) -> list[dict[str, Any]]:
        """Experiments, by user, name, tag, state."""

    def remove(self, name: str) -> None:
        """Move an experiment to the trash."""

    def fetch(
        self, name: str, request: Mapping[str, Any], targets: Targets | None = None
    ) -> list[dict[str, Any]]:
        """Fetch points from other servers, by the options of a request; returns the receipts.

        `targets`: servers and named metrics, unless the store's server configures them.
        """

    def switch(self, name: str, collector: str, on: bool) -> bool:
        """Switch a collector off or on for an experiment; True if that changed its state."""


def patiently(
    call: Callable[[], Any],
    patience_s: float,
    report: Callable[[str], Any] = lambda _: None,
    impatient: Callable[[], bool] = lambda: False,
) -> None:
    """Retry a call until the server responds and has free space.

    Raises Away after `patience_s`, or as soon as `impatient()` is true. `report` is called before each retry.
    """
    deadline_s, wait_s = None, 0.1
    while True:
        try:
            call()
            return
        except Away as error:
            deadline_s = time.monotonic() + patience_s if deadline_s is None else deadline_s
            if impatient() or time.monotonic() + wait_s > deadline_s:
                raise
            report(f"{error}; trying again")
            time.sleep(wait_s)
            wait_s = min(2.0, 2 * wait_s)


def _in_thread(call: Callable[[], _T]) -> queue.SimpleQueue[_T | BaseException]:
    """Queue that gets the result or the exception of a call in a daemon thread."""
    results: queue.SimpleQueue[_T | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(call())
        except BaseException as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    return results


def opened(server: str | None = None, wait_s: float | None = None) -> Client:
    """Client of the requested server, by default of this user's store; `wait_s` as in `open_index`."""
    url = server or os.environ.get("PENSTOCK_SERVER")
    return Remote(url, os.environ.get("PENSTOCK_TOKEN")) if url else Local(wait_s)


class Local:
    """This user's own store."""

    def __init__(self, wait_s: float | None = None) -> None:
        from penstock.archive.catalogue import local_user, open_index
        from penstock.parts.monitoring.experiments.experiments import Experiments, experiments_home

        index = open_index() if wait_s is None else open_index(wait_s)
        self._store = Experiments(index, experiments_home())
        self._user = local_user()

    def start(self, name: str, **options: Any) -> str:
        started = self._store.start(name, self._user, **options)
        return f"{started.name}#{started.repeat}"

    def mark(self, name: str, kind: str, text: str, at_ns: int | None = None) -> None:
        experiment = self._store.find(name, self._user, to_change=True)
        self._store.mark(experiment, kind, text, at_ns)  # type: ignore[arg-type]

    def stop(
        self,
        name: str,
        *,
        at_ns: int | None = None,
        exit_status: int | None = None,
        aborted: bool = False,
        receipts: Mapping[str, Any] | None = None,
    ) -> str:
        experiment = self._store.find(name, self._user, to_change=True)
        ended = self._store.stop(
            experiment,
            at_ns=at_ns,
            exit_status=exit_status,
            state="aborted" if aborted else "ended",
            facts={"receipts": dict(receipts)} if receipts else None,
        )
        return f"{ended.name}#{ended.repeat}"

    def write(self, name: str, batch: Batch) -> None:
        self._store.sink(self._store.find(name, self._user, to_change=True)).write(batch)

    def spool(self, name: str) -> Path | None:
        return self._store.find(name, self._user, to_change=True).live

    def get(self, name: str, options: Mapping[str, Any]) -> Data:
        from penstock.parts.monitoring.queries.answers import answer

        result = answer(self._store, Targets(), name, self._user, options)
        return Data(result.parts, result.verdict)

    def series(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._store.recorded(
            self._store.find(name, self._user)
        ).series.to_pylist()
        return rows

    def clock(self) -> Offset | None:
        return None

    def listed(self, **by: str | None) -> list[dict[str, Any]]:
        self._store.resume()
        owner = by.pop("user", None)
        return [e.document() for e in self._store.listed(self._user, owner=owner, **by)]

    def remove(self, name: str) -> None:
        self._store.remove(self._store.find(name, self._user, to_change=True))

    def fetch(
        self, name: str, request: Mapping[str, Any], targets: Targets | None = None
    ) -> list[dict[str, Any]]:
        from penstock.parts.monitoring.queries.fetch import fetch_requested

        experiment = self._store.find(name, self._user, to_change=True)
        return fetch_requested(self._store, targets or Targets(), experiment, request)

    def switch(self, name: str, collector: str, on: bool) -> bool:
        experiment = self._store.find(name, self._user, to_change=True)
        return self._store.sink(experiment).switch(collector, on)


class Remote:
    """Store of a server. Raises Unreachable if it does not respond."""

    def __init__(self, url: str, token: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"found server {url!r}; expected http://HOST:PORT or https://HOST:PORT")
        self.url = url.rstrip("/")
        self._token = token
        # imported now, so that the import does not count towards the timeout of a response
        for module in ("httpx", "httpcore"):
            importlib.import_module(module)
        verification(self.url)

    def start(self, name: str, **options: Any) -> str:
        from penstock.parts.monitoring.experiments.provenance import for_server

        document = _with_time(options)
        document["tags"] = list(document.get("tags", ()))
        document.setdefault("repeat", True)
        newer = {"facts": for_server(document.pop("facts", {}))}
        response = self._call_with_newer(
            "POST", f"/exp/{_part(name)}", document, newer, wait_s=_START_S
        )
        if NOT_LISTENING in response.headers:
            silent = unquote(response.headers[NOT_LISTENING])
            print(f"penstock: not listening: {silent}", file=sys.stderr)
        return response.text.split(" ", 1)[1].strip()

    def mark(self, name: str, kind: str, text: str, at_ns: int | None = None) -> None:
        document = _with_time({"kind": kind, "name": text, "at_ns": at_ns})
        self._call("POST", f"/api/v1/experiments/{_part(name)}/marks", document)

    def stop(
        self,
        name: str,
        *,
        at_ns: int | None = None,
        exit_status: int | None = None,
        aborted: bool = False,
        receipts: Mapping[str, Any] | None = None,
    ) -> str:
        document = _with_time({"exit": exit_status, "aborted": aborted, "at_ns": at_ns})
        newer = {"receipts": dict(receipts)} if receipts else {}
        response = self._call_with_newer(
            "PUT", f"/exp/{_part(name)}", document, newer, wait_s=_LONG_S
        )
        if NOT_FETCHED in response.headers:
            print(
                f"penstock: not fetched: {unquote(response.headers[NOT_FETCHED])}", file=sys.stderr
            )
        return response.text.split(" ", 1)[1].strip()

    def write(self, name: str, batch: Batch) -> None:
        sink = pa.BufferOutputStream()
        accounts = [_account(a) for a in batch.accounts]
        metadata = {ACCOUNTS: json.dumps(accounts).encode()}
        if batch.events:
            metadata[EVENTS] = json.dumps([vars(event) for event in batch.events]).encode()
        table = batch.points.replace_schema_metadata(metadata)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        path = f"/api/v1/experiments/{_part(name)}/points?source={_part(batch.source)}&number={batch.number}"
        # for older servers, which read only this parameter
        older = [{k: v for k, v in a.items() if k not in _NEW} for a in accounts[:100]]
        path += f"&accounts={_part(json.dumps(older))}"
        self._call(
            "POST",
            path,
            content=sink.getvalue().to_pybytes(),
            media="application/vnd.apache.arrow.stream",
            wait_s=_LONG_S,
        )

    def spool(self, name: str) -> Path | None:
        return None

    def get(self, name: str, options: Mapping[str, Any]) -> Data:
        response = self._call("GET", f"/exp/{_part(name)}", dict(options), wait_s=_LONG_S)
        return Data(iter([response.content]), of_headers(response.headers))

    def series(self, name: str) -> list[dict[str, Any]]:
        path = f"/api/v1/experiments/{_part(name)}/series"
        rows: list[dict[str, Any]] = self._call("GET", path, wait_s=_LONG_S).json()["series"]
        return rows

    def clock(self) -> Offset | None:
        results = _in_thread(self._compared)
        try:
            offset = results.get(timeout=_CLOCK_S)
        except queue.Empty:
            return None  # the response is incomplete, or the latency too high to compare clocks
        if isinstance(offset, BaseException):
            raise offset
        return offset

    def _compared(self) -> Offset | None:
        import httpx

        server = server_at(self.url)
        tls = verification(self.url, None if server is None else server.cert)
        with httpx.Client(base_url=self.url, timeout=_ALIVE_S, verify=tls) as http:
            try:
                # the first request opens the connection
                if "X-Penstock-Time" not in http.get("/api").headers:
                    return None
                return measure(lambda: int(http.get("/api").headers["X-Penstock-Time"]))
            except (httpx.HTTPError, KeyError, ValueError) as error:
                raise Unreachable(f"{self.url}: {error or type(error).__name__}") from error

    def listed(self, **by: str | None) -> list[dict[str, Any]]:
        query = "&".join(f"{k}={_part(v)}" for k, v in by.items() if v is not None)
        response = self._call("GET", f"/api/v1/experiments?{query}", wait_s=_LONG_S)
        rows: list[dict[str, Any]] = response.json()
        return rows

    def remove(self, name: str) -> None:
        self._call("DELETE", f"/exp/{_part(name)}", wait_s=_LONG_S)

    def fetch(
        self, name: str, request: Mapping[str, Any], targets: Targets | None = None
    ) -> list[dict[str, Any]]:
        if targets is not None:
            raise BadInput(
                f"found other servers for {self.url}, which fetches from those of its --config only; "
                "expected the name of one of them"
            )
        path = f"/api/v1/experiments/{_part(name)}/fetched"
        receipts: list[dict[str, Any]] = self._call("POST", path, request, wait_s=_LONG_S).json()
        return receipts

    def switch(self, name: str, collector: str, on: bool) -> bool:
        path = f"/api/v1/experiments/{_part(name)}/collectors"
        response = self._call("POST", path, {"collector": collector, "on": on}, wait_s=_LONG_S)
        return bool(response.json()["changed"])

    def _call_with_newer(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any],
        newer: Mapping[str, Any],
        *,
        wait_s: float = _RESPONSE_S,
    ) -> httpx.Response:
        """Request with the keys `newer`; retried without them if an older server refuses them."""
        try:
            return self._call(method, path, {**document, **newer}, wait_s=wait_s)
        except BadInput as error:
            if not any(key in str(error) for key in newer):
                raise
            return self._call(method, path, document, wait_s=wait_s)

    def _call(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        content: bytes | None = None,
        media: str = "application/json",
        wait_s: float = _RESPONSE_S,
    ) -> httpx.Response:
        body = json.dumps(document).encode() if document is not None else content
        # the timeout also applies to a server that sends single bytes
        results = _in_thread(lambda: self._authorized(method, path, body, media, wait_s))
        end = time.monotonic() + wait_s
        while True:
            try:
                response = results.get(timeout=_RESPONSE_S if wait_s <= _RESPONSE_S else _PAUSE_S)
                break
            except queue.Empty:
                if wait_s <= _RESPONSE_S or time.monotonic() >= end or not self._alive():
                    raise Unreachable(f"{self.url}: it does not answer") from None
        if isinstance(response, BaseException):
            raise response
        if response.is_success:
            return response
        try:
            detail = response.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = response.text[:500]
        error = _ERRORS.get(response.status_code, PenstockError)
        raise error(f"{detail} ({response.status_code})")

    def _authorized(
        self, method: str, path: str, body: bytes | None, media: str, wait_s: float
    ) -> httpx.Response:
        """Response to a request with the token of this client, else with that of this user's own server."""
        if self._token:
            return self._request(method, path, body, media, wait_s, token=self._token)
        server = server_at(self.url)
        while True:
            response = self._request(
                method,
                path,
                body,
                media,
                wait_s,
                # the name of the server may have other addresses, too
                url=None if server is None else server.url.rstrip("/"),
                token=None if server is None else server.experiments_token,
                cert=None if server is None else server.cert,
            )
            previous, server = server, server_at(self.url)
            # a server with another token may have started; it listens before its token is on file
            if response.status_code != 401 or server is None or server == previous:
                return response

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        media: str,
        wait_s: float,
        *,
        url: str | None = None,
        token: str | None = None,
        cert: str | None = None,
    ) -> httpx.Response:
        import httpx

        headers = {"Content-Type": media}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        try:
            return httpx.request(
                method,
                f"{url or self.url}{path}",
                content=body,
                headers=headers,
                timeout=httpx.Timeout(wait_s, connect=min(wait_s, _RESPONSE_S)),
                verify=verification(url or self.url, cert),
            )
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.url}: {error or type(error).__name__}") from error

    def _alive(self) -> bool:
        """True if the server responds with any status."""
        replies: queue.SimpleQueue[bool] = queue.SimpleQueue()

        def check() -> None:
            with contextlib.suppress(Unreachable):
                self._request("GET", "/api", None, "text/plain", _ALIVE_S)
                replies.put(True)

        threading.Thread(target=check, daemon=True).start()
        try:
            return replies.get(timeout=_ALIVE_S)
        except queue.Empty:
            return False


class Patient:
    """Client whose calls do nothing once its server is down.

    The first failed call prints a message on stderr, so that a program ends as it would without recording.
    With `lenient` this applies to all errors of a store, but not to those of the caller.
    """

    def __init__(self, client: Client, lenient: bool = False) -> None:
        self._client = client
        self.lenient = lenient
        self.down = False

    @classmethod
    def leniently(cls, server: str | None = None) -> Patient:
        """Client of the store of `opened`, whatever its state. BadInput for an invalid address."""
        try:
            return cls(opened(server, LENIENT_WAIT_S), lenient=True)
        except BadInput:
            raise
        except Exception as error:
            patient = cls(Local.__new__(Local), lenient=True)
            patient._give_up(error)
            return patient

    @property
    def client(self) -> Client | None:
        """The client that it calls; None once that is down."""
        return None if self.down else self._client

    def start(self, name: str, **options: Any) -> str:
        """As `Client.start`."""
        return self._try("start", name, **options) or name

    def mark(self, name: str, kind: str, text: str, at_ns: int | None = None) -> None:
        """As `Client.mark`."""
        self._try("mark", name, kind, text, at_ns)

    def stop(self, name: str, **options: Any) -> str:
        """As `Client.stop`."""
        return self._try("stop", name, **options) or name

    def write(self, name: str, batch: Batch) -> None:
        """As `Client.write`."""
        self._try("write", name, batch)

    def spool(self, name: str) -> Path | None:
        """As `Client.spool`."""
        place: Path | None = self._try("spool", name)
        return place

    def clock(self) -> Offset | None:
        """As `Client.clock`."""
        offset: Offset | None = self._try("clock")
        return offset

    def _try(self, call: str, *arguments: Any, **options: Any) -> Any:
        if self.down:
            return None
        try:
            return getattr(self._client, call)(*arguments, **options)
        except Unreachable as error:
            self._give_up(error)
        except Exception as error:
            callers = isinstance(error, BadInput) and not isinstance(error, Conflicting)
            if callers or not self.lenient:
                raise
            self._give_up(error)
        return None

    def _give_up(self, error: Exception) -> None:
        self.down = True
        reason = str(error) if isinstance(error, PenstockError) else error_text(error)
        print(f"penstock: {reason}; nothing is recorded", file=sys.stderr)


def error_text(error: Exception) -> str:
    """Type and message of an error, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def clocks(measured: Sequence[tuple[int, Offset]], sources: Sequence[str]) -> Batch:
    """Offsets of the store's clock, each with its local time, as points of these sources."""
    rows = [
        (metric, canonical_labels({"source": source}), at, value / 1e9)
        for source in sources
        for at, offset in measured
        for metric, value in ((CLOCK, -offset.offset_ns), (CLOCK_BOUND, offset.bound_ns))
    ]
    metric, labels, utc_ns, value = map(list, zip(*rows, strict=True))
    table = points(metric=metric, labels=labels, utc_ns=utc_ns, float=value, unit="s")
    return Batch(f"clock of {socket.gethostname()}", 0, table)


def _account(account: Account) -> dict[str, Any]:
    document = {**vars(account), "labels": json.loads(account.labels)}
    if not account.free:  # older servers do not accept the key
        del document["free"]
    return {k: v for k, v in document.items() if v is not None}


def _with_time(options: Mapping[str, Any]) -> dict[str, Any]:
    document = {k: v for k, v in options.items() if v is not None and k != "at_ns"}
    if options.get("at_ns") is not None:
        document["utc_time"] = seconds_text(options["at_ns"])
    return document


def _part(text: str) -> str:
    return quote(text, safe="")
