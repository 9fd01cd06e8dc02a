"""One way to experiments for who begins and ends them: this user's store, or a server elsewhere.

`$PENSTOCK_SERVER` (or `server`) names a server, `$PENSTOCK_TOKEN` holds a token of it; for a server of the
same user on this host the token is read from its private file. Whoever only begins, marks and ends must not
suffer from a server that is down: `Patient` tells it once and goes on.
"""

from __future__ import annotations

import contextlib
import functools
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
from penstock.host.processes.servers import server_at, trust_in
from penstock.parts.monitoring.experiments.points import Account, Batch

if TYPE_CHECKING:
    import ssl

    import httpx

    from penstock.parts.monitoring.experiments.targets import Targets

#: header of an experiment's end: what of servers elsewhere could not be had, percent-encoded
NOT_FETCHED = "X-Penstock-Not-Fetched"
#: header of an answer: receivers that do not listen for an experiment that begins
NOT_LISTENING = "X-Penstock-Not-Listening"
#: how long a server may take to answer, in all [s]
_ANSWER_S = 0.8
#: what must be waited for (an experiment's end, its data), while the server answers others
_LONG_S, _PAUSE_S, _ALIVE_S = 900.0, 0.3, 0.5
#: how long a command that is to run in any case waits for a locked catalogue [s]
LENIENT_WAIT_S = 5.0
#: and an experiment's begin, for which its receivers are started
_START_S = 10.0
#: what a status is here; others are PenstockError
_WRONG = {**dict.fromkeys((400, 404, 409, 422), BadInput), 503: Away}
#: all exchanges by which clocks are compared [s]
_CLOCK_S = 2.0

#: of the metadata of points as an Arrow stream: accounts, as JSON; what an older server does not know of one
ACCOUNTS = b"penstock.accounts"
_NEW = ("since_ns", "counter")
_Found = TypeVar("_Found")


class Unreachable(Away):
    """There is no server there, or it does not answer."""


class Conflicting(BadInput):
    """What a server refuses as things stand there: another experiment of that name runs."""


#: what a status is here; others are PenstockError
_WRONG = {**dict.fromkeys((400, 404, 422), BadInput), 409: Conflicting, 503: Away}


@dataclass(frozen=True)
class Data:
    """Data of an experiment, part by part, and which of its series are not complete."""

    parts: Iterator[bytes]
    verdict: Verdict


class Door(Protocol):
    """What can be done with experiments, by name. Raises as `experiments.Experiments` does."""

    def start(self, name: str, **options: Any) -> str:
        """Begins one, or its next repeat; gives `NAME#n`. Options as those of `Experiments.start`."""

    def mark(self, name: str, kind: str, words: str, at_ns: int | None = None) -> None:
        """A phase that begins or ends (`begin`, `end`), or a `note`."""

    def stop(
        self,
        name: str,
        *,
        at_ns: int | None = None,
        exit_status: int | None = None,
        aborted: bool = False,
        receipts: Mapping[str, Any] | None = None,
    ) -> str:
        """Ends it; gives `NAME#n`. `receipts`: of who observed it, what it counted and what it cost."""

    def write(self, name: str, batch: Batch) -> None:
        """Keeps a batch of points."""

    def spool(self, name: str) -> Path | None:
        """Where its points are kept as they come; None where that is not on this host."""

    def get(self, name: str, options: Mapping[str, Any]) -> Data:
        """Its data, by the options of a request."""

    def series(self, name: str) -> list[dict[str, Any]]:
        """Rows of the table `series` of what it recorded."""

    def clock(self) -> Offset | None:
        """How far the store's clock is ahead of ours; None where it is the same, or not told."""

    def listed(self, **by: str | None) -> list[dict[str, Any]]:
        """Experiments, by user, name, tag, state."""

    def remove(self, name: str) -> None:
        """Puts it into the trash."""

    def fetch(
        self, name: str, said: Mapping[str, Any], targets: Targets | None = None
    ) -> list[dict[str, Any]]:
        """Fetches points of servers elsewhere, by the options of a request; gives the receipts.

        `targets`: servers and named metrics, where not the store's server knows them.
        """

    def switch(self, name: str, collector: str, on: bool) -> bool:
        """Switches a collector off or on for it; gives whether that changed anything."""


