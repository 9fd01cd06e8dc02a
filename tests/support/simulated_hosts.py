"""Hosts of a cluster that start nothing: each call of the agent takes a given time.

`python -m tests.support.simulated_hosts SOCKET FILE` serves a Unix socket. Each connection is a host: its
first line has the settings of a worker, and the host is lost when the connection ends. FILE has the times of
a host, as JSON of `Times`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import dask
from distributed import Worker

from penstock.host.processes.dask_cluster import NO_DASHBOARD, NO_PAGES
from penstock.parts.remote.cluster import agent
from penstock.parts.remote.tls import Identity, security
from penstock.scratch import Scratch
from penstock.version import version
from tests.support.waiting import until

#: in place of ssh: connects its standard input to the socket
_RELAY = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
while data := os.read(0, 1 << 16):
    connection.sendall(data)
"""
#: largest line of settings [bytes]
_MOST_SETTINGS = 1 << 20


@dataclass(frozen=True)
class Times:
    """Times of one host [s]: of the calls; `worker`: from its start until it is connected."""

    worker: float
    prepare: float
    start: float
    confirm: float
    stop: float


@contextlib.contextmanager
def simulated_hosts(place: Path, times: Times) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Serve hosts with these times; yields the program to use as Python on them, and the process."""
    socket, file, program = place / "hosts.sock", place / "times.json", place / "python"
    file.write_text(json.dumps(asdict(times)))
    program.write_text(f"#!{sys.executable} -SE\nimport sys\nsys.argv[1:] = ['{socket}']\n{_RELAY}")
    program.chmod(0o700)
    argv = [sys.executable, "-m", "tests.support.simulated_hosts", str(socket), str(file)]
    with (
        (place / "hosts.log").open("wb") as log,
        subprocess.Popen(argv, cwd=Path(__file__).parents[2], stderr=log) as process,
    ):
        try:
            until(lambda: process.poll() is not None or socket.exists())
            yield program, process
        finally:
            process.terminate()


def _simulate(times: Times) -> None:
    """Replace the calls of the agent."""

    def prepare() -> str:
        time.sleep(times.prepare)
        return version()

    def start(spec: str, key: str) -> None:
        time.sleep(times.start)

    def confirm(name: str) -> None:
        time.sleep(times.confirm)

    def stop(name: str, key: str) -> None:
        time.sleep(times.stop)

    for function in (prepare, start, confirm, stop):
        setattr(agent, function.__name__, function)


async def _host(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, worker_s: float, place: Path
) -> None:
    """Run the worker of one host until its connection ends."""
    settings = json.loads(await reader.readline())
    await asyncio.sleep(worker_s)
    identity = Identity(settings["authority"], settings["certificate"], settings["key"])
    worker = Worker(
        settings["scheduler"],
        name=settings["name"],
        nthreads=1,
        security=security(identity.write(place / settings["name"])),
        protocol="tls",
        local_directory=str(place / settings["name"]),
        memory_limit=0,
        **NO_DASHBOARD,
    )
    async with worker:
        await reader.read()
    writer.close()


async def _serve(socket: str, times: Times) -> None:
    with Scratch("hosts") as place:

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _host(reader, writer, times.worker, place)

        server = await asyncio.start_unix_server(connected, f"{socket}.new", limit=_MOST_SETTINGS)
        os.rename(f"{socket}.new", socket)
        async with server:
            await server.serve_forever()


def main() -> None:
    socket, file = sys.argv[1:]
    times = Times(**json.loads(Path(file).read_text()))
    _simulate(times)
    with dask.config.set({"distributed.scheduler.work-stealing": False, **NO_PAGES}):
        asyncio.run(_serve(socket, times))


if __name__ == "__main__":
    main()
