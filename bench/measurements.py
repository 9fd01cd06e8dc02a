"""Writes docs/measurements.md from the files in bench/results: prints it, or with --check compares it.

Exit status 1 if `--check` finds the page out of date. Ages depend on the commit at which the page was
written; `--check` does not compare them.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "measurements.md"

#: heading → scripts, in the order of the page; the file of a script has its name, further ones `-WORD`
PARTS = {
    "Tracing": (
        "trace_overhead",
        "trace_start",
        "trace_device_bound",
        "trace_rate",
        "trace_coverage",
        "flush_share",
        "trace_classifier",
        "trace_intervals",
        "trace_analysis",
        "trace_figures",
        "trace_hostile",
    ),
    "Hostile and foreign input": ("fuzz", "imports"),
    "Emulated disks": (
        "disk_ceiling",
        "transports",
        "time_scales",
        "crosscheck",
        "degraded",
        "application",
        "validation_grid",
        "throttles",
        "disk_changes",
        "disk_files",
        "ssd_patterns",
        "ssd_schedulers",
        "storage_layout",
    ),
    "Nodes, links, and systems on them": (
        "nodes",
        "network",
        "remote_cluster",
        "load_balance",
        "hadoop",
        "systems_on_disks",
    ),
    "Monitoring": (
        "ingest",
        "export",
        "scraper",
        "sampler",
        "sampler_hour",
        "kills",
        "live_delay",
        "swift_monitor",
        "monitored_shards",
        "monitored_swarm",
        "monitored_offsets",
        "scenarios",
    ),
    "Designs and their analysis": (
        "designs",
        "design_claims",
        "effect_intervals",
        "answers_under_load",
        "identical",
        "sequential",
        "nfs_wan",
    ),
    "Studies and prediction": (
        "conductor",
        "demo",
        "postgres",
        "simulator",
        "check",
        "published",
        "predictions",
        "stores",
        "stores_cephfs",
        "workflow_runner",
        "workflow_patterns",
        "dedup_throughput",
        "dedup_controller",
        "dedup_peers",
        "dedup",
        "cluster_placement",
        "cluster_start",
        "blackbox",
    ),
}

#: heading → further paths whose changes make a result stale, besides the script
MEASURED = {
    "Tracing": ("crates/probe", "crates/pattern", "python/penstock/observe"),
    "Hostile and foreign input": (
        "crates/tracefmt",
        "python/penstock/spec",
        "python/penstock/archive",
    ),
    "Emulated disks": ("crates/station", "crates/disk", "python/penstock/emulate"),
    "Nodes, links, and systems on them": (
        "crates/disk",
        "crates/relay",
        "crates/station",
        "python/penstock/emulate",
    ),
    "Monitoring": ("crates/points", "crates/sampler", "python/penstock/parts/monitoring"),
    "Designs and their analysis": ("python/penstock/analyse", "python/penstock/design"),
    "Studies and prediction": (
        "crates/chunks",
        "crates/queuenet",
        "crates/station",
        "python/penstock/campaign",
        "python/penstock/parts/dedup",
        "python/penstock/parts/prediction",
        "python/penstock/study_prediction",
    ),
}
#: further paths of studies whose folders have other names
FOLDERS = {
    "dedup": ("studies/dedup_study",),
    "hadoop": ("studies/heterogeneous",),
    "load_balance": ("studies/heterogeneous",),
    "monitored_offsets": ("studies/monitored",),
    "monitored_shards": ("studies/monitored",),
    "monitored_swarm": ("studies/monitored",),
    "postgres": ("examples/postgres.study.yaml", "tests/golden"),
    "predictions": ("studies/prediction_study",),
    "remote_cluster": ("python/penstock/parts/remote",),
    "scenarios": ("studies/swift",),
    "ssd_patterns": ("studies/tables",),
    "ssd_schedulers": ("python/penstock/parts/guests",),
    "systems_on_disks": ("studies/systems",),
    "workflow_patterns": ("studies/patterns_study", "python/penstock/parts/stores"),
}
#: age of a result on the page, and their total
AGE = re.compile(r" · (?:\d+ commits? since|age unknown)(?:, \*stale\*)?")
AGES = re.compile(r"^Of \d+ results \d+ are \*stale\*.*\n\n?", re.MULTILINE)

HEAD = """\
# Measurements

