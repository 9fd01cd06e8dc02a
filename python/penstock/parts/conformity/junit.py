"""Format a check as JUnit XML for continuous integration: a test case for each row."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from penstock.analyse.findings.finding import Finding
from penstock.parts.conformity.comparison import OK, RowResult
from penstock.text import signed_percent


def junit_xml(suite: str, results: Sequence[RowResult], causes: Sequence[Finding]) -> str:
    """Format the results as JUnit XML; each row that is not OK is a failure with the causes in its text."""
    failed = [result for result in results if result.verdict != OK]
    top = ElementTree.Element(
        "testsuites", name="penstock check", tests=str(len(results)), failures=str(len(failed))
    )
    group = ElementTree.SubElement(
        top,
        "testsuite",
        name=_plain(suite),
        tests=str(len(results)),
        failures=str(len(failed)),
        errors="0",
        skipped="0",
    )
    cause_lines = "".join(f"\n{f.code}: {f.statement}. {f.what_to_do}" for f in causes)
    for result in results:
        row = result.expected
        case = ElementTree.SubElement(
            group,
            "testcase",
            classname=_plain(f"{row.module}.{row.operation}"),
            name=_plain(row.metric),
        )
        numbers = (
            f"predicted {row.predicted:g} {row.unit}, measured {result.mean:g} {row.unit} "
            f"(n = {result.n}, {signed_percent(result.gap)}, ± {100 * result.half:.1f} %, "
            f"allowed {100 * row.tolerance:g} %)"
        )
        if result.verdict == OK:
            ElementTree.SubElement(case, "system-out").text = _plain(numbers)
        else:
            failure = ElementTree.SubElement(
                case,
                "failure",
                type=result.verdict,
                message=_plain(f"{result.verdict}: {result.note}"),
            )
            failure.text = _plain(numbers + cause_lines)
    ElementTree.indent(top)
    body = ElementTree.tostring(top, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _plain(text: str) -> str:
    """Replace characters that XML 1.0 does not allow."""
    return "".join(
        c
        if c in "\n\t" or (c >= " " and not 0xD800 <= ord(c) <= 0xDFFF and c not in "\ufffe\uffff")
        else "\ufffd"
        for c in text
    )
