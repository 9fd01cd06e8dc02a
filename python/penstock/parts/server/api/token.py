"""The bearer token of a server: a new one each time, or that of a file of its owner's."""

from __future__ import annotations

import secrets
from pathlib import Path

from penstock.errors import BadInput

_SHORTEST = 16


def new_token() -> str:
    """192 random bits as a word."""
    return secrets.token_urlsafe(24)


def made(file: Path | None) -> str:
    """A fresh token, or the one in `file`. Raises BadInput where that cannot be one."""
    if file is None:
        return new_token()
    try:
        text = file.read_text().strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadInput(f"--token-file {file}: {why}") from None
    if mode & 0o077:
        raise BadInput(f"--token-file {file}: others may read it; expected mode 600")
    if len(text) < _SHORTEST or not text.isascii() or len(text.split()) != 1:
        raise BadInput(f"--token-file {file}: expected one word of at least {_SHORTEST} characters")
    return text
