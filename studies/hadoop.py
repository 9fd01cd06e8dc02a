"""Map-reduce and TeraSort on nodes with different disks: the published Hadoop study, scaled.

`studies/hadoop.py [job] [terasort]` runs `studies/hadoop-job.study.yaml` (a job of this project, on six
nodes) and `studies/hadoop-terasort.study.yaml` (HDFS, YARN and MapReduce as packaged, on four), compares them
with the published text and draws the times as SVG. Needs root; TeraSort also Maven and Java. `--quick`: the
job with an eighth of the data and one replicate. Runs without a valid certificate are excluded unless
`--invalid` is given.

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
    """Execute the missing runs of one study."""
    out = root / name
    overrides = ["--quick", "--set", "design.replicates=1"] if quick else []
    run_study(HERE / f"hadoop-{name}.study.yaml", out, overrides)


def show(name: str, runs: list[Run]) -> None:
    """One row per setting: time, prediction, straggler."""
    table = Table(box=None, pad_edge=False, title=name)
    for heading in ("storage", "setting", "n", "valid", "time s", "predicted s", "straggler"):
        table.add_column(heading, justify="right" if heading in ("n", "valid") else "left")
    table.add_column("last reducer")
    for storage in dict.fromkeys(r.storage for r in runs):
        for setting in SETTINGS:
            setting_runs = [r for r in runs if (r.storage, r.setting) == (storage, setting)]
            if not setting_runs:
                continue
            table.add_row(
                storage,
                setting,
                str(len(setting_runs)),
                str(sum(r.valid for r in setting_runs)),
                str(mean_interval(r.time_s for r in setting_runs)),
                str(mean_interval(r.predicted_s for r in setting_runs))
                if setting_runs[0].predicted_s
                else "",
                ", ".join(sorted({r.straggler for r in setting_runs})),
                ", ".join(sorted({r.last_reducer for r in setting_runs})),
            )
    Console(width=120, highlight=False).print(table)


def claims_of(name: str, runs: list[Run]) -> list[Claim]:
    """Claims of one study."""
    return order_claims(name, runs) + (job_claims(runs) if name == "job" else [])


def main() -> int:
    """Exit status: 0 every claim is met, 1 something failed, 3 a claim is not met or not measured."""
    options = running.options(__doc__, "hadoop", "little data, one replicate")
    options.add_argument("study", nargs="*", help=f"of {', '.join(STUDIES)}; default both")
    arguments = options.parse_args()
    if unknown := [s for s in arguments.study if s not in STUDIES]:
        options.error(f"found the study {unknown[0]}; expected {' or '.join(STUDIES)}")
    out: Path = arguments.out.resolve()
    claims: list[Claim] = []
    rows: list[Run] = []
    recorded: list[record.Row] = []
    detected: dict[str, bool | None] = {}
    try:
        for name in arguments.study or STUDIES:
            if not arguments.compare:
                measure(name, out, arguments.quick)
            read = job_runs if name == "job" else terasort_runs
            runs, excluded = read(out / name, invalid=arguments.invalid)
            for reason in excluded:
                print(f"hadoop: {name}: not valid: {reason[:160]}", file=sys.stderr)
            study_claims = claims_of(name, [r for r in runs if r.valid])
            if arguments.invalid:
                study_claims = checks.with_invalid(study_claims, claims_of(name, runs))
            claims += study_claims
            rows += runs
            detected[f"{name}: half-half a third faster"] = detected_in(name, runs)
            recorded += times(name, runs) + checks.rows(study_claims)
            valid = sum(r.valid for r in runs)
            total = valid + len(excluded)
            recorded.append(record.share(name, "", "runs valid", valid, total))
            if runs:
                with style.look():
                    folder = arguments.figures or out
                    save(times_figure(runs), folder / f"hadoop-{name}.svg")
                    save(ratios_figure(runs), folder / f"hadoop-{name}-published.svg")
                if not arguments.json:
                    show(name, runs)
    except PenstockError as error:
        print(f"hadoop: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        document = {"claims": checks.as_json(claims), "runs": [vars(r) for r in rows]}
        print(json.dumps(document))
    else:
        checks.show(claims)
    record.keep(arguments.record, recorded, detected)
    return checks.finish("hadoop", claims, detected)


def times(name: str, runs: list[Run]) -> list[record.Row]:
    """Mean time of every setting with its interval."""
    rows = []
    for storage, setting in dict.fromkeys((r.storage, r.setting) for r in runs):
        times_s = [r.time_s for r in runs if (r.storage, r.setting) == (storage, setting)]
        mean = mean_interval(times_s)
        time_row = record.row(f"{name}, {storage}, {setting}", "", "time", times_s, "s")
        if len(times_s) > 1:
            time_row |= {"low": mean.low, "high": mean.high, "spread": record.INTERVAL}
        rows.append({**time_row, "value": mean.value})
    for storage, ratio, published in slow_node_ratios(name, runs):
        evidence = f"{ratio}, published {published:.2f}"
        rows.append(
            record.claim(f"{name}, {storage}", "one-slow over all-half", evidence, "", None)
        )
    return rows


def detected_in(name: str, measured: list[Run]) -> bool | None:
    """True if the planted times fail a criterion that the real ones meet; None if those meet none."""

    def met(runs: list[Run]) -> set[tuple[str, str, str]]:
        criteria = set()
        for claim_ in order_claims(name, runs):
            if claim_.result is Result.MET:
                criteria.add((claim_.of, claim_.wording, claim_.criterion))
            if claim_.relaxed is not None and claim_.relaxed.result is Result.MET:
                criteria.add((claim_.of, claim_.wording, claim_.relaxed.criterion))
        return criteria

    real = met(measured)
    if not any("half-half" in wording for _, wording, _ in real):
        return None
    return bool(real - met(planted(measured)))


if __name__ == "__main__":
    sys.exit(main())
