"""Data of runs: created once per kind by the prepare command, and copied if a command changes them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from penstock.campaign.evidence.attempt_work import AttemptWork
from penstock.campaign.places.plain_directories import PlainDirectories
from penstock.campaign.preparation.prepared import PreparedData, copy_tree, data_key
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import last_line, launch
from penstock.spec.template import names_in
from penstock.study.resolve import ResolvedNode, ResolvedRun


class Preparation:
    """Provide the directories of each run's disks, with its data."""

    def __init__(self, journal: Journal, work_dir: Path, say: Callable[[str], None]) -> None:
        self._journal = journal
        self._work_dir = work_dir
        self._say = say
        self._plain = PlainDirectories(journal)
        #: prepared data, by kind
        self.data = PreparedData(work_dir / "prepared")

    def forget(self, resolved: ResolvedRun) -> None:
        """Invalidate the data of runs of this kind."""
        self.data.forget(data_key(resolved))

    def give(self, work: AttemptWork) -> None:
        """Provide prepared data, or a private copy, as the run's `backing`; PenstockError with the last
        output of a prepare command that fails."""
        resolved = work.resolved
        names = [d.disk_id for d in resolved.disks]
        if not names and resolved.prepare is None:
            return
        plain = {
            d.disk_id: self._plain.place(d.directory)
            for d in resolved.disks
            if d.directory is not None
        }
        make = self._maker(work.run_id, resolved)
        work.prepared = self.data.get(data_key(resolved), names, make, plain)
        if resolved.mutates is not True:
            work.backing = dict(work.prepared.disks)
            return
        place = self._work_dir / f"run-{work.run_id}-{os.getpid()}"
        work.copied = make_directory(place, self._journal, run=work.run_id, mode=0o711)
        for name, source in work.prepared.disks.items():
            copy = place / name
            if name in plain:
                copy = plain[name] / f"run-{work.run_id}" / name
                work.copies.append(copy.parent)
            copy.mkdir(parents=True)
            copy_tree(source, copy)
            work.backing[name] = copy

    def take_back(self, work: AttemptWork) -> None:
        """Remove the run's private copy."""
        with contextlib.ExitStack() as stack:
            if work.copied is not None:
                stack.callback(remove_directory, work.copied, self._journal)
                work.copied = None
            while work.copies:
                stack.callback(shutil.rmtree, work.copies.pop(), ignore_errors=True)

    def altered(self, work: AttemptWork) -> bool:
        """True if the run changed data that others share; then the data are prepared again."""
        mutates = work.resolved.mutates
        return (
            work.prepared is not None
            and mutates is not True
            and self.data.forget_if_altered(work.prepared, contents=mutates == "contents")
        )

    def remove(self) -> None:
        """Remove our directories in plain ones; data in the work directory stay for other runs."""
        self._plain.remove()

    def _maker(self, run_id: str, resolved: ResolvedRun) -> Callable[[dict[str, Path]], None]:
        """Function that runs the prepare command on the backing directories."""

        def make(disks: dict[str, Path]) -> None:
            for path in disks.values():
                own(path, resolved.user)
            if resolved.prepare is None:
                return
            self._say(f"preparing the data of {run_id}")
            scratch = next(iter(disks.values())).parent if disks else self._work_dir
            for node in nodes_to_prepare(resolved):
                self._make_once(run_id, resolved, node, disks, scratch)

        return make

    def _make_once(
        self,
        run_id: str,
        resolved: ResolvedRun,
        node: ResolvedNode,
        disks: dict[str, Path],
        scratch: Path,
    ) -> None:
        assert resolved.prepare is not None
        own_disks = {d.name: disks[d.disk_id] for d in node.disks}
        places = {**disks, **own_disks}
        filling = resolved.filling(places, scratch, node.name)
        command, env = filling.line(resolved.prepare), filling.texts(resolved.env)
        log = self._work_dir / "prepare.log"  # not on a disk that the command may fill
        with create_run_cgroup("prepare", None, self._journal, run=run_id) as cgroup:
            finished = launch(
                command,
                cgroup,
                log,
                log.with_suffix(".err"),
                extra_env=env,
                cwd=scratch,
                user=resolved.user,
            )
        if finished.exit_status != 0:
            message = last_line(log.with_suffix(".err")) or last_line(log)
            raise PenstockError(
                f"run {run_id}: the preparation ended with status {finished.exit_status}: "
                f"{message or 'it printed nothing'} (command: {command})"
            )


def nodes_to_prepare(resolved: ResolvedRun) -> list[ResolvedNode]:
    """Nodes for which data are prepared: one, or each node if a disk that several nodes have is used without
    its node's name (or `{node}` is used)."""
    names = set(names_in(resolved.prepare or ""))
    several = {d.name for d in resolved.disks if sum(o.name == d.name for o in resolved.disks) > 1}
    bare = names & several
    if not bare and "node" not in names:
        return [resolved.nodes[0]]
    return [n for n in resolved.nodes if bare <= {d.name for d in n.disks} and n.disks]


def own(path: Path, user: str | None) -> None:
    """Change the owner to the user, if permitted."""
    if user is not None and os.geteuid() == 0:
        shutil.chown(path, user)
