//! A station: requests served by the device of a profile.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use serde::Serialize;

use crate::cost::Costs;
use crate::gates::{Gates, Passed, FRESH};
use crate::pace::Pace;
use crate::patch::{Patch, Settings};
use crate::profile::{InvalidProfile, StorageProfile};
use crate::random::{mix64, Draws};
use crate::retime::Remembered;

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    /// Read bytes.
    Read = 0,
    /// Write bytes.
    Write = 1,
    /// Make all written bytes durable.
    Flush = 2,
}

impl TryFrom<u8> for Op {
    type Error = String;
    fn try_from(code: u8) -> Result<Self, String> {
        match code {
            0 => Ok(Op::Read),
            1 => Ok(Op::Write),
            2 => Ok(Op::Flush),
            _ => Err(format!(
                "operation code {code}; 0 (read), 1 (write) or 2 (flush) is expected"
            )),
        }
    }
}

impl std::str::FromStr for Op {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "read" => Ok(Op::Read),
            "write" => Ok(Op::Write),
            "flush" => Ok(Op::Flush),
            _ => Err(format!(
                "operation \"{name}\"; read, write or flush is expected"
            )),
        }
    }
}

/// A request to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Operation.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// Times at which the station serves a request, in nanoseconds on the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Time at which a server starts the request.
    pub start_ns: u64,
    /// Time of the answer.
    pub due_ns: u64,
    /// Sampled service time.
    pub service_ns: u64,
    /// Time spent waiting for a server and for the interface (`due - arrival - service`).
    pub wait_ns: u64,
    /// True if the request continues a stream.
    pub sequential: bool,
    /// Number of earlier requests with this operation and offset.
    pub visit: u32,
    /// Number of the request since the station was created or reset.
    pub id: u64,
}

impl Served {
    pub(crate) fn of(arrival: &Arrival, timed: &Timed) -> Served {
        let (due_ns, service_ns) = (timed.due_ns, timed.service_ns);
        Served {
            start_ns: timed.start_ns,
            due_ns,
            service_ns,
            wait_ns: due_ns
                .saturating_sub(arrival.arrival_ns)
                .saturating_sub(service_ns),
            sequential: arrival.sequential,
            visit: arrival.visit,
            id: arrival.id,
        }
    }
}

/// Hasher for integer keys: mixes the 64 bits of the key.
#[derive(Default)]
struct Mixed(u64);
impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix64(self.0 ^ u64::from(*byte));
        }
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = mix64(key);
    }
}

/// Times at which the servers become free, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) enum Servers {
    One(u64),
    Many(BinaryHeap<Reverse<u64>>),
}

impl Servers {
    /// Create servers that become free at these times.
    pub fn of(free: Vec<u64>) -> Self {
        match free[..] {
            [only] => Servers::One(only),
            _ => Servers::Many(free.into_iter().map(Reverse).collect()),
        }
    }

    /// Change the number of servers to `count`. The busiest servers stay; new servers are free.
    pub fn resized(&self, count: usize) -> Self {
        let mut busy: Vec<u64> = match self {
            Servers::One(free) => vec![*free],
            Servers::Many(heap) => heap.iter().map(|free| free.0).collect(),
        };
        busy.sort_unstable_by(|a, b| b.cmp(a));
        busy.resize(count, 0);
        Servers::of(busy)
    }

    /// Assign work to the first free server, from `start = max(arrival, free)` to `work(start)`. Return both.
    #[inline]
    fn take(&mut self, arrival_ns: u64, work: impl FnOnce(u64) -> u64) -> (u64, u64) {
        match self {
            Servers::One(free) => {
                let start = arrival_ns.max(*free);
                *free = work(start);
                (start, *free)
            }
            Servers::Many(heap) => {
                let Some(mut earliest) = heap.peek_mut() else {
                    return (arrival_ns, arrival_ns);
                };
                let start = arrival_ns.max(earliest.0);
                let end = work(start);
                *earliest = Reverse(end);
                drop::<PeekMut<'_, _>>(earliest);
                (start, end)
            }
        }
    }
}

/// Resources used up so far, as times on the station's clock in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    /// Time at which the interface becomes free.
    pub interface_ns: f64,
    /// Time at which the write cache will be empty.
    pub drained_ns: f64,
    /// Times at which the tokens taken so far will have flowed in.
    pub passed: Passed,
}

const NOTHING_USED: Used = Used {
    interface_ns: 0.0,
    drained_ns: 0.0,
    passed: FRESH,
};

/// A request that arrived, as the station remembers it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub id: u64,
    pub arrival_ns: u64,
    pub request: Request,
    pub visit: u32,
    pub sequential: bool,
    /// True if the read buffer had all its pages.
    pub buffered: bool,
    /// Device offset of the arm before the request.
    pub arm_at: u64,
}

