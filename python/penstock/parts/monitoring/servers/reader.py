"""The protocol of readers of servers, and what they have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import httpx
import pyarrow as pa

from penstock.errors import BadInput, NoAnswer, Upstream, printable
from penstock.parts.monitoring.experiments.targets import shown

#: of one answer [bytes], how long it may take to reach the server and to hear of it [s]
MOST_ANSWER = 256 << 20
REACH_S = 5.0
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Kept:
    """What a server had: points, and what it was asked: the query as sent, the number of requests.

    `ranges`: the first and the last step of each request [UTC ns], where points lie on steps; none where they
    have the server's own times.
    """

    points: pa.Table
    query: str
    requests: int
    ranges: tuple[tuple[int, int], ...] = ()


class ServerReader(Protocol):
    """Asks a server for the points of a window. Made once, asked as often as one likes."""

    def __init__(self, url: str, settings: Mapping[str, Any]) -> None:
        """BadInput for settings that are wrong."""

    def read(self, query: str, start_ns: int, end_ns: int, step_ns: int) -> Kept:
        """Points from start to end, both counted [UTC ns]. A step without a value is no point.

        BadInput where the server refuses the query, Upstream where it does not answer as it should.
        """


class Server:
    """HTTP to one server; what it answers is bounded, and has to be JSON."""

    def __init__(self, url: str, *, user: str | None = None, password: str | None = None) -> None:
        self.url, self._client = reached(url, user=user, password=password)
        self.requests = 0

    def ask(self, path: str, **words: str) -> Any:
        """The JSON of an answer to a form that is posted."""
        self.requests += 1
        body = bytearray()
        try:
            with self._client.stream("POST", self.url + path, data=words) as answer:
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MOST_ANSWER:
                        raise Upstream(f"{self.url}: found more than {MOST_ANSWER} bytes")
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            what = printable(str(error) or type(error).__name__)
            raise NoAnswer(f"{self.url} does not answer: {what}") from None
        except UnicodeError:
            raise BadInput(f"{self.url}: found a query that is no text; expected one") from None
        try:
            found = json.loads(bytes(body))
        except (ValueError, RecursionError):
            began = printable(bytes(body[:60]).decode("utf-8", "replace"))
            raise Upstream(
                f"{self.url}: found status {status} and {began!r}; expected JSON"
            ) from None
        if status in (400, 422):
            what = found.get("error", found) if isinstance(found, dict) else found
            raise BadInput(f"{self.url}: found {words.get('query', words)!r}; it says {what}")
        if status != 200:
            raise Upstream(f"{self.url}: found status {status}; expected 200")
        return found

    def strange(self, what: str) -> Upstream:
        """The error of an answer that has not the form that it should."""
        return Upstream(f"{self.url}: found an answer without {what}")


def reached(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
) -> tuple[str, httpx.Client]:
    """A server's address as it is told, without a password, and what asks it. BadInput for no address."""
    if not url.startswith(("http://", "https://")):
        raise BadInput(f"found server {shown(url)!r}; expected http://HOST:PORT")
    try:
        parts = urlsplit(url)
        user = user or unquote(parts.username or "")
        password = password or unquote(parts.password or "")
        client = httpx.Client(
            base_url=shown(url),
            timeout=httpx.Timeout(PATIENCE_S, connect=REACH_S),
            auth=(user, password) if user else None,
            headers={"Authorization": f"Bearer {token}"} if token else None,
            follow_redirects=False,
        )
    except (ValueError, httpx.InvalidURL) as error:
        raise BadInput(f"found server {shown(url)!r} ({error}); expected a URL") from None
    return shown(url), client


def check_window(start_ns: int, end_ns: int, step_ns: int) -> None:
    """BadInput for a window that has no points."""
    if step_ns <= 0 or end_ns < start_ns:
        raise BadInput(
            f"found start {start_ns}, end {end_ns}, step {step_ns}; expected start <= end and a step above 0"
        )
