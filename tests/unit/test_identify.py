"""Service times of a store, identified by simulating the measured operations.

The true times are recovered even if the network hides them.
"""

from __future__ import annotations

import pytest

from penstock.parts.prediction.queue_network.identify import (
    CONTENTION,
    Linear,
    Measured,
    identify,
    simulated_s,
    window_of,
)
from penstock.parts.stores.calibration.deploy import seeding_platform
from penstock.parts.stores.calibration.trials import needed
from penstock.platform.hosts import Platform

MIB = 2**20
BANDWIDTH = 12.5e6
#: additional one-way delay of delayed reads
DELAY_S = 0.04


def deployment(both: bool = False, clients: int = 1, **store: object) -> Platform:
    """Platform of a manager, a storage node (also a client if `both`) and clients."""
    return Platform.from_dict(
        {
            "penstock_platform": 1,
            "name": "seed",
            "hosts": [
                {
                    "group": "manager",
                    "count": 1,
                    "roles": ["manager"],
                    "manager": {"service": {"overhead": "1ms"}},
                },
                {
                    "group": "storage",
                    "count": 1,
                    "roles": ["storage", "client"] if both else ["storage"],
                    "storage": {"read": {"overhead": "1ms"}, "write": {"overhead": "1ms"}},
                },
                {"group": "client", "count": clients, "roles": ["client"]},
            ],
            "network": {"bandwidth": "12.5 MB/s", "loopback": "125 MB/s"},
            "store": {"chunk": "1MiB", "stripe": 1, "replicas": 1, "shuffle": "none", **store},
        }
    )


