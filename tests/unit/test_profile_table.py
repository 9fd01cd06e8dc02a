"""Profiles from tables of sizes and rates: parsing, fit, evaluation on held-out cells, advice."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from penstock import cli
from penstock.campaign.measurements import measure_profile
from penstock.cli import profile as profile_verb
from penstock.errors import BadInput
from penstock.profile import load_profile
from penstock.profile.advice import advice, judged, not_to_be_used, verdict
from penstock.profile.cells import Cell
from penstock.profile.fit import profile_of, simulated_cell
from penstock.profile.table import RateTable, read_table

#: A. Saif, 2020, tables 4.3 and 4.4: one client, synchronous, direct; MB/s of 4 and 28 KiB
PUBLISHED = {
    "px02ssf020": {"read": (43.2, 31, 172, 148), "write": (88.2, 64, 312, 292)},
    "px05smb040": {"read": (136, 40.1, 491, 220), "write": (123, 99.2, 496, 470)},
}
HEAD = "operation,pattern,size,rate [MB/s],jobs,use\n"


def rate_table(path: Path, rows: list[tuple[object, ...]]) -> RateTable:
    path.write_text(HEAD + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return read_table(path)


def published(path: Path, drive: str) -> RateTable:
    kinds = [(p, s) for s in ("4KiB", "28KiB") for p in ("sequential", "random")]
    return rate_table(
        path,
        [
            (op, *kind, rate, 1, "fit")
            for op, rates in PUBLISHED[drive].items()
            for kind, rate in zip(kinds, rates, strict=True)
        ],
    )


def simulated(path: Path, name: str, *, use: str = "fit") -> RateTable:
    """Rates simulated from a built-in profile; `use="half"` holds out every other cell."""
    profile = load_profile(name)
    rows: list[tuple[object, ...]] = []
    for jobs in (1, 16):
        for n, size in enumerate((4096, 16384, 65536, 262144, 1 << 20)):
            for m, pattern in enumerate(("sequential", "random")):
                for op in ("read", "write"):
                    ones = np.ones(1)
                    cell = Cell(op, pattern == "sequential", size, jobs, jobs, 1.0, ones, ones)
                    rate = simulated_cell(profile, cell)["iops"] * size / 1e6
                    held_out = use == "half" and (n + m) % 2 == 1
                    rows.append(
                        (op, pattern, size, f"{rate:.4g}", jobs, "judge" if held_out else "fit")
                    )
    return rate_table(path, rows)


@pytest.mark.parametrize("drive", sorted(PUBLISHED))
def test_fit_reproduces_the_published_cells(tmp_path: Path, drive: str) -> None:
    table = published(tmp_path / "t.csv", drive)
    profile = profile_of(table.fit, "t", [])
    rows = judged(profile, table.fit, [])
    assert len(rows) == 8
    assert all(row.fitted == pytest.approx(1, abs=0.02) for row in rows)
    assert all(row.held_out is not None for row in rows)
    if (
        drive == "px05smb040"
    ):  # both kinds of reads have one slope: three cells determine the fourth
        held_out = [row.held_out for row in rows if row.cell.op == "read"]
        assert held_out == pytest.approx([1.0] * 4, abs=0.05)
    # cells without shared parameters cannot be predicted; the verdict reports it
    assert "left out of the fit" in verdict(rows)
    worst = max(abs(row.held_out - 1) for row in rows if row.held_out is not None)
    assert worst > 0.1


def test_half_of_the_cells_predicts_the_other_half(tmp_path: Path) -> None:
    table = simulated(tmp_path / "t.csv", "px05smb040", use="half")
    assert (len(table.fit.cells), len(table.judge)) == (20, 20)
    profile = profile_of(table.fit, "t", [])
    held_out = [row for row in judged(profile, table.fit, table.judge, False) if row.fitted is None]
    near = [row for row in held_out if row.held_out == pytest.approx(1, abs=0.10)]
    assert len(near) >= 16
    assert all(row.held_out == pytest.approx(1, abs=0.35) for row in held_out)


def test_page_read_ahead_is_fitted_and_advised(tmp_path: Path) -> None:
    table = simulated(tmp_path / "t.csv", "px05smb040")
    profile = profile_of(table.fit, "t", [])
    ahead = profile.to_dict()["readahead"]
    assert ahead["page_bytes"] == 65536
    assert ahead["fetch"]["value_s"] == pytest.approx(72e-6, rel=0.05)
    rows = judged(profile, table.fit, [])
    assert not_to_be_used(rows) == []
    lines = advice(profile, table.fit.cells)
    assert lines[0].startswith(
        "reads at random, one at a time: 3.4 times slower than in order at 4 KiB"
    )
    assert "as fast from 64 KiB on" in lines[0]
    assert "in flight as fast at 4 KiB, too" in lines[0]
    assert "964 MB/s" in lines[1]


def test_device_without_read_ahead(tmp_path: Path) -> None:
    table = simulated(tmp_path / "t.csv", "hdd-7200")
    assert "readahead" not in profile_of(table.fit, "t", []).to_dict()


def test_cell_that_the_fit_misses_is_named(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [
        ("read", p, size, size / 1e6 / (1e-4 + size / 5e8), 1, "fit")
        for p in ("sequential", "random")
        for size in (4096, 65536, 262144, 1 << 20)
    ]
    assert not_to_be_used(judged(*_fit(rate_table(tmp_path / "a.csv", rows)))) == []
    rows[1] = (*rows[1][:3], float(str(rows[1][3])) / 3, 1, "fit")
    misses = not_to_be_used(judged(*_fit(rate_table(tmp_path / "b.csv", rows))))
    assert any(x.startswith("sequential reads of 64 KiB (fitted ") for x in misses)
    assert not any("random" in x for x in misses)


def _fit(table: RateTable) -> tuple:  # type: ignore[type-arg]
    return profile_of(table.fit, "t", []), table.fit, table.judge


def test_latencies_determine_the_service_times(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(
        """name: mine
