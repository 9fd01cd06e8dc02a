"""Platform files: units, defaults, groups, changes, stores, power, price and uncertain values."""

from __future__ import annotations

import copy
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from penstock import _native as native
from penstock import cli
from penstock.errors import BadInput
from penstock.platform.hosts import Platform, load_platform
from penstock.platform.paths import dotted, find
from penstock.platform.power import Price
from penstock.platform.schema import platform_schema, published_schema, schema_text
from penstock.platform.stores import STORES
from penstock.platform.uncertain import leaves
from penstock.profile.load import load_profile
from penstock.spec.source import read_source
from penstock.study.as_platform import platform_of
from penstock.study.load import load_study

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "platforms").glob("*.yaml"))
VALID = Path(__file__).parents[1] / "golden" / "broken-platforms" / "sound.platform.yaml"

SMALL: dict[str, Any] = {
    "penstock_platform": 1,
    "name": "small",
    "hosts": [
        {
            "group": "nodes",
            "count": 3,
            "roles": ["client", "storage"],
            "memory": "4GiB",
            "storage": {"read": "1ms", "write": {"overhead": "2ms", "per_byte": "1 ms/MiB"}},
        },
        {"group": "boss", "count": 1, "roles": ["manager"], "manager": {"service": "0.5ms"}},
    ],
    "network": {"bandwidth": "100 Mbit/s", "loopback": "125 MB/s"},
}


def small(**changes: Any) -> Platform:
    """`SMALL` with values at dotted paths (`__` for dots)."""
    changed = {k.replace("__", "."): v for k, v in changes.items()}
    return Platform.from_dict(SMALL).with_values(changed)


def test_the_published_schema_is_current():
    assert published_schema() == schema_text()
    jsonschema.Draft202012Validator.check_schema(platform_schema())


@pytest.mark.parametrize("path", [*EXAMPLES, VALID], ids=lambda p: p.stem)
def test_schema_accepts_valid_files_and_refuses_typos(path: Path):
    validator = jsonschema.Draft202012Validator(platform_schema())
    document = read_source(path.read_bytes(), path.name).value
    validator.validate(document)
    document["network"]["bandwith"] = "1 Gbit/s"
    assert not validator.is_valid(document)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_are_valid_and_survive_writing(path: Path, tmp_path: Path):
    platform = load_platform(path)
    assert platform.assumed
    again = tmp_path / "again.yaml"
    again.write_text(platform.to_yaml())
    assert load_platform(again).lower() == platform.lower()
    as_json = tmp_path / "again.json"
    as_json.write_text(json.dumps(platform.document))
    assert load_platform(as_json).lower() == platform.lower()


def test_the_published_clusters():
    """Costa 2014: TB20 has 20 machines of 1 Gbit/s, TB101 has 101."""
    hosts = {p.stem: load_platform(p).hosts for p in EXAMPLES}
    assert len(hosts["tb20"]) == 20
    assert len(hosts["tb101"]) == 101
    assert len(hosts["tb11"]) == 11
    for name in ("tb20", "tb101"):
        lowered = load_platform(ROOT / "examples" / "platforms" / f"{name}.yaml").lower()
        assert {h["network"]["out_bps"] for h in lowered["hosts"]} == {125e6}


def test_units_and_defaults():
    """Set V of PR §12 as a file: 100 Mbit/s is 12.5e6 B/s, 1 ms/MiB is 1e-3/1048576 s/B."""
    lowered = small().lower()
    first, boss = lowered["hosts"][0], lowered["hosts"][3]
    assert first["name"] == "nodes-0"
    assert boss["name"] == "boss-0"
    assert first["network"] == {
        "out_bps": 12.5e6,
        "in_bps": 12.5e6,
        "loopback_bps": 125e6,
        "latency_s": 0.0,
    }
    assert first["storage"]["read"] == {"overhead": 1e-3, "s_per_byte": 0.0}
    assert first["storage"]["write"]["s_per_byte"] == pytest.approx(1e-3 / 1048576, rel=1e-12)
    assert first["storage"]["capacity_bytes"] is None
    assert first["client"] == {"slots": 1, "speed": 1.0}
    assert first["manager"] is None
    assert boss["manager"] == {"service": {"overhead": 0.0005, "s_per_byte": 0.0}, "servers": 1}
    assert boss["client"] is None
    assert boss["storage"] is None
    assert lowered["protocol"] == {
        "frame_bytes": 65536,
        "control_bytes": 1024,
        "merge_frames": True,
    }
    assert lowered["store"]["chunk_bytes"] == 1 << 20
    assert lowered["store"]["stripe_width"] is None
    assert lowered["scheduler"] == {
        "kind": "workqueue",
        "wait_s": 0.0,
        "inputs": "read",
        "fill": "spread",
    }


