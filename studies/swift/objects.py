"""Put and get objects of a running Swift: `objects.py DIR COUNT BYTES`; DIR is that of `saio.py up`.

Prints `put: … MB/s` and `get: … MB/s`. Exit status 1 if an object is returned with other content.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from saio import Client


def main() -> int:
    """Exit status 0 if all objects are returned unchanged."""
    directory, count, length = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    connection = json.loads((directory / "swift.json").read_text())
    client = Client(connection["port"], connection["key"])
    client.make("objects")
    content = os.urandom(length)
    began = time.perf_counter()
    for number in range(count):
        client.put("objects", f"{number}", content)
    put_s = time.perf_counter() - began
    began = time.perf_counter()
    same = all(client.get("objects", f"{number}") == content for number in range(count))
    get_s = time.perf_counter() - began
    moved = count * length / 1e6
    print(f"put: {moved / put_s:.4g} MB/s\nget: {moved / get_s:.4g} MB/s")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
