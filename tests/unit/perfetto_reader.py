"""Reader of a trace file by Perfetto's protocol buffers: slices, tracks, counters, clocks."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    InternedData,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)


def unknown(message: Message) -> list[str]:
    """Fields that Perfetto does not have, as `message.number`."""
    fields = [f"{message.DESCRIPTOR.name}.{f.field_number}" for f in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                fields += unknown(inner)
    return fields


class PerfettoTrace:
    """Contents of a trace file. AssertionError where Perfetto would drop or misread some of it."""

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
        trace = Trace.FromString(data)
        unknown_fields = unknown(trace)
        assert not unknown_fields, f"Perfetto has no {', '.join(unknown_fields)}"
        for order, packet in enumerate(trace.packet):
            if packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
                self._names, self._notes, self._strings = {}, {}, {}
            self._intern(packet.interned_data)
            for clock in packet.clock_snapshot.clocks:
                self.clocks[clock.clock_id] = clock.timestamp
            if packet.HasField("track_descriptor"):
                self._track(packet.track_descriptor)
            if packet.HasField("track_event"):
                self._event(packet.timestamp, packet.track_event, order, ends)
        # a begin and an end on one track match in order of time, as in the trace processor
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

    def _intern(self, data: InternedData) -> None:
        self._names |= {entry.iid: entry.name for entry in data.event_names}
        self._notes |= {entry.iid: entry.name for entry in data.debug_annotation_names}
        self._strings |= {entry.iid: entry.str for entry in data.debug_annotation_string_values}

    def _track(self, data: TrackDescriptor) -> None:
        track: dict[str, Any] = {"parent": data.parent_uuid or None, "name": data.name}
        if data.HasField("process"):
            track |= {"kind": "process", "pid": data.process.pid, "name": data.process.process_name}
        elif data.HasField("thread"):
            track |= {"kind": "thread", "pid": data.thread.pid, "tid": data.thread.tid}
            track["name"] = data.thread.thread_name
        else:
            track["kind"] = "counter" if data.HasField("counter") else "track"
        self.tracks[data.uuid] = track

    def _event(
        self, t_ns: int, data: TrackEvent, order: int, ends: list[tuple[int, int, int]]
    ) -> None:
        track = data.track_uuid
        assert track in self.tracks, "an event on a track that no descriptor declared"
        if data.type == TrackEvent.TYPE_COUNTER:
            self.counters.append((track, t_ns, data.double_counter_value))
        elif data.type == TrackEvent.TYPE_SLICE_END:
            ends.append((t_ns, order, track))
        else:
            assert data.type == TrackEvent.TYPE_SLICE_BEGIN
            notes: dict[str, Any] = {}
            for note in data.debug_annotations:
                interned = note.HasField("string_value_iid")
                value = self._strings[note.string_value_iid] if interned else note.int_value
                notes[self._notes[note.name_iid]] = value
            slice_ = {
                "track": track,
                "name": self._names[data.name_iid],
                "category": data.categories[0],
                "begin": t_ns,
                "flows": list(data.flow_ids),
                **notes,
            }
            self.slices.append(slice_)
            self._open.setdefault(track, []).append((t_ns, order, slice_))
