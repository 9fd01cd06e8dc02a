"""States, estimates and decisions of the online controller of deduplication."""

from __future__ import annotations

import gc
import math
import random
import sys
import threading
import tracemalloc
from array import array
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.parts.dedup.controller.estimate import Estimator
from penstock.parts.dedup.controller.online import OnlineController
from penstock.parts.dedup.controller.settings import SYSTEM, Sampling, Settings, published
from penstock.parts.dedup.controller.stream import CALIBRATE, PROBE, STEADY_OFF, STEADY_ON
from penstock.parts.dedup.controller.utility import Limit, Utility
from penstock.parts.dedup.record import WriteRecord

FIXED, CDC = "fixed:65536", "fastcdc:16384:65536:262144"
SIZE, CHUNKS = 64 << 20, 1024


def written(
    configuration: str,
    z: float = 0.0,
    *,
    r: float = 0.5,
    send_s: float = 1.0,
    size: int = SIZE,
    sampled: int = 0,
    family: str = "ckpt",
    overlap: float = 0.0,
) -> WriteRecord:
    """A version whose bytes all take `send_s` to send. With off, `sampled` chunks are compared."""
    similar, chunks, sampled_similar = z, CHUNKS, round(z * CHUNKS)
    hash_s, sending = r * send_s, (1 - z) * send_s
    if configuration == "off":
        hash_s = r * send_s * sampled / CHUNKS
        sending, similar, chunks, sampled_similar = send_s, 0.0, sampled, round(z * sampled)
    duration = hash_s + sending - overlap * min(hash_s, sending)
    return WriteRecord(
        family, 0.0, duration, hash_s, sending, size, round(similar * size),
        chunks, sampled_similar, configuration,
    )  # fmt: skip


def feed(controller: OnlineController, z: float, writes: int = 1, **options: float) -> list[str]:
    """Write versions as the controller chooses; returns the configurations."""
    chosen = []
    for _ in range(writes):
        configuration = controller.choose("ckpt")
        chosen.append(configuration)
        controller.record(written(configuration, z, **options))  # type: ignore[arg-type]
    return chosen


def started(z: float, settings: Settings | None = None) -> OnlineController:
    """A controller after its first probe: a first version, then four with similarity `z`."""
    controller = OnlineController(settings or Settings(), ["off", FIXED])
    feed(controller, 0.0)
    feed(controller, z, 4)
    return controller


def test_a_stream_starts_with_deduplication_and_probes_a_window() -> None:
    controller = OnlineController(Settings(), ["off", FIXED])
    assert controller.state("ckpt") == CALIBRATE
    assert feed(controller, 0.0) == [FIXED]
    assert controller.state("ckpt") == PROBE
    assert feed(controller, 0.0, 5) == [FIXED] * 4 + ["off"]
    assert controller.state("ckpt") == STEADY_OFF


def test_the_first_version_does_not_count_as_dissimilar() -> None:
    # otherwise the mean of five would be 48 %, below the break-even of 50 %
    controller = started(0.6)
    assert controller.state("ckpt") == STEADY_ON
    last = controller.decisions()[-1]
    assert last.similarity[1] == pytest.approx(0.6, abs=0.001)


def test_the_first_version_of_a_probe_after_off_does_not_count() -> None:
    controller = started(0.0, published(reprobe_after=10))
    assert feed(controller, 0.0, 10) == ["off"] * 10
    feed(controller, 0.0)  # its predecessors have no hashes
    assert feed(controller, 0.6, 4) == [FIXED] * 4
    assert controller.state("ckpt") == STEADY_ON
    assert controller.decisions()[-1].similarity[1] == pytest.approx(0.6, abs=0.001)


def test_the_interval_of_probes_doubles_while_they_confirm_off() -> None:
    controller = started(0.0, Settings(sampling=None, reprobe_after=10, reprobe_most=40))
    probes = []
    for i in range(300):
        if feed(controller, 0.0) == [FIXED]:
            probes.append(i)
    starts = [probes[0]] + [b for a, b in pairwise(probes) if b > a + 1]
    gaps = [b - a for a, b in pairwise(starts)]
    assert starts[0] == 10
    # probes of three versions: the second similar version makes one conclusive
    assert gaps[:3] == [23, 43, 43]
    assert set(gaps[1:]) == {43}


