"""The certificate by second: specification, delivered service and settings in force of each window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.analyse.fidelity.fidelity_log import Integers, Log, Schedule, busy_s, frame, is_late
from penstock.archive.schemas import TABLES
from penstock.text import signed_percent

#: length of a window [s]
WINDOW_S = 1.0
#: minimum number of requests of a window; windows with fewer are joined with the following ones
FEWEST = 20
#: minimum activity for a rate: a shorter one reflects a moment of the host, not the disk [s]
SHORTEST_BUSY_S = 0.05
#: maximum deviation of a window's rate, as a share
WINDOW_LIMIT = 0.10
#: maximum share of a run's windows with a larger deviation
OFF_SHARE = 0.10
#: a disk idle for more than this share of a window was bound by demand
IDLE_LIMIT = 0.10
#: a busier host leaves no processor for the disk server [%]
CPU_LIMIT_PERCENT = 90.0
#: maximum steal time: processor time that the hypervisor gave to other machines [%]
STEAL_LIMIT_PERCENT = 5.0
#: maximum share of time in which some task waited for a processor [%]
PRESSURE_LIMIT_PERCENT = 20.0
#: a limit above this share of the device's capability is bound by the device
CAPABILITY_SHARE = 0.8

WINDOWS_SCHEMA = TABLES["fidelity_windows"].arrow
_QUANTILES = (("p50", 0.5, 20), ("p95", 0.95, 200), ("p99", 0.99, 1000))


@dataclass(frozen=True)
class Capability:
    """Rate of the device without its limits, for the request mix of a window."""

    servers: int
    interface_bps: float | None
    interface_iops: float | None

    @classmethod
    def of(cls, profile: Mapping[str, Any]) -> Capability:
        """The capability described by a profile."""
        return cls(
            int(profile.get("servers", 1)),
            profile.get("interface_rate_bps"),
            profile.get("interface_iops"),
        )

    def bps(self, size: float, service_s: float) -> float:
        """Bytes per second of requests of that mean size and service time."""
        rates = [self.servers * size / service_s if service_s > 0 else np.inf]
        if self.interface_bps:
            rates.append(self.interface_bps)
        if self.interface_iops:
            rates.append(self.interface_iops * size)
        return float(min(rates))


def active_at(events: Sequence[Mapping[str, Any]], since_ns: int, until_ns: int) -> str:
    """Settings in force besides the profile between two times: `limits.read_bps=1e6, readahead=off`."""
    seen: dict[str, None] = {}
    settings: dict[str, Any] = {}
    begun = False
    for event in sorted(events, key=lambda e: int(e["applied_ns"])):
        at_ns = int(event["applied_ns"])
        if event.get("error") or at_ns > until_ns:
            continue
        if at_ns > since_ns and not begun:
            begun = True
            seen |= dict.fromkeys(_settings_text(settings))
        _merge(settings, event.get("asked") or {})
        if begun:
            seen |= dict.fromkeys(_settings_text(settings))
    if not begun:
        seen |= dict.fromkeys(_settings_text(settings))
    return ", ".join(seen)


def limits_at(
    events: Sequence[Mapping[str, Any]], own: Mapping[str, float], t_ns: int
) -> dict[str, float]:
    """The limits in force at a time: the profile's `own`, changed by the earlier events."""
    settings: dict[str, Any] = {"limits": dict(own)}
    for event in sorted(events, key=lambda e: int(e["applied_ns"])):
        if not event.get("error") and int(event["applied_ns"]) <= t_ns:
            _merge(settings, event.get("asked") or {})
    return {k: float(v) for k, v in (settings.get("limits") or {}).items()}


def _merge(settings: dict[str, Any], requested: Mapping[str, Any]) -> None:
    for key, value in requested.items():
        if value is None or value == "max":
            settings.pop(key, None)
        elif key == "limits":
            limits = settings.setdefault("limits", {})
            for name, limit in value.items():
                if limit is None or limit == "max":
                    limits.pop(name, None)
                else:
                    limits[name] = limit
        else:
            settings[key] = value


def _settings_text(settings: Mapping[str, Any]) -> list[str]:
    out = []
    for key, value in settings.items():
        usual = key in ("readahead", "cache")
        if value is usual or value == []:
            continue
        if isinstance(value, bool):
            out.append(f"{key}={'on' if value else 'off'}")
        elif key == "profile":
            out.append(f"profile={value.get('name', '')}")
        elif isinstance(value, Mapping):
            out += [f"{key}.{name}={_short(v)}" for name, v in value.items()]
        else:
            out.append(f"{key}={_short(value)}")
    return out


