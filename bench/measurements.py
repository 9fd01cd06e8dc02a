"""Makes docs/measurements.md of the files in bench/results: prints it, or with --check compares it.

Exit status 1 if `--check` finds the page out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "measurements.md"

#: heading → scripts, in the order of the page; a script's file has its name, and `-WORD` where there are more
PARTS = {
    "Tracing": (
        "trace_overhead",
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
        "application",
        "validation_grid",
        "throttles",
        "disk_changes",
        "disk_files",
        "ssd_patterns",
        "storage_layout",
    ),
    "Nodes, links, and systems on them": (
        "nodes",
        "network",
        "load_balance",
        "hadoop",
        "systems_on_disks",
    ),
    "Monitoring": (
        "ingest",
        "export",
        "scraper",
        "sampler",
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
        "stores",
        "stores_cephfs",
        "blackbox",
    ),
}

HEAD = """\
# Measurements

Made by `python bench/measurements.py > docs/measurements.md` of the files in `bench/results/`, which
benches and studies write themselves with `--record`. A figure is the median of `n`, in brackets the
smallest and the largest or what is named there. A goal is **met**, **missed**, or *undecided*: its 95 %
interval reaches over the goal, or too little could be measured. "Planted" is a failure made on purpose,
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


def page(folder: Path = RESULTS) -> str:
    """The whole page. Raises ValueError for a file that has no place on it."""
    found = results(folder)
    known = {name for names in PARTS.values() for name in names}
    if odd := sorted(set(found) - known):
        raise ValueError(f"{odd[0]}: in no part of {Path(__file__).name}")
    parts = []
    for heading, names in PARTS.items():
        sections, title = [], ""
        for one in (one for name in names for one in found.get(name, ())):
            if one["title"] != title:
                title = one["title"]
                sections.append(f"### {title.rstrip('.')}\n")
            sections.append(section(one))
        if sections:
            parts.append(f"## {heading}\n\n" + "\n".join(sections))
    everything = [one for name in known for one in found.get(name, ())]
    return "\n".join([HEAD, summary(everything), *parts])


def summary(found: list[Result]) -> str:
    """How many goals are met, and each that is not."""
    judged = [(one, row) for one in found for row in quoted(one) if row.get("verdict")]
    count = Counter(row["verdict"] for _, row in judged)
    lines = [
        f"Of {len(judged)} goals {count['met']} are met, {count['missed']} **missed** and "
        f"{count['undecided']} *undecided*. Missed are:\n"
    ]
    lines += sorted(
        f"- {row['case']}: {_what(row)}: {figure(row)}, goal {row['bar']} (`{one['command']}`)"
        for one, row in judged
        if row["verdict"] == "missed"
    )
    return "\n".join(lines) + "\n"


def quoted(one: Result) -> list[dict[str, Any]]:
    """The rows that stand on the page."""
    rows: list[dict[str, Any]] = one["rows"]
    return [row for row in rows if row.get("quoted")] or rows


def section(one: Result) -> str:
    """One file: its command, where and when, what was planted, the rows."""
    rows = quoted(one)
    judged = any(row.get("bar") for row in rows)
    lines = [f"**`{one['command']}`** · {_origin(one)}\n"]
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
    """The verdict; of one by the median of seeds also how many of them keep to the bar by themselves."""
    said = VERDICTS.get(row.get("verdict", ""), "")
    case = (row["case"], row.get("engine"))
    for one in rows:
        mine = (one["case"], one.get("engine")) == case
        if said and mine and one["metric"].startswith(f"seeds with a {row['metric']} of"):
            said += f" by the median; by {figure(one)} of seeds"
    return said


def _what(row: dict[str, Any]) -> str:
    return ": ".join(part for part in (row.get("engine"), row["metric"]) if part)


def figure(row: dict[str, Any]) -> str:
    """Value, unit, and in brackets what it may vary by."""
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
    """Four digits, thousands apart."""
    return value if isinstance(value, str) else format(float(f"{value:.4g}"), ",.12g")


def main() -> int:
    """Prints the page, or compares it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare docs/measurements.md")
    asked = parser.parse_args()
    text = page()
    if not asked.check:
        print(text, end="")
        return 0
    if PAGE.read_text("utf-8") == text:
        return 0
    print(
        "docs/measurements.md is out of date: python bench/measurements.py > docs/measurements.md",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