def test_the_published_controller_probes_five_in_each_hundred_and_five() -> None:
    controller = started(0.0, published())
    chosen = feed(controller, 0.0, 1050)
    assert chosen.count(FIXED) == 50
    assert chosen[:105] == ["off"] * 100 + [FIXED] * 5


def test_a_drift_of_the_send_time_restores_the_interval() -> None:
    controller = started(0.0, Settings(sampling=None, reprobe_after=10, reprobe_most=320))
    feed(controller, 0.0, 200)
    stream = controller.stream("ckpt")
    assert stream is not None
    assert stream.interval > 10
    feed(controller, 0.0, 3, send_s=1.5, r=1 / 3)
    assert stream.interval == 10


def test_a_slower_store_starts_a_probe_if_the_last_similarity_pays_now() -> None:
    controller = started(0.3, Settings(sampling=None))
    assert controller.state("ckpt") == STEADY_OFF
    # hashing takes as long as before, sending three times as long: r decreases from 0.5 to 0.17
    assert FIXED in feed(controller, 0.3, 4, send_s=3.0, r=0.5 / 3)


def test_a_sample_turns_deduplication_on_at_once() -> None:
    controller = started(0.0)
    feed(controller, 0.0, 20, sampled=32)
    chosen = feed(controller, 0.7, 4, sampled=32)
    assert chosen[-1] == FIXED
    assert controller.decisions()[-1].reason == "new estimates"


def test_the_first_sample_has_no_predecessor() -> None:
    controller = started(0.3)
    controller.record(written("off", 0.0))
    controller.record(written("off", 0.0, sampled=64))
    stream = controller.stream("ckpt")
    assert stream is not None
    assert controller.estimates.similarity_of(stream, 1) == pytest.approx(0.3, abs=0.001)


def test_the_sampled_share_respects_its_bound_in_time() -> None:
    controller = started(0.0, Settings(sampling=Sampling(time_share=0.001)))
    # 1/1000 of the time to send, of which hashing takes half
    assert controller.sample_share("ckpt") == pytest.approx(0.002)
    assert controller.sample_share("other") == 0.0
    assert started(0.0, Settings(sampling=None)).sample_share("ckpt") == 0.0


def test_a_drop_of_similarity_turns_it_off_within_two_versions() -> None:
    controller = started(0.7)
    feed(controller, 0.7, 20)
    assert feed(controller, 0.0, 3)[-1] == "off"


def test_a_gain_below_the_least_gain_changes_nothing() -> None:
    controller = started(0.55)
    feed(controller, 0.55, 20)
    assert controller.state("ckpt") == STEADY_ON
    feed(controller, 0.49, 100)  # off would gain 1 %
    assert controller.state("ckpt") == STEADY_ON
    feed(controller, 0.40, 100)
    assert controller.state("ckpt") == STEADY_OFF


def test_all_similar_versions_leave_the_last_send_time_with_its_age() -> None:
    controller = started(0.7)
    feed(controller, 1.0, 30)
    stream = controller.stream("ckpt")
    assert stream is not None
    assert controller.estimates.send_s(stream, 1) == pytest.approx(1.0 / SIZE)
    assert controller.estimates.sending.age(stream.numbers) == 30
    assert controller.state("ckpt") == STEADY_ON


def test_empty_versions_are_ignored_and_small_ones_count_per_byte() -> None:
    controller = OnlineController(Settings(), ["off", FIXED])
    controller.record(written(FIXED, size=0))
    assert controller.state("ckpt") == CALIBRATE
    for size in (1000, 7, 40_000, 65_536, 3, 90_001):
        share = size / SIZE
        configuration = controller.choose("ckpt")
        controller.record(written(configuration, 0.0, send_s=share, size=size))
    assert controller.state("ckpt") == STEADY_OFF


