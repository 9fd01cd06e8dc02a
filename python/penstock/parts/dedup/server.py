"""Process that serves a deduplicating mount: `python -m penstock.parts.dedup.server dedup CONFIG.json`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import leave_no_trace
from penstock.host.processes.native_daemon import begun
from penstock.host.processes.processes import Identity
from penstock.host.storage.mounts import has_mount
from penstock.parts.dedup.options import native
from penstock.parts.dedup.record import WriteRecord

Choose = Callable[[str, str], str | None]
Record = Callable[[str], None]


def controller(config: Mapping[str, Any]) -> tuple[Choose, Record]:
    """Functions by which the online controller chooses configurations and receives records."""
    from penstock.parts.dedup.controller.online import OnlineController
    from penstock.parts.dedup.controller.settings import Settings
    from penstock.parts.dedup.controller.settings_file import read_settings

    path = config["settings"]
    settings = Settings() if path is None else read_settings(Path(path))
    online = OnlineController(settings, config["configurations"])

    def choose(_path: str, family: str) -> str | None:
        return online.choose(family)

    def record(text: str) -> None:
        online.record(write_record(json.loads(text)))

    return choose, record


def write_record(values: Mapping[str, Any]) -> WriteRecord:
    """Record of a version from the server's JSON."""
    fields = {name: values[name] for name in WriteRecord.__dataclass_fields__}
    return WriteRecord(**fields)


def close_mount(point: str, token: str) -> None:
    """Close the journal entry of this process's mount, once it is unmounted."""
    if has_mount(point, token):
        return
    journal, me = Journal(), Identity.own()
    for entry in journal.open_entries():
        if entry.kind == "mount" and entry.token == token and entry.owner == me:
            journal.undone(entry)


def main(argv: list[str]) -> int:
    """Serve until the end; returns the exit status."""
    _, config = begun(argv)
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    chosen = config.pop("controller", None)
    try:
        functions = (None, None) if chosen is None else controller(chosen)
        native.dedup_main(json.dumps(config), *functions)
    except (PenstockError, RuntimeError, ValueError, OSError) as error:
        print(f"penstock-dedup: {error}", file=sys.stderr)
        return 1
    if config["outlive_owner"]:
        close_mount(config["mount"], config["token"])
        leave_no_trace()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
