"""A check as JUnit XML, for continuous integration: a test case for each row, causes in its failure."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from penstock.analyse.findings.finding import Finding
from penstock.parts.conformity.comparison import OK, Judged


def junit_xml(suite: str, rows: Sequence[Judged], causes: Sequence[Finding]) -> str:
    """The text of the file. A row that is not OK is a failure of the type of its verdict."""
    failed = [row for row in rows if row.verdict != OK]
    top = ElementTree.Element(
        "testsuites", name="penstock check", tests=str(len(rows)), failures=str(len(failed))
    )
    group = ElementTree.SubElement(
        top,
        "testsuite",
        name=_plain(suite),
        tests=str(len(rows)),
        failures=str(len(failed)),
        errors="0",
        skipped="0",
    )
    told = "".join(f"\n{f.code}: {f.statement}. {f.what_to_do}" for f in causes)
    for judged in rows:
        row = judged.row
        case = ElementTree.SubElement(
            group,
            "testcase",
            classname=_plain(f"{row.module}.{row.operation}"),
            name=_plain(row.metric),
        )
        numbers = (
            f"predicted {row.predicted:g} {row.unit}, measured {judged.mean:g} {row.unit} "
            f"(n = {judged.n}, {100 * judged.gap:+.1f} %, ± {100 * judged.half:.1f} %, "
            f"allowed {100 * row.tolerance:g} %)"
        )
        if judged.verdict == OK:
            ElementTree.SubElement(case, "system-out").text = _plain(numbers)
        else:
            failure = ElementTree.SubElement(
                case,
                "failure",
                type=judged.verdict,
                message=_plain(f"{judged.verdict}: {judged.note}"),
            )
            failure.text = _plain(numbers + told)
    ElementTree.indent(top)
    body = ElementTree.tostring(top, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _plain(text: str) -> str:
    """The text without what XML 1.0 cannot hold."""
    return "".join(
        c
        if c in "\n\t" or (c >= " " and not 0xD800 <= ord(c) <= 0xDFFF and c not in "\ufffe\uffff")
        else "\ufffd"
        for c in text
    )
