"""penstock undo: undo changes to the host after a crash."""

from __future__ import annotations

import json
import sys
from collections import Counter

import typer

from penstock.errors import PenstockError


def command(
    as_json: bool = typer.Option(False, "--json", help="One JSON object per undone change."),
    everything: bool = typer.Option(
        False,
        "--all",
        help="Also undo changes of running daemons, such as disks without a study.",
    ),
    change_id: str | None = typer.Option(
        None,
        "--forget",
        metavar="ID",
        help="Forget a change that cannot be undone, by the id in its error message; it stays.",
    ),
) -> None:
    """Undo changes to the host after a crash: mounts, control groups, processes, settings, directories.

    Only changes by penstock are undone, and only if the command that made them has died. Changes by a study's
    hooks are undone by the study's own `undo`.
    """
    from penstock.host.journal.journal import Journal
    from penstock.host.journal.undo import forget, undo

    journal = Journal()
    undone = [forget(journal, change_id)] if change_id else undo(journal, everything=everything)
    failed = [change for change in undone if change.outcome == "failed"]
    if as_json:
        print(json.dumps({"undone": [vars(change) for change in undone], "failed": len(failed)}))
    elif not undone:
        print("Nothing to undo.")
    else:
        for u in undone:
            note = f" ({u.note})" if u.note else ""
            note += f" [id {u.id}]" if u.outcome == "failed" else ""
            print(f"{u.outcome:<7} {u.kind:<10} {u.target}{note}")
        counts = Counter(u.outcome for u in undone)
        print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()), file=sys.stderr)
    if failed:
        raise PenstockError(f"{len(failed)} could not be undone; see above, then try again")
