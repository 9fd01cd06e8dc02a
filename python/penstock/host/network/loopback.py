"""Throughput between two programs on this host over 127.0.0.1, from a short transfer."""

from __future__ import annotations

import math
import socket
import statistics
import threading
import time
from dataclasses import dataclass

from scipy.stats import t as student

#: chunk size [bytes], duration of a repetition [s], number of discarded first repetitions
_PIECE_BYTES, _REPETITION_S, _WARM = 1 << 20, 0.05, 2


@dataclass(frozen=True)
class Measured:
    """Mean of `n` repetitions and its 95 % interval; `converged` if that is within 5 %."""

    mean: float
    low: float
    high: float
    n: int
    converged: bool


def interval(values: list[float]) -> Measured:
    """Mean and 95 % interval (Student) of at least two values."""
    mean = statistics.fmean(values)
    half = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values)
    half /= math.sqrt(len(values))
    return Measured(mean, mean - half, mean + half, len(values), half <= 0.05 * mean)


def loopback_throughput(budget_s: float = 3.0, fewest: int = 10) -> Measured:
    """Bytes per second over a TCP connection to 127.0.0.1: repetitions of 50 ms until the 95 % interval is
    within 5 % of the mean or `budget_s` is over, at least `fewest`. OSError without such an interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    stop = threading.Event()
    thread = threading.Thread(target=_send, args=(sender, stop), daemon=True)
    with sender, receiver:
        thread.start()
        try:
            return _repeat(receiver, budget_s, fewest)
        finally:
            stop.set()
            receiver.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=5)


def _repeat(receiver: socket.socket, budget_s: float, fewest: int) -> Measured:
    buffer = bytearray(_PIECE_BYTES)
    rates: list[float] = []
    end = time.monotonic() + budget_s
    for repetition in range(10_000):
        start, received, elapsed = time.perf_counter(), 0, 0.0
        while elapsed < _REPETITION_S:
            got = receiver.recv_into(buffer)
            if not got:
                raise OSError("the connection to 127.0.0.1 was closed")
            received += got
            elapsed = time.perf_counter() - start
        if repetition >= _WARM:
            rates.append(received / elapsed)
        if len(rates) >= max(2, fewest):
            result = interval(rates)
            if result.converged or time.monotonic() >= end:
                return result
    return interval(rates)


def _send(sender: socket.socket, stop: threading.Event) -> None:
    piece = bytes(_PIECE_BYTES)
    try:
        while not stop.is_set():
            sender.sendall(piece)
    except OSError:
        return  # the other end closed the connection
