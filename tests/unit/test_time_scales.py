"""Time scales of a study's disks: one for each profile, `auto`, the frozen values, and notes about them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.campaign import speed
from penstock.campaign.campaign import _described
from penstock.campaign.frozen import campaign, freeze, read_campaign
from penstock.cli.plan import command as plan_command
from penstock.design.plan import make_plan
from penstock.emulate.disks.floor import HostFloor
from penstock.errors import BadInput
from penstock.parts.prediction.cli.predict import command as predict_command
from penstock.platform.hosts import load_platform
from penstock.profile.honour import nearest_honest_time_scale
from penstock.profile.load import load_profile
from penstock.spec.study import Study
from penstock.study.load import load_study
from penstock.study.resolve import resolve, resolved_treatments
from penstock.study.time_scales import TimeScales, auto_scales, decided
from tests.unit.test_speed import FLOOR, keep

STUDY = """
penstock: 1
name: pair
question: Which disk is faster?
factors:
  disk: {levels: {slow: hdd-7200, fast: sata-ssd}}
  depth: {levels: [1, 8]}
platform:
  nodes: [{name: n, disks: [{name: d, profile: "{disk}", time_scale: SCALE}]}]
workload:
  command: echo {d} {depth}
responses:
  wall: {from: wall_s, unit: s, better: lower}
