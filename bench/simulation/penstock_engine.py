"""penstock's own simulator as one of the engines."""

from __future__ import annotations

import json
from typing import Any

from penstock import _native as native

Json = dict[str, Any]


class Simulator:
    """Simulator of one workload, which is read once, on any platform."""

    def __init__(self, workload: Json) -> None:
        self.workload = native.NetworkWorkload(json.dumps(workload))

    def outcome(self, network_json: str, seed: int = 1) -> str:
        """Simulate from JSON to JSON: the timed part."""
        return str(self.workload.simulate(network_json, seed))

    def simulate(self, network: Json, seed: int = 1) -> Json:
        """Outcome of a simulation. RuntimeError if the store of the simulated platform failed."""
        document: Json = json.loads(self.outcome(json.dumps(network), seed))
        if document["error"] is not None:
            raise RuntimeError(f"the simulated run failed: {document['error']}")
        return document

    def many(self, networks: list[str], seeds: list[int], threads: int = 0) -> list[list[str]]:
        """Outcomes as JSON by network and seed, on `threads` threads (0: all cores)."""
        return list(self.workload.simulate_many(networks, seeds, threads))


def frames(network: Json) -> Json:
    """The same platform with a separate event for every frame."""
    return network | {"protocol": network["protocol"] | {"merge_frames": False}}
