"""The filter of Swift's object servers, around an application that replaces Swift."""

from __future__ import annotations

import contextlib
import io
import json
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from penstock.errors import BadInput
from penstock.parts.monitoring.usage import swift_bandwidth
from penstock.parts.monitoring.usage.swift_bandwidth import (
    MOST_DEVICES,
    MOST_OBJECTS,
    MOST_THREADS,
    Bandwidth,
    filter_factory,
)
from penstock.plugins import COLLECTORS
from penstock.testing import MemorySink, check_collector
from tests.support.waiting import until
from tests.unit.test_collectors import at_work, exporting

MB = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Store:
    """An object server in memory. It reads and sends in pieces, each of which takes some time."""

    def __init__(self, clock: Clock, piece_s: float = 0.0) -> None:
        self.objects: dict[str, bytes] = {}
        self._clock, self._piece_s = clock, piece_s
        self.closed = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "PUT":
            if environ.get("refuse"):
                start_response("507 Insufficient Storage", [])
                return [b""]
            body = b""
            while part := environ["wsgi.input"].read(MB):
                self._clock.now += self._piece_s
                body += part
            self.objects[path] = body
            start_response("201 Created", [])
            return [b""]
        if path not in self.objects:
            start_response("404 Not Found", [])
            return [b"no such object"]
        start_response("200 OK", [])
        return self._sent(self.objects[path])

    def _sent(self, content: bytes) -> Any:
        try:
            for at in range(0, len(content), MB):
                self._clock.now += self._piece_s
                yield content[at : at + MB]
        finally:
            self.closed += 1


class _Silent(WSGIRequestHandler):
    def get_environ(self) -> dict[str, Any]:
        # eventlet, the server that Swift uses, sets it as well
        return {**super().get_environ(), "REMOTE_PORT": str(self.client_address[1])}

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, handler_class=_Silent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


#: a connection of the current user, as the kernel lists it
LISTENING = socket.create_server(("127.0.0.1", 0))
CLIENT = socket.create_connection(LISTENING.getsockname())
PORT = str(LISTENING.getsockname()[1])


def ask(
    app: Any, method: str, path: str, body: bytes = b"", **environ: Any
) -> tuple[str, dict[str, str], bytes]:
    reply: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        reply[:] = [status, dict(headers)]

    request = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path.encode().decode("latin-1"),
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": PORT,
        "REMOTE_PORT": str(CLIENT.getsockname()[1]),
        "wsgi.input": io.BytesIO(body),
        **environ,
    }
    answer = app(request, start_response)
    content = b"".join(answer)
    if hasattr(answer, "close"):
        answer.close()
    return reply[0], reply[1], content


def filtered(clock: Clock, piece_s: float = 0.0, **conf: str) -> tuple[Bandwidth, Store]:
    store = Store(clock, piece_s)
    return Bandwidth(store, conf, clock), store


def get_json(app: Bandwidth, path: str, **environ: Any) -> Any:
    status, headers, body = ask(app, "GET", path, **environ)
    assert status == "200 OK"
    assert headers["Content-Type"] == "application/json"
    return json.loads(body)


def test_bytes_by_second_of_each_device() -> None:
    # fails if a byte counts twice, on another device, or in another second
    clock = Clock()
    app, store = filtered(clock)
    ask(app, "PUT", "/sdb1/12/AUTH_a/c/o", b"x" * 3 * MB)
    clock.now = 1001.5
    ask(app, "PUT", "/sdb2/12/AUTH_a/c/o", b"x" * 5 * MB)
    assert ask(app, "GET", "/sdb1/12/AUTH_a/c/o")[2] == b"x" * 3 * MB
    assert store.closed == 1
    clock.now = 1002.0
    rates = get_json(app, "/bwinfo")
    assert rates["sdb1"]["insta"] == 3.0
    assert rates["sdb1"]["mean1min"] == 3.0
    assert rates["sdb1"]["cov1min"] == 2 / 60
    assert [rates["sdb2"][k] for k in ("insta", "mean1min", "min1min", "max1min")] == [5, 2.5, 0, 5]
    assert set(rates["sdb1"]) == {
        "insta",
        *(f"{w}{k}min" for w in ("mean", "min", "max", "cov") for k in (1, 2, 3, 5)),
    }
    clock.now = 1064.0
    assert get_json(app, "/bwinfo")["sdb1"]["max1min"] == 0.0
    assert get_json(app, "/bwinfo")["sdb1"]["max2min"] == 3.0


