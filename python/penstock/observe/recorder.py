"""The recorder: observers around a run, and the bundle of their records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import BadInput, PenstockError
from penstock.host.journal.directories import marker
from penstock.host.journal.journal import Journal, new_token
from penstock.host.probe.clocks import clock_row
from penstock.observe.observer import Observer, Watched, command_environment, followed
from penstock.plugins import OBSERVERS

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.archive.bundle import Bundle


@dataclass
class Observation:
    """Records of the observers of one recording: small tables, receipts and losses by observer, the file of a
    table that was written into the bundle, entries of the manifest, clocks at its start and end.
    """

    observed: dict[str, pa.Table] = field(default_factory=dict)
    receipts: dict[str, Any] = field(default_factory=dict)
    #: number of losses by observer
    losses: dict[str, int] = field(default_factory=dict)
    events_path: Path | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    clocks: list[dict[str, int | str]] = field(default_factory=list)

    def events(self, columns: list[str]) -> pa.Table | None:
        """Reads and writes of the table `io_events` in the bundle; None if there is none."""
        if self.events_path is None:
            return None
        from penstock.archive.bundle import read_accesses

        return read_accesses(self.events_path, columns)


#: clock row of a recording with a single clock
OWN_CLOCK: dict[str, int | str] = {"offset_ns": 0, "offset_bound_ns": 0}


class Recorder:
    """Observers that are started once and record several commands:

        with Recorder({"trace": observer}) as recorder:
            recorder.start(watched, out_dir)
            …
            seen = recorder.finish(bundle, run)

    Observers end in reverse order. Leaving the block ends them in any state; after a kill, `penstock undo`
    reverses their changes by the journal.
    """

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        self._all = dict(observers)
        self._on: list[str] = []
        self._clocks: list[dict[str, int | str]] = []

    @classmethod
    def of_names(
        cls, journal: Journal, home: Path, observers: Mapping[str, Mapping[str, Any]]
    ) -> Recorder:
        """Observers by their names in `OBSERVERS`, each with its settings."""
        recorder = cls({})
        try:
            for name, settings in observers.items():
                recorder._all[name] = OBSERVERS.load(name)(journal, home, settings)
        except BaseException:
            recorder.stop()
            raise
        return recorder

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        """Start the observers; they spool to `out_dir` (None: each to its default)."""
        self._clocks = []
        for name, observer in self._all.items():
            observer.start(watched, out_dir)
            self._on.append(name)
        self._clocks.append(clock_row("start"))

    def live(self) -> dict[str, dict[str, Any]]:
        """Live sources of the recordings of active observers, by observer."""
        sources = {name: followed(self._all[name]) for name in self._on}
        return {name: where for name, where in sources.items() if where}

    def environment(self) -> dict[str, str]:
        """Variables for the command, from the active observers."""
        return {k: v for name in self._on for k, v in command_environment(self._all[name]).items()}

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Observation:
        """End the recording of the active observers; `run`: start and end of the program [ns]."""
        if self._clocks:
            self._clocks.append(clock_row("end"))
        observation = Observation(clocks=self._clocks)
        self._clocks = []
        while self._on:
            name = self._on.pop()
            seen = self._all[name].finish(bundle, run)
            observation.observed.update(seen.tables)
            observation.events_path = seen.events_path or observation.events_path
            observation.receipts[name] = seen.receipt
            observation.losses[name] = seen.lost
            observation.manifest.update(seen.manifest)
        return observation

    def stop(self) -> None:
        """End the observers."""
        with contextlib.ExitStack() as stack:
            while self._all:
                stack.callback(self._all.popitem()[1].stop)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def new_bundle(
    journal: Journal, output: Path | None, argv: Sequence[str]
) -> Iterator[Bundle | None]:
    """The bundle of a command, if requested; removed if the block raises.

    After a kill, `undo` removes the incomplete bundle. BadInput if it cannot be created.
    """
    if output is None:
        yield None
        return
    from penstock.archive.bundle import Bundle, partial_path

    token = new_token()
    entry = journal.plan("directory", partial_path(output.absolute()), token=token)
    try:
        bundle = Bundle.create(output, {"command": list(argv), "run_id": "r001"})
        (bundle.path / marker(token)).touch()
    except OSError as error:
        journal.undone(entry)
        raise BadInput(f"-o: {output}: {error.strerror}; expected a path to write") from None
    except PenstockError:
        journal.undone(entry)
        raise
    journal.done(entry)
    try:
        yield bundle
    except BaseException:
        bundle.discard()
        raise
    finally:
        journal.undone(entry)


def finish_bundle(
    bundle: Bundle,
    seen: Observation,
    phases: Sequence[Mapping[str, Any]],
    exit_status: int,
    run: tuple[int, int],
    facts: Mapping[str, Any],
) -> Path:
    """Write the records of one command of this host with its exit status, and give the bundle its name.
    `facts`: further entries of the manifest."""
    import pyarrow as pa

    for name, table in seen.observed.items():
        bundle.write_table(name, table)
    bundle.write_table("clocks", pa.Table.from_pylist(seen.clocks))
    bundle.write_table("phases", pa.Table.from_pylist([dict(phase) for phase in phases]))
    bundle.manifest.update(
        {
            "state": "finished" if exit_status == 0 else "failed",
            "exit_status": exit_status,
            "losses": seen.losses,
            "receipts": seen.receipts,
            "responses": {"wall_s": {"value": (run[1] - run[0]) / 1e9, "unit": "s"}},
            "times": {"start_ns": run[0], "end_ns": run[1]},
            **seen.manifest,
            **facts,
        }
    )
    for ours in bundle.path.glob(marker("*")):
        ours.unlink()
    return bundle.finish()