@pytest.mark.parametrize(
    ("path", "value", "keys", "number"),
    [
        ("network.bandwidth", "1 Gbit/s", ("hosts", 0, "network", "in_bps"), 125e6),
        ("network.out", "10 MiB/s", ("hosts", 0, "network", "out_bps"), 10 * 1048576),
        ("network.latency", "50us", ("fabric", "latency_s"), 50e-6),
        ("network.fabric", "40 Gbit/s", ("fabric", "capacity_bps"), 5e9),
        ("network.rack_uplink", "2 GB/s", ("fabric", "rack_uplink_bps"), 2e9),
        ("network.sharing", "fair", ("fabric", "sharing"), "fair"),
        ("store.placement", "balanced", ("store", "placement"), "balanced"),
        ("store.round_robin", "continue", ("store", "round_robin"), "continue"),
        ("network.payload", "ethernet", ("hosts", 0, "network", "in_bps"), 12.5e6 * 1448 / 1514),
        ("network.payload", 0.5, ("hosts", 3, "network", "out_bps"), 6.25e6),
        ("hosts.nodes.network.latency", "1ms", ("hosts", 0, "network", "latency_s"), 1e-3),
        ("hosts.nodes.network", "1 Gbit/s", ("hosts", 0, "network", "out_bps"), 125e6),
        ("hosts.nodes.speed", 2, ("hosts", 1, "client", "speed"), 2.0),
        ("hosts.nodes.slots", "4", ("hosts", 1, "client", "slots"), 4),
        ("hosts.nodes.storage.servers", 3, ("hosts", 0, "storage", "servers"), 3),
        (
            "hosts.nodes.storage.capacity",
            "memory",
            ("hosts", 0, "storage", "capacity_bytes"),
            1 << 32,
        ),
        ("hosts.nodes.storage.capacity", "25%", ("hosts", 0, "storage", "capacity_bytes"), 1 << 30),
        ("hosts.nodes.storage.capacity", "1 GB", ("hosts", 0, "storage", "capacity_bytes"), 10**9),
        ("store.chunk", "256KiB", ("store", "chunk_bytes"), 262144),
        ("store.stripe", 2, ("store", "stripe_width"), 2),
        ("store.window", 5, ("store", "window"), 5),
        ("store.placement_unit", "64MiB", ("store", "placement_unit"), 64 << 20),
        ("store.placement_unit", "file", ("store", "placement_unit"), "file"),
        ("store.placement_unit", "request", ("store", "placement_unit"), None),
        ("store.write_contention", "40ms", ("store", "write_contention_s"), 0.04),
        ("protocol.frame", "16KiB", ("protocol", "frame_bytes"), 16384),
        ("scheduler.inputs", "files", ("scheduler", "inputs"), "files"),
        ("scheduler.wait", "2s", ("scheduler", "wait_s"), 2.0),
        ("scheduler.wait", "forever", ("scheduler", "wait_s"), None),
        ("launch.overhead", "100ms", ("launch", "overhead"), 0.1),
        ("preprocess.cache", "64MiB", ("preprocess", "cache_bytes"), 64 << 20),
        ("hosts.nodes.rack", 3, ("hosts", 2, "rack"), 3),
    ],
)
def test_each_value_is_converted_to_its_unit(
    path: str, value: Any, keys: tuple[Any, ...], number: Any
):
    node: Any = Platform.from_dict(SMALL).with_values({path: value}).lower()
    for step in keys:
        node = node[step]
    assert node == (pytest.approx(number, rel=1e-12) if isinstance(number, float) else number)


