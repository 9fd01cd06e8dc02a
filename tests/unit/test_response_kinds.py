"""Numbers in texts: of any locale, complete or refused; in one JSON document, or in a selected one."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import numerals
from penstock.errors import PenstockError
from penstock.parts.interchange.platform_values import number_with_unit
from penstock.spec.study import Response, ResponseSource
from penstock.spec.units import parse_quantity
from penstock.study.load import read_study
from penstock.workload.parsers import json, regex
from penstock.workload.responses import measure


def parse_speed(text: str) -> float | None:
    return number_with_unit(text, {"Gf": 1e9}, 1.0)


GERMAN = "1073741824 Bytes (1,1 GB, 1,0 GiB) kopiert, 7,5 s, 143,2 MB/s\n"


@pytest.mark.parametrize(
    ("text", "others", "value"),
    [
        ("143,2", [], 143.2),
        ("1,234.5", [], 1234.5),
        ("1.234,5", [], 1234.5),
        ("1 234,5", [], 1234.5),
        ("1\u202f234,5", [], 1234.5),
        ("1'234.5", [], 1234.5),
        ("1,234,567", [], 1234567.0),
        ("1.234.567", [], 1234567.0),
        ("0,123", [], 0.123),
        ("1234,567", [], 1234.567),
        ("1,5e3", [], 1500.0),
        ("1.5e-3", [], 0.0015),
        ("1.234", [], 1.234),
        ("-7", [], -7.0),
        # another number of the same text shows the decimal mark
        ("1,234", ["999.5"], 1234.0),
        ("1,234", ["7,5"], 1.234),
    ],
)
def test_unambiguous_numbers_are_read(text: str, others: list[str], value: float) -> None:
    assert numerals.number(text, "", others) == value


@pytest.mark.parametrize(
    ("text", "others"),
    [("1,234", []), ("1.234", ["7,5"]), ("1,234", ["1,234", "5,678"]), ("1,234", ["7,5", "7.5"])],
)
def test_ambiguous_numbers_need_a_decimal_mark(text: str, others: list[str]) -> None:
    with pytest.raises(ValueError, match="with one meaning; state it"):
        numerals.number(text, "", others)
    assert {numerals.number(text, mark, others) for mark in numerals.MARKS} == {1.234, 1234.0}


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        *(
            (t, "")
            for t in ("", "nan", "inf", "1.2.3", "12,34,567", "1 23", "abc", "1,2,3", "0x1f")
        ),
        ("143,2", "."),
        ("143.2", ","),
    ],
)
def test_texts_that_are_no_number_are_refused(text: str, mark: str) -> None:
    with pytest.raises(ValueError, match="a number"):
        numerals.number(text, mark)


@pytest.mark.parametrize("read", [numerals.number, parse_quantity, parse_speed])
def test_texts_of_many_digits_take_a_linear_time(read: Callable[[str], object]) -> None:
    began = time.process_time()
    with contextlib.suppress(ValueError):
        read("1" * 200_000 + "!\n!")
    assert time.process_time() - began < 2


def test_a_regular_expression_reads_the_decimal_comma_of_a_locale() -> None:
    assert regex.number("s, ([0-9.,]+) MB/s", GERMAN, "stdout") == 143.2
    with pytest.raises(PenstockError, match="found '1,234' in stdout; expected a number with one"):
        regex.number("rate ([0-9.,]+)", "rate 1,234\n", "stdout")
    assert regex.number("rate ([0-9.,]+)", "rate 1,234\n", "stdout", ".") == 1234


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("([0-9.]+) MB/s", GERMAN),  # 2 of 143,2
        ("([0-9.]+) MB/s", "1,234.5 MB/s"),
        ("rate: ([0-9.]+)", "rate: 143,2 MB/s"),
        ("rate: ([0-9.]+)", "rate: 1,234"),
        ("rate: ([0-9.]+)", "rate: 1.5e+06 B/s"),
        ("rate: ([0-9]+)", "rate: 99.5"),
        ("([0-9.]+) MB/s", "1.5e3 MB/s"),
        ("rate: ([0-9.,]+)", "rate: 1\u202f234,5"),
        ("([0-9.,]+) MB/s", "1\u00a0234,5 MB/s"),
        ("rate: ([0-9.,]+)", "rate: 1'234.5"),
        ("([0-9.]+) ms", "change -5.2 ms"),
        ("([0-9.]+)s$", "real 2m1.234s"),
        ("real ([0-9.]+)", "real 2m1.234s"),
        ("([0-9.]+)$", "elapsed 1:01.53"),
        ("elapsed ([0-9.]+)", "elapsed 1:01.53"),
        ("([0-9]+)", "0x1F"),
    ],
)
def test_a_part_of_a_number_is_refused(pattern: str, text: str) -> None:
    with pytest.raises(PenstockError, match="to be a part of"):
        regex.number(pattern, text, "stdout")


@pytest.mark.parametrize(
    ("pattern", "text", "value"),
    [
        ("^a,([0-9]+),", "a,12,34\n", 12),  # the expression names the comma
        ("took ([0-9.]+)", "took 12.5, then more\n", 12.5),
        (r"took ([0-9.]+\d)", "took 12.5.\n", 12.5),
        ("([0-9]+)$", "12\n34\n", 34),
        ("rate: (.*) MB", "rate: 1,234.5 MB\n", 1234.5),
    ],
)
def test_text_next_to_a_number_is_not_part_of_it(pattern: str, text: str, value: float) -> None:
    assert regex.number(pattern, text, "stdout") == value


@pytest.mark.parametrize("unit", ["k", "kB/s", "MiB/s", "Gbit/s", "Kops/s", "ms", "us", "\u00b5s"])
def test_an_unread_unit_with_a_prefix_is_refused(unit: str) -> None:
    """Programs choose the prefix by the magnitude of the number, so the next run may have another one."""
    text = f"rate=12.5{unit}, more\n"
    with pytest.raises(PenstockError, match=r"to be a part of '12\.5"):
        regex.number("rate=([0-9.]+)", text, "stdout")
    assert regex.number(f"rate=([0-9.]+){unit}", text, "stdout") == 12.5


@pytest.mark.parametrize(
    "text", ["rate=12.5s", "rate=12.5%", "rate=12.5B", "rate=12.5, k=3", "rate=12.5 keys"]
)
def test_text_after_a_number_that_is_no_prefix_is_allowed(text: str) -> None:
    assert regex.number("rate=([0-9.]+)", text, "stdout") == 12.5


DD = "1073741824 bytes (1.1 GB, 1.0 GiB) copied, 0.9 s, {}\n"


@pytest.mark.parametrize(
    ("text", "unit", "printed"),
    [
        (DD.format("1.2 GB/s"), "MB/s", "GB/s"),
        (DD.format("950 kB/s"), "MB/s", "kB/s"),
        (DD.format("1.2 GB/s"), "MiB/s", "GB/s"),
        (" s, 1.2s", "ms", "s"),
        (" s, 1.2 seconds", "ms", "seconds"),
        (" s, 850 usec", "ms", "usec"),
        (" s, 850 micros", "ms", "micros"),
        (" s, 512 bytes", "KiB", "bytes"),
        (" s, 90 MB/sec", "GB/s", "MB/sec"),
        (" s, 12 requests/min", "requests/s", "requests/min"),
        (" s, 9.41 Gbits/sec", "Mbit/s", "Gbits/sec"),
        (" s, 941 Mbps", "Gbit/s", "Mbps"),
        (" s, 512 KB/sec", "MB/s", "KB/sec"),
        (" s, 1.1 GBytes", "MiB", "GBytes"),
        # a prefix of a count
        (" s, 12.5 Kops/s", "1/s", "Kops/s"),
        (" s, 12.5 K ops/s", "1/s", "K"),
        (" s, 12.5 kIOPS", "IOPS", "kIOPS"),
        (" s, 12.5 M/s", "1/s", "M/s"),
        (" s, 12.5 G", "MB", "G"),
        (" s, 850 ns/op", "us", "ns/op"),
    ],
)
def test_a_unit_that_contradicts_the_response_is_refused(
    text: str, unit: str, printed: str, tmp_path: Path
) -> None:
    """Programs choose the unit by the size of the number."""
    source = ResponseSource(kind="regex", expression=r" s, ([0-9.]+)")
    response = Response(name="r", source=source, unit=unit, better="higher")
    with pytest.raises(
        PenstockError, match=rf"with the unit {re.escape(printed)}; expected {unit}, or"
    ):
        measure([response], "none", tmp_path, text, "", 1.0)


@pytest.mark.parametrize(
    ("pattern", "text", "unit"),
    [
        (r" s, ([0-9.]+)", DD.format("5 MB/s"), "MB/s"),
        (r" s, ([0-9.]+)", DD.format("5 MB/sec"), "MB/s"),
        # of two meanings, of which the study states one
        (r" s, ([0-9.]+)", DD.format("5 KB/sec"), "KiB/s"),
        (r" s, ([0-9.]+)", DD.format("5 KB/sec"), "kB/s"),
        (r" s, ([0-9.]+)", DD.format("5 Gbits/sec"), "Gbit/s"),
        (r" s, ([0-9.]+)", " s, 5 G", "GiB"),
        (r" s, ([0-9.]+)", " s, 5 us/op", "us"),
        # the expression names the unit
        (r" s, ([0-9.]+) Kops/s", " s, 5 Kops/s", "1/s"),
        (r" s, ([0-9.]+) MB/s", DD.format("5 MB/s"), "MiB/s"),
        # no unit, one of another quantity, or an unknown one
        (r"took ([0-9.]+)", "took 5 in all", "s"),
        (r"took ([0-9.]+)", "took 5 s", "requests"),
        (r"took ([0-9.]+)", "took 5 s/it", "ms"),
        (r"took ([0-9.]+)", "took 5 Tasks", "tasks"),
        (r"took ([0-9.]+)", "took 5 K", "s"),
        (r"took ([0-9.]+)", "took 5\nms", "s"),
    ],
)
def test_a_unit_of_the_response_or_of_the_expression_is_read(
    pattern: str, text: str, unit: str, tmp_path: Path
) -> None:
    source = ResponseSource(kind="regex", expression=pattern)
    response = Response(name="r", source=source, unit=unit, better="higher")
    assert measure([response], "none", tmp_path, text, "", 1.0)["r"].value == 5


@pytest.mark.parametrize(
    ("text", "value"), [("p-95", 95), ("2024-07", 7), ("--depth-32", 32), ("\x1b[32m5\x1b[0m", 5)]
)
def test_hyphens_and_colour_codes_do_not_change_digits(
    text: str, value: float, tmp_path: Path
) -> None:
    source = ResponseSource(kind="regex", expression="([0-9.]+)")
    response = Response(name="r", source=source, unit="1", better="higher")
    assert measure([response], "none", tmp_path, text, "", 1.0)["r"].value == value


def test_a_study_gives_the_decimal_mark(tmp_path: Path) -> None:
    text = """penstock: 1
