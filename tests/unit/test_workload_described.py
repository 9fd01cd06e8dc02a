"""The native description of a workload: contents, mistakes and their positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.check import check_workload
from penstock.parts.prediction.workloads.formats.native_format import workload_from_dict
from penstock.parts.prediction.workloads.read import read_workload
from penstock.parts.prediction.workloads.task import File, Hints, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload

TEXT = """{
 "schema": "penstock/workload/1",
 "name": "two",
 "files": [
  {"name": "in", "size_bytes": 4096, "preloaded": true, "hints": {"placement": "local"}}],
 "tasks": [
  {"name": "a", "stage": "first", "operations": [
   {"op": "open", "file": "in"},
   {"op": "read", "file": "in", "offset_bytes": 0, "size_bytes": 4096},
   {"op": "compute", "seconds": {"kind": "exponential", "mean_s": 2}},
   {"op": "set_xattr", "file": "out", "hints": {"placement": "collocate", "group": "g"}},
   {"op": "write", "file": "out", "offset_bytes": 0, "size_bytes": 10},
   {"op": "close", "file": "out"}]},
  {"name": "b", "machine": "h1", "after": ["a"], "launch": 0.1, "not_before_s": 3, "operations": [
   {"op": "read", "file": "out", "size_bytes": 10}]}]
}
"""


def written(tmp_path: Path, text: str, name: str = "w.json") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_every_property_of_the_schema_survives_a_round_trip(tmp_path: Path) -> None:
    workload = read_workload(written(tmp_path, TEXT))
    assert workload.files == (File("in", 4096, True, Hints(placement="local")),)
    first, second = workload.tasks
    assert first.operations[2].seconds == {"kind": "exponential", "mean_s": 2}
    assert first.operations[3].hints == Hints(placement="collocate", group="g")
    assert second == Task(
        "b", (Operation("read", "out", 0, 10),), "b", "h1", ("a",), 0.1, not_before_s=3.0
    )
    assert workload.dependencies == ((), (0,))
    assert workload.levels == (0, 1)
    assert workload.file_sizes == {"in": 4096, "out": 10}
    assert workload_from_dict(workload.to_dict()) == workload
    assert read_workload(written(tmp_path, workload.to_json(), "again.json")) == workload


def test_the_same_in_yaml(tmp_path: Path) -> None:
    text = """
schema: penstock/workload/1
files:
  - {name: in, size_bytes: 4096, preloaded: true}
tasks:
  - name: a
    operations:
      - {op: read, file: in}
      - {op: compute, seconds: 1.5}
      - {op: write, file: out, size_bytes: 10}
