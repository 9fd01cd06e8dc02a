"""The layouts of WfFormat in common form: tasks and files of an instance, with their paths in it.

Source: the JSON schemas and READMEs of github.com/wfcommons/WfFormat, releases 1.2 to 1.6. 1.2 to 1.4 are
flat, with files and run times inside each task and parents by task name; 1.5 and 1.6 separate `specification`
and `execution`, with files by id and parents by task id.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.parts.prediction.workloads.formats.command import command_of
from penstock.parts.prediction.workloads.formats.document import Document, shown
from penstock.parts.prediction.workloads.formats.wfformat_rules import (
    FLAT,
    Names,
    check_version,
    metric_notes,
    names_of,
)
from penstock.parts.prediction.workloads.task import Command
from penstock.spec.source import Path
from penstock.spec.units import MOST_BYTES

VERSIONS = (*FLAT, "1.5", "1.6")

#: property of an execution task with our own operations (WfFormat allows unknown properties)
OWN = "penstock"

_ALLOWED = re.compile(r"[0-9a-zA-Z_.#:/-]+")
_FORBIDDEN = re.compile(r"[^0-9a-zA-Z_.#:/-]")


@dataclass
class Job:
    """One task of an instance, at `path`; `children` None: unspecified."""

    id: str
    name: str
    path: Path
    stage: str = ""
    parents: list[str] = field(default_factory=list)
    children: list[str] | None = None
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    runtime_s: float | None = None
    avg_cpu: float | None = None
    cores: float = 1.0
    machines: list[str] = field(default_factory=list)
    command: Command | None = None
    own: Mapping[str, Any] | None = None


@dataclass
class Instance:
    """All tasks and the sizes of all files, bytes by file id; `notes`: unusual properties."""

    name: str
    version: str
    jobs: list[Job]
    sizes: dict[str, int]
    notes: list[str] = field(default_factory=list)


def read_instance(document: Document) -> Instance:
    """The instance in a document; BadInput with file, line and task of every mistake.

    Refused: another version or its properties, invalid ids of a version, a field of the wrong type, invalid
    sizes and times, a file of unknown size, a duplicate name, an unknown parent or child, contradictory
    parents and children.
    """
    version = document.value.get("schemaVersion")
    if version not in VERSIONS:
        expected = f"one of {', '.join(VERSIONS)} (text)"
        document.mistake(("schemaVersion",), shown(version), expected)
        document.check()
    check_version(document, version)
    document.check()
    reader = (_Flat if version in FLAT else _Split)(document, names_of(version))
    instance = reader.instance(version)
    document.check()
    _parents_and_children(document, instance)
    document.check()
    instance.notes += metric_notes(document, len(instance.jobs), instance.sizes)
    return instance


def identifier(name: str) -> str:
    """A name with the characters that WfFormat allows in ids of tasks and files; distinct names stay
    distinct."""
    if _ALLOWED.fullmatch(name):
        return name
    return f"{_FORBIDDEN.sub('_', name)}.{zlib.crc32(name.encode()):08x}"


def task_ids(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ids in 1.5 and 1.6 of the tasks of flat versions: name and id of each, or the name alone if it
    contains the id."""
    ids: list[str] = []
    seen: set[str] = set()
    for number, row in enumerate(rows):
        name, own = str(row.get("name", "")), str(row.get("id", number))
        short = name if own in name else f"{name}_{own}"
        ids.append(f"{name}_{own}" if short in seen else short)
        seen.add(ids[-1])
    return ids


def file_id_of(file: Mapping[str, Any]) -> str:
    """Id in 1.5 and 1.6 of a file of flat versions: its path, if it has one, and its name."""
    return f"{file.get('path') or ''}{file.get('name')}"


