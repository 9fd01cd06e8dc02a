"""The three bugs, each with a load that reveals it and the expected result of `penstock check`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tests.chunkstore import model, tables
from tests.chunkstore.store import Load, Settings, up

#: minimum number of trials of a verdict other than SLOW
_ENOUGH = 15


@dataclass(frozen=True)
class Suite:
    """`bug` is a switch of the settings, `code` the cause to be named, `metrics` the expected rows."""

    bug: str
    code: str
    load: Load
    settings: Settings
    metrics: model.Metrics
    trials: int = 15

    def identify(self, folder: Path) -> model.Seeded:
        """Identify service times of the store without a bug; no bug affects a single client."""
        with up(self.settings, folder) as store:
            model.seed(store)
        return model.identify(store.rows(), self.settings)

    def write_expected(self, seeded: model.Seeded, path: Path) -> Path:
        """Write the expected values of the load; return the file."""
        document = model.expected_document(
            seeded, self.load, self.code, self.metrics, at_least=min(self.trials, _ENOUGH)
        )
        return model.write(document, path)

    def write_measured(self, folder: Path, path: Path, *, bug: bool) -> Path:
        """Write the rows of a run of the load, with the bug or without; return the file."""
        with up(replace(self.settings, **{self.bug: bug}), folder) as store:
            store.run(self.load, min(self.trials, _ENOUGH) if bug else self.trials)
        return tables.write(store.rows(), path)


_WRITE = (("client", "write", "client_time"), ("storage", "write", "server_time"))

SUITES = (
    # each client writes a chunk to every server, one after the other
    Suite(
        "constant_shuffle",
        "hot-spot",
        Load(),
        Settings(storage_service_s=0.005),
        _WRITE,
        trials=24,
    ),
    # many small files of a pipeline, those of each client on a separate server
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
    # a reduce: all clients write to the server of the task that reads the files
    Suite(
        "short_backlog",
        "connect-retry",
        Load(clients=5, chunks=1, node=0),
        Settings(storage_service_s=0.005, accept_s=0.002),
        _WRITE,
        trials=6,
    ),
)
