"""Each version of WfFormat by its own rules: properties of other versions are mistakes, with their line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.read import read_workload

FILES = [{"id": "a", "sizeInBytes": 10}, {"id": "b", "sizeInBytes": 20}]
SMALL: dict[str, Any] = {
    "1.4": {
        "name": "two",
        "schemaVersion": "1.4",
        "wms": {"name": "w", "version": "1"},
        "workflow": {
            "makespanInSeconds": 3,
            "executedAt": "2024-05-01T10:00:00Z",
            "machines": [{"nodeName": "n1", "cpu": {"count": 8, "speed": 2400}}],
            "tasks": [
                {
                    "name": "make it",
                    "type": "compute",
                    "parents": [],
                    "cores": 1,
                    "energy": 1.0,
                    "machine": "n1",
                    "runtimeInSeconds": 1,
                    "files": [{"link": "output", "name": "a", "sizeInBytes": 10}],
                },
                {
                    "name": "use",
                    "type": "compute",
                    "parents": ["make it"],
                    "runtimeInSeconds": 2,
                    "files": [{"link": "input", "name": "a", "sizeInBytes": 10}],
                },
            ],
        },
    },
    "1.5": {
        "name": "two",
        "schemaVersion": "1.5",
        "runtimeSystem": {"name": "w", "version": "1"},
        "workflow": {
            "specification": {
                "tasks": [
                    {
                        "name": "make",
                        "id": "T#1",
                        "parents": [],
                        "children": ["T2"],
                        "outputFiles": ["a"],
                    },
                    {
                        "name": "use",
                        "id": "T2",
                        "parents": ["T#1"],
                        "children": [],
                        "inputFiles": ["a"],
                        "outputFiles": ["b"],
                    },
                ],
                "files": FILES,
            },
            "execution": {
                "makespanInSeconds": 3,
                "executedAt": "2024-05-01T10:00:00Z",
                "tasks": [
                    {"id": "T#1", "runtimeInSeconds": 1, "coreCount": 1, "machines": ["n1"]},
                    {"id": "T2", "runtimeInSeconds": 2, "energyInKWh": 0.1},
                ],
                "machines": [{"nodeName": "n1", "cpu": {"coreCount": 8, "speedInMHz": 2400}}],
            },
        },
    },
}
SMALL["1.3"] = json.loads(
    json.dumps(SMALL["1.4"])
    .replace('"1.4"', '"1.3"')
    .replace("InSeconds", "")
    .replace("sizeInBytes", "size")
)
SMALL["1.2"] = json.loads(
    json.dumps(SMALL["1.3"]).replace('"1.3"', '"1.2"').replace('"tasks"', '"jobs"')
)
SMALL["1.6"] = copy.deepcopy(SMALL["1.5"]) | {"schemaVersion": "1.6"}
SMALL["1.6"]["workflow"]["specification"]["metrics"] = {
    "numberOfTasks": 2,
    "numberOfFiles": 2,
    "sumOfFileSizesInBytes": 30,
}
SMALL["1.6"]["workflow"]["execution"]["metrics"] = {"sumTaskRuntimesInSeconds": 3.0}

FLAT, SPEC, RUN = "workflow", "workflow.specification", "workflow.execution"

#: versions, position, property and value, parts of `found`, parts of `expected`
FOREIGN = [
    ("1.2", FLAT, {"tasks": []}, "`tasks`, which WfFormat 1.3 has and 1.2", "`jobs` in 1.2"),
    ("1.2", FLAT, {"specification": {}}, "`specification`, which WfFormat 1.5", "`jobs`"),
    ("1.2", "workflow.jobs.1", {"inputFiles": ["a"]}, "`inputFiles`, which", "`files` with `link`"),
    ("1.2", "workflow.jobs.1", {"runtimeInSeconds": 1}, "`runtimeInSeconds`", "`runtime` in 1.2"),
    ("1.2 1.3", FLAT, {"makespanInSeconds": 3}, "which WfFormat 1.4 has", "`makespan` in"),
    ("1.3 1.4", FLAT, {"jobs": []}, "`jobs`, which WfFormat 1.2 has", "`tasks` in"),
    ("1.3", "workflow.tasks.0", {"readBytes": 1}, "`readBytes`, which", "`bytesRead` in 1.3"),
    ("1.3", "workflow.tasks.0.files.0", {"sizeInBytes": 1}, "`sizeInBytes`", "`size` in 1.3"),
    ("1.3", "workflow.machines.0", {"memoryInBytes": 1}, "`memoryInBytes`", "`memory` in 1.3"),
    ("1.4", FLAT, {"makespan": 3}, "`makespan`, which WfFormat 1.3", "`makespanInSeconds` in"),
    ("1.4", "workflow.tasks.1", {"runtime": 3}, "`runtime`, which", "`runtimeInSeconds` in 1.4"),
    ("1.4", "workflow.tasks.1.files.0", {"size": 3}, "`size`, which", "`sizeInBytes` in 1.4"),
    ("1.4", "", {"runtimeSystem": {}}, "`runtimeSystem`, which WfFormat 1.5 has", "`wms` in 1.4"),
    ("1.4", FLAT, {"specification": {}}, "`specification`, which WfFormat 1.5", "`tasks`"),
    ("1.4", FLAT, {"execution": {}}, "`execution`, which WfFormat 1.5 has", "in `tasks` in 1.4"),
    ("1.4", FLAT, {"metrics": {}}, "`metrics`, which WfFormat 1.6 has and 1.4", "no `metrics`"),
    (
        "1.4",
        "workflow.tasks.1",
        {"inputFiles": ["a"]},
        "`inputFiles`, which",
        "`files` with `link`",
    ),
    ("1.4", "workflow.tasks.1", {"outputFiles": []}, "`outputFiles`, which", "`files` with `link`"),
    ("1.4", "workflow.tasks.1", {"coreCount": 2}, "`coreCount`, which", "`cores` in 1.4"),
    ("1.4", "workflow.tasks.1", {"energyInKWh": 2}, "`energyInKWh`, which", "`energy` in 1.4"),
    ("1.4", "workflow.tasks.1", {"avgPowerInW": 2}, "`avgPowerInW`, which", "`avgPower` in 1.4"),
    ("1.4", "workflow.tasks.1", {"machines": ["n1"]}, "`machines`, which", "`machine`, one text"),
    ("1.4", "workflow.tasks.1", {"executedAt": "x"}, "`executedAt`, which", "of the workflow"),
    ("1.4", "workflow.tasks.1.files.0", {"id": "a"}, "`id`, which WfFormat 1.5", "`name` in 1.4"),
    ("1.4", "workflow.machines.0.cpu", {"coreCount": 1}, "`coreCount`, which", "`count` in 1.4"),
    ("1.4", "workflow.machines.0.cpu", {"speedInMHz": 1}, "`speedInMHz`, which", "`speed` in 1.4"),
    ("1.5 1.6", "", {"wms": {}}, "`wms`, which WfFormat 1.4 has", "`runtimeSystem` in"),
    ("1.5 1.6", FLAT, {"tasks": []}, "`tasks`, which WfFormat 1.4 has", "`specification`"),
    ("1.5 1.6", FLAT, {"machines": []}, "`machines`, which WfFormat 1.4", "`execution`"),
    ("1.5 1.6", FLAT, {"makespanInSeconds": 3}, "`makespanInSeconds`, which", "`execution`"),
    ("1.5 1.6", FLAT, {"executedAt": "x"}, "`executedAt`, which WfFormat 1.4", "`execution`"),
    ("1.5 1.6", f"{SPEC}.tasks.0", {"files": []}, "`files`, which WfFormat 1.4", "`outputFiles`"),
    ("1.5 1.6", f"{SPEC}.tasks.0", {"runtimeInSeconds": 1}, "`runtimeInSeconds`", "in `execution"),
    ("1.5 1.6", f"{SPEC}.tasks.0", {"cores": 1}, "`cores`, which WfFormat 1.4", "`coreCount`"),
    ("1.5 1.6", f"{SPEC}.files.1", {"link": "input"}, "`link`, which WfFormat 1.4", "of tasks"),
    ("1.5 1.6", f"{RUN}.tasks.1", {"cores": 1}, "`cores`, which WfFormat 1.4", "`coreCount` in"),
    ("1.5 1.6", f"{RUN}.tasks.1", {"energy": 1}, "`energy`, which", "`energyInKWh` in"),
    ("1.5 1.6", f"{RUN}.tasks.1", {"avgPower": 1}, "`avgPower`, which", "`avgPowerInW` in"),
    ("1.5 1.6", f"{RUN}.tasks.1", {"files": []}, "`files`, which", "`specification.tasks`"),
    ("1.5 1.6", f"{RUN}.machines.0.cpu", {"count": 1}, "`count`, which", "`coreCount` in"),
    ("1.5 1.6", f"{RUN}.machines.0.cpu", {"speed": 1}, "`speed`, which", "`speedInMHz` in"),
    ("1.5", SPEC, {"metrics": {}}, "`metrics`, which WfFormat 1.6 has and 1.5 has", "no `metrics`"),
    ("1.5", RUN, {"metrics": {}}, "`metrics`, which WfFormat 1.6 has and 1.5 has", "no `metrics`"),
]
CASES = [(v, *rest) for versions, *rest in FOREIGN for v in versions.split()]


def at(values: Any, position: str) -> Any:
    for step in position.split(".") if position else []:
        values = values[int(step) if step.isdecimal() else step]
    return values


def written(tmp_path: Path, values: Any) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(values, indent=1))
    return path


def refused(tmp_path: Path, values: Any) -> tuple[str, str, str]:
    """The line of the only mistake, its `found` and its `expected`."""
    path = written(tmp_path, values)
    with pytest.raises(BadInput) as caught:
        read_workload(path)
    (mistake,) = caught.value.mistakes
    assert mistake.file == str(path)
    return path.read_text().splitlines()[mistake.line - 1], mistake.found, mistake.expected


@pytest.mark.parametrize("version", list(SMALL))
def test_small_files_of_each_version_are_read(version: str, tmp_path: Path) -> None:
    workload = read_workload(written(tmp_path, SMALL[version]))
    assert workload.dependencies == ((), (0,))
    assert not any("metrics" in note for note in workload.notes)


@pytest.mark.parametrize(
    ("version", "position", "planted", "found", "expected"),
    CASES,
    ids=[f"{c[0]} {c[1]} {next(iter(c[2]))}" for c in CASES],
)
def test_properties_of_another_version_are_mistakes(
    version: str, position: str, planted: dict[str, Any], found: str, expected: str, tmp_path: Path
) -> None:
    values = copy.deepcopy(SMALL[version])
    at(values, position).update(planted)
    line, actual_found, actual_expected = refused(tmp_path, values)
    assert found in actual_found
    assert expected in actual_expected
    assert f'"{next(iter(planted))}"' in line


@pytest.mark.parametrize("version", list(SMALL))
def test_properties_of_no_version_are_allowed(version: str, tmp_path: Path) -> None:
    values = copy.deepcopy(SMALL[version])
    values["house"] = values["workflow"]["house"] = {"metrics": 1, "wms": 2}
    assert read_workload(written(tmp_path, values)).dependencies == ((), (0,))


@pytest.mark.parametrize("version", ["1.5", "1.6"])
def test_a_parent_by_name_is_a_mistake_since_1_5(version: str, tmp_path: Path) -> None:
    values = copy.deepcopy(SMALL[version])
    at(values, f"{SPEC}.tasks.1")["parents"] = ["make"]
    line, found, expected = refused(tmp_path, values)
    assert line.strip() == '"make"'
    assert found == "'make' among the parents of the task 'T2', a name"
    assert expected == f"an id in {version}, such as 'T#1'"


def test_a_parent_by_id_is_a_mistake_in_1_4(tmp_path: Path) -> None:
    values = copy.deepcopy(SMALL["1.4"])
    at(values, "workflow.tasks.1")["parents"] = ["T#1"]
    _, found, expected = refused(tmp_path, values)
    assert "'T#1'" in found
    assert expected == "the name of a task"


@pytest.mark.parametrize(
    ("version", "task_id", "allowed"),
    [
        ("1.5", "T:1", False),
        ("1.5", "T/1", False),
        ("1.5", "T 1", False),
        ("1.5", "T.1-a_#", True),
        ("1.6", "T:1", True),
        ("1.6", "a/T#1", True),
        ("1.6", "T 1", False),
    ],
)
def test_characters_of_task_ids(version: str, task_id: str, allowed: bool, tmp_path: Path) -> None:
    text = json.dumps(SMALL[version], indent=1).replace('"T#1"', json.dumps(task_id))
    values = json.loads(text)
    if allowed:
        assert read_workload(written(tmp_path, values)).tasks[0].name == task_id
        return
    line, found, expected = refused(tmp_path, values)
    assert f'"id": "{task_id}"' in line
    assert found == f"the text '{task_id}' as the id of a task"
    assert expected.endswith(f"in {version}")


@pytest.mark.parametrize("version", ["1.5", "1.6"])
def test_characters_of_file_ids(version: str, tmp_path: Path) -> None:
    valid = json.loads(json.dumps(SMALL[version]).replace('"a"', '"/data/a:1#2"'))
    assert "/data/a:1#2" in read_workload(written(tmp_path, valid)).file_sizes
    values = json.loads(json.dumps(SMALL[version]).replace('"a"', '"a file"'))
    _, found, _ = refused(tmp_path, values)
    assert found == "the text 'a file' as the id of a file"


def test_metrics_of_1_6(tmp_path: Path) -> None:
    values = copy.deepcopy(SMALL["1.6"])
    at(values, SPEC)["metrics"]["numberOfTasks"] = "two"
    line, found, expected = refused(tmp_path, values)
    assert '"numberOfTasks": "two"' in line
    assert (found, expected) == (
        "the text 'two' as `numberOfTasks`",
        "an integer of at least 0",
    )
    at(values, SPEC)["metrics"]["numberOfTasks"] = 3
    notes = read_workload(written(tmp_path, values)).notes
    assert "`metrics` say numberOfTasks 3; it is 2" in notes


def test_a_file_with_a_wrong_version_names_each_property_once(tmp_path: Path) -> None:
    values = copy.deepcopy(SMALL["1.6"]) | {"schemaVersion": "1.4"}
    path = written(tmp_path, values)
    with pytest.raises(BadInput) as caught:
        read_workload(path)
    properties = [m.found.partition(",")[0] for m in caught.value.mistakes]
    assert properties == ["`runtimeSystem`", "`specification`", "`execution`"]
