"""Runs in a virtual machine: one guest for all runs, rebooted when a factor requires it."""

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
from penstock.host.processes.launch import Finished
from penstock.observe.observer import Watched
from penstock.parts.guests.guest import Answer, Guest
from penstock.spec.guest import GuestSpec
from penstock.study.resolve import ResolvedRun

#: exit status of a command whose guest died
_DIED = 125
#: value of {run_dir}: a directory in the guest, which is not copied back
_RUN_DIR = "/job"


class GuestStage(Stage):
    """Runs the commands of a study in a guest."""

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
        """True if a guest is running."""
        return self._guest is not None and self._guest.alive

    def change(self, resolved: ResolvedRun, actions: Sequence[str]) -> None:
        """Reboot the guest if its specification differs or `redeploy` is among the actions."""
        if self.up and self._spec == resolved.guest and "redeploy" not in actions:
            return
        self._stop_guest()
        assert resolved.guest is not None
        for name, place in resolved.guest.files:
            if not place.exists():
                raise BadInput(f"{place}: found nothing; expected the {name} of guest.files")
        self._guest, self._spec = Guest(resolved.guest, self._journal), resolved.guest

    def attach(
        self, run_id: str, resolved: ResolvedRun, backing: dict[str, Path], seed: int, shared: Path
    ) -> None:
        """Prepare the accounting of a run; `change` has started the guest."""
        self._resolved = resolved
        self._faults = []
        guest = self._running()
        group = guest.cgroup
        self._cpu_ns = (group.cpu_ns() or 0) if group is not None else 0
        self.about = {"guest": {"kernel": guest.release, "processors": "software (QEMU TCG)"}}

    def watched(self) -> Watched:
        """No scope or cgroup: the times of the emulated processor are not those of the program."""
        return Watched(scope=None, group=None)

    def begin(self, spool: Path) -> dict[str, State]:
        """No devices: the disks of a guest are not emulated by this host, and are empty when it boots."""
        return {}

    def run(
        self,
        command_line: CommandLine,
        phase: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> Finished:
        """Run the command in the guest; if the guest dies, the command fails with status 125."""
        with phase("workload"):
            return self._run(command_line)

    def after(self, command_line: CommandLine) -> Finished:
        """Run the command after the measurement."""
        return self._run(command_line)

    def _run(self, command_line: CommandLine) -> Finished:
        assert self._resolved is not None
        filling = self._resolved.filling({}, _RUN_DIR)
        try:
            answer = self._running().run(
                filling.line(command_line.command),
                command_line.timeout_s,
                filling.texts(command_line.env),
            )
        except PenstockError as error:
            self._stop_guest()
            self._faults.append(str(error))
            command_line.stdout.write_bytes(b"")
            command_line.stderr.write_text(f"{error}\n")
            return _finished(Answer(_DIED, b"", b"", 0, 0))
        command_line.stdout.write_bytes(answer.stdout)
        command_line.stderr.write_bytes(answer.stderr)
        return _finished(answer)

    def used(self) -> Used:
        """Report the death of the guest as a fault; add the processor time of the guest to `about`."""
        group = self._guest.cgroup if self._guest is not None else None
        now_ns = group.cpu_ns() if group is not None else None
        if now_ns is not None:
            self.about["guest"]["host_cpu_ns"] = now_ns - self._cpu_ns
        return Used(faults=tuple(self._faults))

    def end(self, utilisation: Any, run_cpu_ns: int | None) -> DiskObservation:
        """An empty observation: no disk is emulated by this host."""
        return DiskObservation()

    def detach(self) -> None:
        """Keep the guest for the next run."""

    def stop(self) -> None:
        """Stop the guest."""
        self._stop_guest()

    def _running(self) -> Guest:
        if self._guest is None:
            raise PenstockError("the guest is not running")
        return self._guest

    def _stop_guest(self) -> None:
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
    return Finished(
        exit_status=answer.status,
        signal=None,
        timed_out=answer.timed_out,
        start_ns=answer.start_ns,
        end_ns=answer.end_ns,
        cpu_s=0.0,
        pid=0,
    )
