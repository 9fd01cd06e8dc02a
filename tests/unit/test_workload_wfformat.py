"""WfFormat 1.2 to 1.6: our own small instances, instances of WfCommons, and refused files."""

from __future__ import annotations

import copy
import json
import logging
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.formats.instance import Job, stages
from penstock.parts.prediction.workloads.formats.native_format import workload_from_dict
from penstock.parts.prediction.workloads.formats.upgrade import instance_of
from penstock.parts.prediction.workloads.make import make_workload
from penstock.parts.prediction.workloads.read import read_workload
from penstock.parts.prediction.workloads.task import Operation

GOLDEN = Path(__file__).parent.parent / "golden" / "wfformat"
VERSIONS = ["1.2", "1.3", "1.4", "1.5", "1.6"]

_NAME = {"type": "string", "minLength": 1, "pattern": r"^[0-9a-zA-Z_.#:/-]+$"}
_COUNT = {"type": "integer", "minimum": 0}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least}


#: WfFormat 1.6 by its README: required properties, types, and characters
SCHEMA_16 = _object(
    "name schemaVersion workflow",
    name={"type": "string", "minLength": 1},
    schemaVersion={"const": "1.6"},
    runtimeSystem=_object("name version"),
    author=_object("name email"),
    workflow=_object(
        "specification",
        specification=_object(
            "tasks",
            tasks=_list(
                _object(
                    "name id parents children",
                    name={"type": "string", "minLength": 1},
                    id=_NAME,
                    parents=_list(_NAME),
                    children=_list(_NAME),
                    inputFiles=_list(_NAME),
                    outputFiles=_list(_NAME),
                ),
                1,
            ),
            files=_list(_object("id sizeInBytes", id=_NAME, sizeInBytes=_COUNT)),
            metrics=_object(
                "",
                numberOfTasks=_COUNT,
                numberOfFiles=_COUNT,
                sumOfFileSizesInBytes=_COUNT,
                numberOfLevels=_COUNT,
                minimumWidth=_COUNT,
                maximumWidth=_COUNT,
            ),
        ),
        execution=_object(
            "makespanInSeconds executedAt tasks",
            makespanInSeconds={"type": "number"},
            executedAt={"type": "string", "minLength": 1},
            tasks=_list(
                _object(
                    "id runtimeInSeconds",
                    id=_NAME,
                    runtimeInSeconds={"type": "number"},
                    coreCount={"type": "number", "minimum": 1},
                    avgCPU={"type": "number"},
                    readBytes={"type": "number"},
                    writtenBytes={"type": "number"},
                    machines=_list({"type": "string", "minLength": 1}),
                ),
                1,
            ),
            machines=_list(_object("nodeName"), 1),
            metrics=_object(
                "",
                sumTaskRuntimesInSeconds={"type": "number", "minimum": 0},
                totalNumBytesRead=_COUNT,
                totalNumBytesWritten=_COUNT,
            ),
        ),
    ),
)


def valid(instance: Any, tmp_path: Path) -> None:
    """Check an instance against the schema, and by the semantic checks of WfCommons, warnings included."""
    from wfcommons.wfinstances.schema import SchemaValidator

    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA_16))
    logging.getLogger("wfcommons").setLevel(logging.CRITICAL)
    validator = SchemaValidator(schema_file_path=schema)
    validator.validate_instance(instance)
    assert validator.errors == []
    assert validator.warnings == []