def test_a_ramp_of_six_minutes_through_the_filter() -> None:
    # the values of the oracle: fails with another window, or a sample stamped at its begin
    clock = Clock()
    app, _ = filtered(clock)
    ask(app, "GET", "/sdb1/1/a/c/none")
    for t in range(1, 361):
        clock.now = 1000.0 + t - 0.5
        app._counted.moved(swift_bandwidth.Transfer("sdb1", "0", "a", "o", "", clock.now), t * MB)
    clock.now = 1360.0
    rates = get_json(app, "/bwinfo")["sdb1"]
    assert rates["insta"] == 360
    assert [rates[f"mean{k}min"] for k in (1, 2, 3, 5)] == [330.5, 300.5, 270.5, 210.5]
    assert [rates[f"min{k}min"] for k in (1, 2, 3, 5)] == [301, 241, 181, 61]
    assert {rates[f"max{k}min"] for k in (1, 2, 3, 5)} == {360}
    assert {rates[f"cov{k}min"] for k in (1, 2, 3, 5)} == {1.0}


def test_windows_agree_with_the_transferred_bytes() -> None:
    """Requests of ten seconds with recorded bytes and times: mean, minimum and maximum within 2 %.

    Fails if bytes count twice or not at all, or if seconds before the start of the server count as idle.
    """
    clock = Clock()
    app, store = filtered(clock)
    rng = random.Random(7)
    of_second = [0] * 10

    def paced(size: int) -> Iterator[bytes]:
        """Pieces of a body, each at its own time."""
        while size > 0 and clock.now < 1009.9:
            clock.now += rng.uniform(0.001, 0.02)
            piece = min(size, rng.randrange(1, 200_000))
            size -= piece
            of_second[int(clock.now) - 1000] += piece
            yield b"x" * piece

    class Body:
        """An upload of a client."""

        def __init__(self, size: int) -> None:
            self._pieces = paced(size)

        def read(self, _: int) -> bytes:
            return next(self._pieces, b"")

    store._sent = lambda content: paced(len(content))  # type: ignore[method-assign]
    while clock.now < 1009.9:
        size = rng.randrange(100_000, 5_000_000)
        ask(app, "PUT", "/sdb1/1/a/c/o", **{"wsgi.input": Body(size)})
        ask(app, "GET", "/sdb1/1/a/c/o")
        clock.now += rng.uniform(0.0, 0.1)
    clock.now = 1010.0
    rates = get_json(app, "/bwinfo")["sdb1"]
    assert rates["mean1min"] * 10 == pytest.approx(sum(of_second) / MB, rel=0.02)
    assert rates["min1min"] == pytest.approx(min(of_second) / MB, rel=0.02)
    assert rates["max1min"] == pytest.approx(max(of_second) / MB, rel=0.02)
    assert rates["insta"] == pytest.approx(of_second[-1] / MB, rel=0.02)
    assert rates["cov1min"] == 10 / 60


def test_requests_by_server_disk_and_thread() -> None:
    clock = Clock()
    app, _ = filtered(clock, piece_s=0.5, needed="AUTH_a=12.5")
    ask(app, "PUT", "/sdb1/12/AUTH_a/c/grün.dat", b"x" * 4 * MB)
    ask(app, "GET", "/sdb1/12/AUTH_a/c/grün.dat", HTTP_RANGE="bytes=0-99")
    ask(app, "PUT", "/sdb1/12/AUTH_b/c/o", b"x", HTTP_X_BACKEND_STORAGE_POLICY_INDEX="3")
    ask(app, "GET", "/sdb1/12/AUTH_b/c/none")
    servers = get_json(app, "/osinfo")
    threads = servers[f"127.0.0.1:{PORT}"]["sdb1"]
    assert threads["0"] == {
        "policy": "0",
        "account": "AUTH_a",
        "identifier": "object",
        "needed_BW": 12.5,
        "objects": [
            {"range": "0 - end", "oid": "/AUTH_a/c/grün.dat", "oid_calculated_BW": 2.0},
            {"range": "0-99", "oid": "/AUTH_a/c/grün.dat", "oid_calculated_BW": 2.0},
        ],
    }
    assert threads["1"]["policy"] == "3"
    assert threads["1"]["needed_BW"] == -1
    assert len(threads["1"]["objects"]) == 1  # no entry for the missing object
    clock.now += 100
    assert get_json(app, "/osinfo") == {f"127.0.0.1:{PORT}": {"sdb1": {}}}


