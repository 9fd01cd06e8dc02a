"""What the supervisor of virtual nodes answers to lines that are no commands."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.cluster.supervisor import Supervisor


def answers(lines: list[bytes]) -> list[dict[str, Any]]:
    """To each line, of one connection."""
    nobody: Any = None
    ours, theirs = socket.socketpair()
    talk = threading.Thread(target=Supervisor({}, nobody)._converse, args=(theirs,))
    talk.start()
    ours.settimeout(10)
    with ours, ours.makefile("rb") as told:
        found = []
        for line in lines:
            ours.sendall(line + b"\n")
            found.append(json.loads(told.readline()))
    talk.join()
    return found


def test_what_is_no_command_is_refused_and_the_talk_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    odd = [b"5", b"null", b'"ping"', b"[]", b"{", b"[" * 100_000, b'{"cmd": ["ping"]}', b"\xff"]
    *refused, ping = answers([*odd, b'{"cmd": "ping"}'])
    assert [(one["ok"], one["bad_input"]) for one in refused] == [(False, True)] * len(odd)
    assert all(one["error"] for one in refused)
    assert (ping["ok"], ping["clusters"]) == (True, [])