def test_other_time_of_the_program_has_no_effect() -> None:
    controller = OnlineController(Settings(), ["off", FIXED])
    source = random.Random(3)
    for i in range(60):
        record = written(controller.choose("ckpt"), 0.62 if i else 0.0)
        longer = record.duration_s + source.uniform(0, 20)
        controller.record(
            WriteRecord(
                record.family,
                0.0,
                longer,
                record.hash_s,
                record.send_s,
                record.bytes,
                record.similar_bytes,
                record.chunks,
                record.similar_chunks,
                record.configuration,
            )
        )
    assert controller.state("ckpt") == STEADY_ON


def test_overlap_of_hashing_and_sending_is_measured() -> None:
    # r = 0.5: without overlap the break-even is 50 %, with half of it 25 %
    for overlap, state in ((0.0, STEADY_OFF), (0.5, STEADY_ON)):
        controller = OnlineController(Settings(), ["off", FIXED])
        feed(controller, 0.0, overlap=overlap)
        feed(controller, 0.35, 20, overlap=overlap)
        assert controller.state("ckpt") == state
        stream = controller.stream("ckpt")
        assert stream is not None
        assert controller.estimates.overlap(stream, 1) == pytest.approx(overlap, abs=0.01)


@pytest.mark.parametrize(("plain_s", "state"), [(0.25, STEADY_OFF), (1.0, STEADY_ON)])
def test_sending_without_deduplication_has_its_own_time(plain_s: float, state: str) -> None:
    """Small chunks may take four times as long to send as a plain file."""
    controller = OnlineController(Settings(), ["off", FIXED])
    before = ""
    for _ in range(60):
        configuration = controller.choose("ckpt")
        z = 0.6 if configuration == before else 0.0
        seconds = plain_s if configuration == "off" else 1.0
        controller.record(written(configuration, z, r=0.1, send_s=seconds))
        before = configuration
    assert controller.state("ckpt") == state
    stream = controller.stream("ckpt")
    assert stream is not None
    times = [controller.estimates.send_s(stream, i) for i in range(2)]
    assert times == pytest.approx([plain_s / SIZE, 1.0 / SIZE])


def test_families_are_independent_unless_the_scope_is_the_system() -> None:
    for rules, expected in ((Settings(), FIXED), (Settings(scope=SYSTEM), "off")):
        controller = started(0.0, rules)
        assert controller.choose("ckpt") == "off"
        assert controller.choose("logs") == expected


def test_three_configurations_are_probed_and_the_best_is_chosen() -> None:
    controller = OnlineController(Settings(), ["off", FIXED, CDC])
    similar = {"off": 0.0, FIXED: 0.05, CDC: 0.95}
    before, chosen = "", []
    for _ in range(30):
        configuration = controller.choose("ckpt")
        z = similar[configuration] if configuration == before else 0.0
        controller.record(written(configuration, z, r=0.6 if configuration == CDC else 0.3))
        before = configuration
        chosen.append(configuration)
    assert chosen[:10] == [FIXED] * 5 + [CDC] * 5
    # one write without deduplication measures the predicted time
    assert chosen[10:].count("off") == 1
    assert chosen[10:].count(CDC) == 19


def test_other_deduplicating_configurations_are_probed_while_one_is_in_use() -> None:
    controller = OnlineController(Settings(reprobe_after=20), ["off", FIXED, CDC])
    similar = {"off": 0.0, FIXED: 0.8, CDC: 0.8}
    before, chosen = "", []
    for i in range(200):
        if i == 100:
            similar[FIXED] = 0.45  # insertions: still better than off, but no longer the best
        configuration = controller.choose("ckpt")
        z = similar[configuration] if configuration == before else 0.0
        controller.record(written(configuration, z, r=0.4 if configuration == CDC else 0.3))
        before = configuration
        chosen.append(configuration)
    assert FIXED in chosen[10:100]
    assert chosen[60:80].count(CDC) <= 3
    assert set(chosen[-10:]) == {CDC}


def test_a_limit_selects_instead_of_a_weight() -> None:
    rules = (Limit("time", 1.2), Limit("space", 0.7, strict=True))
    settings = Settings(utility=Utility((0.0, -1.0, 0.0), rules))
    for z, state in ((0.25, STEADY_OFF), (0.35, STEADY_ON), (0.9, STEADY_ON)):
        assert started(z, settings).state("ckpt") == state


