"""Runs in a virtual machine: one guest for all of them, booted anew where that is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.campaign.evidence.disk_observation import DiskObservation
from penstock.campaign.places.stage import CommandLine, Site, Stage, Used
from penstock.campaign.preparation.device_state import State
from penstock.emulate.disks.recorded import Recorded
from penstock.errors import BadInput, PenstockError
from penstock.host.processes.launch import Finished, ResourceUse
from penstock.observe.observer import Watched
from penstock.parts.guests.guest import Answer, Guest
from penstock.spec.guest import GuestSpec
from penstock.study.resolve import ResolvedRun

#: exit status of a command whose guest died under it
_DIED = 125
#: where a run's texts find {run_dir}: a directory of the guest's own, which does not come back
_RUN_DIR = "/job"


class GuestStage(Stage):
    """The guest's commands come by its channel."""

    by_node = False

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._journal = site.journal
        self._guest: Guest | None = None
        self._spec: GuestSpec | None = None
        self._resolved: ResolvedRun | None = None
        self._cpu_ns = 0
        self._faults: list[str] = []

    @classmethod
    def takes(cls, resolved: ResolvedRun) -> bool:
        """True for a treatment that names a guest."""
        return resolved.guest is not None

    @property
    def up(self) -> bool:
        """Whether a guest is up."""
        return self._guest is not None and self._guest.alive

    def change(self, resolved: ResolvedRun, actions: Sequence[str]) -> None:
        """Boots it, where it is not up as it is to be or everything is to be made anew."""
        if self.up and self._spec == resolved.guest and "redeploy" not in actions:
            return
        self._take_down()
        assert resolved.guest is not None
        for name, place in resolved.guest.files:
            if not place.exists():
                raise BadInput(f"{place}: found nothing; expected the {name} of guest.files")
        self._guest, self._spec = Guest(resolved.guest, self._journal), resolved.guest

    def attach(
        self, run_id: str, resolved: ResolvedRun, backing: dict[str, Path], seed: int, shared: Path
    ) -> None:
        """The guest is up already."""
        self._resolved = resolved
        self._faults = []
        guest = self._running()
        group = guest.cgroup
        self._cpu_ns = (group.cpu_ns() or 0) if group is not None else 0
        self.about = {"guest": {"kernel": guest.release, "processors": "software (QEMU TCG)"}}

    def watched(self) -> Watched:
        """The host alone: what a guest's emulated processor takes says nothing of the program inside."""
        return Watched(scope=None, group=None)

    def begin(self, spool: Path) -> dict[str, State]:
        """Nothing: its disks are not emulated here, and empty when it boots."""
        return {}

    def run(
        self, words: CommandLine, phase: Callable[[str], contextlib.AbstractContextManager[None]]
    ) -> Finished:
        """The command in the guest; one whose guest died is a failed one."""
        with phase("workload"):
            return self._told(words)

    def after(self, words: CommandLine) -> Finished:
        """The same, not measured."""
        return self._told(words)

    def _told(self, words: CommandLine) -> Finished:
        assert self._resolved is not None
        filling = self._resolved.filling({}, _RUN_DIR)
        try:
            answer = self._running().run(
                filling.line(words.command), words.timeout_s, filling.texts(words.env)
            )
        except PenstockError as error:
            self._take_down()
            self._faults.append(str(error))
            words.stdout.write_bytes(b"")
            words.stderr.write_text(f"{error}\n")
            return _finished(Answer(_DIED, b"", b"", 0, 0))
        words.stdout.write_bytes(answer.stdout)
        words.stderr.write_bytes(answer.stderr)
        return _finished(answer)

    def used(self) -> Used:
        """Why it died, if it did; what the guest as a whole took of this host goes into `about`."""
        group = self._guest.cgroup if self._guest is not None else None
        now_ns = group.cpu_ns() if group is not None else None
        if now_ns is not None:
            self.about["guest"]["host_cpu_ns"] = now_ns - self._cpu_ns
        return Used(faults=tuple(self._faults))

    def end(self, utilisation: Any, run_cpu_ns: int | None) -> DiskObservation:
        """No disks of ours."""
        return DiskObservation()

    def detach(self) -> None:
        """The guest stays for the next run."""

    def stop(self) -> None:
        """Ends the guest."""
        self._take_down()

    def _running(self) -> Guest:
        if self._guest is None:
            raise PenstockError("the guest is not up")
        return self._guest

    def _take_down(self) -> None:
        if self._guest is not None:
            guest, self._guest = self._guest, None
            guest.stop()

    def _disks(self) -> None:
        return None

    def _recorded(
        self, spool: Path, changes: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Recorded]:
        return {}


def _finished(answer: Answer) -> Finished:
    nothing = ResourceUse(0.0, 0.0, 0, 0, 0, 0, 0, 0, 0)
    return Finished(
        exit_status=answer.status,
        signal=None,
        timed_out=answer.timed_out,
        start_ns=answer.start_ns,
        end_ns=answer.end_ns,
        rusage=nothing,
        pid=0,
    )