def test_payload_reduces_rates_between_hosts():
    """Links, uplinks and core carry less data. The loopback has no Ethernet frames."""
    nominal = {"network.fabric": "1 GB/s", "network.rack_uplink": "2 GB/s"}
    own = {"hosts.nodes.network": "1 Gbit/s", "network.payload": "ethernet"}
    lowered = small(**nominal, **own).lower()
    share = 1448 / 1514
    assert lowered["fabric"]["capacity_bps"] == pytest.approx(1e9 * share, rel=1e-12)
    assert lowered["fabric"]["rack_uplink_bps"] == pytest.approx(2e9 * share, rel=1e-12)
    link = lowered["hosts"][0]["network"]
    assert link["out_bps"] == pytest.approx(125e6 * share, rel=1e-12)
    assert link["loopback_bps"] == 125e6
    assert small(**nominal).lower()["fabric"]["capacity_bps"] == 1e9


@pytest.mark.parametrize("value", [0, -0.5, 1.01, "95%", "tcp", True, math.nan])
def test_bad_payloads(value: Any):
    with pytest.raises(BadInput, match=r"at most 1, such as 0\.95, or ethernet"):
        small(network__payload=value)


def test_sampled_payload_is_at_most_one():
    estimate = {"value": 0.97, "low": 0.93, "high": 0.999, "level": "50%"}
    document = copy.deepcopy(SMALL)
    document["network"]["payload"] = estimate
    platform = Platform.from_dict(document)
    sampled = sampled_platform(platform, 300).file.network.payload
    assert max(sampled) == 1  # clamped, not refused
    assert min(sampled) < 0.93
    assert len(set(sampled)) > 200


def test_racks_are_assigned_in_equal_parts():
    platform = small(hosts__nodes__count=5, hosts__nodes__rack=[0, 1])
    assert [h.rack for h in platform.hosts] == [0, 0, 0, 1, 1, 0]


def test_single_hosts_may_differ():
    document = copy.deepcopy(SMALL)
    document["hosts"][0]["count"] = 4
    document["hosts"][0]["except"] = {
        "0": {"speed": 0.5, "memory": "8GiB"},
        "2-3": {"storage": {"servers": 4}, "slots": 2},
    }
    platform = Platform.from_dict(document)
    hosts = platform.lower()["hosts"]
    assert [h["client"]["speed"] for h in hosts[:4]] == [0.5, 1.0, 1.0, 1.0]
    assert [h["client"]["slots"] for h in hosts[:4]] == [1, 1, 2, 2]
    assert [h["storage"]["servers"] for h in hosts[:4]] == [1, 1, 4, 4]
    assert hosts[2]["storage"]["write"]["overhead"] == 0.002
    assert [n.memory for n in platform.nodes] == ["8GiB", "4GiB", "4GiB", "4GiB", None]


def test_exceptions_are_validated_with_their_group():
    disk = {"name": "a", "profile": "nvme", "size": "1TB"}
    document = copy.deepcopy(SMALL)
    document["hosts"][0] |= {"disks": [disk], "storage": {"disk": "a", "capacity": "disk"}}
    for change, message in (
        ({"disks": [{"name": "b", "profile": "nvme", "size": "1TB"}]}, "the disk 'a'"),
        ({"disks": [{"name": "a", "profile": "nvme"}]}, "'disk'"),
        ({"disks": []}, "the disk 'a'"),
        ({"storage": {"read": "1ms"}}, "read without write"),
    ):
        document["hosts"][0]["except"] = {"1": change}
        with pytest.raises(BadInput, match=message):
            Platform.from_dict(document)
    document["hosts"][0]["except"] = {"0-1": {"speed": 2}, "1": {"slots": 2}}
    with pytest.raises(BadInput, match="each host in one entry"):
        Platform.from_dict(document)


def test_storage_profile_of_one_host_replaces_the_group_s_storage():
    document = copy.deepcopy(SMALL)
    document["hosts"][0]["except"] = {"1": {"storage": {"profile": "hdd-7200", "time_scale": 2}}}
    hosts = Platform.from_dict(document).lower()["hosts"]
    assert set(hosts[1]["storage"]) == {"profile", "capacity_bytes"}
    slow = load_profile("hdd-7200").scaled(2).to_dict()
    assert hosts[1]["storage"]["profile"] == slow
    assert slow["time_scale"] == 2
    assert "read" in hosts[0]["storage"]


