"""Directory of a workflow run in the store, and its removal before a later run.

A record among the cluster's files is written before the directory is created. Only a directory with a record
is removed, and only the files that the workload names: users' files in the store or in such a directory
remain.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import new_token
from penstock.host.processes.processes import Identity
from penstock.parts.stores.store import Store
from penstock.writing import write_atomic

#: prefix of the random part of a directory's name. Each run has another name: clients may cache metadata of a
#: directory for a while (MooseFS: one second), and would miss new files of a reused name
PREFIX = "workflow-"
_REMOVE = """
cd "$1" 2>/dev/null || exit 0
xargs -0 -r rm -f -- && find . -depth -type d -empty -delete; cd /; rmdir "$1" 2>/dev/null; exit 0
"""


def paths_of(names: Iterable[str]) -> dict[str, str]:
    """Path below a run's directory by file name; names may begin with `/`.

    BadInput for a name that escapes the directory, two names of one file, and a file below a file.
    """
    paths, seen = dict[str, str](), dict[str, str]()
    for name in names:
        path = posixpath.normpath(name.lstrip("/") or ".")
        if path == "." or path.startswith("../") or path == "..":
            raise BadInput(
                f"file {name}: found a path out of the workflow's directory; expected one in it"
            )
        if path in seen:
            raise BadInput(
                f"file {name}: found the path of {seen[path]}; expected a path of no other file"
            )
        paths[name], seen[path] = path, name
    for path, name in seen.items():
        above = posixpath.dirname(path)
        while above:
            if above in seen:
                raise BadInput(f"file {name}: found it below the file {seen[above]}")
            above = posixpath.dirname(above)
    return paths


class RunFolder:
    """Directory of one run, named `name`; it remains until the next run."""

    def __init__(
        self, store: Store, files: Sequence[str], *, name: str = "", journal: Path | None = None
    ) -> None:
        """Record and create it, without access for other users. `files`: paths that the run may create in
        it; `name`: that of an existing one, of a run that is resumed; `journal`: that of the run."""
        self.name = name or f"{PREFIX}{new_token()}"
        self._record = store.cluster.home / f"{self.name}.json"
        self._facts = {
            **vars(Identity.own()),
            "files": list(files),
            "journal": None if journal is None else str(journal.absolute()),
        }
        if name and not self._record.exists():
            raise PenstockError(
                f"{store.name}: the store has no files of that run; it is another one than the run used. "
                "Only a run on a store of `penstock store up` can be resumed, as long as that store is up"
            )
        write_atomic(self._record, json.dumps(self._facts))
        if name:
            return
        try:
            argv = ["mkdir", "-m", "700", "--", store.inside(self.name)]
            store.run(store.client(), argv, what="making the workflow's directory")
        except BaseException:
            self._record.unlink(missing_ok=True)
            raise

    def ended(self, *, complete: bool = True) -> None:
        """Mark the run as ended; the next one may remove the directory, if this one is `complete`."""
        if self._record.exists():
            done: dict[str, object] = {"journal": None} if complete else {}
            write_atomic(self._record, json.dumps({**self._facts, "pid": 0, **done}))


def remove_earlier(store: Store) -> None:
    """Remove the files of earlier runs, unless the process of one is alive, or it can be resumed."""
    for record in sorted(store.cluster.home.glob(f"{PREFIX}*.json")):
        facts = json.loads(record.read_text())
        if facts["pid"] and Identity(facts["boot_id"], facts["pid"], facts["start"]).alive:
            continue
        if facts.get("journal") and Path(facts["journal"]).exists():
            continue
        _remove(store, record, facts["files"])


def _remove(store: Store, record: Path, files: Sequence[str]) -> None:
    names = b"\0".join(f"./{name}".encode(errors="surrogateescape") for name in files)
    argv = ["/bin/sh", "-c", _REMOVE, "sh", store.inside(record.stem)]
    store.run(store.client(), argv, what="removing the files of an earlier run", stdin=names)
    record.unlink(missing_ok=True)
