"""Nodes for tests of networks: processes in network namespaces, and traffic between them."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

from penstock.host.network.netns import inside
from penstock.host.processes.processes import Identity

#: asm-generic/socket.h
_RCVBUFFORCE = 33


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[int]]:
    """Process ids of `count` processes, each alone in a network namespace."""
    own = os.stat("/proc/self/ns/net").st_ino
    children = [subprocess.Popen(["unshare", "-n", "sleep", "300"]) for _ in range(count)]
    try:
        for child in children:
            while os.stat(f"/proc/{child.pid}/ns/net").st_ino == own:
                assert Identity.of(child.pid) is not None
                time.sleep(0.002)
        yield [child.pid for child in children]
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


@contextlib.contextmanager
def neighbour_limits() -> Iterator[None]:
    """Keep the limits of the host's only neighbour table from other tests that raise them.

    A reservation of another journal looks like a change by another program.
    """
    directory = os.open("/proc/sys/net/ipv4/neigh/default", os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def connection(server: int, client: int, address: str) -> tuple[socket.socket, socket.socket]:
    """A TCP connection between two namespaces: the socket of the client, and of the server."""
    listening = inside(server, lambda: socket.create_server((address, 0)))
    with listening:
        sending = inside(client, socket.socket)
        sending.settimeout(60)
        sending.connect(listening.getsockname())
        listening.settimeout(60)
        receiving = listening.accept()[0]
    for end in (sending, receiving):
        # Reno keeps the queue of the link full; BBR, the default of some hosts, does not
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.settimeout(60)
    return sending, receiving


@contextlib.contextmanager
def busy(sending: socket.socket, receiving: socket.socket) -> Iterator[None]:
    """Send over a connection as fast as possible."""
    stop = threading.Event()

    def send() -> None:
        block = bytes(64 * 1024)
        with contextlib.suppress(OSError):
            while not stop.is_set():
                sending.sendall(block)

    def receive() -> None:
        buffer = bytearray(1 << 20)
        with contextlib.suppress(OSError):
            while receiving.recv_into(buffer):
                pass

    threads = [threading.Thread(target=act) for act in (send, receive)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for end in (sending, receiving):
            end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        sending.close()
        receiving.close()


def bit_s(frames: Callable[[], int], length_s: float = 0.25) -> float:
    """Bits per second by `frames`, which counts bytes at the link.

    Data in the buffer of a starved reader counts as delivered.
    """
    start, before = time.monotonic(), frames()
    time.sleep(length_s)
    return (frames() - before) * 8 / (time.monotonic() - start)


def round_trips(
    sending: socket.socket, receiving: socket.socket, count: int, pause_s: float
) -> list[float]:
    """Round-trip times of `count` small messages [s]."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            while message := receiving.recv(64):
                receiving.sendall(message)

    thread = threading.Thread(target=answer)
    thread.start()
    times = []
    try:
        for _ in range(count):
            start = time.perf_counter()
            sending.sendall(b"x")
            sending.recv(64)
            times.append(time.perf_counter() - start)
            time.sleep(pause_s)
    finally:
        sending.close()
        thread.join()
        receiving.close()
    return times


def datagrams(sender: int, receiver: int, address: str, count: int) -> list[int]:
    """Send `count` numbered datagrams with short pauses; return the received numbers in order."""
    inbox = inside(receiver, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    outbox = inside(sender, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with inbox, outbox:
        inbox.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, 1 << 23)
        inbox.bind((address, 0))
        outbox.connect(inbox.getsockname())
        for number in range(count):
            outbox.send(number.to_bytes(4, "big") + bytes(60))
            if number % 50 == 49:
                time.sleep(0.002)
        found = []
        inbox.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while True:
                found.append(int.from_bytes(inbox.recv(100)[:4], "big"))
        return found


def has_share(count: int, n: int, share: float) -> bool:
    """True if `count` of `n` is within six binomial standard deviations of `share`.

    A correct share is missed with a probability below 1e-8.
    """
    return abs(count - n * share) < 6 * math.sqrt(n * share * (1 - share)) + 1
