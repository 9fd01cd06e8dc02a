//! The profile at work on requests.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::distribution::Sampler;
use crate::profile::{InvalidProfile, ServiceClass, StorageProfile};
use crate::random::{mix64, Draws};

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    /// Read bytes.
    Read = 0,
    /// Write bytes.
    Write = 1,
    /// Make everything written durable.
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

/// One request to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub op: Op,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// What became of a request; times in nanoseconds on the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// When a server took it.
    pub start_ns: u64,
    /// When it is to be answered.
    pub due_ns: u64,
    /// Its service time as drawn.
    pub service_ns: u64,
    /// Waiting: for a server and for the interface (`due - arrival - service`).
    pub wait_ns: u64,
    /// Whether it continued a stream.
    pub sequential: bool,
    /// How often this operation was asked at this offset before.
    pub visit: u32,
}

/// A class compiled for the hot path.
#[derive(Debug, Clone)]
struct Cost {
    overhead: Sampler,
    ns_per_byte: f64,
    fetch: Option<(u64, Sampler)>,
}

impl Cost {
    fn new(class: &ServiceClass) -> Self {
        Cost {
            overhead: class.overhead.sampler(),
            ns_per_byte: class.rate_bps.map_or(0.0, |rate_bps| 1e9 / rate_bps),
            fetch: class
                .page_fetch
                .as_ref()
                .map(|fetch| (fetch.page_bytes, fetch.overhead.sampler())),
        }
    }

    #[inline]
    fn draw_ns(&self, request: Request, draws: &mut Draws) -> f64 {
        let mut ns = self.overhead.draw(draws) + self.ns_per_byte * request.size as f64;
        if let Some((page_bytes, fetch)) = &self.fetch {
            let first_start = request
                .offset
                .div_ceil(*page_bytes)
                .saturating_mul(*page_bytes);
            if first_start < request.offset.saturating_add(request.size) {
                ns += fetch.draw(draws);
            }
        }
        ns
    }
}

/// Keys are mixed already; this only passes them on.
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

/// When each server is free again.
#[derive(Debug, Clone)]
enum Servers {
    One(u64),
    Many(BinaryHeap<Reverse<u64>>),
}

impl Servers {
    fn new(count: usize) -> Self {
        if count == 1 {
            Servers::One(0)
        } else {
            Servers::Many((0..count).map(|_| Reverse(0)).collect())
        }
    }

    /// Lets the earliest free server work from `start = max(arrival, free)` until what `work(start)` says.
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

/// A device at work: first come first served, k servers, one interface.
///
/// Arrivals are to be given in the order of their times; a time earlier than the last is served as it comes.
#[derive(Debug, Clone)]
pub struct Station {
    seed: u64,
    read: [Cost; 2],
    write: [Cost; 2],
    flush: Sampler,
    interface_ns_per_byte: f64,
    interface_ns_per_request: f64,
    interface_burst_ns: f64,
    interface_free: f64,
    server_count: usize,
    servers: Servers,
    streams: Vec<u64>,
    max_streams: usize,
    window: u64,
    visits: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
}

impl Station {
    /// A device that has served nothing yet.
    ///
    /// # Errors
    /// The profile is not valid.
    pub fn new(profile: &StorageProfile, seed: u64) -> Result<Self, InvalidProfile> {
        profile.validate()?;
        let pair = |d: &crate::profile::Direction| [Cost::new(&d.random), Cost::new(&d.sequential)];
        Ok(Station {
            seed,
            read: pair(&profile.read),
            write: pair(&profile.write),
            flush: profile.flush.overhead.sampler(),
            interface_ns_per_byte: profile.interface_rate_bps.map_or(0.0, |r| 1e9 / r),
            interface_ns_per_request: profile.interface_iops.map_or(0.0, |r| 1e9 / r),
            interface_burst_ns: profile.interface_burst_s.map_or(0.0, |s| 1e9 * s),
            interface_free: 0.0,
            server_count: profile.servers,
            servers: Servers::new(profile.servers),
            streams: Vec::with_capacity(profile.sequential_streams),
            max_streams: profile.sequential_streams,
            window: profile.sequential_window_bytes,
            visits: HashMap::default(),
        })
    }

    /// Forgets everything that was served: servers free, no streams, no visits.
    pub fn reset(&mut self) {
        self.servers = Servers::new(self.server_count);
        self.interface_free = 0.0;
        self.streams.clear();
        self.visits.clear();
    }

    /// Goes on as another device: requests that were accepted keep their due times, streams and visits stay.
    ///
    /// # Errors
    /// The profile is not valid; nothing has changed then.
    pub fn set_profile(&mut self, profile: &StorageProfile) -> Result<(), InvalidProfile> {
        let mut next = Station::new(profile, self.seed)?;
        let mut busy: Vec<u64> = match &self.servers {
            Servers::One(free) => vec![*free],
            Servers::Many(heap) => heap.iter().map(|free| free.0).collect(),
        };
        busy.sort_unstable_by(|a, b| b.cmp(a));
        busy.resize(profile.servers, 0);
        next.servers = match busy[..] {
            [only] => Servers::One(only),
            _ => Servers::Many(busy.into_iter().map(Reverse).collect()),
        };
        next.interface_free = self.interface_free;
        next.visits = std::mem::take(&mut self.visits);
        next.streams = std::mem::take(&mut self.streams);
        next.streams.truncate(next.max_streams);
        *self = next;
        Ok(())
    }

    /// Accepts a request that arrives at `t_ns` and says when it will have been served.
    #[inline]
    pub fn arrive(&mut self, t_ns: u64, request: Request) -> Served {
        let op = request.op as u64;
        let visit = {
            let count = self.visits.entry(request.offset << 2 | op).or_insert(0);
            let visit = *count;
            *count = count.wrapping_add(1);
            visit
        };
        let mut draws = Draws::keyed(self.seed, op, request.offset, u64::from(visit));
        let (sequential, service) = if request.op == Op::Flush {
            (false, self.flush.draw(&mut draws))
        } else {
            let sequential = self.continues_stream(request);
            let costs = if request.op == Op::Read {
                &self.read
            } else {
                &self.write
            };
            (
                sequential,
                costs[usize::from(sequential)].draw_ns(request, &mut draws),
            )
        };
        let service_ns = service.round() as u64;
        let interface_ns = if request.op == Op::Flush {
            0.0
        } else {
            (self.interface_ns_per_byte * request.size as f64).max(self.interface_ns_per_request)
        };
        let interface_free = &mut self.interface_free;
        let burst_ns = self.interface_burst_ns;
        let (start_ns, due_ns) = self.servers.take(t_ns, |start_ns| {
            let finish = start_ns + service_ns;
            if interface_ns == 0.0 {
                return finish;
            }
            *interface_free = interface_free.max(start_ns as f64 - burst_ns) + interface_ns;
            finish.max(interface_free.round() as u64)
        });
        Served {
            start_ns,
            due_ns,
            service_ns,
            wait_ns: (due_ns - t_ns).saturating_sub(service_ns),
            sequential,
            visit,
        }
    }

    /// Whether the request starts where one of the last streams ended; remembers its own end.
    #[inline]
    fn continues_stream(&mut self, request: Request) -> bool {
        let end = request.offset.saturating_add(request.size);
        let (offset, window) = (request.offset, self.window);
        let found = self
            .streams
            .iter()
            .position(|stream| offset.abs_diff(*stream) <= window);
        match found {
            Some(at) => {
                // the most recently used stream stands first
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