def _short(value: Any) -> str:
    if isinstance(value, float | int):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return "/".join(f"{k}:{_short(v)}" for k, v in value.items())
    return str(len(value)) if isinstance(value, list) else str(value)


def windows(
    log: Log,
    specified: Schedule,
    in_time: Log,
    *,
    disk_id: str,
    profile: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]] = (),
    utilisation: pa.Table | pd.DataFrame | None = None,
    backend: str = "fuse",
) -> pa.Table:
    """One row per window and direction; windows of few requests are joined until they have enough.

    `in_time`: the log with the replies that the host made late at their due times.
    """
    if len(log.began) == 0:
        return WINDOWS_SCHEMA.empty_table()
    rows = []
    first = int(log.began.min())
    capability = Capability.of(profile)
    own = {k: v for k, v in (profile.get("limits") or {}).items() if v is not None}
    cpu = taken(utilisation)
    length = int(WINDOW_S * 1e9)
    for code, direction in enumerate(("read", "write")):
        matches = log.op == code
        if not matches.any():
            continue
        chosen = np.flatnonzero(matches)
        number = (log.began[chosen] - first) // length
        chosen = chosen[np.argsort(number, kind="stable")]
        part, due, excused = log.take(chosen), specified.take(chosen), in_time.take(chosen)
        for start, end, which in _joined(np.sort(number)):
            since, until = first + start * length, first + end * length
            row = _window(part.take(which), due.take(which), (since, until), capability)
            excused_s = busy_s(excused.began[which], excused.done[which])
            row["_excused"] = row["_asked_s"] / excused_s if excused_s > 0 else None
            limits = limits_at(events, own, until)
            _judge(row, direction, limits, cpu)
            row |= {
                "disk_id": disk_id,
                "backend": backend,
                "direction": direction,
                "active": active_at(events, since, until),
            }
            rows.append(row)
    rows.sort(key=lambda row: (row["t_ns"], row["direction"]))
    table = [{k: v for k, v in row.items() if k in WINDOWS_SCHEMA.names} for row in rows]
    return pa.Table.from_pylist(table, schema=WINDOWS_SCHEMA)


def off(
    table: pa.Table, wrong_verdicts: Sequence[str] = ("not-honoured", "host-saturated")
) -> list[str]:
    """Description of the windows that are off; empty if at most OFF_SHARE of them are."""
    verdicts = table["verdict"].to_pylist()
    wrong = [i for i, v in enumerate(verdicts) if v in wrong_verdicts]
    judged = [v for v in verdicts if v != "too-short"]
    if len(wrong) <= OFF_SHARE * len(judged):
        return []
    first = table.slice(wrong[0], 1).to_pylist()[0]
    begun_s = (first["t_ns"] - min(table["t_ns"].to_pylist())) * 1e-9
    message = (
        f"{len(wrong)} of {len(judged)} windows are off; the first {begun_s:.0f} s after the begin: "
        f"{first['direction']} {first['reason']}"
    )
    return [message]


def _joined(number: Integers) -> list[tuple[int, int, slice]]:
    """(first window, window after the last, requests), joined up to FEWEST. `number` is ascending."""
    out: list[tuple[int, int, slice]] = []
    present, begins, counts = np.unique(number, return_index=True, return_counts=True)
    start, begin, gathered = None, 0, 0
    for window, at, count in zip(present.tolist(), begins.tolist(), counts.tolist(), strict=True):
        if start is None:
            start, begin, gathered = window, at, 0
        gathered += count
        if gathered >= FEWEST:
            out.append((start, window + 1, slice(begin, at + count)))
            start = None
    if start is not None:
        if out:  # the remainder joins the previous window
            start, _, before = out.pop()
            begin = before.start
        out.append((start, int(present[-1]) + 1, slice(begin, len(number))))
    return out