def patiently(
    call: Callable[[], Any],
    patience_s: float,
    tell: Callable[[str], Any] = lambda _: None,
    impatient: Callable[[], bool] = lambda: False,
) -> None:
    """Calls until its server answers, and has room for what is sent. Away where that takes longer than
    `patience_s`, or where it does not and one is `impatient`."""
    until, wait_s = None, 0.1
    while True:
        try:
            call()
            return
        except Away as error:
            until = time.monotonic() + patience_s if until is None else until
            if impatient() or time.monotonic() + wait_s > until:
                raise
            tell(f"{error}; trying again")
            time.sleep(wait_s)
            wait_s = min(2.0, 2 * wait_s)


def _beside(call: Callable[[], _Found]) -> queue.SimpleQueue[_Found | BaseException]:
    """What a call gives, or raises, once it does; nobody waits for it."""
    found: queue.SimpleQueue[_Found | BaseException] = queue.SimpleQueue()

    def act() -> None:
        try:
            found.put(call())
        except BaseException as error:
            found.put(error)

    threading.Thread(target=act, daemon=True).start()
    return found


def opened(server: str | None = None, wait_s: float | None = None) -> Door:
    """The server that was asked for, else this user's own store; `wait_s` as `catalogue.open_index`."""
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
        begun = self._store.start(name, self._user, **options)
        return f"{begun.name}#{begun.repeat}"

    def mark(self, name: str, kind: str, words: str, at_ns: int | None = None) -> None:
        found = self._store.find(name, self._user, to_change=True)
        self._store.mark(found, kind, words, at_ns)  # type: ignore[arg-type]

    def stop(
        self,
        name: str,
        *,
        at_ns: int | None = None,
        exit_status: int | None = None,
        aborted: bool = False,
        receipts: Mapping[str, Any] | None = None,
    ) -> str:
        found = self._store.find(name, self._user, to_change=True)
        ended = self._store.stop(
            found,
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
        from penstock.parts.monitoring.experiments.targets import Targets
        from penstock.parts.monitoring.queries.answers import answer

        found = answer(self._store, Targets(), name, self._user, options)
        return Data(found.parts, found.verdict)

    def series(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._store.recorded(
            self._store.find(name, self._user)
        ).series.to_pylist()
        return found

    def clock(self) -> Offset | None:
        return None

    def listed(self, **by: str | None) -> list[dict[str, Any]]:
        self._store.resume()
        owner = by.pop("user", None)
        return [e.document() for e in self._store.listed(self._user, owner=owner, **by)]

    def remove(self, name: str) -> None:
        self._store.remove(self._store.find(name, self._user, to_change=True))

    def fetch(
        self, name: str, said: Mapping[str, Any], targets: Targets | None = None
    ) -> list[dict[str, Any]]:
        from penstock.parts.monitoring.experiments.targets import Targets
        from penstock.parts.monitoring.queries.fetch import fetch_asked

        found = self._store.find(name, self._user, to_change=True)
        return fetch_asked(self._store, targets or Targets(), found, said)

    def switch(self, name: str, collector: str, on: bool) -> bool:
        found = self._store.find(name, self._user, to_change=True)
        return self._store.sink(found).switch(collector, on)


class Remote:
    """A server's store. Raises Unreachable where there is none."""

    def __init__(self, url: str, token: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"found server {url!r}; expected http://HOST:PORT or https://HOST:PORT")
        self.url = url.rstrip("/")
        self._token = token
        # not a part of the time in which a server is to answer
        for module in ("httpx", "httpcore"):
            importlib.import_module(module)
        _trust(self.url, None)

    def start(self, name: str, **options: Any) -> str:
        from penstock.parts.monitoring.experiments.provenance import for_server

        said = _with_time(options)
        said["tags"] = list(said.get("tags", ()))
        said.setdefault("repeat", True)
        newer = {"facts": for_server(said.pop("facts", {}))}
        answer = self._ask_newer("POST", f"/exp/{_part(name)}", said, newer, wait_s=_START_S)
        if NOT_LISTENING in answer.headers:
            silent = unquote(answer.headers[NOT_LISTENING])
            print(f"penstock: not listening: {silent}", file=sys.stderr)
        return answer.text.split(" ", 1)[1].strip()

    def mark(self, name: str, kind: str, words: str, at_ns: int | None = None) -> None:
        said = _with_time({"kind": kind, "name": words, "at_ns": at_ns})
        self._ask("POST", f"/api/v1/experiments/{_part(name)}/marks", said)

    def stop(
        self,
        name: str,
        *,
        at_ns: int | None = None,
        exit_status: int | None = None,
        aborted: bool = False,
        receipts: Mapping[str, Any] | None = None,
    ) -> str:
        said = _with_time({"exit": exit_status, "aborted": aborted, "at_ns": at_ns})
        newer = {"receipts": dict(receipts)} if receipts else {}
        answer = self._ask_newer("PUT", f"/exp/{_part(name)}", said, newer, wait_s=_LONG_S)
        if NOT_FETCHED in answer.headers:
            print(f"penstock: not fetched: {unquote(answer.headers[NOT_FETCHED])}", file=sys.stderr)
        return answer.text.split(" ", 1)[1].strip()

    def write(self, name: str, batch: Batch) -> None:
        sink = pa.BufferOutputStream()
        told = [_account(a) for a in batch.accounts]
        table = batch.points.replace_schema_metadata({ACCOUNTS: json.dumps(told).encode()})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        where = f"/api/v1/experiments/{_part(name)}/points?source={_part(batch.source)}&number={batch.number}"
        # for an older server, which looks only here
        older = [{k: v for k, v in a.items() if k not in _NEW} for a in told[:100]]
        where += f"&accounts={_part(json.dumps(older))}"
        self._ask(
            "POST",
            where,
            content=sink.getvalue().to_pybytes(),
            media="application/vnd.apache.arrow.stream",
            wait_s=_LONG_S,
        )

    def spool(self, name: str) -> Path | None:
        return None

    def get(self, name: str, options: Mapping[str, Any]) -> Data:
        answer = self._ask("GET", f"/exp/{_part(name)}", dict(options), wait_s=_LONG_S)
        return Data(iter([answer.content]), of_headers(answer.headers))

    def series(self, name: str) -> list[dict[str, Any]]:
        where = f"/api/v1/experiments/{_part(name)}/series"
        found: list[dict[str, Any]] = self._ask("GET", where, wait_s=_LONG_S).json()["series"]
        return found

    def clock(self) -> Offset | None:
        found = _beside(self._compared)
        try:
            answer = found.get(timeout=_CLOCK_S)
        except queue.Empty:
            return None  # it sends a byte now and then, or is too far away to compare clocks with
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _compared(self) -> Offset | None:
        import httpx

        with httpx.Client(base_url=self.url, timeout=_ALIVE_S) as http:
            try:
                # the first makes the connection
                if "X-Penstock-Time" not in http.get("/api").headers:
                    return None
                return measure(lambda: int(http.get("/api").headers["X-Penstock-Time"]))
            except (httpx.HTTPError, KeyError, ValueError) as error:
                raise Unreachable(f"{self.url}: {error or type(error).__name__}") from error

    def listed(self, **by: str | None) -> list[dict[str, Any]]:
        words = "&".join(f"{k}={_part(v)}" for k, v in by.items() if v is not None)
        answer = self._ask("GET", f"/api/v1/experiments?{words}", wait_s=_LONG_S)
        found: list[dict[str, Any]] = answer.json()
        return found

    def remove(self, name: str) -> None:
        self._ask("DELETE", f"/exp/{_part(name)}", wait_s=_LONG_S)

    def fetch(
        self, name: str, said: Mapping[str, Any], targets: Targets | None = None
    ) -> list[dict[str, Any]]:
        if targets is not None:
            raise BadInput(
                f"found servers of our own for {self.url}, which asks those of its --config alone; expected "
                "the name of one of them"
            )
        where = f"/api/v1/experiments/{_part(name)}/fetched"
        found: list[dict[str, Any]] = self._ask("POST", where, said, wait_s=_LONG_S).json()
        return found

    def switch(self, name: str, collector: str, on: bool) -> bool:
        where = f"/api/v1/experiments/{_part(name)}/collectors"
        answer = self._ask("POST", where, {"collector": collector, "on": on}, wait_s=_LONG_S)
        return bool(answer.json()["changed"])

    def _ask_newer(
        self,
        method: str,
        path: str,
        said: Mapping[str, Any],
        newer: Mapping[str, Any],
        *,
        wait_s: float = _ANSWER_S,
    ) -> httpx.Response:
        """`newer`: keys that an older server refuses, and goes without."""
        try:
            return self._ask(method, path, {**said, **newer}, wait_s=wait_s)
        except BadInput as error:
            if not any(key in str(error) for key in newer):
                raise
            return self._ask(method, path, said, wait_s=wait_s)

    def _ask(
        self,
        method: str,
        path: str,
        said: Mapping[str, Any] | None = None,
        *,
        content: bytes | None = None,
        media: str = "application/json",
        wait_s: float = _ANSWER_S,
    ) -> httpx.Response:
        body = json.dumps(said).encode() if said is not None else content
        # a server that sends a byte now and then must not hold us, either: time is up whatever came
        answers = _beside(lambda: self._authorized(method, path, body, media, wait_s))
        end = time.monotonic() + wait_s
        while True:
            try:
                answer = answers.get(timeout=_ANSWER_S if wait_s <= _ANSWER_S else _PAUSE_S)
                break
            except queue.Empty:
                if wait_s <= _ANSWER_S or time.monotonic() >= end or not self._alive():
                    raise Unreachable(f"{self.url}: it does not answer") from None
        if isinstance(answer, BaseException):
            raise answer
        if answer.is_success:
            return answer
        try:
            detail = answer.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = answer.text[:500]
        wrong = _WRONG.get(answer.status_code, PenstockError)
        raise wrong(f"{detail} ({answer.status_code})")

    def _authorized(
        self, method: str, path: str, body: bytes | None, media: str, wait_s: float
    ) -> httpx.Response:
        """The answer to a request with the token that was given, else with that of this user's own server."""
        if self._token:
            return self._request(method, path, body, media, wait_s, token=self._token)
        server = server_at(self.url)
        while True:
            answer = self._request(
                method,
                path,
                body,
                media,
                wait_s,
                # not to another of the addresses that the name may have
                url=None if server is None else server.url.rstrip("/"),
                token=None if server is None else server.experiments_token,
                cert=None if server is None else server.cert,
            )
            before, server = server, server_at(self.url)
            # a server with another token may have started meanwhile; it listens before its token is on file
            if answer.status_code != 401 or server is None or server == before:
                return answer

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
                timeout=httpx.Timeout(wait_s, connect=min(wait_s, _ANSWER_S)),
                verify=_trust(url or self.url, cert),
            )
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.url}: {error or type(error).__name__}") from error

    def _alive(self) -> bool:
        """Whether it answers anything at all; 401 or 404 will do."""
        found: queue.SimpleQueue[bool] = queue.SimpleQueue()

        def ask() -> None:
            with contextlib.suppress(Unreachable):
                self._request("GET", "/api", None, "text/plain", _ALIVE_S)
                found.put(True)

        threading.Thread(target=ask, daemon=True).start()
        try:
            return found.get(timeout=_ALIVE_S)
        except queue.Empty:
            return False


