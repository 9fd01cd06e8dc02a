"""The configuration of a monitor: servers that metrics are read from, and metrics by name.

    {"targets": [{"server": "prom", "type": "prometheus", "address": "127.0.0.1:9090"}],
     "metrics": [{"name": "cpu", "server": "prom", "query": "rate(cpu[10s])", "labels": ["cpu", "mode"]}]}

It is MonEx's (monex-server's documentation): its files are read as they are. Ours beside them: `collectors`,
settings of collectors by name, which work while experiments run (`collectors/gathering.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, Mistake, printable

_MOST_BYTES = 1 << 20
#: what a named metric, and a request, may say of where it is from and how it is shown
OPTIONS = {
    "metric": str,
    "server": str,
    "query": str,
    "step": str,
    "measurement": str,
    "fields": list,
    "database": str,
    "labels": list,
    "type": str,
    "phase": str,
    "format": str,
    "clocks": str,
}
#: of a server elsewhere, rather than of what this one has stored
ELSEWHERE = ("query", "measurement")


@dataclass(frozen=True)
class Target:
    """A server elsewhere; `type` is a row of `penstock.plugins.METRIC_SERVERS`."""

    server: str
    type: str
    address: str


@dataclass(frozen=True)
class Targets:
    """Servers, metrics and settings of collectors, each by its name.

    `origin`: of the file that they are of, the same whenever it is read.
    """

    servers: Mapping[str, Target] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    collectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origin: str = ""

    def options(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """What a request asks for: the options of its metric, where that is a named one, under its own."""
        own = self.metrics.get(str(said.get("metric")), {})
        return {**own, **said}


def read_targets(path: Path) -> Targets:
    """The file's servers and metrics. Raises BadInput with file, line, what was found, what was expected."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise BadInput(f"{path}: found {len(content)} bytes; expected {_MOST_BYTES} at most")
    try:
        said = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        found = printable(error.doc[error.pos : error.pos + 20].splitlines()[0:1][0:1].__str__())
        mistake = Mistake(str(path), error.lineno, error.colno, found, f"JSON ({error.msg})")
        raise BadInput(mistakes=[mistake]) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: found {type(error).__name__}; expected JSON in UTF-8") from None
    if not isinstance(said, dict):
        raise BadInput(f"{path}: found a {type(said).__name__}; expected `targets` and `metrics`")
    servers: dict[str, Target] = {}
    for row in _rows(path, said, "targets", ("server", "type", "address")):
        if row["server"] in servers:
            raise BadInput(f"{path}: found server {row['server']!r} twice; expected each once")
        servers[row["server"]] = Target(row["server"], row["type"].lower(), row["address"])
    metrics = {}
    for row in _rows(path, said, "metrics", ("name",)):
        options = checked_options({k: v for k, v in row.items() if k != "name"}, f"{path}: ")
        metrics[row["name"]] = {"metric": row["name"], **options}
    from penstock.parts.monitoring.collectors.settings import of_file

    collectors = of_file(path, said.get("collectors", {}))
    origin = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return Targets(servers, metrics, collectors, origin)


def checked_options(said: Any, where: str = "") -> dict[str, Any]:
    """Options of a request, of the types that they have. Raises BadInput for others."""
    if not isinstance(said, dict):
        raise BadInput(f"{where}found a {type(said).__name__}; expected an object of options")
    found = {}
    for key, value in said.items():
        if key not in OPTIONS:
            raise BadInput(
                f"{where}found option {printable(str(key)[:80])!r}; expected {', '.join(OPTIONS)}"
            )
        if OPTIONS[key] is list and isinstance(value, str):
            value = [value]  # a single label may stand alone
        if key == "step" and isinstance(value, int | float) and not isinstance(value, bool):
            value = f"{value}s"
        texts = value if isinstance(value, list) else [value]
        right = isinstance(value, OPTIONS[key]) and all(isinstance(t, str) for t in texts)
        if not right or len(texts) > 100 or sum(map(len, texts)) > 10_000:
            kind = "a list of texts" if OPTIONS[key] is list else "a text"
            raise BadInput(f"{where}found {key} {printable(str(value)[:80])!r}; expected {kind}")
        found[key] = value
    return found


def _rows(
    path: Path, said: Mapping[str, Any], key: str, needed: tuple[str, ...]
) -> list[dict[str, Any]]:
    rows = said.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise BadInput(f"{path}: found {key} of another form; expected a list of objects")
    for number, row in enumerate(rows, 1):
        for name in needed:
            if not isinstance(row.get(name), str) or not row[name]:
                raise BadInput(
                    f"{path}: {key}, number {number}: found no {name}; expected one, as a text"
                )
    return rows


def shown(url: str) -> str:
    """A server's address as it may be told and kept: without user and password."""
    before, slashes, rest = url.rstrip("/").partition("//")
    place, slash, path = rest.partition("/")
    return f"{before}{slashes}{place.rpartition('@')[2]}{slash}{path}" if slashes else url
