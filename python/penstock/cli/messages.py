"""What is told beside the result."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line on stderr, which says that it is ours and not of a command that we run."""
    print(f"penstock: {text}", file=sys.stderr, flush=True)
