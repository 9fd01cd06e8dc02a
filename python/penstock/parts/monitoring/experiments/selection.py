"""Names of experiments with their repeats.

`x` is the latest experiment called x, `x#2` its second repeat, `x#1..5` five of them, `x#*` all.
"""

from __future__ import annotations

import os
import re

from penstock.archive.catalogue import index_path, local_user, open_index
from penstock.archive.selection import Selection
from penstock.errors import BadInput, printable
from penstock.parts.monitoring.experiments.experiment import Experiment, Unknown
from penstock.parts.monitoring.experiments.experiments import Experiments, experiments_home

_SEVERAL = re.compile(r"(.+)#(?:([1-9][0-9]{0,8})\.\.([1-9][0-9]{0,8})?|\*)", re.DOTALL)
MOST_REPEATS = 10_000


def select_experiments(name: str) -> Selection | None:
    """The runs of experiments called `name`; None for another name. BadInput for one that still runs."""
    chosen = _experiments(name)
    if not chosen:
        return None
    running = [e for e in chosen if e.running or not e.path.is_dir()]
    if running:
        raise BadInput(
            f"{name}: found {running[0].name}#{running[0].repeat}, which is {running[0].state}; expected "
            "that it had ended (`penstock monitor stop`)"
        )
    paths = [e.path for e in chosen]
    if len(paths) == 1 and _SEVERAL.fullmatch(name) is None:
        return Selection(name, "run", paths[0], paths)
    return Selection(name, "treatment", paths[0].parent, paths)


def _experiments(name: str) -> list[Experiment]:
    if "\0" in name or not (os.environ.get("PENSTOCK_CATALOGUE") or index_path().exists()):
        return []
    several = _SEVERAL.fullmatch(name)
    with open_index() as index:
        store = Experiments(index, experiments_home())
        user = local_user()
        try:
            if several is None:
                return [store.find(name, user)]
            # `find` checks that the name exists, and determines its owner
            latest = store.find(several[1], user)
        except (Unknown, BadInput):
            return []
        repeats = [
            e
            for e in store.listed(user, name=latest.name, owner=latest.owner)
            if e.by_hand and e.out == latest.out
        ]
        low = int(several[2] or 1)
        high = int(several[3]) if several[3] else max(e.repeat for e in repeats)
        if high < low or high - low >= MOST_REPEATS:
            raise BadInput(
                f"found repeats {low} to {high}; expected the lower first, {MOST_REPEATS} at most"
            )
        by_number = {e.repeat: e for e in repeats}
        absent = [n for n in range(low, high + 1) if n not in by_number]
        if absent and several[3]:
            raise BadInput(
                f"{printable(name)}: found no repeat {absent[0]} of {latest.name}; expected one of 1 to "
                f"{max(by_number)}"
            )
        return [by_number[n] for n in range(low, high + 1) if n in by_number]
