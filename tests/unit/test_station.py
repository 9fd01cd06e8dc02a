"""The station through its Python interface: published rates of flash drives, and arrays in and out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from penstock.profile import load_profile, ready_names
from penstock.profile.cells import Cell, Measurements
from penstock.profile.fit import fit_profile
from penstock.profile.model import native

#: one process, synchronous direct, MB/s: model → (direction, sequential, block) → value (published table)
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
MIB = 1 << 20


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
            rate_mb_per_s = rate_bps(fit.profile.json, rw, block, 1) / 1e6
            assert rate_mb_per_s == pytest.approx(mb_per_s, rel=0.10), (op, sequential, block)


def test_flash_penalty_of_random_reads_falls_with_jobs_and_block_size() -> None:
    ssd = load_profile("sata-ssd").json

    def penalty(block: int, jobs: int) -> float:
        return rate_bps(ssd, "read", block, jobs) / rate_bps(ssd, "randread", block, jobs)

    assert penalty(4096, 1) >= 2
    assert penalty(4096, 16) <= 1.1
    assert penalty(64 * 1024, 1) <= 1.1
    assert penalty(256 * 1024, 1) <= 1.1
    # random and sequential writes have equal rates
    assert rate_bps(ssd, "write", 4096, 1) == pytest.approx(
        rate_bps(ssd, "randwrite", 4096, 1), rel=0.05
    )


def test_flash_without_read_ahead_reads_streams_as_slowly_as_random() -> None:
    values = load_profile("sata-ssd").to_dict()
    with_streams = rate_bps(json.dumps(values), "read", 4096, 1)
    values["sequential_streams"] = 0
    without = rate_bps(json.dumps(values), "read", 4096, 1)
    random = rate_bps(json.dumps(values), "randread", 4096, 1)
    assert without / random == pytest.approx(1.0, abs=0.1)
    assert without < with_streams


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


def test_invalid_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="operation code 7"):
        serve("service-5ms", [0], [7], [0])
    with pytest.raises(ValueError, match="differ in length"):
        serve("service-5ms", [0, 1], [0], [0])
    with pytest.raises(ValueError, match="unknown field"):
        native.simulate_closed('{"profil": {}}')


@pytest.mark.parametrize("model", ["PX02SSF020", "PX05SMB040"])
def test_ready_profiles_give_their_rows_eight_cells(model: str) -> None:
    profile = load_profile(model.lower()).json
    for (op, sequential), values in PUBLISHED[model].items():
        for block, mb_per_s in zip(BLOCKS, values, strict=True):
            rw = op if sequential else f"rand{op}"
            rate_mb_per_s = rate_bps(profile, rw, block, 1) / 1e6
            assert rate_mb_per_s == pytest.approx(mb_per_s, rel=0.10), (op, sequential, block)


def ratio_of_reads(block: int, jobs: int, **changes: object) -> tuple[float, float]:
    """Ratio of sequential to random reads of the px05smb040 with changes, and the sequential rate."""
    values = load_profile("px05smb040").to_dict()
    rates = []
    for kind in ("sequential", "random"):
        pattern = {"kind": kind, "op": "read", "block_bytes": block, "file_bytes": 4 << 30}
        spec = {"profile": values, "seed": 4, "operations": 2000,
                "clients": [{"count": jobs, "pattern": pattern}],
                "changes": [{"t_ns": 0, "patch": changes}]}  # fmt: skip
        rates.append(json.loads(native.simulate_closed(json.dumps(spec)))["read"]["rate_bps"])
    return rates[0] / rates[1], rates[0]


def test_flash_pages_and_the_drives_own_readahead() -> None:
    on, fast = ratio_of_reads(4096, 1)
    off, slow = ratio_of_reads(4096, 1, readahead=False)
    assert on >= 2
    assert off == pytest.approx(1.0, abs=0.1)
    assert slow < fast / 2
    for block, jobs in ((4096, 16), (28 * 1024, 16), (65536, 1), (65536, 16), (1 << 20, 1)):
        assert ratio_of_reads(block, jobs)[0] <= 1.1, (block, jobs)
    # the published rates of 16 clients, within the precision of reading them from a figure
    for block, mb_per_s in ((4096, 432), (28 * 1024, 950), (65536, 964)):
        assert ratio_of_reads(block, 16)[1] / 1e6 == pytest.approx(mb_per_s, rel=0.1)


def operations_in(values: dict[str, Any], seconds: float, block: int, pattern: str) -> float:
    client = {"iodepth": 16, "pattern": {"kind": pattern, "op": "read", "block_bytes": block,
                                         "file_bytes": 1 << 36}}  # fmt: skip
    spec = {"profile": values, "duration_s": seconds, "clients": [client]}
    return float(json.loads(native.simulate_closed(json.dumps(spec)))["read"]["operations"])


def test_a_burst_of_a_cloud_volume_ends_with_its_credits() -> None:
    ssd = load_profile("cloud-burst-ssd").to_dict()
    bucket = ssd["credits"]["iops"]
    assert bucket == {"baseline": 300.0, "burst": 3000.0, "capacity": 5.4e6}
    bucket["capacity"] /= 100  # 20 s of burst instead of 2000
    assert operations_in(ssd, 15, 4096, "random") == pytest.approx(3000 * 15, rel=0.01)
    assert operations_in(ssd, 40, 4096, "random") == pytest.approx(54_000 + 300 * 40, rel=0.01)
    large = operations_in(ssd, 5, 1 << 20, "sequential")  # bound by 128 MiB/s
    assert large == pytest.approx(128 * 5, rel=0.1)
    hdd = load_profile("cloud-throughput-hdd").to_dict()
    bucket = hdd["credits"]["bytes"]
    assert [bucket["baseline"], bucket["burst"], bucket["capacity"]] == [
        40 * MIB,
        250 * MIB,
        MIB**2,
    ]
    bucket["capacity"] /= 500
    empty_s = bucket["capacity"] / (210 * MIB)
    assert operations_in(hdd, empty_s - 1, MIB, "sequential") == pytest.approx(
        250 * (empty_s - 1), rel=0.02
    )
    expected = bucket["capacity"] / MIB + 40 * (empty_s + 20)
    assert operations_in(hdd, empty_s + 20, MIB, "sequential") == pytest.approx(expected, rel=0.02)
    assert operations_in(hdd, 20, 4096, "random") == pytest.approx(500 * 20, rel=0.03)


def test_a_provisioned_volume_has_a_constant_rate() -> None:
    values = load_profile("cloud-provisioned-ssd").to_dict()
    for seconds in (5, 30):
        assert operations_in(values, seconds, 4096, "random") == pytest.approx(
            4000 * seconds, rel=0.01
        )
    assert operations_in(values, 10, MIB, "sequential") == pytest.approx(500 * 10, rel=0.03)


def test_changes_between_requests_apply_to_later_ones() -> None:
    n = 100
    t_ns = np.zeros(n, np.uint64)
    arrays = (t_ns, np.zeros(n, np.uint8), np.arange(n, dtype=np.uint64) << 20,
              np.full(n, 4096, np.uint64))  # fmt: skip
    profile = load_profile("service-5ms").json
    plain = native.station_serve(profile, 1, *arrays)
    slow = json.dumps({"slow": {"factor": 10}})
    changed = native.station_serve(profile, 1, *arrays, [(n, 250_000_000, slow)])
    before, after = (np.frombuffer(a["due_ns"], np.uint64) for a in (plain, changed))
    # 50 are done, the 51st has begun and keeps its end, 49 take ten times as long
    assert (before[:51] == after[:51]).all()
    assert after[-1] == 255_000_000 + 49 * 50_000_000
    with pytest.raises(ValueError, match=r"slow\.factor is 0;"):
        native.station_serve(profile, 1, *arrays, [(0, 0, json.dumps({"slow": {"factor": 0}}))])
    with pytest.raises(ValueError, match="order"):
        native.station_serve(profile, 1, *arrays, [(5, 0, slow), (3, 0, slow)])


def test_sequential_requests_take_at_most_as_long_as_random_ones() -> None:
    for name in ready_names():
        profile = load_profile(name)
        for op in ("read", "write"):
            for size in (4096, 28 * 1024, 65536, 1 << 20):
                stream, random = (profile.moments(op, s, size).mean for s in (True, False))
                assert stream <= random * 1.01, (name, op, size)
