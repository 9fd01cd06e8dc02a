"""Draws of a platform as arrays give the networks, runs and costs of individually sampled platforms."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.parts.prediction.queue_network.simulate import Simulator, makespan
from penstock.parts.prediction.queue_network.uncertainty import STREAM, sampled
from penstock.parts.prediction.workloads.make import make_workload
from penstock.platform.draws import of_draw
from penstock.platform.hosts import Platform, load_platform, read_platform
from penstock.platform.paths import dotted
from penstock.platform.uncertain import ranges

ROOT = Path(__file__).parents[2]
NAMES = ["kinds", *sorted(p.stem for p in (ROOT / "examples" / "platforms").glob("*.yaml"))]
COUNT = 5
WORKLOAD = make_workload("reduce", "small", {"width": 3, "file_bytes": 3 << 20})

#: every kind of value: rates, shares, sizes, factors, numbers of a distribution, and counts
KINDS = """\
penstock_platform: 1
name: kinds
hosts:
  - group: nodes
    count: 3
    roles: [client, storage]
    memory: 4GB
    speed: {value: 1.5, low: 1.2, high: 2.5}
    slots: 2
    storage:
      read: {rate: {value: 80 MB/s, low: 60 MB/s, high: 90 MB/s}}
      write: {overhead: {kind: exponential, mean_s: 0.002}, per_byte: 9 ms/MiB}
      capacity: {value: 50%, low: 30%, high: 60%}
    except: {1: {storage: {write: {per_byte: 20 ms/MiB}}}}
  - {group: slow, count: 2, roles: [storage], storage: {profile: hdd-7200, time_scale: 2}}
  - {group: meta, count: 1, roles: [manager], manager: {service: 0.5ms}}
network:
  bandwidth: {value: 125 MB/s, low: 100 MB/s, high: 130 MB/s, level: 90%}
  loopback: 1 GB/s
  payload: {value: 0.97, low: 0.93, high: 0.999, level: 50%}
  latency: 50us
store: {chunk: 256KiB, replicas: 1}
protocol: {control: 1KiB}
scheduler: {kind: data_location, wait: 10ms}
launch: {stagger: 5ms}
power:
  app: 250 W
  idle: {value: 190 W, low: 180 W, high: 260 W}
  states:
    - {frequency: 1 GHz, speed: {value: 0.6, low: 0.5, high: 0.7}, service_speed: 0.8}
  frequency: 1 GHz
price: {per_host: 0.1 EUR/h, started_hours: true}
assumed:
  - {path: hosts.nodes.storage.write, within: 30%}
  - {path: hosts.nodes.slots, low: 1, high: 3}
  - {path: hosts.slow.storage.time_scale, low: 1, high: 3}
  - {path: power.states.1 GHz.service_speed, within: 10%}
  - {path: scheduler.wait, within: 50%}
  - {path: store.chunk, low: 64KiB, high: 1MiB}
  - {path: protocol.control, low: 0.5KiB, high: 2KiB}
  - {path: price.per_host, within: 20%}
"""


@cache
def platform(name: str) -> Platform:
    if name == "kinds":
        return read_platform(KINDS.encode(), Path("kinds.yaml"))
    return load_platform(ROOT / "examples" / "platforms" / f"{name}.yaml")


def one_by_one(base: Platform, count: int) -> list[Platform]:
    """The platforms of `sampled`, each with its own values in the file."""
    platforms = []
    for i in range(count):
        rng = np.random.default_rng([STREAM, i])
        values = ranges(base.document, assumptions=True, chosen=base.chosen)
        texts = {dotted(base.document, v.path): v.like.text(v.draw(rng)) for v in values}
        platforms.append(base.with_values(texts))
    return platforms


def number(value: Any, draw: int) -> Any:
    """A network with the numbers of one draw in place of arrays."""
    if isinstance(value, np.ndarray):
        return value[draw].item()
    if isinstance(value, dict):
        return {k: number(v, draw) for k, v in value.items()}
    return [number(v, draw) for v in value] if isinstance(value, list) else value


def leaves(value: Any) -> list[float]:
    """Numbers of outcomes, in order."""
    if isinstance(value, dict):
        return [x for v in value.values() for x in leaves(v)]
    if isinstance(value, list):
        return [x for v in value for x in leaves(v)]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.mark.parametrize("name", NAMES)
def test_arrays_have_the_numbers_of_each_sampled_platform(name: str) -> None:
    expected = one_by_one(platform(name), COUNT)
    seen = []
    for rows, sample in sampled(platform(name), COUNT):
        network, power, price = sample.lower(), sample.power, sample.price
        for draw, i in enumerate(rows):
            assert number(network, draw) == expected[i].lower()
            assert of_draw(power, draw) == expected[i].power
            assert of_draw(price, draw) == expected[i].price
        seen += rows
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("name", NAMES)
def test_runs_of_draws_are_those_of_each_sampled_platform(name: str) -> None:
    simulator, seeds = Simulator(WORKLOAD, threads=2), range(11, 11 + COUNT)
    expected = one_by_one(platform(name), COUNT)
    alone = [simulator.runs(p.lower(), [s])[0] for p, s in zip(expected, seeds, strict=True)]
    fields = ("makespan_s", "error", "events", "stages", "hosts")
    outcomes = simulator.drawn(sampled(platform(name), COUNT), seeds, fields)
    assert len({makespan(outcome) for outcome in alone}) > 2
    assert list(map(makespan, outcomes)) == pytest.approx(list(map(makespan, alone)), rel=1e-9)
    # an ulp of a number's text may differ
    expected_numbers = leaves([{name: outcome[name] for name in fields} for outcome in alone])
    assert leaves(outcomes) == pytest.approx(expected_numbers, rel=1e-9, abs=1e-9)


def test_a_value_that_is_set_is_the_same_in_all_draws() -> None:
    changed = [
        (r, p.with_values({"network.payload": 0.5})) for r, p in sampled(platform("kinds"), COUNT)
    ]
    for _, sample in changed:
        out = sample.lower()["hosts"][0]["network"]["out_bps"]
        bandwidth = sample.value("network.bandwidth").numbers
        assert list(out) == list(bandwidth * 0.5)


def test_exchanged_draws_give_other_runs() -> None:
    """Planted: two exchanged draws."""
    simulator, seeds = Simulator(WORKLOAD), range(11, 11 + COUNT)
    draws = sampled(platform("tb20"), COUNT)
    swapped = [([1, 0, *rows[2:]], sample) for rows, sample in draws]
    correct, wrong = (simulator.drawn(samples, seeds) for samples in (draws, swapped))
    assert [makespan(a) == makespan(b) for a, b in zip(correct, wrong, strict=True)] == [
        False,
        False,
        *[True] * (COUNT - 2),
    ]
