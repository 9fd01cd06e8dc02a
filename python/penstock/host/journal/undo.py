"""Restoration of the host: reverses the open journal entries of dead owners."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups.cgroup import kill_members, remove_groups
from penstock.host.journal.announce import forget_dead
from penstock.host.journal.directories import take_directory
from penstock.host.journal.journal import KINDS, Entry, Journal
from penstock.host.journal.settings import changed_since, restore, text_of
from penstock.host.network.neighbour_table import release
from penstock.host.processes import processes
from penstock.host.processes.command import run_planned
from penstock.host.processes.daemon import connect
from penstock.host.processes.processes import Identity, boot_id
from penstock.host.storage import loop
from penstock.host.storage.mounts import mounts_at, unmount
from penstock.scratch import remove_abandoned
from penstock.state import runtime_dir

#: kinds of changes that a reboot removes; directories and files stay
_OF_THE_BOOT = set(KINDS) - {"directory", "file", "command"}

#: clusters whose command died, by their live supervisors; processes; a study's own command while its objects
#: exist; objects of processes; directories, once nothing is mounted in them
_ORDER = (
    "cluster",
    "process",
    "cgroup",
    "recording",
    "command",
    "setting",
    "netns",
    "neighbours",
    "mount",
    "loop",
    "tracefs",
    "file",
    "directory",
)

#: longest time for a supervisor to stop a cluster [s]
_CLUSTER_DOWN_S = 300.0
#: and to end after its last cluster
_SUPERVISOR_ENDS_S = 10.0


@dataclass(frozen=True)
class Undone:
    """Result of undoing one journal entry: 'undone', 'gone', 'left' (with the reason) or 'failed'."""

    id: str
    kind: str
    target: str
    run: str | None
    outcome: str
    note: str = ""


def undo(journal: Journal, *, own: bool = False, everything: bool = False) -> list[Undone]:
    """Reverse the open changes of dead owners; returns the results.

    `own` adds those of this process; `everything` adds persistent objects of daemons (such as disks outside a
    study). Other changes of live owners stay; values that other programs have changed are reported and stay.
    Idempotent.
    """
    with journal.undoing():
        opened = journal.open_entries()
        taken = [e for e in opened if _may_take(e, own, everything)]
        result = [row for entry in opened if _of_this_boot(entry) for row in _foreign(entry)]
        ids = {entry.id for entry in taken}
        result += [row for e in opened if e.id not in ids for row in _foreign_setting(e)]
        members = [e for e in taken if e.kind == "cgroup" and _of_this_boot(e)]
        for entry in members:
            kill_members(entry.new or [])
        for kind in _ORDER:
            for entry in reversed([e for e in taken if e.kind == kind]):
                result.append(_reverse(entry, journal))
        journal.prune()
        forget_dead()
        remove_abandoned(Path(tempfile.gettempdir()))
        return result


def put_back(entry: Entry, journal: Journal) -> Undone:
    """Reverse one change of this process now (its normal end)."""
    return _reverse(entry, journal)


def forget(journal: Journal, which: str) -> Undone:
    """Close the entry `which` of a dead owner without reversing it; BadInput if there is none."""
    with journal.undoing():
        for entry in journal.open_entries():
            if entry.id == which and not entry.owner.alive:
                journal.undone(entry)
                note = "forgotten; the change stays"
                return Undone(entry.id, entry.kind, entry.target, entry.run, "left", note)
    raise BadInput(
        f"found no change '{which}' of a dead command in {journal.path}; expected an `id` that "
        "`penstock undo` gave"
    )


def _may_take(entry: Entry, own: bool, everything: bool) -> bool:
    if not entry.owner.alive:
        return True
    if entry.owner == Identity.own():
        return own
    return everything and processes_name(entry.owner.pid).startswith("penstock-")


def processes_name(pid: int) -> str:
    """Command name of a process (proc_pid_comm(5)), empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _of_this_boot(entry: Entry) -> bool:
    return entry.owner.boot_id == boot_id()


def _reverse(entry: Entry, journal: Journal) -> Undone:
    if entry.kind in _OF_THE_BOOT and not _of_this_boot(entry):
        outcome, note = "gone", "an earlier boot"
    else:
        try:
            if entry.kind in _BY_JOURNAL:
                outcome, note = _BY_JOURNAL[entry.kind](entry, journal)
            else:
                outcome, note = _REVERSALS[entry.kind](entry)
        except (OSError, PenstockError) as error:
            outcome, note = "failed", str(error)
    if outcome != "failed":
        journal.undone(entry)
    return Undone(entry.id, entry.kind, entry.target, entry.run, outcome, note)


def _foreign(entry: Entry) -> list[Undone]:
    """Settings of an object of ours that other programs have changed since."""
    rows = []
    for name, ours in entry.read_back.items():
        now = text_of(Path(name))
        if now not in ours and os.path.exists(name):
            before, requested = entry.values[name]
            note = changed_since(now, ours[0] if ours else requested, before)
            rows.append(Undone(entry.id, "setting", name, entry.run, "left", note))
    return rows


def _foreign_setting(entry: Entry) -> list[Undone]:
    """Foreign changes of a setting of the host whose owner is alive."""
    if entry.kind != "setting" or not entry.completed or isinstance(entry.new, list):
        return []
    now = text_of(Path(entry.target))
    if not _of_this_boot(entry) or now in (str(entry.new).strip(), str(entry.old).strip()):
        return []
    note = changed_since(now, entry.new, entry.old)
    return [Undone(entry.id, "setting", entry.target, entry.run, "left", note)]


