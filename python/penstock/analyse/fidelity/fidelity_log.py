"""A disk's request log as arrays, and the schedule that its profile specifies."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

Integers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

#: keys of a disk's patch that change the station; the others (faults, …) do not affect times
STATION_KEYS = ("profile", "limits", "slow", "readahead", "cache", "servers", "credits")


@dataclass(frozen=True)
class Log:
    """The columns of `device_requests` as arrays, in order of arrival; times in ns."""

    arrived: Integers
    began: Integers
    due: Integers
    done: Integers
    service: Integers
    wait: Integers
    op: np.ndarray[Any, np.dtype[np.uint8]]
    offset: np.ndarray[Any, np.dtype[np.uint64]]
    size: Integers
    #: number of earlier requests for the same offset; -1 if not logged
    visit: Integers

    def take(self, which: Any) -> Log:
        """Requests by mask, index or slice."""
        return Log(**{name: column[which] for name, column in vars(self).items()})


@dataclass(frozen=True)
class Schedule:
    """Due times of a station with the profile, its service times and waits; ns, per request."""

    done: Integers
    service: Integers
    wait: Integers

    def take(self, which: Any) -> Schedule:
        """Requests by mask, index or slice."""
        return Schedule(self.done[which], self.service[which], self.wait[which])

    @property
    def took(self) -> Integers:
        """Time in the disk, queueing included."""
        return self.wait + self.service


def columns(table: pa.Table, own_lateness_ns: float) -> Log:
    """The log's columns; replies late by no more than `own_lateness_ns` count as on time."""
    table = table.sort_by("t_ns")

    def column(name: str) -> Integers:
        if name not in table.column_names:
            return np.zeros(table.num_rows, np.int64)
        return np.asarray(table[name].to_numpy(zero_copy_only=False), np.int64)

    op = table["op"]
    if pa.types.is_dictionary(op.type):
        op = op.cast(pa.string())
    codes = pd.Categorical(op.to_pandas(), categories=["read", "write", "flush"]).codes
    due, done = column("due_ns"), column("done_ns")
    # replies late by at most the calibrated lateness are on time: the arrival was moved forward by as much
    done = np.maximum(done - int(own_lateness_ns), np.minimum(due, done))
    return Log(
        arrived=column("t_ns"),
        began=column("t_ns") - column("compensation_ns"),
        due=due,
        done=done,
        service=column("service_ns"),
        wait=column("wait_ns"),
        op=codes.astype(np.uint8),
        offset=column("device_offset_bytes").astype(np.uint64),
        size=column("size_bytes"),
        visit=column("visit") - int("visit" not in table.column_names),
    )


def steps(events: Sequence[Mapping[str, Any]], arrived: Integers) -> list[tuple[int, int, str]]:
    """A disk's events as arguments of the station: number of earlier requests, time [ns], patch as JSON.

    Failed events were not applied; keys that do not affect times are left out.
    """
    out = []
    for event in sorted(events, key=lambda e: int(e["applied_ns"])):
        requested = event.get("asked") or {}
        patch = {key: requested[key] for key in STATION_KEYS if key in requested}
        if patch and not event.get("error"):
            at_ns = int(event["applied_ns"])
            out.append((int(np.searchsorted(arrived, at_ns)), at_ns, json.dumps(patch)))
    return out


def schedule(
    log: Log, profile: Any, seed: int, events: Sequence[Mapping[str, Any]] = ()
) -> Schedule:
    """Due times of a station with that profile, changed by `events`; waits are the server's."""
    text = profile if isinstance(profile, str) else getattr(profile, "json", None)
    text = json.dumps(profile) if text is None else text
    native: Any = importlib.import_module("penstock._native")
    answer = native.station_serve(
        text,
        seed,
        log.began.astype(np.uint64),
        log.op,
        log.offset,
        log.size.astype(np.uint64),
        steps(events, log.arrived),
    )
    due = np.frombuffer(answer["due_ns"], np.uint64).astype(np.int64)
    service = np.frombuffer(answer["service_ns"], np.uint64).astype(np.int64)
    visit = np.frombuffer(answer["visit"], np.uint64).astype(np.int64)
    if np.mean((visit != log.visit) & (log.visit >= 0)) > 0.005:
        # the station had served requests before the log began: keep its draws, and shift its queue by the
        # change of due times
        service = log.service
        due = log.began + log.wait + service
    return Schedule(due, service, log.wait)


def union(began: Integers, ended: Integers) -> tuple[Integers, Integers]:
    """The union of the intervals as disjoint intervals in order: begins and ends."""
    order = np.argsort(began, kind="stable")
    starts = began[order]
    reach = np.maximum.accumulate(np.maximum(ended[order], starts))
    apart = np.flatnonzero(starts[1:] > reach[:-1])
    first, last = np.concatenate(([0], apart + 1)), np.append(apart, len(starts) - 1)
    return starts[first[: len(starts)]], reach[last[last >= 0]]


def busy_s(began: Integers, ended: Integers) -> float:
    """Measure of the union of the intervals, in seconds."""
    begins, ends = union(began, ended)
    return float((ends - begins).sum()) * 1e-9


def is_late(log: Log) -> Flags:
    """Mask of replies later than 5 % of their specified time in the disk, and 50 us."""
    lateness = np.maximum(log.done - log.due, 0)
    late: Flags = lateness > np.maximum((log.wait + log.service) // 20, 50_000)
    return late


def frame(table: pa.Table | pd.DataFrame) -> pd.DataFrame:
    """The table as a new data frame."""
    return table.to_pandas() if isinstance(table, pa.Table) else table.copy()
