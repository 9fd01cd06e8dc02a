//! Perfetto: TrackEvent packets in the protobuf encoding, for ui.perfetto.dev and its trace processor.
//!
//! Processes and threads are tracks; a call is a slice. Asynchronous requests, and calls that do not nest within the
//! thread's calls, have lanes of their own next to the thread. Device requests have lanes of their disk. A flow
//! connects a call with the device requests that its thread issued during the call. Throughput and the number of
//! requests under way are counters. Losses are a slice over the complete recording, because their times are unknown.
//!
//! A file larger than the part size is split by time. Each part can be opened alone.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{json, Value};

use crate::columns::{Event, Events, Request, Requests, ASYNC};
use crate::context::Context;
use crate::protobuf::Message;
use crate::Exporter;

/// Field numbers of perfetto's trace_packet.proto and track_event.proto.
mod field {
    pub const TRACE_PACKET: u32 = 1;
    pub const CLOCK_SNAPSHOT: u32 = 6;
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE_ID: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const INTERNED_DATA: u32 = 12;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const DEFAULTS: u32 = 59;
    pub const TIMESTAMP_CLOCK_ID: u32 = 58;
    pub const TRACK_DESCRIPTOR: u32 = 60;
}
const MONOTONIC: u64 = 3;
const BOOTTIME: u64 = 6;
const REALTIME: u64 = 1;
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER: u64 = 4;
const SEQUENCE: u64 = 1;

/// Maximum number of counter samples over the recording.
const BINS: i64 = 5000;
/// Minimum bin width of a counter [ns].
const SHORTEST_BIN_NS: i64 = 10_000_000;

/// Annotations of a slice. The interning number is the position from 1.
const ANNOTATIONS: [&str; 9] = [
    "file",
    "offset_bytes",
    "size_bytes",
    "done_bytes",
    "errno",
    "flags",
    "tid",
    "file_id",
    "events",
];
const REQUEST_NAMES: [&str; 4] = ["read", "write", "flush", "discard"];

/// Track of an event, declared by a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Track {
    Process(i64),
    Thread(i64, i64),
    Lane(i64, usize),
    Disk(i64),
    DiskLane(i64, usize),
    Counter(usize),
    Losses,
}

const COUNTERS: [(&str, u64, &str); 4] = [
    ("read throughput", 3, "B/s"),
    ("write throughput", 3, "B/s"),
    ("operations under way", 2, ""),
    ("device requests under way", 2, ""),
];

/// A call that may still get flows.
struct OpenCall {
    event: Event,
    track: Track,
    flows: Vec<u64>,
}

/// Writer of the file or its parts.
pub struct Perfetto {
    parts: Parts,
    context: Context,
    operations: HashMap<i64, (String, String)>,
    paths: HashMap<i64, String>,
    names: HashMap<(i64, i64), String>,
    uuids: HashMap<Track, u64>,
    declared: HashSet<Track>,
    interned_names: HashMap<String, u64>,
    interned_paths: HashMap<i64, u64>,
    open_calls: HashMap<i64, OpenCall>,
    lanes: HashMap<i64, Vec<i64>>,
    disk_lanes: HashMap<i64, Vec<i64>>,
    pending: std::collections::VecDeque<Request>,
    counters: Counters,
    last_ns: i64,
    events: u64,
    requests: u64,
    flows: u64,
}

impl Perfetto {
    /// Create the first part at `path`. The names of further parts are `stem-2.ext`, `stem-3.ext`, ….
    pub fn create(path: &Path, context: Context) -> io::Result<Self> {
        let mut exporter = Perfetto {
            parts: Parts::create(path)?,
            operations: context.operation_names(),
            paths: context.paths(),
            names: context
                .threads
                .iter()
                .map(|t| ((t.pid, t.tid), t.name.clone()))
                .collect(),
            uuids: HashMap::new(),
            declared: HashSet::new(),
            interned_names: HashMap::new(),
            interned_paths: HashMap::new(),
            open_calls: HashMap::new(),
            lanes: HashMap::new(),
            disk_lanes: HashMap::new(),
            pending: std::collections::VecDeque::new(),
            counters: Counters::new(context.start_ns, context.end_ns),
            last_ns: context.start_ns,
            events: 0,
            requests: 0,
            flows: 0,
            context,
        };
        exporter.preamble()?;
        Ok(exporter)
    }

