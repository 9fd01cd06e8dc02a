"""Percentages have one format: a space before the sign, and a minus sign instead of a hyphen."""

from __future__ import annotations

import math
import re
from pathlib import Path

import penstock
from penstock.text import (
    difference,
    of_run,
    percent,
    percentage,
    signed,
    signed_percent,
    tenths,
    waited,
)

#: f-strings that format a share as `5%`, or a signed percentage with a hyphen
_OTHER_FORM = re.compile(r":\+?,?\.\d+%\}|:\+,?\.\d+[fg]\} ?%")


def test_percentages_have_a_space_and_a_minus_sign() -> None:
    assert percentage(0.123) == "12 %"
    assert percentage(-0.0093, 2) == "−0.93 %"
    assert percentage(-0.0001) == "0 %"
    assert percentage(12.5) == "1,250 %"
    assert tenths(-0.05) == "−5.0 %"
    assert signed_percent(0.031) == "+3.1 %"
    assert signed_percent(-0.0093, 2) == "−0.93 %"
    assert signed_percent(-0.00001) == "+0.0 %"
    assert signed(-0.0093) == "−0.93 %"
    assert signed(1.7) == "+170 %"
    assert signed(0.0001) == "0 %"


def test_non_finite_shares_are_a_dash() -> None:
    for share in (math.nan, math.inf, -math.inf):
        texts = [f(share) for f in (percent, percentage, tenths, signed, signed_percent, waited)]
        assert set(texts) == {"–"}
    assert difference(math.inf) == "–"


def test_one_thread_is_a_percentage() -> None:
    assert waited(1.004) == "100 %"
    assert of_run(1.004) == "100 % of the run"
    assert waited(2.6512) == of_run(2.6512) == "the time of 2.65 threads"


def test_no_module_formats_percentages_itself() -> None:
    for path in Path(penstock.__file__).parent.rglob("*.py"):
        assert not _OTHER_FORM.search(path.read_text()), path
