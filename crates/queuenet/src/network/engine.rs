//! Simulation engine: its state, the event loop, and the handling of each event.

use std::collections::VecDeque;

use penstock_station::{Draws, Station};

use super::fair::Fair;
use super::files::File;
use super::heap::{EventHeap, MAX_ORDER};
use super::lru::Lru;
use super::nodes::Nodes;
use super::outcome::{Bytes, Failure};
use super::platform::Network;
use super::schedule::Scheduler;
use super::server::{Cover, Fifo, Links, Service, Tally, NONE};
use super::task::Run;
use super::time::{Clock, Ticks};
use super::workload::{Operation, Workload};
use crate::quantiles::Latencies;

/// Kinds of events.
pub(super) mod kind {
    /// A frame, or the last of a train, reaches the receiver's in-queue (or the first shared link).
    pub const ARRIVE: u8 = 0;
    /// The in-queue has served the last frame of its oldest message.
    pub const DELIVER: u8 = 1;
    /// The loopback has served a message.
    pub const LOOPED: u8 = 2;
    /// A component has served a request.
    pub const SERVED: u8 = 3;
    /// A task's delay, launch or computation is over.
    pub const TASK: u8 = 4;
    /// A frame has passed a shared link, or reaches the in-queue if links are shared fairly.
    pub const HOP: u8 = 5;
    /// A task stops waiting for its preferred machine.
    pub const PATIENCE: u8 = 6;
    /// An out-queue has sent a message (only if latencies differ), or a fairly shared link has served a frame.
    pub const SENT: u8 = 7;
}

/// Type of a message, which determines its handling on arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Control message to the manager.
    ToManager,
    /// Answer of the manager.
    FromManager,
    /// Control message that requests a chunk from a node.
    ReadRequest,
    /// A chunk on its way from a node to the client.
    ReadData,
    /// A chunk on its way to a node.
    WriteData,
    /// Answer of a node, to a client or to the previous node of the chain.
    Acknowledge,
    /// A frame of a streamed chunk, received by the node that forwards it.
    FrameIn,
    /// The same frame on its way to the next node; `parent` is the chunk's message to that node.
    FrameOn,
    /// An operation in the client's own queue; not a message.
    ClientWork,
}

/// Stations of a host, in this order; `host * 8 + n` numbers a station.
pub(super) const KINDS: [&str; 7] = [
    "out", "in", "loopback", "storage", "manager", "client", "slots",
];
pub(super) const KIND_NAMES: [&str; 7] = [
    "net_out", "net_in", "loopback", "storage", "manager", "client", "slots",
];
pub(super) const OUT: u32 = 0;
pub(super) const IN: u32 = 1;
pub(super) const LOOPBACK: u32 = 2;
pub(super) const STORAGE: u32 = 3;
pub(super) const MANAGER: u32 = 4;
pub(super) const CLIENT: u32 = 5;
pub(super) const SLOTS: u32 = 6;
/// Station number of the fabric, the links between hosts.
pub(super) const FABRIC: u32 = NONE - 1;

/// Station number of a link that several hosts share.
#[inline]
pub(super) fn shared_station(link: u32) -> u32 {
    FABRIC - 1 - link
}

#[inline]
pub(super) fn station(host: u32, which: u32) -> u32 {
    host * 8 + which
}

/// Time that a chain of events spent at a station.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Leg {
    pub station: u32,
    pub ticks: f32,
}

const LEGS: usize = 5;

/// A message, or a request at a component. One activity is in one of these states at a time.
///
/// Two cache lines: first the fields that every step reads, then the others.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Message {
    /// Time at which it joined its current queue.
    pub joined: Ticks,
    /// Time at which its current queue has served its last frame.
    pub due: Ticks,
    pub bytes: u64,
    /// Number of full frames still to come. For a single frame: number of shared links passed. For a chunk that arrives
    /// frame by frame from the previous node: bytes received.
    pub left: u64,
    /// The next message in its queue.
    pub next: u32,
    pub from: u32,
    pub to: u32,
    pub task: u32,
    pub parent: u32,
    pub pending: u16,
    pub replica: u16,
    pub legs: u8,
    /// Number of legs of the path when the copy for the next node was created.
    pub fork: u8,
    pub stage: Stage,
    pub write: bool,
    /// Each frame that arrives is forwarded at once.
    pub stream: bool,
    /// Some frames were forwarded.
    pub passing: bool,
    /// Its first frame waited for the out-queue, with links shared fairly.
    pub waited: bool,
    /// Size of the chunk to which the message belongs, in bytes.
    pub data: u64,
    pub chunk: u64,
    pub path: [Leg; LEGS],
    pub spill: u32,
    /// Message to the next node, for a streamed chunk.
    pub child: u32,
}

impl Links for [Message] {
    #[inline]
    fn next(&self, who: u32) -> u32 {
        self[who as usize].next
    }
    #[inline]
    fn set_next(&mut self, who: u32, next: u32) {
        self[who as usize].next = next;
    }
}

