"""Records what a daemon of Ceph says at its admin socket: `perf schema` and `perf dump`, of some collections.

    python tests/golden/ceph/record.py /run/penstock-ceph/osd.0.*.asok osd bluestore objecter > osd.json

What lies here was said by Ceph 16.2.15 of Debian 12, as `penstock store up cephfs` starts it, after 8 MiB
were written to the store and read again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from penstock.parts.monitoring.collectors.products.admin_socket import ask


def recorded(path: str, collections: list[str]) -> dict[str, Any]:
    """Both answers, by command."""
    found = {}
    for command in ("perf schema", "perf dump"):
        said = json.loads(asyncio.run(ask(path, command)))
        found[command] = {name: said[name] for name in collections if name in said}
    return found


def written(said: dict[str, Any]) -> str:
    """Format the answers as JSON, with a line for each collection."""
    parts = [
        f'"{command}": {{\n'
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(own)}" for name, own in found.items())
        + "\n}"
        for command, found in said.items()
    ]
    return "{" + ",\n".join(parts) + "}"


if __name__ == "__main__":
    print(written(recorded(sys.argv[1], sys.argv[2:])))
