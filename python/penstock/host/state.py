"""Where penstock keeps what outlives a command (state) and what does not outlive a boot (runtime)."""

from __future__ import annotations

import os
from pathlib import Path


def _made(path: Path, mode: int) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=mode)
    return path


def state_dir() -> Path:
    """The state directory, made if absent: $PENSTOCK_STATE, /var/lib/penstock as root, else ~/.local."""
    asked = os.environ.get("PENSTOCK_STATE")
    if asked:
        return _made(Path(asked), 0o755)
    if os.geteuid() == 0:
        return _made(Path("/var/lib/penstock"), 0o755)
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return _made(Path(home) / "penstock", 0o700)


def runtime_dir() -> Path:
    """The directory of sockets and statistics pages: $PENSTOCK_RUNTIME, /run/penstock as root, else XDG."""
    asked = os.environ.get("PENSTOCK_RUNTIME")
    if asked:
        return _made(Path(asked), 0o755)
    if os.geteuid() == 0:
        return _made(Path("/run/penstock"), 0o755)
    base = os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/penstock-run-{os.geteuid()}"
    return _made(Path(base) / "penstock", 0o700)
