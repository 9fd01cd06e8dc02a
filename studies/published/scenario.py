"""One published scenario, predicted: workload by name, platform by file; JSON on stdout.

`scenario.py reduce --size medium --scheduler data_location --platform FILE --set a.b=c` is what
`penstock workload make` and `penstock predict` do one after the other, in one process; the workload carries
placement hints where the scheduler looks for the data (a store that knows the workflow, WOSS).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import blast_workload

from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.workloads.make import make_workload
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import load_platform

SEEDS = 39


def parser() -> argparse.ArgumentParser:
    """The options of a scenario."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("kind", help="a kind of `penstock workload make`, or blast-split")
    options.add_argument("--platform", type=Path, required=True)
    options.add_argument("--size", default="medium")
    options.add_argument("--width", type=int)
    options.add_argument("--queries", type=int)
    options.add_argument("--compute", type=float)
    options.add_argument("--file-bytes", type=int)
    options.add_argument("--database-bytes", type=int, default=blast_workload.DATABASE_BYTES)
    options.add_argument("--lookup-bytes", type=int, default=blast_workload.LOOKUP_BYTES)
    options.add_argument("--scheduler", default="workqueue")
    options.add_argument("--set", action="append", default=[], dest="sets")
    options.add_argument("--nodes", type=int, help="blast-split: all hosts, the manager's included")
    options.add_argument("--app", type=int, help="blast-split: hosts of the application")
    options.add_argument("--storage", type=int, help="blast-split: hosts of the storage")
    return options


def workload(scenario: argparse.Namespace) -> Workload:
    """The workload that the options describe."""
    if scenario.kind == "blast-split":
        query_s = scenario.compute or blast_workload.QUERY_S
        return blast_workload.blast(
            scenario.app, query_s, scenario.database_bytes, scenario.lookup_bytes
        )
    options = {
        "width": scenario.width,
        "queries": scenario.queries,
        "compute_s": scenario.compute,
        "file_bytes": scenario.file_bytes,
        "optimised": scenario.scheduler == "data_location",
    }
    return make_workload(scenario.kind, scenario.size, options)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a scenario; its first argument, a factor's level, may contain a kind and its options."""
    kind, *rest = arguments
    return parser().parse_args([*shlex.split(kind), *rest])


def prediction(
    arguments: Sequence[str], overrides: Sequence[str] = (), seeds: int = SEEDS
) -> dict[str, Any]:
    """The prediction as a dictionary; `overrides` are further values of the platform."""
    scenario = parsed(arguments)
    sets = [*scenario.sets, f"scheduler.kind={scenario.scheduler}"]
    if scenario.kind == "blast-split":
        if scenario.app is None:
            scenario.app = scenario.nodes - 1 - scenario.storage
        sets += [f"hosts.app.count={scenario.app}"]
        sets += [f"hosts.storage.count={scenario.nodes - 1 - scenario.app}"]
    platform = load_platform(scenario.platform, [*sets, *overrides])
    predicted = predict(
        workload(scenario), platform, seeds=seeds, level=0.9 if seeds >= SEEDS else 0.5
    )
    return predicted.to_dict()


if __name__ == "__main__":
    print(json.dumps(prediction(sys.argv[1:])))
