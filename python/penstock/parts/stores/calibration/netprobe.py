"""Measure a link from inside two nodes: TCP throughput and round trips. Standard library only.

`serve ADDRESS` prints its port and answers until stdin ends; `ask ADDRESS PORT SECONDS` prints JSON: bytes
per second of each repetition, seconds of each round trip. `burst ADDRESS PORT BYTES` prints the seconds until
the peer has received BYTES.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time

PIECE = 1 << 20
REPETITION_S, WARM = 0.2, 2
TRIPS = 50


def serve(address: str) -> None:
    """Discard the bytes after `B`; echo those after `T` one by one."""
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        threading.Thread(target=_leave, daemon=True).start()
        while True:
            peer, _ = server.accept()
            threading.Thread(target=_answer, args=(peer,), daemon=True).start()


def _leave() -> None:
    sys.stdin.read()
    os._exit(0)


def _answer(peer: socket.socket) -> None:
    with peer, contextlib.suppress(OSError):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if peer.recv(1) == b"T":
            while got := peer.recv(64):
                peer.sendall(got)
            return
        buffer = bytearray(PIECE)
        total = 0
        peer.settimeout(0.5)
        while size := peer.recv_into(buffer):
            total += size
        peer.sendall(total.to_bytes(8, "big"))


def ask(address: str, port: int, seconds: float) -> None:
    """Measure round trips, then throughput; the first of each are discarded."""
    with socket.create_connection((address, port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(b"T")
        trips = []
        for _ in range(TRIPS + WARM):
            begin = time.perf_counter()
            peer.sendall(b"x")
            peer.recv(1)
            trips.append(time.perf_counter() - begin)
    rates: list[float] = []
    block = os.urandom(PIECE)
    with socket.create_connection((address, port)) as peer:
        peer.sendall(b"B")
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or len(rates) < WARM + 5:
            begin, sent = time.perf_counter(), 0
            while time.perf_counter() < begin + REPETITION_S:
                sent += peer.send(block[: 1 << 16])
            rates.append(sent / (time.perf_counter() - begin))
    print(json.dumps({"rates_bps": rates[WARM:], "trips_s": trips[WARM:]}))


def burst(address: str, port: int, size: int) -> None:
    """One transfer, from the first byte sent to the peer's acknowledgement of the last."""
    block = os.urandom(1 << 16)
    with socket.create_connection((address, port)) as peer:
        peer.sendall(b"B")
        begin, remaining = time.perf_counter(), size
        while remaining:
            remaining -= peer.send(block[:remaining])
        peer.shutdown(socket.SHUT_WR)
        reply = b""
        while got := peer.recv(8):
            reply += got
        took_s = time.perf_counter() - begin
    if int.from_bytes(reply, "big") != size:
        sys.exit(f"{int.from_bytes(reply, 'big')} of {size} bytes came")
    print(took_s)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    elif sys.argv[1] == "burst":
        burst(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        ask(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