/// Times of a request, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timed {
    pub start_ns: u64,
    /// Time at which its server becomes free.
    pub end_ns: u64,
    /// Time at which the device completes it. Limits can delay the answer further.
    pub held_ns: u64,
    pub due_ns: u64,
    pub service_ns: u64,
}

/// Levels of the write cache and of the credits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Levels {
    /// Bytes in the write cache.
    pub dirty_bytes: Option<f64>,
    /// Remaining credits, requests.
    pub credits_iops: Option<f64>,
    /// Remaining credits, bytes.
    pub credits_bytes: Option<f64>,
}

/// A device: k servers, first come first served, with one shared interface and limits behind them.
///
/// Limits and credits delay an answer after the device has completed the request, so a limit on one direction does not
/// slow the other. Pass arrivals in the order of their times. A request with an earlier time than the last one is
/// served in the order of the calls.
#[derive(Debug, Clone)]
pub struct Station {
    seed: u64,
    pub(crate) settings: Box<Settings>,
    costs: Costs,
    pub(crate) gates: Gates,
    pace: Option<Pace>,
    interface_ns_per_byte: f64,
    interface_ns_per_request: f64,
    interface_burst_ns: f64,
    /// Drain time of the write cache, in nanoseconds: of one byte, and of a full cache.
    drain: Option<(f64, f64)>,
    pub(crate) server_count: usize,
    max_streams: usize,
    window: u64,
    pub(crate) used: Used,
    pub(crate) servers: Servers,
    streams: Vec<u64>,
    buffer: Vec<u64>,
    arm_at: u64,
    visits: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
    taken: u64,
    pub(crate) remembered: Option<Remembered>,
}

impl Station {
    /// Create a device that has served no requests.
    ///
    /// # Errors
    /// The profile is invalid.
    pub fn new(profile: &StorageProfile, seed: u64) -> Result<Self, InvalidProfile> {
        profile.validate()?;
        let mut station = Station {
            seed,
            settings: Box::new(Settings::new(profile)),
            costs: Costs::new(profile, true),
            gates: Gates::default(),
            pace: None,
            interface_ns_per_byte: 0.0,
            interface_ns_per_request: 0.0,
            interface_burst_ns: 0.0,
            drain: None,
            server_count: 1,
            max_streams: 0,
            window: 0,
            used: NOTHING_USED,
            servers: Servers::of(vec![0]),
            streams: Vec::new(),
            buffer: Vec::new(),
            arm_at: 0,
            visits: HashMap::default(),
            taken: 0,
            remembered: None,
        };
        station.become_device(&station.settings.effective(), 0);
        Ok(station)
    }

    /// Apply a profile. Requests under way do not change.
    pub(crate) fn become_device(&mut self, profile: &StorageProfile, now_ns: u64) {
        let each_ns = |rate: Option<f64>| rate.map_or(0.0, |r| 1e9 / r);
        self.costs = Costs::new(profile, self.settings.reads_ahead());
        self.gates = Gates::new(profile);
        self.pace = self.settings.slow().map(|slow| Pace::new(&slow, now_ns));
        self.interface_ns_per_byte = each_ns(profile.interface_rate_bps);
        self.interface_ns_per_request = each_ns(profile.interface_iops);
        self.interface_burst_ns = profile.interface_burst_s.map_or(0.0, |s| 1e9 * s);
        self.drain = profile.write_cache.as_ref().map(|cache| {
            let ns_per_byte = 1e9 / cache.drain_rate_bps;
            (ns_per_byte, ns_per_byte * cache.size_bytes as f64)
        });
        self.max_streams = profile.sequential_streams;
        self.window = profile.sequential_window_bytes;
        self.streams.truncate(self.max_streams);
        self.server_count = profile.servers;
        self.servers = self.servers.resized(profile.servers);
    }

    /// Forget all requests: all servers are free, there are no streams and no visits, and credits are at their initial
    /// level. Changes stay in force.
    pub fn reset(&mut self) {
        self.servers = Servers::of(vec![0; self.server_count]);
        self.used = NOTHING_USED;
        self.streams.clear();
        self.buffer.clear();
        self.arm_at = 0;
        self.visits.clear();
        self.taken = 0;
        if let Some(remembered) = &mut self.remembered {
            *remembered = Remembered::default();
        }
    }

    /// All changes in force since the creation, as one patch.
    #[must_use]
    pub fn changed(&self) -> &Patch {
        self.settings.patched()
    }

    /// The profile with all changes that a profile can express.
    #[must_use]
    pub fn effective(&self) -> StorageProfile {
        self.settings.effective()
    }

    /// Levels of the write cache and of the credits at `t_ns`.
    #[must_use]
    pub fn levels(&self, t_ns: u64) -> Levels {
        let [credits_iops, credits_bytes] = self.gates.credits(&self.used.passed, t_ns);
        Levels {
            dirty_bytes: self
                .drain
                .map(|(each_ns, _)| (self.used.drained_ns - t_ns as f64).max(0.0) / each_ns),
            credits_iops,
            credits_bytes,
        }
    }

