"""The notebook of `examples/`, executed cell by cell in a temporary directory."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import penstock

from .tracing import NEEDS_TRACER, with_known_cost

NOTEBOOK = Path(__file__).parents[2] / "examples" / "loader.ipynb"
pytestmark = [
    *NEEDS_TRACER,
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Execute a cell; return the value of its last line, as a notebook does."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.long
@pytest.mark.timed
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STATE", str(with_known_cost(tmp_path / "state")))
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    names: dict[str, Any] = {}
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    values = [
        run_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"
    ]
    plan, _, means, runs, patterns, findings = values
    assert len(plan) == 8
    assert set(plan["disk"]) == {"hdd-7200", "network-volume"}
    campaign = names["campaign"]
    assert isinstance(campaign, penstock.Campaign)
    assert "hoose " in campaign.answer[0]
    assert len(runs) == 8
    best = means[(means["kind"] == "treatment") & (means["rank"] == 1)]["levels"].iloc[0]
    assert json.loads(best)["batch"] == "40"
    assert len(patterns)
    assert isinstance(findings, pd.DataFrame)
    assert campaign.report.is_file()
