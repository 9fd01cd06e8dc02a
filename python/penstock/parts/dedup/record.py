"""Measurements of one write, as the monitor of a store reports it to the controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """One committed version of a file.

    Costa 2014, section 5.3: time stamp, duration, chunks and similar chunks of each write. Hashing and
    sending are measured apart; they may overlap, so that their sum may exceed `duration_s`. `similar_bytes`
    and `similar_chunks` count what an earlier version already stored. With configuration "off" nothing is
    hashed: `hash_s`, `similar_bytes` and `similar_chunks` are 0, unless the store compared a sample
    (`OnlineController.sample_share`); then `chunks` counts the sampled chunks only.
    """

    family: str
    at_s: float
    duration_s: float
    hash_s: float
    send_s: float
    bytes: int
    similar_bytes: int
    chunks: int
    similar_chunks: int
    configuration: str
