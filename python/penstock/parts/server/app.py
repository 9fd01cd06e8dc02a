"""The FastAPI application: pages at `/`, data under `/api/…`, described by /openapi.json."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel

from penstock.archive.catalogue import Catalogue, open_index
from penstock.errors import Away, BadInput, PenstockError
from penstock.parts.server.api import jobs
from penstock.parts.server.api.routes import PREFIX
from penstock.parts.server.authentication import AuthenticationMiddleware, Users
from penstock.parts.server.server import Server
from penstock.parts.server.traces import Served
from penstock.plugins import HTTP_ROUTES
from penstock.version import version


class Refusal(BaseModel):
    """Error message of a request that failed."""

    detail: str


_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": description}
    for status, description in (
        (400, "Invalid request; the message lists every mistake."),
        (401, "The token is missing or invalid. The client's address makes no difference."),
        (403, "The request comes from a page of another site."),
        (404, "The resource does not exist."),
        (409, "The host or the node rejected the change."),
        (413, "The request body is too long."),
        (421, "The Host header names another server."),
        (503, "No memory for the request body; retry after the time in Retry-After."),
    )
}


def application(
    served: Served,
    token: str,
    names: Iterable[str] = ("localhost", "127.0.0.1", "::1"),
    store: Callable[[], Any] | None = None,
    *,
    config: Path | None = None,
    targets: Any = None,
    own_token: str | None = None,
    open_reads: bool = False,
) -> FastAPI:
    """The application that serves bundles, experiments and the emulated resources of this host.

    `token` authorises every request, `own_token` those to experiments of the user that the server runs as.
    Pages need no token; they fetch their data with one. The Host header must be one of `names` or the address
    that the request arrived at, else the status is 421. `store` opens other experiments than those of this
    user, `targets` are other servers than those of the file `config`. Raises PenstockError if this user's
    catalogue is unusable.
    """
    open_store: Callable[[], Any] | None
    catalogue: Callable[[], Catalogue]
    if store is None:
        index = open_index()
        open_store, catalogue = None, lambda: index
    else:
        opened = cache(store)
        open_store, catalogue = opened, lambda: opened().catalogue
    users = Users(catalogue, own_token=own_token, open_reads=open_reads)
    server = Server(
        catalogue=catalogue,
        config=config,
        store=open_store,
        targets=targets,
        served=served,
        users=users,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for context in server.background:
                await stack.enter_async_context(context())
            yield
        await server.hub.close()
        served.close()

    app = FastAPI(
        title="penstock",
        version=version(),
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        responses=_REFUSALS,
        # for /openapi.json only: the middleware checks the token
        dependencies=[Depends(HTTPBearer(auto_error=False, description="Printed by `serve`."))],
    )
    app.add_middleware(
        AuthenticationMiddleware, token=token, names=names, users=users, server=server
    )

    _add_error_handlers(app, server)
    for name in HTTP_ROUTES:
        HTTP_ROUTES.load(name)(app, server)
    return app


def _add_error_handlers(app: FastAPI, server: Server) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # without the input, which JSON may not be able to encode: a lone surrogate, NaN
        errors = [{k: e[k] for k in ("type", "loc", "msg")} for e in error.errors()]
        return Response(json.dumps({"detail": errors}), 422, media_type="application/json")

    @app.exception_handler(BadInput)
    async def refuse(request: Request, error: BadInput) -> JSONResponse:
        is_data = request.url.path.startswith((PREFIX, *server.data_prefixes))
        return JSONResponse({"detail": str(error)}, 400 if is_data else 404)

    @app.exception_handler(PenstockError)
    async def fail(_: Request, error: PenstockError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, jobs.status_of(error))

    # valid values that a library or the database cannot represent
    @app.exception_handler(OverflowError)
    @app.exception_handler(RecursionError)
    @app.exception_handler(UnicodeError)
    async def unrepresentable(_: Request, error: Exception) -> JSONResponse:
        kind = {
            RecursionError: "JSON that is nested too deeply",
            OverflowError: "a number that is too large",
        }.get(type(error), "a text with an unpaired surrogate")
        return JSONResponse({"detail": f"found {kind}; expected a smaller or simpler value"}, 400)

    @app.exception_handler(Away)
    async def away(_: Request, error: Away) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})
