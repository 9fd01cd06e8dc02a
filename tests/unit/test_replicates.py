"""Two treatments compared over their replicates: ratios with intervals, the conclusion first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from penstock.analyse.treatments.replicates import (
    Measured,
    Replicated,
    _answer,
    compare_replicates,
    ratio_of,
)
from penstock.archive.bundle import Bundle
from penstock.archive.selection import select
from penstock.errors import BadInput
from tests.examples.trace import Row, event, write_bundle
from tests.support import commands


def a_run(
    out: Path, run_id: str, treatment: str, rows: list[Row] | None = None, **responses: float
) -> None:
    path = out / "runs" / run_id
    if rows is None:
        Bundle.create(path, {"run_id": run_id}).finish()
    else:
        mounted = f"/run/penstock/{run_id}/node1.data/t.db"
        write_bundle(path, rows, paths={1: mounted, 2: mounted + "-wal", 3: mounted + "-wal"})
    manifest = json.loads((path / "manifest.json").read_text())
    manifest |= {
        "run_id": run_id,
        "run_order": int(run_id[1:]),
        "treatment_id": treatment,
        "levels": {"journal": treatment},
        "responses": {n: {"value": v, "unit": "1/s"} for n, v in responses.items()},
        "times": {"wall_s": 2.5},
    }
    (path / "manifest.json").write_text(json.dumps(manifest))


def compared(out: Path, a: str = "t01", b: str = "t02") -> Replicated:
    return compare_replicates(select(f"{out}:{a}"), select(f"{out}:{b}"))


def flushed(flush_ns: int, files: tuple[int, ...] = (2, 3)) -> list[Row]:
    rows = [event(50_000_000 * i, latency_ns=60_000) for i in range(100)]
    return rows + [
        event(50_000_000 * i + 1_000_000, "fdatasync", file_id=files[i % 2], latency_ns=flush_ns)
        for i in range(100)
    ]


def test_the_interval_of_a_ratio_has_its_coverage() -> None:
    rng = np.random.default_rng(3)
    covered = narrow_covered = 0
    for _ in range(400):
        a, b = np.exp(rng.normal(0, 0.1, 3)), 2 * np.exp(rng.normal(0, 0.1, 3))
        value, interval = ratio_of(list(a), list(b))
        assert interval is not None
        covered += interval.low <= 2 <= interval.high
        # planted: an interval of half the width covers it less often
        half = np.sqrt(interval.high / interval.low) ** 0.5
        narrow_covered += value / half <= 2 <= value * half
    assert 367 <= covered <= 393  # 95 % of 400, within three standard deviations
    assert narrow_covered < 367


@pytest.mark.parametrize("passes", [3, 6])
def test_the_interval_of_a_paired_ratio_has_its_coverage(passes: int) -> None:
    """Passes drift: an interval without pairing (planted) is too wide, and one with normal quantiles is
    too narrow."""
    rng = np.random.default_rng(3)
    covered = narrow_covered = unpaired_covered = 0
    studies = 1000
    for _ in range(studies):
        drift = rng.normal(0, 1, passes)
        a = np.exp(drift + rng.normal(0, 0.1, passes)).tolist()
        b = (2 * np.exp(drift + rng.normal(0, 0.1, passes))).tolist()
        value, interval = ratio_of(a, b, paired=True)
        assert interval is not None
        covered += interval.low <= 2 <= interval.high
        quantile_ratio = stats.norm.ppf(0.975) / stats.t.ppf(0.975, passes - 1)
        half = (interval.high / interval.low) ** (quantile_ratio / 2)
        narrow_covered += value / half <= 2 <= value * half
        _, unpaired = ratio_of(a, b)
        assert unpaired is not None
        unpaired_covered += unpaired.low <= 2 <= unpaired.high
    assert 0.93 * studies <= covered <= 0.97 * studies
    assert narrow_covered < 0.93 * studies
    assert unpaired_covered > 0.99 * studies


def of_passes(out: Path, order: str, passes: int = 5) -> None:
    """Two treatments, B 5 % above A, in passes that drift by a third; their run numbers are unordered."""
    drift = [1.0, 1.4, 0.8, 1.2, 0.9]
    out.mkdir(exist_ok=True)
    (out / "plan.json").write_text(json.dumps({"order": order}))
    for index in range(passes):
        for treatment, ratio in (("t01", 1.0), ("t02", 1.05)):
            number = 2 * index if treatment == "t01" else 3 * passes - index
            noise = 1 + 0.004 * ((7 * number) % 3 - 1)
            a_run(out, f"r{number:03d}", treatment, rate=100 * drift[index] * ratio * noise)
            path = out / "runs" / f"r{number:03d}" / "manifest.json"
            manifest = json.loads(path.read_text())
            path.write_text(json.dumps(manifest | {"block_id": index + 1, "replicate": index + 1}))


def test_pairing_by_pass_removes_drift(tmp_path: Path) -> None:
    of_passes(tmp_path / "in-passes", "interleaved")
    paired = compared(tmp_path / "in-passes")
    assert paired.document()["paired_by_pass"] is True
    rate = next(r for r in paired.responses if r.name == "rate")
    assert rate.paired
    assert rate.differs
    assert rate.ratio == pytest.approx(1.05, rel=0.01)
    assert paired.headline.startswith("rate is 5")
    assert paired.headline.endswith("in B). Clear.")
    assert any("over the same 5 passes" in line for line in paired.conclusion)
    # without passes the same runs are inconclusive, and the margin of equivalence is wide
    of_passes(tmp_path / "random", "random")
    unpaired = compared(tmp_path / "random")
    assert unpaired.document()["paired_by_pass"] is False
    unpaired_rate = next(r for r in unpaired.responses if r.name == "rate")
    assert not unpaired_rate.differs
    assert rate.equivalent_within is not None
    assert unpaired_rate.equivalent_within is not None
    assert unpaired_rate.equivalent_within - 1 > 3 * (rate.equivalent_within - 1)
    assert any("not pass by pass" in line for line in unpaired.conclusion)


def test_passes_that_one_side_lacks_are_no_pairs(tmp_path: Path) -> None:
    of_passes(tmp_path, "interleaved")
    run = tmp_path / "runs" / "r011"
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"block_id": 9}))
    assert compared(tmp_path).passes == 0


def test_the_conclusion_names_different_and_equal_responses(tmp_path: Path) -> None:
    for number in range(3):
        a_run(tmp_path, f"r00{number}", "t01", loaded=1000.0 + 10 * number, lookups=500.0 - number)
        a_run(tmp_path, f"r10{number}", "t02", loaded=3500.0 + 30 * number, lookups=499.0 + number)
    comparison = compared(tmp_path)
    first, *rest = comparison.conclusion
    assert first.startswith("loaded is 3.5× (3.4")
    assert first.endswith(") as high in B (1010 in A, 3530 1/s in B). Clear.")
    assert rest[0].startswith("No effect: lookups (the same within 0.")
    assert rest[0].endswith("%); wall time (2.5 s in every run).")
    assert rest[1] == "Details: compared run by run, not pass by pass."
    # planted: the same treatment on both sides
    assert not any(response.differs for response in compared(tmp_path, "t01", "t01").responses)


def test_one_run_on_each_side_is_inconclusive(tmp_path: Path) -> None:
    a_run(tmp_path, "r001", "t01", loaded=1000.0)
    a_run(tmp_path, "r002", "t02", loaded=3500.0)
    first, step, details = compared(tmp_path).conclusion
    assert first == (
        "Open: loaded is 3.5× as high in B (1000 in A, 3500 1/s in B), with one run on each side."
    )
    assert step.startswith("Next step: repeat both: one run on each side does not show how much")
    assert details.startswith("Details: wall time is ")


def test_files_of_the_disks_are_matched_over_the_runs_and_flushes_named(tmp_path: Path) -> None:
    for number in range(2):
        a_run(tmp_path, f"r00{number}", "t01", flushed(2_000_000 + 9_000 * number), loaded=10.0)
        a_run(tmp_path, f"r10{number}", "t02", flushed(400_000 + 4_000 * number), loaded=10.0)
    comparison = compared(tmp_path)
    assert {(row.path, row.direction) for row in comparison.files} == {
        ("node1.data/t.db", "read"),
        ("node1.data/t.db-wal", "sync"),
    }
    (line,) = (s for s in comparison.conclusion if "flushes" in s)
    assert "most of it: flushes of node1.data/t.db-wal, 200 ms against 40.2 ms" in line
    assert [row.matters for row in comparison.files] == [True, False]
    assert comparison.files[0].requests.means == (100, 100)


def test_runs_without_a_common_response_are_bad_input(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Bundle.create(tmp_path / name, {"run_id": name}).finish()
    with pytest.raises(BadInput, match="no response that both have"):
        compare_replicates(select(tmp_path / "a"), select(tmp_path / "b"))


def test_command_line(tmp_path: Path) -> None:
    for number in range(2):
        a_run(tmp_path, f"r00{number}", "t01", flushed(2_000_000), loaded=1000.0 + number)
        a_run(tmp_path, f"r10{number}", "t02", flushed(400_000), loaded=3500.0 + number)

    def output_of(*options: str) -> str:
        tool = Path(sys.executable).with_name("penstock")
        argv = [tool, "compare", f"{tmp_path}:t01", f"{tmp_path}:t02", *options]
        return commands.run(argv, capture_output=True, text=True, check=True).stdout

    lines = output_of().splitlines()
    assert lines[0].startswith("loaded is 3.5× (")
    assert lines[0].endswith("Clear.")
    assert lines[1] == ""
    assert lines[2].startswith("  Why          reads, writes and flushes took")
    assert max(map(len, lines)) <= 100
    document: dict[str, Any] = json.loads(output_of("--json"))
    assert document["runs"] == [["r000", "r001"], ["r100", "r101"]]
    assert document["responses"][0]["a"] == [1000, 1001]
    assert document["conclusion"][0].startswith("loaded is")


def test_treatments_of_an_archive(tmp_path: Path) -> None:
    """PostgreSQL with 96 and 512 MiB of memory on the same disk, recorded earlier."""
    out = Path(__file__).parents[1] / "golden" / "postgres-later"
    first, *points = compared(out).conclusion
    assert first == "tps is 3.58× (2.36–5.43) as high in B (6.192 in A, 22.2 1/s in B). Clear."
    assert any(point.startswith("Unknown: scan_rate (") for point in points)
    assert points[-1].endswith("compared run by run, not pass by pass."), "two passes, one degree"


def test_traces_that_cannot_be_read_do_not_hide_the_responses(tmp_path: Path) -> None:
    for number in range(2):
        a_run(tmp_path, f"r00{number}", "t01", flushed(2_000_000), loaded=10.0 + number)
        a_run(tmp_path, f"r10{number}", "t02", flushed(400_000), loaded=50.0 + number)
    events = tmp_path / "runs" / "r101" / "io_events.parquet"
    events.write_bytes(events.read_bytes()[:-20])
    *lines, last = compared(tmp_path).conclusion
    assert lines[0].startswith("loaded is ")
    assert last.startswith("Details: ")
    assert f"; their traces are left out: {events}: found " in last
    assert compared(tmp_path).files == []


def test_equal_values_need_no_interval() -> None:
    equal = Measured("orders", "1/s", [1.6, 1.6], [1.6, 1.6])
    comparison = Replicated("a", "b", ({}, {}), ([], []), [equal])
    assert _answer(comparison) == (
        "A and B do not differ in orders (1.6 1/s in every run). Clear.",
        [("Details", "compared run by run, not pass by pass.")],
    )
    different = Measured("orders", "1/s", [1.6, 1.6], [2.0, 2.0])
    headline, _ = _answer(Replicated("a", "b", ({}, {}), ([], []), [different]))
    assert headline == (
        "orders is 25 % higher in B (1.6 in A, 2 1/s in B, with one value on each side). Clear."
    )


def test_a_response_in_another_unit_is_not_compared(tmp_path: Path) -> None:
    """12 ms of one study and 0.013 s of another were "923× lower"."""
    for place, unit, value in (("one", "ms", 12.0), ("other", "s", 0.013)):
        for number in range(3):
            noise = 1 + number / 100
            a_run(tmp_path / place, f"r00{number}", "t01", latency=noise * value, rate=50 * noise)
            path = tmp_path / place / "runs" / f"r00{number}" / "manifest.json"
            manifest = json.loads(path.read_text())
            manifest["responses"]["latency"]["unit"] = unit
            path.write_text(json.dumps(manifest))
    result = compare_replicates(*(select(f"{tmp_path / place}:t01") for place in ("one", "other")))
    assert [r.name for r in result.responses] == ["rate", "wall time"]
    *_, last = result.conclusion
    assert "latency is not compared: its unit is ms in A and s in B" in last


def test_a_response_in_two_units_on_both_sides_is_named(tmp_path: Path) -> None:
    for treatment, first in (("t01", 0), ("t02", 10)):
        for number, unit in enumerate(("ms", "s", "s"), start=first):
            a_run(tmp_path, f"r{number:03d}", treatment, latency=12.0 + number, rate=50.0 + number)
            path = tmp_path / "runs" / f"r{number:03d}" / "manifest.json"
            manifest = json.loads(path.read_text())
            manifest["responses"]["latency"]["unit"] = unit
            path.write_text(json.dumps(manifest))
    result = compared(tmp_path)
    assert [r.name for r in result.responses] == ["rate", "wall time"]
    *_, last = result.conclusion
    assert "latency is not compared: its unit is ms or s in A and ms or s in B" in last


def headline_of(*responses: Measured) -> str:
    return _answer(Replicated("a", "b", ({}, {}), ([], []), list(responses)))[0]


def test_values_without_a_ratio_are_compared_by_their_difference() -> None:
    """Means of 1 and 400 with a 0 among them were "no difference (0 % lower)"."""
    apart = Measured("retries", "1/s", [0, 1, 2], [390, 400, 410])
    assert apart.differs
    assert headline_of(apart) == "retries is 1 in A, 400 1/s in B. Clear."
    below = Measured("balance", "s", [-2.0, -2.2, -1.8], [-5.0, -5.1, -4.9])
    assert headline_of(below) == "balance is -2 in A, -5 s in B. Clear."
    open_ = Measured("retries", "1/s", [0, 1, 2], [0, 500, 700])
    assert not open_.differs
    low, high = open_.difference or (0, 0)
    result = stats.ttest_ind([0, 500, 700], [0, 1, 2], equal_var=False).confidence_interval(0.95)
    assert (low, high) == pytest.approx((result.low, result.high))
    assert headline_of(open_) == (
        "Open: these runs show no difference in retries (1 in A, 400 1/s in B, −497 to 1.29e+03 1/s "
        "more in B)."
    )


def test_one_failure_in_three_runs_may_be_chance() -> None:
    rare = Measured("failures", "", [0, 0, 0], [0, 0, 1])
    assert not rare.differs
    assert headline_of(rare).startswith("Open: these runs show no difference in failures (0 in A, ")
    passes = Measured("failures", "", [0, 5, 9], [3, 8, 12], paired=True)
    assert passes.differs


def test_one_run_on_each_side_is_open_without_a_ratio() -> None:
    assert headline_of(Measured("failures", "", [0], [5])) == (
        "Open: failures is 0 in A, 5 in B, with one run on each side."
    )
    assert headline_of(Measured("failures", "", [-1], [-5])) == (
        "Open: failures is -1 in A, -5 in B, with one run on each side."
    )


def test_the_margin_of_equivalence_equals_two_one_sided_tests() -> None:
    from statsmodels.stats.weightstats import ttost_ind

    rng = np.random.default_rng(5)
    a, b = (np.exp(rng.normal(3, 0.05, 8)).tolist() for _ in range(2))
    margin = Measured("rate", "1/s", a, b).equivalent_within
    assert margin is not None
    limit = float(np.log(margin))
    p, *_ = ttost_ind(np.log(b), np.log(a), -limit, limit, usevar="unequal")
    assert p == pytest.approx(0.05, abs=1e-9)
    assert Measured("rate", "1/s", [2.0, 2.0], [2.0, 2.0]).equivalent_within is None
    # the headline has the margin once, with "no difference"
    alike = Measured("rate", "1/s", a, b)
    headline, _ = _answer(Replicated("a", "b", ({}, {}), ([], []), [alike]))
    assert margin > 1.05
    assert headline.startswith("Open: these runs show no difference in rate (−")


def test_sides_of_unequal_spread_are_compared_as_the_ranking_does() -> None:
    from penstock.analyse.treatments.ranking import Measured as OfRuns
    from penstock.analyse.treatments.ranking import welch

    rng = np.random.default_rng(8)
    a, b = np.exp(rng.normal(3, 0.01, 4)), np.exp(rng.normal(3, 0.3, 12))
    _, interval = ratio_of(a.tolist(), b.tolist())
    assert interval is not None
    df, _ = welch(OfRuns.of("a", np.log(a)), OfRuns.of("b", np.log(b)))
    error = np.sqrt(np.log(a).var(ddof=1) / 4 + np.log(b).var(ddof=1) / 12)
    half = np.log(interval.high / interval.low) / 2
    assert half == pytest.approx(stats.t.ppf(0.975, df) * error)
