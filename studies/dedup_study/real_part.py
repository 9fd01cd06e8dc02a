"""Similarity and stored bytes of successive versions of real data."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from bench import record
from penstock.errors import PenstockError
from penstock.parts.dedup import stores
from penstock.parts.dedup.measure import compare
from penstock.parts.dedup.mounts import mounted
from penstock.parts.dedup.options import MountOptions
from studies.claims import Claim, Finding, Result, claim, met_if
from studies.dedup_study.cells import OFF, SEQCDC
from studies.dedup_study.real_data import Source, packages, postgres, rocksdb
from studies.dedup_study.writer import BLOCK_BYTES, copy_to, scratch_directory

FIXED, FASTCDC = "fixed:64KiB", "fastcdc:16KiB,64KiB,256KiB"
CONFIGURATIONS = (FIXED, FASTCDC, SEQCDC)
#: goals: bytes of a chunker over those of another one
AS_MUCH, MORE = 1.02, 1.05
#: share of similar chunks of random bytes that would be a defect
RANDOM = 0.01


@dataclass(frozen=True)
class Size:
    """Sources, in the order in which they are measured."""

    sources: tuple[Source, ...]


FULL = Size(
    (
        rocksdb(keys=400_000, writes=40_000, versions=5),
        postgres(scale=10, transactions=2000, versions=5),
        packages("numpy", ("1.26.0", "1.26.1", "1.26.2", "1.26.3", "1.26.4")),
        packages("django", ("5.0.1", "5.0.2", "5.0.3", "5.0.4", "5.0.5")),
    )
)
# no download
QUICK = Size(
    (
        rocksdb(keys=80_000, writes=8000, versions=3),
        postgres(scale=2, transactions=500, versions=3),
    )
)


@dataclass(frozen=True)
class DataRun:
    """Versions of one source.

    `similarity`: share of each version that its predecessor has, by configuration. `stored_bytes`: bytes of
    all chunks of a mount to which all versions were written; `identical`: they were read back unchanged.
    `random`: largest similarity of random bytes of the size of the last version.
    """

    name: str
    bytes: tuple[int, ...]
    similarity: dict[str, tuple[float, ...]]
    stored_bytes: dict[str, int]
    identical: dict[str, bool]
    random: float


@dataclass(frozen=True)
class RealResult:
    """Result of the part; `missing`: reason by name of a source that could not be measured."""

    names: tuple[str, ...]
    runs: tuple[DataRun, ...]
    missing: dict[str, str]


def measure(size: Size) -> RealResult:
    """Write the versions of all sources, and measure them."""
    runs, missing = [], {}
    for source in size.sources:
        reason = source.missing()
        if not reason:
            try:
                runs.append(_run(source))
                continue
            except PenstockError as error:
                reason = str(error)
        missing[source.name] = reason
        print(f"{source.name}: not measured: {reason}", file=sys.stderr, flush=True)
    return RealResult(tuple(source.name for source in size.sources), tuple(runs), missing)


def _run(source: Source) -> DataRun:
    with scratch_directory() as scratch:
        (scratch / "data").mkdir()
        versions = source.write(scratch / "data")
        similarity = {
            name: tuple(compare(old, new, name).share for old, new in pairwise(versions))
            for name in CONFIGURATIONS
        }
        stored, identical = {}, {}
        for name in (OFF, *CONFIGURATIONS):
            stored[name], identical[name] = _stored(versions, name, scratch / "mounted")
        run = DataRun(
            source.name,
            tuple(path.stat().st_size for path in versions),
            similarity,
            stored,
            identical,
            _random_similarity(versions, scratch / "random"),
        )
    shares = ", ".join(
        f"{name} {100 * sum(values) / len(values):.1f} %" for name, values in similarity.items()
    )
    print(f"{source.name}: {shares}", file=sys.stderr, flush=True)
    return run


def _stored(versions: Sequence[Path], chunking: str, base: Path) -> tuple[int, bool]:
    """Bytes of all chunks after all versions were written, and True if all are read back unchanged."""
    store, point = base / "store", base / "mount"
    for directory in (store, point):
        directory.mkdir(parents=True)
    with mounted(store, point, MountOptions(chunking=chunking)):
        for path in versions:
            copy_to(point / path.name, memoryview(path.read_bytes()))
        same = all(_digest(path) == _digest(point / path.name) for path in versions)
        stored = stores.usage(point).stored_bytes
    shutil.rmtree(base)
    return stored, same


def _digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.digest()


def _random_similarity(versions: Sequence[Path], place: Path) -> float:
    """Largest similarity, by any configuration, of random bytes to the last version."""
    with open(place, "wb") as file:
        rest = versions[-1].stat().st_size
        while rest > 0:
            rest -= file.write(os.urandom(min(rest, BLOCK_BYTES)))
    return max(compare(versions[-1], place, name).share for name in CONFIGURATIONS)


def similarities(result: RealResult) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Shares of each pair of versions, by data and configuration."""
    return {run.name: run.similarity for run in result.runs}