Made by `python bench/measurements.py > docs/measurements.md` of the files in `bench/results/`, which
benches and studies write themselves with `--record`. A figure is the median of `n`, in brackets the
smallest and the largest or what is named there. A goal is **met**, **missed**, or *undecided*: its 95 %
interval reaches over the goal, or too little could be measured. A claim is **not measured** if a treatment
that it needs has no valid run. The age of a result is the number of later commits to what it measures and
to its script; a result with such commits is *stale*. "Planted" is a failure made on purpose,
which the same command must find. Files marked as recorded by hand hold what the README said at the commit
named, of the programs as they were then.
"""

_UNITS = {"1/s": "/s", "1": "", "us": "µs", "B/s": "B/s"}
VERDICTS = {
    "met": "met",
    "missed": "**missed**",
    "undecided": "*undecided*",
    "not measured": "**not measured**",
    "not comparable": "*not comparable*",
}

Result = dict[str, Any]


def results(folder: Path) -> dict[str, list[Result]]:
    """The files of each script."""
    by_script: dict[str, list[Result]] = {}
    for file in sorted(folder.glob("*.json")):
        by_script.setdefault(file.stem.split("-")[0], []).append(
            json.loads(file.read_text("utf-8"))
        )
    return by_script


def paths_of(name: str) -> tuple[str, ...]:
    """Paths of a script and of the code that it measures."""
    (heading,) = (heading for heading, names in PARTS.items() if name in names)
    own = [f"{folder}/{name}{end}" for folder in ("bench", "studies") for end in (".py", "")]
    # directory and study files
    own.append(f"studies/{name.replace('_', '-')}*")
    return (*own, *FOLDERS.get(name, ()), *MEASURED[heading])


@functools.cache
def commits_since(commit: str, paths: tuple[str, ...]) -> int | None:
    """Number of later commits that touch one of the paths; None if git does not know the commit."""
    line = ["git", "-C", str(ROOT), "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None


def age_of(name: str, result: Result) -> int | None:
    """Age of a result in commits; None if it is unknown."""
    return commits_since(result["commit"].split()[0], paths_of(name))


def without_ages(text: str) -> str:
    """The page without the parts that depend on the commit at which it was written."""
    return AGES.sub("", AGE.sub("", text))


def _age_text(age: int | None) -> str:
    if age is None:
        return " · age unknown, *stale*"
    stale = ", *stale*" if age else ""
    return f" · {age} commit{'' if age == 1 else 's'} since{stale}"


def page(folder: Path = RESULTS, age: Callable[[str, Result], int | None] | None = None) -> str:
    """The complete page, with the ages by `age`. ValueError for a file without a place on the page."""
    by_script = results(folder)
    placed = {name for names in PARTS.values() for name in names}
    if unplaced := sorted(set(by_script) - placed):
        raise ValueError(f"{unplaced[0]}: in no part of {Path(__file__).name}")
    parts = []
    for heading, names in PARTS.items():
        sections, title = [], ""
        for name, result in (
            (script, result) for script in names for result in by_script.get(script, ())
        ):
            if result["title"] != title:
                title = result["title"]
                sections.append(f"### {title.rstrip('.')}\n")
            sections.append(section(result, _age_text(age(name, result)) if age else ""))
        if sections:
            parts.append(f"## {heading}\n\n" + "\n".join(sections))
    all_results = [result for name in placed for result in by_script.get(name, ())]
    total = []
    if age:
        ages = [age(name, result) for name in sorted(placed) for result in by_script.get(name, ())]
        stale = sum(commits is None or commits > 0 for commits in ages)
        total = [f"Of {len(ages)} results {stale} are *stale*.\n"]
    return "\n".join([HEAD, *total, summary(all_results), *parts])


def summary(recorded: list[Result]) -> str:
    """Number of goals that are met, and each one that is not."""
    goals = [(result, row) for result in recorded for row in quoted(result) if row.get("verdict")]
    count = Counter(row["verdict"] for _, row in goals)
    lines = [
        f"Of {len(goals)} goals {count['met']} are met, {count['missed']} **missed**, "
        f"{count['undecided']} *undecided* and {count['not measured']} **not measured**. Missed are:\n"
    ]
    lines += sorted(
        f"- {row['case']}: {_metric(row)}: {figure(row)}, goal {row['bar']} (`{result['command']}`)"
        for result, row in goals
        if row["verdict"] == "missed"
    )
    return "\n".join(lines) + "\n"


def quoted(result: Result) -> list[dict[str, Any]]:
    """Rows that the page shows."""
    rows: list[dict[str, Any]] = result["rows"]
    return [row for row in rows if row.get("quoted")] or rows


def section(result: Result, age: str = "") -> str:
    """One file: its command, host and date, the planted failures, the rows."""
    rows = quoted(result)
    has_goals = any(row.get("bar") for row in rows)
    lines = [f"**`{result['command']}`** · {_origin(result)}{age}\n"]
    if result.get("about"):
        lines.append(f"{result['about']}\n")
    lines.append(f"Planted: {_planted(result)}.\n")
    lines += ["| case | what | figure |" + (" goal | |" if has_goals else "")]
    lines += ["|---|---|---|" + ("---|---|" if has_goals else "")]
    for row in rows:
        cells = [row["case"], _metric(row), figure(row)]
        if has_goals:
            cells += [row.get("bar", ""), _verdict(row, rows)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _origin(result: Result) -> str:
    host = result["host"]
    memory = f"{host['memory_bytes'] / (1 << 30):.0f} GiB"
    host_text = f"{host['cpus_allowed']} processors, {memory}, Linux {host['kernel']}"
    if host.get("load_average"):
        host_text += f", load {host['load_average'][0]:.1f}"
    recorded = "" if result["recorded"] == "by the command" else f" · recorded {result['recorded']}"
    return f"{result['date']}, commit {result['commit']} · {host_text}{recorded}"


def _planted(result: Result) -> str:
    outcomes = {True: "found", False: "**not found**", None: "could not be told"}
    failures = [f"{each['what']}: {outcomes[each['found']]}" for each in result["planted"]]
    return "; ".join(failures) or "nothing, at that time"


def _verdict(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The verdict; for a goal on the median of seeds also the share of seeds that reach it."""
    verdict = VERDICTS.get(row.get("verdict", ""), "")
    case = (row["case"], row.get("engine"))
    for other_row in rows:
        same_case = (other_row["case"], other_row.get("engine")) == case
        if (
            verdict
            and same_case
            and other_row["metric"].startswith(f"seeds with a {row['metric']} of")
        ):
            verdict += f" by the median; by {figure(other_row)} of seeds"
    return verdict