def golden(version: str) -> Any:
    return json.loads((GOLDEN / f"diamond-{version}.json").read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gives_the_same_workload(version: str) -> None:
    workload = read_workload(GOLDEN / f"diamond-{version}.json")
    assert workload.name == "diamond"
    assert [task.stage for task in workload.tasks] == ["split", "sort", "sort", "merge"]
    assert workload.dependencies == ((), (0,), (0,), (1, 2))
    assert list(workload.file_sizes.values()) == [1000, 600, 400, 600, 400, 1000]
    assert [file.preloaded for file in workload.files] == [True, *[False] * 5]
    # half of 2 s by avgCPU; two cores at 90 % each never wait; without avgCPU or at 0, all time computes
    computing = [
        [o.seconds for o in task.operations if o.op == "compute"] for task in workload.tasks
    ]
    assert computing == [[1.0], [4.0], [3.0], [1.0]]
    whole, half = workload.files[0].name, workload.files[1].name
    assert workload.tasks[0].operations == (
        Operation("open", whole),
        Operation("read", whole, 0, 1000),
        Operation("compute", seconds=1.0),
        Operation("write", half, 0, 600),
        Operation("write", workload.files[2].name, 0, 400),
    )
    assert any("1 tasks used several cores (up to 2)" in note for note in workload.notes)


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 2.0), (0.25, 1.5), (1.0, 0.0)])
def test_an_io_share_replaces_avg_cpu(share: float, seconds: float) -> None:
    workload = read_workload(GOLDEN / "diamond-1.5.json", io_share=share)
    seconds_found = sum(float(o.seconds) for o in workload.tasks[0].operations if o.op == "compute")  # type: ignore[arg-type]
    assert seconds_found == seconds


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_converts_to_a_valid_and_equal_1_6_instance(
    version: str, tmp_path: Path
) -> None:
    workload = read_workload(GOLDEN / f"diamond-{version}.json")
    instance = instance_of(workload)
    valid(instance, tmp_path)
    path = tmp_path / "again.json"
    path.write_text(json.dumps(instance))
    again = read_workload(path)
    assert again.dependencies == workload.dependencies
    assert [t.stage for t in again.tasks] == [t.stage for t in workload.tasks]
    assert list(again.file_sizes.values()) == list(workload.file_sizes.values())
    assert instance_of(again) == instance


def test_unknown_properties_survive_the_conversion_to_1_6() -> None:
    flat = instance_of(read_workload(GOLDEN / "diamond-1.4.json"))
    assert flat["house"] == {"colour": "blue"}
    assert flat["runtimeSystem"]["name"] == "by-hand"
    workflow = flat["workflow"]
    assert workflow["weather"] == "fair"
    executed = {task["id"]: task for task in workflow["execution"]["tasks"]}
    assert executed["split_ID01"]["mood"] == "good"
    assert executed["split_ID01"]["machines"] == ["n1"]
    assert executed["sort_ID02"]["coreCount"] == 2
    machine = workflow["execution"]["machines"][0]
    assert machine == {"nodeName": "n1", "cpu": {"coreCount": 8, "speedInMHz": 2400}, "shelf": 3}
    files = {file["id"]: file for file in workflow["specification"]["files"]}
    assert files["data/whole.txt"]["path"] == "data/"
    assert files["half.0"]["kept"] is True
    # blanks are allowed in 1.4 only
    (merged,) = (file for file in files.values() if "originalId" in file)
    assert merged["originalId"] == "merged file.txt"
    assert merged["id"] in workflow["specification"]["tasks"][3]["outputFiles"]
    split = instance_of(read_workload(GOLDEN / "diamond-1.5.json"))
    assert split["workflow"]["specification"]["tasks"][0]["mood"] == "good"
    assert split["workflow"]["specification"]["files"][0]["kept"] is True
    latest = instance_of(read_workload(GOLDEN / "diamond-1.6.json"))
    original = golden("1.6")
    assert (
        latest["workflow"]["specification"]["metrics"]
        == (original["workflow"]["specification"]["metrics"])
    )
    assert latest["createdAt"] == original["createdAt"]
    assert (
        latest["workflow"]["specification"]["tasks"]
        == (original["workflow"]["specification"]["tasks"])
    )


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_kilobytes_of_old_versions_are_bytes_in_1_6(version: str) -> None:
    workload = read_workload(GOLDEN / f"diamond-{version}.json")
    # the schema has file sizes in KB as well, but the public instances have bytes
    assert any("`size` of files is read as bytes" in note for note in workload.notes)
    instance = instance_of(workload)
    execution = instance["workflow"]["execution"]
    assert execution["machines"][0]["memoryInBytes"] == 16_000_000_000
    assert execution["tasks"][0]["readBytes"] == 1000
    assert execution["makespanInSeconds"] == 9.5
    assert execution["tasks"][3]["command"]["program"] == "sort"
    assert workload.tasks[3].command is not None


@pytest.mark.parametrize(
    "kind", ["pipeline", "reduce", "scatter", "gather", "checkpoint", "montage"]
)
def test_own_workloads_survive_a_round_trip_through_wfformat(kind: str, tmp_path: Path) -> None:
    workload = make_workload(
        kind, "small", {"optimised": True, "width": 5, "launch": 0.2, "shared": True}
    )
    instance = instance_of(workload)
    valid(instance, tmp_path)
    path = tmp_path / "own.json"
    path.write_text(json.dumps(instance))
    assert read_workload(path) == workload
    # another program changed the size of a file: the standard property overrides our extension
    changed = copy.deepcopy(instance)
    changed["workflow"]["specification"]["files"][0]["sizeInBytes"] += 1
    path.write_text(json.dumps(changed))
    assert read_workload(path) != workload


