"""Sequences of requests with known truth: every class over sizes, lengths, strides, streams and phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

KIB = 1024
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A sequence and its true class; `k`, `strides`, `borders` [requests], `exponent` if the class has them.
    `streams` are kind and share of each, if the streams are of different kinds.
    """

    name: str
    kind: str
    offsets: Offsets
    sizes: Offsets
    tids: npt.NDArray[np.uint32]
    k: int | None = None
    strides: tuple[int, ...] = ()
    borders: tuple[int, ...] = ()
    exponent: float | None = None
    streams: tuple[tuple[str, float], ...] = ()
    accepted: frozenset[str] = field(default_factory=frozenset)


def case(
    name: str,
    kind: str,
    offsets: Offsets,
    size: int | Offsets,
    tids: Offsets | None = None,
    **truth: object,
) -> Case:
    n = len(offsets)
    sizes = np.full(n, size, np.int64) if isinstance(size, int) else size
    threads = np.ones(n) if tids is None else tids
    return Case(name, kind, offsets, sizes, threads.astype(np.uint32), **truth)  # type: ignore[arg-type]


def consecutive(n: int, size: int, at: int = 0) -> Offsets:
    return at + np.arange(n, dtype=np.int64) * size


def reverse(n: int, size: int, at: int = 0) -> Offsets:
    return consecutive(n, size, at)[::-1].copy()


def strided(n: int, strides: tuple[int, ...], at: int = 0) -> Offsets:
    steps = np.resize(np.array(strides, np.int64), n)
    return at + np.concatenate([[0], np.cumsum(steps)[: n - 1]])


def gaps(draws: np.random.Generator, n: int, size: int, at: int = 0) -> Offsets:
    steps = size + draws.integers(0, 33, n) * KIB
    return at + np.concatenate([[0], np.cumsum(steps)[: n - 1]])


def uniform(draws: np.random.Generator, n: int, size: int, blocks: int, at: int = 0) -> Offsets:
    return at + draws.integers(0, blocks, n) * size


def zipf(
    draws: np.random.Generator, n: int, size: int, blocks: int, exponent: float, at: int = 0
) -> Offsets:
    """Ranks with frequencies as rank^-exponent, over blocks in random order."""
    sums = np.cumsum(np.arange(1, blocks + 1) ** -exponent)
    ranks = np.searchsorted(sums, draws.random(n) * sums[-1])
    return at + draws.permutation(blocks)[np.minimum(ranks, blocks - 1)] * size


def streams(
    draws: np.random.Generator, n: int, size: int, k: int, turns: str
) -> tuple[Offsets, Offsets]:
    """k chains, each in its own range, and the chain of each request."""
    match turns:
        case "round":
            stream_of = np.arange(n) % k
        case "random":
            stream_of = draws.integers(0, k, n)
        case _:  # uneven: some chains get twice as many requests as others
            stream_of = np.minimum(draws.integers(0, 2 * k, n), draws.integers(0, 2 * k, n)) % k
    offsets = np.zeros(n, np.int64)
    begin = draws.permutation(k).astype(np.int64) * (1 << 33) + draws.integers(0, 1000, k) * size
    for stream in range(k):
        selected = stream_of == stream
        offsets[selected] = begin[stream] + np.arange(selected.sum()) * size
    return offsets, stream_of


def noisy(draws: np.random.Generator, offsets: Offsets, share: float, size: int) -> Offsets:
    """Move some requests to other offsets, between the rest."""
    hit = draws.random(len(offsets)) < share
    hit[0] = False
    out = offsets.copy()
    out[hit] = (1 << 44) + draws.integers(0, 1 << 22, hit.sum()) * size
    return out


def phase(draws: np.random.Generator, kind: str, n: int, size: int, number: int) -> Offsets:
    at = number << 40
    match kind:
        case "consecutive":
            return consecutive(n, size, at)
        case "reverse":
            return reverse(n, size, at)
        case "strided":
            return strided(n, (16 * size,), at)
        case "sequential":
            return gaps(draws, n, size, at)
        case "interleaved":
            return at + streams(draws, n, size, 4, "random")[0]
        case "hot-set":
            return zipf(draws, n, size, 4096, 1.3, at)
        case _:
            return uniform(draws, n, size, 1 << 20, at)