def _window(
    log: Log, specified: Schedule, span: tuple[int, int], capability: Capability
) -> dict[str, Any]:
    took = log.done - log.began
    due = specified.took
    specified_s, delivered_s = busy_s(log.began, specified.done), busy_s(log.began, log.done)
    amount, n = float(log.size.sum()), len(log.began)
    row: dict[str, Any] = {
        "t_ns": span[0],
        "window_ns": span[1] - span[0],
        "ops": n,
        "bytes": int(amount),
        "asked_bps": amount / specified_s if specified_s > 0 else None,
        "asked_iops": n / specified_s if specified_s > 0 else None,
        "delivered_bps": amount / delivered_s if delivered_s > 0 else None,
        "delivered_iops": n / delivered_s if delivered_s > 0 else None,
        "ratio": specified_s / delivered_s if specified_s > 0 and delivered_s > 0 else None,
        "late_share": float(is_late(log).mean()),
        "_asked_s": specified_s,
        "_busy": delivered_s / max(1e-9, (span[1] - span[0]) * 1e-9),
        "_busy_s": delivered_s,
        "_wait_ns": float(np.mean(due)),
        "_capability_bps": capability.bps(amount / n, float(specified.service.mean()) * 1e-9),
        "_size": amount / n,
    }
    for name, p, fewest in _QUANTILES:
        enough = n >= fewest
        row[f"{name}_ns"] = float(np.quantile(took, p)) if enough else None
        row[f"asked_{name}_ns"] = float(np.quantile(due, p)) if enough else None
    return row


def _judge(
    row: dict[str, Any], direction: str, limits: Mapping[str, float], cpu: Sequence[Taken]
) -> None:
    row["reason"] = ""
    ratio = row["ratio"]
    if row["ops"] < FEWEST or ratio is None or row["_busy_s"] < SHORTEST_BUSY_S:
        row["verdict"] = "too-short"
        return
    if abs(ratio - 1) > WINDOW_LIMIT:
        row["reason"] = f"rate is {signed_percent(ratio - 1, 0)} off"
        late = f"{100 * row['late_share']:.0f} % of the replies late" if row["late_share"] else ""
        host_load = load_text(cpu, row["t_ns"], row["t_ns"] + row["window_ns"])
        row["reason"] = ", ".join(filter(None, [row["reason"], late, host_load]))
        excused = row["_excused"]
        by_host = excused is not None and abs(excused - 1) <= WINDOW_LIMIT
        row["verdict"] = "host-saturated" if by_host else "not-honoured"
        return
    limits_bps = [
        limit * (row["_size"] if name.endswith("iops") else 1.0)
        for name, limit in limits.items()
        if name in (f"{direction}_bps", f"{direction}_iops")
    ]
    can = row["_capability_bps"]
    if row["_busy"] < 1 - IDLE_LIMIT:
        row["verdict"] = "demand-bound"
    elif limits_bps and min(limits_bps) > CAPABILITY_SHARE * can:
        row["verdict"] = "device-bound"
        row["reason"] = f"limit {min(limits_bps):.4g} B/s, the device can do {can:.4g} B/s"
    else:
        row["verdict"] = "honoured"


@dataclass(frozen=True)
class Taken:
    """Load of the host's processors over time [%] by one metric, with its limit."""

    series: pd.Series
    limit: float
    template: str

    def over(self, began_ns: int, ended_ns: int) -> str | None:
        """Message if the load was above its limit for most of that time."""
        inside = self.series[(self.series.index >= began_ns) & (self.series.index <= ended_ns)]
        share = float(inside.median()) if len(inside) else 0.0
        return self.template.format(share) if share > self.limit else None


#: metric of a monitor's `utilisation` → limit [%], message
_WITNESSES = {
    "busy": (CPU_LIMIT_PERCENT, "the host's processors were {:.0f} % busy"),
    "stolen": (STEAL_LIMIT_PERCENT, "{:.0f} % of the processors' time went to other machines"),
    "waited_for": (PRESSURE_LIMIT_PERCENT, "tasks waited for a processor {:.0f} % of the time"),
}


def taken(utilisation: pa.Table | pd.DataFrame | None) -> list[Taken]:
    """The monitored metrics of the host's load."""
    if utilisation is None:
        return []
    table = frame(utilisation)
    of_cpu = table[(table["kind"].astype(str) == "cpu") & (table["unit"].astype(str) == "%")]
    if "metric" not in of_cpu.columns:  # a table without other columns
        of_cpu = of_cpu.assign(metric="busy")
    loads = []
    for metric, (limit, template) in _WITNESSES.items():
        rows = of_cpu[of_cpu["metric"].astype(str) == metric]
        of_all = rows[rows["entity"].astype(str) == "all"]
        rows = rows if of_all.empty else of_all
        if not rows.empty:
            loads.append(Taken(rows.groupby("t_ns")["value"].max(), limit, template))
    return loads


def load_text(witnesses: Sequence[Taken], began_ns: int, ended_ns: int) -> str:
    """Message on the load of the host's processors in that time; empty if no metric was above its limit."""
    messages = (witness.over(began_ns, ended_ns) for witness in witnesses)
    return ", ".join(message for message in messages if message is not None)
