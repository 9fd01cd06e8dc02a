"""Unused disks and hosts of a study."""

from __future__ import annotations

from penstock.spec.study import Study
from penstock.spec.template import names_in
from penstock.text import counted, listed


def unused_disks(study: Study) -> list[str]:
    """A warning if no command, directory or variable of the workload refers to a disk, such as `{data}`.

    Disks of a shared store are used by the store.
    """
    if study.platform.store is not None:
        return []
    workload = study.workload
    texts = [workload.prepare, workload.command, workload.after, workload.directory]
    texts += [*workload.env.values(), *(service.command for service in workload.services)]
    used = {name.rpartition(".")[2] for text in texts if text for name in names_in(text)}
    disks = dict.fromkeys(disk.name for node in study.platform.nodes for disk in node.disks)
    unused = [name for name in disks if name not in used]
    if not unused:
        return []
    verb, them = ("is", "it") if len(unused) == 1 else ("are", "them")
    return [
        f"the disk{'s' if len(unused) > 1 else ''} {listed(unused)} {verb} not used: no command, directory "
        f"or variable of the workload names {them}, as {{{unused[0]}}} does"
    ]


def idle_hosts(study: Study, blocks: int) -> list[str]:
    """A warning if a study has fewer blocks than hosts, each of which executes complete blocks."""
    idle = [worker.name for worker in study.hosts.workers[blocks:]] if study.hosts else []
    if not idle:
        return []
    return [
        f"{listed(idle)} will make no run: the study has {counted(blocks, 'pass', 'passes')} for "
        f"{counted(blocks + len(idle), 'host')} (replicates: {blocks + len(idle)})"
    ]
