"""Residency and layout of a run's files: pages in memory, extents on the device."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.host.storage.residency import resident_pages_of

#: maximum number of files opened at the end of a run, those named first
MOST_FILES = 10_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# linux/fiemap.h
_FIEMAP = 0xC020660B
_HEAD = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=QQQQQIIII")
_LAST, _UNKNOWN, _INLINE = 0x1, 0x2, 0x200
_BATCH = 512

RESIDENCY = TABLES["residency"].arrow
EXTENTS = TABLES["extents"].arrow


def opened(files: pa.Table) -> Iterator[tuple[dict[str, Any], int]]:
    """Each unchanged file of a `files` table, opened for reading; its row and descriptor."""
    for row in files.slice(0, MOST_FILES).to_pylist():
        if not row["path"]:
            continue
        try:
            name = os.fsencode(row["path"])
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            continue
        try:
            facts = os.fstat(fd)
            if stat.S_ISREG(facts.st_mode) and facts.st_ino == row["inode"]:
                yield row, fd
        finally:
            os.close(fd)


def residency_table(files: pa.Table) -> pa.Table:
    """Table `residency`: pages in memory at the run's first use of the file, and now.

    The start is included if `files` has a column `resident_pages`, of the first use.
    """
    rows = []
    if "resident_pages" in files.column_names:
        for row in files.to_pylist():
            if row["resident_pages"] is not None:
                pages = -(-(row["size_bytes"] or 0) // _PAGE_BYTES)
                rows.append(
                    {
                        "file_id": row["file_id"],
                        "moment": "start",
                        "resident_pages": min(row["resident_pages"], pages),
                        "pages": pages,
                    }
                )
    for row, fd in opened(files):
        size = os.fstat(fd).st_size
        with contextlib.suppress(OSError):
            resident = resident_pages_of(fd, size)
            pages = -(-size // _PAGE_BYTES)
            rows.append(
                {
                    "file_id": row["file_id"],
                    "moment": "end",
                    "resident_pages": min(resident, pages),
                    "pages": pages,
                }
            )
    return pa.Table.from_pylist(rows, RESIDENCY)


def extents_table(files: pa.Table) -> pa.Table:
    """Table `extents`: pieces of each file on its device; files on file systems without FIEMAP are
    omitted."""
    rows = []
    for row, fd in opened(files):
        pieces = extents_of(fd)
        if pieces:
            rows.append({"file_id": row["file_id"], **layout(pieces)})
    return pa.Table.from_pylist(rows, EXTENTS)


def extents_of(fd: int) -> list[tuple[int, int, int]]:
    """(offset in the file, offset on the device, length) [bytes] of each extent, in order; [] if
    unavailable."""
    extents: list[tuple[int, int, int]] = []
    start = 0
    while True:
        ask = bytearray(_HEAD.size + _BATCH * _EXTENT.size)
        _HEAD.pack_into(ask, 0, start, (1 << 64) - 1 - start, 0, 0, _BATCH, 0)
        try:
            fcntl.ioctl(fd, _FIEMAP, ask)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EBADR, errno.EINVAL):
                return []
            raise
        count = _HEAD.unpack_from(ask, 0)[3]
        last = count == 0
        for number in range(count):
            place = _HEAD.size + number * _EXTENT.size
            logical, physical, length, _, _, flags, *_ = _EXTENT.unpack_from(ask, place)
            if not flags & (_UNKNOWN | _INLINE):
                extents.append((logical, physical, length))
            start = logical + length
            last = last or bool(flags & _LAST)
        if last:
            return extents


def layout(pieces: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Count, contiguous share, mapped and largest bytes of a file's extents.

    The contiguous share is that of 4 KiB blocks (except the first) that directly follow the file's preceding
    block on the device. Extents that are adjacent in the file and on the device are one piece.
    """
    merged: list[list[int]] = []
    for logical, physical, length in pieces:
        if (
            merged
            and merged[-1][0] + merged[-1][2] == logical
            and merged[-1][1] + merged[-1][2] == physical
        ):
            merged[-1][2] += length
        else:
            merged.append([logical, physical, length])
    mapped = sum(length for _, _, length in merged)
    steps = max(mapped // 4096 - 1, 1)
    return {
        "count": len(merged),
        "contiguous_share": 1 - (len(merged) - 1) / steps,
        "mapped_bytes": mapped,
        "largest_bytes": max(length for _, _, length in merged),
    }