class Patient:
    """A door whose calls, but for `get`, `listed` and `remove`, do nothing once its server is down.

    The first of them says so on stderr. So a program ends as it would have without being watched. With
    `lenient` that is so for all that is wrong with a store, too, but for what the caller got wrong.
    """

    def __init__(self, door: Door, lenient: bool = False) -> None:
        self._door = door
        self.lenient = lenient
        self.down = False

    @classmethod
    def leniently(cls, server: str | None = None) -> Patient:
        """The store that `opened` would give, usable whatever its state is. BadInput for a wrong address."""
        try:
            return cls(opened(server, LENIENT_WAIT_S), lenient=True)
        except BadInput:
            raise
        except Exception as error:
            patient = cls(Local.__new__(Local), lenient=True)
            patient._give_up(error)
            return patient

    @property
    def door(self) -> Door | None:
        """What it calls; None once that is down."""
        return None if self.down else self._door

    def start(self, name: str, **options: Any) -> str:
        """As `Door.start`."""
        return self._done("start", name, **options) or name

    def mark(self, name: str, kind: str, words: str, at_ns: int | None = None) -> None:
        """As `Door.mark`."""
        self._done("mark", name, kind, words, at_ns)

    def stop(self, name: str, **options: Any) -> str:
        """As `Door.stop`."""
        return self._done("stop", name, **options) or name

    def write(self, name: str, batch: Batch) -> None:
        """As `Door.write`."""
        self._done("write", name, batch)

    def spool(self, name: str) -> Path | None:
        """As `Door.spool`."""
        found: Path | None = self._done("spool", name)
        return found

    def clock(self) -> Offset | None:
        """As `Door.clock`."""
        found: Offset | None = self._done("clock")
        return found

    def _done(self, call: str, *words: Any, **options: Any) -> Any:
        if self.down:
            return None
        try:
            return getattr(self._door, call)(*words, **options)
        except Unreachable as error:
            self._give_up(error)
        except Exception as error:
            wrong = isinstance(error, BadInput) and not isinstance(error, Conflicting)
            if wrong or not self.lenient:
                raise
            self._give_up(error)
        return None

    def _give_up(self, error: Exception) -> None:
        self.down = True
        reason = str(error) if isinstance(error, PenstockError) else described(error)
        print(f"penstock: {reason}; nothing is recorded", file=sys.stderr)


