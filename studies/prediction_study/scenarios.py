"""Scenarios of a comparison of predictions with runs, and their frozen list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.make import make_workload
from penstock.parts.prediction.workloads.workflow import Workload

HERE = Path(__file__).parent
FROZEN = HERE / "scenarios.json"
#: the host with the slow link or disk
SLOW = 0


@dataclass(frozen=True)
class Scenario:
    """An access pattern with files of a size.

    With `hints` the files have those of the pattern, and tasks go to the node with their data. `slow_link`
    and `slow_disk`: that of one node has half the rate of the others.
    """

    pattern: str
    file_mib: int
    nodes: int
    hints: bool
    slow_link: bool = False
    slow_disk: bool = False

    def __str__(self) -> str:
        text = f"{self.pattern} of {self.file_mib} MiB, {self.nodes} nodes"
        text += ", hints" if self.hints else ""
        text += ", a link of half the rate" if self.slow_link else ""
        return text + (", a disk of half the rate" if self.slow_disk else "")

    @property
    def cluster(self) -> tuple[int, bool, bool]:
        """Scenarios with equal ones run on one store."""
        return self.nodes, self.slow_link, self.slow_disk

    @property
    def scheduler(self) -> str:
        """Scheduler of the platform file."""
        return "data_location" if self.hints else "workqueue"

    def workload(self, chunk_bytes: int | None = None, width: int | None = None) -> Workload:
        """The workload; its default width is the number of nodes.

        `chunk_bytes`: chunk of the store, in which the hint `scatter` counts.
        """
        options = {"width": width or self.nodes, "file_bytes": self.file_mib * 2**20}
        if self.hints:
            options |= {"optimised": True} | ({"chunk_bytes": chunk_bytes} if chunk_bytes else {})
        return replace(make_workload(self.pattern, "small", options), origin=None)


#: scenarios by engine
Scenarios = dict[str, list[Scenario]]


def checksum(scenarios: Scenarios) -> str:
    """SHA-256 of the list; depends on the order."""
    rows = [
        [engine, *astuple(scenario)] for engine, all_of in scenarios.items() for scenario in all_of
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def frozen_text(scenarios: Scenarios) -> str:
    """The list as JSON, one scenario a line, with its checksum."""
    lists = [
        f" {json.dumps(engine)}: [\n"
        + ",\n".join(f"  {json.dumps(astuple(scenario))}" for scenario in all_of)
        + "\n ]"
        for engine, all_of in scenarios.items()
    ]
    fields = json.dumps(list(Scenario.__dataclass_fields__))
    head = f' "sha256": "{checksum(scenarios)}",\n "fields": {fields},\n'
    return "{\n" + head + ",\n".join(lists) + "\n}\n"


def frozen(file: Path = FROZEN) -> Scenarios:
    """The list of a file. BadInput if it is not the list of its checksum."""
    document = json.loads(file.read_text("utf-8"))
    expected = document.pop("sha256")
    document.pop("fields")
    scenarios = {
        engine: [Scenario(*values) for values in rows] for engine, rows in document.items()
    }
    if checksum(scenarios) != expected:
        raise BadInput(f"{file}: found another list; expected the one with SHA-256 {expected}")
    return scenarios


def chosen(scenarios: Scenarios, engines: Sequence[str], only: Sequence[str]) -> Scenarios:
    """Scenarios of the named engines whose name contains one of the texts of `only`, if there are any."""
    return {
        engine: [s for s in scenarios[engine] if not only or any(text in str(s) for text in only)]
        for engine in engines or scenarios
    }
