"""Caller of a request, and limit of its body, for routes."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

#: keys of an ASGI scope
CALLER_KEY = "penstock.who"
BODY_LIMIT_KEY = "penstock.most_bytes"


@dataclass(frozen=True)
class Caller:
    """The authenticated user of a request to experiments.

    `reader` is the user whose own and shared experiments are visible; None: all experiments are.
    """

    user: str
    may_change: bool
    reader: str | None


def caller_of(request: Request) -> Caller:
    """Caller that the server authenticated."""
    caller: Caller = request.scope[CALLER_KEY]
    return caller


def set_body_limit(scope: Scope, most_bytes: int) -> None:
    """Set the limit of a request's body. Call it before the body is read."""
    scope[BODY_LIMIT_KEY] = most_bytes
