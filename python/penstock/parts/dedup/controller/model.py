"""Closed forms of deduplication: time and space of a write, and break-even similarities.

Costa 2014, section 5.3.1. `r` is the time to hash over the time to send the same data, `z` the similarity:
the share of a write that earlier versions already store. Times are relative to those of a write without
deduplication, which is 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import BadInput
from penstock.parts.dedup.record import WriteRecord


@dataclass(frozen=True)
class Prediction:
    """Predicted time [s] and stored bytes of one write."""

    time_s: float
    space_bytes: float


def predict_off(bytes_written: float, send_s_per_byte: float) -> Prediction:
    """A write without deduplication (equations 5.3 and 5.4)."""
    return Prediction(send_s_per_byte * bytes_written, bytes_written)


def predict_on(
    bytes_written: float, send_s_per_byte: float, hash_s_per_byte: float, z: float, w: float = 0.0
) -> Prediction:
    """A write with deduplication (equations 5.5 and 5.6).

    `w` (0…1) is the share of the shorter phase that overlaps with the longer one; 0 is the published model.
    """
    space = bytes_written * (1 - z)
    hashing, sending = hash_s_per_byte * bytes_written, send_s_per_byte * space
    return Prediction(hashing + sending - w * min(hashing, sending), space)


def relative_time(r: float, z: float, w: float = 0.0) -> float:
    """Time of a write with deduplication over that without: 1 + r - z for w = 0."""
    return r + (1 - z) - w * min(r, 1 - z)


def break_even_time(r: float, w: float = 0.0) -> float:
    """Smallest similarity (0…1) from which deduplication takes no longer; above 1 if it always does.

    `relative_time` falls linearly in z with one bend at z = 1 - r, where hashing and sending take the same
    time.
    """
    before = r * (1 - w)  # hashing is the shorter phase: r + (1 - z) - w r = 1
    if before <= 1 - r:
        return before
    # sending is the shorter phase: r + (1 - w) (1 - z) = 1
    return 1 - (1 - r) / (1 - w) if w < 1 else math.inf


def break_even_equal_weights(r: float) -> float:
    """Similarity from which deduplication is better if time and space have equal weights (equation 5.8)."""
    return ((2 + r) - math.sqrt(4 + r * r)) / 2


def relative_utility(r: float, z: float, weights: tuple[float, float] = (-0.5, -0.5)) -> float:
    """Utility of the worse configuration over that with deduplication, as in figure 5.3 (above 1: better)."""
    time_on, space_on = relative_time(r, z), 1 - z
    longest = max(time_on, 1.0)
    on = weights[0] * time_on / longest + weights[1] * space_on
    off = weights[0] / longest + weights[1]
    return off / on


def probing_overhead(r: float, z: float, probe_writes: int, off_writes: int) -> float:
    """Time that probes add to writes without deduplication, as a share of those (negative if they save)."""
    return (r - z) * probe_writes / (probe_writes + off_writes)


def half_width(z: float, chunks: int) -> float:
    """Half the 95 % interval of a similarity that was sampled on `chunks` chunks."""
    return 1.96 * math.sqrt(z * (1 - z) / chunks)


def hash_time(versions: Sequence[WriteRecord]) -> float:
    """Seconds per byte to hash, from two identical versions of a file of one chunk.

    The second version sends nothing, so its duration is the time to hash. Raises BadInput for other records.
    """
    if len(versions) != 2:
        raise BadInput(f"versions: found {len(versions)}; expected 2 of one file")
    second = versions[1]
    if second.bytes == 0 or second.similar_bytes != second.bytes:
        actual = f"{second.similar_bytes} of {second.bytes} bytes similar"
        raise BadInput(f"second version: found {actual}; expected a copy of the first")
    return second.duration_s / second.bytes
