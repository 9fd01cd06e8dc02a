"""One word for a link means the same in a platform file, in its schedule and to `nodes set`: both ways."""

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

WORDS = [
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
@pytest.mark.parametrize("words", WORDS, ids=lambda words: "+".join(words))
def test_a_word_of_a_link_means_the_same_everywhere(
    tmp_path: Path, words: dict[str, str], network: str
) -> None:
    plain = platform(tmp_path, network)
    said = ", ".join(f"{key}: {value}" for key, value in words.items())
    in_file = link(platform(tmp_path, network, host=said))
    scheduled = platform(tmp_path, network, schedule=f"{{at: 1s, nodes: [a-0], {said}}}")
    (event,) = scheduled.events
    (change,) = changes_of(["a-0", *(f"{k}={v.replace(' ', '')}" for k, v in words.items())])
    ways = each_way(change.patch, plain.networks[0])
    assert patched(link(plain), event.patch) == in_file
    assert patched(link(plain), ways) == in_file
    check_patch(change.patch)


def test_a_latency_counts_both_ways() -> None:
    (change,) = changes_of(["a-0", "latency=50ms"])
    assert patched(LinkSpec(), each_way(change.patch, NetworkSpec())) == LinkSpec(
        delay=Delay(0.05), in_delay=Delay(0.05)
    )
    (change,) = changes_of(["a-0", "link.delay=50ms"])
    assert change.patch == {"delay": 0.05}, "the words of one direction"


@pytest.mark.parametrize(
    ("word", "key"), [("latency=max", "delay"), ("loss=max", "loss"), ("bandwidth=max", "out_bps")]
)
def test_max_takes_both_ways_back(tmp_path: Path, word: str, key: str) -> None:
    delayed = LinkSpec(
        out_bps=1e6, in_bps=1e6, delay=Delay(0.05), in_delay=Delay(0.05), loss=0.1, in_loss=0.1
    )
    (change,) = changes_of(["a-0", word])
    ways = each_way(change.patch, NetworkSpec())
    found, plain = patched(delayed, ways), LinkSpec()
    for one in (key, "in_bps" if key == "out_bps" else f"in_{key}"):
        assert getattr(found, one) == getattr(plain, one)
    jittery = platform(tmp_path, "{latency: 5ms, jitter: 1ms}").networks[0]
    ways = each_way({"latency": "max"}, jittery)
    assert patched(LinkSpec(delay=Delay(0.055)), ways).delay.mean_s == 0.005


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("latency=max jitter=1ms", "found a jitter with it"),
        ("out=1Mbit/s bandwidth=2Mbit/s", "given twice"),
        ("distribution=gauss", "one of constant, uniform"),
    ],
)
def test_words_that_contradict_each_other_are_refused(words: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        changes_of(["a-0", *words.split()])


def test_one_direction_beside_both_is_refused() -> None:
    with pytest.raises(BadInput, match="found in_delay with it"):
        check_patch({"latency": 0.05, "in_delay": 0.01})
    with pytest.raises(BadInput, match="a share of packets"):
        check_patch({"latency": 0.05, "loss": 2})


def test_the_links_of_a_stopped_node_change_both_ways_too(tmp_path: Path) -> None:
    spec = platform(tmp_path, "{latency: 5ms, jitter: 1ms}")
    links = Links(spec, Journal())
    links._stopped["a-0"] = {"net": link(spec)}
    (change,) = changes_of(["a-0", "latency=50ms"])
    made = links._patched("a-0", None, change.patch)
    assert (made.delay.mean_s, made.in_delay.mean_s) == (pytest.approx(0.055), 0.05)
