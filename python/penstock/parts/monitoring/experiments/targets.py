"""The configuration of a monitor: servers that metrics are read from, and metrics by name.

    {"targets": [{"server": "prom", "type": "prometheus", "address": "127.0.0.1:9090"}],
     "metrics": [{"name": "cpu", "server": "prom", "query": "rate(cpu[10s])", "labels": ["cpu", "mode"]}]}

The format is that of MonEx (documentation of monex-server), whose files are read unchanged. Our addition is
`collectors`: settings by name of collectors that run during experiments
(`collectors/server_collectors.py`).
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
#: options of a named metric and of a request, with their types
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
#: options that refer to a remote server instead of the local store
REMOTE = ("query", "measurement")


@dataclass(frozen=True)
class Target:
    """A remote server; `type` is a row of `penstock.plugins.METRIC_SERVERS`."""

    server: str
    type: str
    address: str


@dataclass(frozen=True)
class Targets:
    """Servers, metrics and settings of collectors, each by its name.

    `origin`: identifier of their file, the same at each reading.
    """

    servers: Mapping[str, Target] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    collectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origin: str = ""

    def options(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a request; those of its named metric, if it has one, are defaults."""
        own = self.metrics.get(str(request.get("metric")), {})
        return {**own, **request}


def read_targets(path: Path) -> Targets:
    """The file's servers and metrics. Raises BadInput with the file, the line, and the expected value."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise BadInput(f"{path}: found {len(content)} bytes; expected {_MOST_BYTES} at most")
    try:
        document = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        excerpt = printable(error.doc[error.pos : error.pos + 20].splitlines()[0:1][0:1].__str__())
        mistake = Mistake(str(path), error.lineno, error.colno, excerpt, f"JSON ({error.msg})")
        raise BadInput(mistakes=[mistake]) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: found {type(error).__name__}; expected JSON in UTF-8") from None
    if not isinstance(document, dict):
        raise BadInput(
            f"{path}: found a {type(document).__name__}; expected `targets` and `metrics`"
        )
    servers: dict[str, Target] = {}
    for row in _rows(path, document, "targets", ("server", "type", "address")):
        if row["server"] in servers:
            raise BadInput(f"{path}: found server {row['server']!r} twice; expected each once")
        servers[row["server"]] = Target(row["server"], row["type"].lower(), row["address"])
    metrics = {}
    for row in _rows(path, document, "metrics", ("name",)):
        options = checked_options({k: v for k, v in row.items() if k != "name"}, f"{path}: ")
        metrics[row["name"]] = {"metric": row["name"], **options}
    from penstock.parts.monitoring.collectors.settings import of_file

    collectors = of_file(path, document.get("collectors", {}))
    origin = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return Targets(servers, metrics, collectors, origin)


def checked_options(raw: Any, where: str = "") -> dict[str, Any]:
    """Options of a request, with their types checked. Raises BadInput for others."""
    if not isinstance(raw, dict):
        raise BadInput(f"{where}found a {type(raw).__name__}; expected an object of options")
    options = {}
    for key, value in raw.items():
        if key not in OPTIONS:
            raise BadInput(
                f"{where}found option {printable(str(key)[:80])!r}; expected {', '.join(OPTIONS)}"
            )
        if OPTIONS[key] is list and isinstance(value, str):
            value = [value]  # a single label need not be a list
        if key == "step" and isinstance(value, int | float) and not isinstance(value, bool):
            value = f"{value}s"
        texts = value if isinstance(value, list) else [value]
        right = isinstance(value, OPTIONS[key]) and all(isinstance(t, str) for t in texts)
        if not right or len(texts) > 100 or sum(map(len, texts)) > 10_000:
            kind = "a list of texts" if OPTIONS[key] is list else "a text"
            raise BadInput(f"{where}found {key} {printable(str(value)[:80])!r}; expected {kind}")
        options[key] = value
    return options


def _rows(
    path: Path, document: Mapping[str, Any], key: str, needed: tuple[str, ...]
) -> list[dict[str, Any]]:
    rows = document.get(key, [])
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
    """A server's address without user and password, as it may be shown and stored."""
    before, slashes, rest = url.rstrip("/").partition("//")
    place, slash, path = rest.partition("/")
    return f"{before}{slashes}{place.rpartition('@')[2]}{slash}{path}" if slashes else url
