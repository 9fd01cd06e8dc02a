"""Statements of the speed of slowed disks: once if all share it, else in labels; and the caution."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.analyse.findings.findings import CODES
from penstock.analyse.outcome import Outcome
from penstock.analyse.treatments.replicates import compare_replicates
from penstock.archive.selection import select
from penstock.campaign.analysis import Analysis, analyse
from penstock.cli.disk import _show as show_disks
from penstock.observe.trace.show.compare import show_replicates
from penstock.report import figures, render, sections, style
from penstock.report.figures.effects import effect_bars
from penstock.study.disk_speeds import disk_speeds
from penstock.text import at_speed, duration
from tests.unit.answered_studies import DISKS
from tests.unit.planted_study import Doings, Planted


@pytest.mark.parametrize(
    ("scale", "label"),
    [
        (1, "sata-ssd"),
        (1.5, "sata-ssd at ⅔ speed"),
        (2, "sata-ssd at ½ speed"),
        (2.5, "sata-ssd at 1/2.5 speed"),
        (3, "sata-ssd at ⅓ speed"),
        (4.0, "sata-ssd at ¼ speed"),
        (8, "sata-ssd at ⅛ speed"),
        (12, "sata-ssd at 1/12 speed"),
        (1500, "sata-ssd at 1/1500 speed"),
        (0.5, "sata-ssd at 2× speed"),
    ],
)
def test_a_disk_at_its_speed(scale: float, label: str) -> None:
    assert at_speed("sata-ssd", scale) == label


LOAD = {"hdd-7200": 130.0, "network-volume": 900.0, "sata-ssd": 5200.0}


def three(processor_s: float | None = None, **scales: float) -> Planted:
    """Three disks; `scales` by the first part of their names, 4 for others."""
    return Planted(
        "Which of the three disks is the fastest for this program?",
        {"disk": list(DISKS)},
        lambda levels: {"throughput": LOAD[levels["disk"]]},
        doings=lambda _: Doings(10, processor_s, traced=False),
        profile="{disk}",
        time_scales=lambda levels: scales.get(levels["disk"].split("-")[0], 4),
    )


def analysed(planted: Planted, directory: Path) -> Analysis:
    return analyse(planted.write(directory / "out"), report=False)


def statements(result: Analysis, code: str) -> str:
    assert code in CODES
    return " ".join(f.statement for f in result.findings if f.code == code)


def test_a_speed_that_all_disks_share_is_stated_once(tmp_path: Path) -> None:
    result = analysed(three(), tmp_path)
    assert result.answer[0].startswith("Choose sata-ssd: throughput ")
    lines = result.lines()
    assert [line for line in lines if "¼ speed" in line] == [lines[-1]]
    outcome = Outcome.read(result.out)
    ranked = sections.ranked(outcome)
    assert ranked is not None
    assert ranked["title"] == "Treatments, the best first, disks at ¼ speed"
    assert "speed" not in str(ranked["rows"])
    axes = effect_bars(outcome, outcome.responses[0], 7.6).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == list(DISKS)
    assert axes.get_ylabel().endswith("disks at ¼ speed")


def test_answer_and_tables_name_speeds_that_differ(tmp_path: Path) -> None:
    result = analysed(three(hdd=1), tmp_path)
    assert result.answer[0].startswith("Choose sata-ssd at ¼ speed: throughput ")
    assert any("network-volume at ¼ speed" in line for line in result.ranked)
    outcome = Outcome.read(result.out)
    table = sections.all_runs(outcome)
    assert table is not None
    assert {row["cells"][3] for row in table["rows"]} == {
        "hdd-7200",
        "network-volume at ¼ speed",
        "sata-ssd at ¼ speed",
    }
    axes = effect_bars(outcome, outcome.responses[0], 7.6).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()][1] == "network-volume at ¼ speed"
    assert "speed" not in axes.get_ylabel()


def test_a_speed_is_in_labels_where_other_levels_have_no_emulated_disk() -> None:
    document = {
        "platform": {"nodes": [{"name": "n", "disks": [{"name": "d", "profile": "{disk}"}]}]}
    }
    rows = [({"disk": "a"}, {"n.d": {"profile": "a", "time_scale": 4}}), ({"disk": "b"}, {})]
    speeds = disk_speeds(document, rows)
    assert (speeds.label("disk", "a"), speeds.common) == (4, "")
    assert disk_speeds(document, rows[:1]).label("disk", "a") == 1


def test_levels_keep_their_names_in_tables(tmp_path: Path) -> None:
    result = analysed(three(), tmp_path)
    runs = pq.read_table(result.out / "runs.parquet").to_pandas()
    assert set(runs["disk"]) == set(DISKS)
    means = pq.read_table(result.out / "means.parquet").to_pandas()
    assert "speed" not in " ".join(means["levels"])


def test_full_speed_has_no_suffix_and_no_caution(tmp_path: Path) -> None:
    result = analysed(three(9.0, hdd=1, network=1, sata=1), tmp_path)
    assert "speed" not in " ".join(result.answer)
    assert statements(result, "time-scale") == statements(result, "time-scales-differ") == ""


def test_an_archive_without_disks_in_its_manifests_has_no_labels(tmp_path: Path) -> None:
    planted = three()
    out = planted.write(tmp_path / "out")
    for path in out.glob("runs/*/manifest.json"):
        manifest = json.loads(path.read_text())
        del manifest["disks"]
        path.write_text(json.dumps(manifest))
    assert "speed" not in " ".join(analyse(out, report=False).answer)


def test_a_slowed_disk_causes_a_caution(tmp_path: Path) -> None:
    result = analysed(three(), tmp_path)
    assert statements(result, "time-scale").startswith(
        "The disk ran at ¼ speed, the processor at full speed: "
    )
    assert result.lines()[-1].endswith(" runs valid · disks emulated at ¼ speed")
    assert statements(result, "time-scales-differ") == ""
    (finding,) = (f for f in result.findings if f.code == "time-scale")
    assert finding.severity == "info"
    wall = next(iter(Outcome.read(result.out).runs["wall_s"]))
    statement = (
        f"A run of {duration(wall * 1e9)} is {duration(wall * 1e9 / 4)} of a real disk's time"
    )
    assert finding.detail == f"{statement}, and begins without its data in the page cache."


def test_a_warm_start_is_not_called_a_cold_one(tmp_path: Path) -> None:
    out = three().write(tmp_path / "out")
    study = out / "study.yaml"
    study.write_text(f"{study.read_text()}\nsettle: {{resident_at_least: 90%}}\n")
    result = analyse(out, report=False)
    (finding,) = (f for f in result.findings if f.code == "time-scale")
    assert "of a real disk's time." in finding.detail


def test_much_processor_time_is_reported_with_its_share(tmp_path: Path) -> None:
    result = analysed(three(6.0), tmp_path)
    (finding,) = (f for f in result.findings if f.code == "time-scale")
    assert "the program computed for 60 % of the run" in finding.statement
    assert "differences between disks shrink" in finding.statement
    assert finding.severity == "warning"
    assert "86 %" in finding.detail  # 0.6 / (0.6 + 0.4 / 4)


def test_little_processor_time_is_no_warning(tmp_path: Path) -> None:
    result = analysed(three(0.2), tmp_path)
    (finding,) = (f for f in result.findings if f.code == "time-scale")
    assert "for 2 % of the run" in finding.statement
    assert "shrink" not in finding.statement
    assert finding.severity == "info"


def test_levels_at_different_scales_are_reported(tmp_path: Path) -> None:
    result = analysed(three(hdd=1), tmp_path)
    differ = statements(result, "time-scales-differ")
    assert (
        "The levels of disk do not share one time scale (hdd-7200 at full speed, network-volume "
        "and sata-ssd at ¼ speed)" in differ
    )
    assert result.answer[1].startswith("Unknown: ") or result.answer[2].startswith("Unknown: ")
    assert differ.rstrip(".") in " ".join(result.answer)
    (finding,) = (f for f in result.findings if f.code == "time-scales-differ")
    assert finding.severity == "warning"
    assert "hdd-7200 at full speed" not in result.answer[0]


def one_disk(factors: dict[str, list[str]]) -> Planted:
    return Planted(
        "Which journal should it be?",
        factors,
        # an interaction of the journal with the commit mode, if that is a factor
        lambda levels: {
            "throughput": 100.0
            + 50 * (levels["journal"] == "wal")
            + 30 * (levels == {"journal": "wal", "commit": "off"})
        },
        time_scales=lambda _: 4,
    )


def test_one_disk_for_all_is_on_the_axis(tmp_path: Path) -> None:
    result = analysed(one_disk({"journal": ["wal", "delete"]}), tmp_path)
    assert result.answer[0].startswith("Choose wal: ")
    assert statements(result, "time-scale").startswith("The disk ran at ¼ speed")
    outcome = Outcome.read(result.out)
    axes = effect_bars(outcome, outcome.responses[0], 7.6).axes[0]
    assert axes.get_ylabel() == "throughput (1/s),\ndisk at ¼ speed"


def test_an_axis_label_with_a_speed_fits(tmp_path: Path) -> None:
    result = analysed(one_disk({"journal": ["wal", "delete"], "commit": ["full", "off"]}), tmp_path)
    outcome = Outcome.read(result.out)
    for kind in ("effects", "interactions", "pareto", "responses"):
        for width in (style.WIDE_INCHES, style.NARROW_INCHES):
            fig = figures.draw(outcome, kind, width)
            assert any("disk at ¼ speed" in a.get_xlabel() + a.get_ylabel() for a in fig.axes)
            render.published(fig, "png")
            bounds = fig.get_tightbbox()
            assert min(bounds.x0, bounds.y0) * fig.dpi >= -2
            assert bounds.x1 * fig.dpi <= fig.bbox.x1 + 2
            assert bounds.y1 * fig.dpi <= fig.bbox.y1 + 2


def test_speeds_belong_to_the_factor_of_the_profile() -> None:
    document = {
        "platform": {
            "nodes": [
                {"name": "n", "count": 2, "disks": [{"name": "d", "profile": "{disk}"}]},
                {"name": "m", "disks": [{"name": "d", "profile": "sata-ssd", "time_scale": 8}]},
            ]
        }
    }
    rows = [
        (
            {"disk": disk, "depth": depth},
            {
                "n-0.d": {"profile": disk, "time_scale": 4},
                "n-1.d": {"profile": disk, "time_scale": 4},
                "m.d": {"profile": "sata-ssd", "time_scale": 8},
            },
        )
        for disk in ("a", "b")
        for depth in ("1", "8")
    ]
    speeds = disk_speeds(document, rows)
    assert speeds.label("disk", "a") == 4
    assert speeds.label("depth", "1") == 1
    (message,) = speeds.unequal()
    assert "disks of a run do not share one time scale" in message


def test_disk_status_shows_the_speed(capsys: pytest.CaptureFixture[str]) -> None:
    stats = dict.fromkeys(("reads", "writes", "flushes", "read_bytes", "written_bytes"), 0)
    stats |= {"t_ns": 2, "since_ns": 1, "busy_ns": 0, "late_count": 0}
    disk = {"mount": "/m", "profile": "sata-ssd", "time_scale": 4.0, "settings": {}, "stats": stats}
    show_disks([disk])
    assert "sata-ssd at ¼ speed" in capsys.readouterr().out


def test_compared_treatments_show_their_speeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = three(hdd=1).write(tmp_path / "out")
    plan = json.loads((out / "plan.json").read_text())
    of_disk = {row["levels"]["disk"]: row["treatment_id"] for row in plan["rows"]}
    a, b, c = (select(f"{out}:{of_disk[disk]}") for disk in DISKS)
    different = compare_replicates(a, c)
    assert different.disks == ({}, {"node1.data": "sata-ssd at ¼ speed"})
    (unknown,) = (text for label, text in different.points if label == "Unknown")
    assert "node1.data ran at full speed in A and at ¼ speed in B" in unknown
    assert not different.headline.endswith("Clear.")
    show_replicates(different)
    shown = " ".join(capsys.readouterr().out.split())
    assert "(disk sata-ssd; node1.data: sata-ssd at ¼ speed)" in shown
    assert not any("speed" in sentence for sentence in compare_replicates(b, c).conclusion)
