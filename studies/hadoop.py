"""Map-reduce and TeraSort on nodes with different disks: the published Hadoop study, scaled.

`studies/hadoop.py [job] [terasort]` runs `studies/hadoop-job.study.yaml` (our own job, on six nodes) and
`studies/hadoop-terasort.study.yaml` (HDFS, YARN and MapReduce as packaged, on four), compares them with the
published text and draws the times as SVG. Needs root; TeraSort also Maven and Java. `--quick`: the job with
an eighth of the data and one replicate. Runs without a valid certificate are excluded unless `--invalid` is
given.

Planted failure: the same runs with a third taken off the times of one setting, which must be reported. Exit
status 3 if a claim is not met, undecided or not measured (a treatment without a valid run), 1 if something
failed or the planted failure is not detected. The published study: A. Saif, Experimental Methods for the
Evaluation of Big Data Systems (2020), section 3.4.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.errors import PenstockError
from penstock.report import style

HERE = Path(__file__).resolve().parent
for part in ("blackbox", "storage-layout", "heterogeneous"):
    sys.path.insert(0, str(HERE / part))
sys.path.insert(0, str(HERE.parent))

import running  # noqa: E402
from disks import run_study  # noqa: E402
from hadoop_claims import (  # noqa: E402
    job_claims,
    order_claims,
    planted,
    ratios_figure,
    slow_node_ratios,
    times_figure,
)
from jobs import Run, job_runs, terasort_runs  # noqa: E402
from settings import SETTINGS  # noqa: E402
from steps import mean_interval  # noqa: E402

from bench import record  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim, Result  # noqa: E402
from studies.common.published_figures import save  # noqa: E402

STUDIES = ("job", "terasort")


def measure(name: str, root: Path, quick: bool) -> None:
    """Make the missing runs of one study."""
    out = root / name
    words = ["--quick", "--set", "design.replicates=1"] if quick else []
    run_study(HERE / f"hadoop-{name}.study.yaml", out, words)


def show(name: str, found: list[Run]) -> None:
    """One row per setting: time, prediction, straggler."""
    table = Table(box=None, pad_edge=False, title=name)
    for heading in ("storage", "setting", "n", "valid", "time s", "predicted s", "straggler"):
        table.add_column(heading, justify="right" if heading in ("n", "valid") else "left")
    table.add_column("last reducer")
    for storage in dict.fromkeys(r.storage for r in found):
        for setting in SETTINGS:
            mine = [r for r in found if (r.storage, r.setting) == (storage, setting)]
            if not mine:
                continue
            table.add_row(
                storage,
                setting,
                str(len(mine)),
                str(sum(r.valid for r in mine)),
                str(mean_interval(r.time_s for r in mine)),
                str(mean_interval(r.predicted_s for r in mine)) if mine[0].predicted_s else "",
                ", ".join(sorted({r.straggler for r in mine})),
                ", ".join(sorted({r.last_reducer for r in mine})),
            )
    Console(width=120, highlight=False).print(table)


def claims_of(name: str, found: list[Run]) -> list[Claim]:
    """Claims of one study."""
    return order_claims(name, found) + (job_claims(found) if name == "job" else [])


def main() -> int:
    """Exit status: 0 every claim is met, 1 something failed, 3 a claim is not met or not measured."""
    options = running.options(__doc__, "hadoop", "little data, one replicate")
    options.add_argument("study", nargs="*", help=f"of {', '.join(STUDIES)}; default both")
    given = options.parse_args()
    if odd := [s for s in given.study if s not in STUDIES]:
        options.error(f"found the study {odd[0]}; expected {' or '.join(STUDIES)}")
    out: Path = given.out.resolve()
    claims: list[Claim] = []
    rows: list[Run] = []
    kept_rows: list[record.Row] = []
    noticed: dict[str, bool | None] = {}
    try:
        for name in given.study or STUDIES:
            if not given.compare:
                measure(name, out, given.quick)
            read = job_runs if name == "job" else terasort_runs
            found, left_out = read(out / name, invalid=given.invalid)
            for reason in left_out:
                print(f"hadoop: {name}: not valid: {reason[:160]}", file=sys.stderr)
            mine = claims_of(name, [r for r in found if r.valid])
            if given.invalid:
                mine = checks.with_invalid(mine, claims_of(name, found))
            claims += mine
            rows += found
            noticed[f"{name}: half-half a third faster"] = seen_in(name, found)
            kept_rows += times(name, found) + checks.rows(mine)
            valid = sum(r.valid for r in found)
            total = valid + len(left_out)
            kept_rows.append(record.share(name, "", "runs valid", valid, total))
            if found:
                with style.look():
                    folder = given.figures or out
                    save(times_figure(found), folder / f"hadoop-{name}.svg")
                    save(ratios_figure(found), folder / f"hadoop-{name}-published.svg")
                if not given.json:
                    show(name, found)
    except PenstockError as error:
        print(f"hadoop: {error}", file=sys.stderr)
        return 1
    if given.json:
        document = {"claims": checks.as_json(claims), "runs": [vars(r) for r in rows]}
        print(json.dumps(document))
    else:
        checks.show(claims)
    record.keep(given.record, kept_rows, noticed)
    return checks.finish("hadoop", claims, noticed)


def times(name: str, found: list[Run]) -> list[record.Row]:
    """Mean time of every setting with its interval."""
    rows = []
    for storage, setting in dict.fromkeys((r.storage, r.setting) for r in found):
        mine = [r.time_s for r in found if (r.storage, r.setting) == (storage, setting)]
        mean = mean_interval(mine)
        made = record.row(f"{name}, {storage}, {setting}", "", "time", mine, "s")
        if len(mine) > 1:
            made |= {"low": mean.low, "high": mean.high, "spread": record.INTERVAL}
        rows.append({**made, "value": mean.value})
    for storage, ratio, published in slow_node_ratios(name, found):
        evidence = f"{ratio}, published {published:.2f}"
        rows.append(
            record.claim(f"{name}, {storage}", "one-slow over all-half", evidence, "", None)
        )
    return rows


def seen_in(name: str, found: list[Run]) -> bool | None:
    """True if the planted times fail a criterion that the real ones meet; None if those meet none."""

    def met(runs: list[Run]) -> set[tuple[str, str, str]]:
        criteria = set()
        for one in order_claims(name, runs):
            if one.result is Result.MET:
                criteria.add((one.of, one.wording, one.criterion))
            if one.relaxed is not None and one.relaxed.result is Result.MET:
                criteria.add((one.of, one.wording, one.relaxed.criterion))
        return criteria

    real = met(found)
    if not any("half-half" in wording for _, wording, _ in real):
        return None
    return bool(real - met(planted(found)))


if __name__ == "__main__":
    sys.exit(main())
