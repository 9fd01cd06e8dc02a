"""Record `perf schema` and `perf dump` of a Ceph daemon's admin socket, for some collections.

    python tests/golden/ceph/record.py /run/penstock-ceph/osd.0.*.asok osd bluestore objecter > osd.json

The stored file was recorded from Ceph 16.2.15 of Debian 12, as `penstock store up cephfs` starts it, after
8 MiB were written to the store and read again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from penstock.parts.monitoring.collectors.products.admin_socket import ask


def read_counters(path: str, collections: list[str]) -> dict[str, Any]:
    """Return both answers, by command."""
    answers = {}
    for command in ("perf schema", "perf dump"):
        answer = json.loads(asyncio.run(ask(path, command)))
        answers[command] = {name: answer[name] for name in collections if name in answer}
    return answers


def format_counters(answers: dict[str, Any]) -> str:
    """Format the answers as JSON, with a line for each collection."""
    parts = [
        f'"{command}": {{\n'
        + ",\n".join(
            f"{json.dumps(name)}: {json.dumps(counters)}" for name, counters in collections.items()
        )
        + "\n}"
        for command, collections in answers.items()
    ]
    return "{" + ",\n".join(parts) + "}"


if __name__ == "__main__":
    print(format_counters(read_counters(sys.argv[1], sys.argv[2:])))
