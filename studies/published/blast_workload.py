"""BLAST with a fixed number of queries, divided over the machines: write the workload to stdout.

The texts state neither sizes nor computing times. Assumptions:

- 3,800 queries (nineteen files of 200); a database of 1000 MiB, which each machine first reads completely;
- a query then reads one place of the database, 64 KiB, and computes 0.35 s;
- a query has 1 kB, its answer 5 kB.

The computing time is not free: reading takes about `a / s · D / B` (a machines of the application, s of
storage, D bytes, B bytes per second) and computing `C / a`, so the published optimum, 14 + 5, requires 970 s
< C < 1680 s for this D; 1,330 s is the middle. So the split is an input. The model then predicts the chunk
size, the distance between best and worst, and the costs.
"""

from __future__ import annotations

import argparse
import json
import random

from penstock.parts.prediction.workloads.task import File, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload

DATABASE_BYTES = 1000 << 20
LOOKUP_BYTES = 64 << 10
QUERIES, QUERY_S = 3800, 0.35
QUERY_BYTES, ANSWER_BYTES = 1000, 5000


def blast(
    tasks: int,
    query_s: float = QUERY_S,
    database_bytes: int = DATABASE_BYTES,
    lookup_bytes: int = LOOKUP_BYTES,
) -> Workload:
    """The queries divided over `tasks` searches, and one task that joins the answers."""
    places = random.Random(1)
    files = [File("database", database_bytes, True)]
    searches = []
    for i in range(tasks):
        queries = QUERIES // tasks + (i < QUERIES % tasks)
        query, answer = f"queries-{i}", f"answers-{i}"
        files += [File(query, queries * QUERY_BYTES, True), File(answer)]
        steps = [
            Operation("open", query),
            Operation("read", query, 0, queries * QUERY_BYTES),
            Operation("open", "database"),
            Operation("read", "database", 0, database_bytes),
        ]
        for _ in range(queries):
            at = places.randrange(database_bytes - lookup_bytes)
            steps.append(Operation("read", "database", at, lookup_bytes))
            steps.append(Operation("compute", seconds=query_s))
        steps.append(Operation("write", answer, 0, queries * ANSWER_BYTES))
        searches.append(Task(f"search-{i}", tuple(steps), "search"))
    join = [
        Operation("read", f"answers-{i}", 0, ANSWER_BYTES * (QUERIES // tasks))
        for i in range(tasks)
    ]
    join.append(Operation("write", "result", 0, QUERIES * ANSWER_BYTES))
    searches.append(Task("join", tuple(join), "join"))
    return Workload("blast", (*files, File("result")), tuple(searches))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", type=int)
    parser.add_argument("--query-s", type=float, default=QUERY_S)
    parser.add_argument("--database-bytes", type=int, default=DATABASE_BYTES)
    arguments = parser.parse_args()
    print(json.dumps(blast(arguments.tasks, arguments.query_s, arguments.database_bytes).to_dict()))