def test_a_distribution_is_exported_as_its_mean_and_read_back(tmp_path: Path) -> None:
    values = make_workload("pipeline", "small", {"width": 1}).to_dict()
    values["tasks"][0]["operations"].append(
        {"op": "compute", "seconds": {"kind": "exponential", "mean_s": 2.5}}
    )
    workload = workload_from_dict(values)
    instance = instance_of(workload)
    assert instance["workflow"]["execution"]["tasks"][0]["runtimeInSeconds"] == 2.5
    path = tmp_path / "own.json"
    path.write_text(json.dumps(instance))
    assert read_workload(path) == workload


Change = Any


def put(*path: Any) -> Any:
    """Change that sets the value at `path`; the last item is the value."""
    *parents, last, value = path

    def change(values: Any) -> None:
        for step in parents:
            values = values[step]
        values[last] = value

    return change


def drop(*path: Any) -> Any:
    *parents, last = path

    def change(values: Any) -> None:
        for step in parents:
            values = values[step]
        del values[last]

    return change


SPEC = ("workflow", "specification")
TASKS = (*SPEC, "tasks")
FLAT = ("workflow", "tasks")

#: version, planted mistake, and text that the message must contain
BROKEN: list[tuple[str, Any, str]] = [
    (
        "1.5",
        put("schemaVersion", "1.7"),
        "found the text '1.7'; expected one of 1.2, 1.3, 1.4, 1.5, 1.6",
    ),
    ("1.5", put("schemaVersion", 1.5), "found 1.5; expected one of"),
    ("1.5", put("schemaVersion", "1.1"), "'1.1'"),
    ("1.5", put(*TASKS, 1, "parents", []), "'ID02' among the children of the task 'ID01'"),
    ("1.5", put(*TASKS, 0, "children", []), "'ID01' among the parents of the task 'ID02'"),
    ("1.5", put(*TASKS, 1, "parents", ["ID9"]), "'ID9' among the parents of the task 'ID02'"),
    ("1.5", put(*TASKS, 1, "parents", ["ID02"]), "the task 'ID02' among its own parents"),
    ("1.5", put(*TASKS, 1, "id", "ID01"), "the task 'ID01' a second time"),
    ("1.5", put(*TASKS, 1, "id", 7), "`id` of a task"),
    (
        "1.5",
        put(*TASKS, 1, "inputFiles", ["nowhere"]),
        "'nowhere', a file of the task 'ID02' of unknown size",
    ),
    (
        "1.5",
        put(*TASKS, 1, "inputFiles", "half.0"),
        "a list of texts as `inputFiles` of the task 'ID02'",
    ),
    ("1.5", put(*TASKS, 1, "inputFiles", [["half.0"]]), "a list of texts as `inputFiles`"),
    ("1.5", put(*TASKS, 1, "inputFiles", 5), "found 5; expected a list of texts as `inputFiles`"),
    ("1.5", drop(*SPEC, "files"), "a file of the task 'ID01' of unknown size"),
    ("1.5", put(*SPEC, "files", 1, "sizeInBytes", "600"), "the text '600'; expected `sizeInBytes`"),
    ("1.5", put(*SPEC, "files", 1, "sizeInBytes", None), "of the file 'half.0'"),
    ("1.5", put(*SPEC, "files", 1, "sizeInBytes", -1), "found -1"),
    ("1.5", put(*SPEC, "files", 1, "sizeInBytes", 1.5), "found 1.5"),
    ("1.5", put(*SPEC, "files", 1, "id", "data_whole.txt"), "each file once"),
    ("1.5", put(*SPEC, "files", {}), "a list `files`"),
    ("1.5", drop(*TASKS), "a list `tasks`"),
    ("1.5", put("workflow", {"specification": {"tasks": []}}), "no tasks"),
    ("1.5", drop(*SPEC), "an object `specification`"),
    ("1.5", drop("workflow"), "an object `workflow`"),
    (
        "1.5",
        put("workflow", "execution", "tasks", 1, "runtimeInSeconds", -4),
        "found -4; expected a finite number",
    ),
    (
        "1.5",
        put("workflow", "execution", "tasks", 1, "runtimeInSeconds", "4"),
        "of the task 'ID02'",
    ),
    (
        "1.5",
        put("workflow", "execution", "tasks", 1, "runtimeInSeconds", float("nan")),
        "found NaN",
    ),
    (
        "1.5",
        put("workflow", "execution", "tasks", 1, "id", "ID01"),
        "the task 'ID01' a second time",
    ),
    ("1.5", put("workflow", "execution", "tasks", 1, "id", "ID7"), "which `specification` has not"),
    (
        "1.4",
        put(*FLAT, 1, "parents", ["split_ID99"]),
        "'split_ID99', named by the task 'sort_ID02'",
    ),
    ("1.4", put(*FLAT, 0, "parents", ["merge ID04"]), "tasks that wait for each other"),
    ("1.4", put(*FLAT, 1, "name", "sort_ID03"), "'sort_ID02', named by the task 'merge ID04'"),
    (
        "1.4",
        put(*FLAT, 0, "children", ["sort_ID02"]),
        "'split_ID01' among the parents of the task 'sort_ID03'",
    ),
    (
        "1.4",
        drop(*FLAT, 1, "files", 0, "sizeInBytes"),
        "of the file 'half.0' of the task 'sort_ID02'",
    ),
    ("1.4", put(*FLAT, 1, "files", 0, "link", "both"), "input or output"),
    ("1.3", put(*FLAT, 1, "files", 0, "size", -1), "found -1; expected `size`"),
    ("1.3", put(*FLAT, 1, "runtime", "4"), "`runtime` of the task 'sort_ID02'"),
    ("1.2", drop("workflow", "jobs"), "a list `jobs`"),
]