def test_a_record_of_another_configuration_is_no_part_of_a_probe() -> None:
    controller = OnlineController(Settings(), ["off", FIXED])
    feed(controller, 0.0)
    for _ in range(20):  # versions opened earlier, or configurations forced by a user
        controller.record(written("off"))
    assert controller.state("ckpt") == PROBE
    with pytest.raises(BadInput, match=r"configuration: found gzip; expected one of off, fixed"):
        controller.record(written("gzip"))


@pytest.mark.parametrize("names", [[], ["off", "off"]])
def test_configurations_are_different_names(names: list[str]) -> None:
    with pytest.raises(BadInput, match="expected different names"):
        OnlineController(Settings(), names)


def test_without_deduplication_there_is_nothing_to_choose() -> None:
    controller = OnlineController(Settings(), ["off"])
    assert feed(controller, 0.0, 500) == ["off"] * 500


def test_repeated_losses_delay_switches() -> None:
    """Similarity that changes every five versions: each switch is right, but the sum is a loss."""

    def switches(settings: Settings) -> int:
        controller = OnlineController(settings, ["off", FIXED])
        before, chosen = "", []
        for i in range(2000):
            similar = 0.7 if i // 5 % 2 else 0.0
            configuration = controller.choose("ckpt")
            z = similar if configuration in ("off", before) else 0.0
            controller.record(written(configuration, z, r=0.4, sampled=32))
            before = configuration
            chosen.append(configuration)
        return sum(a != b for a, b in pairwise(chosen))

    assert switches(Settings()) < 2000 / 20


def test_a_stream_takes_less_than_a_kilobyte() -> None:
    names = ["off", FIXED, CDC]
    controller = OnlineController(Settings(decisions=1), names)
    streams, n = [f"family {i}" for i in range(400)], 10

    def write(family: str) -> None:
        configuration = controller.choose(family)
        controller.record(written(configuration, 0.5, family=family, sampled=32))

    write("warm up")
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for family in streams:
        for _ in range(n):
            write(family)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    # the hash table of streams grows in steps
    assert used / len(streams) < 1000
    stream = controller.stream(streams[0])
    assert stream is not None
    assert sys.getsizeof(stream) + sys.getsizeof(stream.numbers) < 1000


def test_threads_may_write_one_family() -> None:
    controller = OnlineController(Settings(), ["off", FIXED])
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(250):
                controller.record(written(controller.choose("ckpt"), 0.8))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream = controller.stream("ckpt")
    assert stream is not None
    assert not failures
    assert stream.writes == 1000
    assert controller.state("ckpt") == STEADY_ON


def estimate(values: list[float], **options: bool) -> tuple[float, float]:
    """Estimate and standard error after observations."""
    estimator = Estimator(window=5, adaptive=options.get("adaptive", True), memory=40)
    state = array("d", bytes(8 * (estimator.size + 3)))
    for value in values:
        estimator.add(state, 3, value)
    assert all(number == 0 for number in state[:3])
    return estimator.mean(state, 3), estimator.standard_error(state, 3)


def test_an_estimate_averages_noise_and_follows_steps() -> None:
    source = random.Random(1)
    noisy = [source.uniform(0, 1) for _ in range(400)]
    mean, error = estimate(noisy)
    assert abs(mean - 0.5) < 3 * error < 0.25
    assert estimate([0.7] * 30 + [0.0])[0] == 0.0
    assert estimate([*noisy, *([0.9] * 12)])[0] > 0.75
    slope = [i / 1000 for i in range(300)]
    assert estimate(slope)[0] == pytest.approx(slope[-1], abs=0.003)


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_an_estimate_is_within_its_observations(values: list[float]) -> None:
    mean, error = estimate(values)
    assert min(values) - 1e-12 <= mean <= max(values) + 1e-12
    assert 0 <= error <= 1
    assert math.isclose(
        estimate(values, adaptive=False)[0], math.fsum(values[-5:]) / len(values[-5:]), abs_tol=1e-9
    )