def test_storage_on_a_disk_has_its_profile():
    disks = [{"name": "a", "profile": "nvme", "size": "1TB"}, {"name": "b", "profile": "sata-ssd"}]
    document = copy.deepcopy(SMALL)
    document["hosts"][0] |= {"disks": disks, "storage": {"disk": "b"}}
    platform = Platform.from_dict(document)
    assert platform.lower()["hosts"][0]["storage"]["profile"]["name"] == "sata-ssd"
    del document["hosts"][0]["storage"]
    first = Platform.from_dict(document).lower()["hosts"][0]["storage"]
    assert first["profile"]["name"] == "nvme"
    assert first["capacity_bytes"] == 10**12
    scaled = platform.with_values({"hosts.nodes.disks.b.time_scale": 4})
    assert scaled.lower()["hosts"][2]["storage"]["profile"]["time_scale"] == 4
    assert platform.nodes[0].disks[1].profile == "sata-ssd"


# ---------------------------------------------------------------- changes


def test_changes_do_not_modify_the_original():
    platform = load_platform(VALID)
    before = json.dumps(platform.lower())
    changed = platform.with_values({"hosts.apps.count": 14, "store.chunk": "256KiB"})
    assert len(changed.hosts) == 18
    assert changed.value("hosts.apps.count") == 14
    assert json.dumps(platform.lower()) == before


def test_storage_profile_replaces_the_services():
    storage = small(hosts__nodes__storage__profile="sata-ssd").lower()["hosts"][0]["storage"]
    assert set(storage) == {"profile", "capacity_bytes"}
    both = small(hosts__nodes__storage__capacity="1GB", hosts__nodes__storage__profile="sata-ssd")
    assert both.lower()["hosts"][0]["storage"]["capacity_bytes"] == 10**9


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("hosts.node.count", "did you mean 'nodes'"),
        ("hosts.nodes.cuont", "did you mean 'count'"),
        ("nework.latency", "did you mean 'network'"),
        ("store.chunk.size", "which is a single value"),
        ("hosts.nodes.storage.write.per_bite", "did you mean 'per_byte'"),
        ("hosts..count", "names joined by dots"),
    ],
)
def test_unknown_path_suggests_a_name(path: str, message: str):
    with pytest.raises(BadInput, match=message):
        Platform.from_dict(SMALL).with_values({path: 1})


def test_set_names_the_wrong_change():
    with pytest.raises(BadInput) as error:
        load_platform(VALID, ["store.replicas=9", "network.bandwidth=3"])
    assert [m.file for m in error.value.mistakes] == [
        "--set network.bandwidth=3",
        "--set store.replicas=9",
    ]


def test_changes_add_missing_keys():
    platform = small(power__idle="90 W", price="0.1 EUR/h", hosts__boss__price__per_host="0 EUR/h")
    assert platform.power["nodes-1"].idle_w == 90
    assert platform.price["nodes-1"].per_hour == pytest.approx(0.1)
    assert platform.price["boss-0"].per_hour == 0


# ---------------------------------------------------------------- stores


@pytest.mark.parametrize("name", STORES)
def test_built_in_stores(name: str):
    platform = small(hosts__nodes__count=4, store__like=name)
    store = platform.lower()["store"]
    own = STORES[name]
    assert store["replicas"] == own["replicas"]
    assert store["replication"] == own["replication"]
    assert store["allocation"] == own["allocation"]
    assert platform.with_values({"store.replicas": 2}).lower()["store"]["replicas"] == 2


def test_properties_of_built_in_stores():
    """PR §9: metadata, placement, replication and window of each store."""
    assert STORES["hdfs"]["forward"] == "frame"
    assert STORES["hdfs"]["replication"] == "chain"
    assert STORES["hdfs"]["window"] == 1
    assert STORES["hdfs"]["placement"] == "local"
    assert STORES["gluster"]["allocation"] == STORES["cephfs"]["allocation"] == "none"
    assert STORES["gluster"]["replication"] == "client"
    assert STORES["cephfs"]["replication"] == "parallel"
    assert STORES["mosastore"]["placement"] == "striped"
    assert STORES["mosastore"]["shuffle"] == "fresh"


# ---------------------------------------------------------------- power and price

TABLE = {"idle": "91.6 W", "app": "125.2 W", "storage": "129.1 W", "network": "127.7 W"}


def test_powers_are_relative_to_idle():
    """10 nodes, 60 s, each 20 s computing, 10 s storing, 15 s sending: 7,084.5 J each."""
    power = small(power=TABLE).power["nodes-0"]
    assert power.app_w == pytest.approx(125.2 - 91.6)
    joules = power.idle_j(60, 45) + 20 * power.app_w + 10 * power.storage_w + 15 * power.network_w
    assert joules == pytest.approx(7084.5, rel=1e-9)


