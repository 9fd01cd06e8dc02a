"""Graphite's own protocols: lines over TCP and UDP, pickles over TCP. collectd needs only host and port.

Settings: `port` (2003), `pickle_port` (2004, null is off), `udp` (true), `host`, `open`, `units` (metric →
unit), `in_order` (true), `interval_s` (interval between points of each series).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import PenstockError
from penstock.parts.monitoring.collectors.collector import (
    Intake,
    Receipt,
    declared_interval_ns,
    only,
    setting,
)
from penstock.parts.monitoring.collectors.listeners import (
    PATIENCE_S,
    ListenAddress,
    Listener,
    exactly,
)
from penstock.parts.monitoring.experiments.points import Closed, Sink
from penstock.parts.monitoring.usage.swift_bandwidth import accounts_of, are_ours
from penstock.routes.byte_budget import FullError

#: time for which lines are buffered before they are stored [s], and their maximum size [bytes]
GATHERED_S = 0.2
MOST_GATHERED = 8 << 20
#: maximum size of a line and of a pickle [bytes]
MOST_LINE = 1 << 16
MOST_PICKLE = 1 << 20
#: time for which the users of a sender of datagrams are cached [s]
SENDER_CACHE_S = 1.0
#: count in a receipt: connections and datagrams of other users of this host, which were not read
OTHER_USERS = "from other users"
_OF_OTHERS = "found another user of this host; expected that of the collector, or open: true"


class GraphiteReceiver:
    """Carbon's listeners."""

    #: see `Collector`
    listens = True

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        allowed = ("host", "port", "pickle_port", "udp", "open", "units", "in_order", "interval_s")
        only(name, settings, allowed)
        self.name = name
        self._listen_address = ListenAddress.of(name, settings, 2003, tokens=False)
        port = settings.get("pickle_port", 2004)
        self._pickle_listen_address = (
            None
            if port is None
            else ListenAddress.of(name, {**settings, "port": port}, 2004, tokens=False)
        )
        self._udp = setting(name, settings, "udp", bool, True)
        self._units = setting(name, settings, "units", Mapping, {})
        self._in_order = setting(name, settings, "in_order", bool, True)
        self._interval_ns = declared_interval_ns(name, settings)
        self._gathered = bytearray()
        self._room = asyncio.Event()
        self._lines: Listener | None = None
        self._pickles: Listener | None = None
        self._datagrams: asyncio.DatagramTransport | None = None
        self._last_sender: tuple[tuple[str, int] | None, float] = (None, 0.0)

    @property
    def address(self) -> tuple[str, int]:
        """Address of the receiver of lines."""
        assert self._lines is not None
        return self._lines.address

    @property
    def pickle_address(self) -> tuple[str, int]:
        """Address of the receiver of pickles."""
        assert self._pickles is not None
        return self._pickles.address

    @staticmethod
    def of_run(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a run: free ports."""
        return {"port": 0, "pickle_port": 0, **settings}

    def reached(self) -> dict[str, str]:
        """Addresses of lines and of pickles for a command's environment."""
        listeners = {"": self._lines, "PICKLE": self._pickles}
        return {
            suffix: "{}:{}".format(*listener.address)
            for suffix, listener in listeners.items()
            if listener is not None
        }

    async def start(self, sink: Sink) -> None:
        unit = {str(m): str(u) for m, u in self._units.items()}
        self.intake = Intake(
            self.name,
            sink,
            in_order=self._in_order,
            unit=lambda metric: unit.get(metric, ""),
            interval_ns=self._interval_ns,
        )
        self._room.set()
        self._ending = False
        self._lines = Listener(self._listen_address, self._take_lines)
        try:
            await self._lines.start()
            if self._pickle_listen_address is not None:
                self._pickles = Listener(self._pickle_listen_address, self._take_pickles)
                await self._pickles.start()
            if self._udp:
                receiver = self

                class Datagrams(asyncio.DatagramProtocol):
                    def datagram_received(self, data: bytes, sender: tuple[str, int]) -> None:
                        receiver._take_datagram(data, sender)

                loop = asyncio.get_running_loop()
                try:
                    self._datagrams, _ = await loop.create_datagram_endpoint(
                        Datagrams, local_addr=self._lines.address
                    )
                except OSError as error:
                    raise PenstockError(f"{self.name}: UDP: {error}") from None
        except BaseException:
            await self._close()
            raise
        self._storing = asyncio.create_task(self._store())

    async def stop(self) -> Receipt:
        # data that is in the sockets already was sent before the stop
        await asyncio.sleep(GATHERED_S)
        await self._close()
        self._ending = True
        await self._storing
        with contextlib.suppress(Closed):
            await asyncio.to_thread(self.intake.write_pending)
        return self.intake.receipt

    async def _close(self) -> None:
        for listener in (self._lines, self._pickles):
            if listener is not None:
                await listener.stop()
                if hasattr(self, "intake"):
                    counted = self.intake.receipt.counted
                    for name, number in (
                        ("connections dropped", listener.dropped),
                        (OTHER_USERS, listener.foreign),
                    ):
                        if number:
                            counted[name] += number
        if self._datagrams is not None:
            self._datagrams.close()

    async def _is_refused(
        self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """True for a connection of another user; if it sends data, that is a refused message."""
        if not await listener.comes_from_others(writer, certain=False):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                if await reader.read(1):
                    self.intake.refuse_message("unauthorized", _OF_OTHERS)
        return True

    async def _take_lines(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: Callable[[], None],
    ) -> None:
        assert self._lines is not None
        if await self._is_refused(self._lines, reader, writer):
            return
        rest = b""
        try:
            while True:
                await self._room.wait()
                data = await reader.read(1 << 18)
                if not data:
                    break
                heard()
                complete, newline, after = data.rpartition(b"\n")
                if newline:
                    self._gather(rest + complete + newline)
                    rest = after
                else:
                    rest += data
                if len(rest) > MOST_LINE:
                    rest = b""
                    message = f"found a line of more than {MOST_LINE} bytes"
                    self.intake.refuse("too long", message)
                    return
        finally:
            if rest:
                # the last digits of an unterminated line may be missing
                self.intake.refuse("malformed", "found a last line without an end")

    async def _take_pickles(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: Callable[[], None],
    ) -> None:
        assert self._pickles is not None
        if await self._is_refused(self._pickles, reader, writer):
            return
        going_on = True
        while going_on:
            began = False
            try:
                head = await reader.readexactly(1)
                began = True
                length = int.from_bytes(head + await reader.readexactly(3), "big")
                if length > MOST_PICKLE:
                    message = f"found a pickle of {length} bytes; expected {MOST_PICKLE} at most"
                    self.intake.refuse_message("too long", message)
                    return
                with self._pickles.room.share() as share:
                    async with asyncio.timeout(PATIENCE_S):
                        data = await exactly(reader, length, share)
                    began = False
                    heard()
                    going_on = await self._store_pickle(data)
            except FullError:
                message = "found no room for a pickle message with those of other connections"
                self.intake.refuse_message("no room", message)
                return
            except (OSError, EOFError, asyncio.CancelledError):
                if began:
                    self.intake.refuse_message("broke off", "found a pickle that broke off")
                raise

    async def _store_pickle(self, data: bytes) -> bool:
        """Store a pickle, with retries; True if more of its sender is read."""
        while True:
            try:
                await asyncio.to_thread(self.intake.read, "pickle", data, time.time_ns())
                return True
            except ValueError:  # as Carbon does: counted, and the next one is read
                return True
            except Closed:
                return False
            except PenstockError:
                self.intake.receipt.counted["not stored at first"] += 1
                await asyncio.sleep(1.0)

    def _take_datagram(self, data: bytes, sender: tuple[str, int]) -> None:
        if self._listen_address.own_users and not self._is_last_sender(sender):
            uids = accounts_of(*sender[:2], self.address[1], "udp")
            if uids and not are_ours(uids):
                self.intake.receipt.counted[OTHER_USERS] += 1
                self.intake.refuse_message("unauthorized", _OF_OTHERS)
                return
            self._last_sender = sender, time.monotonic()
        if self._room.is_set():
            self._gather(data if data.endswith(b"\n") else data + b"\n")
        else:
            lines = sum(1 for line in data.splitlines() if line.strip())
            self.intake.refuse("no room", "found no room for a datagram", lines)

    def _is_last_sender(self, sender: tuple[str, int]) -> bool:
        """True if the previous datagram, a moment ago, had the same sender."""
        last_sender, at_s = self._last_sender
        return last_sender == sender and time.monotonic() - at_s < SENDER_CACHE_S

    def _gather(self, lines: bytes) -> None:
        self._gathered += lines
        if len(self._gathered) > MOST_GATHERED:
            self._room.clear()

    async def _store(self) -> None:
        """Store the buffered lines periodically. While the sink fails, nothing is read."""
        while True:
            ending = self._ending
            if self._gathered:
                lines, self._gathered = bytes(self._gathered), bytearray()
                while True:
                    try:
                        await asyncio.to_thread(self.intake.read, "graphite", lines, time.time_ns())
                        break
                    except Closed:  # its points were counted
                        break
                    except PenstockError:
                        self.intake.receipt.counted["not stored at first"] += 1
                        if self._ending:
                            raise
                        self._room.clear()
                        await asyncio.sleep(1.0)
                self._room.set()
            if ending:
                return
            if not self._ending:
                await asyncio.sleep(GATHERED_S)