def _process(entry: Entry) -> tuple[str, str]:
    running = {i for pid in processes.with_token(entry.token) if (i := Identity.of(pid))}
    if entry.facts.get("pid"):
        daemon = Identity(entry.owner.boot_id, int(entry.facts["pid"]), int(entry.facts["start"]))
        # the owner's boot is the current one; pid and start are the daemon's own
        if daemon.alive:
            running.add(daemon)
    staying = processes.end(sorted(running, key=lambda i: i.pid))
    if staying:
        raise PenstockError(f"process {staying[0].pid} does not end")
    for path in runtime_dir().glob(f"*{entry.token}*"):
        with contextlib.suppress(OSError):
            path.unlink()
    return ("undone", f"{len(running)} ended") if running else ("gone", "")


def _cgroup(entry: Entry) -> tuple[str, str]:
    ours = [p for p in entry.new or [] if entry.token in os.path.basename(p)]
    return ("undone", "") if remove_groups(ours) else ("gone", "")


def _mount(entry: Entry) -> tuple[str, str]:
    mark = f"penstock:{entry.token}"
    notes = []
    while stack := mounts_at(entry.target):
        if not any(mark in m.source or mark in m.fstype for m in stack):
            break
        top = stack[-1]
        if mark not in top.source and mark not in top.fstype:
            raise PenstockError(f"{top.source} was mounted over it")
        notes.append(unmount(entry.target))
    if notes:
        return "undone", "detached while busy" if "detached" in notes else ""
    return (
        ("left", "another program has mounted there") if mounts_at(entry.target) else ("gone", "")
    )


def _loop(entry: Entry) -> tuple[str, str]:
    return ("undone", "") if loop.take(entry) else ("gone", "")


def _tracefs(entry: Entry) -> tuple[str, str]:
    if entry.token in os.path.basename(entry.target):
        if not os.path.isdir(entry.target):
            return "gone", ""
        os.rmdir(entry.target)
        return "undone", ""
    return _mount(entry)


def _netns(entry: Entry) -> tuple[str, str]:
    from penstock.host.network.pinned_netns import take_namespace  # netlink takes 0.1 s to load

    return ("undone", "") if take_namespace(entry) else ("gone", "")


def _recording(entry: Entry) -> tuple[str, str]:
    """Stop the request log of an emulated disk, and its bypass of the page cache."""
    about = entry.new
    server = Identity(entry.owner.boot_id, int(about["pid"]), int(about["start"]))
    if not server.alive:
        return "gone", ""
    daemon = connect("disk", server.pid, about["socket"])
    try:
        if about["disk_id"] not in {disk["disk_id"] for disk in daemon.call("list")["disks"]}:
            return "gone", ""
        daemon.call("exact", disk_id=about["disk_id"], on=False)
        daemon.call("log", disk_id=about["disk_id"], path=None)
    finally:
        daemon.hang_up()
    return "undone", ""


def _cluster(entry: Entry) -> tuple[str, str]:
    """Stop persistent nodes, and the store on them, whose command died before they were complete."""
    about = entry.new
    supervisor = Identity(entry.owner.boot_id, int(about["pid"]), int(about["start"]))
    if not supervisor.alive:
        return "gone", ""  # its objects have separate entries
    daemon = connect("nodes", supervisor.pid, about["socket"])
    try:
        try:
            listed = entry.target in daemon.call("ping")["clusters"]
        except PenstockError:
            if not daemon.gone(_SUPERVISOR_ENDS_S):
                raise
            return "gone", ""  # it was just ending, as it does once it is idle
        if listed:
            with contextlib.suppress(BadInput):  # it may stop them itself meanwhile
                daemon.call("down", _CLUSTER_DOWN_S, cluster=entry.target)
        remaining = daemon.call("ping")["clusters"]
        if entry.target in remaining:
            raise PenstockError(f"the nodes of {entry.target} are still up")
        if not remaining:
            with contextlib.suppress(PenstockError):  # it may end before it answers
                daemon.call("shutdown")
            daemon.gone(_SUPERVISOR_ENDS_S)
        return ("undone", "") if listed else ("gone", "")
    finally:
        daemon.hang_up()


def _file(entry: Entry) -> tuple[str, str]:
    path = Path(entry.target)
    try:
        status = path.lstat()
    except FileNotFoundError:
        return "gone", ""
    named = entry.token in path.name
    same = [status.st_dev, status.st_ino] == [entry.facts.get("dev"), entry.facts.get("ino")]
    if not (named or same):
        return "left", "found another file at this path"
    path.unlink()
    return "undone", ""


def _directory(entry: Entry) -> tuple[str, str]:
    if take_directory(entry):
        return "undone", ""
    there = os.path.lexists(entry.target)
    return ("left", "it does not bear our mark") if there else ("gone", "")


_REVERSALS: dict[str, Callable[[Entry], tuple[str, str]]] = {
    "process": _process,
    "cgroup": _cgroup,
    "mount": _mount,
    "tracefs": _tracefs,
    "loop": _loop,
    "netns": _netns,
    "recording": _recording,
    "cluster": _cluster,
    "setting": restore,
    "file": _file,
    "directory": _directory,
}
#: kinds that depend on other open entries
_BY_JOURNAL: dict[str, Callable[[Entry, Journal], tuple[str, str]]] = {
    "command": run_planned,
    "neighbours": release,
}
