"""`penstock serve` against foreign clients: other names, other sites, no token, endless bodies, no TLS."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import ipaddress
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.client import Client
from penstock.parts.monitoring.outbox.client import Remote
from tests.examples.trace_page import events, write_bundle
from tests.support import commands, web
from tests.unit.browser import opened

PAGES = ("/", "/live", "/nodes", "/traces/0", "/studies/0")
GUARDED = (
    *("/api/traces", "/api/traces/0/page", "/api/traces/0/files"),
    "/api/studies",
    *("/api/traces/0/tables/io_events", "/api/v1", "/api/v1/state", "/openapi.json", "/nothing"),
)
SECRET = "/data/payroll.db"


class Server:
    """A server process with its own state."""

    def __init__(self, place: Path, *options: object) -> None:
        self.environment = {
            **os.environ,
            "PENSTOCK_STATE": str(place / "state"),
            "PENSTOCK_RUNTIME": str(place / "run"),
        }
        self.log = open(place / "log", "w+")  # noqa: SIM115 - closed by `end`
        self.process = commands.popen(
            [sys.executable, "-m", "penstock", "serve", *map(str, options), "--port", "0"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip().rstrip("/")
        assert self.url, self.stderr()
        file = place / "run" / f"serve-{self.process.pid}.json"
        self.token: str = json.loads(file.read_text())["token"]
        self.port = int(self.url.rsplit(":", 1)[1])
        self.auth_headers = {"Authorization": f"Bearer {self.token}"}

    def stderr(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def get(self, path: str, **headers: str) -> httpx.Response:
        return web.get(self.url + path, headers=headers, timeout=60)

    def raw_response(self, head: str, pieces: Iterator[bytes]) -> str:
        """The response to a raw request, up to the close of the connection by the server."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
            connection.setblocking(True)
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    connection.sendall(piece)
            stderr = b""
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(65536):
                    stderr += piece
        return stderr.decode()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("guarded")
    running = Server(place, write_bundle(place / "T", events(130_000), names={1: SECRET}))
    yield running
    running.end()


@pytest.mark.parametrize("path", GUARDED)
def test_only_pages_are_public(server: Server, path: str) -> None:
    wrong = ({}, {"Authorization": f"Bearer {server.token}x"}, {"Authorization": "Bearer"})
    for headers in (*wrong, {"Authorization": server.token}, {"Cookie": f"token={server.token}"}):
        response = server.get(path, **headers)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
    assert server.get(path, **server.auth_headers).status_code == (
        404 if path == "/nothing" else 200
    )


@pytest.mark.parametrize("path", PAGES)
def test_pages_contain_no_served_data(server: Server, path: str) -> None:
    page = server.get(path)
    assert page.status_code == 200
    assert "payroll" not in page.text
    assert server.token not in page.text
    assert web.post(server.url + path, headers=server.auth_headers).status_code == 405


