"""PostgreSQL, RocksDB and HDFS as packaged, on emulated disks: certificate and an independent source.

`studies/systems_on_disks.py` runs `studies/systems-on-disks.study.yaml` (needs root, PostgreSQL,
rocksdb-tools, Maven and Java), then compares the bytes that the tracer saw in calls with those that each disk
served by its log, file by file. `--quick`: 16 MiB per system and one replicate, minutes. Planted failure: the
same runs with the larger requests removed from the disks' logs, each of which must be reported. Exit status 3
if a claim is not met or not measured (no run of a treatment is valid), 1 if something failed or the planted
failure is not detected.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from penstock.archive.bundle import Bundle
from penstock.errors import PenstockError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "blackbox"))
sys.path.insert(0, str(HERE / "systems"))

sys.path.insert(0, str(HERE.parent))

from disks import run_study  # noqa: E402
from witnessed import DIRECT, large, witnessed  # noqa: E402

from bench import record  # noqa: E402
from penstock.study.load import load_study  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim, Finding, claim, met_if, valid_runs  # noqa: E402
from studies.common.options import options as shared_options  # noqa: E402

STUDY = HERE / "systems-on-disks.study.yaml"
DISK = "node1.data"
ABOUT = (
    "Files of 1 MiB or more; those that were read through the cache only in part are not judged."
)


def evaluate_runs(out: Path, plant: bool = False) -> list[dict[str, Any]]:
    """A row per run: normal end, verdict of its certificate, agreement of the two sources."""
    rows: list[dict[str, Any]] = []
    if not (out / "runs.parquet").exists():
        return rows
    runs = pd.read_parquet(out / "runs.parquet").sort_values("run_order")
    for run in runs.to_dict("records"):
        row: dict[str, Any] = {k: run[k] for k in ("run_id", "disk", "system", "replicate")}
        row |= {"time_s": run["time"], "certificate": bool(run["valid"]), "reason": run["reason"]}
        bundle = Bundle.open(out / "runs" / str(run["run_id"]))
        row["ended_well"] = bundle.manifest["exit_status"] == 0
        seen = large(witnessed(bundle, DISK, plant=plant)) if row["ended_well"] else []
        direct = row["system"] in DIRECT
        verdicts = [(file, file.agrees(direct)) for file in seen]
        row["judged"] = sum(v is not None for _, v in verdicts)
        row["ratios"] = sorted(file.ratio(direct) for file, v in verdicts if v is not None)
        row["bytes"] = sum(file.disk for file, v in verdicts if v is not None)
        row["apart"] = [f"{file.file} ({file.direction})" for file, v in verdicts if v is False]
        row["confirmed"] = bool(row["judged"]) and not row["apart"]
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """One line per run."""
    table = Table(box=None, pad_edge=False)
    for heading in ("disk", "system", "time s", "ended", "certificate", "files", "MiB"):
        table.add_column(
            heading, justify="right" if heading in ("time s", "files", "MiB") else "left"
        )
    table.add_column("disk / tracer")
    for row in rows:
        ratios = row["ratios"]
        ratio_range = f"{ratios[0]:.4f} to {ratios[-1]:.4f}" if ratios else ""
        table.add_row(
            row["disk"],
            row["system"],
            f"{row['time_s']:.3g}",
            "well" if row["ended_well"] else "BADLY",
            "valid" if row["certificate"] else "not valid",
            str(row["judged"]),
            f"{row['bytes'] / 2**20:.1f}",
            ratio_range + ("" if row["confirmed"] else " APART: " + ", ".join(row["apart"][:2])),
        )
    Console(width=110, highlight=False).print(table)
    for row in rows:
        if not row["certificate"]:
            print(f"{row['run_id']}: {str(row['reason'])[:160]}", file=sys.stderr)


def main() -> int:
    """Exit status: 0 every claim is met, 1 something failed, 3 a claim is not met or not measured."""
    document = (__doc__ or "").splitlines()[0]
    options = shared_options(document, "systems-on-disks", "16 MiB, one replicate")
    arguments = options.parse_args()
    out: Path = arguments.out.resolve()
    try:
        if not arguments.compare:
            overrides = ["--quick", "--set", "design.replicates=1"] if arguments.quick else []
            run_study(STUDY, out, overrides)
        rows = evaluate_runs(out)
        detected = (
            not any(row["confirmed"] for row in evaluate_runs(out, plant=True)) if rows else None
        )
    except PenstockError as error:
        print(f"systems-on-disks: {error}", file=sys.stderr)
        return 1
    claims = claims_of(rows)
    if arguments.json:
        print(json.dumps({"runs": rows, "claims": checks.as_json(claims)}, default=str))
    else:
        show(rows)
        checks.show(claims, 110)
    planted = {"the larger requests lost": detected}
    record.keep(arguments.record, record_rows(rows), planted, ABOUT)
    return checks.finish("systems-on-disks", claims, planted)


def claims_of(rows: list[dict[str, Any]]) -> list[Claim]:
    """For each system on each disk: tracer and disk agree on its bytes in every valid run."""
    study = load_study(STUDY)
    claims = []
    for system in (level.name for level in study.factor("system").levels):
        for disk in (level.name for level in study.factor("disk").levels):
            valid = [
                r for r in rows
                if (r["system"], r["disk"]) == (system, disk) and r["certificate"] and r["ended_well"]
            ]  # fmt: skip
            treatment = f"{system} {disk}"
            wording = "bytes by the disk over those by the tracer, file by file, within 5 %"
            needs = valid_runs([treatment], [treatment] * len(valid))
            claims.append(claim(f"{system}, {disk}", wording, needs, lambda v=valid: _agree(v)))
    return claims


def _agree(valid: list[dict[str, Any]]) -> Finding:
    ratios = sorted(ratio for row in valid for ratio in row["ratios"])
    differing = [file for row in valid for file in row["apart"]]
    if not ratios:
        return Finding(checks.Result.NOT_MEASURED, "no file that both see completely")
    evidence = f"{ratios[0]:.4f} to {ratios[-1]:.4f} of {len(ratios)} files in {len(valid)} runs"
    if differing:
        evidence += f"; apart: {', '.join(differing[:2])}"
    return met_if(all(row["confirmed"] for row in valid), evidence)


def record_rows(run_rows: list[dict[str, Any]]) -> list[record.Row]:
    """The claims, and the number of valid certificates."""
    valid = sum(row["certificate"] for row in run_rows)
    return [
        *checks.rows(claims_of(run_rows)),
        record.share("runs", "", "certificates valid", valid, len(run_rows)),
    ]


if __name__ == "__main__":
    sys.exit(main())