class _Reader:
    """Common part of the layouts: values of the right type, or a mistake."""

    def __init__(self, document: Document, names: Names) -> None:
        self.document, self.names = document, names

    def instance(self, version: str) -> Instance:
        raise NotImplementedError

    def name(self) -> str:
        name = self.document.value.get("name")
        return name if isinstance(name, str) and name else "workflow"

    def wrong(self, path: Path, value: Any, expected: str) -> None:
        self.document.mistake(path, shown(value), expected)

    def object(self, path: Path, values: Any, name: str) -> dict[str, Any]:
        """The object `name` of `values` at `path`; if invalid, a mistake, and an empty one."""
        value = values.get(name)
        if isinstance(value, dict):
            return value
        self.wrong((*path, name) if name in values else path, value, f"an object `{name}`")
        return {}

    def rows(self, path: Path, values: Any, name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Path and fields of each object of the list `name`."""
        value = values.get(name)
        if not isinstance(value, list):
            self.wrong((*path, name) if name in values else path, value, f"a list `{name}`")
            return
        for i, row in enumerate(value):
            at = (*path, name, i)
            if isinstance(row, dict):
                yield at, row
            else:
                self.wrong(at, row, f"an object, one of {name}")

    def text(self, path: Path, values: Mapping[str, Any], name: str, whose: str) -> str:
        value = values.get(name)
        if isinstance(value, str) and value:
            return value
        self.wrong((*path, name) if name in values else path, value, f"`{name}` of {whose}")
        return ""

    def texts(self, path: Path, values: Mapping[str, Any], name: str, whose: str) -> list[str]:
        value = values.get(name) or []
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return list(dict.fromkeys(value))
        self.wrong((*path, name), value, f"a list of texts as `{name}` of {whose}")
        return []

    def number(self, path: Path, values: Mapping[str, Any], name: str, whose: str) -> float | None:
        value = values.get(name)
        if value is None:
            return None
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if numeric and math.isfinite(value) and value >= 0:
            return float(value)
        self.wrong((*path, name), value, f"a finite number of at least 0 as `{name}` of {whose}")
        return None

    def size(self, path: Path, values: Mapping[str, Any], whose: str) -> int | None:
        name = self.names.size
        value = values.get(name)
        integral = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if integral and not isinstance(value, bool) and 0 <= value <= MOST_BYTES:  # type: ignore[operator]
            return int(value)  # type: ignore[arg-type]
        at = (*path, name) if name in values else path
        self.wrong(at, value, f"`{name}`, an integer from 0 to 2^60, of {whose}")
        return None

    def execution(self, path: Path, row: Mapping[str, Any], job: Job) -> None:
        """Run time, processor and machines of a task, common to all layouts except for one name."""
        whose = f"the task {job.id!r}"
        job.runtime_s = self.number(path, row, self.names.runtime, whose)
        cpu = row.get("avgCPU")
        if isinstance(cpu, int | float) and not isinstance(cpu, bool) and math.isfinite(cpu):
            job.avg_cpu = float(cpu)
        name = "coreCount" if "coreCount" in row else "cores"
        job.cores = self.number(path, row, name, whose) or 1.0
        if isinstance(row.get("machine"), str):
            job.machines = [row["machine"]]
        if "machines" in row:
            job.machines = self.texts(path, row, "machines", whose)
        job.command = command_of(self.document, path, row, whose) or job.command
        if isinstance(row.get(OWN), dict):
            job.own = row[OWN]


class _Split(_Reader):
    """Versions 1.5 and 1.6."""

    def instance(self, version: str) -> Instance:
        workflow = self.object((), self.document.value, "workflow")
        at: Path = ("workflow", "specification")
        specification = self.object(("workflow",), workflow, "specification") if workflow else {}
        self.document.check()
        sizes: dict[str, int] = {}
        for path, row in self.rows(at, {"files": [], **specification}, "files"):
            file = self.text(path, row, "id", "a file")
            if file in sizes:
                self.wrong((*path, "id"), file, "each file once")
            sizes[file] = self.size(path, row, f"the file {file!r}") or 0
        jobs: dict[str, Job] = {}
        for path, row in self.rows(at, specification, "tasks"):
            job = self.job(path, row)
            if job.id in jobs:
                self.document.mistake(
                    (*path, "id"), f"the task {job.id!r} a second time", "each id once"
                )
            jobs[job.id] = job
            for name in ("inputFiles", "outputFiles"):
                listed_files = row.get(name)
                for k, file in enumerate(listed_files if isinstance(listed_files, list) else []):
                    if isinstance(file, str) and file not in sizes:
                        text = f"{file!r}, a file of the task {job.id!r} of unknown size"
                        expected = "a file of `specification.files`"
                        self.document.mistake((*path, name, k), text, expected)
        instance = Instance(self.name(), version, list(jobs.values()), sizes)
        if "execution" in workflow:
            self.executed(instance, jobs, self.object(("workflow",), workflow, "execution"))
        return instance

    def job(self, path: Path, row: Mapping[str, Any]) -> Job:
        own = self.text(path, row, "id", "a task")
        whose = f"the task {own!r}"
        name = self.text(path, row, "name", whose)
        return Job(
            own,
            name,
            path,
            command=command_of(self.document, path, row, whose),
            stage=name if name != own else "",
            parents=self.texts(path, row, "parents", whose),
            children=self.texts(path, row, "children", whose) if "children" in row else None,
            inputs=self.texts(path, row, "inputFiles", whose),
            outputs=self.texts(path, row, "outputFiles", whose),
        )

    def executed(
        self, instance: Instance, jobs: dict[str, Job], execution: Mapping[str, Any]
    ) -> None:
        seen = set()
        for path, row in self.rows(("workflow", "execution"), execution, "tasks"):
            own = self.text(path, row, "id", "an executed task")
            if own in seen or own not in jobs:
                what = "a second time" if own in seen else "which `specification` has not"
                self.document.mistake(
                    (*path, "id"), f"the task {own!r} {what}", "each task of the specification once"
                )
                continue
            seen.add(own)
            self.execution(path, row, jobs[own])
            category = row.get("category")
            if isinstance(category, str) and category:
                jobs[own].stage = category
        missing = len(jobs) - len(seen)
        if missing:
            instance.notes.append(f"{missing} tasks have no execution")


class _Flat(_Reader):
    """Versions 1.2, 1.3 and 1.4."""

    def instance(self, version: str) -> Instance:
        workflow = self.object((), self.document.value, "workflow")
        self.document.check()
        written: dict[str, int] = {}
        sizes: dict[str, int] = {}
        differ: set[str] = set()
        rows = list(self.rows(("workflow",), workflow, self.names.tasks))
        ids, names = self.identifiers(rows)
        jobs = []
        for (path, row), own in zip(rows, ids, strict=True):
            whose = f"the task {own!r}"
            job = Job(own, str(row.get("name")), path, stage=_category(row))
            for k, parent in enumerate(self.texts(path, row, "parents", whose)):
                job.parents.append(self.task_name((*path, "parents", k), parent, names, whose))
            if "children" in row:
                children = self.texts(path, row, "children", whose)
                job.children = [
                    self.task_name((*path, "children", k), child, names, whose)
                    for k, child in enumerate(children)
                ]
            for at, file in self.rows(path, {"files": [], **row}, "files"):
                name = self.text(at, file, "name", f"a file of {whose}") and file_id_of(file)
                size = self.size(at, file, f"the file {name!r} of {whose}") or 0
                link = file.get("link")
                if link not in ("input", "output"):
                    self.wrong((*at, "link"), link, f"input or output ({name!r} of {whose})")
                to = job.outputs if link == "output" else job.inputs
                if name not in to:
                    to.append(name)
                if sizes.setdefault(name, size) != size:
                    differ.add(name)
                if link == "output":
                    written.setdefault(name, size)
            self.execution(path, row, job)
            jobs.append(job)
        instance = Instance(self.name(), version, jobs, {**sizes, **written})
        if self.names.size == "size":
            instance.notes.append(
                f"`size` of files is read as bytes, as in public instances; the schema of {version} has KB"
            )
        if differ:
            one = sorted(differ)[0]
            instance.notes.append(
                f"{len(differ)} files have several sizes, {one!r} for one: that of the writer is taken"
            )
        return instance

    def identifiers(
        self, rows: list[tuple[Path, dict[str, Any]]]
    ) -> tuple[list[str], dict[str, str]]:
        """Id of each task, and the task of a name, or else of an id.

        Duplicate names are allowed if the ids differ and no task refers to a parent by such a name.
        """
        ids = task_ids([row for _, row in rows])
        names: dict[str, str] = {}
        others: dict[str, str] = {}
        twice: set[str] = set()
        seen: set[str] = set()
        for (path, row), own in zip(rows, ids, strict=True):
            name = self.text(path, row, "name", "a task")
            if own in seen:
                what = f"the task {name!r} a second time"
                self.document.mistake((*path, "name"), what, "another name, or another id")
            seen.add(own)
            twice |= {name} & names.keys()
            names.setdefault(name, own)
            if isinstance(row.get("id"), str):
                others.setdefault(row["id"], own)
        return ids, {**others, **{k: v for k, v in names.items() if k not in twice}}

    def task_name(self, path: Path, name: str, names: dict[str, str], whose: str) -> str:
        if name not in names:
            self.document.mistake(path, f"{name!r}, named by {whose}", "the name of a task")
        return names.get(name, name)


def _category(row: Mapping[str, Any]) -> str:
    category = row.get("category")
    return category if isinstance(category, str) else ""


def stages(jobs: list[Job]) -> list[str]:
    """Stage of each job: its category or its name; a unique name without its trailing number."""
    return [job.stage or _without_number(job.name) or job.name for job in jobs]


def _without_number(name: str) -> str:
    """The name without its trailing number, `ID` before it, and one separator before these."""
    stem = name.rstrip("0123456789")
    if stem == name:
        return name
    stem = stem.removesuffix("ID")
    return stem[:-1] if stem.endswith(("_", ".", "-")) else stem


def _parents_and_children(document: Document, instance: Instance) -> None:
    """Record parents and children that are not tasks, or are declared on one side only."""
    jobs = {job.id: job for job in instance.jobs}
    n_noted = 0
    for job in instance.jobs:
        for name, others in (("parents", job.parents), ("children", job.children or [])):
            for k, other in enumerate(others):
                if other == job.id:
                    what = f"the task {job.id!r} among its own {name}"
                    document.mistake((*job.path, name, k), what, "another task")
                elif other not in jobs:
                    what = f"{other!r} among the {name} of the task {job.id!r}"
                    document.mistake((*job.path, name, k), what, "the id of a task")
                elif not _agree(job, jobs[other], name):
                    side = "children" if name == "parents" else "parents"
                    what = f"{other!r} among the {name} of the task {job.id!r}"
                    expected = f"{job.id!r} among the {side} of {other!r} too"
                    document.mistake((*job.path, name, k), what, expected)
                    n_noted += 1


def _agree(job: Job, other: Job, name: str) -> bool:
    if name == "parents":
        return other.children is None or job.id in other.children
    return job.id in other.parents