@pytest.mark.parametrize("path", PAGES)
def test_pages_run_only_their_own_scripts_and_cannot_be_framed(server: Server, path: str) -> None:
    page = server.get(path)
    policy = dict(
        part.split(maxsplit=1) for part in page.headers["Content-Security-Policy"].split("; ")
    )
    assert policy["frame-ancestors"] == policy["default-src"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in policy["script-src"]
    scripts = re.findall(r"<script>(.*?)</script>", page.text, re.S)
    assert scripts
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy["script-src"].split()
    assert not re.search(r"\son\w+=", page.text)
    assert page.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", [*PAGES, *GUARDED])
def test_other_names_and_other_sites_are_refused(server: Server, path: str) -> None:
    for name in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", ""):
        assert server.get(path, Host=name, **server.auth_headers).status_code == 421, name
    for site in (
        *("http://evil.example", "null", "", f"https://127.0.0.1:{server.port}"),
        *("http://127.0.0.1:1", f"http://localhost:{server.port}"),
    ):
        assert server.get(path, Origin=site, **server.auth_headers).status_code == 403, site
    own = server.get(path, Origin=server.url, **server.auth_headers).status_code
    assert own == (404 if path == "/nothing" else 200)
    named = {"Host": f"localhost:{server.port}", "Origin": f"http://localhost:{server.port}"}
    assert server.get(path, **named, **server.auth_headers).status_code == own


def test_the_own_address_may_have_any_spelling(server: Server) -> None:
    """Fails if another address is accepted, or if text after the address is ignored."""
    for name, status in (
        *(("127.1", 200), ("127.0.1", 200), ("0x7f.1", 200), ("0X7F000001", 200)),
        *(("2130706433", 200), ("0177.0.0.01", 200)),
        *(("127.2", 421), ("2130706434", 421), ("1.127", 421), ("127.1.evil.example", 421)),
        *(("127.1 evil.example", 421), ("127.0.0.0.1", 421)),
        *(("fade.be", 421), ("x", 421), (".", 421)),
    ):
        for port in ("", f":{server.port}"):
            response = server.get("/api/v1", Host=name + port, **server.auth_headers)
            assert response.status_code == status, name + port


@pytest.mark.parametrize("path", ["/api/v1/clusters", "/api/v1/clusters/x/exec"])
def test_the_size_of_a_body_is_limited(server: Server, path: str) -> None:
    head = f"POST {path} HTTP/1.1\nHost: localhost:{server.port}\nContent-Type: application/json"
    authorized = f"{head}\nAuthorization: Bearer {server.token}"

    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield b"10000\r\n" + b"[" * 0x10000 + b"\r\n"
        raise AssertionError("the server accepted 65 MB")

    for request, status in ((head, 401), (authorized, 413)):
        response = server.raw_response(f"{request}\nContent-Length: {1 << 40}", iter(()))
        assert response.startswith(f"HTTP/1.1 {status}")
        response = server.raw_response(f"{request}\nTransfer-Encoding: chunked", endless())
        assert response == "" or response.startswith(f"HTTP/1.1 {status}")
    too_long = web.post(
        server.url + path, headers=server.auth_headers, content=b'"' + b"x" * (17 << 20) + b'"'
    )
    assert too_long.status_code == 413


@pytest.mark.parametrize(
    ("headers", "status", "end"),
    [
        ({}, 413, 'bytes at most"}'),
        ({"Authorization": "Bearer wrong"}, 401, 'that `penstock serve` printed"}'),
        ({"Origin": "http://elsewhere"}, 403, 'are not allowed"}'),
        ({"Host": "elsewhere"}, 421, 'is not served here"}'),
    ],
)
def test_a_client_that_sends_all_of_a_long_body_reads_the_refusal(
    server: Server, headers: dict[str, str], status: int, end: str
) -> None:
    body = b'"' + b"x" * (17 << 20) + b'"'
    sent = {
        "Host": f"localhost:{server.port}",
        "Authorization": f"Bearer {server.token}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    }
    lines = [f"{name}: {value}\r\n" for name, value in (sent | headers).items()]
    head = f"POST /api/v1/clusters HTTP/1.1\r\n{''.join(lines)}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(head.encode() + body)
        response = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert response.startswith(f"HTTP/1.1 {status} ")
    assert response.endswith(end)


def test_numbers_out_of_range_are_refused(server: Server) -> None:
    for query in (f"first={10**30}", f"first={2**63}", "first=-1", f"most={10**30}"):
        response = server.get(f"/api/traces/0/tables/io_events?{query}", **server.auth_headers)
        assert response.status_code == 422, query
    assert server.get(f"/api/traces/{10**17}/files", **server.auth_headers).status_code == 404


def test_a_browser_with_the_token_shows_the_trace(server: Server, tmp_path: Path) -> None:
    plotted = "document.querySelector('canvas[data-panel=number]')?.hasAttribute('width')"
    zoomed = (
        "performance.getEntriesByType('resource').some("
        "(e) => e.name.includes('/view?') && e.responseStatus === 200)"
    )
    secret = f"document.body.innerText.includes({json.dumps(SECRET)})"
    login = "document.getElementById('login')?.hidden === false"
    with opened(tmp_path) as browser:
        browser.open(f"{server.url}/")
        browser.awaits(login)
        browser.open(f"{server.url}/#token={server.token}x")
        browser.awaits("document.body.innerText.includes('Invalid token.')")
        assert browser.value(login)
        assert not browser.value(secret)
        for page in ("/traces/0", "/"):
            browser.open(f"{server.url}{page}#token={server.token}")
            browser.awaits(plotted)
            assert browser.value(secret)
            assert server.token not in browser.value("location.href")
            for _ in range(12):
                browser.value("document.querySelector('button[data-do=in]').click()")
            browser.awaits(zoomed)
            assert browser.complaints == []
        browser.ask("Page.reload")  # the tab keeps the token
        browser.awaits(plotted)
        browser.value(
            "document.head.append(Object.assign(document.createElement('script'), "
            "{textContent: 'window.planted = 1'}))"
        )
        assert not browser.value("window.planted")  # another script than the page's own
        assert any("Content Security Policy" in complaint for complaint in browser.complaints)
        browser.open(f"{server.url}/nodes#token={server.token}")
        browser.awaits("document.body.innerText.includes('Nothing is up')")
        assert browser.complaints == []


def certificate(place: Path, *, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and a name, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "penstock test")])
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName(name)]
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    cert, key_file = place / "cert.pem", place / "key.pem"
    cert.write_bytes(signed.public_bytes(pem))
    plain = serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return cert, key_file


