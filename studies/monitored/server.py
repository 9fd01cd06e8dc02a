"""`penstock serve` with its own experiments, for a study."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pandas as pd

import penstock
from penstock.errors import PenstockError

#: prctl(2)
_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
#: starts commands of `Server.penstock`, and servers
run = subprocess.run
popen: Any = subprocess.Popen


def dies_with_us() -> None:
    """`preexec_fn` of child processes: SIGTERM when the study's process ends in any way."""
    _libc.prctl(_SET_PDEATHSIG, signal.SIGTERM)


class Server:
    """A server in a directory; `start` restarts it with the same experiments, at the same address."""

    def __init__(self, place: Path, config: Mapping[str, Any] | None = None) -> None:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.place = place
        self.config = place / "monitor.json"
        self.config.write_text(json.dumps(config or {}, indent=1) + "\n")
        self.environment = {
            **os.environ,
            "PENSTOCK_STATE": str(place / "state"),
            "PENSTOCK_RUNTIME": str(place / "run"),
        }
        self.environment.pop("PENSTOCK_CATALOGUE", None)
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start the server."""
        options = ["serve", "--config", str(self.config), "--port", str(self.port)]
        with (self.place / "server.log").open("a") as log:
            self.process = popen(
                [sys.executable, "-m", "penstock", *options],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=dies_with_us,
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")
        if not self.url:
            raise PenstockError(f"no server: {(self.place / 'server.log').read_text()[-2000:]}")
        self.port = int(self.url.rpartition(":")[2])
        state = json.loads((self.place / "run" / f"serve-{self.process.pid}.json").read_text())
        self.headers = {"Authorization": f"Bearer {state['experiments_token']}"}

    def end(self, signal_number: int = signal.SIGTERM) -> None:
        """Stop the server."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
            self.process.wait(120)

    @property
    def processor_s(self) -> float:
        """Processor time so far [s]."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def penstock(self, *arguments: str | Path, check: bool = True) -> str:
        """stdout of a penstock command that uses this server."""
        line = [sys.executable, "-m", "penstock", *map(str, arguments)]
        environment = {**self.environment, "PENSTOCK_SERVER": self.url}
        result = run(line, env=environment, capture_output=True, text=True)
        if check and result.returncode:
            raise PenstockError(
                f"penstock {' '.join(map(str, arguments[:3]))}: {result.stderr[-1000:]}"
            )
        return result.stdout

    def experiment(self, name: str) -> dict[str, Any]:
        """One experiment: its times and marks."""
        return dict(self._get(f"/api/v1/experiments/{name}"))

    def series(self, name: str) -> list[dict[str, Any]]:
        """Its recorded series, and their completeness."""
        return list(self._get(f"/api/v1/experiments/{name}/series")["series"])

    def frame(self, name: str, metric: str, **options: Any) -> pd.DataFrame:
        """A metric of an experiment, as returned by `penstock.series`."""
        # by this variable, this process finds the server's token
        before = os.environ.get("PENSTOCK_RUNTIME")
        os.environ["PENSTOCK_RUNTIME"] = self.environment["PENSTOCK_RUNTIME"]
        try:
            return penstock.series(name, metric, server=self.url, **options)
        finally:
            if before is None:
                del os.environ["PENSTOCK_RUNTIME"]
            else:
                os.environ["PENSTOCK_RUNTIME"] = before

    def _get(self, path: str) -> Any:
        answer = httpx.get(f"{self.url}{path}", headers=self.headers, timeout=300)
        if not answer.is_success:
            raise PenstockError(f"{path}: {answer.text[:500]}")
        return answer.json()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def until(condition: Any, seconds: float, message: str) -> None:
    """Wait for a condition. PenstockError with `message` at the time-out."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise PenstockError(f"after {seconds:g} s: {message}")
        time.sleep(0.05)
