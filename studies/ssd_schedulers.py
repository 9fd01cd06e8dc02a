"""I/O schedulers and one process on a flash drive: the published absence of a difference.

`studies/ssd_schedulers.py` makes the runs of `studies/ssd-schedulers.study.yaml` in a virtual machine, whose
kernel has four schedulers, and compares each with `none`, pattern by pattern. Existing runs are not repeated.
`--quick`: one replicate of two patterns; other claims are not measured. Planted: the same runs with the rates
of one scheduler a tenth lower, which must be reported.

After section 4.4 of A. Saif, Experimental Methods for the Evaluation of Big Data Systems (2020). Exit status
3 if a claim is not met, undecided or not measured, 1 if something failed or the plant is not detected.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from penstock.errors import PenstockError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "blackbox"))
sys.path.insert(0, str(HERE.parent))

from disks import run_study  # noqa: E402

from bench import record  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim, Finding, Result, claim, valid_runs  # noqa: E402
from studies.common.options import options as shared_options  # noqa: E402

STUDY = HERE / "ssd-schedulers.study.yaml"
SCHEDULERS = ("none", "mq-deadline", "kyber", "bfq")
PATTERNS = ("read", "randread", "write", "randwrite")
#: largest difference that counts as none
LIMIT = 0.05
#: fewest runs of a treatment
LEAST = 2
#: logarithms closer than this are equal
NEAR = 1e-9
ABOUT = (
    "A disk of a virtual machine (QEMU TCG) whose device answers 200 requests a second: the processor there "
    "is software."
)


@dataclass(frozen=True)
class Rate:
    """One valid run."""

    scheduler: str
    pattern: str
    bandwidth: float


def rates(out: Path) -> list[Rate]:
    """The valid runs of the study in `out`."""
    if not (out / "runs.parquet").exists():
        return []
    table = pd.read_parquet(out / "runs.parquet")
    valid = table[table["valid"].eq(True)]
    return [
        Rate(str(row["scheduler"]), str(row["pattern"]), float(row["bandwidth"]))
        for row in valid.to_dict("records")
    ]


def bandwidths(runs: Sequence[Rate], scheduler: str, pattern: str) -> list[float]:
    """Rates of the runs of a treatment [MB/s]."""
    return [r.bandwidth for r in runs if (r.scheduler, r.pattern) == (scheduler, pattern)]


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of the means of logarithms, less one, with Welch's 95 % interval."""
    a, b = np.log(np.asarray(first, float)), np.log(np.asarray(second, float))
    center = float(a.mean() - b.mean())
    low = high = center
    if np.ptp(a) + np.ptp(b) > NEAR:
        low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return math.expm1(center), math.expm1(float(low)), math.expm1(float(high))


def claims_of(runs: Sequence[Rate]) -> list[Claim]:
    """A claim per scheduler and pattern: the rate is that of `none`."""
    result = []
    for pattern in PATTERNS:
        for scheduler in SCHEDULERS[1:]:
            names = [f"{name} {pattern}" for name in (scheduler, "none")]
            needs = valid_runs(names, (f"{r.scheduler} {r.pattern}" for r in runs))
            result.append(
                claim(
                    pattern,
                    f"{scheduler}: the rate is that without a scheduler",
                    needs,
                    lambda s=scheduler, p=pattern: _same(runs, s, p),
                    published="no difference",
                    criterion=f"95 % interval of the difference within {LIMIT:.0%}",
                    least=LEAST,
                )
            )
    return result


def _same(runs: Sequence[Rate], scheduler: str, pattern: str) -> Finding:
    rates, without = (bandwidths(runs, name, pattern) for name in (scheduler, "none"))
    value, low, high = difference(rates, without)
    evidence = f"{value:+.1%} ({low:+.1%} to {high:+.1%}), n = {len(rates)} and {len(without)}"
    if low >= -LIMIT and high <= LIMIT:
        return Finding(Result.MET, evidence)
    outside = low > LIMIT or high < -LIMIT
    return Finding(Result.NOT_MET if outside else Result.UNDECIDED, evidence)


def planted(runs: Sequence[Rate]) -> bool | None:
    """True if rates a tenth lower fail each claim that is met; None if no claim is met."""
    met_claims = [claim_ for claim_ in claims_of(runs) if claim_.result is Result.MET]
    if not met_claims:
        return None
    slow = [r if r.scheduler == "none" else replace(r, bandwidth=0.9 * r.bandwidth) for r in runs]
    after = {(claim_.of, claim_.wording): claim_.result for claim_ in claims_of(slow)}
    return all(after[claim_.of, claim_.wording] is not Result.MET for claim_ in met_claims)


def rows_of(runs: Sequence[Rate]) -> list[record.Row]:
    """Rates of each treatment."""
    rows = []
    for pattern in PATTERNS:
        for scheduler in SCHEDULERS:
            if values := bandwidths(runs, scheduler, pattern):
                rows.append(record.row(f"{pattern}, {scheduler}", "", "rate", values, "MB/s"))
    return rows


def main() -> int:
    """Exit status: 0 every claim is met, 1 something failed, 3 a claim is not met or not measured."""
    document = (__doc__ or "").splitlines()[0]
    arguments = shared_options(
        document, "ssd-schedulers", "one replicate of two patterns"
    ).parse_args()
    out: Path = arguments.out.resolve()
    try:
        if not arguments.compare:
            quick = ("design.replicates=1", "factors.pattern={levels: [read, randread]}")
            overrides = (
                [w for change in quick for w in ("--set", change)] if arguments.quick else []
            )
            run_study(STUDY, out, overrides)
        runs = rates(out)
    except PenstockError as error:
        print(f"ssd-schedulers: {error}", file=sys.stderr)
        return 1
    claims = claims_of(runs)
    if arguments.json:
        rows = [vars(r) for r in runs]
        print(json.dumps({"claims": checks.as_json(claims), "runs": rows}))
    else:
        checks.show(claims, 110)
    detected = {"every scheduler a tenth slower than none": planted(runs)}
    record.keep(arguments.record, [*checks.rows(claims), *rows_of(runs)], detected, ABOUT)
    return checks.finish("ssd-schedulers", claims, detected)


if __name__ == "__main__":
    sys.exit(main())
