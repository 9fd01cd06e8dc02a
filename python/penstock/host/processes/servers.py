"""Servers of this user on this host, and the tokens for this user's own clients.

A server writes a file that only its owner may read. A client of the same user reads it, so that no token must
be entered; a request from this host has no privileges by that.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.errors import PenstockError
from penstock.host.processes.processes import Identity
from penstock.state import closed, runtime_dir

if TYPE_CHECKING:
    import ssl

_PATTERN = "serve-*.json"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class LocalServer:
    """A running server: the address it is bound to, and its tokens.

    `token` permits everything, `experiments_token` the experiments that its user may see. `cert` is the path
    of its certificate, None without TLS.
    """

    url: str
    address: str
    port: int
    token: str
    experiments_token: str
    cert: str | None

    def is_at(self, url: str) -> bool:
        """True if the URL leads to this server.

        Send the token to `self.url` only: another user may listen at another address of the same name.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            return False
        same = parts.scheme == urlsplit(self.url).scheme and port == self.port
        return same and parts.hostname is not None and self._is_bound_to(parts.hostname)

    def _is_bound_to(self, host: str) -> bool:
        try:
            bound = ipaddress.ip_address(self.address)
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = {plain_address(str(answer[4][0])) for answer in answers}
        except (OSError, UnicodeError, ValueError):
            return False
        return bound in addresses or (bound.is_unspecified and any(map(_is_local, addresses)))


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def plain_address(text: str) -> _Address:
    """Parse an address; an IPv4-mapped IPv6 address becomes IPv4."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _is_local(address: _Address) -> bool:
    """True if it is an address of this host: a socket can be bound to it."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def running_servers() -> list[LocalServer]:
    """Running servers of this user. Raises PenstockError if the directory is another user's."""
    servers = []
    for path in sorted(runtime_dir().glob(_PATTERN)):
        try:
            record = json.loads(path.read_text())
            if Identity(record["boot_id"], record["pid"], record["start"]).alive:
                servers.append(LocalServer(**{k: record[k] for k in LocalServer.__annotations__}))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return servers


def server_at(url: str) -> LocalServer | None:
    """Server of this user at a URL; None if there is none or another server."""
    try:
        servers = running_servers()
    except (PenstockError, OSError):
        return None  # without our own directory there is no server
    return next((server for server in servers if server.is_at(url)), None)


@contextlib.contextmanager
def announced(server: LocalServer) -> Iterator[tuple[Path, Path]]:
    """Context with a file for clients of the same user, and a header file for curl (`-H @FILE`)."""
    home = runtime_dir()
    path, header = home / f"serve-{os.getpid()}.json", home / f"serve-{server.port}.header"
    line = f"Authorization: Bearer {server.experiments_token}\n"
    _write(path, json.dumps({**vars(Identity.own()), **asdict(server)}))
    try:
        _write(header, line)
        yield path, header
    finally:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            if header.read_text() == line:  # another address may have a server at the same port
                header.unlink()


def _write(path: Path, text: str) -> None:
    """Write atomically a file that only its owner may read."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with open(draft, "x", opener=closed) as file:
        file.write(text)
    draft.rename(path)


def trust_in(cert: str) -> ssl.SSLContext:
    """TLS context that trusts only this certificate, for any host name."""
    import ssl

    try:
        trust = ssl.create_default_context(cafile=cert)
    except OSError as error:
        raise PenstockError(f"{cert}: {error}") from None
    trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trust.check_hostname = False
    return trust


def verification(url: str, cert: str | None = None) -> ssl.SSLContext | bool:
    """The argument `verify` of httpx for a URL: trusted certificates, or False for plain HTTP.

    `cert`: the only trusted certificate, in place of those of this host. Reading these takes 0.1 s: once for
    HTTPS, never for HTTP.
    """
    if url.lower().startswith("http://"):
        return False
    return _host_certificates() if cert is None else trust_in(cert)


@functools.cache
def _host_certificates() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()
