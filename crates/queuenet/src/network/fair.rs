//! Fair sharing of links: frames of concurrent flows take turns, control messages have priority, and flow control
//! limits the lead of a flow over the next link.
//!
//! A *flow* is the data that one task moves from one host to another. Every link (out-queue, rack uplink, core, rack
//! downlink, in-queue) serves one frame at a time. The oldest control frame goes first. Without control frames the link
//! uses deficit round robin (Shreedhar and Varghese 1996) with a quantum of one frame, so that flows get equal shares
//! in bytes, independent of their chunk sizes. The messages of a flow stay in order. A link serves a data frame only if
//! fewer than three frames of its flow, plus the frames that the latency hides, are on the way to the next link or wait
//! there. This models the flow control of a transport protocol, without losses. A single flow is served exactly as
//! first come first served.
//!
//! ```text
//!   flow 1 ─▶ ▯▯▯ ─┐
//!   flow 2 ─▶ ▯▯▯ ─┼─▶ [link] ─▶ lane of the flow at the next link, at most 3 frames
//!   control ─▶ ▯ ──┘ first
//! ```

use std::collections::{HashMap, VecDeque};

use super::engine::{kind, shared_station, station, Engine, Stage, FABRIC, IN, OUT};
use super::server::NONE;
use super::time::Ticks;
use super::wire::ticks_of;

/// Links that a frame may pass: out-queue, uplink, core, downlink, in-queue.
const HOPS: usize = 5;
const LAST: usize = HOPS - 1;
/// Largest number of frames of a flow that are on the way to a link or wait there.
const AHEAD_FRAMES: u64 = 3;

/// Queue of one flow at one of its links.
#[derive(Debug, Default)]
struct Lane {
    /// Messages at the out-queue, frames at all other links.
    waiting: VecDeque<u32>,
    /// Bytes that it may send before the next flow's turn.
    deficit: u64,
    /// Bytes on the way to this link or waiting there.
    ahead: u64,
    /// True if it has a place in the link's round.
    listed: bool,
    /// True if it waits for the next link to serve a frame.
    held: bool,
}

#[derive(Debug)]
struct Flow {
    ends: (u32, u32, u32),
    messages: u32,
    path: [u32; HOPS],
    lanes: [Lane; HOPS],
    /// Limit of the bytes ahead at any link.
    most: u64,
}

impl Flow {
    fn next(&self, hop: usize) -> Option<usize> {
        following(&self.path, hop)
    }
}

fn following(path: &[u32; HOPS], hop: usize) -> Option<usize> {
    (hop + 1..HOPS).find(|next| path[*next] != NONE)
}

#[derive(Debug)]
struct Link {
    per_byte: f64,
    hop: usize,
    /// The frame in service.
    serving: u32,
    /// Control messages at the out-queue, control frames at all other links.
    control: VecDeque<u32>,
    /// Flows with frames to send, in the order of their turns.
    round: VecDeque<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    message: u32,
    /// Number of the flow; `NONE` for control messages.
    flow: u32,
    bytes: u64,
    arrived: Ticks,
    hop: u8,
    last: bool,
    waited: bool,
}

/// All links and their traffic. Links are numbered: out-queue and in-queue of each host, then the shared links.
#[derive(Debug)]
pub(super) struct Fair {
    links: Vec<Link>,
    flows: Vec<Flow>,
    flows_unused: Vec<u32>,
    by_ends: HashMap<(u32, u32, u32), u32>,
    frames: Vec<Frame>,
    frames_unused: Vec<u32>,
}

impl Fair {
    /// Create idle links: rates of the hosts' queues (out, in), then of the shared links with their position on the
    /// path.
    pub fn new(hosts: impl Iterator<Item = (f64, f64)>, shared: &[(f64, usize)]) -> Self {
        let link = |per_byte: f64, hop: usize| Link {
            per_byte,
            hop,
            serving: NONE,
            control: VecDeque::new(),
            round: VecDeque::new(),
        };
        let mut links: Vec<Link> = hosts
            .flat_map(|(out, inwards)| [link(out, 0), link(inwards, LAST)])
            .collect();
        links.extend(shared.iter().map(|(per_byte, hop)| link(*per_byte, *hop)));
        Fair {
            links,
            flows: Vec::new(),
            flows_unused: Vec::new(),
            by_ends: HashMap::new(),
            frames: Vec::new(),
            frames_unused: Vec::new(),
        }
    }