def test_requests_in_progress_are_reported() -> None:
    clock = Clock()
    app, store = filtered(clock)
    store.objects["/sdb1/1/a/c/o"] = b"x" * 4 * MB
    parts = iter(
        app(
            {"REQUEST_METHOD": "GET", "PATH_INFO": "/sdb1/1/a/c/o", "REMOTE_ADDR": "10.0.0.1"},
            lambda status, headers: None,
        )
    )
    next(parts)
    clock.now += 2
    (thread,) = get_json(app, "/osinfo")[f"127.0.0.1:{PORT}"]["sdb1"].values()
    assert thread["objects"] == [{"range": "0 - end", "oid": "/a/c/o", "oid_calculated_BW": 0.5}]
    parts.close()  # type: ignore[attr-defined]
    assert store.closed == 1


def test_only_local_users_and_token_holders_are_answered(tmp_path: Path) -> None:
    # fails if a header could set the address of a client, or if an empty token were accepted
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    clock = Clock()
    app, store = filtered(clock, token_file=str(token))
    without_token, _ = filtered(clock)
    remote = {"REMOTE_ADDR": "10.1.2.3"}
    assert ask(app, "GET", "/bwinfo", **remote)[0].startswith("401")
    assert ask(without_token, "GET", "/osinfo", **remote, HTTP_X_PENSTOCK_TOKEN="")[0].startswith(
        "401"
    )
    assert ask(app, "GET", "/bwinfo", **remote, HTTP_X_PENSTOCK_TOKEN="é")[0].startswith("401")
    forwarded = {"HTTP_X_FORWARDED_FOR": "127.0.0.1"}
    assert ask(without_token, "GET", "/bwinfo", **forwarded)[0].startswith("401")
    for name in ("127.0.0.1.evil.example", "::2", "", "127.0.0.2"):
        assert ask(without_token, "GET", "/bwinfo", REMOTE_ADDR=name)[0].startswith("401")
    # fails if any loopback connection is accepted, also one of another user of this host
    for port in ("", "1", "x", PORT, "99999"):
        assert ask(without_token, "GET", "/bwinfo", REMOTE_PORT=port)[0].startswith("401")
    assert ask(without_token, "GET", "/bwinfo")[0] == "200 OK"
    assert (
        ask(app, "GET", "/bwinfo", **remote, HTTP_X_PENSTOCK_TOKEN="0123456789abcdef")[0]
        == "200 OK"
    )
    assert ask(app, "POST", "/bwinfo")[0].startswith("405")
    assert store.objects == {}


def test_clients_inject_nothing_and_memory_stays_bounded(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "sdb1").mkdir()
    app, store = filtered(clock, devices=str(tmp_path))
    hostile = '"}],"x":{"\\'
    ask(app, "PUT", f"/sdb1/1/AUTH_{hostile}/c/{hostile}<script>", b"x", HTTP_RANGE='bytes=0-1"},{')
    ask(app, "PUT", "/sdb9/1/a/c/o", b"x")  # no device of this server: passed on, not counted
    ask(app, "PUT", "/sdb1/1/a/c/o", b"x", HTTP_X_BACKEND_STORAGE_POLICY_INDEX='9"')
    assert "/sdb9/1/a/c/o" in store.objects
    assert list(get_json(app, "/bwinfo")) == ["sdb1"]
    threads = get_json(app, "/osinfo")[f"127.0.0.1:{PORT}"]["sdb1"]
    assert threads["0"]["objects"][0] == {
        "range": "0 - end",
        "oid": f"/AUTH_{hostile}/c/{hostile}<script>",
        "oid_calculated_BW": 1.0,
    }
    assert threads["1"]["policy"] == "0"
    flooded, _ = filtered(clock)
    for number in range(MOST_DEVICES + 50):
        ask(flooded, "PUT", f"/d{number}/1/a/c/o", b"x")
    assert len(get_json(flooded, "/bwinfo")) == MOST_DEVICES
    for number in range(3 * MOST_THREADS):
        for item in range(2 * MOST_OBJECTS):
            ask(flooded, "PUT", f"/d0/1/a{number}/c/{item}{'n' * 5000}", b"x")
    threads = get_json(flooded, "/osinfo")[f"127.0.0.1:{PORT}"]["d0"]
    assert len(threads) <= MOST_THREADS
    assert max(len(t["objects"]) for t in threads.values()) <= MOST_OBJECTS
    assert max(len(o["oid"]) for t in threads.values() for o in t["objects"]) <= 1500