impl Message {
    pub(super) const EMPTY: Message = Message {
        joined: 0,
        due: 0,
        next: NONE,
        bytes: 0,
        data: 0,
        chunk: 0,
        from: 0,
        to: 0,
        task: NONE,
        parent: NONE,
        child: NONE,
        left: 0,
        pending: 0,
        spill: NONE,
        replica: 0,
        legs: 0,
        fork: 0,
        stage: Stage::ToManager,
        write: false,
        stream: false,
        passing: false,
        waited: false,
        path: [Leg {
            station: 0,
            ticks: 0.0,
        }; LEGS],
    };
}

/// Frames of a train that have not yet reached the in-queue, without its last one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Train {
    pub next: Ticks,
    pub order: u64,
    pub period: Ticks,
    pub left: u64,
}

/// Storage of a host.
#[derive(Debug)]
pub(super) enum Store {
    Absent,
    Servers {
        read: Service,
        write: Service,
        queue: Fifo,
        servers: u32,
    },
    Profile {
        station: Box<Station>,
        tally: Tally,
        servers: u32,
    },
}

/// A machine: its network queues and its components.
#[derive(Debug)]
pub(super) struct Host {
    // out-queue
    pub out_free: Ticks,
    pub out_frame: Ticks,
    pub out_per_byte: f64,
    pub out_active: u32,
    pub out_head: u32,
    pub out_tail: u32,
    // in-queue
    pub in_free: Ticks,
    pub in_frame: Ticks,
    pub in_per_byte: f64,
    pub trains: VecDeque<Train>,
    pub due_head: u32,
    pub due_tail: u32,
    pub latency: Ticks,
    pub rack: u32,
    // loopback
    pub loop_per_byte: f64,
    pub loop_free: Ticks,
    pub loop_active: u32,
    pub loop_head: u32,
    pub loop_tail: u32,
    pub out: Tally,
    pub inn: Tally,
    pub looped: Tally,
    pub busy: Cover,
    pub sent: u64,
    pub received: u64,
    // components
    pub store: Store,
    pub store_busy: Cover,
    pub manager: Option<Box<(Service, Fifo, u32)>>,
    pub client: Option<Box<(Service, Fifo)>>,
    pub slots: u32,
    pub slots_free: u32,
    pub speed: f64,
    pub slot_tally: Tally,
    /// Total computing time of all slots.
    pub computing: f64,
    pub tasks: u64,
    pub cache: Option<Box<Lru>>,
}

/// A link that several hosts share: the fabric's core, or a rack's up- or downlink.
#[derive(Debug)]
pub(super) struct Shared {
    pub free: Ticks,
    pub per_byte: f64,
    pub tally: Tally,
    pub name: String,
}

/// Purpose of a random number: the first part of its key.
pub(super) mod draw {
    pub const STORAGE: u64 = 0x7374_6f72;
    pub const MANAGER: u64 = 0x6d61_6e61;
    pub const CLIENT: u64 = 0x636c_6965;
    pub const LAUNCH: u64 = 0x6c61_756e;
    pub const STAGGER: u64 = 0x7374_6167;
    pub const COMPUTE: u64 = 0x636f_6d70;
    pub const REPLICA: u64 = 0x7265_706c;
}

/// Limit of concurrent messages, which is about 2 GB. It must allow a file of 10 TB in chunks of 1 MiB.
const MOST_MESSAGES: usize = 12_000_000;

/// State of a run.
pub(super) struct Engine<'a> {
    pub workload: &'a Workload,
    pub network: &'a Network,
    pub operations: &'a [Operation],
    pub merged_range: usize,
    pub seed: u64,
    pub clock: Clock,
    pub frame: u64,
    pub control: u64,
    pub merge: bool,
    /// True if an out-queue can start its next message when the last frame arrives at the receiver.
    pub same_latency: bool,
    pub latency: Ticks,
    pub heap: EventHeap,
    pub order: u64,
    pub messages: Vec<Message>,
    pub unused: Vec<u32>,
    pub spills: Vec<Vec<Leg>>,
    pub spills_unused: Vec<u32>,
    pub hosts: Vec<Host>,
    pub shared: Vec<Shared>,
    /// All links, if they are shared fairly.
    pub fair: Option<Box<Fair>>,
    pub core: Option<u32>,
    /// Number of the first rack's uplink. The downlink of each rack follows its uplink.
    pub racks: Option<u32>,
    pub managers: Vec<u32>,
    /// Number of tasks with a write in progress.
    pub writers: u32,
    pub files: Vec<File>,
    pub nodes: Nodes,
    pub hint_hosts: Vec<Option<u32>>,
    pub runs: Vec<Run>,
    pub scheduler: Scheduler,
    pub unfinished: usize,
    pub makespan: Ticks,
    pub last_task: u32,
    /// The task that has just ended, while the scheduler assigns its slot.
    pub freed: u32,
    pub events: u64,
    pub requests: u64,
    pub bytes: Bytes,
    pub latencies: [Latencies; 3],
    pub operation_ticks: [f64; 3],
    pub failure: Option<Failure>,
    pub detail: bool,
}

