"""Results of benches and studies as `bench/results/NAME.json`, the source of docs/measurements.md.

A row is a dictionary of `case`, `engine`, `metric`, `value`, `unit`, `low`, `high` and `n`. `spread` states
the meaning of `low` and `high` (smallest and largest if it is absent). A row with a goal has it in `bar`, and
its result in `verdict`: met, missed, undecided, not measured or not comparable. The page shows rows that
are `quoted`; all rows if none is.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.host.probe.facts import host_facts

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
MET, MISSED, UNDECIDED = "met", "missed", "undecided"
#: verdicts of a claim: a treatment has no valid run; the runs' conditions differ from those of the claim
NOT_MEASURED, NOT_COMPARABLE = "not measured", "not comparable"
INTERVAL = "95 % interval"
#: parts of the environment on which a result may depend
CODE = ("python", "crates", "vendor", "bench", "studies", ":!bench/results")
FACTS = ("cpu_model", "cpus_allowed", "memory_bytes", "kernel", "virtual", "load_average")

Row = dict[str, Any]


def row(case: str, engine: str, metric: str, values: Sequence[float], unit: str) -> Row:
    """Median, smallest and largest of `values`."""
    return {
        "case": case,
        "engine": engine,
        "metric": metric,
        "value": statistics.median(values),
        "unit": unit,
        "low": min(values),
        "high": max(values),
        "n": len(values),
    }


def at_most(result: Row, limit: float) -> Row:
    """The row with its verdict: undecided if a 95 % interval contains the limit."""
    return _with_bar(result, f"at most {limit:,g} {result['unit']}".strip(), 1, limit)


def at_least(result: Row, limit: float) -> Row:
    """The row with its verdict: undecided if a 95 % interval contains the limit."""
    return _with_bar(result, f"at least {limit:,g} {result['unit']}".strip(), -1, limit)


def _with_bar(result: Row, bar: str, sign: int, limit: float) -> Row:
    ends = (
        [result["low"], result["high"]] if result.get("spread") == INTERVAL else [result["value"]]
    )
    above = [sign * end > sign * limit for end in ends]
    verdict = MISSED if all(above) else UNDECIDED if any(above) else MET
    return {**result, "bar": bar, "verdict": verdict}


def share(case: str, engine: str, metric: str, correct: int, total: int, least: float = 1.0) -> Row:
    """Share of correct cases and its goal; not measured without cases."""
    bar = "all" if least == 1 else f"at least {100 * least:g} %"
    verdict = NOT_MEASURED if not total else MET if correct >= least * total else MISSED
    item = {"case": case, "engine": engine, "metric": metric, "value": f"{correct} of {total}"}
    return {**item, "unit": "", "n": total, "bar": bar, "verdict": verdict}


def claim(case: str, statement: str, outcome: str, bar: str, holds: bool | None) -> Row:
    """A statement and its outcome; `holds` is None if it is undecided, `bar` is empty without a goal."""
    return evaluated(
        case, statement, outcome, bar, {True: MET, False: MISSED, None: UNDECIDED}[holds]
    )


def evaluated(case: str, wording: str, evidence: str, bar: str, verdict: str) -> Row:
    """Statement with its evidence and verdict; without a `bar` it has no verdict."""
    row = {"case": case, "engine": "", "metric": wording, "value": evidence, "unit": ""}
    return {**row, "bar": bar, "verdict": verdict} if bar else row


def option(parser: argparse.ArgumentParser) -> None:
    """Add `--record [NAME]`."""
    parser.add_argument(
        "--record",
        nargs="?",
        const="",
        metavar="NAME",
        help="store the rows in bench/results/NAME.json (default: the name of this script)",
    )


def report(rows: Sequence[Row], planted: Mapping[str, bool], *, as_json: bool) -> int:
    """Print the rows and the detection of planted failures; return the exit status. It is 1 if a goal is
    missed or a planted failure is not detected.
    """
    if as_json:
        print(json.dumps({"rows": list(rows), "planted": dict(planted)}, indent=1))
    else:
        several = len({item["engine"] for item in rows}) > 1
        for item in rows:
            engine = f"{item['engine']}: " if several else ""
            value = item["value"] if isinstance(item["value"], str) else f"{item['value']:,.3g}"
            verdict = f" ({item['verdict']})" if "verdict" in item else ""
            figure = f"{item['metric']} {value} {item['unit']}".rstrip()
            print(f"{item['case']}: {engine}{figure}{verdict}")
        for failure, detected in planted.items():
            print(f"planted: {failure}: {'found' if detected else 'NOT FOUND'}")
    missed = any(item.get("verdict") in (MISSED, NOT_MEASURED) for item in rows)
    return int(missed or not all(planted.values()))


def keep(
    name: str | None, rows: Sequence[Row], planted: Mapping[str, bool | None], about: str = ""
) -> None:
    """Write the file if `--record` was given. `planted` has the outcome of each planted failure (None:
    undecided); `about` is a note for readers. Title and command are those of the running script.
    """
    if name is None:
        return
    script = Path(sys.argv[0]).resolve()
    facts = host_facts()
    document = {
        "title": _title(script),
        "command": _command(script),
        "recorded": "by the command",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "host": {key: facts[key] for key in FACTS},
        "about": about,
        "planted": [{"what": failure, "found": detected} for failure, detected in planted.items()],
        "rows": [_plain(item) for item in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name or script.stem}.json"
    file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"stored in {file}", file=sys.stderr)


def _title(script: Path) -> str:
    document = ast.get_docstring(ast.parse(script.read_text("utf-8"))) or script.stem
    return " ".join(document.split("\n\n")[0].split())


def _command(script: Path) -> str:
    """The command line, with names of files instead of absolute paths."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--json"]
    for at in (n for n, argument in enumerate(arguments) if argument.startswith("--record")):
        after = arguments[at + 1 : at + 2]
        named = "=" not in arguments[at] and after and not after[0].startswith("-")
        del arguments[at : at + 1 + bool(named)]
        break
    arguments = [
        Path(argument).name if argument.startswith("/") else argument for argument in arguments
    ]
    return shlex.join([str(script.relative_to(ROOT)), *arguments])


def _commit() -> str:
    def git(*arguments: str) -> str:
        line = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", *CODE)
    return git("rev-parse", "--short=8", "HEAD") + (" and changes" if changed else "")


def _plain(item: Row) -> Row:
    """Round floats to six digits: further digits are noise, and people read the file."""
    return {
        key: float(f"{value:.6g}") if isinstance(value, float) else value
        for key, value in item.items()
    }
