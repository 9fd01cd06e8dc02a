"""An exporter of the file position of a reading program. `position.py FILE` prints its port."""

from __future__ import annotations

import contextlib
import http.server
import os
import sys
from pathlib import Path


def position_bytes(name: str) -> int | None:
    """Position of the descriptor of the process fio that has this file open."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if (process / "comm").read_text() != "fio\n":
                continue
            for descriptor in (process / "fd").iterdir():
                if os.readlink(descriptor) == name:
                    info = (process / "fdinfo" / descriptor.name).read_text()
                    return int(info.split()[1])
    return None


class Position(http.server.BaseHTTPRequestHandler):
    """Export `position_bytes` while the file is open."""

    def do_GET(self) -> None:
        """Answer one scrape."""
        position = position_bytes(sys.argv[1])
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        if position is not None:
            self.wfile.write(f"position_bytes {position}\n".encode())

    def log_message(self, *_: object) -> None:
        """No log of single scrapes."""


if __name__ == "__main__":
    server = http.server.HTTPServer(("127.0.0.1", 0), Position)
    print(server.server_port, flush=True)
    server.serve_forever()