def claims_of(result: RealResult) -> list[Claim]:
    """Claims of all sources."""
    by_name = {run.name: run for run in result.runs}
    return [claim_ for name in result.names for claim_ in _claims(name, by_name.get(name))]


def _claims(name: str, run: DataRun | None) -> list[Claim]:
    needs = {name: int(run is not None)}

    def of(wording: str, evaluate: Callable[[DataRun], Finding], criterion: str = "") -> Claim:
        def finding() -> Finding:
            assert run is not None
            return evaluate(run)

        return claim(name, wording, needs, finding, criterion=criterion)

    return [
        of("every version is read back unchanged, in every configuration", _identical),
        of(
            "content-defined chunks (seqcdc) store no more than fixed ones",
            lambda run: _over(run, SEQCDC, FIXED, AS_MUCH),
            f"at most {AS_MUCH - 1:.0%} more",
        ),
        of(
            "seqcdc stores as little as fastcdc",
            lambda run: _over(run, SEQCDC, FASTCDC, MORE),
            f"at most {MORE - 1:.0%} more",
        ),
        of(
            "a mount stores no more than versions have new chunks, compared pair by pair",
            _by_pairs,
            f"at most {AS_MUCH - 1:.0%} more",
        ),
    ]


def _identical(run: DataRun) -> Finding:
    damaged = [name for name, same in run.identical.items() if not same]
    evidence = (
        ", ".join(damaged) or f"{len(run.bytes)} versions, {len(run.identical)} configurations"
    )
    return met_if(not damaged, evidence)


def _over(run: DataRun, name: str, reference: str, limit: float) -> Finding:
    ratio = run.stored_bytes[name] / run.stored_bytes[reference]
    written = sum(run.bytes)
    evidence = (
        f"{ratio:.3f}: {100 * run.stored_bytes[name] / written:.1f} % of the written bytes, "
        f"{reference} {100 * run.stored_bytes[reference] / written:.1f} %"
    )
    return met_if(ratio <= limit, evidence)


def _by_pairs(run: DataRun) -> Finding:
    ratios = {}
    for name, shares in run.similarity.items():
        rest = zip(run.bytes[1:], shares, strict=True)
        new = run.bytes[0] + sum(size * (1 - share) for size, share in rest)
        ratios[name] = run.stored_bytes[name] / new
    evidence = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    return met_if(max(ratios.values()) <= AS_MUCH, evidence)


def planted(result: RealResult) -> dict[str, bool | None]:
    """True for each failure that was detected: random bytes, and bytes that a mount does not store."""
    if not result.runs:
        return {"random bytes": None, "chunks of every version stored again": None}
    again = [
        replace(run, stored_bytes=dict.fromkeys(run.stored_bytes, sum(run.bytes)))
        for run in result.runs
        if max(share for shares in run.similarity.values() for share in shares) > 0.1
    ]
    return {
        "random bytes": all(run.random < RANDOM for run in result.runs),
        "chunks of every version stored again": (
            all(_by_pairs(run).result is Result.NOT_MET for run in again) if again else None
        ),
    }


def rows_of(result: RealResult) -> list[record.Row]:
    """Similarity and stored share, by source and configuration."""
    rows = []
    for run in result.runs:
        case = f"{run.name}, {len(run.bytes)} versions"
        for name, shares in run.similarity.items():
            values = [100 * share for share in shares]
            rows.append({**record.row(case, name, "similar", values, "%"), "quoted": True})
        for name, stored in run.stored_bytes.items():
            share = 100 * stored / sum(run.bytes)
            metric = "stored share of the versions"
            rows.append({**record.row(case, name, metric, [share], "%"), "quoted": True})
    return rows


def lines(result: RealResult) -> list[str]:
    """Stored shares, as text."""
    text = [f"{name}: not measured: {reason}" for name, reason in result.missing.items()]
    for run in result.runs:
        shares = ", ".join(
            f"{name} {100 * stored / sum(run.bytes):.1f} %"
            for name, stored in run.stored_bytes.items()
        )
        text.append(f"{run.name}: stored share of {sum(run.bytes) / 1e6:.0f} MB: {shares}")
    return text
