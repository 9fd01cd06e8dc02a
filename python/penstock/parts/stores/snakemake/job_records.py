"""Records of the jobs of a run: one JSON line for each, and a summary."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock.parts.stores.tags import Tagged
from penstock.text import percentage

#: names of the tables of a directory
RECORDS = "jobs-*.jsonl"


@dataclass
class JobRecord:
    """A job: node, times [s since the start of the run], bytes of its files there and elsewhere, hints.

    `submitted_s`: Snakemake handed it over; `sent_s`: the node received it; `started_s` and `ended_s`: its
    process. `direct`: the shell command without another Snakemake. `outputs`: bytes by path, of a job that
    succeeded. `tags`: results of the hints.
    """

    job: str
    rule: str
    node: str = ""
    direct: bool = False
    submitted_s: float = 0.0
    sent_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    status: int | None = None
    input_local_bytes: int = 0
    input_remote_bytes: int = 0
    output_local_bytes: int = 0
    output_remote_bytes: int = 0
    outputs: dict[str, int] = field(default_factory=dict)
    tags: list[Tagged] = field(default_factory=list)


class JobRecords:
    """Table of a run, a line per ended job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[JobRecord] = []
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, row: JobRecord) -> None:
        """Append an ended job."""
        self.rows.append(row)
        with self.path.open("a") as table:
            values = {**asdict(row), "tags": [tag.to_dict() for tag in row.tags]}
            table.write(json.dumps(values) + "\n")

    def summary(self) -> str:
        """Jobs, nodes, local bytes and hints of the run, as text."""
        failed = sum(row.status != 0 for row in self.rows)
        nodes = len({row.node for row in self.rows if row.node})
        local = sum(row.input_local_bytes for row in self.rows)
        total = local + sum(row.input_remote_bytes for row in self.rows)
        tags = [tag for row in self.rows for tag in row.tags]
        refused = sum(tag.support.how == "refused" for tag in tags)
        share = "no input bytes"
        if total:
            share = (
                f"{percentage(local / total)} of {total} input bytes were on the node of their job"
            )
        return (
            f"{len(self.rows)} jobs ({failed} failed) on {nodes} nodes; {share}; "
            f"hints: {len(tags) - refused} applied, {refused} refused; jobs: {self.path}"
        )
