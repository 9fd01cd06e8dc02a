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

from penstock.observe.monitor.collectors.admin_socket import ask


def recorded(path: str, collections: list[str]) -> dict[str, Any]:
    """Both answers, by command."""
    found = {}
    for command in ("perf schema", "perf dump"):
        said = json.loads(asyncio.run(ask(path, command)))
        found[command] = {name: said[name] for name in collections if name in said}
    return found


if __name__ == "__main__":
    json.dump(recorded(sys.argv[1], sys.argv[2:]), sys.stdout, indent=1)
    print()
