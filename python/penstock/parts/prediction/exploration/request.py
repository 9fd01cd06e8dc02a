"""Question of an exploration, from its options, and the inputs of its evaluations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.parts.prediction.exploration.run import Question
from penstock.parts.prediction.exploration.space.expression import parse_constraint, parse_objective
from penstock.parts.prediction.exploration.space.space import HINTS, Space
from penstock.parts.prediction.exploration.space.space_file import Located, SpaceFile
from penstock.parts.prediction.workloads.engine_hints import supported
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import Platform
from penstock.plugins import FUNCTIONS


def question_of(
    space: Space, file: SpaceFile, constraints: Sequence[str], objective: str | None
) -> Question:
    """Question from command line options, which extend those of a space file."""
    keys = tuple(
        key
        for axis in space.axes
        for key in axis.keys
        if key.endswith(".count") or all(level.magnitude is not None for level in axis.levels)
    )
    conditions = [parse_constraint(c.text, c.at, keys) for c in file.constraints]
    conditions += [parse_constraint(text, None, keys) for text in constraints]
    objective_of_file: Located | None = file.objective
    if objective is not None:
        return Question(parse_objective(objective, None, keys), tuple(conditions))
    if objective_of_file is not None:
        return Question(
            parse_objective(objective_of_file.text, objective_of_file.at, keys), tuple(conditions)
        )
    return Question(None, tuple(conditions))


def hinted(workload: Workload, platform: Platform, space: Space) -> Mapping[str, Workload]:
    """The workload of each level of the hints; empty if they are not varied."""
    axis = next((axis for axis in space.axes if HINTS in axis.keys), None)
    if axis is None:
        return {}
    if "workflow-aware" not in FUNCTIONS:
        raise axis.position.bad_input(f"'{axis.name}'", "an installation with stores")
    files = tuple(replace(f, hints=None) for f in workload.files)
    never = replace(workload, files=files, origin=None)
    aware = FUNCTIONS.load("workflow-aware")(workload, platform)
    return {"never": never, "auto": supported(aware, platform)[0]}


def plan_of(workload: Workload, platform: Platform, space: Space) -> dict[str, Any]:
    """Inputs on which evaluations depend."""
    profiles = json.dumps([platform.plain, platform.document, platform.profiles], sort_keys=True)
    return {
        "schema": "penstock/exploration-plan/1",
        "workload": _hash(json.dumps(workload.to_dict(), sort_keys=True)),
        "platform": _hash(profiles),
        "axes": space.to_dict()["axes"],
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