def test_refused_and_failed_requests_are_not_counted() -> None:
    clock = Clock()
    app, _ = filtered(clock)
    ask(app, "PUT", "/sdb1/1/a/c/o", b"x", refuse=True)

    def broken(environ: Any, start_response: Any) -> Any:
        raise OSError("disk")

    app._app = broken
    with pytest.raises(OSError, match="disk"):
        ask(app, "PUT", "/sdb1/1/a/c/o", b"x")
    assert get_json(app, "/osinfo") == {f"127.0.0.1:{PORT}": {"sdb1": {}}}
    assert app._counted._under_way == {}


def test_a_worker_reports_all_workers(tmp_path: Path) -> None:
    # fails if a worker reports itself alone, or counts an unfinished second of another worker as idle
    clock = Clock()
    state = tmp_path / "state"
    app, _ = filtered(clock, state=str(state))
    ask(app, "PUT", "/sdb1/1/a/c/o", b"x" * 2 * MB)
    (state / "1.json").write_text(
        json.dumps(
            {
                "begun_s": 990.0,
                "devices": {"sdb1": [[1000, 3 * MB], [995, 7 * MB]]},
                "threads": [["sdb1", "0", "b", []]],
            }
        )
    )
    (state / "2.json").write_text("torn")
    (state / "passwd").write_text("{}")
    clock.now = 1003.0
    rates = get_json(app, "/bwinfo")["sdb1"]
    assert rates["max1min"] == 7.0
    assert rates["insta"] == 5.0
    assert rates["cov1min"] == 11 / 60
    assert len(get_json(app, "/osinfo")[f"127.0.0.1:{PORT}"]["sdb1"]) == 2


def test_it_can_be_switched_off_and_on(tmp_path: Path) -> None:
    clock = Clock()
    switch = tmp_path / "off"
    app, store = filtered(clock, off_while=str(switch))
    ask(app, "PUT", "/sdb1/1/a/c/o", b"x" * MB)
    switch.touch()
    clock.now += 1
    ask(app, "PUT", "/sdb1/1/a/c/unseen", b"x" * 4 * MB)
    switch.unlink()
    clock.now += 1
    ask(app, "PUT", "/sdb1/1/a/c/o", b"x" * 2 * MB)
    clock.now += 1
    rates = get_json(app, "/bwinfo")["sdb1"]
    assert (rates["mean1min"], rates["insta"]) == (1.0, 2.0)
    assert len(store.objects) == 2


@pytest.mark.parametrize(
    "conf",
    [{"windows": "0"}, {"windows": "x"}, {"windows": "61"}, {"needed": "a"}, {"needed": "a=-1"}],
)
def test_wrong_settings_are_reported(conf: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"found .* expected"):
        filter_factory({}, **conf)(None)


def test_collector_records_the_rates_of_devices(tmp_path: Path) -> None:
    # two servers, one of which answers nonsense: its error is reported, the other is recorded
    clock = Clock()
    app, _ = filtered(clock)
    ask(app, "PUT", "/sdb1/1/a/c/o", b"x" * 3 * MB)
    clock.now += 1

    def nonsense(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b'{"sdb1": [1]}']

    with serving(app) as good, serving(nonsense) as bad:
        settings = {
            "interval_s": 0.1,
            "servers": [{"url": good, "labels": {"host": "storage-1"}}, {"url": bad}],
        }
        sink = check_collector(COLLECTORS.load("swift"), settings, least=1)
    rows = sink.rows()
    assert {r["metric"] for r in rows} == {"swift_bandwidth"}
    assert {r["labels"] for r in rows} == {'{"device":"sdb1","host":"storage-1"}'}
    assert {r["float"] for r in rows} == {3.0}
    for wrong in ({"servers": []}, {"servers": [{"url": "h:1"}]}, {"servers": ["x"]}):
        with pytest.raises(BadInput, match=r"found .* expected"):
            COLLECTORS.load("swift")("it", wrong)


def test_filter_imports_without_penstock() -> None:
    # the Python of Swift lacks penstock's packages
    file = Path(swift_bandwidth.__file__)
    code = (
        f"import sys; sys.path[:0] = [{str(file.parent)!r}]; import swift_bandwidth; print('there')"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert result.stdout == "there\n", result.stderr


def test_polls_go_on_after_a_failed_write() -> None:
    sink = MemorySink()
    sink.fails = 1
    with exporting(text=b'{"sda": {"insta": 1.5}}') as url:
        settings = {"servers": [{"url": url.removesuffix("/metrics")}], "interval_s": 0.1}
        poller = COLLECTORS.load("swift")("s", settings)
        with at_work(poller, sink):
            until(lambda: len(sink.batches) >= 2)
    assert poller.intake.receipt.counted["failed"] == 1
    assert {r["float"] for r in sink.rows()} == {1.5}
