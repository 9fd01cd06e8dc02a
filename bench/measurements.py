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
    found: dict[str, list[Result]] = {}
    for file in sorted(folder.glob("*.json")):
        found.setdefault(file.stem.split("-")[0], []).append(json.loads(file.read_text("utf-8")))
    return found


def paths_of(name: str) -> tuple[str, ...]:
    """Paths of a script and of the code that it measures."""
    (heading,) = (heading for heading, names in PARTS.items() if name in names)
    own = [f"{folder}/{name}{end}" for folder in ("bench", "studies") for end in (".py", "")]
    # folder and study files
    own.append(f"studies/{name.replace('_', '-')}*")
    return (*own, *FOLDERS.get(name, ()), *MEASURED[heading])


@functools.cache
def commits_since(commit: str, paths: tuple[str, ...]) -> int | None:
    """Number of later commits that touch one of the paths; None if git does not know the commit."""
    line = ["git", "-C", str(ROOT), "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None


def age_of(name: str, one: Result) -> int | None:
    """Age of a result in commits; None if it is unknown."""
    return commits_since(one["commit"].split()[0], paths_of(name))


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
    found = results(folder)
    known = {name for names in PARTS.values() for name in names}
    if odd := sorted(set(found) - known):
        raise ValueError(f"{odd[0]}: in no part of {Path(__file__).name}")
    parts = []
    for heading, names in PARTS.items():
        sections, title = [], ""
        for name, one in ((script, one) for script in names for one in found.get(script, ())):
            if one["title"] != title:
                title = one["title"]
                sections.append(f"### {title.rstrip('.')}\n")
            sections.append(section(one, _age_text(age(name, one)) if age else ""))
        if sections:
            parts.append(f"## {heading}\n\n" + "\n".join(sections))
    everything = [one for name in known for one in found.get(name, ())]
    total = []
    if age:
        ages = [age(name, one) for name in sorted(known) for one in found.get(name, ())]
        stale = sum(one is None or one > 0 for one in ages)
        total = [f"Of {len(ages)} results {stale} are *stale*.\n"]
    return "\n".join([HEAD, *total, summary(everything), *parts])


def summary(found: list[Result]) -> str:
    """Number of goals that are met, and each one that is not."""
    judged = [(one, row) for one in found for row in quoted(one) if row.get("verdict")]
    count = Counter(row["verdict"] for _, row in judged)
    lines = [
        f"Of {len(judged)} goals {count['met']} are met, {count['missed']} **missed**, "
        f"{count['undecided']} *undecided* and {count['not measured']} **not measured**. Missed are:\n"
    ]
    lines += sorted(
        f"- {row['case']}: {_what(row)}: {figure(row)}, goal {row['bar']} (`{one['command']}`)"
        for one, row in judged
        if row["verdict"] == "missed"
    )
    return "\n".join(lines) + "\n"


def quoted(one: Result) -> list[dict[str, Any]]:
    """Rows that the page shows."""
    rows: list[dict[str, Any]] = one["rows"]
    return [row for row in rows if row.get("quoted")] or rows


def section(one: Result, age: str = "") -> str:
    """One file: its command, host and date, the planted failures, the rows."""
    rows = quoted(one)
    judged = any(row.get("bar") for row in rows)
    lines = [f"**`{one['command']}`** · {_origin(one)}{age}\n"]
    if one.get("about"):
        lines.append(f"{one['about']}\n")
    lines.append(f"Planted: {_planted(one)}.\n")
    lines += ["| case | what | figure |" + (" goal | |" if judged else "")]
    lines += ["|---|---|---|" + ("---|---|" if judged else "")]
    for row in rows:
        cells = [row["case"], _what(row), figure(row)]
        if judged:
            cells += [row.get("bar", ""), _verdict(row, rows)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _origin(one: Result) -> str:
    host = one["host"]
    memory = f"{host['memory_bytes'] / (1 << 30):.0f} GiB"
    where = f"{host['cpus_allowed']} processors, {memory}, Linux {host['kernel']}"
    if host.get("load_average"):
        where += f", load {host['load_average'][0]:.1f}"
    said = "" if one["recorded"] == "by the command" else f" · recorded {one['recorded']}"
    return f"{one['date']}, commit {one['commit']} · {where}{said}"


def _planted(one: Result) -> str:
    words = {True: "found", False: "**not found**", None: "could not be told"}
    said = [f"{each['what']}: {words[each['found']]}" for each in one["planted"]]
    return "; ".join(said) or "nothing, at that time"


def _verdict(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The verdict; for a goal on the median of seeds also the share of seeds that reach it."""
    verdict = VERDICTS.get(row.get("verdict", ""), "")
    case = (row["case"], row.get("engine"))
    for one in rows:
        same_case = (one["case"], one.get("engine")) == case
        if verdict and same_case and one["metric"].startswith(f"seeds with a {row['metric']} of"):
            verdict += f" by the median; by {figure(one)} of seeds"
    return verdict


def _what(row: dict[str, Any]) -> str:
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
    asked = parser.parse_args()
    if not asked.check:
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