    /// Add a message to the flow between these ends. Creates the flow if necessary.
    fn join(&mut self, ends: (u32, u32, u32), path: [u32; HOPS], most: u64) -> u32 {
        let (flows, unused) = (&mut self.flows, &mut self.flows_unused);
        let flow = *self.by_ends.entry(ends).or_insert_with(|| {
            let slot = unused.pop().unwrap_or_else(|| {
                flows.push(Flow {
                    ends,
                    messages: 0,
                    path,
                    lanes: Default::default(),
                    most,
                });
                flows.len() as u32 - 1
            });
            let flow = &mut flows[slot as usize];
            (flow.ends, flow.path, flow.most) = (ends, path, most);
            slot
        });
        self.flows[flow as usize].messages += 1;
        flow
    }

    /// Remove a delivered message from its flow.
    fn leave(&mut self, flow: u32) {
        let at = &mut self.flows[flow as usize];
        at.messages -= 1;
        if at.messages == 0 {
            self.by_ends.remove(&at.ends);
            self.flows_unused.push(flow);
        }
    }

    /// Add a flow to the round of the link at `hop`, unless it is in it or waits for the next link.
    fn list(&mut self, flow: u32, hop: usize, quantum: u64) {
        let at = &mut self.flows[flow as usize];
        let lane = &mut at.lanes[hop];
        if lane.listed || lane.held || lane.waiting.is_empty() {
            return;
        }
        lane.listed = true;
        lane.deficit = quantum;
        self.links[at.path[hop] as usize].round.push_back(flow);
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        match self.frames_unused.pop() {
            Some(slot) => {
                self.frames[slot as usize] = frame;
                slot
            }
            None => {
                self.frames.push(frame);
                self.frames.len() as u32 - 1
            }
        }
    }
}