PHASES = ("consecutive", "reverse", "strided", "sequential", "interleaved", "random")


def plain(seed: int, n: int, size: int) -> Iterator[Case]:
    """One case per simple class."""
    draws = np.random.default_rng([seed, n, size])
    tag = f"n{n} s{size} #{seed}"
    yield case(f"consecutive {tag}", "consecutive", consecutive(n, size), size)
    mixed = draws.choice([size, 2 * size, 3 * size], n).astype(np.int64)
    ends = np.cumsum(mixed)
    yield case(f"consecutive, sizes vary {tag}", "consecutive", ends - mixed, mixed)
    yield case(
        f"consecutive, 1.5 % elsewhere {tag}",
        "consecutive",
        noisy(draws, consecutive(n, size), 0.015, size),
        size,
    )
    yield case(f"reverse {tag}", "reverse", reverse(n, size), size)
    factor = int(draws.integers(2, 300))
    yield case(
        f"strided {tag}", "strided", strided(n, (factor * size,)), size, strides=(factor * size,)
    )
    back = -int(draws.integers(2, 100)) * size
    yield case(
        f"strided back {tag}", "strided", strided(n, (back,), 1 << 40), size, strides=(back,)
    )
    for length in (2, 3, 4):
        steps = tuple(
            int(x) * size for x in draws.choice(np.arange(40, 400), length, replace=False)
        )
        yield case(f"cycle of {length} {tag}", "strided", strided(n, steps), size, strides=steps)
    yield case(f"gaps {tag}", "sequential", gaps(draws, n, size), size)
    blocks = int(draws.integers(1 << 17, 1 << 22))
    yield case(f"uniform {tag}", "random", uniform(draws, n, size, blocks), size)
    # every block once, in random order: no streams, although every block has a neighbour
    yield case(f"permutation {tag}", "random", draws.permutation(n).astype(np.int64) * size, size)


def many(seed: int, n: int, size: int) -> Iterator[Case]:
    """Streams of one thread, and of one thread each."""
    draws = np.random.default_rng([seed, n, size, 1])
    for k in (2, 3, 4, 8, 16, 32):
        if n < 40 * k:
            continue
        for turns in ("round", "random", "uneven"):
            offsets, stream_of = streams(draws, n, size, k, turns)
            tag = f"k{k} {turns} n{n} s{size} #{seed}"
            yield case(f"one thread {tag}", "interleaved", offsets, size, k=k)
            if k <= 8:
                yield case(f"threads {tag}", "interleaved", offsets, size, stream_of + 1, k=k)


UNEQUAL = (
    (("adjacent", 0.7), ("strided", 0.3)),
    (("adjacent", 0.6), ("reverse", 0.4)),
    (("reverse", 0.6), ("strided", 0.4)),
    (("adjacent", 0.5), ("reverse", 0.3), ("strided", 0.2)),
)


def unequal(seed: int, n: int, size: int, *, threads: bool) -> Iterator[Case]:
    """Streams of different kinds that alternate at random: of one thread, or of one thread each."""
    draws = np.random.default_rng([seed, n, size, 5])
    for kinds in UNEQUAL:
        stream_of = draws.choice(len(kinds), n, p=[share for _, share in kinds])
        offsets = np.zeros(n, np.int64)
        for number, (kind, _) in enumerate(kinds):
            selected = stream_of == number
            step = {"adjacent": size, "reverse": -size, "strided": 65 * size}[kind]
            offsets[selected] = ((number + 1) << 42) + np.arange(int(selected.sum())) * step
        name = ", ".join(f"{share:.0%} {kind}" for kind, share in kinds)
        tids = stream_of + 1 if threads else None
        tag = f"{'threads' if threads else 'one thread'} n{n} s{size} #{seed}"
        yield case(f"{name} {tag}", "interleaved", offsets, size, tids, k=len(kinds), streams=kinds)


