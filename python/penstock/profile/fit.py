"""A storage profile from measurements of a device.

Depth 1 yields the overhead and the rate of each class (mean latency against block size is a line), depth the
number of servers (rate times service time is the number of busy servers), the remaining deviation at depth
the caps of the interface, and concurrent sequential jobs the number of streams that the device detects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import BadInput
from penstock.profile.cells import Cell, Measurements
from penstock.profile.model import SCHEMA_ID, StorageProfile, native

#: probabilities at which the overhead is tabulated
_P = np.array(
    [0.001, 0.005, 0.01, 0.025, 0.05]
    + [i / 20 for i in range(2, 19)]
    + [0.95, 0.975, 0.99, 0.995, 0.999]
)
#: a cap of the interface is assumed if the servers alone would be faster by this ratio
_CAPPED = 1.08
#: cost of random over sequential reads: minimum at the smallest size, and maximum at larger ones, for
#: readahead
_GAP = 1.3
_CLOSED = 1.1


@dataclass(frozen=True)
class FitError:
    """Ratios fitted / measured of a cell."""

    op: str
    sequential: bool
    block_bytes: int
    depth: int
    rate_ratio: float
    p50_ratio: float
    p99_ratio: float


@dataclass(frozen=True)
class Fit:
    """A fitted profile and its errors, cell by cell."""

    profile: StorageProfile
    errors: list[FitError]

    @property
    def worst_rate_error(self) -> float:
        """Largest relative deviation of a rate."""
        return max(abs(e.rate_ratio - 1) for e in self.errors)


def fit_profile(measured: Measurements, name: str, source: list[dict[str, str]]) -> Fit:
    """Profile that explains the cells, and its errors; BadInput as from `profile_of`."""
    profile = profile_of(measured, name, source)
    return Fit(profile, [fit_error(profile, cell) for cell in measured.cells])


def profile_of(
    measured: Measurements,
    name: str,
    source: list[dict[str, str]],
    description: str = "Fitted from fio.",
) -> StorageProfile:
    """Profile that explains the cells; BadInput if depth-1 cells of reads or writes are missing.

    An unmeasured direction uses the costs of the other one, which its source mentions.
    """
    source = list(source)
    directions = {}
    for op in ("read", "write"):
        cells = [c for c in measured.cells if c.op == op]
        if cells:
            directions[op] = {
                "sequential": _class(cells, True, source),
                "random": _class(cells, False, source),
            }
    pages = _pages(measured.cells, directions)
    if not directions:
        raise BadInput("no reads and no writes at depth 1")
    for op, other in (("read", "write"), ("write", "read")):
        if op not in directions:
            directions[op] = directions[other]
            source.append({"what": f"{op}s", "where": f"assumed: as {other}s (not measured)"})
    sizes = [c.block_bytes for c in measured.cells]
    sizes_text = f"request sizes {min(sizes)} to {max(sizes)} B"
    source.append({"what": sizes_text, "where": "measured; beyond them the same line is assumed"})
    values: dict[str, Any] = {
        "schema": SCHEMA_ID,
        "name": name,
        "description": description,
        "source": source,
        "servers": 1,
        **directions,
        **pages,
        "flush": {"overhead": _flush(measured.flush, source)},
    }
    draft = StorageProfile.from_dict(values)
    values["sequential_streams"] = _streams(measured.cells, draft)
    values["servers"] = _servers(measured.cells, draft)
    values |= _interface(measured.cells, StorageProfile.from_dict(values))
    return StorageProfile.from_dict(values)


def simulated_cell(profile: StorageProfile, cell: Cell, seed: int = 1) -> dict[str, Any]:
    """Simulate a cell's requests; returns the result for its direction."""
    per_thread = max(1, cell.depth // cell.streams)
    mean_s = profile.moments(cell.op, cell.sequential, cell.block_bytes).mean
    file_bytes = max(1 << 30, cell.block_bytes * 1024)
    spec = {
        "profile": profile.to_dict(),
        "seed": seed,
        "operations": int(np.clip(60.0 / max(mean_s, 1e-6), 2000, 20000) // cell.streams) + 1,
        "quantiles": [0.5, 0.99],
        "clients": [
            {
                "count": cell.streams,
                "iodepth": per_thread,
                "pattern": {
                    "kind": "sequential" if cell.sequential else "random",
                    "op": cell.op,
                    "block_bytes": cell.block_bytes,
                    "file_bytes": file_bytes,
                },
            }
        ],
    }
    outcome: dict[str, Any] = json.loads(native.simulate_closed(json.dumps(spec)))[cell.op]
    return outcome


def fit_error(profile: StorageProfile, cell: Cell) -> FitError:
    """Deviation of the profile from a measured cell."""
    fitted = simulated_cell(profile, cell)
    p50, p99 = cell.quantiles_s(np.array([0.5, 0.99]))
    (_, q50), (_, q99) = fitted["latency_ns"]
    return FitError(
        cell.op,
        cell.sequential,
        cell.block_bytes,
        cell.depth,
        fitted["iops"] / cell.rate_iops,
        q50 * 1e-9 / p50,
        q99 * 1e-9 / p99,
    )


def _class(cells: list[Cell], sequential: bool, source: list[dict[str, str]]) -> dict[str, Any]:
    """Overhead quantiles and rate of one class, from its depth-1 cells (the other class's if it has none)."""
    own = [c for c in cells if c.sequential == sequential and c.depth == 1]
    if not own:
        own = [c for c in cells if c.depth == 1]
        kind, other = ("sequential", "random") if sequential else ("random", "sequential")
        source.append({"what": f"{kind} {cells[0].op}s", "where": f"assumed: as {other}"})
    if not own:
        raise BadInput(f"no {cells[0].op}s at depth 1 were measured")
    sizes = np.array([c.block_bytes for c in own], dtype=float)
    means = np.array([c.mean_s for c in own])
    overhead_s, per_byte_s = _line(sizes, means, np.array([c.requests for c in own]))
    if len(np.unique(sizes)) == 1:  # the cost per byte may be known from the other class
        others = [c for c in cells if c.depth == 1 and c.sequential != sequential]
        slope = _line(*_sizes_and_means(others))[1] if others else 0.0
        if 0 < slope * sizes[0] < means.mean():
            kind, other = ("sequential", "random") if sequential else ("random", "sequential")
            overhead_s, per_byte_s = float(means.mean()) - slope * sizes[0], slope
            where = f"assumed: as of {other} ones (one size was measured)"
            source.append({"what": f"rate_bps of {kind} {cells[0].op}s", "where": where})
        else:
            where = "assumed: as long as the one size that was measured"
            what = f"{'sequential' if sequential else 'random'} {cells[0].op}s of other sizes"
            source.append({"what": what, "where": where})
    smallest = min(own, key=lambda c: c.block_bytes)
    drawn = np.maximum(smallest.quantiles_s(_P) - smallest.block_bytes * per_byte_s, 0.0)
    answer: dict[str, Any] = {"overhead": _quantiles(drawn, max(overhead_s, 0.0))}
    if per_byte_s > 0:
        answer["rate_bps"] = 1.0 / per_byte_s
    return answer


def _sizes_and_means(cells: list[Cell]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Sizes [B], mean latencies [s] and counts of requests."""
    rows = [(float(c.block_bytes), c.mean_s, float(c.requests)) for c in cells]
    sizes, means, counts = np.array(rows).T
    return sizes, means, counts


def _pages(cells: list[Cell], directions: dict[str, Any]) -> dict[str, Any]:
    """The field `readahead` if reads at queue depth 1 show it; the two classes of reads are then merged.

    On a device that prefetches entire pages of streams, small sequential reads cost less than others, and
    from one page on the same: overhead + size / rate, plus a fetch for random reads and for those of at least
    a page.
    """
    reads = [c for c in cells if c.op == "read" and c.depth == 1]
    means = {(c.sequential, c.block_bytes): c.mean_s for c in reads}
    gap = {s: means[False, s] / means[True, s] for q, s in means if q and (False, s) in means}
    closed = [s for s in gap if all(gap[t] <= _CLOSED for t in gap if t >= s)]
    if not closed or gap[min(gap)] < _GAP or len(reads) < 4:
        return {}
    sizes, mean_s, _ = _sizes_and_means(reads)
    at_random = np.array([not c.sequential for c in reads])
    page = min(closed)
    # the page is between the last size with a gap and the first without: a power of two, if any
    power = 1 << (page.bit_length() - 1)
    page = power if power > max(s for s in gap if s < page) else page
    pays = (at_random | (sizes >= page)).astype(float)
    matrix = np.column_stack([np.ones_like(sizes), sizes, pays]) / mean_s[:, None]
    (overhead_s, per_byte_s, fetch_s), *_ = np.linalg.lstsq(matrix, np.ones_like(sizes), rcond=None)
    if min(overhead_s, per_byte_s, fetch_s) <= 0:
        return {}
    two_lines = np.array([_cost_s(directions["read"], c.sequential, c.block_bytes) for c in reads])
    errors = [
        np.mean((x / mean_s - 1) ** 2)
        for x in (matrix @ [overhead_s, per_byte_s, fetch_s] * mean_s, two_lines)
    ]
    if errors[0] >= errors[1]:
        return {}
    one = {"overhead": _constant(overhead_s), "rate_bps": 1.0 / per_byte_s}
    directions["read"] = {"sequential": one, "random": one}
    return {"readahead": {"page_bytes": int(page), "fetch": _constant(fetch_s)}}


def _constant(seconds: float) -> dict[str, Any]:
    return {"kind": "constant", "value_s": float(f"{seconds:.6g}")}


def _cost_s(classes: Mapping[str, Any], sequential: bool, size: int) -> float:
    """Mean service time of a fitted class."""
    of = classes["sequential" if sequential else "random"]
    overhead = of["overhead"]
    mean_s = overhead.get("value_s")
    if mean_s is None:
        p, v = np.array(overhead["quantiles"]).T
        mean_s = float(np.sum(np.diff(p) * (v[1:] + v[:-1]) / 2))
    return float(mean_s) + (size / of["rate_bps"] if "rate_bps" in of else 0.0)


def _line(sizes: NDArray[Any], means_s: NDArray[Any], counts: NDArray[Any]) -> tuple[float, float]:
    """Intercept and slope (not below 0) of mean latency over size, by relative least squares."""
    if len(np.unique(sizes)) < 2:
        return float(means_s.mean()), 0.0
    weight = np.sqrt(counts) / means_s
    matrix = np.column_stack([np.ones_like(sizes), sizes]) * weight[:, None]
    (intercept, slope), *_ = np.linalg.lstsq(matrix, means_s * weight, rcond=None)
    if intercept < 0:  # all cost is proportional to size
        slope = float(np.average(means_s / sizes, weights=counts))
        return 0.0, slope
    if slope * sizes.max() < 0.01 * means_s.max():
        return float(np.average(means_s, weights=counts)), 0.0
    return float(intercept), float(slope)


def _quantiles(drawn_s: NDArray[Any], mean_s: float) -> dict[str, Any]:
    """An empirical distribution through the quantiles at `_P`, shifted to the mean `mean_s`."""
    p = np.concatenate([[0.0], _P, [1.0]])
    first = max(0.0, 2 * drawn_s[0] - drawn_s[1])
    last = drawn_s[-1] + (drawn_s[-1] - drawn_s[-2])
    values = np.maximum.accumulate(np.concatenate([[first], drawn_s, [last]]))
    own_mean = float(np.sum(np.diff(p) * (values[1:] + values[:-1]) / 2))
    if mean_s <= 1e-9 or own_mean <= 1e-12:
        return {"kind": "constant", "value_s": max(mean_s, 0.0)}
    values = values * (mean_s / own_mean)
    if values[-2] - values[1] < 0.005 * mean_s:
        return {"kind": "constant", "value_s": mean_s}
    return {
        "kind": "empirical",
        "quantiles": [[float(a), float(f"{b:.6g}")] for a, b in zip(p, values, strict=True)],
    }


def _flush(cell: Cell | None, source: list[dict[str, str]]) -> dict[str, Any]:
    if cell is None:
        source.append({"what": "flush", "where": "assumed: costs nothing (fsync not measured)"})
        return {"kind": "constant", "value_s": 0.0}
    return _quantiles(cell.quantiles_s(_P), cell.mean_s)


def _busy(cell: Cell, profile: StorageProfile) -> float:
    """Mean number of busy servers in a cell: rate times mean service time (Little's law)."""
    return cell.rate_iops * profile.moments(cell.op, cell.sequential, cell.block_bytes).mean


def _streams_separate(cell: Cell, streams: int) -> bool:
    return not cell.sequential or cell.streams <= max(streams, 1)


def _servers(cells: list[Cell], profile: StorageProfile) -> int:
    """Maximum number of busy servers (sequential cells count only if their streams are detected)."""
    streams = int(profile.to_dict()["sequential_streams"])
    busy = [_busy(c, profile) for c in cells if c.depth > 1 and _streams_separate(c, streams)]
    return max(1, round(max(busy, default=1.0)))


def _streams(cells: list[Cell], profile: StorageProfile) -> int:
    """Maximum number of concurrent sequential jobs that the device served as streams."""
    side_by_side = sorted(
        (c for c in cells if c.sequential and c.streams > 1), key=lambda c: c.streams
    )
    most = 1
    for cell in side_by_side:
        stream_s = profile.moments(cell.op, True, cell.block_bytes).mean
        random_s = profile.moments(cell.op, False, cell.block_bytes).mean
        alone = cell.rate_iops / cell.streams
        if random_s < 1.3 * stream_s:  # no measurable difference
            most = max(most, cell.streams)
            continue
        # served as random requests, they could not exceed streams / random_s with any number of servers
        most_as_random = _random_rate(cells, cell) or cell.streams / random_s
        if cell.rate_iops > 1.3 * most_as_random or alone * random_s > 1.3:
            most = max(most, cell.streams)
    return most


def _random_rate(cells: list[Cell], like: Cell) -> float | None:
    """Rate measured for random requests of the same size and depth."""
    same = [
        c.rate_iops
        for c in cells
        if not c.sequential
        and (c.op, c.block_bytes, c.depth) == (like.op, like.block_bytes, like.depth)
    ]
    return max(same, default=None)


def _interface(cells: list[Cell], profile: StorageProfile) -> dict[str, float]:
    """Caps on bytes and requests of all servers together, if the servers alone would be faster."""
    streams = int(profile.to_dict()["sequential_streams"])
    deep = [c for c in cells if c.depth > 1 and _streams_separate(c, streams)]
    small = min((c.block_bytes for c in cells), default=0)
    capped = []
    for cell in deep:
        mean_s = profile.moments(cell.op, cell.sequential, cell.block_bytes).mean
        if mean_s > 0 and min(cell.depth, profile.servers) / mean_s > _CAPPED * cell.rate_iops:
            capped.append(cell)
    caps = {}
    by_count = [c.rate_iops for c in capped if c.block_bytes == small]
    by_bytes = [c.rate_bps for c in capped if c.block_bytes > 4 * small]
    if by_count:
        caps["interface_iops"] = max(by_count)
    if by_bytes:
        caps["interface_rate_bps"] = max(by_bytes)
    return caps
