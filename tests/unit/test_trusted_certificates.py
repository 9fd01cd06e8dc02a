"""Clients read the certificates of this host only for HTTPS, because that takes 0.1 s of processor time."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Client, download
from penstock.errors import PenstockError
from penstock.host.processes import servers
from penstock.parts.monitoring.outbox.client import Remote, Unreachable
from penstock.parts.monitoring.servers.reader import reached


def _download(url: str) -> None:
    with pytest.raises(PenstockError):
        download(url, 1)


def _clock(url: str) -> None:
    with pytest.raises(Unreachable):
        Remote(url).clock()


CLIENTS: dict[str, Callable[[str], Any]] = {
    "resources": lambda url: Client(url, "token").close(),
    "download": _download,
    "experiments": Remote,
    "clock": _clock,
    "servers": lambda url: reached(url)[1].close(),
}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_certificates_are_read_for_https_only(
    name: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    create = ssl.create_default_context

    def recording_context(*arguments: Any, **options: Any) -> ssl.SSLContext:
        read.append(name)
        return create(*arguments, **options)

    monkeypatch.setattr(ssl, "create_default_context", recording_context)
    servers._host_certificates.cache_clear()
    CLIENTS[name](f"{scheme}://127.0.0.1:1")
    assert bool(read) == (scheme == "https")
