"""Expected times of the store: service times identified with one client, and penstock's predictions.

`expected_document` gives the file with which `penstock check` compares a run. The model has none of the bugs:
locks, dropped connection requests, and reused orders.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from penstock.parts.prediction.prediction import Prediction
from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.workloads.formats.native_format import workload_from_dict
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import Platform
from tests.chunkstore.store import Load, Rows, Settings, Store

CONTROL_BYTES = 1024
#: seeds of the model; each is one simulated trial
SEEDS = range(1, 25)


@dataclass(frozen=True)
class Seeded:
    """The settings with the identified service times, and the latency of a message between two hosts."""

    settings: Settings
    latency_s: float


#: numbers of chunks of two files, whose difference gives the time of a chunk
_SIZES = (1, 4)


def seed(store: Store, trials: int = 10) -> None:
    """One client, one storage server, the manager, and files of two sizes. See `identify`."""
    for chunks in _SIZES:
        store.run(Load(clients=1, chunks=chunks, width=1, node=0), trials, f"seed{chunks}-")


def identify(rows: Rows, settings: Settings) -> Seeded:
    """Service times from the servers' own rows and the client's, by the closed forms of a lone client.

    A chunk takes S/B + F/B + 2c/B + 2L + μ_sm: the difference between files of two sizes gives L, which
    includes the cost of sockets, threads and connections. An open takes 4c/B + 2L + μ_ma.
    """

    def median_s(module: str, operation: str, begin: str, chunks: int) -> float:
        return float(
            statistics.median(
                r["ended"] - r[begin]
                for r in rows.records
                if (r["module"], r["operation"]) == (module, operation)
                and r["trial"].startswith(f"seed{chunks}-")
                and begin in r
            )
        )

    small, large = _SIZES
    control_s = CONTROL_BYTES / settings.rate_bps
    transfer_s = (settings.chunk_bytes + settings.frame_bytes) / settings.rate_bps
    storage_s = median_s("storage", "write", "received", large)
    difference_s = median_s("client", "write", "begun", large) - median_s(
        "client", "write", "begun", small
    )
    latency_s = (difference_s / (large - small) - transfer_s - 2 * control_s - storage_s) / 2
    manager_s = median_s("client", "open", "begun", small) - 4 * control_s - 2 * latency_s
    identified = replace(
        settings, storage_service_s=storage_s, manager_service_s=max(manager_s, 1e-6)
    )
    return Seeded(identified, max(latency_s, 0.0))


def platform(seeded: Seeded, load: Load) -> Platform:
    settings = seeded.settings
    storage = {k: {"overhead": _us(settings.storage_service_s)} for k in ("read", "write")}
    manager = {"service": _us(settings.manager_service_s), "servers": 64}
    return Platform.from_dict(
        {
            "penstock_platform": 1,
            "name": "chunkstore",
            "hosts": [
                {"group": "c", "count": load.clients, "roles": ["client"]},
                {"group": "s", "count": settings.nodes, "roles": ["storage"], "storage": storage},
                {"group": "m", "count": 1, "roles": ["manager"], "manager": manager},
            ],
            "network": {
                "bandwidth": f"{settings.rate_bps:.0f} B/s",
                "loopback": "1 GB/s",
                "latency": _us(seeded.latency_s),
            },
            "protocol": {
                "frame": f"{settings.frame_bytes}B",
                "control": f"{CONTROL_BYTES}B",
                "merge_frames": False,
            },
            "preprocess": {"aggregate": False},
            "store": {
                "chunk": f"{settings.chunk_bytes}B",
                "stripe": min(load.width, settings.nodes),
                # each client has its own group; groups are placed on the servers in turn
                "shuffle": "none" if load.apart else "fresh",
                "window": 1,
            },
        }
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3f}us"


def workload(settings: Settings, load: Load) -> Workload:
    def hints(client: int) -> dict[str, Any]:
        if load.node is None and not load.apart:
            return {}
        return {"hints": {"placement": "collocate", "group": f"g{client if load.apart else 0}"}}

    def last(client: int) -> list[dict[str, Any]]:
        """The operations that gather, by the name of their file."""
        if load.gather is None:
            return []
        nbytes = settings.chunk_bytes
        return [{"op": "write", "file": f"last{client}", "size_bytes": nbytes}]

    gathered = {"placement": "collocate", "group": "last"}
    names = [[f"f{c}-{n}" for n in range(load.files)] for c in range(load.clients)]
    nbytes = load.chunks * settings.chunk_bytes
    return workload_from_dict(
        {
            "schema": "penstock/workload/1",
            "name": "chunkstore",
            # files are opened before they are written, so they exist, and are empty
            "files": [
                {"name": f, "size_bytes": 0, "preloaded": True, **hints(c)}
                for c, files in enumerate(names)
                for f in files
            ]
            + [
                {"name": f"last{c}", "size_bytes": 0, "preloaded": True, "hints": gathered}
                for c in range(load.clients)
                if load.gather is not None
            ],
            "tasks": [
                {
                    "name": f"t{c}",
                    "machine": f"c-{c}",
                    "operations": [
                        operation
                        for f in files
                        for operation in (
                            {"op": "open", "file": f},
                            {"op": "write", "file": f, "size_bytes": nbytes},
                        )
                    ]
                    + last(c),
                }
                for c, files in enumerate(names)
            ],
        }
    )


def predict_trials(seeded: Seeded, load: Load, seeds: Sequence[int] = SEEDS) -> list[Prediction]:
    """A prediction of one trial for each seed."""
    work, hosts = workload(seeded.settings, load), platform(seeded, load)
    return [predict(work, hosts, seeds=[s]) for s in seeds]


#: modules and operations with their expected metric
Metrics = Sequence[tuple[str, str, str]]
EVERYTHING: Metrics = (
    ("workflow", "run", "makespan"),
    ("storage", "write", "server_time"),
    ("manager", "open", "server_time"),
    ("manager", "alloc", "server_time"),
    ("manager", "commit", "server_time"),
    ("client", "open", "client_time"),
    ("client", "write", "client_time"),
)


def expected_document(
    seeded: Seeded, load: Load, name: str, metrics: Metrics = EVERYTHING, *, at_least: int = 15
) -> dict[str, Any]:
    """The file of expected values: means over the seeds; each seed is a trial."""
    predictions = predict_trials(seeded, load)
    return {
        "penstock_expected": 1,
        "name": name,
        "trials": {"at_least": at_least},
        "rows": [
            {
                "module": module,
                "operation": operation,
                "metric": metric,
                "predicted": statistics.fmean(
                    _of(prediction, module, operation) for prediction in predictions
                ),
                "unit": "s",
            }
            for module, operation, metric in metrics
        ],
    }


def _of(prediction: Prediction, module: str, operation: str) -> float:
    """Time of an operation of a module in one run of the model [s]."""
    if module == "workflow":
        return prediction.makespan_s
    if module == "client":
        return float(prediction.operations[operation]["mean_s"])
    stations = [s for s in prediction.stations if s["kind"] == module and s["requests"]]
    total_s = sum(s["busy_s"] + s["requests"] * s["wait_mean_s"] for s in stations)
    return float(total_s / sum(s["requests"] for s in stations))


def write(document: dict[str, Any], path: Path) -> Path:
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path
