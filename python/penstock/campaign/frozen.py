"""Files that a campaign freezes at its start, and that must be unchanged when it is resumed.

`study.yaml` is the study as run (with `--set` and `--quick` applied), `plan.json` the plan, and
`campaign.json` every resolved treatment. A resumed campaign may add runs, but is refused if it would change
completed ones (DESIGN §7).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from penstock.design.planned import Plan
from penstock.errors import BadInput
from penstock.spec.study import Study
from penstock.version import version

CAMPAIGN_SCHEMA = "penstock/campaign/1"


@dataclass(frozen=True)
class Campaign:
    """Frozen facts of a campaign: `OUT/campaign.json`."""

    study_id: str
    study_hash: str
    name: str
    question: str
    planned_runs: int
    quick: bool
    overrides: list[str]
    treatments: dict[str, dict[str, Any]]
    runs: dict[str, str]
    #: values of `auto` at the start of the study (`TimeScales`); None: there was no `auto`
    time_scales: dict[str, Any] | None = None
    #: additions to the plan of the study (`design.additions.stages.Stage`)
    stages: list[dict[str, Any]] = field(default_factory=list)
    schema: str = CAMPAIGN_SCHEMA
    penstock: str = version()

    def to_json(self) -> str:
        """Content of the file."""
        return to_json(vars(self), indent=1).decode() + "\n"


def campaign(
    study: Study, plan: Plan, treatments: dict[str, dict[str, Any]], overrides: list[str]
) -> Campaign:
    """Facts of a study and its plan; `treatments` has the resolved treatments."""
    return Campaign(
        study_id=study.study_id,
        study_hash=study.hash,
        name=study.name,
        question=study.question,
        planned_runs=len(plan.rows),
        quick=study.quick,
        overrides=overrides,
        treatments=treatments,
        runs={row.run_id: row.treatment_id for row in plan.rows},
        time_scales=study.time_scales.model_dump() if study.time_scales is not None else None,
        stages=plan.stages,
    )


def read_campaign(out: Path) -> Campaign | None:
    """The campaign of an OUT directory, None if there is none.

    Raises BadInput if its `campaign.json` is unknown to this version.
    """
    path = out / "campaign.json"
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        about = json.loads(text)
        if about["schema"] != CAMPAIGN_SCHEMA:
            raise BadInput(f"{path}: found schema {about['schema']}; expected {CAMPAIGN_SCHEMA}")
        return Campaign(**about)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: not the campaign of a study: {error}") from error


def freeze(out: Path, study: Study, plan: Plan, facts: Campaign) -> None:
    """Write the study, its profile files, the plan, and (last) the campaign."""
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "study.yaml", as_run(study, facts.overrides))
    for name, profile in study.profiles.items():
        if not name.endswith(".json") or Path(name).is_absolute() or ".." in Path(name).parts:
            continue
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        _write(out / name, json.dumps(profile, indent=1) + "\n")
    _write(out / "plan.json", to_json(plan.to_json(), indent=1).decode() + "\n")
    _write(out / "campaign.json", facts.to_json())


def as_run(study: Study, overrides: list[str]) -> str:
    """Text of the study as run: the file itself, or the result of `--set`, `--quick` and the numbers for
    `time_scale: auto`."""
    options = [f"--set {o}" for o in overrides] + (["--quick"] if study.quick else [])
    if study.time_scales is not None:
        scales = study.time_scales
        own = [f"{scale:g} of {name}" for name, scale in scales.own.items()]
        together = [f"{scales.together:g}"] if scales.together is not None else []
        options.append(f"time_scale auto = {', '.join([*together, *own])}")
    if not options:
        return study.source_text
    return f"# {study.source_path.name}, as run with {' '.join(options)}\n{study.source_text}"


def altered(
    before: Campaign, now: Campaign, completed: set[str], valid: set[str], out: Path
) -> set[str]:
    """Runs among `completed` that have changed and must be repeated.

    Raises BadInput, with the differences, if one of them is among `valid`.
    """
    if before.name != now.name:
        raise BadInput(
            f"{out} has results of the study {before.name}, not {now.name}; choose another -o"
        )
    changes = {}
    for run_id in sorted(completed):
        was = before.treatments.get(before.runs.get(run_id, ""), {})
        becomes = now.treatments.get(now.runs.get(run_id, ""))
        if becomes is None:
            changes[run_id] = f"run {run_id} is no longer in the plan"
        elif changed := differences(was, becomes):
            changes[run_id] = f"run {run_id}: {changed[0]}"
    faults = [change for run_id, change in changes.items() if run_id in valid]
    if faults:
        more = f" (and {len(faults) - 1} more runs)" if len(faults) > 1 else ""
        raise BadInput(
            f"the study has changed in what alters valid runs in {out}: {faults[0]}{more}. Undo the change, "
            "or choose another -o"
        )
    return set(changes)


def differences(was: Any, becomes: Any, path: str = "") -> list[str]:
    """Differences of two JSON values as messages: `command: was 'a', is 'b'`."""
    if isinstance(was, dict) and isinstance(becomes, dict):
        changes = []
        for key in sorted(set(was) | set(becomes)):
            below = f"{path}.{key}" if path else str(key)
            changes += differences(was.get(key), becomes.get(key), below)
        return changes
    if was == becomes:
        return []
    return [f"{path}: was {_short(was)}, is {_short(becomes)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.partial")
    with open(draft, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
