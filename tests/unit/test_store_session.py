"""Short requests to files of a node: one persistent program answers them and ends with the session."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.parts.stores.agent_client import Sessions
from penstock.parts.stores.engines.engine import Site
from penstock.spec.store import StoreSpec
from tests.support.waiting import wait_for_end


@dataclass
class LocalNode:
    """A node without namespaces: this host."""

    name: str = "here"
    start_ticks: int = 1
    entered: int = 0

    def enter(self, argv: list[str]) -> list[str]:
        self.entered += 1
        return argv


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    opened = Sessions()
    yield opened
    opened.close()


def ask(sessions: Sessions, name: str, *arguments: Any, timeout_s: float = 20.0) -> Any:
    return sessions.request(cast(RunningNode, LocalNode()), name, *arguments, timeout_s=timeout_s)


def test_files_are_created_inspected_and_tagged(sessions: Sessions, tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "a" / "b")
    assert ask(sessions, "kind", path) is None
    ask(sessions, "make", path)
    assert ask(sessions, "kind", path) == ["file", 0]
    assert ask(sessions, "kind", os.fspath(tmp_path))[0] == "directory"
    Path(path).write_bytes(b"12345")
    ask(sessions, "make", path)  # an existing file stays
    assert ask(sessions, "kind", path) == ["file", 5]
    ask(sessions, "set_attributes", path, {"user.penstock.DP": "local"})
    assert ask(sessions, "attributes", path) == {"user.penstock.DP": "local"}


def test_failed_requests_are_reported_and_the_program_stays(
    sessions: Sessions, tmp_path: Path
) -> None:
    with pytest.raises(PenstockError, match=r"here: .*nothing: No such file or directory"):
        ask(sessions, "attributes", os.fspath(tmp_path / "nothing"))
    result = ask(sessions, "run", ["sh", "-c", "echo out; echo err >&2; exit 3"], 10.0)
    assert result == {"status": 3, "output": "out\nerr\n", "too_long": False}
    assert len(sessions._open) == 1


def test_a_command_that_takes_too_long_is_killed_with_its_children(sessions: Sessions) -> None:
    script, pids = "sleep 600 & echo $$ $!; wait", ""
    for limit_s in (0.3, 3.0, 15.0):  # a shell may take a while to start on a busy host
        result = ask(sessions, "run", ["sh", "-c", script], limit_s)
        assert result["status"] is None
        if pids := result["output"]:
            break
    shell, child = map(int, pids.split())
    wait_for_end(shell)
    wait_for_end(child)


def test_a_dead_program_is_restarted(sessions: Sessions, tmp_path: Path) -> None:
    pid = int(ask(sessions, "run", ["sh", "-c", "echo $PPID"], 10.0)["output"])
    os.kill(pid, 9)
    with contextlib.suppress(PenstockError):  # it may end during the request
        ask(sessions, "kind", "/")
    assert int(ask(sessions, "run", ["sh", "-c", "echo $PPID"], 10.0)["output"]) != pid
    assert ask(sessions, "kind", os.fspath(tmp_path))[0] == "directory"


def test_a_late_answer_is_never_used_for_the_next_request(sessions: Sessions) -> None:
    with pytest.raises(PenstockError, match="no answer in time"):
        ask(sessions, "run", ["sleep", "5"], 10.0, timeout_s=0.2)
    assert ask(sessions, "run", ["echo", "next"], 10.0)["output"] == "next\n"


def test_requests_of_many_threads_get_their_own_answers(sessions: Sessions) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda i: ask(sessions, "run", ["echo", str(i)], 10.0)["output"], range(40)
        )
    assert [int(s) for s in answers] == list(range(40))


def test_an_output_larger_than_a_pipe(sessions: Sessions) -> None:
    result = ask(sessions, "run", ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"], 20.0)
    assert result["output"] == "x" * 3_000_000


@dataclass
class RemoteNode(LocalNode):
    """A node on another host."""

    here: bool = False


def test_commands_in_a_node_on_another_host_share_one_connection(sessions: Sessions) -> None:
    """Daemons may keep the output open: the reply does not wait for them."""
    node = RemoteNode()
    far = cast(RunningNode, node)
    site = Site("s", StoreSpec("moosefs", {}), (far,), (far,), (far,), Path("/none"), {}, sessions)
    script = 'sleep 600 & echo "$!:$NAME:$(head -c 3 | od -An -tx1)"'
    content = b"\x00\xff\n" + bytes(1000)
    for name in ("a", "b c"):
        output = site.run(far, ["sh", "-c", script], what="a", stdin=content, env={"NAME": name})
        daemon, *rest = output.split(":")
        os.kill(int(daemon), signal.SIGKILL)
        assert rest == [name, " 00 ff 0a\n"]
    with pytest.raises(PenstockError, match="here: trying: sh ended with status 4: no"):
        site.run(far, ["sh", "-c", "echo no; exit 4"], what="trying")
    assert len(sessions._open) == 1
