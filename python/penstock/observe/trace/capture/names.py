"""Names of the traced files during the trace, and rare operations on them.

The kernel programs identify a file by its inode and report its path once, at first use. For a later rename,
link or unlink they report only the arguments of the call and the directories that these are relative to. This
module resolves arguments to paths and paths to files, and adds the file to the events of such calls, which
lack one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.schemas import TABLES
from penstock.observe.trace.capture.announcements import announcements, those_with
from penstock.observe.trace.capture.events import DIRECTIONS, NUMBERS

_RENAME_EXCHANGE = 2
_OF_NAMES = (
    *("file_id", "t_ns", "path_hex", "unlinked", "naming", "which", "tid", "errno", "flags"),
    *("of_file", "text_hex", "directory_hex"),
)


@dataclass
class Names:
    """History of names, built by `read_names`."""

    _rows: list[tuple[int, int, str, bytes]] = field(default_factory=list)
    _sums: pa.Table = field(default_factory=TABLES["operations"].arrow.empty_table)
    _files: dict[tuple[int, int], int] = field(default_factory=dict)
    _met: set[int] = field(default_factory=set)
    _bearer: dict[bytes, int] = field(default_factory=dict)
    #: paths that could not be opened, with time [ns] and thread of each attempt
    _not_opened: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    #: names in each directory on the path of a known file; built at first use
    _inside: dict[bytes, set[bytes]] | None = None

    def table(self) -> pa.Table:
        """Table `file_names` (docs/formats.md), in order of time."""
        rows = sorted(self._rows, key=lambda row: row[1])
        numbers, times, kinds, paths = zip(*rows, strict=True) if rows else ((), (), (), ())
        digits = (None if _is_text(path) else path.hex() for path in paths)
        schema = TABLES["file_names"].arrow
        columns = [numbers, times, kinds, list(map(readable, paths)), list(digits)]
        return pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
        )

    def sums(self) -> pa.Table:
        """Table `operations` (docs/formats.md): calls, errors and time per file and rare operation."""
        return self._sums.sort_by([("file_id", "ascending"), ("op", "ascending")])

    def flushes(self) -> list[dict[str, Any]]:
        """Rows of direction `sync` in addition to the verdicts: calls and time [ns] of flushes per file."""
        sums: dict[int, dict[str, Any]] = {}
        flushing = [op for op, n in NUMBERS.items() if n // 32 == DIRECTIONS.index("sync")]
        flushes = self._sums.filter(pc.is_in(self._sums["op"], pa.array(flushing)))
        for row in flushes.to_pylist():
            blank = {"file_id": row["file_id"], "direction": "sync", "calls": 0, "time_ns": 0}
            flushed = sums.setdefault(row["file_id"], blank)
            flushed["calls"] += row["calls"]
            flushed["time_ns"] += row["time_ns"]
        return list(sums.values())

    def others_ns(self) -> int:
        """Time of all operations but reads, writes and flushes."""
        flushed = sum(row["time_ns"] for row in self.flushes())
        return int(pc.sum(self._sums["time_ns"]).as_py() or 0) - int(flushed)

    def numbers(self) -> list[tuple[int, int, int]]:
        """Time [ns], thread and file number of calls by name, whose events lack the file."""
        return [(t_ns, tid, number) for (t_ns, tid), number in self._files.items()]

    def not_opened(self, first: int) -> pa.Table:
        """Rows of table `files` for paths that could not be opened: from number `first`, without an inode."""
        by_path = {path: number for number, _, _, path in reversed(self._rows)}
        numbers: list[int] = []
        paths: list[str | None] = []
        for path, calls in self._not_opened.items():
            number = by_path.get(path)
            if number is None:
                number = first + len(numbers)
                numbers.append(number)
                paths.append(readable(path))
            self._files |= dict.fromkeys(calls, number)
        schema = TABLES["files"].arrow
        columns = {"file_id": numbers, "path": paths}
        nothing = [None] * len(numbers)
        return pa.table([columns.get(name, nothing) for name in schema.names], schema=schema)

    def _introduce(self, row: Mapping[str, Any]) -> None:
        path = bytes.fromhex(row["path_hex"])
        if row["file_id"] in self._met:  # opened by one of several names
            if path and not row["unlinked"] and self._bearer.get(path) != row["file_id"]:
                self._bear(path, row["file_id"], "link", row["t_ns"])
            return
        self._met.add(row["file_id"])
        self._rows.append((row["file_id"], row["t_ns"], "first", path))
        if path and not row["unlinked"]:
            self._name(path, row["file_id"])

    def _name(self, path: bytes, number: int) -> None:
        self._bearer[path] = number
        if self._inside is not None:
            self._list(path)

    def _unname(self, path: bytes) -> int | None:
        number = self._bearer.pop(path, None)
        while self._inside is not None and number is not None and path not in self._bearer:
            if self._inside.get(path):
                break  # other names remain in the directory
            self._inside.pop(path, None)
            path, below = os.path.dirname(path), path
            self._inside.get(path, set()).discard(below)
            if path in (b"", b"/"):
                break
        return number

    def _list(self, path: bytes) -> None:
        """Add a path to its directory, and that to its parent."""
        assert self._inside is not None
        while path not in (b"", b"/"):
            above = os.path.dirname(path)
            names = self._inside.setdefault(above, set())
            if path in names:
                return
            names.add(path)
            path = above

    def _change(self, call: _Naming) -> None:
        old = call.path(0, self._bearer)
        if old is None:
            return
        number = call.of_file or self._bearer.get(old)
        if number is not None:
            self._files[call.t_ns, call.tid] = number
        elif call.op == "open":
            self._not_opened.setdefault(old, []).append((call.t_ns, call.tid))
        if call.errno:
            return
        match call.op:
            case "unlink":
                self._forget(old, call.t_ns)
            case "link":
                new = call.path(1, self._bearer)
                if new is not None and number is not None:
                    self._bear(new, number, "link", call.t_ns)
            case "rename":
                new = call.path(1, self._bearer)
                if new is not None:
                    self._rename(old, new, call)

    def _rename(self, old: bytes, new: bytes, call: _Naming) -> None:
        if self._bearer.get(old) == self._bearer.get(new, -1):
            return  # two links to one file: rename(2) does nothing
        going, coming = self._below(old), []
        if call.flags & _RENAME_EXCHANGE:
            coming = self._below(new)
        else:
            self._forget(new, call.t_ns)
        for path, _ in going + coming:
            self._unname(path)
        for path, number in going:
            self._bear(new + path[len(old) :], number, "rename", call.t_ns)
        for path, number in coming:
            self._bear(old + path[len(new) :], number, "rename", call.t_ns)

    def _below(self, path: bytes) -> list[tuple[bytes, int]]:
        """File of that name; or, if it is a directory, the files in it."""
        if path in self._bearer:
            return [(path, self._bearer[path])]
        if self._inside is None:
            self._inside = {}
            for bearer in self._bearer:
                self._list(bearer)
        matches, waiting = [], [path]
        while waiting:
            for below in sorted(self._inside.get(waiting.pop(), ())):
                if below in self._bearer:
                    matches.append((below, self._bearer[below]))
                waiting.append(below)
        return matches

    def _bear(self, path: bytes, number: int, kind: str, t_ns: int) -> None:
        self._name(path, number)
        self._rows.append((number, t_ns, kind, path))

    def _forget(self, path: bytes, t_ns: int) -> None:
        number = self._unname(path)
        if number is not None:
            self._rows.append((number, t_ns, "unlink", path))


@dataclass
class _Naming:
    """A call by names: its arguments and the directories they are relative to, old (0) and new (1)."""

    op: str
    t_ns: int
    tid: int
    errno: int
    flags: int
    #: number of the open file that a link names by its descriptor
    of_file: int = 0
    texts: dict[int, bytes] = field(default_factory=dict)
    directories: dict[int, bytes] = field(default_factory=dict)

    def complete(self) -> bool:
        """True if all parts have arrived."""
        names = 1 if self.op in {"open", "unlink", "truncate"} else 2
        return len(self.texts) == names == len(self.directories)

    def path(self, which: int, by_path: dict[bytes, int]) -> bytes | None:
        """Absolute path; if its plain form is unknown, symbolic links are resolved now."""
        if which not in self.texts or which not in self.directories:
            return None
        text = self.texts[which].lstrip(b"/")
        plain = os.path.normpath(self.directories[which] + b"/" + text)
        plain = b"/" + plain.lstrip(b"/")
        if plain in by_path:
            return plain
        parent, name = os.path.split(plain)
        return os.path.join(os.path.realpath(parent), name)


def read_names(source: Path | pa.Table) -> Names:
    """History from the daemon's JSON lines, or from announcements read from them."""
    records = announcements(source)
    sums = those_with(records, "operation").rename_columns(
        [
            "file_id"
            if n == "of_file"
            else "op"
            if n == "operation"
            else f"_{n}"
            if n in ("file_id", "op")
            else n
            for n in records.column_names
        ]
    )
    schema = TABLES["operations"].arrow
    names = Names(
        _sums=pa.table([sums[n].cast(schema.field(n).type) for n in schema.names], schema=schema)
    )
    open_calls: dict[tuple[int, int], _Naming] = {}
    about = records.filter(pc.or_(pc.is_valid(records["naming"]), pc.is_valid(records["path_hex"])))
    for row in about.select(_OF_NAMES).to_pylist():
        if row["naming"] is None:
            names._introduce(row)
        else:
            _add_piece(row, open_calls, names)
    return names


def _add_piece(
    row: Mapping[str, Any], open_calls: dict[tuple[int, int], _Naming], names: Names
) -> None:
    """Add a part of a call; parts of calls on several processors are interleaved."""
    key = (row["t_ns"], row["tid"])
    call = open_calls.get(key)
    if call is None:
        call = _Naming(row["naming"], *key, row["errno"], row["flags"])
        open_calls[key] = call
    if row["text_hex"] is not None:
        call.texts[row["which"]] = bytes.fromhex(row["text_hex"])
        call.of_file = call.of_file or row["of_file"] or 0
    else:
        call.directories[row["which"]] = bytes.fromhex(row["directory_hex"])
    if call.complete():
        names._change(open_calls.pop(key))


def readable(path: bytes) -> str | None:
    """As in table `files`: bytes that are not UTF-8 as `\\udcXX`; None for the empty path."""
    if _is_text(path):
        return path.decode() or None
    return os.fsdecode(path).encode("utf-8", "backslashreplace").decode() or None


def _is_text(path: bytes) -> bool:
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
