"""What requests pass before their bodies are read: the name they are for, where they are from, the token."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: what may be had without the token: pages, which hold nothing of what is served
_PAGES = re.compile(r"/|/nodes|/(?:traces|studies)/[0-9]+")
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


class Gate:
    """Stands before the application, which answers to `names` and to the address that a request came to."""

    def __init__(self, app: ASGIApp, token: str, names: Iterable[str]) -> None:
        self._app = app
        self._token = token.encode()
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
            await send(message)

        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, closed)
        else:
            await self._app(scope, bounded(scope, receive), closed)

    def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "").lower()
        name = re.sub(r":[0-9]*$", "", host).strip("[]")
        here = scope["server"][0].removeprefix("::ffff:")
        if name not in self._names and name != here:
            # another site could have its own name point here
            return _answer(421, f"host {host[:80]} is not served here")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host}":
            return _answer(403, f"pages of {origin[:80] or 'nowhere'} may ask nothing here")
        if _PAGES.fullmatch(scope["path"]) or self._has_token(headers):
            return None
        words = "expected Authorization: Bearer TOKEN, with the token that `penstock serve` printed"
        return _answer(401, words, {"WWW-Authenticate": "Bearer"})

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, told = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(told.encode(), self._token)


def allow(scope: Scope, most_bytes: int) -> None:
    """Lets a request's body be so long; to be said before it is read."""
    scope[_MOST] = most_bytes


def bounded(scope: Scope, receive: Receive) -> Receive:
    """`receive`, but 413 once a body is longer than it may be: where announced, before any of it is read."""
    announced = int(Headers(scope=scope).get("content-length", 0))
    seen = 0

    async def part() -> Message:
        nonlocal seen
        most = scope.get(_MOST, _MOST_BYTES)
        message: Message = {}
        if announced <= most:
            message = await receive()
            seen += len(message.get("body", b""))
        if max(announced, seen) > most:
            # what is still to come is not waited for
            raise HTTPException(413, f"expected {most} bytes at most", {"Connection": "close"})
        return message

    return part


def _answer(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, {"Connection": "close", **(headers or {})})