"""
    workload = read_workload(written(tmp_path, text, "w.yaml"))
    assert workload.tasks[0].operations[0] == Operation("read", "in", 0, 4096)
    assert workload.tasks[0].stage == "a"


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


#: planted change; line of the mistake, and text of the message
PLANTED: list[tuple[str, str, int, str]] = [
    (
        '"file": "in", "offset_bytes": 0',
        '"file": "of", "offset_bytes": 0',
        9,
        "'of', which the task 'a' reads",
    ),
    (
        '"op": "open", "file": "in"',
        '"op": "open", "file": "no"',
        8,
        "'no', which the task 'a' opens",
    ),
    ('"after": ["a"]', '"after": ["c"]', 14, "'c', for which the task 'b' waits"),
    ('"after": ["a"]', '"after": ["b"]', 14, "the task 'b' waiting for itself"),
    ('"stage": "first"', '"after": ["b"]', 7, "tasks that wait for each other: a → b → a"),
    ('{"op": "read", "file": "out", "size_bytes": 10}', "", 14, "no operations in the task 'b'"),
    ('"not_before_s": 3', '"not_before_s": -3', 14, "found -3; expected seconds"),
    ('"launch": 0.1', '"launch": -0.1', 14, "the task 'b'"),
    ('"mean_s": 2', '"mean_s": -2', 10, "mean_s is -2"),
    ('"mean_s": 2', '"mean_s": NaN', 10, "found NaN; expected a number"),
    ('"mean_s": 2', '"mean_s": Infinity', 10, "found Infinity"),
    ('"kind": "exponential"', '"kind": "lucky"', 10, "unknown variant `lucky`"),
    ('"size_bytes": 4096}', '"size_bytes": "4096"}', 9, "the text '4096'; expected an integer"),
    (
        '"size_bytes": 4096}',
        '"size_bytes": 4097}',
        9,
        "reading 'in' to byte 4097; expected at most its 4096",
    ),
    (
        '"size_bytes": 4096}',
        '"size_bytes": -1}',
        9,
        "found -1; expected an integer number of bytes",
    ),
    ('"size_bytes": 4096}', '"size_bytes": 1.5}', 9, "found 1.5"),
    ('"size_bytes": 4096}', '"size_bytes": true}', 9, "found true"),
    ('"size_bytes": 4096}', '"size_bytes": 1152921504606846977}', 9, "0 to 2^60"),
    ('"name": "b"', '"name": "a"', 14, "the task 'a' a second time"),
    ('"name": "b"', '"name": ""', 14, "a text that is not empty"),
    ('"machine": "h1"', '"machine": "h1", "machine": "h2"', 14, "'machine' a second time"),
    ('"machine": "h1"', '"machin": "h1"', 14, "`machin`; expected only name"),
    ('"op": "close"', '"op": "shut"', 13, "the text 'shut'; expected open, read"),
    ('"placement": "local"', '"placement": "left"', 5, "one of striped"),
    ('"group": "g"', '"scatter": 0', 11, "found 0; expected an integer of at least 1"),
    ('"group": "g"', '"replicas": 2', 11, "`group` with placement collocate"),
    ('"placement": "collocate"', '"placement": "host"', 11, "`host` with placement host"),
    ('"size_bytes": 4096, "preloaded": true', '"preloaded": true', 5, "no size of 'in'"),
    ('"preloaded": true', '"preloaded": "yes"', 5, "true or false"),
    ("penstock/workload/1", "penstock/workload/2", 2, "'penstock/workload/1' as schema"),
    ('"name": "two",', '"name": "two"', 4, "not JSON"),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"), PLANTED, ids=[p[3][:40] for p in PLANTED]
)
def test_bad_input_names_line_and_task(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    path = written(tmp_path, changed(old, new))
    with pytest.raises(BadInput) as caught:
        read_workload(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}:")


@pytest.mark.parametrize("text", ["", "   ", "[]", "3", "{}", "[1, 2", "\x00", '{"schema": 3}'])
def test_files_that_are_no_workload_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput, match="expected"):
        read_workload(written(tmp_path, text))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_bytes(b'{"schema":\n "\xff"}')
    with pytest.raises(BadInput, match=r"w\.json:2:3: found the byte 0xff"):
        read_workload(path)


def test_a_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_workload(tmp_path / "none.json")


def one_task(*operations: dict[str, Any], files: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    task = {"name": "t", "operations": list(operations)}
    return {"schema": "penstock/workload/1", "files": list(files), "tasks": [task]}


def test_files_of_no_bytes_and_of_ten_terabytes_are_allowed() -> None:
    write = {"op": "write", "file": "f", "offset_bytes": 0}
    for size in (0, 10 * 2**40, 2**60):
        workload = workload_from_dict(one_task(write | {"size_bytes": size}))
        assert workload.file_sizes == {"f": size}
        assert json.loads(workload.to_json())["tasks"][0]["operations"][0]["size_bytes"] == size


def test_a_size_that_the_writers_contradict_is_refused() -> None:
    write = {"op": "write", "file": "f", "offset_bytes": 5, "size_bytes": 5}
    workload_from_dict(one_task(write, files=({"name": "f", "size_bytes": 10},)))
    with pytest.raises(BadInput, match="found 11 bytes of 'f'; expected 10"):
        workload_from_dict(one_task(write, files=({"name": "f", "size_bytes": 11},)))


def test_check_of_a_workload_made_in_python_names_the_task() -> None:
    workload = Workload("w", (), (Task("t", (Operation("read", "f", 0, 1),)),))
    with pytest.raises(BadInput, match="'f', which the task 't' reads and no task writes"):
        check_workload(workload)


def test_a_file_changed_in_place_waits_for_the_writers_ahead_in_the_list() -> None:
    write, read = Operation("write", "f", 0, 1), Operation("read", "f", 0, 1)
    workload = Workload(
        "w",
        (),
        (
            Task("a", (write,)),
            Task("b", (read, write)),
            Task("c", (read, write)),
            Task("d", (read,)),
        ),
    )
    check_workload(workload)
    assert workload.dependencies == ((), (0,), (1,), (0, 1, 2))


def test_a_reader_does_not_wait_for_later_writers_of_an_input() -> None:
    write, read = Operation("write", "f", 0, 1), Operation("read", "f", 0, 1)
    files = (File("f", 1, preloaded=True),)
    workload = Workload("w", files, (Task("a", (read,)), Task("b", (write,)), Task("c", (read,))))
    check_workload(workload)
    assert workload.dependencies == ((), (), (1,))


def test_json_is_suggested_for_a_long_yaml_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spec.source._MOST", 100)
    row = "      - {op: compute, seconds: 1}\n"
    text = "schema: penstock/workload/1\ntasks:\n  - name: a\n    operations:\n" + row * 34
    with pytest.raises(BadInput, match="expected a workload; JSON if it is this long"):
        read_workload(written(tmp_path, text, "w.yaml"))
