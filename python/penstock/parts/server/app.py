"""The HTTP interface: `/` the page, `/api/…` its data; /openapi.json describes it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel

from penstock.errors import Away, BadInput, PenstockError
from penstock.parts.monitoring.collectors.server_collectors import Gathering
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.targets import Targets
from penstock.parts.server import dashboards, experiments
from penstock.parts.server.api import jobs
from penstock.parts.server.api.routes import PREFIX
from penstock.parts.server.authentication import Gate, Users
from penstock.parts.server.live.hub import Hub
from penstock.parts.server.live.parts import Parts
from penstock.parts.server.server import Server
from penstock.parts.server.traces import Served
from penstock.plugins import HTTP_ROUTES
from penstock.version import version


class Refusal(BaseModel):
    """Why a request was not done."""

    detail: str


_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": words}
    for status, words in (
        (400, "It makes no sense; every mistake is named."),
        (401, "No token, or another; it makes no difference where the request comes from."),
        (403, "It came from the page of another site."),
        (404, "No such thing."),
        (409, "The host or the node refused the change."),
        (413, "Its body is too long."),
        (421, "It was sent to another name than this server's."),
        (503, "There is no room for its body just now; ask again after Retry-After."),
    )
}


def application(
    served: Served,
    token: str,
    names: Iterable[str] = ("localhost", "127.0.0.1", "::1"),
    store: Callable[[], Experiments] = experiments.local_store,
    *,
    targets: Targets | None = None,
    own_token: str | None = None,
    open_reads: bool = False,
) -> FastAPI:
    """The application over these bundles, experiments, and over what is emulated, to who has the token.

    `own_token` opens the experiments of the user that the server runs as. Pages alone are for all; what they
    show they fetch with the token. Requests for another host than `names`, or the address that they came to,
    are refused.
    """

    kept = cache(store)
    wanted = targets or Targets()
    gathering = Gathering(wanted.collectors, kept, experiments.say, wanted.origin)
    hub = Hub(Parts(kept))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with experiments.resumed(kept, wanted, gathering):
            yield
        await hub.close()
        served.close()

    app = FastAPI(
        title="penstock",
        version=version(),
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        responses=_REFUSALS,
        # the gate looks at it: this says so to who reads /openapi.json
        dependencies=[Depends(HTTPBearer(auto_error=False, description="What `serve` prints."))],
    )
    users = Users(lambda: kept().catalogue, own_token=own_token, open_reads=open_reads)
    app.add_middleware(Gate, token=token, names=names, users=users)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # without the input: it may hold what no answer can say again, such as half a character or NaN
        said = [{k: e[k] for k in ("type", "loc", "msg")} for e in error.errors()]
        return Response(json.dumps({"detail": said}), 422, media_type="application/json")

    @app.exception_handler(BadInput)
    async def refuse(request: Request, error: BadInput) -> JSONResponse:
        said = (PREFIX, "/exp", dashboards.GRAFANA, *dashboards.AT_ROOT)
        asked = request.url.path.startswith(said)
        return JSONResponse({"detail": str(error)}, 400 if asked else 404)

    @app.exception_handler(PenstockError)
    async def fail(_: Request, error: PenstockError) -> JSONResponse:
        full = isinstance(error, experiments.NoRoom)
        return JSONResponse({"detail": str(error)}, 507 if full else jobs.status_of(error))

    # a value that passed as one of its kind, and that a library or the database cannot hold
    @app.exception_handler(OverflowError)
    @app.exception_handler(RecursionError)
    @app.exception_handler(UnicodeError)
    async def beyond(_: Request, error: Exception) -> JSONResponse:
        kind = {
            RecursionError: "JSON that is nested too deeply",
            OverflowError: "a number that is too large",
        }.get(type(error), "a text with half a character")
        return JSONResponse({"detail": f"found {kind}; expected a smaller or plainer value"}, 400)

    @app.exception_handler(Away)
    async def away(_: Request, error: Away) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

    server = Server(served, kept, users, wanted, gathering, hub)
    for name in HTTP_ROUTES:
        HTTP_ROUTES.load(name)(app, server)
    return app