@pytest.mark.parametrize(("version", "change", "message"), BROKEN, ids=[b[2][:50] for b in BROKEN])
def test_bad_input_names_file_line_and_task(
    version: str, change: Change, message: str, tmp_path: Path
) -> None:
    values = golden(version)
    change(values)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(values, indent=1))
    with pytest.raises(BadInput) as caught:
        read_workload(path)
    assert message in str(caught.value)
    for mistake in caught.value.mistakes:
        line = path.read_text().splitlines()[mistake.line - 1]
        assert mistake.file == str(path)
        assert line[mistake.column - 1 :].strip(), mistake


def test_the_line_is_that_of_the_mistake(tmp_path: Path) -> None:
    values = golden("1.5")
    values["workflow"]["specification"]["files"][3]["sizeInBytes"] = "many"
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(values, indent=1))
    with pytest.raises(BadInput) as caught:
        read_workload(path)
    (mistake,) = caught.value.mistakes
    assert path.read_text().splitlines()[mistake.line - 1].strip() == '"sizeInBytes": "many"'


def test_a_cycle_through_files_only_is_detected(tmp_path: Path) -> None:
    values = golden("1.5")
    tasks = values["workflow"]["specification"]["tasks"]
    tasks[0]["inputFiles"] = ["merged.txt"]
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(values))
    with pytest.raises(BadInput, match=r"tasks that wait for each other: ID0\d → "):
        read_workload(path)


def test_ten_terabytes_and_zero_are_valid_sizes(tmp_path: Path) -> None:
    values = golden("1.5")
    files = values["workflow"]["specification"]["files"]
    files[0]["sizeInBytes"], files[1]["sizeInBytes"] = 10 * 2**40, 0
    path = tmp_path / "big.json"
    path.write_text(json.dumps(values))
    workload = read_workload(path)
    assert list(workload.file_sizes.values())[:2] == [10 * 2**40, 0]


def test_a_structure_without_an_execution_computes_nothing_with_a_note(tmp_path: Path) -> None:
    values = golden("1.6")
    del values["workflow"]["execution"]
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(values))
    workload = read_workload(path)
    assert all(o.op != "compute" for task in workload.tasks for o in task.operations)
    assert "no run times, so the tasks compute nothing" in workload.notes


@pytest.mark.parametrize("runtime", [None, "missing"])
def test_tasks_without_a_run_time_are_counted_in_a_note(
    runtime: str | None, tmp_path: Path
) -> None:
    values = golden("1.5")
    first = values["workflow"]["execution"]["tasks"][0]
    first["runtimeInSeconds"] = runtime
    if runtime is not None:
        del first["runtimeInSeconds"]
    path = tmp_path / "one.json"
    path.write_text(json.dumps(values))
    assert "1 tasks have no run time, so they compute nothing" in read_workload(path).notes


