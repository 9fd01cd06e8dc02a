"""Disks of a study that nothing in it uses."""

from __future__ import annotations

from penstock.spec.study import Study
from penstock.spec.template import names_in
from penstock.text import listed


def unused_disks(study: Study) -> list[str]:
    """A warning if no command, directory or variable of the workload names a disk, as `{data}` does.

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
