"""Effects against values certified by NIST (Statistical Reference Datasets, one-way analysis of
variance).

`tests/golden/nist` has published files of that collection. Values are certified to 15 digits; the
attainable number of digits depends on the leading digits that all observations share.
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from penstock.analyse.statistics.effects import effects
from tests.unit.recorded_study import plan_of_text, study_text

NIST = Path(__file__).parents[1] / "golden" / "nist"


def read(name: str) -> tuple[pd.DataFrame, dict[str, float]]:
    """Observations of a file and its certified values."""
    text = (NIST / f"{name}.dat").read_text()
    body = text[text.rindex("Data:") :].splitlines()[1:]
    rows = [line.split() for line in body if line.strip()]
    number = r"([-+.\dE]+)"
    between = re.search(rf"Between \w+ +(\d+) +{number} +{number} +{number}", text)
    within = re.search(rf"Within \w+ +(\d+) +{number} +{number}", text)
    share = re.search(rf"Certified R-Squared +{number}", text)
    assert between
    assert within
    assert share
    names = ("df", "between", "mean_square", "f_value", "df_error", "within", "error", "r_squared")
    certified = [*between.groups(), *within.groups(), share.group(1)]
    data = pd.DataFrame(rows, columns=["T", "y"]).astype({"y": float})
    return data, dict(zip(names, map(float, certified), strict=True))


@pytest.mark.parametrize(
    ("name", "shared", "digits"),
    [("SiRstv", 3, 12), ("SmLs01", 1, 13), ("AtmWtAg", 7, 8), ("SmLs04", 7, 8)],
)
def test_analysis_of_variance_agrees_with_certified_values(
    name: str, shared: int, digits: int, tmp_path: Path
) -> None:
    """`shared` leading digits of a double's 15.9 are lost before any computation."""
    assert digits <= 16 - shared
    data, certified = read(name)
    levels, count = sorted(data["T"].unique(), key=int), len(data)
    text = study_text(
        {"T": f"{{levels: {{{', '.join(f't{n}: {n}' for n in levels)}}}}}"},
        f"{{kind: full, replicates: {count // len(levels)}, order: random}}",
    )
    runs = data.assign(T="t" + data["T"], valid=True)
    table = effects(runs, plan_of_text(text, tmp_path), "y").set_index("term")
    term, residual = table.loc["T"], table.loc["residual"]
    assert (term["n"], residual["df"]) == (count, certified["df_error"])
    near = lambda value: pytest.approx(value, rel=10.0**-digits)  # noqa: E731
    # for two levels F is t² of the single coefficient
    assert term["f_value"] == near(certified["f_value"])
    assert term["sum_of_squares"] == near(certified["between"])
    assert residual["sum_of_squares"] == near(certified["within"])
    assert residual["mean_square"] == near(certified["error"])
    assert term["variation_share"] == near(100 * certified["r_squared"])