def test_tasks_of_one_name_in_1_4_whose_ids_differ(tmp_path: Path) -> None:
    values = golden("1.4")
    for i, task in enumerate(values["workflow"]["tasks"]):
        task.update(name=task["category"], id=str(i), parents=[])
    path = tmp_path / "same.json"
    path.write_text(json.dumps(values))
    workload = read_workload(path)
    assert workload.dependencies == ((), (0,), (0,), (1, 2))  # by the files alone
    instance = instance_of(workload)
    valid(instance, tmp_path)
    assert instance["workflow"]["specification"]["tasks"][3]["parents"] == ["sort_1", "sort_2"]


def test_stages_are_names_without_their_number_in_linear_time() -> None:
    names = {
        "mProject_ID0001": "mProject",
        "a-12": "a",
        "a__5": "a_",
        "aID5": "a",
        "a.ID": "a.ID",
        "7": "7",
        "1" * 200_000 + "x": "1" * 200_000 + "x",
    }
    began = time.process_time()
    assert stages([Job(name, name, ()) for name in names]) == list(names.values())
    assert time.process_time() - began < 1


def test_a_file_changed_in_place_is_preloaded(tmp_path: Path) -> None:
    values = golden("1.5")
    tasks = values["workflow"]["specification"]["tasks"]
    for task in tasks[:3]:
        task["inputFiles"].append("data_whole.txt")
        task["outputFiles"].append("data_whole.txt")
        task["inputFiles"] = list(dict.fromkeys(task["inputFiles"]))
    path = tmp_path / "place.json"
    path.write_text(json.dumps(values))
    workload = read_workload(path)
    assert next(f for f in workload.files if f.name == "data_whole.txt").preloaded
    assert workload.dependencies == ((), (0,), (0, 1), (1, 2))


RECIPES = [
    ("Montage", 300),
    ("Blast", 100),
    ("Seismology", 200),
    ("Epigenomics", 150),
    ("Cycles", 100),
    ("Genome", 100),
    ("Soykb", 100),
    ("Srasearch", 100),
    ("Bwa", 150),
    ("Rnaseq", 100),
]


@pytest.mark.parametrize(("name", "tasks"), RECIPES, ids=[r[0] for r in RECIPES])
def test_generated_instances_of_wfcommons_are_read_completely(
    name: str, tasks: int, tmp_path: Path
) -> None:
    from wfcommons import WorkflowGenerator
    from wfcommons.wfchef import recipes

    random.seed(5)
    np.random.seed(5)
    logging.getLogger("wfcommons").setLevel(logging.CRITICAL)
    recipe = getattr(recipes, f"{name}Recipe").from_num_tasks(tasks)
    generated = WorkflowGenerator(recipe).build_workflow()
    path = tmp_path / "made.json"
    generated.write_json(path)
    values = json.loads(path.read_text())["workflow"]
    workload = read_workload(path)
    specified = values["specification"]["tasks"]
    assert [task.name for task in workload.tasks] == [task["id"] for task in specified]
    sizes = {f["id"]: f["sizeInBytes"] for f in values["specification"]["files"]}
    read = sum(sizes[f] for task in specified for f in task["inputFiles"])
    read_by_tasks = sum(
        o.size_bytes for t in workload.tasks for o in t.operations if o.op == "read"
    )
    assert read_by_tasks == read
    runtime = sum(t["runtimeInSeconds"] for t in values["execution"]["tasks"])
    computing = sum(
        float(o.seconds)  # type: ignore[arg-type]
        for t in workload.tasks
        for o in t.operations
        if o.op == "compute"
    )
    assert computing == pytest.approx(runtime)  # generated instances have no avgCPU
    names = {task.name: i for i, task in enumerate(workload.tasks)}
    for task, waits in zip(specified, workload.dependencies, strict=True):
        assert {names[p] for p in task["parents"]} <= set(waits)
    valid(instance_of(workload), tmp_path)
    valid(instance_of(replace(workload, origin=None)), tmp_path)


def test_the_schema_of_this_file_refuses_other_versions() -> None:
    jsonschema.validate(golden("1.6"), SCHEMA_16)
    for version in ("1.4", "1.5"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(golden(version), SCHEMA_16)
    bad = golden("1.6")
    bad["workflow"]["specification"]["tasks"][0]["id"] = "a blank"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, SCHEMA_16)