def test_manager_has_power_only_on_request():
    assert "boss-0" not in small(power=TABLE).power
    assert "boss-0" in small(power=TABLE, power__manager=True).power


def test_frequency_sets_powers_and_speeds():
    states = [
        {"frequency": "1.2 GHz", "app": "100 W", "speed": 0.5, "service_speed": 0.8},
        {"frequency": "2.3 GHz"},
    ]
    platform = small(power={**TABLE, "states": states}, hosts__nodes__speed=3)
    full, slow = platform.lower(), platform.with_values({"power.frequency": "1200 MHz"})
    low = slow.lower()
    assert full["hosts"][0]["client"]["speed"] == 3.0
    assert low["hosts"][0]["client"]["speed"] == 1.5
    assert low["hosts"][0]["storage"]["read"]["overhead"] == pytest.approx(1e-3 / 0.8)
    assert low["hosts"][3]["manager"]["service"]["overhead"] == pytest.approx(0.5e-3 / 0.8)
    assert slow.power["nodes-0"].app_w == pytest.approx(100 - 91.6)
    assert slow.power["nodes-0"].storage_w == pytest.approx(129.1 - 91.6)
    assert slow.power["nodes-0"].frequency_hz == 1.2e9
    one_group = platform.with_values({"hosts.nodes.power.frequency": "1.2GHz"})
    assert one_group.lower()["hosts"][0]["client"]["speed"] == 1.5
    assert one_group.lower()["hosts"][3] == full["hosts"][3]


def test_service_speed_scales_distributions_and_profiles():
    states = [{"frequency": "1 GHz", "service_speed": 0.5}]
    power = {**TABLE, "states": states, "frequency": "1 GHz"}
    times = {
        "kind": "mixture",
        "parts": [
            {"weight": 3, "of": {"kind": "lognormal", "mean_s": 0.01, "sigma": 0.4}},
            {"weight": 1, "of": {"kind": "empirical", "quantiles": [[0, 0.1], [1, 0.3]]}},
        ],
    }
    lowered = small(power=power, hosts__nodes__storage__read={"overhead": times}).lower()
    parts = lowered["hosts"][0]["storage"]["read"]["overhead"]["parts"]
    assert parts[0] == {"weight": 3, "of": {"kind": "lognormal", "mean_s": 0.02, "sigma": 0.4}}
    assert parts[1]["of"]["quantiles"] == [[0, 0.2], [1, 0.6]]
    disk = small(power=power, hosts__nodes__storage__profile="nvme").lower()["hosts"][0]["storage"]
    assert disk["profile"]["time_scale"] == 2


def test_energy_proportional_hosts_draw_idle_power_only_while_busy():
    plain = small(power=TABLE).power["nodes-0"]
    fully = small(power={**TABLE, "proportional": True}).power["nodes-0"]
    partly = small(power={**TABLE, "proportional": "40%"}).power["nodes-0"]
    assert plain.idle_j(100, 25) == pytest.approx(9160)
    assert fully.idle_j(100, 25) == pytest.approx(2290)
    assert partly.idle_j(100, 25) == pytest.approx(0.6 * 9160 + 0.4 * 2290)
    assert fully.idle_j(100, 250) == pytest.approx(9160)


def test_prices_per_time_and_per_started_hour():
    platform = small(
        price="0.10 EUR/h", hosts__boss__price={"per_host": "1 EUR/d", "started_hours": True}
    )
    assert platform.price["nodes-0"].cost(1800) == pytest.approx(0.05)
    assert platform.price["boss-0"].cost(3601) == pytest.approx(2 / 24)
    assert platform.price["boss-0"].cost(3600) == pytest.approx(1 / 24)
    assert platform.price["boss-0"].currency == "EUR"
    assert Price(2.0, "USD").cost(0) == 0


# ---------------------------------------------------------------- uncertain values


