"""Checks: expectations, and measured rows compared with them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadInput
from penstock.parts.conformity.comparison import evaluate_all
from penstock.parts.conformity.diagnosis import diagnose
from penstock.parts.conformity.expectation import expectation_of
from penstock.parts.conformity.measured_rows import read_measured
from penstock.parts.conformity.report import document
from tests.fuzz import mutate as of
from tests.fuzz.drive import Feed, Target, plain

_EXPECTED = (
    b"penstock_expected: 1\ntolerance: 10%\ntrials: {at_least: 2, at_most: 30}\nrows:\n"
    b"  - {module: m, operation: o, metric: t, predicted: 1.5, unit: ms, variance: 0.1, better: lower}\n"
    b"  - {module: m, operation: p, predicted: 3, unit: MiB/s, tolerance: 5%}\n"
    b"  - {module: w, operation: run, metric: makespan, predicted: 1}\n"
    b"evidence: [{module: m, operation: o, lock_wait_share: 5%, p99_over_p50: 2}]\n"
)

_PREDICTION = {
    "schema": "penstock/prediction/1",
    "workload": "w",
    "makespan_s": 4.0,
    "stages": [{"name": "map", "start_s": 1.0, "end_s": 3.0}],
    "operations": {"write": {"n": 8, "mean_s": 0.01}},
    "stations": [{"kind": "storage", "requests": 10, "busy_s": 1.0, "wait_mean_s": 0.4}],
}

_STUDY_PREDICTIONS = {
    "predictions": [{"treatment_id": "t01", "response": "r", "unit": "1/s", "predicted": 2.0}]
}

_EVIDENCE = [
    f"{module},{operation},{metric},{trial},{value + trial / 100},{unit},{node},{window}\n".encode()
    for trial in range(1, 5)
    for module, operation, metric, value, unit, node, window in (
        ("w", "run", "makespan", 2.0, "s", "", ""),
        ("c", "run", "launch_time", 0.9, "s", "", ""),
        *(("m", "o", metric, 1.0, "s", "", "") for metric in ("lock_wait", "connect_time")),
        *(("m", "o", "server_time", 1.0 + n, "s", f"s{n}", "") for n in range(3)),
        *(("m", "o", "in_flight", 9.0 * (n == w), "1", f"s{n}", w) for n in (0, 1) for w in (0, 1)),
        ("m", "o", "bytes", 10.0, "B", "s0", ""),
    )
]

_CHECKED_ROWS = (
    b"module,operation,metric,trial,value,unit,node,window\nm,o,t,1,1.5,ms,,\nm,o,t,2,1.6,ms,,\n"
    b"m,p,,1,3,MiB/s,s0,1\nm,p,,2,3.5,MiB/s,s1,2\nw,run,makespan,1,1,s,,\nw,run,makespan,2,1,s,,\n",
    b"module,operation,metric,trial,value,unit,node,window\nm,o,t,1,9,ms,,\nm,o,t,2,9.1,ms,,\n"
    b"m,p,,1,3,MiB/s,,\nm,p,,2,3.5,MiB/s,,\n" + b"".join(_EVIDENCE),
    b"trial,value,operation,module\n1,1,o,m\n2,1,o,m\n1,3,p,m\n2,4,p,m\n1,1,run,w\n2,1,run,w\n",
)


@contextlib.contextmanager
def _compare_inputs(directory: Path) -> Iterator[Feed]:
    """Compare a table with expected rows."""
    file = directory / "given.csv"
    expectation = expectation_of(_EXPECTED, Path("expected.yaml"))

    def feed(data: bytes) -> None:
        file.write_bytes(data)
        measured = read_measured(file)
        rows = evaluate_all(expectation, measured.trials(expectation), measured.keys)
        json.dumps(
            document(expectation, "run", rows, diagnose(expectation, measured, rows)),
            allow_nan=False,
        )

    yield feed


def targets() -> list[Target]:
    """Return the targets of this family."""
    return [
        plain(
            "expected-file",
            of.of_yaml(
                _EXPECTED, *(json.dumps(d).encode() for d in (_PREDICTION, _STUDY_PREDICTIONS))
            ),
            lambda d: bool(expectation_of(d, Path("f"))),
            BadInput,
            cost=10,
        ),
        Target("checked-rows", of.of_text(*_CHECKED_ROWS), _compare_inputs, (BadInput,), cost=20),
    ]