impl Engine<'_> {
    /// Links between two hosts, `NONE` for missing ones, and the latency before the last link.
    fn way(&self, from: u32, to: u32) -> ([u32; HOPS], Ticks) {
        let (a, b) = (&self.hosts[from as usize], &self.hosts[to as usize]);
        let shared = 2 * self.hosts.len() as u32;
        let mut path = [2 * from, NONE, NONE, NONE, 2 * to + 1];
        if let (Some(first), true) = (self.racks, a.rack != b.rack) {
            path[1] = shared + first + 2 * a.rack;
            path[3] = shared + first + 2 * b.rack + 1;
        }
        if let Some(core) = self.core {
            path[2] = shared + core;
        }
        (path, self.latency + a.latency + b.latency)
    }

    /// Send a message over its sender's fairly shared network.
    pub fn fair_send(&mut self, now: Ticks, slot: u32) {
        let message = &self.messages[slot as usize];
        let (from, to, bytes, stage) = (message.from, message.to, message.bytes, message.stage);
        let task = match stage {
            Stage::FrameOn => self.messages[message.parent as usize].task,
            _ => message.task,
        };
        let data = matches!(stage, Stage::ReadData | Stage::WriteData | Stage::FrameOn);
        self.hosts[from as usize].sent += bytes;
        self.bytes.network += bytes;
        if !data {
            self.bytes.control += bytes;
        }
        let (path, latency) = self.way(from, to);
        let frame_bytes = self.frame;
        let Some(fair) = self.fair.as_deref_mut() else {
            return;
        };
        let link = path[0];
        if data {
            let slower = |hop: usize| fair.links[path[hop] as usize].per_byte;
            let hidden = latency as f64 / slower(0).max(slower(LAST));
            let most = (AHEAD_FRAMES * frame_bytes).saturating_add(hidden as u64);
            let flow = fair.join((from, to, task), path, most);
            fair.flows[flow as usize].lanes[0].waiting.push_back(slot);
            fair.list(flow, 0, frame_bytes);
        } else {
            fair.links[link as usize].control.push_back(slot);
        }
        let idle = fair.links[link as usize].serving == NONE;
        let message = &mut self.messages[slot as usize];
        (message.left, message.waited) = (bytes, !idle);
        if idle {
            self.fair_next(now, link);
        } else {
            self.hosts[from as usize].out.join();
        }
    }

    /// Start service of the next frame on an idle link, if one may go.
    fn fair_next(&mut self, now: Ticks, link: u32) {
        let quantum = self.frame;
        let Some(fair) = self.fair.as_deref_mut() else {
            return;
        };
        let hop = fair.links[link as usize].hop;
        let mut woken = NONE;
        let (slot, first) = if let Some(head) = fair.links[link as usize].control.pop_front() {
            if hop > 0 {
                (head, false)
            } else {
                let message = &mut self.messages[head as usize];
                let first = message.left == message.bytes;
                let bytes = message.left.min(quantum);
                message.left -= bytes;
                if message.left > 0 {
                    fair.links[link as usize].control.push_front(head);
                }
                let frame = Frame {
                    message: head,
                    flow: NONE,
                    bytes,
                    arrived: now,
                    hop: 0,
                    last: message.left == 0,
                    waited: false,
                };
                (fair.frame(frame), first)
            }
        } else {
            let (flow, bytes) = loop {
                let Some(flow) = fair.links[link as usize].round.front().copied() else {
                    return;
                };
                let at = &mut fair.flows[flow as usize];
                let (next, most) = (at.next(hop), at.most);
                let full = next.is_some_and(|next| at.lanes[next].ahead >= most);
                let lane = &mut at.lanes[hop];
                if full {
                    (lane.listed, lane.held) = (false, true);
                    fair.links[link as usize].round.pop_front();
                    continue;
                }
                let head = lane.waiting[0] as usize;
                let bytes = match hop {
                    0 => self.messages[head].left.min(quantum),
                    _ => fair.frames[head].bytes,
                };
                if lane.deficit >= bytes {
                    break (flow, bytes);
                }
                lane.deficit += quantum;
                fair.links[link as usize].round.rotate_left(1);
            };
            let at = &mut fair.flows[flow as usize];
            if let Some(next) = at.next(hop) {
                at.lanes[next].ahead += bytes;
            }
            let lane = &mut at.lanes[hop];
            lane.deficit -= bytes;
            let head = lane.waiting[0];
            let mut taken = (head, false);
            let mut frame = None;
            if hop == 0 {
                let message = &mut self.messages[head as usize];
                taken.1 = message.left == message.bytes;
                message.left -= bytes;
                let last = message.left == 0;
                if last {
                    lane.waiting.pop_front();
                }
                frame = Some(Frame {
                    message: head,
                    flow,
                    bytes,
                    arrived: now,
                    hop: 0,
                    last,
                    waited: false,
                });
            } else {
                lane.waiting.pop_front();
                lane.ahead -= bytes;
            }
            if lane.waiting.is_empty() {
                lane.listed = false;
                fair.links[link as usize].round.pop_front();
            }
            if hop > 0 {
                // the previous link may send more frames of the flow
                let at = &mut fair.flows[flow as usize];
                let before = (0..hop)
                    .rev()
                    .find(|hop| at.path[*hop] != NONE)
                    .unwrap_or(0);
                if at.lanes[before].held {
                    at.lanes[before].held = false;
                    woken = at.path[before];
                    fair.list(flow, before, quantum);
                }
            }
            if let Some(frame) = frame {
                taken.0 = fair.frame(frame);
            }
            taken
        };
        self.fair_serve(now, link, slot, first);
        let idle = |fair: &Fair| woken != NONE && fair.links[woken as usize].serving == NONE;
        if self.fair.as_deref().is_some_and(idle) {
            self.fair_next(now, woken);
        }
    }

    /// Serve a frame on a link. `first`: it is the first frame of its message, at the out-queue.
    fn fair_serve(&mut self, now: Ticks, link: u32, slot: u32, first: bool) {
        let Some(fair) = self.fair.as_deref_mut() else {
            return;
        };
        let frame = fair.frames[slot as usize];
        let at = &mut fair.links[link as usize];
        at.serving = slot;
        let service = ticks_of(frame.bytes, at.per_byte);
        let end = now + service;
        let message = &self.messages[frame.message as usize];
        match at.hop {
            0 => {
                let host = &mut self.hosts[message.from as usize];
                if first {
                    if message.waited {
                        host.out.leave();
                    }
                    host.out.serve(now - message.joined, service);
                } else {
                    host.out.busy += service;
                }
                host.busy.add(now, end);
            }
            LAST => {
                let host = &mut self.hosts[message.to as usize];
                if frame.last {
                    if frame.waited {
                        host.inn.leave();
                    }
                    host.inn.serve(now - frame.arrived, service);
                } else {
                    host.inn.busy += service;
                }
                host.busy.add(now, end);
            }
            _ => {
                let number = link as usize - 2 * self.hosts.len();
                self.shared[number]
                    .tally
                    .serve(now - frame.arrived, service);
            }
        }
        self.events += 1;
        self.at(end, kind::SENT, link);
    }

    /// Handle the end of a frame's service: pass the frame on and start the next one.
    pub fn fair_served(&mut self, now: Ticks, link: u32) {
        let Some(fair) = self.fair.as_deref_mut() else {
            return;
        };
        let at = &mut fair.links[link as usize];
        let hop = at.hop;
        let slot = std::mem::replace(&mut at.serving, NONE);
        let frame = fair.frames[slot as usize];
        self.fair_next(now, link);
        let message = &self.messages[frame.message as usize];
        let (from, to, joined, stage) = (message.from, message.to, message.joined, message.stage);
        let notifies = frame.last && stage != Stage::FrameOn;
        if notifies {
            let (station, since) = match hop {
                0 => (station(from, OUT), joined),
                LAST => (station(to, IN), frame.arrived),
                _ => (
                    shared_station(link - 2 * self.hosts.len() as u32),
                    frame.arrived,
                ),
            };
            self.leg(frame.message, station, now - since);
        }
        let (path, latency) = self.way(from, to);
        match following(&path, hop) {
            Some(next) => {
                if let Some(fair) = self.fair.as_deref_mut() {
                    fair.frames[slot as usize].hop = next as u8;
                }
                if next == LAST && latency > 0 {
                    if notifies {
                        self.leg(frame.message, FABRIC, latency);
                    }
                    self.at(now + latency, kind::HOP, slot);
                } else {
                    self.fair_arrives(now, slot);
                }
            }
            None => self.fair_received(now, slot, frame),
        }
    }

    /// Handle the arrival of a frame at a link.
    pub fn fair_arrives(&mut self, now: Ticks, slot: u32) {
        let Some(fair) = self.fair.as_deref() else {
            return;
        };
        let frame = fair.frames[slot as usize];
        let message = &self.messages[frame.message as usize];
        let to = message.to;
        let (path, _) = self.way(message.from, to);
        let hop = frame.hop as usize;
        let (link, quantum) = (path[hop], self.frame);
        let Some(fair) = self.fair.as_deref_mut() else {
            return;
        };
        let idle = fair.links[link as usize].serving == NONE;
        let waits = !idle && frame.last && hop == LAST;
        let at = &mut fair.frames[slot as usize];
        (at.arrived, at.waited) = (now, waits);
        if frame.flow == NONE {
            fair.links[link as usize].control.push_back(slot);
        } else {
            fair.flows[frame.flow as usize].lanes[hop]
                .waiting
                .push_back(slot);
            fair.list(frame.flow, hop, quantum);
        }
        if waits {
            self.hosts[to as usize].inn.join();
        }
        if idle {
            self.fair_next(now, link);
        }
    }

    /// Handle the end of a frame's service in the in-queue.
    fn fair_received(&mut self, now: Ticks, slot: u32, frame: Frame) {
        if let Some(fair) = self.fair.as_deref_mut() {
            fair.frames_unused.push(slot);
            if frame.last && frame.flow != NONE {
                fair.leave(frame.flow);
            }
        }
        let message = &self.messages[frame.message as usize];
        let (to, bytes) = (message.to, message.bytes);
        if frame.last {
            self.hosts[to as usize].received += bytes;
            self.delivered(now, frame.message);
        } else if message.stream {
            let since = message.joined;
            self.forward(now, frame.message, frame.bytes, since);
        }
    }
}
