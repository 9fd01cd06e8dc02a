"""Round trips of any workload; check and simulator refuse the same ones."""

from __future__ import annotations

import importlib
import json
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.check import problems
from penstock.parts.prediction.workloads.formats.document import document_of
from penstock.parts.prediction.workloads.formats.native_format import workload_from_dict
from penstock.parts.prediction.workloads.formats.upgrade import instance_of
from penstock.parts.prediction.workloads.formats.wfformat import workload_of_instance
from penstock.parts.prediction.workloads.task import File, Hints, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload

native: Any = importlib.import_module("penstock._native")

FILES = ["a", "b", "c/d", "e f"]
SIZES = st.one_of(st.integers(0, 100), st.sampled_from([2**40, 2**59]))
TIMES = st.one_of(
    st.floats(0, 1e6),
    st.floats(0.001, 100).map(lambda m: {"kind": "exponential", "mean_s": m}),
)
HINTS = st.builds(
    Hints,
    placement=st.sampled_from([None, "local", "striped", "random"]),
    replicas=st.sampled_from([None, 1, 3]),
    chunk_bytes=st.sampled_from([None, 65536]),
)
FILE = st.sampled_from(FILES)
OPERATION = st.one_of(
    st.builds(Operation, st.sampled_from(["read", "write"]), FILE, st.integers(0, 50), SIZES),
    st.builds(Operation, st.sampled_from(["open", "close"]), FILE),
    st.builds(lambda s: Operation("compute", seconds=s), TIMES),
    st.builds(lambda f, h: Operation("set_xattr", f, hints=h), FILE, HINTS),
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Workloads of a few tasks on a few files; many of them cannot be run."""
    names = [f"t{i}" for i in range(draw(st.integers(1, 5)))]
    tasks = tuple(
        Task(
            name,
            tuple(
                draw(st.lists(OPERATION, min_size=draw(st.sampled_from([1, 1, 1, 0])), max_size=4))
            ),
            draw(st.sampled_from(["", "one", "two"])) or name,
            after=tuple(draw(st.lists(st.sampled_from(names), max_size=2, unique=True))),
            launch=draw(st.one_of(st.none(), TIMES)),
            not_before_s=draw(st.sampled_from([0.0, 2.5])),
        )
        for name in names
    )
    files = tuple(
        File(name, draw(SIZES), True, draw(st.one_of(st.none(), HINTS)))
        for name in FILES
        if draw(st.booleans())
    )
    return Workload("w", files, tasks)


QUICK = settings(max_examples=150, suppress_health_check=list(HealthCheck))


#: the only writer of a file reads it before
READ_FIRST = Task("t0", (Operation("read", "a", 0, 0), Operation("write", "a", 0, 0)), "t0")


@QUICK
@given(workloads())
@example(Workload("w", (), (READ_FIRST,)))
def test_the_simulator_accepts_exactly_the_workloads_that_pass_the_check(
    workload: Workload,
) -> None:
    mistakes = problems(workload)
    try:
        native.NetworkWorkload(workload.to_json())
        refused = ""
    except ValueError as error:
        refused = str(error)
    # opening a file that no task writes is an error for the check, and no event for the simulator
    if all("opens" in p.found or "closes" in p.found for p in mistakes):
        assert not refused, refused
    else:
        assert refused, [str(problem) for problem in mistakes]


@QUICK
@given(workloads())
def test_valid_workloads_survive_text_and_wfformat(workload: Workload) -> None:
    if problems(workload):
        try:
            workload_from_dict(workload.to_dict())
        except BadInput:
            return
        raise AssertionError("refused by the check, but accepted from its text")
    assert workload_from_dict(workload.to_dict()) == workload
    text = json.dumps(instance_of(workload))
    assert workload_of_instance(document_of(text.encode(), "w.json")) == workload


@QUICK
@given(workloads())
def test_the_level_of_a_task_is_one_above_its_deepest_predecessor(workload: Workload) -> None:
    if problems(workload):
        return
    for level, waits in zip(workload.levels, workload.dependencies, strict=True):
        assert level == max((workload.levels[i] + 1 for i in waits), default=0)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


@QUICK
@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.sampled_from([None, 0, 1, 3]))
def test_positions_in_any_json_point_to_the_values(
    value: dict[str, Any], indent: int | None
) -> None:
    if not value:
        return
    text = json.dumps(value, indent=indent)
    document = document_of(text.encode(), "any.json")
    lines = text.splitlines()

    def walk(expected: Any, path: tuple[str | int, ...]) -> None:
        place = document.at(path)
        offset = sum(len(line) + 1 for line in lines[: place.line - 1]) + place.column - 1
        parsed, _ = json.JSONDecoder().raw_decode(text, offset)
        assert parsed == expected
        if isinstance(expected, dict | list):
            steps = expected.items() if isinstance(expected, dict) else enumerate(expected)
            for step, inner in steps:
                walk(inner, (*path, step))

    walk(value, ())


@QUICK
@given(st.text(max_size=40) | st.sampled_from(["{", "[{", '{"a":1,}', '{"schema":', "{}", "[]"]))
def test_any_text_is_a_workload_or_one_clear_error(text: str) -> None:
    message = "expected"
    try:
        workload_from_dict(document_of(text.encode("utf-8", "surrogatepass"), "any").value)
    except BadInput as error:
        message = str(error)
    assert "expected" in message
