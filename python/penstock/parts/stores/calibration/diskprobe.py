"""Time a node's disk from inside it: `DIRECTORY COUNT` prints JSON, seconds of each write and read.

Operations are of 1 MiB and bypass the page cache. Standard library only.
"""

import contextlib
import json
import mmap
import os
import sys
import time

PIECE = 1 << 20


def main(directory: str, count: int) -> None:
    """Write a file of `count` pieces, read it back, remove it."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, f".probe-{os.urandom(6).hex()}")
    block = mmap.mmap(-1, PIECE)  # O_DIRECT requires page alignment
    block.write(os.urandom(PIECE))
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        seconds = {}
        for what, act in (("write", os.pwritev), ("read", os.preadv)):
            times = []
            for number in range(count):
                begin = time.perf_counter()
                done = act(fd, [block], number * PIECE)
                times.append(time.perf_counter() - begin)
                if done != PIECE:
                    sys.exit(f"{what}: {done} of {PIECE} bytes")
            seconds[what] = times
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
