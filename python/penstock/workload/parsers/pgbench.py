"""pgbench of PostgreSQL 9.0 to 18: its report on stdout, in English, of one run."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import PenstockError, printable
from penstock.workload.measured import JobSpec, Measured, Report
from penstock.workload.parsers.printed import NUMBER, Printed, check_version, several

#: `tps` excludes the connection time if pgbench reports both (to 13); with -C it includes reconnecting from
#: 14 on; `tps_with_connections` is an additional value to 13
RESPONSES: dict[str, str] = {
    "tps": "1/s",
    "tps_with_connections": "1/s",
    "latency_mean": "ms",
    "latency_stddev": "ms",
    "transactions": "transactions",
    "failed_transactions": "transactions",
    "skipped_transactions": "transactions",
    "late_transactions": "transactions",
    "retried_transactions": "transactions",
    "schedule_lag_mean": "ms",
    "schedule_lag_max": "ms",
    "connection_time": "ms",
    "duration": "s",
}

#: label of versions to 9.5, and from 9.6 on
_IS = r"(?: =|:) "
_LABELS = {
    "latency_mean": (rf"^latency average{_IS}(?P<value>{NUMBER}) ms", "ms"),
    "latency_stddev": (rf"^latency stddev{_IS}(?P<value>{NUMBER}) ms", "ms"),
    "transactions": (
        r"^number of transactions actually processed: (?P<value>[0-9]+)(?:/[0-9]+)?\s*$",
        "transactions",
    ),
    "failed_transactions": (r"^number of failed transactions: (?P<value>[0-9]+) ", "transactions"),
    "skipped_transactions": (
        r"^number of transactions skipped: (?P<value>[0-9]+) ",
        "transactions",
    ),
    "late_transactions": (
        r"^number of transactions above the \S+ ms latency limit: (?P<value>[0-9]+)",
        "transactions",
    ),
    "retried_transactions": (
        r"^number of transactions retried: (?P<value>[0-9]+) ",
        "transactions",
    ),
    "schedule_lag_mean": (rf"^rate limit schedule lag: avg (?P<value>{NUMBER}) \(", "ms"),
    "schedule_lag_max": (
        rf"^rate limit schedule lag: avg \S+ \(max (?P<value>{NUMBER})\) ms",
        "ms",
    ),
    "connection_time": (
        rf"^(?:initial|average) connection time = (?P<value>{NUMBER}) ms",
        "ms",
    ),
    "duration": (r"^duration: (?P<value>[0-9]+) s", "s"),
}
#: printed from 14 on
_VERSION = re.compile(r"^pgbench \((\d+)", re.MULTILINE)
_TPS = re.compile(rf"^tps = (?P<value>{NUMBER})(?: \((?P<kind>[^()\n]*)\))?", re.MULTILINE)
#: text after a rate → response
_KINDS = {
    "excluding connections establishing": "tps",
    "including connections establishing": "tps_with_connections",
    "without initial connection time": "tps",
    "including reconnection times": "tps",
}
_ABORTED = re.compile(
    r"^(?:pgbench: )?(?:error: )?(?:client \d+ .*aborted.*|Run was aborted;.*)",
    re.MULTILINE | re.IGNORECASE,
)
_PLANNED = re.compile(r"^number of transactions actually processed: \d+/(\d+)\s*$", re.MULTILINE)
#: transactions that count towards those of `-t`
_ENDED = ("transactions", "failed_transactions", "skipped_transactions")
_MISSING = {
    "latency_mean": "to 9.5 it needs --progress or --rate, or -T",
    "latency_stddev": "it needs --progress, --rate or --latency-limit",
    "tps_with_connections": "PostgreSQL 14 and later do not report it",
    "duration": "it needs -T",
    "schedule_lag_mean": "it needs --rate",
    "schedule_lag_max": "it needs --rate",
}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> Report:
    """The results of pgbench for all scripts together.

    PenstockError without `tps`, for several reports or another language, and if a client was aborted, which
    pgbench to 11 does not report as a failure.
    """
    check_version(stdout, _VERSION, [str(n) for n in range(9, 19)], "PostgreSQL 9.0 to 18")
    aborted = _ABORTED.search(stderr) or _ABORTED.search(stdout)
    if aborted:
        raise PenstockError(
            f"found {printable(aborted[0][:100])!r}; expected all clients to finish"
        )
    printed = Printed("pgbench", stdout)
    rates = list(_TPS.finditer(stdout))
    kinds = [m["kind"] or "" for m in rates]
    unknown = [k for k in kinds if k not in _KINDS]
    if unknown:
        raise PenstockError(
            f"found pgbench's rate as {printable(unknown[0][:60])!r}; expected one of {', '.join(_KINDS)} "
            "(LC_ALL=C before the command makes it English)"
        )
    if not rates:
        raise PenstockError("pgbench printed no 'tps = …' line")
    names = [_KINDS[k] for k in kinds]
    if len(set(names)) < len(names):
        raise several("pgbench", max(names.count(n) for n in names))
    labels = {_KINDS[k]: (rf"^tps = (?P<value>{NUMBER}) \({re.escape(k)}\)", "1/s") for k in kinds}
    values = printed.labelled({**_LABELS, **labels})
    ended = sum(values[name].value for name in _ENDED if name in values)
    if (planned := _PLANNED.search(stdout)) and ended < int(planned[1]):
        raise PenstockError(
            f"found {ended:.0f} of {planned[1]} transactions of pgbench; expected all clients to finish"
        )
    return Report({**values, "wall_s": Measured(wall_s, "s")}, _MISSING)


def operations(command: str) -> list[JobSpec] | None:
    """None: a command line does not determine a database's file accesses."""
    return None
