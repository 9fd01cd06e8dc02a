"""The worker process of a host, `python -m penstock.parts.remote.worker`.

It reads its settings as one line of JSON from standard input. It exits when standard input ends (the
conductor or the connection to it has ended) or when the scheduler has.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Mapping
from typing import Any

from penstock.host.processes.dask_cluster import NO_DASHBOARD, NO_PAGES
from penstock.parts.remote.tls import Identity, security
from penstock.scratch import Scratch

#: exit after this time without a scheduler [s]
_DEATH_TIMEOUT_S = 60


async def serve(settings: Mapping[str, Any]) -> None:
    """Run a Dask worker, with one run at a time, until the scheduler or standard input ends."""
    from distributed import Worker

    identity = Identity(settings["authority"], settings["certificate"], settings["key"])
    with Scratch("worker") as place:
        paths = identity.write(place / "tls")
        worker = Worker(
            settings["scheduler"],
            name=settings["name"],
            nthreads=1,
            resources={"run": 1},
            security=security(paths),
            protocol="tls",
            death_timeout=_DEATH_TIMEOUT_S,
            local_directory=str(place),
            memory_limit=0,
            **NO_DASHBOARD,
        )
        async with worker:
            loop = asyncio.get_running_loop()
            threading.Thread(target=_until_input_ends, args=(loop, worker), daemon=True).start()
            await worker.finished()  # type: ignore[no-untyped-call]


def _until_input_ends(loop: asyncio.AbstractEventLoop, worker: Any) -> None:
    sys.stdin.read()
    loop.call_soon_threadsafe(lambda: asyncio.ensure_future(worker.close(reason="no conductor")))


def main() -> None:
    """Read the settings and serve."""
    import dask

    dask.config.set({"distributed.scheduler.work-stealing": False, **NO_PAGES})
    asyncio.run(serve(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
