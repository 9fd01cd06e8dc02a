"""Access to `penstock serve` and the receivers: no client address is trusted without a token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import client
from penstock.archive.catalogue import Catalogue
from penstock.errors import PenstockError
from penstock.host.processes.servers import LocalServer, announced, running_servers, server_at
from penstock.parts.monitoring.collectors.graphite import GraphiteReceiver
from penstock.parts.monitoring.collectors.http_push import InfluxReceiver, RemoteWriteReceiver
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.outbox.client import Remote
from penstock.parts.monitoring.usage.swift_bandwidth import accounts_of, are_ours
from penstock.parts.server.app import application
from penstock.parts.server.traces import Served
from penstock.testing import MemorySink

TOKEN, OWN = "the-token-of-the-server", "the-token-of-its-user"
NOBODY = 65534
#: headers of proxies that name a client
PROXIED = (
    {},
    {"X-Forwarded-For": "127.0.0.1"},
    {"Forwarded": "for=127.0.0.1"},
    {"X-Real-IP": "::1"},
)


class Answers:
    """Client of the application in this process, with any client address."""

    def __init__(self, folder: Path, **options: Any) -> None:
        (folder / "experiments").mkdir()
        self.catalogue = Catalogue(folder / "archive.sqlite")
        store = Experiments(self.catalogue, folder / "experiments")
        self.app = application(Served([]), TOKEN, store=lambda: store, own_token=OWN, **options)

    def __call__(
        self,
        method: str,
        path: str,
        token: str | None = None,
        client: str = "127.0.0.1",
        **more: Any,
    ) -> httpx.Response:
        async def ask() -> httpx.Response:
            through = httpx.ASGITransport(self.app, client=(client, 40_000))
            async with httpx.AsyncClient(transport=through, base_url="http://127.0.0.1") as http:
                headers = more.pop("headers", {})
                if token is not None:
                    headers["Authorization"] = f"Bearer {token}"
                return await http.request(method, path, headers=headers, **more)

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(tmp_path_factory.mktemp("local"))


#: routes that OpenAPI omits
HIDDEN = (
    *(("GET", path) for path in ("/openapi.json", "/exp/", "/grafana/", "/nothing", "/exp/a/b/c")),
    *(("POST", path) for path in ("/search", "/query", "/annotations")),
)


def operations(app: Any) -> list[tuple[str, str]]:
    """Method and path of each route, including hidden ones; path parameters become their names."""
    routes = list(HIDDEN)
    for path, methods in app.openapi()["paths"].items():
        filled = path.replace("{number}", "0").replace("{file_id}", "1")
        routes += [(m.upper(), filled.replace("{", "").replace("}", "")) for m in methods]
    return routes


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.7"])
def test_every_route_except_pages_needs_a_token(ask: Answers, client: str) -> None:
    """Fails if a loopback address or a header of a proxy replaces the token."""
    routes = operations(ask.app)
    assert ("DELETE", "/exp/name") in routes
    assert len(routes) > 50
    for method, path in routes:
        for token in (None, OWN[:-1]):
            answer = ask(method, path, token, client)
            assert answer.status_code == 401, (method, path, token)
            if method != "HEAD":
                assert "expected Authorization: Bearer TOKEN" in answer.json()["detail"]
    for headers in PROXIED:
        for token in (None, "wrong", ""):
            answer = ask("DELETE", "/exp/name", token, client, headers=dict(headers))
            assert answer.status_code == 401


def test_user_token_opens_only_experiments(ask: Answers) -> None:
    assert ask("POST", "/exp/mine", OWN).status_code == 201
    assert ask("GET", "/api/v1/experiments/mine", OWN).json()["state"] == "running"
    for path in ("/api/v1/state", "/api/v1/clusters", "/api/traces", "/openapi.json"):
        assert ask("GET", path, OWN).status_code == 401
        assert ask("GET", path, TOKEN).status_code == 200
    assert ask("DELETE", "/exp/mine", OWN).status_code == 201


def test_open_reads_allows_only_reading(tmp_path: Path) -> None:
    ask = Answers(tmp_path, open_reads=True)
    assert ask("POST", "/exp/mine", OWN).status_code == 201
    assert ask("GET", "/api/v1/experiments/mine").status_code == 200
    for method, path in (("POST", "/exp/x"), ("PUT", "/exp/mine"), ("DELETE", "/exp/mine")):
        assert ask(method, path).status_code == 401
    assert ask("GET", "/api/v1/live").status_code == 401


def test_broken_catalogue_is_unavailable(tmp_path: Path) -> None:
    ask = Answers(tmp_path)
    ask.catalogue.close()
    for ending in ("-wal", "-shm"):
        (tmp_path / f"archive.sqlite{ending}").unlink(missing_ok=True)
    (tmp_path / "archive.sqlite").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)
    for method, path, token in (
        ("GET", "/exp", OWN),
        ("POST", "/exp/x", OWN),
        ("GET", "/exp", "t"),
    ):
        answer = ask(method, path, token)
        assert answer.status_code == 503, answer.text
        assert "archive.sqlite" in answer.json()["detail"]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    return tmp_path / "run"


def server_of(address: str, port: int) -> LocalServer:
    return LocalServer(f"http://{address}:{port}/", address, port, TOKEN, OWN, None)


def test_server_files_are_private_and_removed(runtime: Path) -> None:
    with announced(server_of("127.0.0.1", 5072)) as files:
        for path in files:
            assert path.stat().st_mode & 0o777 == 0o600
        assert files[1] == runtime / "serve-5072.header"
        assert files[1].read_text() == f"Authorization: Bearer {OWN}\n"
        assert running_servers() == [server_of("127.0.0.1", 5072)]
    assert list(runtime.iterdir()) == []
    assert running_servers() == []


@pytest.mark.parametrize(
    ("bound", "url", "matches"),
    [
        ("127.0.0.1", "http://127.0.0.1:5072", True),
        ("127.0.0.1", "http://localhost:5072/exp/x", True),
        ("127.0.0.1", "http://127.0.0.2:5072", False),
        ("127.0.0.1", "http://[::1]:5072", False),
        ("127.0.0.1", "http://127.0.0.1:5073", False),
        ("127.0.0.1", "https://127.0.0.1:5072", False),
        ("127.0.0.1", "http://127.0.0.1", False),
        ("127.0.0.1", "http://192.0.2.1:5072", False),
        ("0.0.0.0", "http://127.0.0.9:5072", True),
        ("0.0.0.0", "http://192.0.2.1:5072", False),
        ("127.0.0.1", "http://127.0.0.1:99999", False),
        ("127.0.0.1", "nothing", False),
    ],
)
def test_token_matches_the_address_of_the_server(
    runtime: Path, bound: str, url: str, matches: bool
) -> None:
    """Fails if the token is sent to a server of another user at another address of the host."""
    with announced(server_of(bound, 5072)):
        assert (server_at(url) is not None) == matches


def test_request_is_repeated_once_the_token_file_exists(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server listens before it writes its token file. A client in between repeats its request."""
    remote, server, tokens = Remote("http://127.0.0.1:5072"), server_of("127.0.0.1", 5072), []

    def answer(*_: Any, token: str | None = None, **__: Any) -> httpx.Response:
        tokens.append(token)
        if len(tokens) == 1:
            stack.enter_context(announced(server))
        return httpx.Response(200 if token == server.experiments_token else 401)

    monkeypatch.setattr(remote, "_request", answer)
    with contextlib.ExitStack() as stack:
        assert remote._authorized("GET", "/", None, "", 1.0).status_code == 200
    assert tokens == [None, server.experiments_token]
    # no server of this user: no retry
    del tokens[:]
    tokens.append(None)
    assert remote._authorized("GET", "/", None, "", 1.0).status_code == 401
    assert len(tokens) == 2