    /// Write the beginning of a part: clocks, an empty interning state, the slice of losses.
    fn preamble(&mut self) -> io::Result<()> {
        let mut packet = Message::default();
        packet.number(field::SEQUENCE_ID, SEQUENCE);
        let clocks = self.context.clocks;
        packet.message(field::CLOCK_SNAPSHOT, |snapshot| {
            let mut reading = |id: u64, ns: i64| {
                snapshot.message(1, |clock| {
                    clock.number(1, id);
                    clock.signed(2, ns);
                });
            };
            match clocks {
                Some(c) => {
                    reading(MONOTONIC, c.monotonic_ns);
                    reading(REALTIME, c.realtime_ns);
                    reading(BOOTTIME, c.boottime_ns);
                }
                // trace of another tool: it has only its own clock
                None => {
                    reading(MONOTONIC, 0);
                    reading(BOOTTIME, 0);
                }
            }
            snapshot.number(2, MONOTONIC);
        });
        self.parts.packet(&packet)?;
        packet.clear();
        packet.number(field::SEQUENCE_ID, SEQUENCE);
        packet.number(field::SEQUENCE_FLAGS, STATE_CLEARED);
        packet.message(field::DEFAULTS, |defaults| {
            defaults.number(field::TIMESTAMP_CLOCK_ID, MONOTONIC);
        });
        packet.message(field::INTERNED_DATA, |interned| {
            for (number, name) in (1..).zip(ANNOTATIONS) {
                interned.message(3, |entry| {
                    entry.number(1, number);
                    entry.bytes(2, name.as_bytes());
                });
            }
        });
        self.parts.packet(&packet)?;
        self.declared.clear();
        self.interned_names.clear();
        self.interned_paths.clear();
        if self.context.lost > 0 {
            let lost = self.context.lost;
            let (start, end) = (self.context.start_ns, self.context.end_ns);
            self.declare(Track::Losses)?;
            let name = format!("{lost} events lost");
            self.slice(Track::Losses, start, end, &name, "loss", &[], |event| {
                annotation(event, 9, lost as i64);
            })?;
        }
        Ok(())
    }

    /// Write the descriptor of a track after that of its parent, once per part.
    fn declare(&mut self, track: Track) -> io::Result<u64> {
        let next = self.uuids.len() as u64 + 1;
        let uuid = *self.uuids.entry(track).or_insert(next);
        if !self.declared.insert(track) {
            return Ok(uuid);
        }
        let parent = match track {
            Track::Thread(pid, _) | Track::Lane(pid, _) => Some(Track::Process(pid)),
            Track::DiskLane(disk, _) => Some(Track::Disk(disk)),
            _ => None,
        };
        let parent = match parent {
            Some(parent) => Some(self.declare(parent)?),
            None => None,
        };
        let mut packet = Message::default();
        packet.number(field::SEQUENCE_ID, SEQUENCE);
        packet.message(field::TRACK_DESCRIPTOR, |track_of| {
            track_of.number(1, uuid);
            if let Some(parent) = parent {
                track_of.number(5, parent);
            }
            match track {
                Track::Process(pid) => {
                    let name = self.process_name(pid);
                    track_of.message(3, |process| {
                        process.signed(1, pid);
                        process.bytes(6, name.as_bytes());
                    });
                }
                Track::Thread(pid, tid) => {
                    let name = self.names.get(&(pid, tid)).map_or("", String::as_str);
                    track_of.message(4, |thread| {
                        thread.signed(1, pid);
                        thread.signed(2, tid);
                        thread.bytes(5, name.as_bytes());
                    });
                }
                Track::Lane(_, lane) => {
                    track_of.bytes(2, format!("asynchronous {}", lane + 1).as_bytes())
                }
                Track::Disk(disk) => {
                    let name = usize::try_from(disk)
                        .ok()
                        .and_then(|i| self.context.disks.get(i))
                        .map_or("disk", String::as_str);
                    track_of.bytes(2, format!("requests of {name}").as_bytes());
                }
                Track::DiskLane(_, lane) => {
                    track_of.bytes(2, format!("request {}", lane + 1).as_bytes())
                }
                Track::Counter(number) => {
                    let (name, unit, unit_name) = COUNTERS[number];
                    track_of.bytes(2, name.as_bytes());
                    track_of.message(8, |counter| {
                        counter.number(3, unit);
                        if !unit_name.is_empty() {
                            counter.bytes(6, unit_name.as_bytes());
                        }
                    });
                }
                Track::Losses => track_of.bytes(2, b"losses of the tracer"),
            }
        });
        self.parts.packet(&packet)?;
        Ok(uuid)
    }

