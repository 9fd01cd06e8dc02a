"""The process on a host, `python -m penstock.parts.remote.worker`; one JSON line on stdin says what it is.

It ends when its standard input does (the conductor, or the connection to it, is gone) or the scheduler is.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from penstock.host.processes.dask_cluster import NO_PAGES
from penstock.parts.remote.tls import Identity, security

#: gives up when there is no scheduler for so long [s]
_DEATH_TIMEOUT_S = 20


async def serve(said: dict[str, Any]) -> None:
    """One Dask worker that makes one run at a time, until the scheduler or our input ends."""
    from distributed import Worker

    identity = Identity(said["authority"], said["certificate"], said["key"])
    with tempfile.TemporaryDirectory(prefix="penstock-worker-") as place:
        paths = identity.write(Path(place) / "tls")
        worker = Worker(
            said["scheduler"],
            name=said["name"],
            nthreads=1,
            resources={"run": 1},
            security=security(paths),
            protocol="tls",
            death_timeout=_DEATH_TIMEOUT_S,
            local_directory=place,
            memory_limit=0,
            dashboard=False,
        )
        async with worker:
            loop = asyncio.get_running_loop()
            threading.Thread(target=_until_input_ends, args=(loop, worker), daemon=True).start()
            await worker.finished()  # type: ignore[no-untyped-call]


def _until_input_ends(loop: asyncio.AbstractEventLoop, worker: Any) -> None:
    sys.stdin.read()
    loop.call_soon_threadsafe(lambda: asyncio.ensure_future(worker.close(reason="no conductor")))


def main() -> None:
    """Reads what it is, and serves."""
    import dask

    dask.config.set({"distributed.scheduler.work-stealing": False, **NO_PAGES})
    asyncio.run(serve(json.loads(sys.stdin.readline())))


if __name__ == "__main__":
    main()