def test_files_of_dead_servers_are_ignored(runtime: Path) -> None:
    with announced(server_of("127.0.0.1", 5072)) as (path, _):
        document = json.loads(path.read_text())
        for wrong in ({"pid": 1, "start": 1}, {"boot_id": "x"}):
            path.write_text(json.dumps(document | wrong))
            assert running_servers() == []
        for text in (
            "",
            "[]",
            '"x"',
            "{",
            json.dumps({k: document[k] for k in document if k != "port"}),
        ):
            path.write_text(text)
            assert running_servers() == []


class Recording(threading.Thread):
    """Server that answers 401 and records the `Authorization` headers."""

    def __init__(self, address: str, port: int = 0) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server((address, port))
        self.port = self.listening.getsockname()[1]
        self.received: list[bytes] = []
        self.start()

    def run(self) -> None:
        while True:
            connection, _ = self.listening.accept()
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                lines = head.lower().split(b"\r\n")
                if not lines[0].startswith(b"get /api "):  # the client's check for a live server
                    self.received.append(
                        next((x for x in lines if x.startswith(b"authorization")), b"")
                    )
                body = b'{"detail": "no"}'
                connection.sendall(
                    b"HTTP/1.1 401 x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
                    + body
                )


@pytest.fixture
def recording() -> Recording:
    return Recording("127.0.0.1")


