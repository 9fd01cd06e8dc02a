"""The three bugs, each with the load on which it shows and what `penstock check` should say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tests.chunkstore import model, tables
from tests.chunkstore.store import Load, Settings, up

#: trials that a verdict other than SLOW needs
_ENOUGH = 15


@dataclass(frozen=True)
class Suite:
    """`bug` is a switch of the settings, `code` the cause that is to be named, `wanted` what is expected."""

    bug: str
    code: str
    load: Load
    settings: Settings
    wanted: model.Wanted
    trials: int = 15

    def seeded(self, folder: Path) -> model.Seeded:
        """Service times of the store as it should be, whatever bug is in it: one client meets none."""
        with up(self.settings, folder) as store:
            model.seed(store)
        return model.identified(store.rows(), self.settings)

    def expected(self, seeded: model.Seeded, path: Path) -> Path:
        document = model.expected(
            seeded, self.load, self.code, self.wanted, at_least=min(self.trials, _ENOUGH)
        )
        return model.write(document, path)

    def measured(self, folder: Path, path: Path, *, bug: bool) -> Path:
        """The rows of a run of the load, with the bug or without."""
        with up(replace(self.settings, **{self.bug: bug}), folder) as store:
            store.run(self.load, min(self.trials, _ENOUGH) if bug else self.trials)
        return tables.write(store.rows(), path)


_WRITE = (("client", "write", "client_time"), ("storage", "write", "server_time"))

SUITES = (
    # each client writes a chunk to every server, one at a time
    Suite(
        "constant_shuffle",
        "hot-spot",
        Load(),
        Settings(storage_service_s=0.005),
        _WRITE,
        trials=24,
    ),
    # a pipeline's many small files, each client's on a server of its own
    Suite(
        "coarse_lock",
        "lock-contention",
        Load(files=3, chunks=1, apart=True),
        Settings(manager_service_s=0.010),
        (
            ("client", "open", "client_time"),
            *(("manager", call, "server_time") for call in ("open", "alloc", "commit")),
        ),
    ),
    # a reduce: all write to the server on which the one that reads them runs
    Suite(
        "short_backlog",
        "connect-retry",
        Load(clients=5, chunks=1, node=0),
        Settings(storage_service_s=0.005, accept_s=0.002),
        _WRITE,
        trials=6,
    ),
)
