"""Designs of up to 15 factors with their complete alias tables: planning time, and agreement with published
ones.

Covers every fraction 2^(K-P) of minimum aberration of 15 factors, from the text of the study to the plan with
all aliases up to order 3 (after one warm-up). The word-length patterns of all fractions of 3 to 15 factors
are computed from the matrix by brute force and compared with the published ones. Other kinds of designs
follow at practical sizes. Planted failures: an exchanged generator, which the pattern must reveal, and a
flipped sign, which the verifier must refuse.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.design.aberration import MINIMUM_ABERRATION
from penstock.design.generators import Generator, choose_generators, word_lengths
from penstock.design.matrix import constant_words, two_level, verify
from penstock.design.plan import make_plan
from penstock.errors import PenstockError
from penstock.study.load import read_study

PUBLISHED = record.ROOT / "tests" / "golden" / "designs" / "word-lengths.json"
LIMIT_S = 1.0


def plan_seconds(design: str, factors: dict[str, int], repetitions: int) -> list[float]:
    """Time from the text of a study to its plan [s]."""
    factor_texts = ", ".join(
        f"{n}: {{levels: {list(range(1, k + 1))}}}" for n, k in factors.items()
    )
    text = f"""penstock: 1
name: bench
question: Which?
factors: {{{factor_texts}}}
design: {design}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {" ".join(f"{{{n}}}" for n in factors)}', expected: 1s}}
responses: {{wall: {{from: wall_s, unit: s, better: lower}}}}
"""
    times_s = []
    for _ in range(repetitions):
        began = time.perf_counter()
        make_plan(read_study(text.encode(), Path("bench.study.yaml")))
        times_s.append(time.perf_counter() - began)
    return times_s


def as_published(patterns: dict[str, list[int]], exchange: bool = False) -> tuple[int, int]:
    """Number of fractions with the published pattern, and their total; `exchange`: one wrong generator."""
    agreeing = 0
    cases = [(k, p) for k, p in MINIMUM_ABERRATION if f"{k},{p}" in patterns]
    for factors, added in cases:
        chosen = choose_generators(factors, added)
        if exchange and added > 1 and chosen[-1].word != 0b11:
            words = {g.word for g in chosen}
            worse = 0b11 if 0b11 not in words else 0b101
            chosen[-1] = Generator(chosen[-1].factor, worse)
        relation = constant_words(two_level(factors, chosen))
        agreeing += word_lengths(relation, factors) == patterns[f"{factors},{added}"]
    return agreeing, len(cases)


def flipped_is_refused() -> bool:
    """True if a flipped sign is refused."""
    matrix = two_level(15, choose_generators(15, 8))
    matrix[3, 4] *= -1
    try:
        verify(matrix, 128, 4)
    except PenstockError:
        return True
    return False


def main() -> int:
    """Run all cases and print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="each case once")
    record.option(parser)
    arguments = parser.parse_args()
    repetitions = 1 if arguments.quick else 5
    fifteen = {f"f{i}": 2 for i in range(15)}
    rows = []
    plan_seconds("{kind: orthogonal-array}", {"a": 3, "b": 3}, 1)
    for added in range(1, 12):
        seconds = plan_seconds(
            f"{{kind: {{fraction: {added}}}, replicates: 1}}", fifteen, repetitions
        )
        case = f"2^(15-{added}), aliases to order 3"
        rows.append(record.at_most(record.row(case, "penstock", "plan", seconds, "s"), LIMIT_S))
    for case, design, factors in (
        (
            "Plackett-Burman of 11 factors",
            "{kind: plackett-burman}",
            {f"f{i}": 2 for i in range(11)},
        ),
        ("L27 of 13 factors", "{kind: orthogonal-array}", {f"f{i}": 3 for i in range(13)}),
        (
            "D-optimal, 4 factors of 3 levels, pairs",
            "{kind: {d-optimal: {model: pairs}}}",
            {f"f{i}": 3 for i in range(4)},
        ),
        ("screening of 3 million treatments", "{purpose: screen}", {f"f{i}": 12 for i in range(6)}),
    ):
        seconds = plan_seconds(design, factors, repetitions)
        rows.append(record.row(case, "penstock", "plan", seconds, "s"))
    patterns = json.loads(PUBLISHED.read_text())["patterns"]
    agreeing, cases = as_published(patterns)
    metric = "word-length pattern as published"
    rows.append(record.share("fractions of 3 to 15 factors", "penstock", metric, agreeing, cases))
    worse, _ = as_published(patterns, exchange=True)
    detected = {"a generator exchanged": worse < agreeing, "a sign flipped": flipped_is_refused()}
    if arguments.json:
        print(json.dumps(rows))
    else:
        for r in rows:
            value = r["value"] if isinstance(r["value"], str) else f"{r['value']:.3f}"
            verdict = f"{r['bar']}: {r['verdict']}" if "bar" in r else ""
            print(f"{r['case']:<42}{r['metric']:<34}{value:>10} {r['unit']:<3} {verdict}")
    for planted, seen in detected.items():
        print(f"planted, {planted}: {'found' if seen else 'NOT FOUND'}", file=sys.stderr)
    record.keep(arguments.record, rows, detected)
    missed = [r for r in rows if r.get("verdict") == record.MISSED]
    return 1 if not all(detected.values()) else 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