def by_threads(seed: int, n: int, size: int) -> Iterator[Case]:
    """Streams of different kinds, one thread each; and a log to which processes append a few lines each."""
    yield from unequal(seed, n, size, threads=True)
    tids = np.arange(n, dtype=np.int64) // 3 + 1
    yield case(f"log of short processes n{n} #{seed}", "consecutive", consecutive(n, 64), 64, tids)


def hot(seed: int, n: int, size: int) -> Iterator[Case]:
    """Zipf over blocks, and a fifth of the blocks with nine tenths of the requests."""
    draws = np.random.default_rng([seed, n, size, 2])
    for exponent in (1.1, 1.2, 1.3, 1.5):
        for blocks in (2048, 8192):
            if n < 8 * blocks:
                continue
            yield case(
                f"zipf {exponent} of {blocks} n{n} s{size} #{seed}",
                "hot-set",
                zipf(draws, n, size, blocks, exponent),
                size,
                exponent=exponent,
            )
    blocks = 2000
    if n >= 8 * blocks:
        often = draws.random(n) < 0.93
        indices = np.where(often, draws.integers(0, blocks // 8, n), draws.integers(0, blocks, n))
        yield case(
            f"93 % to an eighth n{n} s{size} #{seed}",
            "hot-set",
            draws.permutation(blocks)[indices] * size,
            size,
        )


def mixed(seed: int, n: int, size: int) -> Iterator[Case]:
    """Two phases with different borders, and three."""
    draws = np.random.default_rng([seed, n, size, 3])
    for first in PHASES:
        for second in PHASES:
            if first == second:
                continue
            share = float(draws.choice([0.15, 0.3, 0.5, 0.7, 0.85]))
            cut = round(share * n)
            offsets = np.concatenate(
                [phase(draws, first, cut, size, 0), phase(draws, second, n - cut, size, 1)]
            )
            yield case(
                f"{first}|{second} at {share} n{n} #{seed}", "mixed", offsets, size, borders=(cut,)
            )
    kinds = draws.choice(PHASES, 3, replace=False)
    cuts = (round(0.3 * n), round(0.65 * n))
    parts = zip(kinds, (cuts[0], cuts[1] - cuts[0], n - cuts[1]), range(3), strict=True)
    offsets = np.concatenate([phase(draws, str(kind), m, size, i) for kind, m, i in parts])
    yield case(f"{'|'.join(kinds)} n{n} #{seed}", "mixed", offsets, size, borders=cuts)


def guards(seed: int, n: int, size: int) -> Iterator[Case]:
    """Sequences that must not be mistaken for another class."""
    draws = np.random.default_rng([seed, n, size, 4])
    tag = f"n{n} s{size} #{seed}"
    yield case(f"31 requests {tag}", "insufficient", consecutive(31, size), size)
    yield case(f"one of 1 GiB {tag}", "insufficient", np.zeros(1, np.int64), 1 << 30)
    halves, stream_of = streams(draws, n, size, 2, "random")
    yield case(f"two threads, own halves {tag}", "interleaved", halves, size, stream_of + 1, k=2)
    tenth = noisy(draws, consecutive(n, size), 0.10, size)
    yield case(f"a tenth at random {tag}", "irregular", tenth, size)
    yield case(
        f"a fifth at random {tag}",
        "irregular",
        noisy(draws, consecutive(n, size), 0.20, size),
        size,
    )
    rest = noisy(draws, reverse(n, size, 1 << 30), 0.15, size)
    yield case(f"reverse, 15 % at random {tag}", "irregular", rest, size)
    yield case(
        f"gaps, 1.5 % elsewhere, back {tag}",
        "sequential",
        noisy(draws, gaps(draws, n, size), 0.015, size),
        size,
    )


def grid(lengths: tuple[int, ...], sizes: tuple[int, ...], seeds: int) -> Iterator[Case]:
    """All of these."""
    for seed in range(seeds):
        for n in lengths:
            for size in sizes:
                for make in (plain, many, by_threads, hot, mixed, guards):
                    yield from make(seed, n, size)