    /// Accept a request that arrives at `t_ns` and return its times.
    #[inline]
    pub fn arrive(&mut self, t_ns: u64, request: Request) -> Served {
        let op = request.op as u64;
        let visit = {
            let count = self.visits.entry(request.offset << 2 | op).or_insert(0);
            let visit = *count;
            *count = count.wrapping_add(1);
            visit
        };
        let sequential = request.op != Op::Flush && self.continues_stream(request);
        let arrival = Arrival {
            id: self.taken,
            arrival_ns: t_ns,
            request,
            visit,
            sequential,
            buffered: self.costs.buffered(request, &mut self.buffer),
            arm_at: self.arm_at,
        };
        if self.costs.moves_arm(request, arrival.buffered) {
            self.arm_at = request.offset.saturating_add(request.size);
        }
        self.taken += 1;
        let before = self.remembered.is_some().then_some(self.used);
        let timed = self.serve(&arrival, t_ns);
        if let (Some(remembered), Some(before)) = (&mut self.remembered, before) {
            remembered.add(t_ns, arrival, timed, before);
        }
        Served::of(&arrival, &timed)
    }

    /// Serve a request that starts at `floor_ns` or later.
    #[inline]
    pub(crate) fn serve(&mut self, arrival: &Arrival, floor_ns: u64) -> Timed {
        let Arrival { request, .. } = *arrival;
        let op = request.op as u64;
        let mut draws = Draws::keyed(self.seed, op, request.offset, u64::from(arrival.visit));
        let work = self.costs.draw_ns(arrival, &mut draws);
        let interface_ns = if request.op == Op::Flush {
            0.0
        } else {
            (self.interface_ns_per_byte * request.size as f64).max(self.interface_ns_per_request)
        };
        let interface_free = &mut self.used.interface_ns;
        let burst_ns = self.interface_burst_ns;
        let mut service_ns = work.round() as u64;
        let mut factor = 1.0;
        let (start_ns, end_ns) = match self.pace {
            None => self.servers.take(floor_ns, |start_ns| {
                let finish = start_ns + service_ns;
                if interface_ns == 0.0 {
                    return finish;
                }
                *interface_free = interface_free.max(start_ns as f64 - burst_ns) + interface_ns;
                finish.max(interface_free.round() as u64)
            }),
            Some(pace) => {
                let stray = pace.stray.map_or(1.0, |(probability, by)| {
                    if draws.uniform() < probability {
                        by
                    } else {
                        1.0
                    }
                });
                self.servers.take(floor_ns, |start_ns| {
                    factor = pace.factor_at(start_ns);
                    service_ns = (work * factor * stray).round() as u64;
                    let finish = pace.done_ns(start_ns, service_ns);
                    if interface_ns == 0.0 {
                        return finish;
                    }
                    let from = interface_free.max(start_ns as f64 - burst_ns);
                    let work_ns = (interface_ns * factor).round() as u64;
                    *interface_free = pace.done_ns(from.round() as u64, work_ns) as f64;
                    finish.max(*interface_free as u64)
                })
            }
        };
        let mut held_ns = end_ns;
        match (request.op, self.drain) {
            (Op::Write, Some((ns_per_byte, whole_ns))) => {
                let drain_ns = ns_per_byte * factor * request.size as f64;
                let drained_ns = self.used.drained_ns.max(end_ns as f64) + drain_ns;
                self.used.drained_ns = drained_ns;
                held_ns = held_ns.max((drained_ns - whole_ns).round() as u64);
            }
            (Op::Flush, _) => held_ns = held_ns.max(self.used.drained_ns.round() as u64),
            _ => {}
        }
        let mut due_ns = held_ns;
        if self.gates.any {
            let through = self.gates.pass(&mut self.used.passed, start_ns, request);
            due_ns = due_ns.max(through.round() as u64);
        }
        Timed {
            start_ns,
            end_ns,
            held_ns,
            due_ns,
            service_ns,
        }
    }

    /// Return true if the request starts near the end of a recent stream. Record its own end as a stream.
    #[inline]
    fn continues_stream(&mut self, request: Request) -> bool {
        let end = request.offset.saturating_add(request.size);
        let (offset, window) = (request.offset, self.window);
        let position = self
            .streams
            .iter()
            .position(|stream| offset.abs_diff(*stream) <= window);
        match position {
            Some(at) => {
                // the most recently used stream is first
                let furthest = self.streams[at].max(end);
                self.streams.copy_within(0..at, 1);
                self.streams[0] = furthest;
                true
            }
            None if self.max_streams == 0 => false,
            None => {
                if self.streams.len() == self.max_streams {
                    self.streams.pop();
                }
                self.streams.insert(0, end);
                false
            }
        }
    }
}
