"""A decoder of protocol buffers from the encoding guide, and Perfetto's fields as far as tests read them.

It shares nothing with the writer: a field number is written here a second time, from trace_packet.proto,
track_event.proto and their neighbours.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

Fields = dict[int, list[Any]]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Fields:
    """Every field of a message by its number: numbers as int, all else as bytes."""
    found: Fields = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        value: Any
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            (value,) = struct.unpack_from("<Q", data, at)
            at += 8
        elif kind == 2:
            size, at = varint(data, at)
            assert at + size <= len(data), "a field reaches beyond its message"
            value, at = data[at : at + size], at + size
        else:
            raise AssertionError(f"wire type {kind} at byte {at}")
        found.setdefault(key >> 3, []).append(value)
    return found


def signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


class PerfettoTrace:
    """Slices, tracks, counters and clocks of a trace file."""

    def __init__(self, data: bytes):
        self.tracks: dict[int, dict[str, Any]] = {}
        self.slices: list[dict[str, Any]] = []
        self.counters: list[tuple[int, int, float]] = []
        self.clocks: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._notes: dict[int, str] = {}
        self._strings: dict[int, bytes] = {}
        self._open: dict[int, list[tuple[int, int, dict[str, Any]]]] = {}
        ends: list[tuple[int, int, int]] = []
        for order, packet in enumerate(self._packets(data)):
            if packet.get(13, [0])[0] & 1:
                self._names, self._notes, self._strings = {}, {}, {}
            for interned in packet.get(12, []):
                self._intern(fields(interned))
            for snapshot in packet.get(6, []):
                for clock in fields(snapshot)[1]:
                    reading = fields(clock)
                    self.clocks[reading[1][0]] = reading[2][0]
            for track in packet.get(60, []):
                self._track(fields(track))
            for event in packet.get(11, []):
                self._event(packet, fields(event), order, ends)
        # a begin and an end on one track pair up in order of time, as in the trace processor
        for track, begins in self._open.items():
            marks = [(t, o, 1, slice_) for t, o, slice_ in begins]
            marks += [(t, o, 0, {}) for t, o, u in ends if u == track]
            stack: list[dict[str, Any]] = []
            for t, _, begin, slice_ in sorted(marks, key=lambda m: (m[0], m[1])):
                if begin:
                    stack.append(slice_)
                else:
                    stack.pop()["end"] = t
            assert not stack, "a slice without an end"

    @staticmethod
    def _packets(data: bytes) -> Iterator[Fields]:
        top = fields(data)
        assert set(top) <= {1}, "a trace is packets only"
        for packet in top.get(1, []):
            yield fields(packet)

    def _intern(self, data: Fields) -> None:
        for place, known in ((2, self._names), (3, self._notes)):
            for entry in data.get(place, []):
                pair = fields(entry)
                known[pair[1][0]] = pair[2][0].decode()
        for entry in data.get(29, []):
            pair = fields(entry)
            self._strings[pair[1][0]] = pair[2][0]

    def _track(self, data: Fields) -> None:
        made: dict[str, Any] = {"parent": data.get(5, [None])[0]}
        made["name"] = data.get(2, [b""])[0].decode()
        if 3 in data:
            process = fields(data[3][0])
            made |= {"kind": "process", "pid": process[1][0], "name": process[6][0].decode()}
        elif 4 in data:
            thread = fields(data[4][0])
            made |= {"kind": "thread", "pid": thread[1][0], "tid": thread[2][0]}
            made["name"] = thread[5][0].decode()
        elif 8 in data:
            made["kind"] = "counter"
        else:
            made["kind"] = "track"
        self.tracks[data[1][0]] = made

    def _event(
        self, packet: Fields, data: Fields, order: int, ends: list[tuple[int, int, int]]
    ) -> None:
        t_ns, kind, track = packet[8][0], data[9][0], data[11][0]
        assert track in self.tracks, "an event on a track that no descriptor declared"
        if kind == 4:
            (value,) = struct.unpack("<d", struct.pack("<Q", data[44][0]))
            self.counters.append((track, t_ns, value))
        elif kind == 2:
            ends.append((t_ns, order, track))
        else:
            assert kind == 1
            notes: dict[str, Any] = {}
            for note in data.get(4, []):
                pair = fields(note)
                name = self._notes[pair[1][0]]
                notes[name] = self._strings[pair[17][0]] if 17 in pair else signed(pair[4][0])
            made = {
                "track": track,
                "name": self._names[data[10][0]],
                "category": data[22][0].decode(),
                "begin": t_ns,
                "flows": data.get(47, []),
                **notes,
            }
            self.slices.append(made)
            self._open.setdefault(track, []).append((t_ns, order, made))