design: {kind: full}
"""
HDD, SSD = (nearest_honest_time_scale(load_profile(n), FLOOR) for n in ("hdd-7200", "sata-ssd"))


def study(directory: Path, scale: str, *replacements: tuple[str, str]) -> Study:
    text = STUDY.replace("SCALE", scale)
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = directory / "s.study.yaml"
    path.write_text(text)
    return load_study(path)


def scales(read: Study) -> dict[str, float]:
    """Time scales by level of the disk."""
    return {
        level: resolve(read, {"disk": level, "depth": "1"}).disks[0].time_scale
        for level in ("slow", "fast")
    }


def auto_time_scales(read: Study, floor: HostFloor) -> TimeScales | None:
    """Time scales that `auto` chooses on a host."""
    resolved, _ = speed.with_time_scales(read, None, lambda: floor)
    return resolved.time_scales


def mistakes(directory: Path, scale: str, *replacements: tuple[str, str]) -> list[tuple[str, str]]:
    with pytest.raises(BadInput) as caught:
        study(directory, scale, *replacements)
    return [(m.found, m.expected) for m in caught.value.mistakes]


# ---------------------------------------------------------------- the study file


@pytest.mark.parametrize(
    "scale", ["{hdd-7200: 1, sata-ssd: 4}", "{slow: 1, fast: 4}", "{slow: 1, sata-ssd: '4'}"]
)
def test_a_time_scale_for_each_profile_or_level(tmp_path: Path, scale: str) -> None:
    assert scales(study(tmp_path, scale)) == {"slow": 1, "fast": 4}


def test_a_time_scale_of_a_profile_may_be_a_factor(tmp_path: Path) -> None:
    read = study(tmp_path, "{hdd-7200: 1, sata-ssd: '{depth}'}")
    assert resolve(read, {"disk": "fast", "depth": "8"}).disks[0].time_scale == 8


def test_on_virtual_nodes_as_on_the_host(tmp_path: Path) -> None:
    read = study(tmp_path, "{slow: 1, fast: 4}", ("name: n,", "name: n, count: 2,"))
    run = resolve(read, {"disk": "fast", "depth": "1"})
    assert run.cluster is not None
    assert [d.time_scale for n in run.cluster.nodes for d in n.disks] == [4, 4]


@pytest.mark.parametrize(
    ("scale", "found", "expected"),
    [
        ("{hdd-7200: 1}", "no time_scale of 'sata-ssd'", "a number or auto for each profile"),
        ("{slow: 1, fast: 4, nvme: 2}", "'nvme', which is no profile of this disk", "sata-ssd"),
        ("{slow: 1, fast: quick}", "'quick'", "a number above 0"),
        ("{slow: 1, fast: 0}", "0", "a number above 0"),
        ("{}", "no time_scale of 'hdd-7200'", "a number or auto for each profile"),
        ("quick", "'quick'", "auto"),
        ("[1, 2]", "a list", "auto"),
    ],
)
def test_an_invalid_time_scale_is_refused(
    tmp_path: Path, scale: str, found: str, expected: str
) -> None:
    actual_found, actual_expected = mistakes(tmp_path, scale)[0]
    assert found in actual_found
    assert expected in actual_expected


def test_auto_is_no_level_of_a_factor(tmp_path: Path) -> None:
    ((found, expected),) = mistakes(tmp_path, "'{depth}'", ("[1, 8]", "[1, auto]"))
    assert found == "'auto'"
    assert "a number above 0" in expected


# ---------------------------------------------------------------- auto


def test_auto_is_one_time_scale_for_all_levels(tmp_path: Path) -> None:
    read = study(tmp_path, "auto")
    assert auto_scales(read).together == ("hdd-7200", "sata-ssd")
    chosen = auto_time_scales(read, FLOOR)
    assert chosen == TimeScales(together=SSD)
    assert scales(decided(read, chosen)) == {"slow": SSD, "fast": SSD}


def test_auto_for_each_profile_is_separate(tmp_path: Path) -> None:
    read = study(tmp_path, "{slow: auto, sata-ssd: auto}")
    chosen = auto_time_scales(read, FLOOR)
    assert chosen == TimeScales(own={"hdd-7200": HDD, "sata-ssd": SSD})
    assert HDD < SSD
    assert scales(decided(read, chosen)) == {"slow": HDD, "fast": SSD}


def test_auto_is_one_time_scale_for_all_auto_disks(tmp_path: Path) -> None:
    replacement = ("disks: [", "disks: [{name: e, profile: hdd-7200, time_scale: auto}, ")
    read = study(tmp_path, "auto", replacement)
    run = resolve(decided(read, auto_time_scales(read, FLOOR)), {"disk": "slow", "depth": "1"})
    assert {d.time_scale for d in run.disks} == {SSD}


def test_an_undecided_time_scale_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"time_scale auto, which is decided by penstock run"):
        scales(study(tmp_path, "auto"))


def test_a_decided_study_can_be_saved_and_read_again(tmp_path: Path) -> None:
    read = study(tmp_path, "{slow: 1, fast: auto}")
    decided_study = decided(read, auto_time_scales(read, FLOOR))
    assert decided_study.hash != read.hash
    again = tmp_path / "again.yaml"
    again.write_text(decided_study.source_text)
    assert load_study(again).hash == decided_study.hash
    assert auto_scales(load_study(again)).nothing


def test_numbers_stay_unchanged(tmp_path: Path) -> None:
    read = study(tmp_path, "4")
    assert auto_scales(read).nothing
    assert decided(read, TimeScales()) is read


def test_the_choice_of_auto_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with another floor continues with the same number; a repeated study has it as well."""
    read = study(tmp_path, "auto")
    decided_study, _ = speed.with_time_scales(read, None, lambda: FLOOR)
    plan = make_plan(decided_study)
    out = tmp_path / "out"
    facts = campaign(
        decided_study,
        plan,
        _described(decided_study, resolved_treatments(decided_study, plan.rows)),
        [],
    )
    freeze(out, decided_study, plan, facts)
    before = read_campaign(out)
    assert before is not None
    assert before.time_scales == {"together": SSD, "own": {}}
    slower = replace(FLOOR, loaded_iops=FLOOR.loaded_iops / 3)
    of_slower = auto_time_scales(read, slower)
    assert of_slower is not None
    assert of_slower.together != SSD
    resumed, _ = speed.with_time_scales(read, before.time_scales, lambda: slower)
    assert scales(resumed) == {"slow": SSD, "fast": SSD}
    assert resumed.hash == decided_study.hash
    assert scales(load_study(out / "study.yaml")) == {"slow": SSD, "fast": SSD}
    assert f"auto = {SSD:g}" in (out / "study.yaml").read_text().splitlines()[0]


def test_a_frozen_scale_needs_no_floor(tmp_path: Path) -> None:
    def never() -> HostFloor:
        raise AssertionError("the floor was measured despite a frozen time scale")

    read = study(tmp_path, "auto")
    frozen = {"together": 7.0, "own": {}}
    assert scales(speed.with_time_scales(read, frozen, never)[0]) == {"slow": 7, "fast": 7}
    assert speed.with_time_scales(study(tmp_path, "4"), None, never)[0].time_scales is None


def test_an_earlier_campaign_has_no_time_scales(tmp_path: Path) -> None:
    read = study(tmp_path, "4")
    plan = make_plan(read)
    facts = campaign(read, plan, {}, [])
    freeze(tmp_path / "out", read, plan, facts)
    path = tmp_path / "out" / "campaign.json"
    older = json.loads(path.read_text())
    del older["time_scales"]
    path.write_text(json.dumps(older))
    before = read_campaign(tmp_path / "out")
    assert before is not None
    assert before.time_scales is None


# ---------------------------------------------------------------- the plan


