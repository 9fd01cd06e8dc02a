"""Bearer token of a server: a random one, or one from a file."""

from __future__ import annotations

import secrets
from pathlib import Path

from penstock.errors import BadInput

_MIN_LENGTH = 16


def new_token() -> str:
    """A token of 192 random bits, URL-safe."""
    return secrets.token_urlsafe(24)


def load_or_create(file: Path | None) -> str:
    """The token in `file`, or a new one without a file.

    Raises BadInput if the file cannot be read, others may read it, or its token is too short or not ASCII.
    """
    if file is None:
        return new_token()
    try:
        text = file.read_text().strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise BadInput(f"--token-file {file}: {reason}") from None
    if mode & 0o077:
        raise BadInput(f"--token-file {file}: others may read it; expected mode 600")
    if len(text) < _MIN_LENGTH or not text.isascii() or len(text.split()) != 1:
        raise BadInput(
            f"--token-file {file}: expected one word of at least {_MIN_LENGTH} characters"
        )
    return text
