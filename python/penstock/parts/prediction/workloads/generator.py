"""`python -m penstock.parts.prediction.workloads.generator`: sequential reads of a file, and computation.

It reads as programs do (read(2), through the page cache, no advice to the kernel) and computes checksums
until a stated processor time per byte is spent. stdout: one JSON object, times in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib

#: bytes of one checksum while computing: a millisecond at most
_STEP_BYTES = 64 << 10


def read_and_compute(
    path: str, size_bytes: int, request_bytes: int, cpu_ns_per_byte: float
) -> dict[str, float]:
    """Read `size_bytes`; after each request compute until `cpu_ns_per_byte` of processor time is spent.

    Returns `bytes`, `wall_s`, `cpu_s` (user and system, with reading), `computing_s` (without reading) and
    `computing_wall_s` (the same with the wait for a processor).
    """
    buffer = memoryview(bytearray(request_bytes))
    stuff = bytes(_STEP_BYTES)
    done = 0
    owed_ns = computing_ns = computing_wall_ns = 0.0
    began, cpu_began = time.monotonic_ns(), time.process_time_ns()
    fd = os.open(path, os.O_RDONLY)
    try:
        while done < size_bytes:
            got = os.readv(fd, [buffer[: min(request_bytes, size_bytes - done)]])
            if got == 0:
                break
            done += got
            owed_ns += got * cpu_ns_per_byte
            wall_ns = time.monotonic_ns()
            start_ns = now_ns = time.thread_time_ns()
            while now_ns - start_ns < owed_ns:
                zlib.crc32(stuff)
                now_ns = time.thread_time_ns()
            owed_ns -= now_ns - start_ns
            computing_ns += now_ns - start_ns
            computing_wall_ns += time.monotonic_ns() - wall_ns
    finally:
        os.close(fd)
    return {
        "bytes": done,
        "wall_s": (time.monotonic_ns() - began) / 1e9,
        "cpu_s": (time.process_time_ns() - cpu_began) / 1e9,
        "computing_s": computing_ns / 1e9,
        "computing_wall_s": computing_wall_ns / 1e9,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--size", type=int, required=True, help="bytes to read")
    parser.add_argument("--request", type=int, default=65536, help="bytes per read")
    parser.add_argument("--cpu-ns-per-byte", type=float, default=0.0, help="computing")
    options = parser.parse_args()
    result = read_and_compute(options.file, options.size, options.request, options.cpu_ns_per_byte)
    if result["bytes"] == 0:
        raise SystemExit(f"{options.file}: nothing to read")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