source: made up
cells:
  - {operation: read, pattern: random, size: 4KiB, rate: 8000 IOPS, p50: 100us, p99: 400us}
  - {operation: flush, mean: 2ms}
"""
    )
    table = read_table(path)
    assert (table.name, table.source) == ("mine", "made up")
    profile = profile_of(table.fit, "t", [])
    source = profile.to_dict()["source"]
    moments = profile.moments("read", False, 4096)
    assert moments.mean == pytest.approx(125e-6, rel=0.01)  # queue depth 1: 1 / rate
    assert moments.p99 / moments.p50 == pytest.approx(4, rel=0.05)
    assert profile.moments("flush", False, 0).mean == pytest.approx(2e-3)
    assert any(row["what"] == "random reads of other sizes" for row in source)


def test_class_of_one_size_uses_the_rate_of_the_other(tmp_path: Path) -> None:
    rows = [
        ("read", "sequential", s, s / 1e6 / (1e-4 + s / 5e8), 1, "fit") for s in (4096, 1 << 20)
    ]
    rows.append(("read", "random", 4096, 4096 / 1e6 / (5e-4 + 4096 / 5e8), 1, "fit"))
    table = rate_table(tmp_path / "t.csv", list(rows))
    profile = profile_of(table.fit, "t", [])
    source = profile.to_dict()["source"]
    assert profile.moments("read", False, 1 << 20).mean == pytest.approx(
        5e-4 + (1 << 20) / 5e8, rel=0.01
    )
    assert {
        "what": "rate_bps of random reads",
        "where": "assumed: as of sequential ones (one size was measured)",
    } in source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "operation,pattern,size,rate\nread,random,4KiB,12\n",
            "t.csv:2:1: found '12'; expected a rate",
        ),
        ("operation,pattern,size,rate\nread,random,4KiB,0 MB/s\n", "t.csv:2:1: found '0 MB/s'"),
        (
            "operation,pattern,size,rate\n\nread,random,4 bananas,1 MB/s\n",
            "t.csv:3:1: found '4 bananas'",
        ),
        (
            "operation,pattern,size,rate\nread,zigzag,4KiB,1 MB/s\n",
            "found 'zigzag'; expected sequential",
        ),
        ("operation,colour\n", "t.csv:1:1: found the column 'colour'"),
        ("operation,pattern,size,rate\nread,random,4KiB,1 MB/s,7\n", "found 5 values; expected 4"),
        (
            "operation,pattern,size,rate,depth\nread,random,4KiB,1 MB/s,x\n",
            "found 'x'; expected an integer",
        ),
        (
            "operation,pattern,size,rate\nread,,4KiB,1 MB/s\n",
            "found ''; expected sequential or random",
        ),
        ("", "empty table"),
        ("operation,pattern,size,rate\n", "found no row to fit"),
        ("operation,pattern,size,rate\nread,random,4KiB,nan MB/s\n", "found 'nan MB/s'"),
        (
            "operation,pattern,size,rate,p50,p99\nread,random,4KiB,9 IOPS,200us,80us\n",
            "t.csv:2:1: found '80us'; expected at least p50, 200us",
        ),
        (
            "operation,pattern,size,rate,mean\nread,random,4KiB,9 IOPS,\nflush,,,,1ms\nflush,,,,9ms\n",
            "t.csv:4:1: found a second row of flush; expected one",
        ),
        ('operation,pattern,size,rate\nread,random,"4\nKiB",9 IOPS\n', "a cell of several lines"),
    ],
)
def test_errors_have_a_position(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        read_table(path)
    assert message in str(error.value)


def test_errors_in_yaml_have_a_position(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(
        "cells:\n  - {operation: read, pattern: random, size: 4KiB,\n     rate: fast}\n"
    )
    with pytest.raises(BadInput, match=r"t.yaml:3:12: found 'fast'; expected a rate"):
        read_table(path)


def test_fit_command_and_a_directory_named_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", "profile", *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        captured = capsys.readouterr()
        return int(exited.value.code or 0), captured.out, captured.err

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")  # no fio, hence no measurement
    published(tmp_path / "t.csv", "px05smb040")
    status, out, err = run("fit", "t.csv", "--json")
    assert status == 0, err
    document = json.loads(out)
    assert document["profile"]["name"] == "t"
    assert [row["fitted_ratio"] for row in document["cells"]] == pytest.approx([1.0] * 8, abs=0.02)
    sources = {row["what"]: row["where"] for row in document["profile"]["source"]}
    assert sources["8 cells of sizes and rates"] == "table t.csv"
    assert sources["how well it fits"] == document["verdict"]
    assert run("fit", "t.csv", "-o", "made.json")[0] == 0
    assert load_profile("made.json", tmp_path).name == "t"
    status, _, err = run("fit")
    assert (status, "found no directory" in err) == (2, True)
    (tmp_path / "fit").mkdir()
    status, _, err = run("fit")
    assert (status, "fio is missing" in err) == (1, True)
    status, _, err = run("elsewhere", "t.csv")
    assert (status, "found a second argument" in err) == (2, True)
    status, _, err = run("fit", "none.csv")
    assert (status, "none.csv" in err) == (2, True)


def test_measured_profile_names_the_cells_it_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[tuple[object, ...]] = [
        ("read", p, size, size / 1e6 / (1e-4 + size / 5e8) / (3 if size == 65536 else 1), 1, "fit")
        for p in ("sequential", "random")
        for size in (4096, 65536, 262144, 1 << 20)
    ]
    measured = rate_table(tmp_path / "t.csv", rows).fit
    monkeypatch.setattr(measure_profile, "measurements", lambda out, runs: measured)
    runs = pd.DataFrame({"valid": [True], "validity": ["valid"], "reason": [""], "cell": ["read"]})
    analysis = SimpleNamespace(runs=runs)
    result: Any = SimpleNamespace(analysis=analysis, valid_runs=1, out=tmp_path)
    fit = profile_verb._fit_runs(result, "made")
    misses = [s for s in fit.profile.to_dict()["source"] if s["where"].startswith("not to be used")]
    assert any(s["what"].startswith("random reads of 64 KiB (fitted ") for s in misses)
    assert "not to be used for random reads of 64 KiB" in capsys.readouterr().err