def test_assumptions_have_ranges_that_can_be_set():
    platform = load_platform(VALID)
    assumed = {a.path: a for a in platform.assumed}
    assert set(assumed) == {
        "network.latency",
        "hosts.nodes.storage.read.overhead",
        "hosts.nodes.storage.read.per_byte",
        "network.loopback",
    }
    assert assumed["network.latency"][1:] == ("50us", "20us", "80us", "a switch")
    assert assumed["network.loopback"].low == "1 GB/s"
    assert assumed["network.loopback"].high == "3 GB/s"
    for entry in platform.assumed:
        for text in (entry.low, entry.high):
            changed = platform.with_values({entry.path: text})
            assert changed.value(entry.path) == text
            assert entry.path not in {a.path for a in changed.assumed}


def test_counts_are_assumed_only_by_their_own_path():
    document = {**copy.deepcopy(SMALL), "assumed": ["hosts.boss"]}
    document["hosts"][1]["manager"]["servers"] = 4
    assert [a.path for a in Platform.from_dict(document).assumed] == [
        "hosts.boss.manager.service.overhead"
    ]
    document["assumed"] = ["hosts.boss.manager.servers"]
    (only,) = Platform.from_dict(document).assumed
    assert (only.low, only.high) == (2, 6)


def test_assumption_ends_when_its_value_is_set():
    document = {**copy.deepcopy(SMALL), "assumed": ["hosts.nodes.storage.write"]}
    platform = Platform.from_dict(document)
    assert len(platform.assumed) == 2
    assert platform.with_values({"hosts.nodes.storage.profile": "nvme"}).assumed == []
    remaining = platform.with_values({"hosts.nodes.storage.write.overhead": "3ms"})
    assert [a.path for a in remaining.assumed] == ["hosts.nodes.storage.write.per_byte"]


def test_estimate_has_an_interval():
    (estimate,) = load_platform(VALID).estimates
    assert estimate.path == "hosts.nodes.storage.write.overhead"
    assert (estimate.value, estimate.low, estimate.high, estimate.unit) == (2.0, 1.0, 3.0, "ms")
    assert estimate.n == 12
    assert estimate.level == 0.95
    assert estimate.converged
    assert load_platform(VALID).lower()["hosts"][4]["storage"]["write"]["overhead"] == 0.002


def sampled_platform(platform: Platform, count: int, seed: int = 3, **options: Any) -> Platform:
    """Sample `count` times; all samples share one platform."""
    rngs = [np.random.default_rng([seed, i]) for i in range(count)]
    ((rows, sampled),) = platform.sample(rngs, **options)
    assert rows == list(range(count))
    return sampled


def measured(platform: Platform, seed: int, count: int = 1) -> list[float]:
    hosts = sampled_platform(platform, count, seed).lower()["hosts"]
    return list(hosts[4]["storage"]["write"]["overhead"])


def test_samples_cover_the_interval_at_its_level():
    """95 % of 2,000 samples lie within the interval, up to 4 binomial standard deviations."""
    n = 2000
    values = [1000 * s for s in measured(load_platform(VALID), 7, n)]
    inside = sum(1 <= v <= 3 for v in values)
    assert abs(inside - 0.95 * n) < 4 * math.sqrt(n * 0.95 * 0.05)
    assert min(values) > 0
    assert np.mean(values) == pytest.approx(2, abs=0.05)
    assert np.std(values) == pytest.approx(1 / 1.96, rel=0.1)


def test_samples_are_reproducible_by_seed():
    platform = load_platform(VALID)
    assert measured(platform, 3) == measured(platform, 3)
    assert measured(platform, 3) != measured(platform, 4)
    sample = sampled_platform(platform, 2)
    assert sample.estimates == []
    assert sample.lower()["fabric"]["latency_s"] == platform.lower()["fabric"]["latency_s"]
    wide = sampled_platform(platform, 2, assumptions=True).lower()["fabric"]["latency_s"]
    assert len({sample.lower()["fabric"]["latency_s"], *wide}) == 3
    assert 20e-6 <= min(wide) < max(wide) <= 80e-6


def test_samples_of_counts_are_separate_platforms():
    document = copy.deepcopy(SMALL)
    document["hosts"][0]["slots"] = 2
    document["assumed"] = [{"path": "hosts.nodes.slots", "low": 1, "high": 3}]
    rngs = [np.random.default_rng(i) for i in range(20)]
    sampled = Platform.from_dict(document).sample(rngs, assumptions=True)
    assert sorted(p.hosts[0].slots for _, p in sampled) == [1, 2, 3]
    assert sorted(i for rows, _ in sampled for i in rows) == list(range(20))