def _trust(url: str, cert: str | None) -> ssl.SSLContext | bool:
    """The `verify` argument of httpx for a server: trusted certificates, or False for plain HTTP.

    Reading the certificates of this host takes 0.1 s: once for HTTPS, never for HTTP.
    """
    if url.startswith("http://"):
        return False
    return _host_certificates() if cert is None else trust_in(cert)


@functools.cache
def _host_certificates() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


def described(error: Exception) -> str:
    """An error on one line, with its kind where it has no message of ours."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def clocks(measured: Sequence[tuple[int, Offset]], sources: Sequence[str]) -> Batch:
    """Offsets of the store's clock to ours, each with our time of it, as points of these sources."""
    from penstock.parts.monitoring.experiments.points import canonical_labels, points

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
    said = {**vars(account), "labels": json.loads(account.labels)}
    if not account.free:  # nobody else tells it
        del said["free"]
    return {k: v for k, v in said.items() if v is not None}


def _with_time(options: Mapping[str, Any]) -> dict[str, Any]:
    from penstock.parts.monitoring.experiments.timestamps import seconds_text

    said = {k: v for k, v in options.items() if v is not None and k != "at_ns"}
    if options.get("at_ns") is not None:
        said["utc_time"] = seconds_text(options["at_ns"])
    return said


def _part(text: str) -> str:
    return quote(text, safe="")
