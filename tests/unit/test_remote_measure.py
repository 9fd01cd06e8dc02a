"""Probes of network paths, on addresses of this host, and plans that read their results."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadInput, PenstockError
from penstock.parts.remote.cluster import path_probe
from penstock.parts.remote.cluster.hosts_file import read_inventory, read_unmeasured
from penstock.parts.remote.cluster.measure import measured_paths
from penstock.parts.remote.cluster.path_probe import RoundTrips, close, listen, round_trips
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.unit.cluster_hosts import facts, write_hosts

HOSTS = """
penstock_hosts: 1
listen: 192.0.2.1
workers:
  - {name: a, ssh: root@192.0.2.11}
  - {name: b, ssh: b.example, address: 192.0.2.12, facts: own/b.json}
"""


@pytest.fixture(name="port")
def echo_port() -> Iterator[int]:
    yield free_port()
    close()


def test_probes_return_until_the_end_of_the_echo(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_probe, "_PATIENCE_S", 60.0)
    listen("127.0.0.2", port)
    with pytest.raises(PenstockError, match=rf"UDP port {port} of 127\.0\.0\.2: Address already"):
        listen("127.0.0.2", port)
    trips = round_trips("127.0.0.1", {"b": "127.0.0.2"}, port)["b"]
    assert (trips["sent"], trips["lost"]) == (200, 0)
    assert trips["shortest_s"] > 0
    threads = threading.active_count()
    close()
    with pytest.raises(PenstockError, match=r"no reply from b \(127\.0\.0\.2\)"):
        round_trips("127.0.0.1", {"b": "127.0.0.2"}, port)
    until(lambda: threading.active_count() < threads)


class LossySocket:
    """Every fifth probe is lost; every seventh is returned late, with the next one."""

    def __init__(self, *_: int) -> None:
        self._number, self._late = 0, b""
        self._returned: list[bytes] = []

    def __enter__(self) -> LossySocket:
        return self

    def __exit__(self, *_: object) -> None: ...

    def bind(self, address: tuple[str, int]) -> None: ...

    def connect(self, address: tuple[str, int]) -> None: ...

    def settimeout(self, timeout_s: float) -> None: ...

    def send(self, probe: bytes) -> None:
        if self._late:
            self._returned.append(self._late)
        self._late = probe if self._number % 7 == 1 else b""
        if not self._late and self._number % 5 != 2:
            self._returned.append(probe)
        self._number += 1

    def recv(self, size: int) -> bytes:
        if not self._returned:
            raise TimeoutError
        return self._returned.pop(0)


def test_lost_and_late_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_probe, "_PROBES", 35)
    family = {name: getattr(socket, name) for name in ("AF_INET", "SOCK_DGRAM")}
    monkeypatch.setattr(path_probe, "socket", SimpleNamespace(socket=LossySocket, **family))
    trips = round_trips("127.0.0.1", {"b": "127.0.0.2"})["b"]
    missing = {n for n in range(35) if n % 7 == 1 or n % 5 == 2}
    assert trips["lost"] == len(missing)


@given(st.floats(0, 0.9), st.integers(1, 10**6), st.integers(1, 10**6))
def test_paths_of_probes(loss: float, forth_us: int, back_us: int) -> None:
    """A probe and its return are lost independently of each other."""
    sent = 10**9
    lost = round((1 - (1 - loss) ** 2) * sent)

    def trips(us: int) -> RoundTrips:
        return {"shortest_s": us * 1e-6, "sent": sent, "lost": lost}

    (path,) = measured_paths({("a", "b"): trips(forth_us), ("b", "a"): trips(back_us)}).paths
    assert path.hosts == ("a", "b")
    assert path.delay_s == pytest.approx(min(forth_us, back_us) * 1e-6 / 2)
    assert path.loss == pytest.approx(loss, abs=1e-6)


def test_a_plan_reads_measured_paths_before_those_of_the_file(tmp_path: Path) -> None:
    path = write_hosts(tmp_path, HOSTS, {"a": facts(), "b": facts()})
    unmeasured = read_unmeasured(path)
    assert unmeasured.addresses == {"a": "192.0.2.11", "b": "192.0.2.12"}
    assert unmeasured.facts == {"a": tmp_path / "facts/a.json", "b": tmp_path / "own/b.json"}
    (tmp_path / "facts/b.json").rename(tmp_path / "moved")
    (tmp_path / "own").mkdir()
    (tmp_path / "moved").rename(unmeasured.facts["b"])
    measured = {"paths": [{"hosts": ["a", "b"], "delay_s": 5e-5, "loss": 0.001}]}
    unmeasured.paths.write_text(json.dumps(measured))
    inventory = read_inventory(path)
    paths = inventory.paths(inventory.hosts)
    assert {pair: (p.delay_s, p.loss) for pair, p in paths.items()} == {
        ("a", "b"): (5e-5, 0.001),
        ("b", "a"): (5e-5, 0.001),
    }
    path.write_text(f"{HOSTS}paths: [{{from: a, to: b, latency: 70us}}]\n")
    inventory = read_inventory(path)
    assert inventory.paths(inventory.hosts)["a", "b"].delay_s == pytest.approx(7e-5)
    unmeasured.paths.write_text('{"paths": [{"hosts": ["a", "b"], "delay_s": -1, "loss": 0}]}')
    with pytest.raises(BadInput, match=r"delay_s.*expected the measured paths"):
        read_inventory(path)


def test_a_host_without_an_address_is_not_measured(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("{penstock_hosts: 1, listen: 192.0.2.1, workers: [{name: a}]}")
    with pytest.raises(BadInput, match="host a: address: found none"):
        read_unmeasured(path)
    path.write_text("{penstock_hosts: 1, workers: [{name: a, ssh: a.example}]}")
    with pytest.raises(BadInput, match="listen: found none"):
        read_unmeasured(path)
