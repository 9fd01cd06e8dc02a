"""Files of one run in the store: its directory, hints, locations, and the files that exist before."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from penstock.errors import PenstockError
from penstock.parts.prediction.workloads.task import Hints, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.hang_guard import servers_down
from penstock.parts.stores.store import Store
from penstock.parts.stores.tags import Tagged
from penstock.parts.stores.workflow.folder import RunFolder, paths_of, remove_earlier
from penstock.parts.stores.workflow.hints import tags_of
from penstock.parts.stores.workflow.running.copies import copy_in
from penstock.spec.store import Extent, refused

#: most file names in one removal
_TOGETHER = 500


class RunFiles:
    """Files of a workload in a directory of their own; files of earlier runs are removed first."""

    def __init__(self, workload: Workload, store: Store) -> None:
        self._workload = workload
        self._store = store
        used = (o.file for task in workload.tasks for o in task.operations if o.file is not None)
        self.paths = paths_of(dict.fromkeys((*workload.file_sizes, *used)))
        self.hints: dict[str, Hints | None] = {f.name: f.hints for f in workload.files}
        self.tags: list[Tagged] = []
        self.sole = outputs_of_one(workload)
        self._folder: RunFolder | None = None

    def create(self, journal: Path | None = None) -> str:
        """Create the directory; returns its name."""
        remove_earlier(self._store)
        self._folder = RunFolder(self._store, list(self.paths.values()), journal=journal)
        return self._folder.name

    def again(self, name: str, journal: Path) -> None:
        """Use the directory of a run that is resumed."""
        files = list(self.paths.values())
        self._folder = RunFolder(self._store, files, name=name, journal=journal)

    @property
    def place(self) -> str:
        """Path of the directory on the nodes."""
        return self._store.inside(self._name)

    @property
    def _name(self) -> str:
        assert self._folder is not None
        return self._folder.name

    def at(self, name: str) -> str:
        """Path in the store of a file of the workload."""
        return f"{self._name}/{self.paths[name]}"

    def inside(self, name: str) -> str:
        """Path of a file of the workload on the nodes."""
        return self._store.inside(self.at(name))

    def tag(self, names: Iterable[str], node: str) -> None:
        """Create files and apply their hints; `node` will write them."""
        for name in names:
            tags = tags_of(self.hints.get(name))
            if tags:
                done = self._store.tag(self.at(name), tags, node=node, create=True)
                # under the workflow's own name: the directory belongs to this run only
                self.tags += [replace(one, path=name) for one in done]

    def tagged(self, names: Iterable[str]) -> bool:
        """True if any of these files has hints."""
        return any(tags_of(self.hints.get(name)) for name in names)

    def take_refusals(self) -> None:
        """Collect refused hints of tasks. PenstockError if the store applies none, or did not record all."""
        watch = self._store.status().get("watch") or {"trouble": "nothing watches for them"}
        if "trouble" in watch:
            raise PenstockError(f"hints that tasks set are not taken up: {watch['trouble']}")
        if watch.get("forgotten"):
            raise PenstockError(
                f"the store has no record of {watch['forgotten']:,} hints of tasks that it refused; "
                "expected fewer refusals, or a new store for each run"
            )
        names = {f"/{self.at(name)}": name for name in self.paths}
        for one in watch["refused"]:
            name = names.get(one["path"].removeprefix(self._store.spec.mount))
            if name is not None:
                self.tags.append(Tagged(name, one["key"], one["value"], refused(one["why"])))

    def locate(self, names: Iterable[str], node: str | None = None) -> dict[str, list[Extent]]:
        """Extents of these files, from a client node (default: the first live one)."""
        return {name: self._store.locate(self.at(name), node) for name in names}

    def located(self, names: Iterable[str]) -> dict[str, list[Extent]]:
        """Extents of those that are there: files that no task needs any more may be lost or removed."""
        extents = dict[str, list[Extent]]()
        for name in names:
            with contextlib.suppress(PenstockError):
                extents |= self.locate([name])
        return extents

    def removable(self, task: Task) -> list[str]:
        """Outputs that a failed attempt of a task may have left, and that nothing else needs."""
        return [name for name in created_by(task) if name in self.sole]

    def lost(
        self, names: Iterable[str], node: str | None = None, dead: Collection[str] = ()
    ) -> list[str]:
        """Existing files of which some bytes are on no node any more.

        `dead`: nodes whose servers ended; the engine may list them until it misses them.
        """
        lost, files = [], self._store.files(node)
        for name in names:
            kind = files.kind(self.inside(name))
            if kind is None or not kind[1]:
                continue
            try:
                extents = self.locate([name], node)[name]
            except PenstockError:  # the engine has no chunk of it
                lost.append(name)
                continue
            covered = sum(e.length_bytes for e in extents if not set(e.nodes) <= set(dead))
            if covered < kind[1]:
                lost.append(name)
        return lost

    def servers_down(self) -> bool:
        """True if a server of the store is down: files may be lost."""
        return bool(servers_down(self._store))

    def remove(self, names: Iterable[str], node: str | None = None) -> None:
        """Remove files, if they exist."""
        paths = [self.inside(name) for name in names]
        for first in range(0, len(paths), _TOGETHER):
            argv = ["rm", "-f", "--", *paths[first : first + _TOGETHER]]
            self._store.run(self._store.client(node), argv, what="removing outputs")

    def listing(self, node: str | None = None) -> dict[str, tuple[int, str]]:
        """Existing files of the workload: bytes and modification time (text)."""
        names = {self.at(name): name for name in self.paths}
        rows = self._store.files(node).listing(links=True).items()
        return {names[path]: facts for path, facts in rows if path in names}

    def bring(
        self, sources: Mapping[str, Path], node: str, heard: Callable[[int, int], None]
    ) -> dict[str, tuple[int, str, str]]:
        """Copy files of this host into the store, verified; returns bytes, modification time, SHA-256."""
        self.tag(sources, node)
        pairs = {self.inside(name): path for name, path in sources.items()}
        done = {one.path: one for one in copy_in(self._store, pairs, node, heard)}
        staged = {}
        for name in sources:
            one = done[self.at(name)]
            staged[name] = (one.size_bytes, one.changed, one.sha256)
        return staged

    def ended(self, *, complete: bool) -> None:
        """Mark the run as ended (`RunFolder.ended`)."""
        if self._folder is not None:
            with contextlib.suppress(PenstockError):
                self._folder.ended(complete=complete)


def inputs_of(task: Task) -> list[str]:
    """Files that a task reads, in order."""
    names = (o.file for o in task.operations if o.op == "read" and o.file is not None)
    return list(dict.fromkeys(names))


def outputs_of(task: Task) -> list[str]:
    """Files that a task writes, in order."""
    names = (o.file for o in task.operations if o.op == "write" and o.file is not None)
    return list(dict.fromkeys(names))


def changed_in_place(task: Task) -> list[str]:
    """Outputs of a task that it also reads."""
    read = set(inputs_of(task))
    return [name for name in outputs_of(task) if name in read]


def created_by(task: Task) -> list[str]:
    """Outputs of a task that it does not read."""
    read = set(inputs_of(task))
    return [name for name in outputs_of(task) if name not in read]


def outputs_of_one(workload: Workload) -> set[str]:
    """Files with a single writer that do not exist before the run: a failed attempt may remove them."""
    writers = Counter(name for task in workload.tasks for name in outputs_of(task))
    return {n for n, k in writers.items() if k == 1} - {
        f.name for f in workload.files if f.preloaded
    }


def results_of(workload: Workload) -> list[str]:
    """Files that tasks write and none reads."""
    read = {name for task in workload.tasks for name in inputs_of(task)}
    written = dict.fromkeys(name for task in workload.tasks for name in outputs_of(task))
    return [name for name in written if name not in read]
