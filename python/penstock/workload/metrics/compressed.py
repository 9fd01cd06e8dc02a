"""Lines of a log that may be compressed by Spark, and may be truncated.

zstd and gzip are standard streams. Spark's lz4 is the block stream of lz4-java, its snappy the stream of
snappy-java; neither is the frame format of the same name.
"""

from __future__ import annotations

import codecs
import contextlib
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import cramjam
import pyarrow as pa

from penstock.errors import BadInput

MOST_LINE = 64 << 20
MOST_TOTAL = 16 << 30
_MOST_BLOCK = 64 << 20
#: start of a block of LZF, stored or compressed
LZF = (b"ZV\0", b"ZV\1")
_LZ4, _SNAPPY, _ZSTD, _GZIP = b"LZ4Block", b"\x82SNAPPY\0", b"\x28\xb5\x2f\xfd", b"\x1f\x8b"


def placed(
    parts: Iterable[Path], expected: str, notes: list[str]
) -> Iterator[tuple[Path, int, bytes]]:
    """Each line of the files in order, with its file and number (from 1); `notes` gets the truncated files.

    Raises BadInput, with the `expected` content, for an unreadable file.
    """
    for part in parts:
        lines = Lines(part)
        number = 0
        try:
            for number, line in enumerate(lines, 1):
                text = line if number > 1 else line.removeprefix(codecs.BOM_UTF8)
                yield part, number, text.removesuffix(b"\r")
        except OSError as error:
            raise BadInput(f"{part}: {error.strerror or error}; expected {expected}") from None
        if lines.truncated:
            notes.append(f"{part.name} ends in the middle, after {number} lines")


class Lines:
    """Lines of a file; `truncated` once they end before the file's end mark, or within a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truncated = False

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        total = 0
        for part in self._parts():
            total += len(part)
            if total > MOST_TOTAL:
                raise BadInput(
                    f"{self.path}: found more than {MOST_TOTAL} bytes; expected that at most"
                )
            lines = (rest + part).split(b"\n")
            rest = lines.pop()
            if len(rest) > MOST_LINE:
                raise BadInput(
                    f"{self.path}: found a line over {MOST_LINE} bytes; expected JSON lines"
                )
            yield from lines
        if rest:
            # writers end each line: this one was truncated, or the file was edited
            yield rest

    def _parts(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            head = file.read(16)
            file.seek(0)
            if head.startswith(_LZ4):
                yield from self._lz4(file)
            elif head.startswith(_SNAPPY):
                file.read(16)
                yield from self._snappy(file)
            elif head.startswith(LZF):
                raise BadInput(
                    f"{self.path}: found LZF compression; expected lz4, snappy, zstd or gzip"
                )
            elif head.startswith((_ZSTD, _GZIP)):
                yield from self._stream(file, "zstd" if head.startswith(_ZSTD) else "gzip")
            else:
                while part := file.read(1 << 20):
                    yield part

    def _stream(self, file: BinaryIO, codec: str) -> Iterator[bytes]:
        with pa.CompressedInputStream(pa.PythonFile(file, "r"), codec) as stream:
            while True:
                try:
                    part = stream.read(1 << 16)
                except (OSError, pa.ArrowException):
                    self.truncated = True
                    return
                if not part:
                    return
                yield part

    def _lz4(self, file: BinaryIO) -> Iterator[bytes]:
        """Blocks of lz4-java: magic, token (method, level), both sizes and a checksum, little-endian."""
        while head := file.read(21):
            if len(head) < 21:
                self.truncated = True
                return
            magic, token, packed, size, _check = struct.unpack("<8sBiii", head)
            if magic != _LZ4 or not 0 <= size <= _MOST_BLOCK or not 0 <= packed <= _MOST_BLOCK:
                raise BadInput(
                    f"{self.path}: found a damaged block of LZ4 before byte {file.tell()}"
                )
            content = file.read(packed)
            if len(content) < packed:
                self.truncated = True
                return
            if not size:
                yield b""
            elif token & 0xF0 == 0x10:
                yield content
            else:
                with self._damaged():
                    block = bytes(cramjam.lz4.decompress_block(content, output_len=size))
                yield block

    def _snappy(self, file: BinaryIO) -> Iterator[bytes]:
        """Blocks of snappy-java: their size, big-endian, and raw snappy."""
        while head := file.read(4):
            size = int.from_bytes(head, "big")
            if len(head) == 4 and head == _SNAPPY[:4]:  # a reopened stream
                file.read(12)
                continue
            if size > _MOST_BLOCK:
                raise BadInput(
                    f"{self.path}: found a damaged block of snappy before byte {file.tell()}"
                )
            content = file.read(size)
            if len(head) < 4 or len(content) < size:
                self.truncated = True
                return
            with self._damaged():
                if cramjam.snappy.decompress_raw_len(content) > _MOST_BLOCK:
                    raise BadInput(
                        f"{self.path}: found a block of snappy that grows beyond {_MOST_BLOCK} bytes"
                    )
                block = bytes(cramjam.snappy.decompress_raw(content))
            yield block

    @contextlib.contextmanager
    def _damaged(self) -> Iterator[None]:
        """Report a block that cannot be decompressed as bad input."""
        try:
            yield
        except cramjam.DecompressionError as error:
            raise BadInput(f"{self.path}: found a damaged block: {error}") from None
