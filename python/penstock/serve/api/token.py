"""The bearer token: made when the server starts, told once, kept in a file that only its owner reads."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadInput
from penstock.host.processes import Identity
from penstock.state import closed, runtime_dir

_SHORTEST = 16


def made(file: Path | None) -> str:
    """A fresh token, or the one in `file`. Raises BadInput where that cannot be one."""
    if file is None:
        return secrets.token_urlsafe(24)
    try:
        text = file.read_text().strip()
        mode = file.stat().st_mode
    except OSError as error:
        raise BadInput(f"--token-file {file}: {error.strerror}") from None
    if mode & 0o077:
        raise BadInput(f"--token-file {file}: others may read it; expected mode 600")
    if len(text) < _SHORTEST or not text.isascii() or len(text.split()) != 1:
        raise BadInput(f"--token-file {file}: expected one word of at least {_SHORTEST} characters")
    return text


@contextlib.contextmanager
def kept(token: str, url: str, cert: Path | None) -> Iterator[Path]:
    """While the server runs: a file by which clients on this host, of the same user, find and know it."""
    path = runtime_dir() / f"serve-{os.getpid()}.json"
    path.unlink(missing_ok=True)
    said = {**vars(Identity.own()), "url": url, "token": token}
    said["cert"] = None if cert is None else str(cert.absolute())
    with open(path, "x", opener=closed) as file:
        json.dump(said, file)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
