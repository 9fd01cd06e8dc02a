"""Runs that the user excluded from the analysis for a technical reason, recorded with the results.

Nothing is removed: `left_out.json` of OUT has each run with its reason, the bundle is unchanged, and the
findings report the effects with the run included.
"""

from __future__ import annotations

import json
from pathlib import Path

from penstock.analyse.outcome import EXCLUDED
from penstock.archive.bundle import Bundle
from penstock.errors import BadInput
from penstock.writing import atomic_file

FILE = "left_out.json"
_LONGEST = 500


def excluded_runs(out: Path) -> dict[str, str]:
    """Reasons by run. BadInput for a malformed file."""
    path = out / FILE
    if not path.exists():
        return {}
    try:
        excluded = json.loads(path.read_text())
        return {str(run): str(reason) for run, reason in excluded.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise BadInput(f"{path}: {error}; expected run: reason") from error


def put_on_record(out: Path, exclude: list[str], back: list[str], run_ids: set[str]) -> None:
    """Add `RUN=REASON` of `exclude` and remove the runs of `back`. BadInput, without any change, for an
    unknown run or a missing reason.
    """
    excluded = excluded_runs(out)
    for text in exclude:
        run, _, reason = text.partition("=")
        run, reason = run.strip(), " ".join(reason.split())
        if run not in run_ids:
            raise BadInput(
                f"--leave-out: found run {run!r}; expected one of the study, such as r001"
            )
        if not reason or len(reason) > _LONGEST:
            raise BadInput(
                f"--leave-out {run}: found {'no' if not reason else 'too long a'} reason; expected "
                f"RUN=REASON, what was technically wrong with it (at most {_LONGEST} letters)"
            )
        excluded[run] = reason
    for run in back:
        if run not in excluded:
            raise BadInput(f"--take-back: found run {run!r}, which is not left out")
        del excluded[run]
    with atomic_file(out / FILE) as draft:
        draft.write_text(json.dumps(excluded, indent=1, ensure_ascii=False) + "\n")


def without(bundle: Bundle, reasons: dict[str, str]) -> Bundle:
    """The bundle as analysed: invalid if excluded."""
    reason = reasons.get(str(bundle.manifest["run_id"]))
    if reason is None or not bundle.manifest["valid"]:
        return bundle
    return Bundle(bundle.path, {**bundle.manifest, "valid": False, "reason": f"{EXCLUDED}{reason}"})
