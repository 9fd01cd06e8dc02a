"""Storage layout: cost of reading in another order than the file's in real storage engines, and the remedy.

`studies/storage_layout.py` makes the runs of `studies/storage-layout-*.study.yaml` (WiredTiger, PostgreSQL,
tables with a growing share of keys out of order, and Cassandra as an example without the problem; names
select some of them) on emulated disks, compares them with the published case and draws its figures as SVG.
Existing results are not measured again. `--quick`: one replicate of small tables, a few minutes. Needs root.
The published case is section 4.3 of A. Saif, Experimental Methods for the Evaluation of Big Data Systems
(2020): MongoDB and Cassandra.

Planted failure: the same runs with the scans before and after the rewriting exchanged, which must be
reported. Exit status 3 if a claim is not met or not measured (a treatment without a valid run), 1 if
something failed or the planted failure is not detected.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from penstock.errors import PenstockError
from penstock.report import style

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "blackbox"))
sys.path.insert(0, str(HERE / "storage-layout"))
sys.path.insert(0, str(HERE.parent))

from disks import run_study  # noqa: E402
from drawing import disorder, offsets  # noqa: E402
from layout_claims import disks_of, layout_claims, shuffled_claims  # noqa: E402
from nodes import Build, build_offsets, build_table, builds, cassandra_claims  # noqa: E402
from steps import Step, mean_interval, steps  # noqa: E402

from bench import record  # noqa: E402
from penstock.study.load import load_study  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim, Result  # noqa: E402
from studies.common.options import options as shared_options  # noqa: E402
from studies.common.published_figures import save  # noqa: E402

STUDIES = ("wiredtiger", "postgres", "shuffled", "cassandra")


def measure(name: str, out: Path, quick: bool) -> None:
    """Execute the missing runs of one study."""
    overrides = ["--quick", "--set", "design.replicates=1"] if quick else []
    run_study(HERE / f"storage-layout-{name}.study.yaml", out, overrides)


def loads() -> list[str]:
    """Shares of shuffled keys of the study."""
    study = load_study(HERE / "storage-layout-shuffled.study.yaml")
    return [level.name for level in study.factor("shuffled").levels]


def show(name: str, runs: Path, file: Path, quiet: bool) -> list[Claim]:
    """Draw the figure of one study, print the times of its runs unless `quiet`, return its claims."""
    figure: Figure | None = None
    with style.look():
        if name == "cassandra":
            valid_builds, excluded = builds(runs)
            claims = cassandra_claims(valid_builds)
            figure = build_offsets(runs, valid_builds) if valid_builds else None
            if valid_builds and not quiet:
                show_builds(valid_builds)
        else:
            valid_steps, excluded = steps(runs)
            if name == "shuffled":
                claims = shuffled_claims(valid_steps, loads())
                figure = disorder(valid_steps) if valid_steps else None
            else:
                claims = layout_claims(name, valid_steps)
                figure = offsets(runs, valid_steps) if valid_steps else None
            if valid_steps and not quiet:
                show_steps(name, valid_steps)
        if figure is not None:
            save(figure, file)
    for reason in excluded:
        print(f"storage-layout: {name}: excluded: {reason}", file=sys.stderr)
    return claims


def exchanged(valid_steps: list[Step]) -> list[Step]:
    """The planted failure: scans before and after the rewriting exchanged."""
    opposite = {"scan-loaded": "scan-rewritten", "scan-rewritten": "scan-loaded"}
    return [
        replace(s, levels={**s.levels, "step": opposite.get(s.levels["step"], s.levels["step"])})
        for s in valid_steps
    ]


def swap_detected(name: str, runs: Path) -> bool | None:
    """True if exchanged scans fail a claim; None if a study has none of them, or no valid run."""
    if name not in ("wiredtiger", "postgres"):
        return None
    valid_steps, _ = steps(runs)
    if not {"scan-loaded", "scan-rewritten"} <= {s.levels["step"] for s in valid_steps}:
        return None
    return any(c.result is Result.NOT_MET for c in layout_claims(name, exchanged(valid_steps)))


def show_builds(valid_builds: list[Build]) -> None:
    """One row per setting of Cassandra."""
    table = Table(box=None, pad_edge=False, title="cassandra (disks three times as slow as real)")
    for heading in ("setting", "time s", "processor s", "disk busy", "least consecutive"):
        table.add_column(heading, justify="left" if heading == "setting" else "right")
    for row in build_table(valid_builds):
        table.add_row(*row)
    Console(width=110, highlight=False).print(table)


def show_steps(name: str, valid_steps: list[Step]) -> None:
    """One row per treatment: time with its interval and the verdict on the reads of the table."""
    table = Table(box=None, pad_edge=False, title=f"{name} (times four times those of the disks)")
    for heading in (
        "disk",
        "step",
        "time s",
        "reads",
        "median",
        "consecutive",
        "forward",
        "verdict",
    ):
        table.add_column(heading, justify="left" if heading in ("disk", "step") else "right")
    last = "shuffled" if name == "shuffled" else "step"
    for disk in disks_of(valid_steps):
        for level in dict.fromkeys(s.levels[last] for s in sorted(valid_steps, key=_order)):
            level_steps = [
                s for s in valid_steps if s.levels["disk"] == disk and s.levels[last] == level
            ]
            if not level_steps:
                continue
            table.add_row(
                disk,
                level,
                str(mean_interval(s.time_s for s in level_steps)),
                str(level_steps[0].requests),
                f"{level_steps[0].median_size_bytes / 1024:.3g} KiB",
                f"{mean_interval(s.consecutive_share for s in level_steps).value:.3f}",
                f"{mean_interval(s.forward_share for s in level_steps).value:.3f}",
                "/".join(sorted({s.verdict for s in level_steps})),
            )
    Console(width=110, highlight=False).print(table)


def _order(step: Step) -> float:
    return float(step.levels.get("shuffled", 0))


def main() -> int:
    """Exit status: 0 every claim is met, 1 something failed, 3 a claim is not met or not measured."""
    quick = "small tables, one replicate"
    options = shared_options(__doc__.splitlines()[0], "storage-layout", quick, figures=True)
    options.add_argument("study", nargs="*", help=f"of {', '.join(STUDIES)}; default all")
    arguments = options.parse_args()
    if unknown := [s for s in arguments.study if s not in STUDIES]:
        options.error(f"found the study {unknown[0]}; expected {', '.join(STUDIES)}")
    out: Path = arguments.out.resolve()
    figures: Path = arguments.figures or out
    claims: list[Claim] = []
    planted: dict[str, bool | None] = {}
    try:
        for name in arguments.study or STUDIES:
            runs = out / name
            if not arguments.compare:
                print(f"storage-layout: {name}", file=sys.stderr)
                measure(name, runs, arguments.quick)
            claims += show(name, runs, figures / f"storage-layout-{name}.svg", arguments.json)
            planted[f"{name}: scans exchanged"] = swap_detected(name, runs)
    except PenstockError as error:
        print(f"storage-layout: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps({"claims": checks.as_json(claims)}))
    else:
        checks.show(claims)
    planted = {failure: detected for failure, detected in planted.items() if detected is not None}
    record.keep(arguments.record, checks.rows(claims), planted)
    return checks.finish("storage-layout", claims, planted)


if __name__ == "__main__":
    sys.exit(main())
