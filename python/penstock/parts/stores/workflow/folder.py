"""The directory of the store in which one run of a workflow has its files, and its removal before a later
run.

A record among the cluster's files is written before the directory is made. Only a directory with a record is
removed, and of it only files that the workload names: what users put into the store, or into such a
directory, stays.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.errors import BadInput
from penstock.host.journal.journal import new_token
from penstock.host.processes.processes import Identity
from penstock.parts.stores.store import Store
from penstock.writing import write_atomic

#: before the token in the name of a directory. Each run has another: clients may keep what they know of a
#: directory for a while (MooseFS: one second), and would miss what is new in another of its name
PREFIX = "workflow-"
_REMOVE = """
cd "$1" 2>/dev/null || exit 0
xargs -0 -r rm -f -- && find . -depth -type d -empty -delete; cd /; rmdir "$1" 2>/dev/null; exit 0
"""


def paths_of(names: Iterable[str]) -> dict[str, str]:
    """By name of a file, its path below a run's directory; names may begin with `/`.

    BadInput for a name that leads out of the directory, two names of one file, and a file below a file.
    """
    paths, seen = dict[str, str](), dict[str, str]()
    for name in names:
        path = posixpath.normpath(name.lstrip("/") or ".")
        if path == "." or path.startswith("../") or path == "..":
            raise BadInput(
                f"file {name}: found a path out of the workflow's directory; expected one in it"
            )
        if path in seen:
            raise BadInput(f"file {name}: found the path of {seen[path]}; expected one of its own")
        paths[name], seen[path] = path, name
    for path, name in seen.items():
        above = posixpath.dirname(path)
        while above:
            if above in seen:
                raise BadInput(f"file {name}: found it below the file {seen[above]}")
            above = posixpath.dirname(above)
    return paths


class RunFolder:
    """The directory of one run, named `name`; it stays after the run, until the next one begins."""

    def __init__(self, store: Store, files: Sequence[str]) -> None:
        """Records it and makes it, closed to other users. `files`: paths that the run may create in it."""
        token = new_token()
        self.name = f"{PREFIX}{token}"
        self._record = store.cluster.home / f"{self.name}.json"
        self._facts = {**vars(Identity.own()), "files": list(files)}
        write_atomic(self._record, json.dumps(self._facts))
        try:
            argv = ["mkdir", "-m", "700", "--", store.inside(self.name)]
            store.run(store.client(), argv, what="making the workflow's directory")
        except BaseException:
            self._record.unlink(missing_ok=True)
            raise

    def ended(self) -> None:
        """The run is over; the next one may remove the directory."""
        if self._record.exists():
            write_atomic(self._record, json.dumps({**self._facts, "pid": 0}))


def remove_earlier(store: Store) -> None:
    """Removes what earlier runs created, unless the process that runs one is alive."""
    for record in sorted(store.cluster.home.glob(f"{PREFIX}*.json")):
        facts = json.loads(record.read_text())
        if facts["pid"] and Identity(facts["boot_id"], facts["pid"], facts["start"]).alive:
            continue
        _remove(store, record, facts["files"])


def _remove(store: Store, record: Path, files: Sequence[str]) -> None:
    names = b"\0".join(f"./{name}".encode(errors="surrogateescape") for name in files)
    argv = ["/bin/sh", "-c", _REMOVE, "sh", store.inside(record.stem)]
    store.run(store.client(), argv, what="removing the files of an earlier run", stdin=names)
    record.unlink(missing_ok=True)