def _metric(row: dict[str, Any]) -> str:
    return ": ".join(part for part in (row.get("engine"), row["metric"]) if part)


def figure(row: dict[str, Any]) -> str:
    """Value, unit, and its range in brackets."""
    unit = _UNITS.get(row["unit"], row["unit"])
    text = f"{number(row['value'])} {unit}".strip()
    n = row.get("n")
    inside = []
    if row.get("low") is not None and not row["low"] == row["value"] == row["high"]:
        ends = f"{number(row['low'])} to {number(row['high'])}"
        inside.append(f"{row['spread']} {ends}" if row.get("spread") else ends)
    if n is not None and not isinstance(row["value"], str):
        inside.append(f"n = {n:,}")
    return f"{text} ({', '.join(inside)})" if inside else text


def number(value: float | str) -> str:
    """Four digits, with separators of thousands."""
    return value if isinstance(value, str) else format(float(f"{value:.4g}"), ",.12g")


def main() -> int:
    """Print the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare docs/measurements.md")
    arguments = parser.parse_args()
    if not arguments.check:
        print(page(age=age_of), end="")
        return 0
    if without_ages(PAGE.read_text("utf-8")) == page():
        return 0
    print(
        "docs/measurements.md is out of date: python bench/measurements.py > docs/measurements.md",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
