"""Tables of any separator, locale and mark of a missing value."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from penstock.archive.bundle import Bundle
from penstock.archive.series import delimited, series_tables
from penstock.cli import _build
from penstock.errors import BadInput
from penstock.workload import metrics

#: as written by Nextflow: tabs, and - for a missing value
TRACE = """task_id	name	submit	realtime	rchar	wchar
1	a	1497264878235	1280000	24588763136	11918534246
2	b	1497264901081	1930000	-	-
"""
DESCRIPTION: dict[str, Any] = {
    "time": {"column": "submit", "unit": "ms"},
    "entity": ["name"],
    "values": {"rchar": "B", "wchar": "B", "realtime": "ms"},
}


def samples_of(path: Path, text: str, **more: Any) -> pd.DataFrame:
    path.write_text(text)
    return metrics.read(path, "described", {**DESCRIPTION, **more}).samples


@pytest.mark.parametrize("separator", delimited.SEPARATORS)
@pytest.mark.parametrize("missing", ["-", "NA", "", "null", "n/a", "\\N", "--", "NaN"])
def test_traces_with_any_separator_and_missing_value(
    separator: str, missing: str, tmp_path: Path
) -> None:
    text = TRACE.replace("-", missing).replace("\t", separator)
    samples = samples_of(tmp_path / "trace.txt", text)
    assert samples.groupby("entity")["metric"].apply(list).to_dict() == {
        "a": ["rchar", "wchar", "realtime"],
        "b": ["realtime"],
    }
    assert samples["value"].sum() == 24588763136 + 11918534246 + 1280000 + 1930000
    assert samples["utc_ns"].iloc[0] == 1497264878235 * 10**6


def test_a_description_suffices_to_import_a_table(tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text(TRACE)
    (tmp_path / "w.yaml").write_text(json.dumps(DESCRIPTION))
    line = ["import", str(tmp_path / "trace.txt"), "--words", str(tmp_path / "w.yaml")]
    result = CliRunner().invoke(_build(), [*line, "-o", str(tmp_path / "B")])
    assert result.exit_code == 0, result.output
    assert len(Bundle.open(tmp_path / "B").table("samples").to_pandas()) == 4
    refused = CliRunner().invoke(
        _build(), ["import", str(tmp_path / "trace.txt"), "-o", str(tmp_path / "C")]
    )
    assert isinstance(refused.exception, BadInput)
    assert "--words" in str(refused.exception)
    assert "expected a trace (" in str(refused.exception)


def test_options_of_experiments_are_refused_for_a_bundle(tmp_path: Path) -> None:
    line = ["import", str(tmp_path / "t.csv"), "--metric", "rate", "--unit", "B/s"]
    refused = CliRunner().invoke(_build(), [*line, "-o", str(tmp_path / "B")])
    assert isinstance(refused.exception, BadInput)
    assert "found --metric, --unit; expected none of them for a bundle" in str(refused.exception)


def test_values_of_one_time_without_an_entity_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,host,x\n1700000000,a,1\n1700000000,b,5\n1700000001,a,2\n")
    description = {"time": {"column": "at", "unit": "s"}, "values": {"x": "s"}}
    (note,) = metrics.read(path, "described", description).notes
    assert note.startswith("1 values have the time of another value of their series: `entity`")
    assert not metrics.read(path, "described", description | {"entity": "host"}).notes


def test_decimal_commas(tmp_path: Path) -> None:
    text = "submit;name;rchar;wchar;realtime\n1000;a;1,5;1.234,5;7\n2000;b;1,234;-;8,25\n"
    samples = samples_of(tmp_path / "t.csv", text)
    assert samples["value"].tolist() == [1.5, 1234.5, 7, 1.234, 8.25]
    ambiguous = text.replace("1,5", "1,500").replace("1.234,5", "1,234").replace("8,25", "8")
    with pytest.raises(BadInput, match=r"column rchar: found '1,500'.*`decimal` in --words"):
        samples_of(tmp_path / "t.csv", ambiguous)
    assert samples_of(tmp_path / "t.csv", ambiguous, decimal=",")["value"].max() == 8
    assert samples_of(tmp_path / "t.csv", ambiguous, decimal=".")["value"].max() == 1500


def test_points_next_to_decimal_commas(tmp_path: Path) -> None:
    """In a table of a locale with decimal commas, 1.234 is 1234."""
    text = "submit;name;rchar;wchar;realtime\n1000;a;1.234;83,5;7\n2000;b;950;-;8\n"
    with pytest.raises(BadInput, match=r"column rchar: found '1\.234' in a table with decimal"):
        samples_of(tmp_path / "t.csv", text)
    assert samples_of(tmp_path / "t.csv", text, decimal=",")["value"].tolist() == [
        *(1234, 83.5, 7),
        *(950, 8),
    ]
    # a column that is not read, and points that can only be decimal points
    two = {"values": {"wchar": "B", "realtime": "ms"}}
    assert samples_of(tmp_path / "t.csv", text, **two)["value"].tolist() == [83.5, 7, 8]
    decimals = text.replace("950", "0.5")
    assert samples_of(tmp_path / "t.csv", decimals)["value"].tolist() == [1.234, 83.5, 7, 0.5, 8]
    with pytest.raises(BadInput, match=r"column y: found '1\.234' in a table with decimal commas"):
        series_tables.of_csv(b"time;x;y\n1;83,5;1.234\n2;9,5;5.678\n", "t.csv")


def test_a_declared_missing_value_and_rows_without_a_time(tmp_path: Path) -> None:
    text = TRACE.replace("-", "n/d") + "3\tc\tn/d\t5\t5\t5\n"
    with pytest.raises(BadInput, match=r"found 'n/d' in rchar|expected times"):
        samples_of(tmp_path / "t.txt", text)
    readings = metrics.read(tmp_path / "t.txt", "described", {**DESCRIPTION, "missing": ["n/d"]})
    assert len(readings.samples) == 4
    assert readings.notes == ["1 rows without a time were skipped"]


def test_names_that_look_like_marks_stay_names(tmp_path: Path) -> None:
    samples = samples_of(
        tmp_path / "t.txt", TRACE.replace("\ta\t", "\tNA\t").replace("\tb\t", "\t007\t")
    )
    assert set(samples["entity"]) == {"NA", "007"}


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"separator": "#"}, "found separator '#'"),
        ({"decimal": ";"}, "found decimal ';'"),
        ({"missing": "x"}, "found missing 'x'"),
    ],
)
def test_invalid_descriptions_of_a_table_are_refused(
    description: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        samples_of(tmp_path / "t.txt", TRACE, **description)


def test_an_invalid_line_of_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"t\.jsonl:2: found"):
        samples_of(tmp_path / "t.jsonl", '{"submit": 1}\n{"submit": \n')


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n1,5;2,5\n", ";"),
        ("a\tb\n1,5\t2;5\n", "\t"),
        ('time,"x{a=""b"",c=""d;e""}"\n1,2\n', ","),
        ("a|b|c\n1|2|3\n", "|"),
        ("a,b,c\n1,2;x,3\n", ","),
        ("one\n1\n", ","),
    ],
)
def test_the_separator_is_the_one_that_divides_all_rows(text: str, separator: str) -> None:
    assert delimited.separator_of(text.encode()) == separator


def test_tables_with_a_column_of_times(tmp_path: Path) -> None:
    text = "timestamp;mongo-1 (MB/s);mongo-2\n1500000000;83,5;-\n1500000001;0;67,25\n"
    path = tmp_path / "disk.csv"
    path.write_text(text)
    assert metrics.reader_of(path) == "csv"
    readings = metrics.read(path)
    assert readings.samples["value"].tolist() == [83.5, 0.0, 67.25]
    assert readings.samples["unit"].tolist() == ["MB/s", "MB/s", ""]
    assert readings.notes == ["units not known: mongo-2"]
    path.write_text("time\tx_ms\n0\t1\n5\t2\n")
    notes = metrics.read(path).notes
    assert "time names no unit: read as seconds" in notes
    path.write_text("time_ms\tx\n0\t1\n5000\t2\n")
    assert not [n for n in metrics.read(path).notes if "seconds" in n]


@pytest.mark.parametrize(
    ("head", "rows", "expected", "note"),
    [
        (
            "time,host,cpu",
            ("0,a,1", "0,b,5", "1,b,6", "1,a,2"),
            {("a", "cpu", ""): [1.0, 2.0], ("b", "cpu", ""): [5.0, 6.0]},
            "rows of one time were read as series of host",
        ),
        (
            "time,metric,unit,value",
            ("0,reads,1/s,1", "0,sent,B/s,5", "1,reads,1/s,2", "1,sent,B/s,6"),
            {("all", "reads", "1/s"): [1.0, 2.0], ("all", "sent", "B/s"): [5.0, 6.0]},
            "rows of one time were read as series of metric and unit",
        ),
        # one row for each time: the texts are remarks
        ("time,remark,cpu", ("0,a,1", "1,b,5"), {("all", "cpu", ""): [1.0, 5.0]}, ""),
        # the texts do not tell the rows of one time apart
        (
            "time,op,cpu",
            ("0,a,1", "0,a,5", "1,b,2"),
            {("all", "cpu", ""): [1.0, 5.0, 2.0]},
            "1 values have the time of another value of their series",
        ),
    ],
)
def test_rows_of_one_time_are_of_several_series(
    head: str, rows: tuple[str, ...], expected: dict[Any, list[float]], note: str, tmp_path: Path
) -> None:
    """Fails if the rows of several hosts, or of several metrics, become one series."""
    path = tmp_path / "t.csv"
    path.write_text("\n".join([head, *(f"170000000{row}" for row in rows)]) + "\n")
    imported = metrics.read(path)
    keys = ["entity", "metric", "unit"]
    assert {k: v["value"].tolist() for k, v in imported.samples.groupby(keys)} == expected
    assert [n for n in imported.notes if " of one " in n or " another " in n] == [note] * bool(note)


def test_an_ambiguous_number_in_a_table_is_refused() -> None:
    with pytest.raises(BadInput, match="column x: found '1,234'"):
        series_tables.of_csv(b'time,x\n1,"1,234"\n2,"5,678"\n', "t.csv")
    recorded = series_tables.of_csv(b'time,x\n1,"1,234"\n2,"1,234.5"\n', "t.csv")
    assert recorded.series[0].y.tolist() == [1234.0, 1234.5]


def test_a_year_beyond_the_range_of_nanoseconds_is_bad_input() -> None:
    with pytest.raises(BadInput, match="expected the years 1678 to 2262"):
        series_tables.of_csv(b"time,x\n9426-11-25T04:26:02Z,1\n9426-11-25T04:26:03Z,2\n", "t.csv")


@pytest.mark.parametrize("cell", ["\u22121", "10 ms", "0x10", "abc"])
def test_cells_without_a_number_are_named(cell: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"time,x,y\n1700000000,1,-\n1700000001,{cell},2\n1700000002,3,NA\n")
    imported = metrics.read(path)
    assert len(imported.samples) == 3
    skipped = [note for note in imported.notes if "without a number" in note]
    assert skipped == [
        f"1 cell without a number in column x skipped: the first is {cell!r} in row 3"
    ]


@pytest.mark.parametrize(
    ("times", "local"),
    [
        (("2024-01-01 00:00:00", "2024-01-01 00:00:01.5"), 2),
        (("2024-01-01T00:00:00Z", "2024-01-01T01:00:01"), 1),
        (("2024-01-01T00:00:00.25Z", "2024-01-01T01:00:01+01:00"), 0),
        (("1700000000", "1700000001"), 0),
    ],
)
def test_times_without_a_zone_are_named(times: tuple[str, str], local: int, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"time,x\n{times[0]},1\n{times[1]},2\n")
    description = {"time": {"column": "time"}, "values": {"x": "s"}}
    if not times[0].isdecimal():
        readers = [metrics.read(path), metrics.read(path, "described", description)]
    else:
        readers = [metrics.read(path)]
    for readings in readers:
        notes = [note for note in readings.notes if "time zone" in note]
        assert [note.split()[0] for note in notes] == [str(local)] * bool(local)


@pytest.mark.parametrize(
    "time",
    ["2024-01-01 10:00:00.5 UTC", "2024-01-01 10:00:00.5 +0000 UTC", "2024-01-01T10:00:00,5Z"],
)
def test_forms_of_times_of_one_meaning(time: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"time;v\n{time};1\n2024-01-01 10:00:01 GMT;2\n")
    described = {"time": "time", "values": {"v": "1"}}
    for readings in (metrics.read(path), metrics.read(path, "described", described)):
        assert readings.samples["utc_ns"].tolist() == [1704103200500000000, 1704103201000000000]
        assert not [note for note in readings.notes if "time zone" in note]
    path.write_text("time;v\n2024-01-01 10:00:00 CST;1\n")  # of several meanings
    with pytest.raises(BadInput, match="CST"):
        metrics.read(path)


def test_rows_of_several_hosts_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    # a row occurs twice: the texts do not tell all rows of a time apart
    path.write_text("time_s,host,disk,load (1)\n0,a,sda,1\n0,a,sda,5\n0,b,sda,90\n1,a,sda,2\n")
    assert [n for n in metrics.read(path).notes if "differ" in n] == [
        "3 rows have the time of another row and differ in host: they are read as one series "
        "(--words with `entity` separates them)"
    ]
    # several values of one host, and a text of each row
    path.write_text("time_s,host,load (1)\n0,a,1\n0,a,90\n1,b,2\n2,c,91\n")
    assert not [n for n in metrics.read(path).notes if "differ" in n]


def test_numbers_and_markup_in_brackets_are_no_units(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,cpu[0],[bold]x[/bold],lat [ms],rate (1/s)\n1,1,2,3,4\n2,1,2,3,4\n")
    samples = metrics.read(path).samples
    assert list(dict.fromkeys(zip(samples["metric"], samples["unit"], strict=True))) == [
        ("cpu[0]", ""),
        ("[bold]x[/bold]", ""),
        ("lat", "ms"),
        ("rate", "1/s"),
    ]


def seconds_of(text: str) -> list[list[float]]:
    recorded = series_tables.of_csv(text.encode(), "x")
    return [*(s.y.tolist() for s in recorded.series), recorded.series[0].x.tolist()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time (min),v\n1,5\n2,6\n", [[5, 6], [60, 120]]),
        # a last row without an end, and a row without its last value
        ("time,v\n0,5\n1,6", [[5, 6], [0, 1]]),
        ("time,v,note\n0,5,a\n1,6\n", [[5, 6], [0, 1]]),
        ("time,v,of,none\n0,5\n1,6", [[5, 6], [0, 1]]),
        ("time [h],v\n1,5\n2,6\n", [[5, 6], [3600, 7200]]),
        ("Time (minutes),v\n1,5\n2,6\n", [[5, 6], [60, 120]]),
        ("Elapsed [Milliseconds],v\n1000,5\n2500,6\n", [[5, 6], [1, 2.5]]),
        ("t (\u00b5s),v\n1000000,5\n2000000,6\n", [[5, 6], [1, 2]]),
        # the name of a clock is no unit
        ("time (UTC),v\n1700000000,5\n1700000001,6\n", [[5, 6], [0, 1]]),
        # a separator ends each row
        ("time,v\n0,5,\n1,6,\n", [[5, 6], [0, 1]]),
        ("time;v\n0,5;1,5\n1,5;2,5\n", [[1.5, 2.5], [0.5, 1.5]]),
        # one column for dates, one for times of day
        ("date,time,v\n2024-01-01,9:00:00,5\n2024-01-01,10:00:00.5,6\n", [[5, 6], [0, 3600.5]]),
        ("Time,Date,v\n09:00,2024-01-01,5\n09:00,2024-01-02,6\n", [[5, 6], [0, 86400]]),
    ],
)
def test_times_in_their_unit_and_locale(text: str, expected: list[list[float]]) -> None:
    assert seconds_of(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,v\n0,1,9\n1,2,9\n", "found 3 fields below 2 names"),
        ("time,v\n0,1,\n1,2,9\n", "expected CSV"),
        # 5 may be the begin of a longer number
        ("time,v,w\n0,123,4\n1,5", "x:3: found 2 fields and no end of the line; expected 3"),
        # a log of fio, whose first row is no header
        ("1000, 52341, 0, 4096, 0\n2000, 51200, 0, 4096, 0\n", "x:1: found only numbers"),
        ("0;1.5\n1;2.5\n", "expected a header row with names of columns"),
        # read as seconds, without a note, before
        ("time (weeks),v\n1,5\n2,6\n", "found the unit 'weeks' of the times in column time"),
        ("t (\u00b0C),v\n20,5\n21,6\n", "expected ns, us, ms, s, min, h or d"),
        ("time,v\n1e300,1\n2e300,2\n", "found the time 2e\\+300 in column time"),
    ],
)
def test_tables_with_invalid_rows_or_times_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        series_tables.of_csv(text.encode(), "x")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_and_dates_of_parquet_have_their_unit(unit: str, tmp_path: Path) -> None:
    """Durations are exported in nanoseconds, which were read as seconds."""
    for name, kind, start in (
        ("duration", "timedelta64", 0),
        ("time_ms", "datetime64", 1_700_000_000),
    ):
        stamps = pd.Series([start, start + 2]).astype(f"{kind}[s]").astype(f"{kind}[{unit}]")
        pd.DataFrame({name: stamps, "v": [5, 6]}).to_parquet(tmp_path / "t.parquet")
        recorded = series_tables.of_file(tmp_path / "t.parquet")
        assert recorded.series[0].x.tolist() == [0, 2]
        assert recorded.start_utc_ns == (start * 10**9 or None)
        assert [n.split()[:5] for n in recorded.notes] == [
            ["2", "times", "without", "a", "time"]
        ] * bool(start)


def test_values_of_json_lines_are_not_taken_for_times(tmp_path: Path) -> None:
    """pandas takes a column whose name ends in `_time` for dates."""
    path = tmp_path / "t.jsonl"
    path.write_text('\ufeff{"time": 0, "wait_time": 50000000}\n{"time": 1, "wait_time": true}\n')
    recorded = series_tables.of_file(path)
    assert recorded.series[0].y[0] == 50_000_000
    assert recorded.notes[-1].startswith("1 cell without a number in column wait_time")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # the columns would be shifted by one
        ("submit,v\n1700000000000,5,6\n", "found 3 fields below 2 names"),
        ("submit,v,v\n1700000000000,5,6\n", "found 'v' 2 times"),
        ("submit,v\n1700000000,True\n", "found truth values in v"),
        ("submit,v\n1700000000000000000,5\n", "found 1700000000000000000 ms, beyond"),
        ('{"submit": 1700000000000, "v": 5, "v": 6}\n', "t:1: found a key several times"),
        ('{"submit": 1700000000000, "v": true}\n', "row 1: found 'true' in v"),
        ('{"submit": 1700000000000, "v": {"a": 1}}\n', "row 1: found '{\"a\": 1}' in v"),
        ('{"submit": 1700000000000, "v": {"a": {"b": 1}}}\n', 'found \'{"a": {"b": 1}}\' in v'),
        ('{"submit": true, "v": 1}\n', "found 'true' in submit; expected times"),
        ('{"submit": 1700000000000, "v": 5}\n[1, 2]\n', "t:2: found no object"),
        ('{"submit": 1700000000000, "v": 1' + "0" * 400 + "}\n", "found no value"),
    ],
)
def test_ambiguous_rows_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        samples_of(tmp_path / "t", text, entity=[], values={"v": "B"})


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time_s,v_bytes\n0,5\n1,inf\n2,-inf\n")
    readings = metrics.read(tmp_path / "t.csv")
    assert readings.samples["value"].tolist() == [5]
    assert "2 values that are not finite were skipped" in readings.notes
