"""Levels that are mappings: substitution into templates, and positions of errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.study.load import load_study
from penstock.study.resolve import resolve

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "failing-disk.study.yaml"


def study(folder: Path, *, levels: str, features: str = '"{fault}"', command: str = "true") -> Path:
    path = folder / "s.study.yaml"
    path.write_text(
        f"""penstock: 1
name: s
question: How much does a fault cost?
factors:
  fault:
    levels:
{levels}
design: {{kind: full, replicates: 2, seed: 1}}
platform:
  nodes: [{{name: n, disks: [{{name: d, profile: sata-ssd, features: {features}}}]}}]
workload: {{command: "{command} > {{d}}/out"}}
responses: {{time: {{from: wall_s, unit: s, better: lower}}}}
"""
    )
    return path


def test_example_changes_the_disk_by_level() -> None:
    loaded = load_study(EXAMPLE)
    patches = {}
    for level in loaded.factors[0].levels:
        cluster = resolve(loaded, {"fault": level.name}).cluster
        assert cluster is not None
        patches[level.name] = [event.patch for event in cluster.events]
    assert patches["healthy"] == []
    assert patches["slow"] == [{"slow": {"factor": 10}}]
    assert patches["hang"][0]["slow"]["stall"] == {"period_s": 3600, "length_s": 1}
    assert patches["errors"][0]["faults"][0]["error"] == "EIO"
    assert patches["full"] == [{"full": True}]


def test_level_mapping_replaces_the_template(tmp_path: Path) -> None:
    loaded = load_study(
        study(tmp_path, levels="      none: {}\n      one: {servers: 1, cache: false}")
    )
    first, second = (resolve(loaded, {"fault": name}) for name in ("none", "one"))
    patches = [run.cluster.nodes[0].disks[0].patch for run in (first, second) if run.cluster]
    assert patches == [{}, {"servers": 1, "cache": False}]


@pytest.mark.parametrize(
    ("levels", "replaced", "line", "text"),
    [
        ("      none: {}\n      hang: {slow: {stall: {length: 5 parsecs, period: 1s}}}", {}, 8, "5 parsecs"),
        ("      none: {}\n      full: {fulll: true}", {}, 8, "did you mean 'full'?"),
        ("      none: off\n      full: {full: true}", {}, 7, "expected a mapping"),
        ("      none: {}\n      full: {full: true}", {"command": "echo {fault}"}, 12, "mappings or lists"),
        ("      none: {}\n      full: {full: true}", {"features": '"x{fault}"'}, 11, "mappings or lists"),
        ("      none: {}\n      bad: {bad_space: {mode: error}}", {}, 8, "share"),
        ("      none: {}\n      same: {}", {}, 8, "already"),
    ],
)  # fmt: skip
def test_errors_have_the_position_of_the_level_or_template(
    tmp_path: Path, levels: str, replaced: dict[str, str], line: int, text: str
) -> None:
    path = study(tmp_path, levels=levels, **replaced)
    with pytest.raises(BadInput) as error:
        load_study(path)
    assert f"s.study.yaml:{line}:" in str(error.value)
    assert text in str(error.value)


def test_mapping_in_a_list_of_levels_needs_a_name(tmp_path: Path) -> None:
    path = study(tmp_path, levels="      - {}\n      - {full: true}")
    with pytest.raises(BadInput, match="a mapping has a name"):
        load_study(path)


def test_zero_share_of_bad_space_removes_it(tmp_path: Path) -> None:
    levels = "      none: {bad_space: {share: 0%}}\n      some: {bad_space: {share: 1%}}"
    loaded = load_study(study(tmp_path, levels=levels))
    shares = []
    for name in ("none", "some"):
        cluster = resolve(loaded, {"fault": name}).cluster
        assert cluster is not None
        shares.append(cluster.nodes[0].disks[0].patch["bad_space"])
    assert shares == [None, {"share": 0.01, "mode": "error"}]
