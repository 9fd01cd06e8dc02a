"""Time scales of a study's disks: one for each profile, `auto`, what is frozen, and what is said of them."""

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


def study(where: Path, scale: str, *more: tuple[str, str]) -> Study:
    text = STUDY.replace("SCALE", scale)
    for old, new in more:
        assert old in text
        text = text.replace(old, new)
    path = where / "s.study.yaml"
    path.write_text(text)
    return load_study(path)


def scales(read: Study) -> dict[str, float]:
    """By level of the disk."""
    return {
        level: resolve(read, {"disk": level, "depth": "1"}).disks[0].time_scale
        for level in ("slow", "fast")
    }


def honest(read: Study, floor: HostFloor) -> TimeScales | None:
    """What `auto` comes to on a host."""
    made, _ = speed.with_time_scales(read, None, lambda: floor)
    return made.time_scales


def mistakes(where: Path, scale: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    with pytest.raises(BadInput) as caught:
        study(where, scale, *more)
    return [(m.found, m.expected) for m in caught.value.mistakes]


# ---------------------------------------------------------------- the study file


@pytest.mark.parametrize(
    "said", ["{hdd-7200: 1, sata-ssd: 4}", "{slow: 1, fast: 4}", "{slow: 1, sata-ssd: '4'}"]
)
def test_a_time_scale_for_each_profile_or_level(tmp_path: Path, said: str) -> None:
    assert scales(study(tmp_path, said)) == {"slow": 1, "fast": 4}


def test_a_time_scale_of_a_profile_may_be_a_factor(tmp_path: Path) -> None:
    read = study(tmp_path, "{hdd-7200: 1, sata-ssd: '{depth}'}")
    assert resolve(read, {"disk": "fast", "depth": "8"}).disks[0].time_scale == 8


def test_on_virtual_nodes_as_on_the_host(tmp_path: Path) -> None:
    read = study(tmp_path, "{slow: 1, fast: 4}", ("name: n,", "name: n, count: 2,"))
    run = resolve(read, {"disk": "fast", "depth": "1"})
    assert run.cluster is not None
    assert [d.time_scale for n in run.cluster.nodes for d in n.disks] == [4, 4]


@pytest.mark.parametrize(
    ("said", "found", "expected"),
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
def test_what_is_no_time_scale(tmp_path: Path, said: str, found: str, expected: str) -> None:
    said_of, wanted = mistakes(tmp_path, said)[0]
    assert found in said_of
    assert expected in wanted


def test_auto_is_no_level_of_a_factor(tmp_path: Path) -> None:
    ((found, expected),) = mistakes(tmp_path, "'{depth}'", ("[1, 8]", "[1, auto]"))
    assert found == "'auto'"
    assert "a number above 0" in expected


# ---------------------------------------------------------------- auto


def test_auto_is_one_time_scale_for_all_levels(tmp_path: Path) -> None:
    read = study(tmp_path, "auto")
    assert auto_scales(read).together == ("hdd-7200", "sata-ssd")
    chosen = honest(read, FLOOR)
    assert chosen == TimeScales(together=SSD)
    assert scales(decided(read, chosen)) == {"slow": SSD, "fast": SSD}


def test_auto_for_each_profile_is_each_its_own(tmp_path: Path) -> None:
    read = study(tmp_path, "{slow: auto, sata-ssd: auto}")
    chosen = honest(read, FLOOR)
    assert chosen == TimeScales(own={"hdd-7200": HDD, "sata-ssd": SSD})
    assert HDD < SSD
    assert scales(decided(read, chosen)) == {"slow": HDD, "fast": SSD}


def test_auto_is_one_for_all_disks_that_say_so(tmp_path: Path) -> None:
    more = ("disks: [", "disks: [{name: e, profile: hdd-7200, time_scale: auto}, ")
    read = study(tmp_path, "auto", more)
    run = resolve(decided(read, honest(read, FLOOR)), {"disk": "slow", "depth": "1"})
    assert {d.time_scale for d in run.disks} == {SSD}


def test_what_is_not_decided_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"time_scale auto, which is decided by penstock run"):
        scales(study(tmp_path, "auto"))


def test_a_decided_study_is_read_again_as_it_is(tmp_path: Path) -> None:
    read = study(tmp_path, "{slow: 1, fast: auto}")
    made = decided(read, honest(read, FLOOR))
    assert made.hash != read.hash
    again = tmp_path / "again.yaml"
    again.write_text(made.source_text)
    assert load_study(again).hash == made.hash
    assert auto_scales(load_study(again)).nothing


def test_numbers_are_left_as_they_are(tmp_path: Path) -> None:
    read = study(tmp_path, "4")
    assert auto_scales(read).nothing
    assert decided(read, TimeScales()) is read


def test_what_auto_chose_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with another floor goes on with the same number; a repeated study has it too."""
    read = study(tmp_path, "auto")
    made, _ = speed.with_time_scales(read, None, lambda: FLOOR)
    plan = make_plan(made)
    out = tmp_path / "out"
    facts = campaign(made, plan, _described(made, resolved_treatments(made, plan.rows)), [])
    freeze(out, made, plan, facts)
    before = read_campaign(out)
    assert before is not None
    assert before.time_scales == {"together": SSD, "own": {}}
    slower = replace(FLOOR, loaded_iops=FLOOR.loaded_iops / 3)
    other = honest(read, slower)
    assert other is not None
    assert other.together != SSD
    resumed, _ = speed.with_time_scales(read, before.time_scales, lambda: slower)
    assert scales(resumed) == {"slow": SSD, "fast": SSD}
    assert resumed.hash == made.hash
    assert scales(load_study(out / "study.yaml")) == {"slow": SSD, "fast": SSD}
    assert f"auto = {SSD:g}" in (out / "study.yaml").read_text().splitlines()[0]


def test_a_frozen_scale_needs_no_floor(tmp_path: Path) -> None:
    def never() -> HostFloor:
        raise AssertionError("nothing is to be measured")

    read = study(tmp_path, "auto")
    frozen = {"together": 7.0, "own": {}}
    assert scales(speed.with_time_scales(read, frozen, never)[0]) == {"slow": 7, "fast": 7}
    assert speed.with_time_scales(study(tmp_path, "4"), None, never)[0].time_scales is None


def test_a_campaign_of_before_has_no_time_scales(tmp_path: Path) -> None:
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


def planned(where: Path, *words: str) -> str:
    app = typer.Typer()
    app.command()(plan_command)
    done = CliRunner().invoke(app, [str(where / "s.study.yaml"), *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_plan_says_what_auto_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    done = CliRunner().invoke(app, [str(tmp_path / "s.study.yaml")])
    assert done.exit_code == 0, done.output
    assert "at ¼ speed" not in done.stdout.partition("Response: ")[0]
    assert "\nResponse: wall in s; disks at ¼ speed.\n" in done.stdout


def test_levels_that_share_no_time_scale_are_warned_of(tmp_path: Path) -> None:
    study(tmp_path, "{slow: 1, fast: 4}")
    text = " ".join(planned(tmp_path).split())
    assert (
        "the levels of disk do not share one time scale (slow at full speed, fast at ¼ speed)"
        in text
    )
    study(tmp_path, "4")
    assert "share one time scale" not in planned(tmp_path)


def test_a_time_scale_that_is_varied_itself_is_no_mistake(tmp_path: Path) -> None:
    study(tmp_path, "'{depth}'")
    assert "share one time scale" not in planned(tmp_path)


def test_disks_of_one_run_that_share_no_time_scale_are_warned_of(tmp_path: Path) -> None:
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
def test_a_platform_that_is_predicted_with_has_numbers(tmp_path: Path, scale: str) -> None:
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
    made, _ = speed.with_time_scales(read, None, lambda: FLOOR)
    run = resolve(made, {"depth": "1"})
    assert run.cluster is not None
    assert [d.time_scale for d in run.cluster.nodes[0].disks] == [SSD]
