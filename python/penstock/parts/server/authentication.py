"""What requests pass before their bodies are read: the name they are for, where they are from, who asks."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from socket import inet_aton

from fastapi import HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.archive.catalogue import Catalogue, local_user
from penstock.errors import PenstockError
from penstock.parts.monitoring.collectors.byte_budget import FullError, Room, Share

#: what may be had without the token: pages, which hold nothing of what is served
_PAGES = re.compile(r"/|/live|/nodes|/dashboards|/(?:traces|studies)/[0-9]+")
#: a request's body, unless its route says otherwise
_MOST_BYTES = 16 << 20
_MOST = "penstock.most_bytes"
#: of every answer that is not a page, which has a policy of its own
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


#: experiments, which users have tokens of their own for
_EXPERIMENTS = re.compile(
    r"/exp(?:/.*)?|/api/v1/(?:experiments|dashboards)(?:/.*)?|/grafana(?:/.*)?|/api/v1/live"
    r"|/metrics|/(?:search|query|annotations)",
    re.DOTALL,
)
#: what a token is needed for with `open_reads`, too: the server's, or a user's own
_ALWAYS = "/api/v1/live"
#: what only reads, although it is asked with a body
_READS = re.compile(r"(?:/grafana)?/(?:search|query|annotations)|/grafana/(?:variable|metrics)")
_WHO = "penstock.who"
_HOSTS = Path("/etc/hosts")
#: of which spellings of IPv4 addresses are made, hexadecimal ones too
_NUMBERS = re.compile(r"[0-9a-fx.]+")


@dataclass(frozen=True)
class Who:
    """Who asks for experiments, whether they may be changed, and by whom they are seen (None: all)."""

    user: str
    may_change: bool
    sees: str | None


def who_asks(request: Request) -> Who:
    """Who asks, as the gate let it in."""
    found: Who = request.scope[_WHO]
    return found


@dataclass(frozen=True)
class Users:
    """Who may ask for experiments: those with a token of the catalogue, or with `own_token`.

    `own_token` is for clients of the server's own user, who read it from a private file. `open_reads`:
    whoever reaches the server may read this user's experiments, and the shared ones. A request gets nothing
    for the address that it comes from: other users, and proxies for everyone, have the same.
    """

    catalogue: Callable[[], Catalogue]
    own_token: str | None = None
    open_reads: bool = False

    def who(self, told: str | None) -> Who | None:
        """None where a token is needed, or is none."""
        if told is None:
            here = local_user()
            return Who(here, False, here) if self.open_reads else None
        if self.own_token is not None and _same(told, self.own_token):
            here = local_user()
            return Who(here, True, here)
        token = self.catalogue().token(told)
        return None if token is None else Who(token.owner, token.role == "owner", token.owner)


def _same(told: str, token: str) -> bool:
    return hmac.compare_digest(told.encode("utf-8", "surrogatepass"), token.encode())


def _spells(name: str, address: str) -> bool:
    """Whether it is a spelling of this IPv4 address, as 127.1 of 127.0.0.1: no name of a site can be one."""
    try:
        # what follows a blank would be overlooked
        return bool(_NUMBERS.fullmatch(name)) and inet_aton(name) == inet_aton(address)
    except OSError:
        return False


def _named_here(name: str, here: str) -> bool:
    """Whether this host's own /etc/hosts has the name for the address: no other site can write there."""
    try:
        lines = _HOSTS.read_text(errors="replace").splitlines()[:10_000]
    except OSError:
        return False
    rows = (line.partition("#")[0].split() for line in lines)
    return any(row and row[0] == here and name in map(str.lower, row[1:]) for row in rows)


class Gate:
    """Stands before the application, which answers to `names` and to the address that a request came to."""

    def __init__(
        self, app: ASGIApp, token: str, names: Iterable[str], users: Users | None = None
    ) -> None:
        self._app = app
        self._users = users
        self._token = token
        self._room = Room()
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the application's start and end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                # by which who asks compares clocks (host/probe/clock_offset.py)
                headers["X-Penstock-Time"] = str(time.time_ns())
            await send(message)

        refusal = await self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, closed)
        else:
            with self._room.share() as share:
                await self._app(scope, bounded(scope, receive, share), closed)

    async def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "").lower()
        name = re.sub(r":[0-9]*$", "", host).strip("[]")
        here = scope["server"][0].removeprefix("::ffff:")
        known = name in self._names or name == here or _spells(name, here)
        if not known and not _named_here(name, here):
            # another site could have its own name point here
            return _answer(421, f"host {host[:80]} is not served here")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host}":
            return _answer(403, f"pages of {origin[:80] or 'nowhere'} may ask nothing here")
        if self._has_token(headers):
            scope[_WHO] = Who(local_user(), True, None)
            return None
        if _PAGES.fullmatch(scope["path"]):
            return None
        words = "expected Authorization: Bearer TOKEN, with the token that `penstock serve` printed"
        if self._users is not None and _EXPERIMENTS.fullmatch(scope["path"]):
            told = told_token(headers)
            if told is None and scope["path"] == _ALWAYS:
                told = ""  # which is no token
            try:
                who = await run_in_threadpool(self._users.who, told)
            except PenstockError as error:  # a catalogue that is away, or broken
                return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})
            if who is not None:
                scope[_WHO] = who
                reads = scope["method"] in ("GET", "HEAD") or _READS.fullmatch(scope["path"])
                if who.may_change or reads:
                    return None
            if who is not None and told is not None:
                return _answer(403, f"{who.user} may read experiments here, not change them")
            words = (
                "expected Authorization: Bearer TOKEN, with one of `penstock monitor token`; the server's "
                "own user has it in a file, for curl -H @FILE"
            )
        return _answer(401, words, {"WWW-Authenticate": "Bearer"})

    def _has_token(self, headers: Headers) -> bool:
        return _same(told_token(headers) or "", self._token)


def told_token(headers: Headers) -> str | None:
    """The token of a request: None where it has none, "" where what it has is none."""
    said = headers.get("authorization")
    if said is None:
        return None
    scheme, _, told = said.partition(" ")
    return told if scheme.lower() == "bearer" else ""


def allow(scope: Scope, most_bytes: int) -> None:
    """Lets a request's body be so long; to be said before it is read."""
    scope[_MOST] = most_bytes


def bounded(scope: Scope, receive: Receive, share: Share) -> Receive:
    """`receive`, but 413 once a body is longer than it may be, 503 where others have taken the room for it:
    where announced, before any of it is read."""
    announced = int(Headers(scope=scope).get("content-length", 0))
    seen = 0

    async def part() -> Message:
        nonlocal seen
        most = scope.get(_MOST, _MOST_BYTES)
        message: Message = {}
        try:
            if announced <= most:
                share.expect(announced)
                message = await receive()
                seen += len(message.get("body", b""))
            # of what is refused, what is still to come is not waited for
            if max(announced, seen) > most:
                raise HTTPException(413, f"expected {most} bytes at most", {"Connection": "close"})
            share.grow(len(message.get("body", b"")))
        except FullError:
            words = "no room for a body just now, as others are sent; expected it a little later"
            raise HTTPException(503, words, {"Connection": "close", "Retry-After": "1"}) from None
        return message

    return part


def _answer(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, {"Connection": "close", **(headers or {})})
