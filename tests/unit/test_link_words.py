"""Link options are equivalent in a platform file, in its schedule and in `nodes set`."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.emulate.cluster.change_arguments import changes_of
from penstock.emulate.cluster.links import Links
from penstock.emulate.network.patch import check_patch, each_way, patched
from penstock.errors import BadInput
from penstock.host.journal.journal import Journal
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import load_platform
from penstock.spec.cluster import ClusterSpec, Delay, LinkSpec, NetworkSpec

OPTIONS = [
    {"latency": "50ms"},
    {"latency": "50ms", "jitter": "5ms"},
    {"latency": "50ms", "jitter": "5ms", "distribution": "normal"},
    {"bandwidth": "10 Mbit/s"},
    {"out": "10 Mbit/s"},
    {"in": "10 Mbit/s"},
    {"loss": "10 %"},
    {"duplicate": "1 %"},
    {"corrupt": "0.1 %"},
    {"latency": "50ms", "reorder": "2 %"},
]
NETWORKS = ["{}", "{latency: 5ms}", "{latency: 5ms, jitter: 1ms}"]


def platform(tmp_path: Path, network: str, host: str = "", schedule: str = "") -> ClusterSpec:
    file = tmp_path / "platform.yaml"
    own = f", network: {{{host}}}" if host else ""
    file.write_text(
        "penstock_platform: 1\nname: fieldnet\n"
        f"hosts:\n  - {{group: a, count: 1{own}}}\n  - {{group: b, count: 1}}\n"
        f"network: {network}\n" + (f"schedule:\n  - {schedule}\n" if schedule else "")
    )
    return cluster_spec(load_platform(file, predicted=False))


def link(spec: ClusterSpec) -> LinkSpec:
    return spec.nodes[0].links[0]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options))
def test_link_options_are_equivalent_everywhere(
    tmp_path: Path, options: dict[str, str], network: str
) -> None:
    plain = platform(tmp_path, network)
    text = ", ".join(f"{key}: {value}" for key, value in options.items())
    in_file = link(platform(tmp_path, network, host=text))
    scheduled = platform(tmp_path, network, schedule=f"{{at: 1s, nodes: [a-0], {text}}}")
    (event,) = scheduled.events
    (change,) = changes_of(["a-0", *(f"{k}={v.replace(' ', '')}" for k, v in options.items())])
    by_direction = each_way(change.patch, plain.networks[0])
    assert patched(link(plain), event.patch) == in_file
    assert patched(link(plain), by_direction) == in_file
    check_patch(change.patch)


def test_latency_applies_to_both_directions() -> None:
    (change,) = changes_of(["a-0", "latency=50ms"])
    assert patched(LinkSpec(), each_way(change.patch, NetworkSpec())) == LinkSpec(
        delay=Delay(0.05), in_delay=Delay(0.05)
    )
    (change,) = changes_of(["a-0", "link.delay=50ms"])
    assert change.patch == {"delay": 0.05}, "keys of one direction"


@pytest.mark.parametrize(
    ("option", "key"),
    [("latency=max", "delay"), ("loss=max", "loss"), ("bandwidth=max", "out_bps")],
)
def test_max_resets_both_directions(tmp_path: Path, option: str, key: str) -> None:
    delayed = LinkSpec(
        out_bps=1e6, in_bps=1e6, delay=Delay(0.05), in_delay=Delay(0.05), loss=0.1, in_loss=0.1
    )
    (change,) = changes_of(["a-0", option])
    by_direction = each_way(change.patch, NetworkSpec())
    changed, plain = patched(delayed, by_direction), LinkSpec()
    for name in (key, "in_bps" if key == "out_bps" else f"in_{key}"):
        assert getattr(changed, name) == getattr(plain, name)
    jittery = platform(tmp_path, "{latency: 5ms, jitter: 1ms}").networks[0]
    by_direction = each_way({"latency": "max"}, jittery)
    assert patched(LinkSpec(delay=Delay(0.055)), by_direction).delay.mean_s == 0.005


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("latency=max jitter=1ms", "found a jitter with it"),
        ("out=1Mbit/s bandwidth=2Mbit/s", "given twice"),
        ("distribution=gauss", "one of constant, uniform"),
    ],
)
def test_contradictory_options_are_refused(options: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        changes_of(["a-0", *options.split()])


def test_one_direction_together_with_both_is_refused() -> None:
    with pytest.raises(BadInput, match="found in_delay with it"):
        check_patch({"latency": 0.05, "in_delay": 0.01})
    with pytest.raises(BadInput, match="a share of packets"):
        check_patch({"latency": 0.05, "loss": 2})


def test_links_of_a_stopped_node_change_in_both_directions(tmp_path: Path) -> None:
    spec = platform(tmp_path, "{latency: 5ms, jitter: 1ms}")
    links = Links(spec, Journal())
    links._stopped["a-0"] = {"net": link(spec)}
    (change,) = changes_of(["a-0", "latency=50ms"])
    changed = links._patched("a-0", None, change.patch)
    assert (changed.delay.mean_s, changed.in_delay.mean_s) == (pytest.approx(0.055), 0.05)
