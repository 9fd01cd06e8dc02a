"""The complete store: its processes, a load on it, and the measured rows for `penstock check`."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.chunkstore.client import Client
from tests.chunkstore.recorder import Recorder
from tests.chunkstore.wire import TOKEN_VARIABLE, punctual

ROOT = Path(__file__).parents[2]
#: time limit of a connection [s]
_PATIENCE_S = 60


@dataclass(frozen=True)
class Settings:
    """Rates and service times, and the planted bugs."""

    nodes: int = 6
    chunk_bytes: int = 256 << 10
    frame_bytes: int = 16 << 10
    #: rate of each network card
    rate_bps: float = 13e6
    storage_service_s: float = 0.002
    manager_service_s: float = 0.002
    accept_s: float = 0.0
    seed: int = 1
    constant_shuffle: bool = False
    coarse_lock: bool = False
    short_backlog: bool = False


@dataclass(frozen=True)
class Load:
    """Work of each client in a trial; all run at once. Files are opened and written one after the other.

    Each file is striped over `width` servers; with `node` it is on that server, with `apart` on a server
    of the client alone. With `gather` each client finally writes one more chunk, all to that server.
    """

    clients: int = 6
    files: int = 1
    chunks: int = 6
    width: int = 6
    node: int | None = None
    apart: bool = False
    gather: int | None = None


@dataclass(frozen=True)
class Rows:
    """Recorded rows of servers and clients, and start and end of each trial."""

    records: list[dict[str, Any]]
    trials: dict[str, tuple[float, float]]


class Store:
    """A running store; `run` puts a load on it. Its rows are complete after its end, see `up`."""

    def __init__(self, settings: Settings, folder: Path, recorder: Recorder) -> None:
        self.settings = settings
        self.recorder = recorder
        self.trials: dict[str, tuple[float, float]] = {}
        self._token = secrets.token_hex()
        self._processes: list[subprocess.Popen[str]] = []
        self._data = folder / "chunks"
        self._records = folder / "records"
        for directory in (self._data, self._records):
            directory.mkdir()
        bugs = {k: v for k, v in asdict(settings).items() if isinstance(v, bool)}
        common = {**bugs, "nodes": settings.nodes, "seed": settings.seed}
        self._manager = self._start(
            "manager", {**common, "service_s": settings.manager_service_s}, "manager"
        )
        self._storage = []
        for i in range(settings.nodes):
            directory = self._data / f"s{i}"
            directory.mkdir()
            process_settings = {
                "dir": str(directory),
                "node": f"s{i}",
                "rate_bps": settings.rate_bps,
                "service_s": settings.storage_service_s,
                "accept_s": settings.accept_s,
            }
            self._storage.append(self._start("storage", {**common, **process_settings}, f"s{i}"))

    def _start(self, module: str, settings: dict[str, Any], name: str) -> int:
        """Start a server; return its port."""
        record = str(self._records / f"{name}.jsonl") if self.recorder.on else None
        argv = [sys.executable, "-m", f"tests.chunkstore.{module}"]
        argv.append(json.dumps({**settings, "record": record}))
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**os.environ, TOKEN_VARIABLE: self._token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    def down(self) -> None:
        """Stop the servers, which then write their records."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            assert process.stdout is not None
            process.wait(timeout=_PATIENCE_S)
            process.stdout.close()

    def run(self, load: Load, trials: int, name: str = "") -> None:
        """Execute trials one after the other; each begins when all clients are ready."""
        clients = [
            Client(
                f"c{i}",
                self._manager,
                self._storage,
                rate_bps=self.settings.rate_bps,
                chunk_bytes=self.settings.chunk_bytes,
                frame_bytes=self.settings.frame_bytes,
                recorder=self.recorder,
                token=self._token,
            )
            for i in range(load.clients)
        ]
        try:
            for number in range(trials):
                self._trial(clients, load, f"{name}{number:03d}")
        finally:
            for client in clients:
                client.close()

    def _trial(self, clients: list[Client], load: Load, trial: str) -> None:
        gate = threading.Barrier(len(clients) + 1)
        failed: list[BaseException] = []

        def work(client: Client, node: int | None) -> None:
            client.trial = trial
            punctual()
            gate.wait()
            try:
                for number in range(load.files):
                    file = f"{trial}-{client.name}-{number}"
                    client.open(file)
                    client.write(file, load.chunks, width=load.width, node=node)
                if load.gather is not None:
                    client.write(f"{trial}-{client.name}-last", 1, width=1, node=load.gather)
            except BaseException as error:
                failed.append(error)

        nodes = list(range(len(clients))) if load.apart else [load.node] * len(clients)
        threads = [
            threading.Thread(target=work, args=arguments)
            for arguments in zip(clients, nodes, strict=True)
        ]
        for thread in threads:
            thread.start()
        gate.wait()
        begin_s = time.monotonic()
        for thread in threads:
            thread.join(timeout=_PATIENCE_S)
        self.trials[trial] = (begin_s, time.monotonic())
        if failed or any(thread.is_alive() for thread in threads):
            raise RuntimeError(f"trial {trial} did not end: {failed}")

    def rows(self) -> Rows:
        """Recorded rows; those of the servers are complete after their end."""
        records = list(self.recorder.rows)
        for file in sorted(self._records.glob("*.jsonl")):
            records += [json.loads(line) for line in file.read_text().splitlines()]
        return Rows(records, dict(self.trials))

    @property
    def ports(self) -> list[int]:
        """Ports of the manager and of each storage server."""
        return [self._manager, *self._storage]

    @property
    def stored_bytes(self) -> dict[str, int]:
        """Bytes in the files of each storage server."""
        return {
            directory.name: sum(file.stat().st_size for file in directory.iterdir())
            for directory in sorted(self._data.iterdir())
        }


@contextlib.contextmanager
def up(settings: Settings, folder: Path, *, recorded: bool = True) -> Iterator[Store]:
    """Run a store in the new `folder` until the end of the block."""
    folder.mkdir(parents=True)
    store = Store(settings, folder, Recorder(folder / "clients.jsonl" if recorded else None))
    try:
        yield store
    finally:
        store.down()
