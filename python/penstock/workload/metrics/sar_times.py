"""Times of `sadf -j` in UTC, from any of its clocks.

sadf prints UTC; with `-t` the local time of the recording host, with `-T` that of the reader. Stamps mark
their clock by `utc` (to 12.6) or `tz` (from 12.7 on). `timezone` is an ambiguous abbreviation of the
recording host's zone, such as CEST. The offset of local times therefore comes from `file-utc-time`, the start
of the recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

_UTC = ("UTC", "GMT", "Etc/UTC")
#: offsets are multiples of a quarter of an hour; the first record follows the start of the file by its
#: interval plus at most this time
_QUARTER_S = 900
_NEAR_S = 120
_DAY_S = 86_400
#: offsets of 13 h and 14 h are indistinguishable from -11 h and -10 h by the time of day
_MOST_OFFSET_S, _LEAST_OFFSET_S = 12 * 3600 + 2700, -(9 * 3600 + 1800)
_HOUR_S = 3600
_REMEDY = (
    "give the zone (--format sar --words FILE with `timezone: Europe/Paris`), "
    "or leave out -t and -T of sadf"
)


class UnknownZoneError(ValueError):
    """Local times of an unknown zone."""


class Clock:
    """Clock of one host's records: `utc_s` converts their time stamps to UTC."""

    def __init__(self, host: Mapping[str, Any], zone: ZoneInfo | None) -> None:
        self._host = host
        self._zone = zone
        self._offset_s: int | None = None
        self._last: datetime | None = None
        self._last_utc_s: int | None = None
        #: note on the times for the user
        self.note = ""

    def utc_s(self, stamp: Mapping[str, Any]) -> int:
        """Seconds since 1970 of a stamp. UnknownZoneError for a local time of an unknown zone."""
        at = datetime.fromisoformat(f"{stamp['date']}T{stamp['time']}")
        if stamp.get("utc") == 1 or stamp.get("tz") in _UTC:
            return int(at.replace(tzinfo=UTC).timestamp())
        if self._zone is not None:
            return self._in_zone(at, self._zone)
        self._check_step(at, stamp)
        if self._offset_s is None:
            self._offset_s = self._offset(at, stamp)
            sign, minutes = "-" if self._offset_s < 0 else "+", abs(self._offset_s) // 60
            offset = f"{sign}{minutes // 60:02}:{minutes % 60:02}"
            self.note = f"times are local, {offset} from UTC by the file's begin"
        return int(at.replace(tzinfo=UTC).timestamp()) - self._offset_s

    def _in_zone(self, at: datetime, zone: ZoneInfo) -> int:
        """Seconds since 1970 of a local time; the later one of two, as at the end of daylight saving, if time
        would go back."""
        utc_s = int(at.replace(tzinfo=zone).timestamp())
        if self._last_utc_s is not None and utc_s <= self._last_utc_s:
            later_s = int(at.replace(tzinfo=zone, fold=1).timestamp())
            utc_s = later_s if later_s > self._last_utc_s else utc_s
        self._last_utc_s = utc_s
        return utc_s

    def _offset(self, at: datetime, stamp: Mapping[str, Any]) -> int:
        """Local time minus UTC [s]."""
        began = str(self._host.get("file-utc-time") or "")
        interval = stamp.get("interval")
        if not began or not isinstance(interval, int | float):
            raise UnknownZoneError(f"local times without file-utc-time; {_REMEDY}")
        start = datetime.fromisoformat(f"1970-01-01T{began}")
        first = at - timedelta(seconds=float(interval))
        ahead = (first.hour * 3600 + first.minute * 60 + first.second) - (
            start.hour * 3600 + start.minute * 60 + start.second
        )
        offset = round(ahead / _QUARTER_S) * _QUARTER_S
        near = abs(ahead - offset) <= _NEAR_S
        offset %= _DAY_S
        if offset > _MOST_OFFSET_S:
            offset -= _DAY_S
        if not near or not _LEAST_OFFSET_S <= offset <= _MOST_OFFSET_S:
            raise UnknownZoneError(
                f"local times from {at.isoformat()} on in a file of {began} UTC, whose offset is not clear; "
                f"{_REMEDY}"
            )
        self._check_date(start + timedelta(seconds=offset), first)
        return offset

    def _check_date(self, start: datetime, first: datetime) -> None:
        """UnknownZoneError if the dates of file and stamps differ, as with sadf 12.6 -t in another zone."""
        date = str(self._host.get("file-date") or "")
        if not date:
            return
        begin = datetime.combine(datetime.fromisoformat(date).date(), start.time())
        if abs((begin - first).total_seconds()) > _NEAR_S:
            raise UnknownZoneError(
                f"local times from {first.isoformat()} on in a file of {begin.isoformat()}; {_REMEDY}"
            )

    def _check_step(self, at: datetime, stamp: Mapping[str, Any]) -> None:
        """UnknownZoneError if local times jump by an hour, as at the start of daylight saving."""
        interval = stamp.get("interval")
        if self._last is not None and isinstance(interval, int):
            leap = abs((at - self._last).total_seconds() - interval)
            if abs(leap - _HOUR_S) <= 1:
                raise UnknownZoneError(
                    f"local times that leap by an hour at {at.isoformat()}; {_REMEDY}"
                )
        self._last = at