    fn process_name(&self, pid: i64) -> String {
        let main = self.names.get(&(pid, pid));
        let any = || {
            self.context
                .threads
                .iter()
                .find(|t| t.pid == pid)
                .map(|t| &t.name)
        };
        let name = main.or_else(any).map_or("", String::as_str);
        if name.is_empty() {
            format!("process {pid}")
        } else {
            name.to_owned()
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn slice(
        &mut self,
        track: Track,
        start: i64,
        end: i64,
        name: &str,
        category: &str,
        flows: &[u64],
        annotate: impl FnOnce(&mut Message),
    ) -> io::Result<()> {
        let uuid = self.declare(track)?;
        let mut packet = Message::default();
        packet.signed(field::TIMESTAMP, start);
        packet.number(field::SEQUENCE_ID, SEQUENCE);
        packet.number(field::SEQUENCE_FLAGS, NEEDS_STATE);
        let next = self.interned_names.len() as u64 + 1;
        let name_id = match self.interned_names.get(name) {
            Some(&number) => number,
            None => {
                self.interned_names.insert(name.to_owned(), next);
                packet.message(field::INTERNED_DATA, |interned| {
                    interned.message(2, |entry| {
                        entry.number(1, next);
                        entry.bytes(2, name.as_bytes());
                    });
                });
                next
            }
        };
        packet.message(field::TRACK_EVENT, |event| {
            event.number(9, SLICE_BEGIN);
            event.number(11, uuid);
            event.number(10, name_id);
            event.bytes(22, category.as_bytes());
            for &flow in flows {
                event.fixed64(47, flow);
            }
            annotate(event);
        });
        self.parts.packet(&packet)?;
        packet.clear();
        packet.signed(field::TIMESTAMP, end.max(start));
        packet.number(field::SEQUENCE_ID, SEQUENCE);
        packet.number(field::SEQUENCE_FLAGS, NEEDS_STATE);
        packet.message(field::TRACK_EVENT, |event| {
            event.number(9, SLICE_END);
            event.number(11, uuid);
        });
        self.parts.packet(&packet)
    }

    /// Interning number of a path in this part. Write it if it is new.
    fn path(&mut self, file_id: i64) -> io::Result<Option<u64>> {
        if let Some(&number) = self.interned_paths.get(&file_id) {
            return Ok(Some(number));
        }
        let Some(path) = self.paths.get(&file_id) else {
            return Ok(None);
        };
        let number = self.interned_paths.len() as u64 + 1;
        let mut packet = Message::default();
        packet.number(field::SEQUENCE_ID, SEQUENCE);
        packet.number(field::SEQUENCE_FLAGS, NEEDS_STATE);
        packet.message(field::INTERNED_DATA, |interned| {
            interned.message(29, |entry| {
                entry.number(1, number);
                entry.bytes(2, path.as_bytes());
            });
        });
        self.interned_paths.insert(file_id, number);
        self.parts.packet(&packet)?;
        Ok(Some(number))
    }

    fn take(&mut self, event: Event) -> io::Result<()> {
        self.last_ns = self.last_ns.max(event.t_ns);
        self.events += 1;
        let (_, direction) = self.named(event.op);
        self.counters.operation(&event, &direction);
        let within = match self.open_calls.get(&event.tid) {
            Some(call) if event.t_ns < call.event.end_ns() => {
                // nested within the current call, such as a fault in a read; an event that outlasts the call gets a
                // lane
                if event.flags & ASYNC == 0 && event.end_ns() <= call.event.end_ns() {
                    Some(true)
                } else {
                    Some(false)
                }
            }
            _ => None,
        };
        let thread = Track::Thread(event.pid, event.tid);
        match within {
            _ if event.flags & ASYNC != 0 => self.on_lane(event),
            Some(true) => self.emit(&OpenCall {
                event,
                track: thread,
                flows: Vec::new(),
            }),
            Some(false) => self.on_lane(event),
            None => {
                let call = OpenCall {
                    event,
                    track: thread,
                    flows: Vec::new(),
                };
                match self.open_calls.insert(event.tid, call) {
                    Some(before) => self.emit(&before),
                    None => Ok(()),
                }
            }
        }
    }

    fn on_lane(&mut self, event: Event) -> io::Result<()> {
        let lane = free_lane(
            self.lanes.entry(event.pid).or_default(),
            event.t_ns,
            event.end_ns(),
        );
        let track = Track::Lane(event.pid, lane);
        self.emit(&OpenCall {
            event,
            track,
            flows: Vec::new(),
        })
    }

    fn named(&self, op: i64) -> (String, String) {
        let unknown = || (format!("operation {op}"), String::from("?"));
        self.operations.get(&op).cloned().unwrap_or_else(unknown)
    }

    fn emit(&mut self, call: &OpenCall) -> io::Result<()> {
        self.roll()?;
        let e = call.event;
        let (name, direction) = self.named(e.op);
        let path = self.path(e.file_id)?;
        self.slice(
            call.track,
            e.t_ns,
            e.end_ns(),
            &name,
            &direction,
            &call.flows,
            |event| {
                match path {
                    Some(number) => event.message(4, |note| {
                        note.number(1, 1);
                        note.number(17, number);
                    }),
                    None => annotation(event, 8, e.file_id),
                }
                annotation(event, 2, e.offset);
                annotation(event, 3, e.size);
                annotation(event, 4, e.done);
                if e.errno != 0 {
                    annotation(event, 5, e.errno);
                }
                if e.flags != 0 {
                    annotation(event, 6, e.flags);
                }
                if matches!(call.track, Track::Lane(..)) {
                    annotation(event, 7, e.tid);
                }
            },
        )
    }

    /// Write the requests that arrived before `until_ns`, each with a flow from the current call of its thread.
    fn drain(&mut self, until_ns: i64) -> io::Result<()> {
        while self.pending.front().is_some_and(|r| r.t_ns < until_ns) {
            let Some(request) = self.pending.pop_front() else {
                break;
            };
            self.requests += 1;
            self.counters.request(&request);
            let mut flows = Vec::new();
            if let Some(call) = self
                .open_calls
                .get_mut(&request.tid)
                .filter(|_| request.tid != 0)
            {
                if call.event.t_ns <= request.t_ns && request.t_ns <= call.event.end_ns() {
                    call.flows.push(self.requests);
                    flows.push(self.requests);
                    self.flows += 1;
                }
            }
            let end = request.done_ns.max(request.t_ns);
            let lanes = self.disk_lanes.entry(request.disk).or_default();
            let lane = free_lane(lanes, request.t_ns, end);
            let name = usize::try_from(request.op)
                .ok()
                .and_then(|i| REQUEST_NAMES.get(i));
            let track = Track::DiskLane(request.disk, lane);
            let name = name.copied().unwrap_or("request");
            self.slice(track, request.t_ns, end, name, "device", &flows, |event| {
                annotation(event, 2, request.offset);
                annotation(event, 3, request.size);
                if request.tid != 0 {
                    annotation(event, 7, request.tid);
                }
            })?;
        }
        Ok(())
    }

    fn counters_until(&mut self, until_ns: i64) -> io::Result<()> {
        for (t_ns, values) in self.counters.take_until(until_ns) {
            for (number, value) in values.into_iter().enumerate() {
                if number == 3 && self.requests == 0 {
                    continue;
                }
                let uuid = self.declare(Track::Counter(number))?;
                let mut packet = Message::default();
                packet.signed(field::TIMESTAMP, t_ns);
                packet.number(field::SEQUENCE_ID, SEQUENCE);
                packet.number(field::SEQUENCE_FLAGS, NEEDS_STATE);
                packet.message(field::TRACK_EVENT, |event| {
                    event.number(9, COUNTER);
                    event.number(11, uuid);
                    event.double(44, value);
                });
                self.parts.packet(&packet)?;
            }
        }
        Ok(())
    }

    /// Begin a new part if this one is full.
    fn roll(&mut self) -> io::Result<()> {
        if self.context.part_bytes > 0 && self.parts.written >= self.context.part_bytes {
            self.counters_until(self.last_ns)?;
            self.parts.next()?;
            self.preamble()?;
        }
        Ok(())
    }
}

impl Exporter for Perfetto {
    fn events(&mut self, events: &Events) -> io::Result<()> {
        for event in events.rows() {
            self.drain(event.t_ns)?;
            self.take(event)?;
        }
        Ok(())
    }

    fn requests(&mut self, requests: &Requests) -> io::Result<()> {
        self.pending.extend(requests.rows());
        Ok(())
    }

    fn finish(&mut self) -> io::Result<Value> {
        self.drain(i64::MAX)?;
        let mut calls: Vec<OpenCall> = self.open_calls.drain().map(|(_, call)| call).collect();
        calls.sort_by_key(|h| h.event.t_ns);
        for call in &calls {
            self.emit(call)?;
        }
        self.counters_until(i64::MAX)?;
        self.parts.out.flush()?;
        Ok(json!({
            "events": self.events,
            "requests": self.requests,
            "flows": self.flows,
            "parts": self.parts.names,
        }))
    }
}

fn annotation(event: &mut Message, name: u64, value: i64) {
    event.message(4, |note| {
        note.number(1, name);
        note.signed(4, value);
    });
}

/// Reserve the lowest lane that is free at `start`, until `end`.
fn free_lane(lanes: &mut Vec<i64>, start: i64, end: i64) -> usize {
    match lanes.iter().position(|&until| until <= start) {
        Some(lane) => {
            lanes[lane] = end;
            lane
        }
        None => {
            lanes.push(end);
            lanes.len() - 1
        }
    }
}

/// Sums per time bin, stored until they are written.
struct Counters {
    start_ns: i64,
    bin_ns: i64,
    first: i64,
    bins: std::collections::VecDeque<[f64; 4]>,
}

impl Counters {
    fn new(start_ns: i64, end_ns: i64) -> Self {
        let span = (end_ns - start_ns).max(1);
        Counters {
            start_ns,
            bin_ns: SHORTEST_BIN_NS.max(span / BINS + 1),
            first: 0,
            bins: std::collections::VecDeque::new(),
        }
    }

    fn bin(&mut self, number: i64) -> &mut [f64; 4] {
        let index = usize::try_from((number - self.first).max(0)).unwrap_or(0);
        while self.bins.len() <= index {
            self.bins.push_back([0.0; 4]);
        }
        &mut self.bins[index]
    }

    fn operation(&mut self, event: &Event, direction: &str) {
        let done = event.done.max(0) as f64;
        let at = (event.t_ns - self.start_ns).div_euclid(self.bin_ns);
        match direction {
            "read" => self.bin(at)[0] += done,
            "write" => self.bin(at)[1] += done,
            _ => {}
        }
        self.spread(2, event.t_ns, event.end_ns());
    }

    fn request(&mut self, request: &Request) {
        self.spread(3, request.t_ns, request.done_ns);
    }

    /// Distribute the time from `start` to `end` over its bins.
    fn spread(&mut self, which: usize, start: i64, end: i64) {
        let (from, to) = (start - self.start_ns, end - self.start_ns);
        // limit the duration: an event without a plausible end would fill memory with bins
        let to = to.min(from + self.bin_ns * (BINS + 1));
        let mut at = from;
        while at < to {
            let number = at.div_euclid(self.bin_ns);
            let next = ((number + 1) * self.bin_ns).min(to);
            self.bin(number)[which] += (next - at) as f64;
            at = next;
        }
    }

    /// Return the means of the bins that ended before `until_ns`, with the start of each bin.
    fn take_until(&mut self, until_ns: i64) -> Vec<(i64, [f64; 4])> {
        let last = (until_ns.saturating_sub(self.start_ns)).div_euclid(self.bin_ns);
        let mut samples = Vec::new();
        let seconds = self.bin_ns as f64 / 1e9;
        while self.first < last {
            let Some(sums) = self.bins.pop_front() else {
                break;
            };
            let width = self.bin_ns as f64;
            let means = [
                sums[0] / seconds,
                sums[1] / seconds,
                sums[2] / width,
                sums[3] / width,
            ];
            samples.push((self.start_ns + self.first * self.bin_ns, means));
            self.first += 1;
        }
        if until_ns == i64::MAX {
            samples.push((self.start_ns + self.first * self.bin_ns, [0.0; 4]));
        }
        samples
    }
}

/// Output file, or its parts.
struct Parts {
    first: PathBuf,
    out: BufWriter<File>,
    written: u64,
    names: Vec<String>,
}

impl Parts {
    fn create(path: &Path) -> io::Result<Self> {
        Ok(Parts {
            first: path.to_owned(),
            out: BufWriter::with_capacity(1 << 20, File::create(path)?),
            written: 0,
            names: vec![name_of(path)],
        })
    }

    fn packet(&mut self, packet: &Message) -> io::Result<()> {
        let mut head = Message::default();
        head.bytes(field::TRACE_PACKET, &packet.0);
        self.written += head.0.len() as u64;
        self.out.write_all(&head.0)
    }

    fn next(&mut self) -> io::Result<()> {
        self.out.flush()?;
        let mut name = self.first.file_stem().unwrap_or_default().to_owned();
        name.push(format!("-{}", self.names.len() + 1));
        if let Some(extension) = self.first.extension() {
            name.push(".");
            name.push(extension);
        }
        let path = self.first.with_file_name(name);
        self.out = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        self.written = 0;
        self.names.push(name_of(&path));
        Ok(())
    }
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
