"""Middleware that checks host, origin, token and body length of requests before their bodies are read."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from socket import inet_aton

from fastapi import HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.archive.catalogue import Catalogue, local_user
from penstock.errors import PenstockError
from penstock.routes.byte_budget import FullError, Room, Share
from penstock.routes.caller import BODY_LIMIT_KEY, CALLER_KEY, Caller
from penstock.routes.connections import discard
from penstock.routes.server import Server

#: paths that need no token: pages, which contain no data
_PAGES = re.compile(r"/|/live|/nodes|/dashboards|/(?:traces|studies)/[0-9]+")
#: default limit of a request's body; a route can set its own
_BODY_LIMIT_BYTES = 16 << 20
#: headers of all responses; pages have a content security policy of their own
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


#: path that needs a token even with `open_reads`
_TOKEN_PATH = "/api/v1/live"
_HOSTS_FILE = Path("/etc/hosts")
#: characters of all notations of IPv4 addresses, hexadecimal ones included
_NUMERIC = re.compile(r"[0-9a-fx.]+")


@dataclass(frozen=True)
class Users:
    """Authentication of users of experiments: by a token of the catalogue, or by `own_token`.

    `own_token` is for clients of the server's own user, who read it from a private file. With `open_reads`,
    every client may read this user's experiments and the shared ones without a token. The client's address
    grants no rights: other users and proxies have the same address.
    """

    catalogue: Callable[[], Catalogue]
    own_token: str | None = None
    open_reads: bool = False

    def authenticate(self, token: str | None) -> Caller | None:
        """The user of a token; None if the token is invalid, or missing where one is needed."""
        if token is None:
            user = local_user()
            return Caller(user, False, user) if self.open_reads else None
        if self.own_token is not None and _equal(token, self.own_token):
            user = local_user()
            return Caller(user, True, user)
        row = self.catalogue().token(token)
        return None if row is None else Caller(row.owner, row.role == "owner", row.owner)


def _equal(token: str, expected: str) -> bool:
    """Compare tokens in constant time."""
    return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), expected.encode())


def _is_same_ipv4(name: str, address: str) -> bool:
    """True if `name` is a notation of this IPv4 address, such as 127.1 of 127.0.0.1.

    No DNS name can be one.
    """
    try:
        # inet_aton ignores everything after a blank
        return bool(_NUMERIC.fullmatch(name)) and inet_aton(name) == inet_aton(address)
    except OSError:
        return False


def _is_in_hosts_file(name: str, address: str) -> bool:
    """True if /etc/hosts maps the name to the address. Other sites cannot write to that file."""
    try:
        lines = _HOSTS_FILE.read_text(errors="replace").splitlines()[:10_000]
    except OSError:
        return False
    rows = (line.partition("#")[0].split() for line in lines)
    return any(row and row[0] == address and name in map(str.lower, row[1:]) for row in rows)


class AuthenticationMiddleware:
    """ASGI middleware. Accepts the Host headers `names` and the address that a request arrived at."""

    def __init__(
        self, app: ASGIApp, token: str, names: Iterable[str], users: Users, server: Server
    ) -> None:
        self._app = app
        self._users = users
        #: paths that accept tokens of users; those whose POST requests only read
        self._user_paths = _any_of([*server.user_paths, re.escape(_TOKEN_PATH)])
        self._read_only_posts = _any_of(server.read_only_posts)
        self._token = token
        self._budget = Room()
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Start-up and shutdown of the application pass unchanged."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                # clients compare their clock with it (host/probe/clock_offset.py)
                headers["X-Penstock-Time"] = str(time.time_ns())
            await send(message)

        headers = Headers(scope=scope)
        refusal = await self._refusal(scope, headers)
        if refusal is not None:
            if "expect" not in headers:
                await discard(_parts(receive))
            await refusal(scope, receive, send_with_headers)
        else:
            with self._budget.share() as share:
                await self._app(scope, limit_body(scope, receive, share), send_with_headers)

    async def _refusal(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        """The error response of a request that is not allowed; else None, with the caller in `scope`."""
        host = headers.get("host", "").lower()
        name = re.sub(r":[0-9]*$", "", host).strip("[]")
        address = scope["server"][0].removeprefix("::ffff:")
        valid_host = name in self._names or name == address or _is_same_ipv4(name, address)
        if not valid_host and not _is_in_hosts_file(name, address):
            # DNS rebinding: another site's name may resolve to this address
            return _error_response(421, f"host {host[:80]} is not served here")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host}":
            return _error_response(
                403, f"requests from pages of {origin[:80] or 'nowhere'} are not allowed"
            )
        if self._has_server_token(headers):
            scope[CALLER_KEY] = Caller(local_user(), True, None)
            return None
        if _PAGES.fullmatch(scope["path"]):
            return None
        detail = (
            "expected Authorization: Bearer TOKEN, with the token that `penstock serve` printed"
        )
        if self._user_paths.fullmatch(scope["path"]):
            token = token_of(headers)
            if token is None and scope["path"] == _TOKEN_PATH:
                token = ""  # never valid
            try:
                caller = await run_in_threadpool(self._users.authenticate, token)
            except PenstockError as error:  # the catalogue is unavailable or damaged
                return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})
            if caller is not None:
                scope[CALLER_KEY] = caller
                reads = scope["method"] in ("GET", "HEAD") or self._read_only_posts.fullmatch(
                    scope["path"]
                )
                if caller.may_change or reads:
                    return None
            if caller is not None and token is not None:
                return _error_response(
                    403, f"{caller.user} may read experiments here, not change them"
                )
            detail = (
                "expected Authorization: Bearer TOKEN, with one of `penstock monitor token`; the server's "
                "own user has it in a file, for curl -H @FILE"
            )
        return _error_response(401, detail, {"WWW-Authenticate": "Bearer"})

    def _has_server_token(self, headers: Headers) -> bool:
        return _equal(token_of(headers) or "", self._token)


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Match any of the patterns; nothing if there is none."""
    return re.compile("|".join(f"(?:{p})" for p in patterns) or "(?!)", re.DOTALL)