impl Engine<'_> {
    /// Run until every task is done or an error occurs.
    pub fn run(&mut self) {
        self.preload();
        if self.failure.is_none() {
            self.begin();
        }
        while self.failure.is_none() && self.unfinished > 0 {
            let Some((now, order, kind, index)) = self.heap.peek() else {
                self.stuck();
                return;
            };
            if kind == kind::ARRIVE {
                self.arrive(now, order, index);
                continue;
            }
            self.heap.pop();
            match kind {
                kind::DELIVER => self.received(now, index),
                kind::LOOPED => self.looped(now, index),
                kind::SERVED => self.served(now, index),
                kind::TASK => self.task_event(now, index),
                kind::HOP if self.fair.is_some() => self.fair_arrives(now, index),
                kind::HOP => self.hop(now, index),
                kind::PATIENCE => self.patience_over(now, index),
                _ if self.fair.is_some() => self.fair_served(now, index),
                _ => self.sent(now, index),
            }
            if self.order > MAX_ORDER / 2 {
                self.fail("horizon", "more than 8 thousand million events".into());
            }
        }
    }

    fn stuck(&mut self) {
        let waiting = self.runs.iter().position(|run| !run.is_done());
        let name = waiting.map_or("", |i| &self.workload.tasks[i].name);
        self.fail(
            "stuck",
            format!("task \"{name}\" never ends: nothing is left to happen"),
        );
    }

    /// End the run with an error; the first error stays.
    pub fn fail(&mut self, kind: &'static str, message: String) {
        if self.failure.is_none() {
            self.failure = Some(Failure { kind, message });
        }
    }

    /// The next creation number.
    #[inline]
    pub fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// Schedule an event for `index` at `time`.
    #[inline]
    pub fn at(&mut self, time: Ticks, kind: u8, index: u32) {
        let order = self.next_order();
        self.heap.push(time, order, kind, index);
    }

    /// Allocate a message.
    #[inline]
    pub fn message(&mut self, message: Message) -> u32 {
        if let Some(slot) = self.unused.pop() {
            self.messages[slot as usize] = message;
            return slot;
        }
        if self.messages.len() >= MOST_MESSAGES {
            self.fail(
                "memory",
                format!(
                    "more than {MOST_MESSAGES} messages are under way at once; a window, larger chunks or fewer of them are expected"
                ),
            );
        }
        self.messages.push(message);
        self.messages.len() as u32 - 1
    }

    /// Release a message.
    #[inline]
    pub fn release(&mut self, slot: u32) {
        let spill = self.messages[slot as usize].spill;
        if spill != NONE {
            self.spills[spill as usize].clear();
            self.spills_unused.push(spill);
        }
        self.unused.push(slot);
    }

    /// Add the time that a chain of events spent at a station to its path.
    #[inline]
    pub fn leg(&mut self, slot: u32, station: u32, ticks: Ticks) {
        if ticks == 0 {
            return;
        }
        let leg = Leg {
            station,
            ticks: ticks as f32,
        };
        let message = &mut self.messages[slot as usize];
        if (message.legs as usize) < LEGS {
            message.path[message.legs as usize] = leg;
            message.legs += 1;
        } else {
            self.spill(slot, leg);
        }
    }

    /// Move a long path to separate memory, and shorten it by adding up the legs at each station.
    pub fn spill(&mut self, slot: u32, leg: Leg) {
        let mut spill = self.messages[slot as usize].spill;
        if spill == NONE {
            spill = self.spills_unused.pop().unwrap_or_else(|| {
                self.spills.push(Vec::new());
                self.spills.len() as u32 - 1
            });
            self.messages[slot as usize].spill = spill;
        }
        let legs = &mut self.spills[spill as usize];
        legs.push(leg);
        if legs.len() >= 64 && legs.len().is_power_of_two() {
            add_up(legs);
        }
    }

    /// Append the path of `from` to the path of `to`.
    pub fn inherit(&mut self, to: u32, from: u32) {
        let source = self.messages[from as usize];
        if source.spill != NONE {
            if self.messages[to as usize].spill == NONE {
                self.messages[to as usize].spill = source.spill;
                self.messages[from as usize].spill = NONE;
            } else {
                let legs = std::mem::take(&mut self.spills[source.spill as usize]);
                legs.iter().for_each(|leg| self.spill(to, *leg));
            }
        }
        for leg in &source.path[..source.legs as usize] {
            self.spill(to, *leg);
        }
    }

    /// Random numbers of the `visit`-th request at a place.
    #[inline]
    pub fn draws(seed: u64, what: u64, place: u64, visit: u64) -> Draws {
        Draws::keyed(seed, what, place, visit)
    }
}

/// Add up the legs at each station.
pub(super) fn add_up(legs: &mut Vec<Leg>) {
    legs.sort_by_key(|leg| leg.station);
    legs.dedup_by(|next, previous| {
        let same = next.station == previous.station;
        if same {
            previous.ticks += next.ticks;
        }
        same
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message fits two cache lines: every step accesses it, and a thousand hosts have thousands in flight.
    #[test]
    fn message_size_is_two_cache_lines() {
        assert_eq!(std::mem::size_of::<Message>(), 128);
        assert!(
            std::mem::size_of::<Host>() <= 704,
            "{}",
            std::mem::size_of::<Host>()
        );
    }
}
