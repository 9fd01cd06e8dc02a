"""Connections to local and remote Dask clusters.

Remote connections use TLS if Dask's own configuration has certificates (`distributed.comm.tls`); `local`
starts workers on this machine with temporary certificates.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from penstock.errors import BadInput

#: Dask's protocols that encrypt
_ENCRYPTED = frozenset({"tls", "wss"})

#: routes of the HTTP servers of Dask's schedulers and workers: none, as they do not authenticate
NO_PAGES: dict[str, list[str]] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}

#: address of those servers, which Dask starts in any case: by default port 8787 of the scheduler's address
NO_DASHBOARD: Any = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}


@contextlib.contextmanager
def connected(address: str, *, insecure: bool = False) -> Iterator[Any]:
    """A Dask client of the scheduler at `address`, or of workers on this machine (`local`).

    BadInput if there is no scheduler, or for a connection without TLS unless `insecure`.
    """
    distributed: Any = importlib.import_module("distributed")
    if address == "local":
        security = distributed.Security.temporary()
        with (
            importlib.import_module("dask").config.set(NO_PAGES),
            distributed.LocalCluster(
                processes=True,
                threads_per_worker=1,
                security=security,
                dashboard_address=None,
                scheduler_kwargs=NO_DASHBOARD,
            ) as cluster,
            distributed.Client(cluster, security=security) as client,
        ):
            yield client
        return
    protocol, named, _ = address.partition("://")
    if not insecure and (not named or protocol not in _ENCRYPTED):
        raise BadInput(
            f"--cluster {address}: found {protocol if named else 'tcp'}, which others in the "
            "network can read and alter; expected tls://HOST:PORT, or the option --insecure"
        )
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        expected = "the address of a Dask scheduler, such as tls://head:8786, or local"
        raise BadInput(f"--cluster {address}: found {reason}; expected {expected}") from None
    with client:
        yield client
