"""Records of a disk in a run, for the process that ran the disk and for the one that evaluates it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.plugins import DISK_BACKENDS

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.analyse.fidelity.fidelity import Certificate


@dataclass(frozen=True)
class Recorded:
    """Counters and records of one disk in a run, and its requests.

    `backend` ran it, chosen for the `reason`; `stats` and `facts` are the disk's own, `tables` its records by
    name. `profile` is the initial one, `changes` the later changes with the fields of `Applied`.
    """

    disk_id: str
    backend: str
    stats: Mapping[str, Any]
    tables: Mapping[str, pa.Table]
    facts: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    warnings: tuple[str, ...] = ()
    profile: Mapping[str, Any] = field(default_factory=dict)
    changes: Sequence[Mapping[str, Any]] = ()

    def certificate(
        self, utilisation: pa.Table | None, run_cpu_ns: int | None = None
    ) -> Certificate | None:
        """Fidelity of the disk according to its back end; None if that has no certificate.

        `utilisation` of the host, if it was monitored, distinguishes a busy host from an inaccurate disk;
        `run_cpu_ns`, the processor time of the run, distinguishes its load from that of other programs.
        """
        certificate: Certificate | None = DISK_BACKENDS.load(self.backend).certificate(
            self, utilisation, run_cpu_ns
        )
        return certificate

    def to_files(self, spool: Path) -> dict[str, Any]:
        """JSON values for another process, with tables as files (Parquet) of `spool`; without `profile` and
        `changes`, which that process has."""
        from penstock.archive.bundle import write_parquet

        files = {}
        for name, table in self.tables.items():
            path = spool / f"{self.disk_id}.{name}.parquet"
            write_parquet(path, table)
            files[name] = str(path)
        return {
            "stats": dict(self.stats),
            "facts": dict(self.facts),
            "tables": files,
            "backend": self.backend,
            "reason": self.reason,
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_files(
        cls,
        disk_id: str,
        record: Mapping[str, Any],
        profile: Mapping[str, Any],
        changes: Sequence[Mapping[str, Any]],
    ) -> Recorded:
        """Read the result of `to_files` from another process and remove its files."""
        import pyarrow.parquet as pq

        tables = {}
        for name, path in record["tables"].items():
            tables[name] = pq.read_table(path)
            Path(path).unlink()
        return cls(
            disk_id,
            record["backend"],
            record["stats"],
            tables,
            record["facts"],
            record["reason"],
            tuple(record["warnings"]),
            profile,
            changes,
        )


def changes_by_disk(changes: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Changes of an owner's disks, by disk_id."""
    by_disk: dict[str, list[Mapping[str, Any]]] = {}
    for change in changes:
        if change["resource"] == "disk":
            by_disk.setdefault(f"{change['node']}.{change.get('name')}", []).append(change)
    return by_disk
