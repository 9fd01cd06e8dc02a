"""Access patterns of workflows on real stores, without hints and with them, measured and simulated.

    python studies/workflow_patterns.py [moosefs] [cephfs] [reducer] [blast] [--quick] [--resume]

Pipeline, reduce, gather and scatter run on a store without hints, where a task goes to the next idle node,
and with hints, where it goes to the node with its data. Broadcast runs with one, two and four copies.
Clusters grow with their workload (weak scaling): MooseFS, which keeps a small file on one node, on 4, 8 and
16 nodes, and CephFS, which spreads its chunks, on 4 and 8. Runs are in blocks of random order on one store.
Service times are measured on three nodes; the model then simulates the same treatments, and clusters of 25,
50 and 100 nodes. `reducer` is `reduce` with its last task on a node with a link of twice the rate. `blast`
divides nodes between an application and its store on CephFS. Its tasks read a database, and sleep instead of
searching.

All parts by default; needs root. `--quick`: four nodes, three runs of each treatment; `reducer` and `blast`
(nine nodes) only if they are named; eight minutes or so.
`--compare` evaluates the results in OUT. A run is not valid if the engine refused a hint, a server died, or
the host's processors were busy. `--record` writes nothing unless every treatment has all of its valid runs.
Planted: the results of both stores exchanged, those of two splits exchanged, and nodes whose own files are
slower than their links. Exit status 3 if a claim is not met or not measured, 1 if something failed or a
plant is not detected.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import record  # noqa: E402
from penstock.errors import BadInput, PenstockError  # noqa: E402
from penstock.plugins import STORE_ENGINES  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.common.options import options as shared_options  # noqa: E402
from studies.common.results import read_result, store_result  # noqa: E402
from studies.patterns_study import evaluation  # noqa: E402
from studies.patterns_study.runs import Part, measure  # noqa: E402
from studies.patterns_study.treatments import FULL, GROUNDS, QUICK, Size, ground_of  # noqa: E402

PARTS: TypeAdapter[Part] = TypeAdapter(Part)
Planted = dict[str, bool | None]


def file_of(out: Path, ground: str) -> Path:
    """File of the results on a ground."""
    return out / f"{ground}.json"


def store_part(out: Path, part: Part) -> None:
    """Write the results on a ground."""
    store_result(file_of(out, part.ground), PARTS, part)


def read_part(file: Path) -> Part:
    """Results that were written before. Raises BadInput for another file."""
    return read_result(file, PARTS, "results of this study")


def read_or_new(file: Path, ground: str, size: Size) -> Part:
    """Stored results to be continued, or an empty part. Raises BadInput if they are of another size."""
    if not file.is_file():
        return Part(ground, size)
    part = read_part(file)
    if part.size != size:
        expected = f"those of the {size.name} size; measure without --resume"
        raise BadInput(f"{file}: found results of the {part.size.name} size; expected {expected}")
    return part


def measured(ground: str, size: Size, out: Path, resume: bool) -> Part:
    """Measure a ground. Its file has the results so far."""
    part = read_or_new(file_of(out, ground), ground, size) if resume else Part(ground, size)
    study_ground = ground_of(ground, size)
    reason = STORE_ENGINES.load(study_ground.engine)().missing()
    if reason:
        print(f"{ground}: not measured: {reason}", file=sys.stderr)
        return part
    return measure(study_ground, part, lambda results_so_far: store_part(out, results_so_far))


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    quick = "four nodes, three runs"
    options = shared_options(__doc__, "workflow-patterns", quick, parts=GROUNDS)
    options.add_argument("--resume", action="store_true", help="continue with the results in OUT")
    return options


def chosen(parts: Sequence[str], *, quick: bool) -> list[str]:
    """Parts that are named; by default all, of the quick size the engines. BadInput for others."""
    if unknown := [part for part in parts if part not in GROUNDS]:
        raise BadInput(f"part: found {unknown[0]}; expected {', '.join(GROUNDS)}")
    default = ("moosefs", "cephfs") if quick else tuple(GROUNDS)
    return [ground for ground in GROUNDS if ground in (parts or default)]


def results(options: argparse.Namespace, grounds: Sequence[str]) -> list[Part]:
    """Results on all grounds: measured, or read from OUT."""
    out = options.out.resolve()
    if options.compare:
        return [read_part(file_of(out, ground)) for ground in grounds]
    size = QUICK if options.quick else FULL
    return [measured(ground, size, out, options.resume) for ground in grounds]


def keep(name: str | None, parts: Sequence[Part], rows: list[record.Row], planted: Planted) -> None:
    """Record the results if `--record` was given and all runs are valid."""
    if name is None:
        return
    lacking = [text for part in parts for text in evaluation.incomplete(part)]
    if lacking:
        few = f"{len(lacking)} treatments lack valid runs, such as {lacking[0]}"
        print(f"workflow_patterns: not recorded: {few}", file=sys.stderr)
        return
    about = (
        "Links and sizes are a quarter of the published ones: a transfer takes as long. "
        f"{evaluation.others_text(parts)}"
    )
    record.keep(name, rows, planted, about)


def main() -> int:
    """Exit status: 0 every claim is met, 1 failure, 2 bad input, 3 a claim is not met or not measured."""
    options = parser().parse_args()
    try:
        parts = results(options, chosen(options.parts, quick=options.quick))
    except PenstockError as error:
        print(f"workflow_patterns: {error}", file=sys.stderr)
        return error.exit_status
    claims = [claim for part in parts for claim in evaluation.claims_of(part)]
    planted = {
        failure: detected
        for part in parts
        for failure, detected in evaluation.planted(part).items()
    }
    lines = [line for part in parts for line in evaluation.lines(part)]
    rows = [row for part in parts for row in evaluation.rows_of(part)]
    if options.json:
        document = {"claims": checks.as_json(claims), "planted": planted}
        print(json.dumps({**document, "rows": rows, "lines": lines}))
    else:
        print("\n".join([*lines, evaluation.others_text(parts)]))
        checks.show(claims)
    keep(options.record, parts, [*checks.rows(claims, quoted=True), *rows], planted)
    return checks.finish("workflow_patterns", claims, planted)


if __name__ == "__main__":
    sys.exit(main())
