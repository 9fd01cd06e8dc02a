"""Counterparts of other programs' metrics among the recorder's samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Foreign:
    """Counterpart of another exporter's metric; `entity`: label of its entity; `scale`: factor of values."""

    source: str
    metric: str
    unit: str
    entity: str | None = None
    scale: float = 1.0
    cumulative: bool = True


#: node_exporter's metrics (the README of its collectors)
NODE_EXPORTER = {
    "node_load1": Foreign("cpu", "load_1min", "1", cumulative=False),
    "node_load5": Foreign("cpu", "load_5min", "1", cumulative=False),
    "node_load15": Foreign("cpu", "load_15min", "1", cumulative=False),
    "node_disk_io_time_seconds_total": Foreign("disk", "io_time", "ms", "device", 1e3),
    "node_disk_io_time_weighted_seconds_total": Foreign("disk", "queue_time", "ms", "device", 1e3),
    "node_disk_read_bytes_total": Foreign("disk", "read_bytes", "B", "device"),
    "node_disk_written_bytes_total": Foreign("disk", "written_bytes", "B", "device"),
    "node_disk_reads_completed_total": Foreign("disk", "reads", "1", "device"),
    "node_disk_writes_completed_total": Foreign("disk", "writes", "1", "device"),
    "node_network_receive_bytes_total": Foreign("network", "received_bytes", "B", "device"),
    "node_network_transmit_bytes_total": Foreign("network", "sent_bytes", "B", "device"),
    "node_memory_MemAvailable_bytes": Foreign("memory", "available", "B", cumulative=False),
    "node_filesystem_avail_bytes": Foreign(
        "filesystem", "free", "B", "mountpoint", cumulative=False
    ),
    "node_filesystem_size_bytes": Foreign(
        "filesystem", "size", "B", "mountpoint", cumulative=False
    ),
}
