"""Every key of a disk's patch by every door: the same value is taken, or the same refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.cluster.change_arguments import changes_of
from penstock.errors import BadInput
from penstock.platform.cluster import cluster_spec
from penstock.platform.disk_keys import GROUPS, OF_DISKS, patch_of
from penstock.platform.hosts import load_platform
from penstock.platform.schedule import read_schedule
from penstock.study.load import load_study
from penstock.study.resolve import resolve

ROOT = Path(__file__).parents[2]
#: for each key values that make sense, in YAML (which words are, too), and what must be beside it
VALUES: dict[str, tuple[str, ...]] = {
    "limits.read": ("10MB/s", "max"),
    "limits.write": ("10MiB/s", "max"),
    "limits.read_iops": ("500 IOPS", "max"),
    "limits.write_iops": ("7 IOPS", "max"),
    "slow.factor": ("10", "2.5", "max"),
    "slow.ramp": ("5s", "max"),
    "slow.stall.period": ("2s",),
    "slow.stall.length": ("200ms",),
    "slow.random.probability": ("1%", "0.01"),
    "slow.random.factor": ("100",),
    "servers": ("4", "max"),
    "readahead": ("false", "off", "true", "max"),
    "cache": ("false", "off", "true", "max"),
    "read_only": ("true", "on", "false", "max"),
    "full": ("true", "yes", "max"),
    "fail_stop": ("true", "no", "max"),
    "volatile": ("true", "off", "max"),
    "bad_space.share": ("50%", "0.5"),
    "bad_space.mode": ("flip", "zero"),
    "bad_space.seed": ("7",),
    "bad_space.op": ("write", "any"),
    "faults": (
        "[{op: read, error: EIO, probability: 1%, from: 4KiB, to: 8KiB, file: '*.db', seed: 3}]",
        "[]",
        "max",
    ),
    "credits": ("{iops: {rate: 100, burst: 3000, capacity: 1000}}", "max"),
}
#: keys of which only `max` can be said
WHOLES = ("limits", "slow", "slow.stall", "slow.random", "bad_space")
BESIDE = {
    "slow.stall.period": "slow.stall.length=200ms",
    "slow.stall.length": "slow.stall.period=2s",
    "slow.random.probability": "slow.random.factor=100",
    "slow.random.factor": "slow.random.probability=1%",
    "bad_space.mode": "bad_space.share=50%",
    "bad_space.seed": "bad_space.share=50%",
    "bad_space.op": "bad_space.share=50%",
}
#: what makes no sense, by any door
NONSENSE = (
    "limits.read=10",
    "limits.read=true",
    "limits.speed=10MB/s",
    "slow.factor=0",
    "slow.factor=fast",
    "slow.ramp=5",
    "slow.stall.period=max",
    "slow.random.factor=max",
    "slow.random.probability=130%",
    "slow.speed=2",
    "servers=0",
    "servers=many",
    "servers=\u00b2",
    "servers=1000000000000000000000",
    "bad_space.seed=1000000000000000000000",
    "slow.factor=inf",
    "slow.ramp=1e18s",
    "credits={iops: {base: .inf, burst: 1}}",
    "readahead=maybe",
    "full=2",
    "bad_space.share=max",
    "bad_space.share=130%",
    "bad_space.mode=odd",
    "bad_space.op=flush",
    "faults=[{op: reed}]",
    "faults=yes",
    "credits=many",
    "speed=2",
)
CASES = [
    *(f"{key}={value}" for key, values in VALUES.items() for value in values),
    *(f"{whole}=max" for whole in WHOLES),
]


def _said(word: str) -> list[str]:
    """The word, and what must stand beside it."""
    return [word, *([BESIDE[key]] if (key := word.partition("=")[0]) in BESIDE else [])]


def _set(words: list[str], _: Path) -> Any:
    return patch_of(words)


def _nodes_set(words: list[str], _: Path) -> Any:
    (change,) = changes_of(["n", *(f"disk.d.{word}" for word in words)])
    return change.patch


def _entry(words: list[str]) -> str:
    pairs = (word.partition("=") for word in words)
    return "{at: 1s, " + ", ".join(f"{key}: {value}" for key, _, value in pairs) + "}"


def _schedule(words: list[str], place: Path) -> Any:
    (place / "s.yaml").write_text(f"- {_entry(words)}\n")
    (event,) = read_schedule(place / "s.yaml")
    return event.patch


def _platform(words: list[str], place: Path) -> Any:
    (place / "p.yaml").write_text(
        "penstock_platform: 1\nname: p\n"
        "hosts: [{group: n, count: 1, disks: [{name: d, profile: sata-ssd}]}]\n"
        f"schedule:\n- {_entry(words)[:-1]}, disk: d}}\n"
    )
    (event,) = cluster_spec(load_platform(place / "p.yaml", predicted=False)).events
    return event.patch


def _study(words: list[str], place: Path) -> Any:
    (place / "s.study.yaml").write_text(
        "penstock: 1\nname: s\nquestion: none?\nfactors: {f: {levels: [1, 2]}}\n"
        "design: {kind: full, replicates: 1}\n"
        "platform:\n  nodes: [{name: n, disks: [{name: d, limits: {read: 4MB/s}}]}]\n"
        f"  schedule:\n  - {_entry(words)[:-1]}, disk: d}}\n"
        "workload: {command: 'true {f}'}\nresponses: {t: {from: wall_s, unit: s, better: lower}}\n"
    )
    study = load_study(place / "s.study.yaml")
    resolved = resolve(study, {"f": study.factors[0].levels[0].name})
    assert resolved.cluster is not None
    (event,) = resolved.cluster.events
    return event.patch


DOORS: dict[str, Callable[[list[str], Path], Any]] = {
    "disk set": _set,
    "nodes set": _nodes_set,
    "disk schedule": _schedule,
    "platform": _platform,
    "study": _study,
}


def _plain(patch: Any) -> Any:
    """`max` and null say the same, as do a rule's defaults said and unsaid."""
    return json.loads(json.dumps(patch).replace('"max"', "null"))


def test_every_key_has_its_cases() -> None:
    assert set(VALUES) == set(OF_DISKS) - {"profile", "power_cut"}
    assert set(WHOLES) == set(GROUPS)


@pytest.mark.parametrize("word", CASES)
def test_every_door_takes_the_same(word: str, tmp_path: Path) -> None:
    expected = _plain(patch_of(_said(word)))
    for name, door in DOORS.items():
        try:
            found = _plain(door(_said(word), tmp_path))
        except BadInput as refused:
            pytest.fail(f"{name} refuses {word}: {refused}")
        assert found == expected, name


@pytest.mark.parametrize("word", NONSENSE)
def test_every_door_refuses_the_same(word: str, tmp_path: Path) -> None:
    for name, door in DOORS.items():
        try:
            found = door(_said(word), tmp_path)
        except BadInput:
            continue
        pytest.fail(f"{name} takes {word}: {found}")


def test_the_disk_server_has_the_same_keys() -> None:
    listed = set()
    for file, name in (("station/src/patch.rs", "KEYS"), ("disk/src/patch.rs", "OWN_KEYS")):
        text = (ROOT / "crates" / file).read_text()
        found = re.search(rf"const {name}:.*?= \[(.*?)\];", text, re.S)
        assert found is not None
        listed |= set(re.findall(r'"(\w+)"', found[1]))
    assert listed == {path[0] for path, _ in OF_DISKS.values()}
