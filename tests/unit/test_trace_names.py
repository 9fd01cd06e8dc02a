"""The history of file names from the lines of the daemon."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from penstock.observe.trace.capture.names import Names, read_names


def first(number: int, path: bytes, t_ns: int = 1, unlinked: bool = False) -> dict[str, Any]:
    return {"file_id": number, "t_ns": t_ns, "path_hex": path.hex(), "unlinked": unlinked}


def call(
    op: str, t_ns: int, *names: tuple[bytes, bytes], errno: int = 0, flags: int = 0
) -> list[dict[str, Any]]:
    """The pieces of a call: (directory, text) of each name."""
    common = {"naming": op, "t_ns": t_ns, "tid": 7, "errno": errno, "flags": flags}
    return [
        common | {"which": which} | piece
        for which, (directory, text) in enumerate(names)
        for piece in ({"text_hex": text.hex()}, {"directory_hex": directory.hex()})
    ]


def history(tmp_path: Path, *rows: dict[str, Any]) -> Names:
    lines = tmp_path / "lines"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
    return read_names(lines)


def changes(names: Names) -> list[tuple[int, str, str]]:
    return [
        (row["file_id"], row["kind"], row["path"])
        for row in names.table().to_pylist()
        if row["kind"] != "first"
    ]


def test_texts_start_from_the_directory_of_the_call(tmp_path: Path) -> None:
    names = history(
        tmp_path,
        first(1, b"/d/a"),
        *call("rename", 2, (b"/d/sub", b"../a"), (b"/", b"/d//./b")),
        *call("unlink", 3, (b"/d", b"b")),
    )
    assert changes(names) == [(1, "rename", "/d/b"), (1, "unlink", "/d/b")]


def test_a_replaced_file_loses_its_name_first(tmp_path: Path) -> None:
    names = history(
        tmp_path,
        first(1, b"/a"),
        first(2, b"/b"),
        *call("rename", 2, (b"/", b"a"), (b"/", b"b")),
        *call("unlink", 3, (b"/", b"b")),
    )
    assert changes(names) == [(2, "unlink", "/b"), (1, "rename", "/b"), (1, "unlink", "/b")]


def test_exchanged_names(tmp_path: Path) -> None:
    swap = call("rename", 2, (b"/", b"a"), (b"/", b"b"), flags=2)
    names = history(tmp_path, first(1, b"/a"), first(2, b"/b"), *swap)
    assert changes(names) == [(1, "rename", "/b"), (2, "rename", "/a")]


def test_files_move_with_their_directory_and_neighbours_stay(tmp_path: Path) -> None:
    move = call("rename", 2, (b"/", b"d"), (b"/", b"e"))
    names = history(tmp_path, first(1, b"/d/x"), first(2, b"/dd/x"), *move)
    assert changes(names) == [(1, "rename", "/e/x")]


def test_failed_calls_change_nothing_and_two_links_to_one_file_stay(tmp_path: Path) -> None:
    names = history(
        tmp_path,
        first(1, b"/a"),
        *call("unlink", 2, (b"/", b"a"), errno=13),
        *call("link", 3, (b"/", b"a"), (b"/", b"b")),
        *call("rename", 4, (b"/", b"a"), (b"/", b"b")),
    )
    assert changes(names) == [(1, "link", "/b")]


def test_a_directory_reached_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "way").symlink_to("real")
    root = os.fsencode(tmp_path)
    unlink = call("unlink", 2, (root, b"way/x"))
    names = history(tmp_path, first(1, root + b"/real/x"), *unlink)
    assert changes(names) == [(1, "unlink", f"{tmp_path}/real/x")]


def test_pieces_of_two_calls_may_be_interleaved(tmp_path: Path) -> None:
    first_call = call("unlink", 2, (b"/", b"a"))
    second_call = [row | {"tid": 8} for row in call("unlink", 2, (b"/", b"b"))]
    mixed = [first_call[0], second_call[0], second_call[1], first_call[1]]
    names = history(tmp_path, first(1, b"/a"), first(2, b"/b"), *mixed)
    assert changes(names) == [(2, "unlink", "/b"), (1, "unlink", "/a")]


def test_events_that_name_a_file_get_its_number(tmp_path: Path) -> None:
    names = history(tmp_path, first(4, b"/a"), *call("unlink", 2, (b"/", b"a")))
    assert names.numbers() == [(2, 7, 4)]


def test_names_with_odd_bytes_are_stored_as_bytes(tmp_path: Path) -> None:
    odd = b"/n\n\xff'"
    rows = history(tmp_path, first(1, odd), first(2, b"/plain")).table().to_pylist()
    assert bytes.fromhex(rows[0]["path_hex"]) == odd
    assert rows[1]["path_hex"] is None


def test_sums_of_operations(tmp_path: Path) -> None:
    line = {"operation": "fsync", "of_file": 3, "calls": 5, "errors": 1}
    names = history(tmp_path, line | {"time_ns": 50, "longest_ns": 20})
    rows = names.sums().to_pylist()
    assert rows == [
        {"file_id": 3, "op": "fsync", "calls": 5, "errors": 1, "time_ns": 50, "longest_ns": 20}
    ]


def test_paths_that_could_not_be_opened_are_files_without_an_inode(tmp_path: Path) -> None:
    names = history(
        tmp_path,
        *call("open", 1, (b"/d/sub", b"../none"), errno=2),
        *call("open", 2, (b"/", b"d/later"), errno=2),
        first(1, b"/d/later", t_ns=3),
        *call("open", 4, (b"/d", b"none"), errno=2),
        *call("open", 5, (b"/d", b"later"), errno=13),
        *call("unlink", 6, (b"/d", b"later")),
        *call("open", 7, (b"/d", b"later"), errno=2),
        *call("open", 8, (b"/d", b"\xff"), errno=2),
    )
    not_opened = names.not_opened(10).to_pylist()
    assert [(row["file_id"], row["path"]) for row in not_opened] == [
        (10, "/d/none"),
        (11, "/d/\\udcff"),
    ]
    assert {row[name] for row in not_opened for name in ("inode", "dev_major", "size_bytes")} == {
        None
    }
    # a file that exists before or afterwards has its own number
    assert sorted(names.numbers()) == [
        *((1, 7, 10), (2, 7, 1), (4, 7, 10), (5, 7, 1), (6, 7, 1), (7, 7, 1), (8, 7, 11)),
    ]
    assert changes(names) == [(1, "unlink", "/d/later")]