name: comma
question: Which?
factors: {v: {levels: [a, b]}}
design: {kind: full, replicates: 1, seed: 7}
platform: {nodes: [{name: n, disks: [{name: data, directory: /tmp}]}]}
workload: {command: "echo {v}", parser: none}
responses: {rate: {from: {regex: 'rate ([0-9.,]+)', decimal: ','}, unit: MB/s, better: higher}}
"""
    (response,) = read_study(text.encode(), tmp_path / "s.yaml").responses
    assert response.source.decimal == ","
    assert measure([response], "none", tmp_path, "rate 1,234\n", "", 1.0)["rate"].value == 1.234


def value_at(path: str, text: str) -> float:
    source = ResponseSource(kind="json", expression=path)
    response = Response(name="r", source=source, unit="1", better="higher")
    return measure([response], "none", Path("/nonexistent"), text, "", 1.0)["r"].value


LINES = '{"ops": 1}\nnote\n{"ops": 2}\n{"ops": 3}\n'


def test_one_of_several_documents_is_named() -> None:
    assert [value_at(p, LINES) for p in ("0.ops", "1.ops", "-1.ops")] == [1, 2, 3]
    with pytest.raises(PenstockError, match=r"found 3 JSON documents in stdout; .* -1\.ops"):
        value_at("ops", LINES)
    with pytest.raises(PenstockError, match=r"stdout has no 3"):
        value_at("3.ops", LINES)


@pytest.mark.parametrize(
    "text",
    [
        '{"ops": 3}',
        'note [1]\n[INFO] begin\n{"ops": 3}\n[INFO] end\n',
        '[1/2] step\n{\n "ops": 3\n}\ntext: {"ops": 9}\n',
        '\ufeffstart\n{"ops": 3}',
    ],
)
def test_text_around_a_document_is_skipped(text: str) -> None:
    assert value_at("ops", text) == 3


@pytest.mark.parametrize("cut", ['{"ops": 3', '{"op', '{"ops": tr', "{"])
def test_a_truncated_last_document_is_refused(cut: str) -> None:
    with pytest.raises(PenstockError, match="to end within a JSON document"):
        json.documents('{"ops": 1}\n' + cut, "stdout")


@pytest.mark.parametrize("cut", ["", '{"ops": 3', '{"ops": 3}', "nul"])
def test_a_truncated_list_is_refused(cut: str) -> None:
    """Fails if complete lines of the list are read as documents: the last one is not the last item."""
    with pytest.raises(PenstockError, match="to end within a JSON document"):
        value_at("-1.ops", '[\n{"ops": 1},\n{"ops": 2},\n' + cut)


@pytest.mark.parametrize("note", ["[INFO] step {}", "[2024-01-01 10:00:{}] step", "[{}] 4711 done"])
def test_any_number_of_notes_is_skipped(note: str) -> None:
    """Fails if the time grows faster than the length of the text."""
    notes = "".join(f"{note.format(n)}\n" for n in range(30_000))
    began = time.process_time()
    assert value_at("ops", notes + '{"ops": 3}\n' + notes) == 3
    assert time.process_time() - began < 10


def test_a_document_nested_too_deeply_is_refused() -> None:
    """Skipping it would shift the index of later ones."""
    with pytest.raises(PenstockError, match="found values nested too deeply in stdout"):
        value_at("-1.ops", '{"ops": 1}\n{"a": ' + "[" * 100_000 + '\n{"ops": 3}\n')


def test_short_notes_behind_a_document_are_skipped() -> None:
    assert value_at("ops", '{"ops": 3}\n[ok]\n') == 3


def test_documents_without_a_line_between_them() -> None:
    assert json.documents('{"a": 1}{"a": 2}\n[3]', "x") == [{"a": 1}, {"a": 2}, [3]]


def test_a_key_with_dots_can_be_selected() -> None:
    assert value_at("clat.99.000000", '{"clat": {"95.000000": 3, "99.000000": 4}}') == 4


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("a", '{"a": 1, "a": 2}', "found a several times"),
        ("b.a", '{"b": {"a": 1, "a": 1}}', "found b.a several times"),
        ("a", '{"a": NaN}', "response r: found nan; expected a finite"),
        ("a", '{"a": -Infinity}', "found -inf"),
        ("a", '{"a": 1e999}', "found inf"),
        ("a", '{"a": -1e200}', "found -1e.200; expected a finite number below 1e.100"),
        ("a", '{"a": 1' + "0" * 400 + "}", "is too large"),
        ("a.1_0", '{"a": [1, 2, 3]}', "has no a.1_0"),
        # a skipped document would shift the index of later ones
        ("1.a", '{"a": 1}\n{"a": tru}\n{"a": 3}\n', "from line 2 on"),
        ("a", '{"a": 1} again\n{"a": 3}\n', "from line 1 on"),
    ],
)
def test_an_ambiguous_json_number_is_refused(path: str, text: str, message: str) -> None:
    with pytest.raises(PenstockError, match=message):
        value_at(path, text)


def test_numbers_of_printf_do_not_hide_a_document() -> None:
    text = '{"a": 1, "b": -nan, "c": [inf,\n -inf, -nan(ind)\n], "d": "-nan"}\n'
    assert value_at("a", text) == 1
    with pytest.raises(PenstockError, match="response r: found nan"):
        value_at("b", text)


def test_a_byte_order_mark_does_not_hide_a_document() -> None:
    assert value_at("a", '\ufeff{"a": 1}\n') == 1


def test_a_number_that_overflows_is_refused() -> None:
    source = ResponseSource(kind="regex", expression=r"v=(\S+)")
    response = Response(name="r", source=source, unit="1", better="higher")
    with pytest.raises(PenstockError, match="found inf; expected a finite"):
        measure([response], "none", Path("/nonexistent"), "v=1e999", "", 1.0)
