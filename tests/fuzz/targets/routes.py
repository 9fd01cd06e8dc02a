"""Every route of `penstock serve` as a target; requests are generated from its OpenAPI description.

An input is a line with the method, the path and its query, a line with the media type, and the body. The
status of every answer is below 500, a refusal is JSON with `detail`, and no exception is raised.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import functools
import importlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, unquote

from penstock.archive.catalogue import Catalogue
from penstock.errors import PenstockError
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Batch, points
from penstock.parts.server.app import application
from penstock.parts.server.traces import Served
from tests.examples.trace_page import events, write_bundle
from tests.fuzz import mutate as of
from tests.fuzz.daemons import shut_in
from tests.fuzz.drive import Feed, Target

_TOKEN = "the-token-of-the-fuzzed-server"
#: a running experiment and an ended one
_RUNS, _ENDED = "runs", "ended"
_T0 = 1_700_000_000_000_000_000
#: values of the parameters of a path
_PATH_VALUES = {
    "name": (_RUNS, _ENDED, "runs#1", "nobody", "a/b"),
    "number": ("0", "1"),
    "file_id": ("1", "0"),
    "table": ("io_events", "runs"),
    "dashboard": ("compute", "run"),
    "job": ("1",),
}
#: valid values by name of the parameter
_VALUES = {
    "experiment": f"{_RUNS}#1",
    "metric": "m",
    "target": "m;runs#1",
    "query": "runs",
    "from": "2023-11-14T22:13:20Z",
    "to": "2023-11-14T23:13:20Z",
    "kind": "note",
    "utc_time": 1_700_000_001.5,
    "x0": 0,
    "x1": 1e9,
    "y0": 0,
    "y1": 1e9,
    "interval_s": 1,
    # do not wait
    "wait_s": 0,
    "seconds": 0.1,
    "timeout_s": 1,
}
#: times and numbers outside of any clock and table
_ODD_NUMBERS = (
    *("1e9999999", "-1e9999999", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "true", "NaN"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "1e18", "9e18", "-0", "٣", "1_0"),
)
#: routes that change the host: a failure of the host is answered with 500 and its reason
_HOST = re.compile(r"/api/v1/(clusters|disks|journal|host)")
#: endless streams
_STREAM = ("get", "/api/v1/live")
_HIDDEN = (("post", "/search"), ("post", "/query"), ("post", "/annotations"), ("get", "/exp/"))
_DEPTHS = (500, 990, 3000, 100_000)
# encodings of bodies and of Jinja's templates, imported now: an isolated process cannot load modules
importlib.import_module("importlib.readers")
for _name in (
    "utf-8-sig",
    "unicode-escape",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
    "utf-32-le",
    "utf-32-be",
    "idna",
):
    codecs.lookup(_name)


@functools.cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = application(Served([]), _TOKEN).openapi()
    return document


def _sample(schema: dict[str, Any], name: str = "", depth: int = 0) -> Any:
    """Return a valid value of a schema."""
    if "$ref" in schema:
        schema = _document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if name in _VALUES:
        return _VALUES[name]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return _sample(schema[key][0], name, depth)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        properties = {k: _sample(v, k, depth + 1) for k, v in schema.get("properties", {}).items()}
        return properties or {"a": "b"}
    if kind == "array":
        return [_sample(schema.get("items", {}), name, depth + 1)] if depth < 5 else []
    if kind in ("integer", "number"):
        return max(1, schema.get("minimum", 1))
    return {"boolean": True, "null": None}.get(kind or "", "x")


def _body(operation: dict[str, Any]) -> dict[str, Any] | None:
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("schema")


def _input(method: str, path: str, operation: dict[str, Any]) -> of.Input:
    """Requests for an operation: its described parameters, with changed values."""
    queries = [p for p in operation.get("parameters", []) if p["in"] == "query"]
    schema = _body(operation)
    sample = None if schema is None else _sample(schema)

    def value_text(draw: Random, valid_value: Any) -> str:
        kind = draw.random()
        if kind < 0.6:
            return str(valid_value)
        if kind < 0.8:
            return draw.choice(_ODD_NUMBERS)
        return json.dumps(of.odd_value(draw))[:3000].encode("utf-8", "replace").decode()

    def content(draw: Random) -> bytes:
        kind = draw.random()
        if kind < 0.02:
            depth = draw.choice(_DEPTHS)
            opening, closing = draw.choice((("[", "]"), ('{"a":', "}")))
            inner = (opening * depth + "1" + closing * depth).encode()
            return inner if draw.random() < 0.5 else b'{"a":' + inner + b"}"
        valid_value = sample
        if sample is None or draw.random() < 0.1:
            valid_value = {"metric": "m", "format": "jsonl", "labels": ["a"], "type": "timestamp"}
        text = of.text_of(of.mutate_values(draw, valid_value))
        if kind < 0.2:  # numbers that `json` does not write
            text = re.sub(
                rb"(?<=[:\[])-?[0-9.e+]+", draw.choice(_ODD_NUMBERS).encode(), text, count=1
            )
        return of.mutate_bytes(draw, text) if kind > 0.9 else text

    def make(draw: Random) -> bytes:
        def fill_parameter(match: re.Match[str]) -> str:
            name = match[1].partition(":")[0]
            valid_value = draw.choice(_PATH_VALUES.get(name, ("x",)))
            return quote(
                valid_value if draw.random() < 0.85 else value_text(draw, valid_value), safe=""
            )

        target = re.sub(r"\{([^}]+)\}", fill_parameter, path)
        parameters = []
        for parameter in queries:
            if parameter.get("required") or draw.random() < 0.5:
                name = parameter["name"]
                valid_value = _sample(parameter.get("schema", {}), name)
                valid_value = (
                    valid_value[0] if isinstance(valid_value, list) and valid_value else valid_value
                )
                parameters.append(f"{name}={quote(value_text(draw, valid_value), safe='')}")
        query = f"?{'&'.join(parameters)}" if parameters else ""
        media = draw.choice(
            ("application/json",) * 6 + ("text/plain", "application/vnd.apache.arrow.stream")
        )
        return f"{method} {target}{query}\n{media}\n".encode() + content(draw)

    return make


class _Application:
    """The application in this process, with its own experiments and trace."""

    def __init__(self, directory: Path) -> None:
        os.environ |= {
            "PENSTOCK_STATE": str(directory / "state"),
            "PENSTOCK_RUNTIME": str(directory / "run"),
        }
        (directory / "home").mkdir()
        self._store = Experiments(Catalogue(directory / "archive.sqlite"), directory / "home")
        self.start_experiment(_RUNS)
        self._store.stop(self.start_experiment(_ENDED), at_ns=_T0 + 10**12)
        served = Served([write_bundle(directory / "T", events(50))])
        self._loop = asyncio.new_event_loop()
        self._app = application(served, _TOKEN, ["x"], lambda: self._store)

    def start_experiment(self, name: str) -> Any:
        """Start an experiment with a few points."""
        experiment = self._store.start(name, "root", at_ns=_T0)
        table = points(metric="m", utc_ns=[_T0 + 1, _T0 + 2], float=[0.5, float("inf")])
        self._store.sink(experiment).write(Batch("s", 0, table))
        return experiment

    def feed(self, data: bytes) -> None:
        """Send one request; AssertionError if the answer is not allowed."""
        line, _, rest = data.partition(b"\n")
        verb, _, target = line.partition(b" ")
        method = verb.decode("ascii", "replace").lower()
        media, _, body = rest.partition(b"\n")
        raw = quote(target, safe="/%?&=:@!$'()*+,;~-._")
        path, _, query = raw.partition("?")
        status, headers, answer = self._loop.run_until_complete(
            self._answer(method, path, query, media, body)
        )
        is_error = status >= 400
        if status >= 500 and not (_HOST.match(path) or status in (502, 503, 507)):
            raise AssertionError(f"{status}: {answer[:2000]!r}")
        if is_error and method != "head":
            detail = json.loads(answer)
            assert detail.get("detail"), detail
        elif (
            b"json" in headers.get(b"content-type", b"")
            and b"jsonl" not in headers[b"content-type"]
        ):
            json.loads(answer, parse_constant=_not_json)
        if method in ("put", "delete") and status < 300:
            with contextlib.suppress(PenstockError):
                self.start_experiment(_RUNS)

    async def _answer(
        self, method: str, path: str, query: str, media: bytes, body: bytes
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method.upper(),
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"host", b"x"),
                (b"authorization", f"Bearer {_TOKEN}".encode()),
                (b"content-type", bytes(b for b in media if 32 <= b < 127)),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        messages: list[dict[str, Any]] = []
        is_received = False

        async def receive() -> dict[str, Any]:
            nonlocal is_received
            if is_received:
                await asyncio.sleep(3600)
            is_received = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        await self._app(scope, receive, send)
        head = messages[0]
        parts = b"".join(m.get("body", b"") for m in messages[1:])
        return head["status"], dict(head["headers"]), parts


def _not_json(constant: str) -> None:
    raise AssertionError(f"found {constant}, which JSON lacks, in an answer")


@contextlib.contextmanager
def _application_context(directory: Path) -> Iterator[Feed]:
    shut_in(directory)
    yield _Application(directory).feed


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each route, including those that the OpenAPI omits."""
    paths = _document()["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            if (method, path) != _STREAM:
                yield method, path, operation
    for method, path in _HIDDEN:
        yield method, path, paths[f"/grafana{path}" if method == "post" else "/exp"][method]


def _name(method: str, path: str) -> str:
    ending = "-slash" if path.endswith("/") and path != "/" else ""
    return f"route-{method}-{re.sub(r'[^a-z0-9]+', '-', path.lower()).strip('-')}{ending}"


def targets() -> list[Target]:
    """One target for each route. The end of an experiment writes a bundle, which takes long."""
    return [
        Target(
            _name(method, path),
            _input(method, path, operation),
            _application_context,
            cost=60.0 if method == "put" and path.startswith("/exp") else 8.0,
        )
        for method, path, operation in _operations()
    ]


def all_routes() -> Target:
    """All routes as one target, for a short pass: a start takes longer than a hundred inputs."""
    makes = [_input(*operation) for operation in _operations()]
    return Target("routes", lambda draw: draw.choice(makes)(draw), _application_context, cost=20.0)
