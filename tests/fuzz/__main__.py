"""`python -m tests.fuzz`: run every target with its share of the inputs; exit status 1 on a failure.

With `--all`, the crates' own properties (proptest) and the HTTP interface (schemathesis) as well.
`--replay TARGET FILE` repeats one stored input.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from bench import record
from tests.fuzz.drive import Driver, Failure, Outcome, Target, plain, table
from tests.fuzz.targets import all_targets


def shares(targets: list[Target], inputs: int, minimum: int = 1) -> dict[str, int]:
    """Number of inputs of each target, so that all take about the same time; their total is `inputs`.

    Each target has at least `minimum`.
    """
    weights = {t.name: 1 / t.cost for t in targets}
    total = sum(weights.values())
    return {
        name: max(minimum, int(inputs * weight / total) + 1) for name, weight in weights.items()
    }


def fuzz(driver: Driver, targets: list[Target], inputs: int, minimum: int = 1) -> list[Outcome]:
    """Run the targets one after the other."""
    outcomes = []
    for name, count in shares(targets, inputs, minimum).items():
        (target,) = (t for t in targets if t.name == name)
        outcomes.append(driver.run(target, count))
        outcome = outcomes[-1]
        print(
            f"{name}: {outcome.inputs:,} inputs in {outcome.wall_s:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        for failure in outcome.failures:
            last = failure.reason.strip().splitlines()[-1]
            print(f"  failed: {last}\n  stored: {failure.file}", file=sys.stderr, flush=True)
    return outcomes


def fuzz_crates(cases: int, seed: int) -> Outcome:
    """Run the crates' properties named `fuzzed_…`; proptest stores failing inputs next to their source."""
    start_s = time.monotonic()
    argv = "cargo test --release --quiet -p penstock-relay fuzzed_".split()
    environment = {**os.environ, "PROPTEST_CASES": str(cases), "PROPTEST_RNG_SEED": str(seed)}
    result = subprocess.run(argv, env=environment, capture_output=True, text=True)
    counts = re.findall(r"(\d+) passed; (\d+) failed", result.stdout)
    passed, failed = (
        (sum(map(int, column)) for column in zip(*counts, strict=True)) if counts else (0, 1)
    )
    output = result.stdout[-4000:] + result.stderr[-4000:]
    regressions = Path("crates/relay/proptest-regressions")
    failures = tuple(Failure("crates", n, output, regressions) for n in range(failed))
    return Outcome("crates (proptest)", passed * cases, failures, time.monotonic() - start_s)


def fuzz_interface(examples: int) -> Outcome:
    """Send requests within and outside the OpenAPI description."""
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        argv = [sys.executable, "-m", "pytest", "-q", "tests/integration/test_attack_http.py"]
        argv += ["--timeout", "1200", f"--junitxml={report}"]
        environment = {**os.environ, "PENSTOCK_HTTP_EXAMPLES": str(examples)}
        result = subprocess.run(argv, env=environment, capture_output=True, text=True)
        suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    requests_property = suite.find("properties/property[@name='requests']")
    requests = 0 if requests_property is None else int(requests_property.get("value", "0"))
    failed = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
    failures = tuple(Failure("HTTP", n, result.stdout[-8000:], Path()) for n in range(failed))
    return Outcome("HTTP (schemathesis)", requests, failures, time.monotonic() - start_s)


def replay(target: Target, path: Path) -> int:
    """Run one stored input in a child process, as a target may drop privileges; return the exit status."""
    data = path.read_bytes()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with target.context(Path(directory)) as feed:
                    try:
                        feed(data)
                    except target.documented as error:
                        print(f"answered as documented: {type(error).__name__}: {error}")
                    else:
                        print("accepted")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def rows(outcomes: list[Outcome]) -> list[record.Row]:
    """Share of each target's inputs that were handled as documented."""
    target_rows = []
    for outcome in outcomes:
        kind = "route" if outcome.target.startswith("route-") else "reader"
        passed = outcome.inputs - len(outcome.failures)
        target_rows.append(
            record.share(f"{kind} {outcome.target}", "", "inputs", passed, outcome.inputs)
        )
    inputs = sum(outcome.inputs for outcome in outcomes)
    passed = inputs - sum(len(outcome.failures) for outcome in outcomes)
    return [record.share("all targets", "", "inputs", passed, inputs), *target_rows]


def detects_planted_failure(driver: Driver) -> bool:
    """True if the driver detects a reader that fails for one input of a hundred."""

    def feed(data: bytes) -> None:
        assert data != b"7"

    target = plain("planted", lambda draw: str(draw.randrange(100)).encode(), feed)
    with tempfile.TemporaryDirectory() as directory:
        return bool(Driver(Path(directory), driver.seed, processes=1).run(target, 2_000).failures)


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--inputs",
        type=int,
        default=1_000_000,
        help="total number of inputs (default: %(default)s)",
    )
    parser.add_argument(
        "--least", type=int, default=10_000, help="minimum of each target (default: %(default)s)"
    )
    record.option(parser)
    parser.add_argument("--all", action="store_true", help="also crates and HTTP")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of all draws (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", help="only these targets; they share the inputs")
    parser.add_argument(
        "--keep", type=Path, default=Path("out/fuzz"), help="directory for inputs that fail"
    )
    parser.add_argument(
        "--replay", nargs=2, metavar=("TARGET", "FILE"), help="repeat one stored input"
    )
    arguments = parser.parse_args()
    targets = all_targets(by_route=True)
    names = [t.name for t in targets]
    for name in (arguments.only or []) + (arguments.replay or [])[:1]:
        if name not in names:
            parser.error(f"found {name!r}; expected one of {', '.join(names)}")
    if arguments.replay:
        (target,) = (t for t in targets if t.name == arguments.replay[0])
        return replay(target, Path(arguments.replay[1]))
    selected = [t for t in targets if arguments.only is None or t.name in arguments.only]
    driver = Driver(arguments.keep, arguments.seed, processes=os.cpu_count() or 1)
    outcomes = fuzz(driver, selected, arguments.inputs, arguments.least)
    if arguments.all:
        for outcome in (fuzz_crates(100_000, arguments.seed), fuzz_interface(100)):
            outcomes.append(outcome)
            for failure in outcome.failures[:1]:
                print(failure.reason, file=sys.stderr)
    print(table(outcomes))
    if arguments.record is not None:
        planted = {"a reader that raises": detects_planted_failure(driver)}
        record.keep(arguments.record or "fuzz", rows(outcomes), planted)
    failed = any(outcome.failures for outcome in outcomes)
    if failed:
        print(f"replay one: {sys.executable} -m tests.fuzz --replay TARGET {arguments.keep}/FILE")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