def test_assumptions_are_sampled_evenly_around_the_value():
    document = {**copy.deepcopy(SMALL), "power": TABLE}
    document["assumed"] = [{"path": "power.idle", "low": "50 W", "high": "180 W"}]
    platform = Platform.from_dict(document)
    power = sampled_platform(platform, 300, seed=5, assumptions=True).power["nodes-0"]
    watts = power.idle_w
    assert 50 <= min(watts) < 60
    assert 170 < max(watts) <= 180
    below = sum(w < 91.6 for w in watts)
    assert abs(below - 150) < 4 * math.sqrt(75)
    assert min(power.network_w) == 0  # never negative, even if idle exceeds it


# ---------------------------------------------------------------- one schema with the study


def test_study_becomes_a_platform():
    """DESIGN §2: the nodes and disks of a study form a platform."""
    study = load_study(ROOT / "examples" / "access-patterns.study.yaml")
    levels = {f.name: f.levels[-1].name for f in study.factors}
    platform = platform_of(study, levels)
    (node,) = platform.nodes
    (emulated,) = study.platform.nodes
    assert node.memory == "536870912 B"
    assert [d.name for d in node.disks] == [d.name for d in emulated.disks]
    storage = platform.lower()["hosts"][0]["storage"]
    disk = next(f for f in study.factors if f.name == "disk")
    assert storage["profile"]["name"] == disk.level(levels["disk"]).value
    assert storage["profile"]["time_scale"] == float(emulated.disks[0].time_scale)
    other_level = platform_of(study, {**levels, "disk": disk.levels[0].name})
    assert (
        other_level.lower()["hosts"][0]["storage"]["profile"]["name"] != storage["profile"]["name"]
    )
    assert {a.path for a in platform.assumed} >= {"store.chunk", "network.loopback"}


def test_platform_written_to_another_folder_finds_its_profiles(tmp_path: Path):
    (tmp_path / "here" / "sub").mkdir(parents=True)
    profile = load_profile("nvme").to_dict() | {"name": "mine"}
    (tmp_path / "here" / "mine.json").write_text(json.dumps(profile))
    document = copy.deepcopy(SMALL)
    document["hosts"][0]["disks"] = [{"name": "a", "profile": "mine.json"}]
    document["hosts"][0]["storage"] = {"disk": "a"}
    platform = Platform.from_dict(document, tmp_path / "here")
    for folder in (tmp_path, tmp_path / "here", tmp_path / "here" / "sub"):
        file = folder / "platform.yaml"
        file.write_text(platform.to_yaml(folder))
        assert load_platform(file).lower() == platform.lower()


def test_study_command(tmp_path: Path, capsys, monkeypatch):
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", "platform", *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return int(exited.value.code or 0), *capsys.readouterr()

    study, file = str(ROOT / "examples" / "access-patterns.study.yaml"), tmp_path / "p.yaml"
    status, out, err = run("study", study, "--level", "disk=sata-ssd", "-o", str(file))
    assert (status, out, err) == (0, "", "")
    storage = load_platform(file).lower()["hosts"][0]["storage"]
    assert storage["profile"]["name"] == "sata-ssd"
    status, _, err = run("study", study, "--level", "disk=floppy")
    assert status == 2
    assert "hdd-7200 or sata-ssd" in err
    status, _, err = run("check", study)
    assert status == 2
    assert "found a study; expected a platform file" in err


@pytest.mark.parametrize("path", [*EXAMPLES, VALID], ids=lambda p: p.stem)
def test_each_number_has_a_unique_path(path: Path):
    platform = load_platform(path)
    numbers = list(leaves(platform.plain, ()))
    names = [dotted(platform.plain, p) for p in numbers]
    assert len(set(names)) == len(numbers) > 5
    assert [find(platform.plain, name) for name in names] == numbers


def test_study_without_the_storage_disk_is_refused():
    study = load_study(ROOT / "examples" / "access-patterns.study.yaml")
    levels = {f.name: f.levels[0].name for f in study.factors}
    with pytest.raises(BadInput, match="no level for the factor"):
        platform_of(study, {})
    with pytest.raises(BadInput, match="disk called 'nowhere'"):
        platform_of(study, levels, "nowhere")


# ---------------------------------------------------------------- simulation