@pytest.mark.parametrize("write", [Linear(1e-3, 0.0), Linear(0.2, 0.0), Linear(5e-3, 20e-3 / MIB)])
def test_true_service_times_are_recovered(write: Linear) -> None:
    cluster, manager_s, read = deployment(), 0.5e-3, Linear(2e-3, 4e-3 / MIB)
    kinds = [Measured("write", 0)]
    kinds += [Measured(op, size) for op in ("write", "read") for size in (MIB // 4, 10 * MIB)]
    times_s = {m: simulated_s(cluster, manager_s, write, read, m) for m in kinds}
    result = identify(cluster, times_s)
    assert result.manager_s == pytest.approx(manager_s, rel=1e-3)
    # the two numbers may trade off; the predicted times must agree
    assert max(map(abs, result.off.values())) < 2e-3
    assert result.read.per_byte_s == pytest.approx(read.per_byte_s, rel=0.05)


def test_overlap_of_network_and_storage() -> None:
    """Subtracting network and manager times underestimates the storage.

    Ten chunks of 1 MiB with 200 ms of storage each take 2.09094816 s. Subtraction gives 125 ms per
    chunk, because network and storage work at the same time.
    """
    cluster = deployment()
    storage = Linear(0.2, 0.0)

    def time_of(m: Measured) -> float:
        return simulated_s(cluster, 0.5e-3, storage, storage, m)

    total_s = time_of(Measured("write", 10 * MIB))
    assert total_s == pytest.approx(2.09094816, rel=1e-3)
    naive_s = (total_s - 10 * MIB / BANDWIDTH - 2 * 0.5e-3) / 10
    assert naive_s == pytest.approx(0.125, rel=0.01)
    kinds = [Measured("write", 0), *(Measured("write", s) for s in (MIB, 10 * MIB))]
    kinds += [m._replace(op="read") for m in kinds[1:]]
    write = identify(cluster, {m: time_of(m) for m in kinds}).write
    assert write.overhead_s + write.per_byte_s * MIB == pytest.approx(0.2, rel=2e-3)


def test_local_operations_reveal_a_fast_storage() -> None:
    """Chunks take 21 ms on the network and 5 ms of storage: remote operations hide the storage."""
    cluster = deployment(both=True, chunk="256KiB")
    storage = Linear(1e-3, 16e-3 / MIB)

    def time_of(m: Measured) -> float:
        return simulated_s(cluster, 0.5e-3, storage, storage, m)

    remote = [Measured(op, 4 * MIB) for op in ("write", "read")]
    for m in remote:  # only the service of the last chunk
        assert time_of(m) - simulated_s(cluster, 0.5e-3, Linear(0, 0), Linear(0, 0), m) < 6e-3
    kinds = [Measured("write", 0), *remote, *(m._replace(size_bytes=MIB // 16) for m in remote)]
    kinds += [m._replace(local=True) for m in kinds[1:]]
    result = identify(cluster, {m: time_of(m) for m in kinds})
    for linear in (result.write, result.read):
        assert linear.overhead_s == pytest.approx(1e-3, rel=0.05)
        assert linear.per_byte_s == pytest.approx(16e-3 / MIB, rel=0.05)


def test_negative_manager_time_is_clamped() -> None:
    times_s = {Measured(op, s): 0.2 * s / MIB for op in ("write", "read") for s in (MIB, 4 * MIB)}
    result = identify(deployment(), {Measured("write", 0): 1e-5, **times_s})
    assert result.manager_s == 0
    assert result.clamped_manager


@pytest.mark.parametrize("planted_s", [0.0, 0.04])
def test_true_contention_is_recovered(planted_s: float) -> None:
    """Three writers share the storage's link. Additional time is contention."""
    cluster, manager_s = deployment(clients=3, chunk="256KiB"), 0.5e-3
    write, read = Linear(2e-3, 16e-3 / MIB), Linear(1e-3, 8e-3 / MIB)
    contended = cluster.with_values({CONTENTION: f"{planted_s} s"})
    single = [Measured(op, size) for op in ("write", "read") for size in (MIB // 16, 4 * MIB)]
    parallel = [Measured("write", m.size_bytes, clients=n) for m in single[:2] for n in (2, 3)]
    times_s = {
        m: simulated_s(contended, manager_s, write, read, m)
        for m in (Measured("write", 0), *single, *parallel)
    }
    result = identify(cluster, times_s)
    assert result.contention_s == pytest.approx(planted_s, rel=0.02, abs=1e-4)
    assert max(abs(result.off[m]) for m in parallel) < 5e-3
    # several clients need more time than one even without contention
    assert times_s[parallel[3]] > 2 * times_s[single[1]]
    assert (
        identify(cluster, {m: times_s[m] for m in times_s if m.clients == 1}).contention_s is None
    )


@pytest.mark.parametrize("window", [1, 2, 3, 4, None])
def test_true_window_is_recovered_from_delayed_reads(window: int | None) -> None:
    """Chunks take 21 ms on the network and 80 ms of delay. The window limits their overlap."""
    cluster, read = deployment(chunk="256KiB"), Linear(1e-3, 16e-3 / MIB)
    limited = cluster.with_values(
        {"store.window": window or "unlimited", "protocol.latency": f"{DELAY_S} s"}
    )
    single_s, many_s = (
        simulated_s(limited, 0.5e-3, Linear(0, 0), read, Measured("read", n * MIB // 4))
        for n in (1, 8)
    )
    best, off = window_of(cluster, read, DELAY_S, (MIB // 4, 2 * MIB), many_s - single_s)
    assert best == window
    assert off == pytest.approx(0, abs=1e-9)
    # without the delay two concurrent requests already saturate the link
    undelayed = cluster.with_values({"store.window": 2})
    m = Measured("read", 2 * MIB)
    free_s, limited_s = (
        simulated_s(w, 0.5e-3, Linear(0, 0), read, m) for w in (cluster, undelayed)
    )
    assert limited_s == pytest.approx(free_s, rel=1e-3)


def test_time_without_a_matching_window() -> None:
    cluster, read = deployment(chunk="256KiB"), Linear(1e-3, 16e-3 / MIB)
    _, off = window_of(cluster, read, DELAY_S, (MIB // 4, 2 * MIB), 7 * 1.5)
    assert off < -0.8


def test_operations_needed_for_a_mean() -> None:
    # s = 2, mean = 20, precision 5 %: n = 16 (15.4 rounded up) [Jain 1991]
    values = [20 - 2 * (15 / 16) ** 0.5, 20 + 2 * (15 / 16) ** 0.5] * 8
    assert needed(values) == 16


def test_seeding_platform_has_few_hosts() -> None:
    platform = Platform.from_dict(
        {
            "penstock_platform": 1,
            "name": "large",
            "hosts": [
                {"group": "head", "count": 1, "roles": ["manager"], "manager": {"service": "1ms"}},
                {
                    "group": "node",
                    "count": 50,
                    "roles": ["storage", "client"],
                    "storage": {"read": "1ms", "write": "1ms"},
                    "disks": [{"name": "d", "limits": {"read": "10MB/s"}}],
                    "except": {"3": {"speed": 2}},
                },
            ],
            "network": {"bandwidth": "1 Gbit/s", "loopback": "1 GB/s"},
            "store": {"engine": "moosefs", "replicas": 3, "stripe": 4},
        }
    )
    small = seeding_platform(platform)
    assert [(h.name, sorted(h.roles)) for h in small.hosts] == [
        ("manager-0", ["manager"]),
        ("storage-0", ["client", "storage"]),
        *((f"client-{i}", ["client"]) for i in range(4)),
    ]
    assert [d.name for d in small.hosts[1].node.disks] == ["d"]
    assert small.plain["store"]["engine"] == "moosefs"
    assert (small.plain["store"]["replicas"], small.plain["store"]["stripe"]) == (1, 1)