def test_clients_send_the_token_only_to_its_server(
    runtime: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://localhost:{recording.port}"

    def ask(url: str) -> bytes:
        with pytest.raises(PenstockError):
            Remote(url).listed()
        with pytest.raises(PenstockError, match="401"):
            client.download(f"{url}/exp/x/data?metric=m", 10)
        first, second = recording.received[-2:]
        assert first == second
        return first

    assert ask(url) == b""
    with announced(server_of("127.0.0.1", recording.port)):
        assert ask(url) == f"authorization: bearer {OWN}".encode()
    with announced(server_of("127.0.0.2", recording.port)):
        assert ask(f"http://127.0.0.1:{recording.port}") == b""
    monkeypatch.setenv("PENSTOCK_TOKEN", "told")
    monkeypatch.setenv("PENSTOCK_SERVER", url)
    with pytest.raises(PenstockError):
        client.download(f"{url}/exp", 10)
    assert recording.received[-1] == b"authorization: bearer told"


SEND = """
import socket, sys
address, port, kind, uid = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
import os
os.setgroups([])
os.setresuid(uid, uid, uid)
with socket.socket(type=socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as wire:
    wire.connect((address, port))
    wire.sendall(sys.stdin.buffer.read())
    if kind == "http":
        print(wire.recv(65536).decode().split()[1])
    else:
        print("sent", flush=True)
        wire.settimeout(60)
        try:
            wire.recv(1)
        except OSError:
            pass
"""


def sent(port: int, uid: int, content: bytes) -> str:
    """Status of an HTTP request."""
    result = subprocess.run(
        [sys.executable, "-S", "-c", SEND, "127.0.0.1", str(port), "http", str(uid)],
        input=content,
        capture_output=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().strip()


root = pytest.mark.skipif(os.geteuid() != 0, reason="another user needs root")


@root
@pytest.mark.parametrize("kind", [InfluxReceiver, RemoteWriteReceiver])
def test_receivers_refuse_other_users_without_a_token(kind: Any) -> None:
    """Fails if a receiver on loopback accepts points of other users of the host."""

    refused = []

    async def statuses(**settings: Any) -> list[str]:
        receiver = kind("it", {"port": 0, **settings})
        await receiver.start(MemorySink())
        refused.append(receiver.intake.receipt.refused_messages)
        try:
            path = "/write" if kind is InfluxReceiver else "/api/v1/write"
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n\n".encode()
            return [
                await asyncio.to_thread(sent, receiver.address[1], uid, head) for uid in (NOBODY, 0)
            ]
        finally:
            await receiver.stop()

    other_status, own_status = asyncio.run(statuses())
    assert other_status == "401"
    assert own_status != "401"
    assert "401" not in asyncio.run(statuses(open=True))
    assert [counts["unauthorized"] for counts in refused] == [1, 0]


@root
@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_graphite_lines_of_other_users_are_refused(kind: str) -> None:
    async def counted(uid: int) -> Any:
        receiver = GraphiteReceiver("it", {"port": 0, "pickle_port": None})
        await receiver.start(MemorySink())
        receipt = receiver.intake.receipt
        argv = [sys.executable, "-S", "-c", SEND, "127.0.0.1", str(receiver.address[1])]
        pipe = subprocess.PIPE
        with subprocess.Popen([*argv, kind, str(uid)], stdin=pipe, stdout=pipe) as sender:
            assert sender.stdin is not None
            sender.stdin.write(b"a.b 1 1700000000\n")
            sender.stdin.close()
            async with asyncio.timeout(60):
                # until the sender ends, its user is known
                while not (receipt.received or receipt.refused_messages["unauthorized"]):
                    await asyncio.sleep(0.01)
            sender.kill()
        return await receiver.stop()

    of_others, own = asyncio.run(counted(NOBODY)), asyncio.run(counted(0))
    assert of_others.counted["from other users"] == of_others.refused_messages["unauthorized"] == 1
    assert "from other users" not in own.counted
    assert not own.refused_messages


def test_accounts_of_sockets() -> None:
    """Fails if a closed socket counts, or one of another address with the same port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            client_port = connection.getsockname()[1]
            assert accounts_of("127.0.0.1", client_port, port) == {os.geteuid()}
            assert accounts_of("::ffff:127.0.0.1", client_port, port) == {os.geteuid()}
            assert accounts_of("127.0.0.2", client_port, port) == set()
            assert accounts_of("127.0.0.1", client_port, 1) == set()
            accepted, _ = server.accept()
        with accepted:
            assert accounts_of("127.0.0.1", client_port, port) == set()
    assert are_ours({0, os.geteuid()})
    assert not are_ours(set())
    assert not are_ours({0, NOBODY})
