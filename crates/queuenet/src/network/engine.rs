//! The run itself: what exists, the loop over events, and what happens at each.

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
    /// A task's time is over: delay, launch or computation.
    pub const TASK: u8 = 4;
    /// A frame has passed a shared link; where links are shared fairly, it reaches the in-queue.
    pub const HOP: u8 = 5;
    /// A task no longer waits for its preferred machine.
    pub const PATIENCE: u8 = 6;
    /// An out-queue has sent a message (only where latencies differ); a fairly shared link has served a frame.
    pub const SENT: u8 = 7;
}

/// What a message is, and so what happens when it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Control message to the manager.
    ToManager,
    /// Its answer.
    FromManager,
    /// Control message that asks a node for a chunk.
    ReadRequest,
    /// The chunk on its way to the client.
    ReadData,
    /// A chunk on its way to a node.
    WriteData,
    /// The node's answer, to a client or to the node before it in the chain.
    Acknowledge,
    /// A frame of a chunk that is streamed through, received by the node that is to send it on.
    FrameIn,
    /// The same frame on its way to the next node; `parent` is the chunk's message there.
    FrameOn,
    /// No message: an operation in the client's own queue.
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
/// Station number of what lies between hosts.
pub(super) const FABRIC: u32 = NONE - 1;

/// Number of a link that several hosts share, as a station.
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

/// A message, or a request at a component: one at a time of the same activity.
///
/// Two cache lines, in this order: what each step reads, then what only some do.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Message {
    /// When it joined the queue that it is in now.
    pub joined: Ticks,
    /// When the queue that it is in now has served its last frame.
    pub due: Ticks,
    pub bytes: u64,
    /// Full frames still to come; of a frame by itself, shared links behind it; of a chunk that comes frame by frame
    /// from the node before, the bytes received.
    pub left: u64,
    /// The one behind it in its queue.
    pub next: u32,
    pub from: u32,
    pub to: u32,
    pub task: u32,
    pub parent: u32,
    pub pending: u16,
    pub replica: u16,
    pub legs: u8,
    /// Legs of the path when the copy for the next node was made.
    pub fork: u8,
    pub stage: Stage,
    pub write: bool,
    /// Each frame that arrives is sent on at once.
    pub stream: bool,
    /// Some frames were sent on.
    pub passing: bool,
    /// Its first frame had to wait for the out-queue, where links are shared fairly.
    pub waited: bool,
    /// Bytes of the chunk that it is about.
    pub data: u64,
    pub chunk: u64,
    pub path: [Leg; LEGS],
    pub spill: u32,
    /// The next node's message of a chunk that is streamed through.
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

/// Frames of a train that have not yet reached the in-queue, its last one left out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Train {
    pub next: Ticks,
    pub order: u64,
    pub period: Ticks,
    pub left: u64,
}

/// What stores chunks on a host.
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

/// A machine: its network queues and what else it has.
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
    /// Computing of all slots together.
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

/// What random numbers are for: the first part of their key.
pub(super) mod draw {
    pub const STORAGE: u64 = 0x7374_6f72;
    pub const MANAGER: u64 = 0x6d61_6e61;
    pub const CLIENT: u64 = 0x636c_6965;
    pub const LAUNCH: u64 = 0x6c61_756e;
    pub const STAGGER: u64 = 0x7374_6167;
    pub const COMPUTE: u64 = 0x636f_6d70;
    pub const REPLICA: u64 = 0x7265_706c;
}

/// More messages than this at once is an error, at some 2 GB: a file of 10 TB in chunks of 1 MiB must do.
const MOST_MESSAGES: usize = 12_000_000;

/// A run under way.
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
    /// Whether the next message of an out-queue may be taken up when the last one arrives.
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
    /// All links, where they are shared fairly.
    pub fair: Option<Box<Fair>>,
    pub core: Option<u32>,
    /// Number of the first rack's uplink; uplink and downlink follow each other.
    pub racks: Option<u32>,
    pub managers: Vec<u32>,
    /// Tasks whose write is under way.
    pub writers: u32,
    pub files: Vec<File>,
    pub nodes: Nodes,
    pub hint_hosts: Vec<Option<u32>>,
    pub runs: Vec<Run>,
    pub scheduler: Scheduler,
    pub unfinished: usize,
    pub makespan: Ticks,
    pub last_task: u32,
    /// The task that has just ended, while its slot is given away.
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
    /// Runs until every task is done or something failed.
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

    /// Ends the run; the first reason stays.
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

    /// Something happens to `index` at `time`.
    #[inline]
    pub fn at(&mut self, time: Ticks, kind: u8, index: u32) {
        let order = self.next_order();
        self.heap.push(time, order, kind, index);
    }

    /// Room for a message.
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

    /// A message is over.
    #[inline]
    pub fn release(&mut self, slot: u32) {
        let spill = self.messages[slot as usize].spill;
        if spill != NONE {
            self.spills[spill as usize].clear();
            self.spills_unused.push(spill);
        }
        self.unused.push(slot);
    }

    /// Notes that a chain of events spent time at a station.
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

    /// Longer paths are kept apart, and shortened by adding up what was spent at the same station.
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

    /// Puts the path of `from` behind the path of `to`.
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

    /// The numbers that belong to the `visit`-th request at a place.
    #[inline]
    pub fn draws(seed: u64, what: u64, place: u64, visit: u64) -> Draws {
        Draws::keyed(seed, what, place, visit)
    }
}

/// One leg by station.
pub(super) fn add_up(legs: &mut Vec<Leg>) {
    legs.sort_by_key(|leg| leg.station);
    legs.dedup_by(|next, kept| {
        let same = next.station == kept.station;
        if same {
            kept.ticks += next.ticks;
        }
        same
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message is two cache lines: it is touched at every step, and a thousand hosts have thousands under way.
    #[test]
    fn a_message_is_two_cache_lines() {
        assert_eq!(std::mem::size_of::<Message>(), 128);
        assert!(
            std::mem::size_of::<Host>() <= 704,
            "{}",
            std::mem::size_of::<Host>()
        );
    }
}
