"""The classifier on sequences with known classes: share of correct verdicts of each of its three methods.

`exact` applies the rules to the requests, `streaming` is the method for sequences too long for that, `epochs`
uses the counters of mode pattern. A verdict is correct if class, number of streams and their shares, strides
and borders of phases are: borders within 1 % of the requests, by epochs within one epoch if that is more.
Planted failures, which each method must detect: another order, another number of streams, a border five
hundredths of the requests away. Exit status 1 if one is not, or if fewer than 99 % are correct.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench import record
from bench.pattern.cases import Case, grid

_native: Any = importlib.import_module("penstock._native")

PATHS = ("exact", "streaming", "epochs")
EPOCH_REQUESTS = 1024
QUICK = ((5003, 20_011), (4096,), 1)
WHOLE = ((3001, 10_007, 40_009, 150_001), (4096, 28 * 1024, 1 << 20), 3)


def judged(case: Case, path: str) -> dict[str, Any]:
    """The verdict on all threads together."""
    text = _native.classify(case.offsets, case.sizes, case.tids, path)
    return dict(json.loads(text)["together"])


def fault(case: Case, verdict: dict[str, Any], path: str) -> str:
    """Fault of a verdict; empty if it is correct."""
    kind = verdict["class"]
    if kind != case.kind and kind not in case.accepted:
        return f"{kind} for {case.kind}"
    if case.k is not None and verdict["k"] != case.k:
        return f"k {verdict['k']} for {case.k}"
    if case.strides:
        actual = verdict["evidence"]["strides_bytes"]
        turns = [list(case.strides[i:] + case.strides[:i]) for i in range(len(case.strides))]
        if actual not in turns:
            return f"strides {actual} for {case.strides}"
    if case.streams:
        shares = dict.fromkeys((kind for kind, _ in case.streams), 0.0)
        for stream in verdict["evidence"]["streams"]:
            shares[stream["kind"]] = shares.get(stream["kind"], 0.0) + stream["share"]
        if any(abs(shares[kind] - share) > 0.05 for kind, share in case.streams):
            return f"shares {shares} for {case.streams}"
    if case.borders:
        actual = [phase["first"] for phase in verdict["evidence"]["phases"]][1:]
        n = len(case.offsets)
        within = max(0.01 * n, EPOCH_REQUESTS if path == "epochs" else 0)
        near = [abs(a - b) <= within for a, b in zip(actual, case.borders, strict=False)]
        if len(actual) != len(case.borders) or not all(near):
            return f"borders {actual} for {case.borders}"
    return ""


def run(cases: list[Case], path: str) -> tuple[Counter[tuple[str, str]], list[str], list[float]]:
    """Confusion by (truth, verdict), faults, and errors of the zipf exponent."""
    confusion: Counter[tuple[str, str]] = Counter()
    wrong, errors = [], []
    for case in cases:
        verdict = judged(case, path)
        confusion[case.kind, verdict["class"]] += 1
        reason = fault(case, verdict, path)
        if reason:
            wrong.append(f"{case.name}: {reason}")
        elif case.exponent is not None:
            errors.append(verdict["evidence"]["spread"]["zipf_exponent"] - case.exponent)
    return confusion, wrong, errors


def show(path: str, confusion: Counter[tuple[str, str]]) -> None:
    truths = sorted({truth for truth, _ in confusion})
    kinds = sorted({kind for _, kind in confusion})
    print(f"\n{path}: truth (down), verdict (across)")
    print(" " * 13 + "".join(f"{kind[:11]:>12}" for kind in kinds))
    for truth in truths:
        cells = (confusion[truth, kind] for kind in kinds)
        print(f"{truth:13}" + "".join(f"{n or '.':>12}" for n in cells))


def wrong_truths() -> dict[str, list[Case]]:
    """Sequences with a wrong declared class, by the kind of fault."""
    draws = np.random.default_rng(3)
    cases = list(grid((20_011,), (4096,), 1))

    def of(kind: str) -> Case:
        return next(case for case in cases if case.kind == kind)

    def shuffled(case: Case) -> Case:
        return dataclasses.replace(case, offsets=draws.permutation(case.offsets))

    streams = of("interleaved")
    phases = next(case for case in cases if len(case.borders) == 1)
    far = phases.borders[0] + round(0.05 * len(phases.offsets)) * (
        1 if phases.borders[0] < len(phases.offsets) / 2 else -1
    )
    # with epochs of 1,024 requests, a border is determined to one epoch only
    far += 1024 if far > phases.borders[0] else -1024
    return {
        "another order": [shuffled(of(kind)) for kind in ("consecutive", "reverse", "strided")],
        "one stream more": [dataclasses.replace(streams, k=(streams.k or 0) + 1)],
        "a border elsewhere": [dataclasses.replace(phases, borders=(far,))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small grid")
    parser.add_argument("--wrong", type=int, default=20, help="number of wrong verdicts to print")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    cases = list(grid(*(QUICK if arguments.quick else WHOLE)))
    rows = []
    for path in PATHS:
        begin_s = time.perf_counter()
        confusion, wrong, errors = run(cases, path)
        correct = 1 - len(wrong) / len(cases)
        size = "small grid" if arguments.quick else "whole grid"
        rows.append(record.share(size, path, "right", len(cases) - len(wrong), len(cases), 0.99))
        if arguments.json:
            continue
        show(path, confusion)
        seconds = time.perf_counter() - begin_s
        requests = sum(len(case.offsets) for case in cases)
        print(
            f"{path}: {100 * correct:.2f} % of {len(cases)} right, "
            f"{1e9 * seconds / requests:.0f} ns per request"
        )
        if errors:
            print(f"zipf exponent: off by {min(errors):+.2f} to {max(errors):+.2f}")
        for line in wrong[: arguments.wrong]:
            print("  wrong:", line)
    planted = {
        failure: all(
            fault(case, judged(case, path), path) for case in wrong_cases for path in PATHS
        )
        for failure, wrong_cases in wrong_truths().items()
    }
    if arguments.json:
        print(json.dumps(rows))
    for failure, detected in planted.items():
        print(f"planted, {failure}: {'found' if detected else 'NOT FOUND'}", file=sys.stderr)
    record.keep(arguments.record, rows, planted)
    correct = all(row["verdict"] == record.MET for row in rows)
    sys.exit(0 if correct and all(planted.values()) else 1)


if __name__ == "__main__":
    main()
