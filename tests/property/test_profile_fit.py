"""A profile fitted to simulated fio results of a known device reproduces the device."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.campaign.measurements.measure_profile import FULL, QUICK, Grid
from penstock.errors import BadInput
from penstock.profile import StorageProfile, load_profile
from penstock.profile.cells import cells_from_fio
from penstock.profile.fit import fit_profile
from penstock.profile.model import native

_P = [(i + 0.5) / 1000 for i in range(1000)]


def simulated_fio(profile: StorageProfile, grid: Grid, seed: int) -> list[dict[str, Any]]:
    """Simulated fio results of each cell on this device, from the station in virtual time."""
    documents = []
    for cell in grid.cells():
        jobs, rw, block = int(cell.get("numjobs", 1)), str(cell["rw"]), int(cell["bs"])
        op = rw.removeprefix("rand")
        spec = {
            "profile": profile.to_dict(),
            "seed": seed,
            "operations": 4000,
            "quantiles": _P,
            "clients": [
                {
                    "count": jobs,
                    "pattern": {
                        "kind": "random" if rw.startswith("rand") else "sequential",
                        "op": op,
                        "block_bytes": block,
                        "file_bytes": 8 << 30,
                    },
                }
            ],
        }
        result = json.loads(native.simulate_closed(json.dumps(spec)))[op]
        bins: dict[str, int] = {}
        for _, ns in result["latency_ns"]:
            bins[str(round(ns))] = bins.get(str(round(ns)), 0) + 4
        job: dict[str, Any] = {
            "jobname": "cell",
            "job options": {k: str(v) for k, v in cell.items()},
            op: {"iops": result["iops"], "total_ios": 4000 * jobs, "lat_ns": {"bins": bins}},
        }
        if cell.get("fsync"):
            mean_ns = round(profile.moments("flush", False, 0).mean * 1e9)
            job["sync"] = {"lat_ns": {"bins": {str(mean_ns): 100}}}
        documents.append({"fio version": "simulated", "jobs": [job]})
    return documents


def device(kind: str) -> StorageProfile:
    """Known devices of the model that the fit assumes (no read buffer)."""
    classes = {
        "disk": ((0.0002, 0.0), (0.011, 0.4), 2.0e8, 1),
        "flash": ((0.00005, 0.3), (0.00012, 0.2), 5.0e8, 8),
        "flat": ((0.0007, 0.35), (0.0007, 0.35), 4.0e8, 4),
    }
    stream, random, rate, servers = classes[kind]

    def access(mean: float, sigma: float) -> dict[str, Any]:
        distribution = {"kind": "lognormal", "mean_s": mean, "sigma": sigma}
        constant = {"kind": "constant", "value_s": mean}
        return {"overhead": distribution if sigma else constant, "rate_bps": rate}

    direction = {"sequential": access(*stream), "random": access(*random)}
    return StorageProfile.from_dict(
        {
            "schema": "penstock/storage-profile/1",
            "name": kind,
            "servers": servers,
            "read": direction,
            "write": direction,
            "flush": {"overhead": {"kind": "constant", "value_s": 0.002}},
            "sequential_streams": 64 if kind == "flash" else 1,
        }
    )


@pytest.mark.parametrize("kind", ["disk", "flash", "flat"])
def test_a_known_device_is_recovered(kind: str) -> None:
    truth = device(kind)
    measured = cells_from_fio(simulated_fio(truth, FULL, seed=3))
    fit = fit_profile(measured, "fitted", [])
    assert fit.worst_rate_error < 0.05
    assert fit.profile.servers == truth.servers
    assert fit.profile.moments("flush", False, 0).mean == pytest.approx(0.002)
    for op in ("read", "write"):
        for sequential in (True, False):
            a, b = (p.moments(op, sequential, 4096) for p in (truth, fit.profile))
            assert b.mean == pytest.approx(a.mean, rel=0.05)
            assert b.p50 == pytest.approx(a.p50, rel=0.05)
            assert b.p99 == pytest.approx(a.p99, rel=0.15)
            assert b.capacity_iops == pytest.approx(a.capacity_iops, rel=0.05)
            large = [p.moments(op, sequential, 1 << 20).mean for p in (truth, fit.profile)]
            assert large[1] == pytest.approx(large[0], rel=0.05)
    streams = fit.profile.to_dict()["sequential_streams"]
    assert streams == {"disk": 1, "flash": 16, "flat": 16}[kind]


def test_limits_of_the_interface_are_recovered() -> None:
    truth = StorageProfile.from_dict(
        device("flash").to_dict() | {"interface_iops": 20000.0, "interface_rate_bps": 4.0e8}
    )
    fit = fit_profile(cells_from_fio(simulated_fio(truth, FULL, seed=5)), "fitted", [])
    fitted = fit.profile.to_dict()
    assert fitted["interface_iops"] == pytest.approx(20000, rel=0.05)
    assert fitted["interface_rate_bps"] == pytest.approx(4.0e8, rel=0.05)


def test_a_wrong_device_is_detected() -> None:
    documents = simulated_fio(device("disk"), QUICK, seed=3)
    fit = fit_profile(cells_from_fio(documents), "fitted", [])
    for document in documents:
        for part in ("read", "write"):
            if part in document["jobs"][0]:
                document["jobs"][0][part]["iops"] *= 0.9
    spoiled = fit_profile(cells_from_fio(documents), "fitted", [])
    assert fit.worst_rate_error < 0.06 < spoiled.worst_rate_error


def test_quick_grid_of_ready_profiles_fits_within_a_quarter() -> None:
    for name in ("hdd-7200", "service-5ms", "network-volume"):
        fit = fit_profile(cells_from_fio(simulated_fio(load_profile(name), QUICK, 1)), name, [])
        assert fit.worst_rate_error < 0.25, name


def test_plain_json_without_bins_is_refused() -> None:
    document = {
        "jobs": [
            {
                "jobname": "j",
                "job options": {"rw": "read"},
                "read": {"total_ios": 5, "iops": 1, "lat_ns": {"mean": 3}},
            }
        ]
    }
    with pytest.raises(BadInput, match="json\\+"):
        cells_from_fio([document])
    with pytest.raises(BadInput, match="no fio job"):
        cells_from_fio([{"jobs": []}])
