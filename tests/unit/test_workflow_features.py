"""Each feature of a prediction is executed or refused by name in a run: one table for both."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.task import (
    HINTS,
    OPERATIONS,
    PLACEMENTS,
    File,
    Hints,
    Operation,
    Task,
)
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.hints import PLACEMENT, Hint
from penstock.parts.stores.workflow.features import FEATURES, require_executable, uses_set_xattr
from penstock.parts.stores.workflow.folder import paths_of
from penstock.parts.stores.workflow.hints import tags_of, without
from penstock.platform.file import LaunchFile, PreprocessFile, SchedulerFile
from penstock.platform.hosts import Platform

#: fields of a task that do not affect a run, or are features under another name
NO_FEATURES = {"name", "stage", "operations"}


def platform(**sections: Any) -> Platform:
    document = {
        "penstock_platform": 1,
        "name": "two",
        "hosts": [
            {"group": "head", "count": 1, "roles": ["manager"], "manager": {"service": "0.1ms"}},
            {
                "group": "node",
                "count": 2,
                "roles": ["storage", "client"],
                "storage": {"read": "1ms", "write": "1ms"},
                **sections.pop("node", {}),
            },
        ],
        "network": {"bandwidth": "12.5 MB/s", "loopback": "1 GB/s"},
        **sections,
    }
    return Platform.from_dict(document)


def workload(*operations: Operation, hints: Hints | None = None, **fields: Any) -> Workload:
    steps = operations or (Operation("write", "f", 0, 10),)
    return Workload("w", (File("f", hints=hints),), (Task("t", steps, **fields),))


def test_every_feature_of_a_workload_and_a_platform_is_in_the_table() -> None:
    names = {f"op {name}" for name in OPERATIONS}
    names |= {f"hints.placement {name}" for name in PLACEMENTS}
    names |= {f"hints.{name}" for name in HINTS if name != "placement"}
    names |= {f.name for f in dataclasses.fields(Task)} - NO_FEATURES
    for section, part in (
        ("launch", LaunchFile),
        ("scheduler", SchedulerFile),
        ("preprocess", PreprocessFile),
    ):
        names |= {f"{section}.{name}" for name in part.model_fields}
    assert sorted(names - set(FEATURES)) == []


@pytest.mark.parametrize("placement", ["striped", "round_robin", "random", "balanced"])
def test_placements_that_no_store_supports_are_refused_by_name(placement: str) -> None:
    with pytest.raises(BadInput, match=f"file f: found hints.placement {placement}"):
        require_executable(workload(hints=Hints(placement=placement)), platform())


@pytest.mark.parametrize(
    ("hints", "tag"),
    [
        (Hints(host="node-1"), "host node-1"),
        (Hints(placement="host", host="node-1"), "host node-1"),
        (Hints(placement="local", host="node-1"), "local"),
        (Hints(placement="scatter", scatter=2), "scatter 2"),
    ],
)
def test_placements_that_are_executed_are_tags(hints: Hints, tag: str) -> None:
    require_executable(workload(hints=hints), platform())
    assert tags_of(hints)["DP"] == tag
    hint: Hint = PLACEMENT
    # a prediction reads the tag as it reads the hint
    assert hint.model(hint.parse(tag))["placement"] == (hints.placement or "host")


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"scheduler": {"kind": "data_location", "wait": "3s"}}, "scheduler.wait"),
        ({"scheduler": {"kind": "data_location", "inputs": "files"}}, "scheduler.inputs"),
        (
            {"launch": {"stagger": {"kind": "uniform", "low_s": 0.0, "high_s": 1.0}}},
            "launch.stagger",
        ),
    ],
)
def test_platform_features_that_a_run_lacks_are_refused(
    sections: dict[str, Any], expected: str
) -> None:
    with pytest.raises(BadInput, match=expected):
        require_executable(workload(), platform(**sections))


def test_a_distribution_is_refused_anywhere() -> None:
    distribution = {"kind": "exponential", "mean_s": 1.0}
    for refused in (
        workload(launch=distribution),
        workload(Operation("compute", seconds=distribution)),
    ):
        with pytest.raises(BadInput, match=r"task t.*found distribution"):
            require_executable(refused, platform())


def test_executable_features_are_accepted() -> None:
    full = workload(
        Operation("set_xattr", "f", hints=Hints(placement="local", replicas=2)),
        Operation("write", "f", 0, 10),
        Operation("close", "f"),
        Operation("compute", seconds=1.0),
        launch=1.0,
        not_before_s=3.0,
        machine="node",
    )
    with_delays = platform(node={"speed": 2}, launch={"stagger": "1s", "overhead": "1s"})
    require_executable(full, with_delays)
    assert uses_set_xattr(full)


def test_hints_that_a_store_refused_are_not_predicted() -> None:
    hints = Hints(placement="host", host="node-1", replicas=2, chunk_bytes=65536)
    tagged = workload(Operation("set_xattr", "f", hints=hints), hints=hints)
    remaining = without(tagged, [("f", "DP"), ("f", "ChunkSize"), ("g", "Replication")])
    assert remaining.files[0].hints == Hints(replicas=2)
    assert remaining.tasks[0].operations[0].hints == Hints(replicas=2)
    assert without(tagged, []) is tagged


@pytest.mark.parametrize("name", ["../escape", "../../etc/pwn", "a/../../b", "..", "/", "."])
def test_a_file_stays_in_the_directory_of_its_run(name: str) -> None:
    with pytest.raises(BadInput, match="out of the workflow's directory"):
        paths_of([name])


def test_files_have_distinct_paths() -> None:
    assert paths_of(["/abs/x", "d/y", "z"]) == {"/abs/x": "abs/x", "d/y": "d/y", "z": "z"}
    with pytest.raises(BadInput, match="found the path of a/b"):
        paths_of(["a/b", "a//b"])
    with pytest.raises(BadInput, match="below the file d"):
        paths_of(["d", "d/y"])
