"""Protocol and HTTP client of readers of servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import httpx
import pyarrow as pa

from penstock.errors import BadInput, NoAnswer, Upstream, printable
from penstock.host.processes.servers import verification
from penstock.parts.monitoring.experiments.targets import shown

#: maximum size of an answer [bytes], timeouts of connecting and of reading [s]
MOST_ANSWER = 256 << 20
REACH_S = 5.0
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Kept:
    """Points of a server, the query as sent, and the number of requests.

    `ranges`: first and last step of each request [UTC ns] if points are at steps; empty if they have the
    server's own timestamps.
    """

    points: pa.Table
    query: str
    requests: int
    ranges: tuple[tuple[int, int], ...] = ()


class ServerReader(Protocol):
    """Reads points of a window from a server. An instance can be used repeatedly."""

    def __init__(self, url: str, settings: Mapping[str, Any]) -> None:
        """BadInput for invalid settings."""

    def read(self, query: str, start_ns: int, end_ns: int, step_ns: int) -> Kept:
        """Points from start to end, inclusive [UTC ns]. Steps without a value have no point.

        BadInput if the server refuses the query, Upstream if its answer is invalid.
        """


class Server:
    """HTTP client of one server, for JSON answers of bounded size."""

    def __init__(self, url: str, *, user: str | None = None, password: str | None = None) -> None:
        self.url, self._client = reached(url, user=user, password=password)
        self.requests = 0

    def ask(self, path: str, **form: str) -> Any:
        """POST a form; returns the JSON of the answer."""
        self.requests += 1
        body = bytearray()
        try:
            with self._client.stream("POST", self.url + path, data=form) as answer:
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
            document = json.loads(bytes(body))
        except (ValueError, RecursionError):
            began = printable(bytes(body[:60]).decode("utf-8", "replace"))
            raise Upstream(
                f"{self.url}: found status {status} and {began!r}; expected JSON"
            ) from None
        if status in (400, 422):
            what = document.get("error", document) if isinstance(document, dict) else document
            raise BadInput(f"{self.url}: found {form.get('query', form)!r}; its error: {what}")
        if status != 200:
            raise Upstream(f"{self.url}: found status {status}; expected 200")
        return document

    def incomplete(self, why: str) -> Upstream:
        """Error of an answer that the server marks as incomplete."""
        return Upstream(f"{self.url}: found a part of the answer ({why}); expected all of it")

    def strange(self, what: str) -> Upstream:
        """Error of an answer with an unexpected structure."""
        return Upstream(f"{self.url}: found an answer without {what}")


def reached(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
) -> tuple[str, httpx.Client]:
    """Address of a server without its password, and its HTTP client. BadInput for an invalid URL."""
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
            verify=verification(url),
        )
    except (ValueError, httpx.InvalidURL) as error:
        raise BadInput(f"found server {shown(url)!r} ({error}); expected a URL") from None
    return shown(url), client


def check_window(start_ns: int, end_ns: int, step_ns: int) -> None:
    """BadInput for a window without points."""
    if step_ns <= 0 or end_ns < start_ns:
        raise BadInput(
            f"found start {start_ns}, end {end_ns}, step {step_ns}; expected start <= end and a step above 0"
        )
