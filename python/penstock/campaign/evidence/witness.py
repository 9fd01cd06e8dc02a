"""Independent sources of a disk's fidelity in addition to its own log: the tracer, and fio's own numbers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.campaign.evidence.observation import RunObservation
from penstock.errors import PenstockError
from penstock.study.resolve import ResolvedRun, example_command
from penstock.workload.parsers import parser
from penstock.workload.parsers.fio_report import read_report


def confirmation(
    seen: RunObservation, mounts: dict[str, Path], resolved: ResolvedRun
) -> pa.Table | None:
    """The table `confirmation` of a run, disk by disk; None if a source is missing.

    Also None unless the command is known to use direct I/O: only then does a call correspond to a request,
    without the page cache between the sources. `mounts`: mount point of each disk.
    """
    from penstock.analyse.fidelity.second_source import (
        confirm,  # pandas: not before the end of the first run
    )

    tables = seen.tables()
    if not {"files", "device_requests"} <= set(tables) or not asks_directly(resolved):
        return None
    traced = seen.events(["file_id", "direction", "done_bytes", "latency_ns"])
    if traced is None:
        return None
    parts = []
    for disk_id, mount in mounts.items():
        events = _events_of(traced, tables["files"], disk_id, mount)
        requests = tables["device_requests"]
        requests = requests.filter(pc.equal(requests["disk_id"].cast(pa.string()), disk_id))
        if events.num_rows == 0 or requests.num_rows == 0:
            continue
        confirmed = confirm(events, requests, direct=True)
        names = pa.array([disk_id] * confirmed.num_rows, pa.string())
        parts.append(confirmed.replace_schema_metadata(None).add_column(0, "disk_id", names))
    return pa.concat_tables(parts) if parts else None


def own_numbers(
    seen: RunObservation, resolved: ResolvedRun, run_dir: Path, stdout: str
) -> pa.Table | None:
    """The table `second_source` of a run of fio: its own numbers and the disks'.

    None without a report of fio. Unless direct I/O is known to be used, the page cache may be in between:
    then only requests that pass it individually are compared.
    """
    requests = seen.tables().get("device_requests")
    if requests is None or resolved.parser != "fio":
        return None
    from penstock.analyse.fidelity.fio_witness import confirm_fio, served_by_log

    try:
        report = read_report(run_dir, stdout)
    except PenstockError:
        return None
    try:
        return confirm_fio(report, served_by_log(requests), direct=asks_directly(resolved))
    except (AttributeError, LookupError, TypeError, ValueError):
        return None  # not a report of fio: its parser reports that


def doubted(confirmed: pa.Table | None, witness: str) -> list[str]:
    """Contradictions of an independent source to the disks' logs, as messages."""
    from penstock.analyse.fidelity.second_source import doubts

    return [] if confirmed is None else doubts(confirmed.to_pylist(), witness)


def asks_directly(resolved: ResolvedRun) -> bool:
    """True if every I/O job of the command bypasses the page cache, according to its parser."""
    try:
        jobs = parser(resolved.parser).operations(example_command(resolved))
    except PenstockError:
        return False
    return bool(jobs) and all(job.direct for job in jobs or [])


def _events_of(events: pa.Table, files: pa.Table, disk_id: str, mount: Path) -> pa.Table:
    """Events on a disk's files, with `path` relative to the mount."""
    prefix = f"{str(mount).rstrip('/')}/"
    own_files = files.filter(pc.equal(files["disk_id"].cast(pa.string()), disk_id))
    paths = {
        number: path.removeprefix(prefix)
        for number, path in zip(
            own_files["file_id"].to_pylist(),
            own_files["path"].cast(pa.string()).to_pylist(),
            strict=True,
        )
    }
    names = pa.table(
        {
            "file_id": pa.array(list(paths), events.schema.field("file_id").type),
            "path": pa.array(list(paths.values()), pa.string()),
        }
    )
    at = events.schema.get_field_index("direction")
    decoded = events.set_column(at, "direction", events["direction"].cast(pa.string()))
    return decoded.join(names, "file_id", join_type="inner").combine_chunks()
