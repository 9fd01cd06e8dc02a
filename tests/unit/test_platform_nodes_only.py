"""`platform check` and `nodes up` accept the same platforms."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import cli
from penstock.errors import BadInput
from penstock.platform.cluster import checked_cluster
from penstock.platform.hosts import load_platform

HEAD = "penstock_platform: 1\nname: some\n"
#: hosts of platforms without roles: the first five are valid
HOSTS = {
    "bare": "- {group: n, count: 2}",
    "with memory": "- {group: n, count: 1, memory: 64MiB}",
    "with a disk": "- {group: n, count: 1, disks: [{name: d, limits: {read: 4MB/s}}]}",
    "with a link": "- {group: n, count: 1, network: {bandwidth: 10Mbit/s}}",
    "with privileges": "- {group: n, count: 1, privileges: [SYS_TIME, /dev/fuse]}",
    "a privilege that is none": "- {group: n, count: 1, privileges: [SYS_TIMES]}",
    "too little memory": "- {group: n, count: 1, memory: 1MiB}",
    "a disk over a system's directory": "- {group: n, count: 1, disks: [{name: d, mount: /etc}]}",
    "a processor that is not there": "- {group: n, count: 1, cpuset: '4095'}",
    "an unknown key": "- {group: n, count: 1, memorie: 64MiB}",
    "an image that is not there": "- {group: n, count: 1, image: nowhere}",
    "a disk twice": "- {group: n, count: 1, disks: [{name: d, profile: sata-ssd}, {name: d}]}",
}
NETWORKS = ("", "network: {}\n", "network: {latency: 1ms}\n", "network: {subnet: 10.90.0.0/24}\n")


def _accepted_by_check(file: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr("sys.argv", ["penstock", "platform", "check", str(file)])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code in (0, 2)
    return exited.value.code == 0


def _accepted_by_nodes(file: Path) -> bool:
    try:
        checked_cluster(load_platform(file, predicted=False))
    except BadInput:
        return False
    return True


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("network", NETWORKS)
def test_check_and_nodes_accept_the_same_hosts(
    hosts: str, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"{HEAD}hosts:\n{HOSTS[hosts]}\n{network}")
    valid = list(HOSTS).index(hosts) < 5
    assert _accepted_by_nodes(file) == valid
    assert _accepted_by_check(file, monkeypatch) == valid


def test_check_and_nodes_accept_all_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    files = [
        file
        for folder in ("examples", "studies")
        for file in sorted((root / folder).rglob("*.yaml"))
        if "penstock_platform" in file.read_text()
    ]
    assert files
    for file in files:
        assert _accepted_by_check(file, monkeypatch), file
        assert _accepted_by_nodes(file), file


def test_roles_require_a_complete_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"{HEAD}hosts:\n- {{group: n, count: 1, roles: [client]}}\n")
    assert not _accepted_by_check(file, monkeypatch)
    assert "storage" in capsys.readouterr().err
