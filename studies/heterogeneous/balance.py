"""Clients of two replicas: blind clients use them in turn, aware clients the faster one.

    balance.py MODE SECONDS FILE PATH SERVER SERVER…
    MODE: blind or aware; SERVER: NAME=ADDRESS:PORT

Clients request blocks of 64 KiB at random offsets of PATH, each again after a short pause. An aware client
chooses the server with the smallest product of latency and outstanding requests. The latency is a moving
average that rises at once and fades while a server gets no requests, so that a recovered server is used again
(peak EWMA).

FILE gets one line per request: start (CLOCK_MONOTONIC, ns), server, latency (ns). stdout: `requests: …`,
`mean latency: …` in ms, and the share of each server.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import math
import random
import sys
import threading
import time
from pathlib import Path

BLOCK_BYTES = 64 * 1024
CLIENTS = 4
#: pause of a client between two requests [s]
PAUSE_S = 0.004
#: time in which the latency of an unused server fades to 1/e [s]
FADES_S = 0.5
START_S = 30.0


class Server:
    """A replica as seen by the clients."""

    def __init__(self, text: str) -> None:
        self.name, _, at = text.partition("=")
        address, _, port = at.rpartition(":")
        self.address, self.port = address, int(port)
        self.under_way = 0
        self._latency_s, self._seen_s = 0.0, time.monotonic()

    def cost(self, now_s: float) -> float:
        """Expected cost of one more request."""
        latency = self._latency_s * math.exp(-(now_s - self._seen_s) / FADES_S)
        return latency * (self.under_way + 1)

    def saw(self, latency_s: float, now_s: float) -> None:
        """Record a completed request."""
        faded = math.exp(-(now_s - self._seen_s) / FADES_S)
        mixed = self._latency_s * faded + latency_s * (1 - faded)
        self._latency_s, self._seen_s = max(latency_s, mixed), now_s


class Clients:
    """All clients, their shared state, and their records."""

    def __init__(self, mode: str, servers: list[Server], path: str, seed: int) -> None:
        self._aware, self._servers, self._path = mode == "aware", servers, path
        self._turn = itertools.cycle(servers)
        self._lock = threading.Lock()
        self._rng = random.Random(seed)
        self._blocks = self._size() // BLOCK_BYTES
        self.requests: list[tuple[int, str, int]] = []
        self.failed: list[BaseException] = []

    def _size(self) -> int:
        """Wait until every server is up; return the size of the file."""
        sizes = []
        for server in self._servers:
            until = time.monotonic() + START_S
            while True:
                try:
                    connection = http.client.HTTPConnection(server.address, server.port, timeout=10)
                    connection.request("HEAD", f"/{self._path}")
                    sizes.append(int(connection.getresponse().headers["Content-Length"]))
                    connection.close()
                    break
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)
        return min(sizes)

    def run(self, seconds: float) -> None:
        """Send requests for a time. Raises the error of a client."""
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._client, args=(until,)) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]

    def _choose(self) -> tuple[Server, int]:
        with self._lock:
            now = time.monotonic()
            server = next(self._turn)
            if self._aware:
                # if both costs are equal, the next server in turn
                candidates = [server, *(s for s in self._servers if s is not server)]
                server = min(candidates, key=lambda s: s.cost(now))
            server.under_way += 1
            return server, self._rng.randrange(self._blocks)

    def _client(self, until: float) -> None:
        connections = {
            s.name: http.client.HTTPConnection(s.address, s.port, timeout=60) for s in self._servers
        }
        try:
            while time.monotonic() < until and not self.failed:
                server, block = self._choose()
                begin = time.monotonic_ns()
                first = block * BLOCK_BYTES
                part = {"Range": f"bytes={first}-{first + BLOCK_BYTES - 1}"}
                connections[server.name].request("GET", f"/{self._path}", headers=part)
                received = len(connections[server.name].getresponse().read())
                took = time.monotonic_ns() - begin
                with self._lock:
                    server.under_way -= 1
                    server.saw(took / 1e9, time.monotonic())
                    self.requests.append((begin, server.name, took))
                if received != BLOCK_BYTES:
                    raise EOFError(f"{server.name} sent {received} bytes of {BLOCK_BYTES}")
                time.sleep(PAUSE_S)
        except BaseException as error:
            self.failed.append(error)
        finally:
            for connection in connections.values():
                connection.close()


def main() -> int:
    """Exit status 1 if a server fails."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("mode", choices=["blind", "aware"])
    options.add_argument("seconds", type=float)
    options.add_argument("file", type=Path)
    options.add_argument("path")
    options.add_argument("servers", type=Server, nargs="+", metavar="NAME=ADDRESS:PORT")
    arguments = options.parse_args()
    try:
        clients = Clients(arguments.mode, arguments.servers, arguments.path, seed=4)
        clients.run(arguments.seconds)
    except (OSError, EOFError, http.client.HTTPException) as error:
        print(f"balance: {error}", file=sys.stderr)
        return 1
    seen = sorted(clients.requests)
    arguments.file.write_text("".join(f"{t} {name} {took}\n" for t, name, took in seen))
    print(f"requests: {len(seen)}")
    print(f"mean latency: {sum(r[2] for r in seen) / max(1, len(seen)) / 1e6:.3f}")
    for server in arguments.servers:
        share = sum(r[1] == server.name for r in seen) / max(1, len(seen))
        print(f"share of {server.name}: {share:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
