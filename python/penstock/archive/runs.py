"""Tables of all runs of a study, built from its bundles: `runs.parquet`, `attempts.parquet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES, described
from penstock.errors import PenstockError

#: additional values of a response in a degraded run
ENDS = ("low", "high")


def bundles(out: Path) -> list[Bundle]:
    """Complete runs of a study (the last attempt at each), in the order of the plan."""
    return [b for b in attempts(out) if ".attempt" not in b.path.name]


def attempts(out: Path) -> list[Bundle]:
    """All completed attempts, in the order of the plan, earlier attempts first."""
    bundles = []
    for path in (out / "runs").glob("*/manifest.json"):
        if path.parent.name.startswith("."):
            continue
        try:
            bundles.append(Bundle.open(path.parent))
        except PenstockError:
            continue
    return sorted(
        bundles,
        key=lambda b: (
            int(b.manifest.get("run_order") or 0),
            b.manifest["run_id"],
            int(b.manifest["attempt"]),
        ),
    )


def set_aside(out: Path, run_id: str) -> None:
    """Rename the present bundle of a run to its attempt's name, to free the name for the next attempt."""
    bundle = Bundle.open(out / "runs" / run_id)
    attempt = int(bundle.manifest["attempt"])
    bundle.path.rename(out / "runs" / f"{run_id}.attempt{attempt}")


def runs_table(bundles: list[Bundle], factors: list[str], responses: list[str]) -> pa.Table:
    """One row per bundle: keys, position in the plan, factors (level names), responses, validity."""
    fixed = TABLES["runs"].columns
    head = [
        c
        for c in fixed
        if c.name
        not in (
            *("state", "valid", "validity", "delay_share", "others_cpus", "reason"),
            *("start_realtime_ns", "wall_s", "host_id"),
        )
    ]
    tail = [c for c in fixed if c not in head]
    rows = [_row(b.manifest) for b in bundles]
    ends = [f"{r}:{end}" for r in responses for end in ENDS if _is_bounded(rows, r)]
    names = [c.name for c in head] + factors + responses + ends + [c.name for c in tail]
    arrays = []
    by_name = {c.name: c.arrow for c in fixed}
    for name in names:
        if name in by_name:
            arrays.append(pa.array([r.get(name) for r in rows], by_name[name]))
        elif name in factors:
            arrays.append(pa.array([_level(r, name) for r in rows], pa.string()))
        elif name in responses:
            arrays.append(pa.array([_response(r, name) for r in rows], pa.float64()))
        else:
            arrays.append(pa.array([_end(r, *name.rsplit(":", 1)) for r in rows], pa.float64()))
    fields = []
    for name, array in zip(names, arrays, strict=True):
        unit = next((u for r in rows if (u := _unit(r, name))), None) if name in responses else None
        fields.append(pa.field(name, array.type, metadata={"unit": unit} if unit else None))
    return described("runs", pa.table(arrays, schema=pa.schema(fields)))


def attempts_table(bundles: list[Bundle]) -> pa.Table:
    """One row per attempt, including repeated ones."""
    columns = TABLES["attempts"].columns
    rows = [_row(b.manifest) for b in bundles]
    arrays = [pa.array([r.get(c.name) for r in rows], c.arrow) for c in columns]
    return described("attempts", pa.table(arrays, names=[c.name for c in columns]))


def joined(bundles: list[Bundle], name: str) -> pa.Table | None:
    """Concatenation of a table over all bundles; None if none has it."""
    return one_table(name, [b.table(name) for b in bundles if name in b.tables])


def one_table(name: str, parts: list[pa.Table]) -> pa.Table | None:
    """Concatenation of the parts of a table; None without parts."""
    if not parts:
        return None
    plain = [undictionaried(p) for p in parts]
    return described(name, pa.concat_tables(plain, promote_options="permissive"))


def _row(manifest: Mapping[str, Any]) -> dict[str, Any]:
    times = manifest.get("times", {})
    return {
        "stage": 1,
        **manifest,
        "start_realtime_ns": times.get("start_realtime_ns"),
        "wall_s": times.get("wall_s"),
        "validity": validity_of(manifest),
        "delay_share": _delay_share(manifest),
        "others_cpus": manifest.get("delay", {}).get("others_cpus"),
        "host_id": manifest.get("host", {}).get("host_id"),
    }


def validity_of(manifest: Mapping[str, Any]) -> str:
    """`valid`, `degraded` or `invalid`, also for manifests that predate degraded runs."""
    return str(manifest.get("validity", "valid")) if manifest["valid"] else "invalid"


def _delay_share(manifest: Mapping[str, Any]) -> float | None:
    delay = manifest.get("delay")
    return delay["late_s"] / delay["wall_s"] if delay and "late_s" in delay else None


def _is_bounded(rows: Sequence[Mapping[str, Any]], response: str) -> bool:
    return any("low" in row["responses"].get(response, {}) for row in rows)


def _end(row: Mapping[str, Any], response: str, end: str) -> float | None:
    """One end of the bound on a response: the value itself without a bound, null if unknown."""
    measured = row["responses"].get(response, {})
    value = measured.get(end, measured.get("value"))
    return None if value is None else float(value)


def _level(row: Mapping[str, Any], factor: str) -> str | None:
    value = row["levels"].get(factor)
    return None if value is None else str(value)


def _response(row: Mapping[str, Any], name: str) -> float | None:
    value = row["responses"].get(name, {}).get("value")
    return None if value is None else float(value)


def _unit(row: Mapping[str, Any], name: str) -> str | None:
    unit = row["responses"].get(name, {}).get("unit")
    return None if unit is None else str(unit)


def undictionaried(table: pa.Table) -> pa.Table:
    """The table with plain columns instead of dictionaries, without metadata."""
    fields = [
        pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
        for f in table.schema
    ]
    return table.replace_schema_metadata(None).cast(pa.schema(fields))
