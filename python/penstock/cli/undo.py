"""penstock undo: put the host back after a crash."""

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
        help="Also undo changes that daemons maintain on purpose, such as disks without a study.",
    ),
    forgotten: str | None = typer.Option(
        None,
        "--forget",
        metavar="ID",
        help="Forget a change that cannot be undone, by the id in its error message; it stays.",
    ),
) -> None:
    """Put the host back after a crash: mounts, control groups, processes, settings, directories.

    Only what penstock itself made, and only where the command that made it is dead. What a study's hooks
    changed is put right by its own `undo`.
    """
    from penstock.host.journal.journal import Journal
    from penstock.host.journal.undo import forget, undo

    journal = Journal()
    done = [forget(journal, forgotten)] if forgotten else undo(journal, everything=everything)
    failed = [u for u in done if u.outcome == "failed"]
    if as_json:
        print(json.dumps({"undone": [vars(u) for u in done], "failed": len(failed)}))
    elif not done:
        print("Nothing to undo.")
    else:
        for u in done:
            note = f" ({u.note})" if u.note else ""
            note += f" [id {u.id}]" if u.outcome == "failed" else ""
            print(f"{u.outcome:<7} {u.kind:<10} {u.target}{note}")
        counts = Counter(u.outcome for u in done)
        print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()), file=sys.stderr)
    if failed:
        raise PenstockError(f"{len(failed)} could not be undone; see above, then try again")
