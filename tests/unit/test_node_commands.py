"""Replies of the supervisor of virtual nodes to invalid commands."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.cluster.supervisor import Supervisor


def replies_to(lines: list[bytes]) -> list[dict[str, Any]]:
    """Reply to each line on one connection."""
    owner: Any = None
    client, server = socket.socketpair()
    thread = threading.Thread(target=Supervisor({}, owner)._converse, args=(server,))
    thread.start()
    client.settimeout(60)
    with client, client.makefile("rb") as reader:
        replies = []
        for line in lines:
            client.sendall(line + b"\n")
            replies.append(json.loads(reader.readline()))
    thread.join()
    return replies


def test_bad_commands_are_refused_and_the_connection_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    bad = [b"5", b"null", b'"ping"', b"[]", b"{", b"[" * 100_000, b'{"cmd": ["ping"]}', b"\xff"]
    *refused, ping = replies_to([*bad, b'{"cmd": "ping"}'])
    assert [(reply["ok"], reply["bad_input"]) for reply in refused] == [(False, True)] * len(bad)
    assert all(reply["error"] for reply in refused)
    assert (ping["ok"], ping["clusters"]) == (True, [])
