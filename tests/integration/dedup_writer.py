"""Writes versions to a deduplicating mount until it fails; prints each step first, and each commit after it.

Arguments: directory, seed, number of versions. A version is written by `write_version`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

FILES = 4
PIECE = 40_000
PIECES = 6


def version_of(seed: int, number: int) -> bytes:
    """Content of a version: its number, then pieces of which most are those of the version before."""
    pieces = [
        np.random.Generator(np.random.SFC64([seed, piece, (number + piece) // PIECES])).bytes(PIECE)
        for piece in range(PIECES)
    ]
    return number.to_bytes(8, "little") + b"".join(pieces)


def name_of(number: int) -> str:
    return f"v{number % FILES}"


def write_version(directory: Path, seed: int, number: int) -> None:
    content = version_of(seed, number)
    way = number // FILES % 3
    path = directory / name_of(number)
    draft = directory / f"draft{number}"
    with open(draft if way == 1 else path, "r+b" if way == 2 else "wb", buffering=0) as file:
        for at in range(0, len(content), PIECE):
            print("write", flush=True)
            file.write(content[at : at + PIECE])
        if way == 2:
            file.truncate()
        print("close", flush=True)
    if way == 1:
        print("rename", flush=True)
        os.replace(draft, path)
    print(f"committed {number}", flush=True)


def main() -> None:
    directory, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    try:
        for number in range(count):
            write_version(directory, seed, number)
    except OSError as error:
        print(f"failed {error.errno}", flush=True)


if __name__ == "__main__":
    main()