def planned(directory: Path, *options: str) -> str:
    app = typer.Typer()
    app.command()(plan_command)
    result = CliRunner().invoke(app, [str(directory / "s.study.yaml"), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_plan_reports_the_choice_of_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    study(tmp_path, "auto")
    text = " ".join(planned(tmp_path).split())
    assert "auto is decided by penstock run: how fast" in text
    keep(tmp_path / "state", FLOOR)
    text = " ".join(planned(tmp_path).split())
    assert f"time_scale auto is {SSD:g} for all its disks" in text
    assert f"(nearest sustainable: hdd-7200 {HDD:g}, sata-ssd {SSD:g})" in text
    assert "is decided by" not in text
    assert json.loads(planned(tmp_path, "--json"))["time_scales"] == {"together": SSD, "own": {}}


def test_a_plan_states_the_speed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    keep(tmp_path / "state", replace(FLOOR, loaded_iops=FLOOR.loaded_iops / 100))
    study(tmp_path, "4")
    text = planned(tmp_path)
    assert "Warning: " in text
    assert "slow (hdd-7200), fast (sata-ssd)\n" in text
    assert text.count("speed\n") == 1
    assert "Note: disks emulated at ¼ speed" in text
    assert max(map(len, text.splitlines())) <= 100
    study(tmp_path, "1")
    assert "speed" not in planned(tmp_path).partition("Warning")[0]


def test_predictions_state_the_speed_once(tmp_path: Path) -> None:
    study(tmp_path, "4")
    app = typer.Typer()
    app.command()(predict_command)
    result = CliRunner().invoke(app, [str(tmp_path / "s.study.yaml")])
    assert result.exit_code == 0, result.output
    assert "at ¼ speed" not in result.stdout.partition("Response: ")[0]
    assert "\nResponse: wall in s; disks at ¼ speed.\n" in result.stdout


def test_different_time_scales_of_levels_cause_a_warning(tmp_path: Path) -> None:
    study(tmp_path, "{slow: 1, fast: 4}")
    text = " ".join(planned(tmp_path).split())
    assert (
        "the levels of disk do not share one time scale (slow at full speed, fast at ¼ speed)"
        in text
    )
    study(tmp_path, "4")
    assert "share one time scale" not in planned(tmp_path)


def test_a_time_scale_may_be_a_factor(tmp_path: Path) -> None:
    study(tmp_path, "'{depth}'")
    assert "share one time scale" not in planned(tmp_path)


def test_different_time_scales_of_one_run_cause_a_warning(tmp_path: Path) -> None:
    study(tmp_path, "4", ("disks: [", "disks: [{name: e, profile: hdd-7200}, "))
    text = " ".join(planned(tmp_path).split())
    assert "the disks of a run do not share one time scale (n.e: hdd-7200 at full speed" in text


# ---------------------------------------------------------------- platform files

PLATFORM = """
penstock_platform: 1
name: pair
description: One host with a disk.
hosts:
  - group: n
    count: 1
    roles: [client, storage]
    disks: [{name: d, profile: sata-ssd, time_scale: SCALE}]
    storage: {disk: d}
network: {bandwidth: 10 Gbit/s, loopback: 4 GB/s}
store: {chunk: 1MiB, stripe: 1, placement: local, allocation: none}
"""


@pytest.mark.parametrize("scale", ["auto", "{sata-ssd: 4}"])
def test_a_platform_for_predictions_needs_numbers(tmp_path: Path, scale: str) -> None:
    path = tmp_path / "p.platform.yaml"
    path.write_text(PLATFORM.replace("SCALE", scale))
    with pytest.raises(BadInput, match=r"disk d: found .*expected a number"):
        load_platform(path).lower()


@pytest.mark.parametrize("scale", ["auto", "4"])
def test_a_study_may_take_auto_from_a_platform_file(tmp_path: Path, scale: str) -> None:
    (tmp_path / "p.platform.yaml").write_text(PLATFORM.replace("SCALE", scale))
    text = STUDY.replace("  disk: {levels: {slow: hdd-7200, fast: sata-ssd}}\n", "")
    head, _, rest = text.partition("platform:\n")
    platform = "{file: p.platform.yaml, set: {hosts.n.disks.d.time_scale: auto}}"
    path = tmp_path / "s.study.yaml"
    path.write_text(f"{head}platform: {platform}\n{rest.partition(chr(10))[2]}")
    read = load_study(path)
    assert auto_scales(read).together == ("sata-ssd",)
    decided_study, _ = speed.with_time_scales(read, None, lambda: FLOOR)
    run = resolve(decided_study, {"depth": "1"})
    assert run.cluster is not None
    assert [d.time_scale for d in run.cluster.nodes[0].disks] == [SSD]