@pytest.mark.parametrize("path", [*EXAMPLES, VALID], ids=lambda p: p.stem)
def test_simulator_accepts_every_example(path: Path):
    operations = [
        {"op": "open", "file": "in"},
        {"op": "read", "file": "in", "offset_bytes": 0, "size_bytes": 4 << 20},
        {"op": "compute", "seconds": 0.25},
        {"op": "write", "file": "out", "offset_bytes": 0, "size_bytes": 2 << 20},
    ]
    workload = {
        "schema": "penstock/workload/1",
        "name": "one",
        "files": [{"name": "in", "size_bytes": 4 << 20, "preloaded": True}],
        "tasks": [{"name": "t", "stage": "s", "operations": operations}],
    }
    simulator = native.NetworkWorkload(json.dumps(workload))
    platform = load_platform(path)
    outcome = json.loads(simulator.simulate(json.dumps(platform.lower()), 1))
    assert outcome["error"] is None
    assert outcome["makespan_s"] > 0.25
    assert len(outcome["hosts"]) == len(platform.hosts)
    broken = platform.lower()
    broken["hosts"][0]["network"]["out_bps"] = 0
    with pytest.raises(ValueError, match="out_bps"):
        simulator.simulate(json.dumps(broken), 1)


def test_platform_file_reproduces_set_v():
    """Set V, write of 10 chunks, three separate hosts: 0.84692288 s, 10,500,096 bytes."""
    service = {"per_byte": "1 ms/MiB"}
    document = {
        **SMALL,
        "hosts": [
            {"group": "app", "count": 1, "roles": ["client"]},
            {
                "group": "disk",
                "count": 1,
                "roles": ["storage"],
                "storage": {"read": service, "write": service},
            },
            {"group": "boss", "count": 1, "roles": ["manager"], "manager": {"service": "0.5ms"}},
        ],
        "store": {"shuffle": "none"},
    }
    write = {"op": "write", "file": "out", "offset_bytes": 0, "size_bytes": 10 << 20}
    workload = {
        "schema": "penstock/workload/1",
        "name": "write",
        "files": [{"name": "out"}],
        "tasks": [{"name": "t", "stage": "s", "operations": [write]}],
    }
    simulator = native.NetworkWorkload(json.dumps(workload))
    platform = Platform.from_dict(document)
    outcome = json.loads(simulator.simulate(json.dumps(platform.lower()), 1))
    assert outcome["makespan_s"] == pytest.approx(0.84692288, rel=1e-6)
    assert outcome["bytes"]["network"] == 10_500_096
    slower = platform.with_values({"hosts.disk.storage.write.per_byte": "200 ms/MiB"})
    outcome = json.loads(simulator.simulate(json.dumps(slower.lower()), 1))
    assert outcome["makespan_s"] == pytest.approx(2.09094816, rel=1e-6)


# ---------------------------------------------------------------- documentation

PAGE = (ROOT / "docs" / "platform-file.md").read_text()


def test_example_of_the_documentation_is_valid():
    text = PAGE.split("```yaml\n")[1].split("```")[0]
    document = read_source(text.encode(), "page").value
    assert len(Platform.from_dict(document).hosts) == 5


def test_documentation_names_every_key():
    keys = {key for part in definitions() for key in part.get("properties", {})}
    fenced = re.compile(r"```yaml(.*?)```", re.S)
    quoted = fenced.findall(PAGE) + re.findall(r"`([^`]+)`", fenced.sub("", PAGE))
    documented = set(re.findall(r"[a-z_]+", " ".join(quoted)))
    assert len(keys) > 70
    assert sorted(keys - documented) == []


def definitions() -> list[dict[str, Any]]:
    schema = platform_schema()
    parts = [schema]
    for part in schema["$defs"].values():
        parts += [part, *part.get("anyOf", [])]
    return parts


def test_documentation_has_the_table_of_stores():
    rows = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]]
        for line in PAGE.splitlines()
        if line.startswith("| ") and line.count("|") == 7
    }
    names = [n.strip("`") for n in rows[""]]
    assert names == list(STORES)
    for key in ("chunk", "stripe", "replicas", "window", "allocation"):
        assert rows[key] == [str(STORES[n][key]) for n in names]
    both = [f"{STORES[n]['replication']}, {STORES[n]['forward']}" for n in names]
    assert rows["replication, forward"] == both
