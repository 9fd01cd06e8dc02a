"""Entry point of native daemons: `python -m penstock.host.processes.native_daemon KIND CONFIG.json`.

Its imports are part of the start of every disk and every trace, so there are few.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

_PR_SET_NAME = 15


def begun(argv: list[str]) -> tuple[str, dict[str, Any]]:
    """Parse a daemon's arguments, KIND CONFIG.json [--ready-fd N], to kind and settings; names its
    process."""
    kind, config_path, *rest = argv
    with open(config_path, encoding="utf-8") as file:
        config = json.load(file)
    if rest[:1] == ["--ready-fd"]:
        config["ready_fd"] = int(rest[1])
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"penstock-{kind}".encode(), 0, 0, 0)
    return kind, config


def main(argv: list[str]) -> int:
    """Run a native daemon; returns its exit status."""
    kind, config = begun(argv)
    os.umask(0o077)
    run = getattr(importlib.import_module("penstock._native"), f"{kind}_main", None)
    if run is None:
        print(f"this build of penstock has no {kind} daemon", file=sys.stderr)
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run(json.dumps(config))
    except (RuntimeError, OSError, ValueError) as error:
        print(f"penstock-{kind}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
