"""Commands in nodes of several hosts, with processes of this host in place of nodes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.parts.remote.cluster import agent
from penstock.parts.remote.cluster.coordinator import RemoteCluster


class Node:
    def __init__(self, name: str) -> None:
        self.name = name

    def enter(self, argv: Sequence[str], **_: object) -> list[str]:
        return ["env", f"NODE={self.name}", *argv]


class Nodes:
    def chosen(self, names: Sequence[str]) -> list[Node]:
        return [Node(name) for name in names]


class Pool:
    """Call functions of the agent in this process; the host `lost` does not respond."""

    def call_all(
        self, function: Callable[..., Any], arguments: Mapping[str, Sequence[Any]]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        replies = {
            host: function(*host_arguments)
            for host, host_arguments in arguments.items()
            if host != "lost"
        }
        return replies, {
            host: "its worker disconnected" for host in arguments if host not in replies
        }


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.parts.remote.cluster.agent.Cluster.find", lambda _: Nodes())


def cluster(**host_of: str) -> RemoteCluster:
    return RemoteCluster("lab", "key", "192.0.2.1", (), host_of, {})


def test_a_command_runs_in_all_nodes_of_a_host_at_once(tmp_path: Path) -> None:
    """Each node waits for the other one, so that sequential execution would not end."""
    for name in ("a", "b"):
        os.mkfifo(tmp_path / name)
    script = f"cd {tmp_path}; if [ $NODE = a ]; then echo 1 >a; cat b; else cat a; echo 2 >b; fi"
    results = agent.execute("lab", ["a", "b"], ["timeout", "20", "sh", "-c", script], {})
    assert {n: (d["status"], d["stdout"]) for n, d in results.items()} == {
        "a": (0, b"2\n"),
        "b": (0, b"1\n"),
    }


def test_an_interrupted_command_ends_with_its_children() -> None:
    """A child has the output of the command: the call returns only after its end."""
    argv = ["sh", "-c", "sleep 100 & wait"]
    with ThreadPoolExecutor(1) as runner:
        call = runner.submit(agent.execute, "lab", ["a"], argv, {})
        deadline = time.monotonic() + 30
        while not agent._COMMANDS and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(agent._COMMANDS) == 1
        time.sleep(0.2)
        agent.interrupt()
        result = call.result(30)["a"]
    assert result["status"] == 128 + signal.SIGTERM
    assert set() == agent._COMMANDS


def test_an_interrupt_is_passed_to_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[Sequence[str]] = []

    class Interrupted(Pool):
        def call_all(self, *_: object) -> tuple[dict[str, Any], dict[str, str]]:
            raise KeyboardInterrupt

        def interrupt(self, function: Callable[[], None], hosts: Sequence[str]) -> None:
            assert function is agent.interrupt
            passed.append(hosts)

    with pytest.raises(KeyboardInterrupt):
        cluster(a="left", b="right").execute_in(Interrupted(), ["a", "b"], ["x"])  # type: ignore[arg-type]
    assert passed == [["left", "right"]]


def test_output_is_in_the_order_of_the_nodes(capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["sh", "-c", "echo out of $NODE; echo err >&2; [ $NODE = b ] && exit 7; exit 3"]
    live = cluster(a="left", b="right", c="left")
    assert live.execute_in(Pool(), ["a", "b", "c"], argv) == 7  # type: ignore[arg-type]
    out, err = capfd.readouterr()
    assert out == "a | out of a\nb | out of b\nc | out of c\n"
    assert err == "a | err\nb | err\nc | err\n"


def test_output_of_the_other_hosts_comes_before_the_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    live = cluster(a="left", b="lost")
    with pytest.raises(PenstockError, match="host lost: its worker disconnected"):
        live.execute_in(Pool(), ["a", "b"], ["echo", "there"])  # type: ignore[arg-type]
    assert capfd.readouterr().out == "a | there\n"