def token_of(headers: Headers) -> str | None:
    """The bearer token of a request; None without an Authorization header, "" for another scheme."""
    value = headers.get("authorization")
    if value is None:
        return None
    scheme, _, token = value.partition(" ")
    return token if scheme.lower() == "bearer" else ""


def limit_body(scope: Scope, receive: Receive, share: Share) -> Receive:
    """A `receive` that limits the length of the body.

    Raises HTTPException 413 for a body above its limit, and 503 if other requests use up the byte budget;
    with a Content-Length header, it raises before reading.
    """
    announced = int(Headers(scope=scope).get("content-length", 0))
    received_bytes = 0

    async def receive_part() -> Message:
        nonlocal received_bytes
        most = scope.get(BODY_LIMIT_KEY, _BODY_LIMIT_BYTES)
        message: Message = {}
        try:
            if announced <= most:
                share.expect(announced)
                message = await receive()
                received_bytes += len(message.get("body", b""))
            if max(announced, received_bytes) > most:
                if message.get("more_body", True) and "expect" not in Headers(scope=scope):
                    await discard(_parts(receive))
                raise HTTPException(413, f"expected {most} bytes at most", {"Connection": "close"})
            share.grow(len(message.get("body", b"")))
        except FullError:
            detail = "no memory for another request body; expected a retry a little later"
            raise HTTPException(503, detail, {"Connection": "close", "Retry-After": "1"}) from None
        return message

    return receive_part


async def _parts(receive: Receive) -> AsyncIterator[int]:
    """Sizes of the parts of a body [bytes]."""
    more = True
    while more:
        message = await receive()
        yield len(message.get("body", b""))
        more = message.get("more_body", False)


def _error_response(
    status: int, detail: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, {"Connection": "close", **(headers or {})})
