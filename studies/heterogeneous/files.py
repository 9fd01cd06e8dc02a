"""A small HTTP file server: complete files of one directory, or ranges, read in pieces from the disk.

`python files.py DIRECTORY ADDRESS PORT` serves until it is terminated. `Range: bytes=a-b` returns a part.
Data that were read are dropped from the page cache, so that every request reaches the disk; with `direct` the
cache is bypassed (offsets and sizes in multiples of 4096).
"""

from __future__ import annotations

import argparse
import mmap
import os
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PIECE_BYTES = 256 * 1024


def pieces(path: Path, begin: int, end: int, *, direct: bool) -> Iterator[memoryview]:
    """Bytes from `begin` to `end` of a file, each piece valid until the next."""
    buffer = mmap.mmap(-1, PIECE_BYTES)
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    try:
        at = begin
        while at < end:
            count = min(PIECE_BYTES, end - at)
            received = os.preadv(fd, [memoryview(buffer)[:count]], at)
            if received == 0:
                raise EOFError(f"{path} ends at {at}; expected {end}")
            yield memoryview(buffer)[:received]
            at += received
        if not direct:
            os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class FileServer(ThreadingHTTPServer):
    """Serve the files under `root`."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, root: Path, address: str, port: int, *, direct: bool = False) -> None:
        super().__init__((address, port), _Handler)
        self.root = root.resolve()
        self.direct = direct

    def handle_error(self, request: object, client_address: object) -> None:
        """A disconnected client is no error; other errors are printed."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            print(f"files: {client_address}: {error!r}", file=sys.stderr)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FileServer

    def do_HEAD(self) -> None:
        """Length of the file."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """The file, or a range of it."""
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = (self.server.root / self.path.lstrip("/")).resolve()
        if not path.is_relative_to(self.server.root) or not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        begin, end = 0, size
        requested = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if requested:
            begin, end = int(requested[1]), min(int(requested[2]) + 1, size)
        self.send_response(206 if requested else 200)
        self.send_header("Content-Length", str(max(0, end - begin)))
        self.end_headers()
        if not body:
            return
        for piece in pieces(path, begin, end, direct=self.server.direct):
            self.wfile.write(piece)

    def log_message(self, *_: object) -> None:
        """No log: clients count requests."""


def main() -> None:
    """Serve until terminated."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("directory", type=Path)
    options.add_argument("address")
    options.add_argument("port", type=int)
    options.add_argument("--direct", action="store_true", help="bypass the page cache")
    arguments = options.parse_args()
    FileServer(
        arguments.directory, arguments.address, arguments.port, direct=arguments.direct
    ).serve_forever()


if __name__ == "__main__":
    main()
