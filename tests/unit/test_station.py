"""The station through its Python names: the published shapes of flash drives, and arrays in and out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from penstock.profile import load_profile
from penstock.profile.cells import Cell, Measurements
from penstock.profile.fit import fit_profile
from penstock.profile.model import native

#: one process, synchronous direct, MB/s: model → (direction, sequential, block) → value (ES-3's table)
PUBLISHED = {
    "PX02SSF020": {
        ("read", True): (43.2, 172.0),
        ("read", False): (31.0, 148.0),
        ("write", True): (88.2, 312.0),
        ("write", False): (64.0, 292.0),
    },
    "PX05SMB040": {
        ("read", True): (136.0, 491.0),
        ("read", False): (40.1, 220.0),
        ("write", True): (123.0, 496.0),
        ("write", False): (99.2, 470.0),
    },
    "C400-MTFDDAA064M": {
        ("read", True): (61.9, 143.0),
        ("read", False): (25.0, 75.0),
        ("write", True): (58.0, 97.0),
        ("write", False): (38.0, 86.0),
    },
}
BLOCKS = (4096, 28 * 1024)


def rate_bps(profile_json: str, rw: str, block: int, jobs: int, operations: int = 3000) -> float:
    spec = {
        "profile": json.loads(profile_json),
        "seed": 4,
        "operations": operations,
        "clients": [
            {
                "count": jobs,
                "pattern": {
                    "kind": "random" if rw.startswith("rand") else "sequential",
                    "op": rw.removeprefix("rand"),
                    "block_bytes": block,
                    "file_bytes": 4 << 30,
                },
            }
        ],
    }
    outcome = json.loads(native.simulate_closed(json.dumps(spec)))
    return float(outcome[rw.removeprefix("rand")]["rate_bps"])


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_profile_fitted_from_a_published_row_gives_its_eight_cells(model: str) -> None:
    cells = []
    for (op, sequential), values in PUBLISHED[model].items():
        for block, mb_per_s in zip(BLOCKS, values, strict=True):
            iops = mb_per_s * 1e6 / block
            latency = np.array([1e9 / iops])
            cells.append(Cell(op, sequential, block, 1, 1, iops, latency, np.array([1000.0])))
    fit = fit_profile(Measurements(cells, None, ""), model, [])
    for (op, sequential), values in PUBLISHED[model].items():
        for block, mb_per_s in zip(BLOCKS, values, strict=True):
            rw = op if sequential else f"rand{op}"
            found = rate_bps(fit.profile.json, rw, block, 1) / 1e6
            assert found == pytest.approx(mb_per_s, rel=0.10), (op, sequential, block)


def test_flash_penalty_of_random_reads_goes_with_jobs_and_with_block_size() -> None:
    ssd = load_profile("sata-ssd").json

    def penalty(block: int, jobs: int) -> float:
        return rate_bps(ssd, "read", block, jobs) / rate_bps(ssd, "randread", block, jobs)

    assert penalty(4096, 1) >= 2
    assert penalty(4096, 16) <= 1.1
    assert penalty(64 * 1024, 1) <= 1.1
    assert penalty(256 * 1024, 1) <= 1.1
    # and writes coincide
    assert rate_bps(ssd, "write", 4096, 1) == pytest.approx(
        rate_bps(ssd, "randwrite", 4096, 1), rel=0.05
    )


def test_flash_without_read_ahead_reads_streams_as_slowly_as_random() -> None:
    values = load_profile("sata-ssd").to_dict()
    with_it = rate_bps(json.dumps(values), "read", 4096, 1)
    values["sequential_streams"] = 0
    without = rate_bps(json.dumps(values), "read", 4096, 1)
    random = rate_bps(json.dumps(values), "randread", 4096, 1)
    assert without / random == pytest.approx(1.0, abs=0.1)
    assert without < with_it


def serve(profile: str, t_ns: list[int], op: list[int], offset: list[int]) -> dict[str, Any]:
    served = native.station_serve(
        load_profile(profile).json,
        1,
        np.array(t_ns, dtype=np.uint64),
        np.array(op, dtype=np.uint8),
        np.array(offset, dtype=np.uint64),
        np.full(len(t_ns), 4096, dtype=np.uint64),
    )
    return {
        name: np.frombuffer(column, dtype=np.uint8 if name == "sequential" else np.uint64).tolist()
        for name, column in served.items()
    }


def test_arrays_in_and_out() -> None:
    served = serve("service-5ms", [0, 0, 20_000_000], [0, 1, 0], [0, 8192, 4096])
    assert served["due_ns"] == [5_000_000, 10_000_000, 25_000_000]
    assert served["wait_ns"] == [0, 5_000_000, 0]
    assert served["service_ns"] == [5_000_000] * 3
    assert served["visit"] == [0, 0, 0]


def test_arrays_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="operation code 7"):
        serve("service-5ms", [0], [7], [0])
    with pytest.raises(ValueError, match="differ in length"):
        serve("service-5ms", [0, 1], [0], [0])
    with pytest.raises(ValueError, match="unknown field"):
        native.simulate_closed('{"profil": {}}')
