"""Every key of a disk's patch through all interfaces, which accept and refuse the same values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import disk
from penstock.emulate.cluster.change_arguments import changes_of
from penstock.emulate.disks import persistent
from penstock.errors import BadInput
from penstock.platform.cluster import cluster_spec
from penstock.platform.disk_keys import GROUPS, OF_DISKS, patch_of
from penstock.platform.hosts import load_platform
from penstock.platform.schedule import read_schedule
from penstock.study.load import load_study
from penstock.study.resolve import resolve

ROOT = Path(__file__).parents[2]
#: valid values of each key in YAML (also words of YAML), and the keys that they need
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
#: keys whose only own value is `max`
GROUP_KEYS = ("limits", "slow", "slow.stall", "slow.random", "bad_space")
REQUIRED = {
    "slow.stall.period": "slow.stall.length=200ms",
    "slow.stall.length": "slow.stall.period=2s",
    "slow.random.probability": "slow.random.factor=100",
    "slow.random.factor": "slow.random.probability=1%",
    "bad_space.mode": "bad_space.share=50%",
    "bad_space.seed": "bad_space.share=50%",
    "bad_space.op": "bad_space.share=50%",
}
#: invalid in all interfaces
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
    *(f"{group}=max" for group in GROUP_KEYS),
]


def _with_required(assignment: str) -> list[str]:
    """The assignment, and the one that it needs."""
    return [
        assignment,
        *([REQUIRED[key]] if (key := assignment.partition("=")[0]) in REQUIRED else []),
    ]


def _set(assignments: list[str], place: Path) -> Any:
    patches: list[Any] = []

    def change(_mount: Path, patch: Any, _profile: str | None, **_: Any) -> dict[str, int]:
        patches.append(patch)
        return {}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(persistent, "change", change)
        disk.set_(place, assignments, 1.0, as_json=True)
    return patches[0]


def _nodes_set(assignments: list[str], _: Path) -> Any:
    (change,) = changes_of(["n", *(f"disk.d.{assignment}" for assignment in assignments)])
    return change.patch


def _entry(assignments: list[str]) -> str:
    pairs = (assignment.partition("=") for assignment in assignments)
    return "{at: 1s, " + ", ".join(f"{key}: {value}" for key, _, value in pairs) + "}"


def _schedule(assignments: list[str], place: Path) -> Any:
    (place / "s.yaml").write_text(f"- {_entry(assignments)}\n")
    (event,) = read_schedule(place / "s.yaml")
    return event.patch


def _platform(assignments: list[str], place: Path) -> Any:
    (place / "p.yaml").write_text(
        "penstock_platform: 1\nname: p\n"
        "hosts: [{group: n, count: 1, disks: [{name: d, profile: sata-ssd}]}]\n"
        f"schedule:\n- {_entry(assignments)[:-1]}, disk: d}}\n"
    )
    (event,) = cluster_spec(load_platform(place / "p.yaml", predicted=False)).events
    return event.patch


def _study(assignments: list[str], place: Path) -> Any:
    (place / "s.study.yaml").write_text(
        "penstock: 1\nname: s\nquestion: none?\nfactors: {f: {levels: [1, 2]}}\n"
        "design: {kind: full, replicates: 1}\n"
        "platform:\n  nodes: [{name: n, disks: [{name: d, limits: {read: 4MB/s}}]}]\n"
        f"  schedule:\n  - {_entry(assignments)[:-1]}, disk: d}}\n"
        "workload: {command: 'true {f}'}\nresponses: {t: {from: wall_s, unit: s, better: lower}}\n"
    )
    study = load_study(place / "s.study.yaml")
    resolved = resolve(study, {"f": study.factors[0].levels[0].name})
    assert resolved.cluster is not None
    (event,) = resolved.cluster.events
    return event.patch


INTERFACES: dict[str, Callable[[list[str], Path], Any]] = {
    "disk set": _set,
    "nodes set": _nodes_set,
    "disk schedule": _schedule,
    "platform": _platform,
    "study": _study,
}


def _plain(patch: Any) -> Any:
    """`max` equals null, and defaults of a rule equal their omission."""
    return json.loads(json.dumps(patch).replace('"max"', "null"))


def test_every_key_has_its_cases() -> None:
    assert set(VALUES) == set(OF_DISKS) - {"profile", "power_cut"}
    assert set(GROUP_KEYS) == set(GROUPS)


@pytest.mark.parametrize("assignment", CASES)
def test_all_interfaces_accept_the_same(assignment: str, tmp_path: Path) -> None:
    expected = _plain(patch_of(_with_required(assignment)))
    for name, patch_by in INTERFACES.items():
        try:
            patch = _plain(patch_by(_with_required(assignment), tmp_path))
        except BadInput as refused:
            pytest.fail(f"{name} refuses {assignment}: {refused}")
        assert patch == expected, name


@pytest.mark.parametrize("assignment", NONSENSE)
def test_all_interfaces_refuse_the_same(assignment: str, tmp_path: Path) -> None:
    for name, patch_by in INTERFACES.items():
        try:
            patch = patch_by(_with_required(assignment), tmp_path)
        except BadInput:
            continue
        pytest.fail(f"{name} takes {assignment}: {patch}")


def test_the_disk_server_has_the_same_keys() -> None:
    keys = set()
    for file, name in (("station/src/patch.rs", "KEYS"), ("disk/src/patch.rs", "OWN_KEYS")):
        text = (ROOT / "crates" / file).read_text()
        match = re.search(rf"const {name}:.*?= \[(.*?)\];", text, re.S)
        assert match is not None
        keys |= set(re.findall(r'"(\w+)"', match[1]))
    assert keys == {path[0] for path, _ in OF_DISKS.values()}


def test_time_scale_without_a_profile_is_refused(tmp_path: Path) -> None:
    for change in (
        lambda: persistent.change(tmp_path, {"limits": {"read_bps": 1e6}}, time_scale=4),
        lambda: persistent.up("none", tmp_path, tmp_path, time_scale=4),
    ):
        with pytest.raises(BadInput, match="time scale: found 4 without a profile"):
            change()