def refused(place: Path, *options: object) -> str:
    """The error of `serve` for options that it refuses."""
    environment = {**os.environ, "PENSTOCK_RUNTIME": str(place / "run")}
    result = commands.run(
        [sys.executable, "-m", "penstock", "serve", *map(str, options), "--port", "0"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result
    return result.stderr


@pytest.mark.long
@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_other_addresses_need_tls_or_insecure(tmp_path: Path, address: str) -> None:
    message = refused(tmp_path, "--host", address)
    assert "--tls-cert" in message
    assert "--insecure" in message


@pytest.mark.long
def test_invalid_certificates_are_refused(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, name="one.example")
    (tmp_path / "other").mkdir()
    _, other_key = certificate(tmp_path / "other", name="two.example")
    assert "--tls-key" in refused(tmp_path, "--tls-key", key)
    assert "nowhere" in refused(tmp_path, "--tls-cert", tmp_path / "nowhere", "--tls-key", key)
    assert "--tls-cert" in refused(tmp_path, "--tls-cert", cert, "--tls-key", other_key)
    assert "--tls-cert" in refused(tmp_path, "--tls-cert", cert)  # a file without a key
    assert "--insecure" in refused(
        tmp_path, "--insecure", "--tls-cert", cert, "--tls-key", key, "--host", "0.0.0.0"
    )


@pytest.mark.long
def test_serve_over_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, name="storage.example")
    server = Server(tmp_path, "--host", "0.0.0.0", "--tls-cert", cert, "--tls-key", key)
    try:
        trusting = ssl.create_default_context(cafile=str(cert))
        url = f"https://127.0.0.1:{server.port}"
        with httpx.Client(verify=trusting, base_url=url, headers=server.auth_headers) as client:
            assert client.get("/api/v1").json()["api"] == 1
            for name, status in (
                (f"storage.example:{server.port}", 200),
                (f"STORAGE.example:{server.port}", 200),
                (f"127.0.0.1:{server.port}", 200),
                (f"127.0.0.2:{server.port}", 421),
                ("evil.example", 421),
            ):
                assert client.get("/api/v1", headers={"Host": name}).status_code == status, name
            plain = {"Origin": f"http://127.0.0.1:{server.port}"}
            assert client.get("/api/v1", headers=plain).status_code == 403
            assert client.get("/api/v1", headers={"Origin": url}).status_code == 200
        with pytest.raises(httpx.HTTPError):
            web.get(f"http://127.0.0.1:{server.port}/", timeout=20)
        with Client(url, server.token, tls=trusting) as penstock_client:
            assert penstock_client.version()["api"] == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
            with Client.local() as local:
                assert local.version()["api"] == 1
            # its certificate is trusted in the comparison of clocks as well
            offset = Remote(url).clock()
            assert offset is not None
            assert abs(offset.offset_ns) <= offset.bound_ns
    finally:
        server.end()
    assert "not encrypted" not in log_of(tmp_path)


@pytest.mark.long
def test_serve_without_tls_with_insecure(tmp_path: Path) -> None:
    server = Server(tmp_path, "--host", "0.0.0.0", "--insecure")
    try:
        url = f"http://127.0.0.1:{server.port}"
        assert web.get(f"{url}/api/v1", headers=server.auth_headers).status_code == 200
        assert web.get(f"{url}/api/v1").status_code == 401
        named = {"Host": "evil.example", **server.auth_headers}
        assert web.get(f"{url}/api/v1", headers=named).status_code == 421
    finally:
        server.end()
    assert "not encrypted" in log_of(tmp_path)


def log_of(place: Path) -> str:
    return (place / "log").read_text()
