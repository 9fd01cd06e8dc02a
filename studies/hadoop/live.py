"""Wait until a counter of a Hadoop daemon is large enough: `live.py URL BEAN KEY COUNT SECONDS PID…`.

Reads KEY of the bean BEAN from `URL/jmx` until it is COUNT or more. Exit status 1 with a reason if a PID has
ended, or after SECONDS.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path


def counted(url: str, bean: str, key: str) -> float:
    """The counter, or -1 without an answer."""
    try:
        with urllib.request.urlopen(
            f"{url}/jmx?qry={urllib.parse.quote(bean)}", timeout=5
        ) as answer:
            beans = json.load(answer)["beans"]
        return float(beans[0][key]) if beans else -1
    except (OSError, ValueError, KeyError):
        return -1


def alive(pid: str) -> bool:
    """True if a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def main() -> int:
    """Exit status 0 when the counter is large enough."""
    url, bean, key, count, seconds, *pids = sys.argv[1:]
    until = time.monotonic() + float(seconds)
    while counted(url, bean, key) < float(count):
        for pid in pids:
            if not alive(pid):
                print(f"live: process {pid} of Hadoop has ended", file=sys.stderr)
                return 1
        if time.monotonic() > until:
            print(f"live: {key} of {bean} is not {count} after {seconds} s", file=sys.stderr)
            return 1
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
