"""Service times of a store found by simulating what was measured: planted ones come back, also where the
network hides them."""

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
    """A manager, a storage node (with `both` a client as well), clients."""
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
def test_planted_service_times_come_back(write: Linear) -> None:
    where, manager_s, read = deployment(), 0.5e-3, Linear(2e-3, 4e-3 / MIB)
    kinds = [Measured("write", 0)]
    kinds += [Measured(op, size) for op in ("write", "read") for size in (MIB // 4, 10 * MIB)]
    took = {m: simulated_s(where, manager_s, write, read, m) for m in kinds}
    found = identify(where, took)
    assert found.manager_s == pytest.approx(manager_s, rel=1e-3)
    # whatever part of it each of the two numbers took: the store takes as long as it did
    assert max(map(abs, found.off.values())) < 2e-3
    assert found.read.per_byte_s == pytest.approx(read.per_byte_s, rel=0.05)


def test_what_the_network_hides_is_not_taken_from_the_storage() -> None:
    """Writing ten chunks of 1 MiB with 200 ms of storage each takes 2.09094816 s. Taking network and manager
    off leaves 125 ms for a chunk: they were busy while the storage was."""
    where = deployment()
    storage = Linear(0.2, 0.0)

    def took(m: Measured) -> float:
        return simulated_s(where, 0.5e-3, storage, storage, m)

    whole = took(Measured("write", 10 * MIB))
    assert whole == pytest.approx(2.09094816, rel=1e-3)
    subtracted = (whole - 10 * MIB / BANDWIDTH - 2 * 0.5e-3) / 10
    assert subtracted == pytest.approx(0.125, rel=0.01)
    kinds = [Measured("write", 0), *(Measured("write", s) for s in (MIB, 10 * MIB))]
    kinds += [m._replace(op="read") for m in kinds[1:]]
    found = identify(where, {m: took(m) for m in kinds}).write
    assert found.overhead_s + found.per_byte_s * MIB == pytest.approx(0.2, rel=2e-3)


def test_a_network_slower_than_the_storage_hides_it_from_far_and_not_from_near() -> None:
    """Chunks of 256 KiB take 21 ms on the wire and 5 ms of storage: another node sees nothing of these."""
    where = deployment(both=True, chunk="256KiB")
    storage = Linear(1e-3, 16e-3 / MIB)

    def took(m: Measured) -> float:
        return simulated_s(where, 0.5e-3, storage, storage, m)

    far = [Measured(op, 4 * MIB) for op in ("write", "read")]
    for m in far:  # the last chunk's service alone
        assert took(m) - simulated_s(where, 0.5e-3, Linear(0, 0), Linear(0, 0), m) < 6e-3
    kinds = [Measured("write", 0), *far, *(m._replace(size_bytes=MIB // 16) for m in far)]
    kinds += [m._replace(local=True) for m in kinds[1:]]
    found = identify(where, {m: took(m) for m in kinds})
    for one in (found.write, found.read):
        assert one.overhead_s == pytest.approx(1e-3, rel=0.05)
        assert one.per_byte_s == pytest.approx(16e-3 / MIB, rel=0.05)


def test_an_empty_file_faster_than_its_messages_is_clamped_and_said() -> None:
    took = {Measured(op, s): 0.2 * s / MIB for op in ("write", "read") for s in (MIB, 4 * MIB)}
    found = identify(deployment(), {Measured("write", 0): 1e-5, **took})
    assert found.manager_s == 0
    assert found.clamped_manager


@pytest.mark.parametrize("planted_s", [0.0, 0.04])
def test_a_planted_contention_of_writers_comes_back(planted_s: float) -> None:
    """Three writers share the storage's link; what they take beyond that is contention."""
    where, manager_s = deployment(clients=3, chunk="256KiB"), 0.5e-3
    write, read = Linear(2e-3, 16e-3 / MIB), Linear(1e-3, 8e-3 / MIB)
    planted = where.with_values({CONTENTION: f"{planted_s} s"})
    alone = [Measured(op, size) for op in ("write", "read") for size in (MIB // 16, 4 * MIB)]
    together = [Measured("write", m.size_bytes, clients=n) for m in alone[:2] for n in (2, 3)]
    took = {
        m: simulated_s(planted, manager_s, write, read, m)
        for m in (Measured("write", 0), *alone, *together)
    }
    found = identify(where, took)
    assert found.contention_s == pytest.approx(planted_s, rel=0.02, abs=1e-4)
    assert max(abs(found.off[m]) for m in together) < 5e-3
    # several clients take longer than one also without contention
    assert took[together[3]] > 2 * took[alone[1]]
    assert identify(where, {m: took[m] for m in took if m.clients == 1}).contention_s is None


@pytest.mark.parametrize("window", [1, 2, 3, 4, None])
def test_a_planted_window_comes_back_from_two_delayed_reads(window: int | None) -> None:
    """Chunks of 256 KiB take 21 ms on the wire, and 80 ms of waiting: a window decides how much is hidden."""
    where, read = deployment(chunk="256KiB"), Linear(1e-3, 16e-3 / MIB)
    limited = where.with_values(
        {"store.window": window or "unlimited", "protocol.latency": f"{DELAY_S} s"}
    )
    one, many = (
        simulated_s(limited, 0.5e-3, Linear(0, 0), read, Measured("read", n * MIB // 4))
        for n in (1, 8)
    )
    best, off = window_of(where, read, DELAY_S, (MIB // 4, 2 * MIB), many - one)
    assert best == window
    assert off == pytest.approx(0, abs=1e-9)
    # without the delay, two requests at once occupy the link as well as eight do
    near = where.with_values({"store.window": 2})
    m = Measured("read", 2 * MIB)
    free_s, near_s = (simulated_s(w, 0.5e-3, Linear(0, 0), read, m) for w in (where, near))
    assert near_s == pytest.approx(free_s, rel=1e-3)


def test_a_time_beyond_all_windows_is_no_window() -> None:
    where, read = deployment(chunk="256KiB"), Linear(1e-3, 16e-3 / MIB)
    _, off = window_of(where, read, DELAY_S, (MIB // 4, 2 * MIB), 7 * 1.5)
    assert off < -0.8


def test_how_many_operations_make_a_mean_known() -> None:
    # s = 2, mean = 20, within 5 %: n = 16 (15.4 rounded up) [Jain 1991]
    values = [20 - 2 * (15 / 16) ** 0.5, 20 + 2 * (15 / 16) ** 0.5] * 8
    assert needed(values) == 16


def test_few_hosts_of_a_platform_whatever_its_size() -> None:
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
