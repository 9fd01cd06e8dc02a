//! Messages between components: out-queue, in-queue, loopback, shared links (Costa 2014).
//!
//! The out-queue is first come first served at a fixed rate, so the departures of all frames of a message are known
//! when its service begins. Only the message in service has an entry in the heap. With merging, this entry represents
//! its last frame; the earlier frames wait in the receiver's list of trains. At each event of the receiver its in-queue
//! first serves the frames that arrived earlier, in order of arrival. Merging changes only the number of heap
//! operations: the times are identical to the last bit.

use super::engine::{
    kind, station, Engine, Host, Message, Stage, Train, FABRIC, IN, LOOPBACK, OUT,
};
use super::server::NONE;
use super::time::Ticks;

/// Flag of a task in a queue of messages: its chunks become messages one by one.
const BATCH: u32 = 1 << 31;

#[inline]
pub(super) fn ticks_of(bytes: u64, per_byte: f64) -> Ticks {
    (bytes as f64 * per_byte + 0.5) as Ticks
}

/// Up to this many trains are counted separately.
const FEW: usize = 6;

impl Train {
    /// Number of its frames that come before (`time`, `order`).
    #[inline]
    fn before(&self, time: Ticks, order: u64) -> u64 {
        if (self.next, self.order) >= (time, order) || self.period == 0 {
            return 0;
        }
        let span = time - self.next;
        let periods = span / self.period;
        let at_last = periods * self.period == span && self.order >= order;
        (periods + u64::from(!at_last)).min(self.left)
    }
}

impl Host {
    /// True if the in-queue is busy when the next frame of a train arrives and stays busy as long as the train lasts.
    /// The frames of the train arrive at least as fast as it serves them.
    #[inline]
    fn keeps_busy(&self) -> bool {
        let (free, frame) = (self.in_free, self.in_frame);
        self.trains.iter().all(|train| train.period > 0)
            && self
                .trains
                .front()
                .is_some_and(|train| train.next <= free && train.period <= frame)
    }

    /// Serve the frames in the in-queue that arrived before (`time`, `order`).
    #[inline]
    fn catch_up(&mut self, time: Ticks, order: u64) {
        let (mut free, frame) = (self.in_free, self.in_frame);
        if self.trains.len() == 1 && frame >= self.trains[0].period && self.trains[0].period > 0 {
            // one train, and the in-queue is not faster: once it has started it is busy until the last frame
            let train = &mut self.trains[0];
            if (train.next, train.order) >= (time, order) {
                return;
            }
            let frames = train.before(time, order);
            let start = free.max(train.next);
            self.in_free = start + frames * frame;
            self.inn.busy += frames * frame;
            self.busy.add(start, self.in_free);
            train.left -= frames;
            train.next += frames * train.period;
            if train.left == 0 {
                self.trains.pop_front();
            }
            return;
        }
        let mut served = 0;
        if self.trains.len() <= FEW && self.keeps_busy() {
            // busy until all earlier frames are served, so their number does not depend on their order
            for train in &mut self.trains {
                let frames = train.before(time, order);
                train.next += frames * train.period;
                train.left -= frames;
                served += frames;
            }
            if served > 0 {
                self.in_free = free + served * frame;
                self.inn.busy += served * frame;
                self.busy.add(free, self.in_free);
                self.trains.retain(|train| train.left > 0);
                let trains = self.trains.make_contiguous();
                trains.sort_unstable_by_key(|train| (train.next, train.order));
            }
            return;
        }
        while let Some(first) = self.trains.front_mut() {
            if (first.next, first.order) >= (time, order) {
                break;
            }
            let start = free.max(first.next);
            free = start + frame;
            served += 1;
            self.busy.add(start, free);
            first.left -= 1;
            if first.left == 0 {
                self.trains.pop_front();
                continue;
            }
            first.next += first.period;
            // keep them sorted: the train goes behind those whose next frame arrives before its own
            let key = (first.next, first.order);
            let moved = *first;
            let n = self.trains.len();
            if n > 1 && (self.trains[1].next, self.trains[1].order) < key {
                self.trains.pop_front();
                self.insert_train(moved);
            }
        }
        self.in_free = free;
        self.inn.busy += served * frame;
    }

    #[inline]
    fn insert_train(&mut self, train: Train) {
        let key = (train.next, train.order);
        let mut at = self.trains.len();
        while at > 0 && (self.trains[at - 1].next, self.trains[at - 1].order) > key {
            at -= 1;
        }
        if at == self.trains.len() {
            self.trains.push_back(train);
        } else {
            self.trains.insert(at, train);
        }
    }
}

impl Engine<'_> {
    /// Send a message over its sender's network.
    pub fn send(&mut self, now: Ticks, slot: u32) {
        let message = &mut self.messages[slot as usize];
        message.joined = now;
        let (from, to) = (message.from, message.to);
        if from == to {
            if self.hosts[from as usize].loop_active == NONE {
                self.take_up_loopback(now, slot);
            } else {
                self.append_loopback(from, slot);
            }
            return;
        }
        if self.fair.is_some() {
            self.fair_send(now, slot);
            return;
        }
        let host = &self.hosts[from as usize];
        if host.out_active == NONE && host.out_head == NONE {
            self.take_up(now, slot);
        } else {
            self.hosts[from as usize].out.join();
            self.append_out(from, slot);
        }
    }

    /// Send the chunks of a task's operation over its host's network: `remote` and `local` chunks.
    pub fn send_batch(&mut self, now: Ticks, task: u32, remote: u64, local: u64) {
        let from = self.runs[task as usize].host;
        if remote > 0 && self.fair.is_some() {
            while let Some(slot) = self.next_chunk(task, false) {
                self.fair_send(now, slot);
            }
        } else if remote > 0 {
            self.append_out(from, BATCH | task);
            let host = &mut self.hosts[from as usize];
            host.out.waiting += remote;
            host.out.waiting_max = host.out.waiting_max.max(host.out.waiting);
            if host.out_active == NONE {
                self.next_out(now, from);
            }
        }
        if local > 0 {
            self.append_loopback(from, BATCH | task);
            let host = &mut self.hosts[from as usize];
            host.looped.waiting += local - 1;
            host.looped.waiting_max = host.looped.waiting_max.max(host.looped.waiting);
            if host.loop_active == NONE {
                self.next_loopback(now, from);
            }
        }
    }

    fn set_link(&mut self, entry: u32, next: u32, batch: usize) {
        if entry & BATCH == 0 {
            self.messages[entry as usize].next = next;
        } else {
            self.runs[(entry & !BATCH) as usize].links[batch] = next;
        }
    }

    fn link(&self, entry: u32, batch: usize) -> u32 {
        if entry & BATCH == 0 {
            self.messages[entry as usize].next
        } else {
            self.runs[(entry & !BATCH) as usize].links[batch]
        }
    }

    fn append_out(&mut self, from: u32, entry: u32) {
        self.set_link(entry, NONE, 0);
        let host = &mut self.hosts[from as usize];
        let tail = std::mem::replace(&mut host.out_tail, entry);
        if host.out_head == NONE {
            host.out_head = entry;
        } else {
            self.set_link(tail, entry, 0);
        }
    }

    fn append_loopback(&mut self, from: u32, entry: u32) {
        self.set_link(entry, NONE, 1);
        let host = &mut self.hosts[from as usize];
        host.looped.join();
        let tail = std::mem::replace(&mut host.loop_tail, entry);
        if host.loop_head == NONE {
            host.loop_head = entry;
        } else {
            self.set_link(tail, entry, 1);
        }
    }

    /// Start the next message of the out-queue of `from`, if there is one.
    pub fn next_out(&mut self, now: Ticks, from: u32) {
        self.hosts[from as usize].out_active = NONE;
        loop {
            let head = self.hosts[from as usize].out_head;
            if head == NONE {
                return;
            }
            let slot = if head & BATCH == 0 {
                self.hosts[from as usize].out_head = self.link(head, 0);
                head
            } else {
                match self.next_chunk(head & !BATCH, false) {
                    Some(slot) => slot,
                    None => {
                        self.hosts[from as usize].out_head = self.link(head, 0);
                        continue;
                    }
                }
            };
            self.hosts[from as usize].out.leave();
            self.take_up(now, slot);
            return;
        }
    }

    fn next_loopback(&mut self, now: Ticks, from: u32) {
        self.hosts[from as usize].loop_active = NONE;
        loop {
            let head = self.hosts[from as usize].loop_head;
            if head == NONE {
                return;
            }
            let slot = if head & BATCH == 0 {
                self.hosts[from as usize].loop_head = self.link(head, 1);
                head
            } else {
                match self.next_chunk(head & !BATCH, true) {
                    Some(slot) => slot,
                    None => {
                        self.hosts[from as usize].loop_head = self.link(head, 1);
                        continue;
                    }
                }
            };
            self.hosts[from as usize].looped.leave();
            self.take_up_loopback(now, slot);
            return;
        }
    }

    /// Start service of a message at the loopback: bytes divided by its rate, no frames, no latency.
    fn take_up_loopback(&mut self, now: Ticks, slot: u32) {
        let message = &self.messages[slot as usize];
        let (from, bytes, joined) = (message.from, message.bytes, message.joined);
        let host = &mut self.hosts[from as usize];
        let start = now.max(host.loop_free);
        let service = ticks_of(bytes, host.loop_per_byte);
        host.loop_free = start + service;
        host.loop_active = slot;
        host.looped.serve(start - joined, service);
        self.bytes.loopback += bytes;
        self.events += 1;
        self.at(start + service, kind::LOOPED, slot);
    }

    /// Handle the end of a message's service at the loopback.
    pub fn looped(&mut self, now: Ticks, slot: u32) {
        let message = &self.messages[slot as usize];
        let (from, joined) = (message.from, message.joined);
        self.leg(slot, station(from, LOOPBACK), now - joined);
        self.next_loopback(now, from);
        self.delivered(now, slot);
    }

    /// Start service of a message in the out-queue: its frames leave one after the other.
    fn take_up(&mut self, now: Ticks, slot: u32) {
        let order = self.next_order();
        let frame = self.frame;
        let message = &mut self.messages[slot as usize];
        let (from, to, bytes) = (message.from, message.to, message.bytes);
        let merged = self.merge && !message.stream && self.shared.is_empty();
        let full = bytes.saturating_sub(1) / frame;
        let host = &mut self.hosts[from as usize];
        let start = message.joined.max(host.out_free);
        if !host.trains.is_empty() {
            // keeps the union of the busy times of in-queue and out-queue in order
            host.catch_up(now, order);
        }
        let service = full * host.out_frame + ticks_of(bytes - full * frame, host.out_per_byte);
        let first = start + if full > 0 { host.out_frame } else { service };
        let period = host.out_frame;
        let end = start + service;
        host.out_free = end;
        host.out_active = slot;
        host.out.serve(start - message.joined, service);
        host.busy.add(start, end);
        host.sent += bytes;
        let latency = if self.shared.is_empty() {
            self.latency + host.latency + self.hosts[to as usize].latency
        } else {
            0
        };
        let message = &mut self.messages[slot as usize];
        message.due = end;
        message.left = full;
        self.bytes.network += bytes;
        if !matches!(
            message.stage,
            Stage::ReadData | Stage::WriteData | Stage::FrameOn
        ) {
            self.bytes.control += bytes;
        }
        if merged {
            if full > 0 {
                message.left = 0;
                self.hosts[to as usize].insert_train(Train {
                    next: first + latency,
                    order,
                    period,
                    left: full,
                });
            }
            self.events += 2;
            self.heap.push(end + latency, order, kind::ARRIVE, slot);
        } else {
            self.events += 2 * (full + 1);
            self.heap.push(first + latency, order, kind::ARRIVE, slot);
        }
        if !self.same_latency {
            self.at(end, kind::SENT, from);
        }
    }

    /// Handle the release of an out-queue, if that is a separate event.
    pub fn sent(&mut self, now: Ticks, from: u32) {
        self.next_out(now, from);
    }

    /// Handle the arrival of a frame, or of the last one of a train, at the in-queue or the first shared link.
    #[inline]
    pub fn arrive(&mut self, now: Ticks, order: u64, slot: u32) {
        let message = &mut self.messages[slot as usize];
        if !self.shared.is_empty() {
            self.arrive_at_shared(now, order, slot);
            return;
        }
        let to = message.to;
        if message.left > 0 {
            message.left -= 1;
            let from = &self.hosts[message.from as usize];
            let next = if message.left == 0 {
                message.due + self.latency + from.latency + self.hosts[to as usize].latency
            } else {
                now + from.out_frame
            };
            self.heap.replace_top(next, order, kind::ARRIVE, slot);
            let bytes = self.frame;
            self.frame_in(now, order, slot, bytes);
            return;
        }
        self.heap.pop();
        let from = message.from;
        let last = last_frame(message.bytes, self.frame);
        self.last_frame_in(now, order, slot, last, to, FABRIC);
        if self.same_latency {
            self.next_out(now, from);
        }
    }

    /// Pass a frame that is not the last one through the in-queue.
    #[inline]
    pub fn frame_in(&mut self, now: Ticks, order: u64, slot: u32, bytes: u64) {
        let message = &self.messages[slot as usize];
        let host = &mut self.hosts[message.to as usize];
        if !host.trains.is_empty() {
            host.catch_up(now, order);
        }
        let start = host.in_free.max(now);
        host.in_free = start + host.in_frame;
        host.inn.busy += host.in_frame;
        host.busy.add(start, host.in_free);
        if message.stream {
            let due = host.in_free;
            let piece = Message {
                bytes,
                from: message.from,
                to: message.to,
                parent: slot,
                stage: Stage::FrameIn,
                joined: message.joined,
                due,
                ..Message::EMPTY
            };
            let piece = self.message(piece);
            self.await_in(piece);
        }
    }

    /// Pass a message's last frame through the in-queue. `crossing`: station that its transit time counts for.
    pub fn last_frame_in(
        &mut self,
        now: Ticks,
        order: u64,
        slot: u32,
        bytes: u64,
        to: u32,
        crossing: u32,
    ) {
        let host = &mut self.hosts[to as usize];
        if !host.trains.is_empty() {
            host.catch_up(now, order);
        }
        let service = ticks_of(bytes, host.in_per_byte);
        let start = host.in_free.max(now);
        host.in_free = start + service;
        host.inn.serve(start - now, service);
        host.busy.add(start, host.in_free);
        let message = &mut self.messages[slot as usize];
        host.received += message.bytes;
        let (from, joined, departed) = (message.from, message.joined, message.due);
        message.joined = now;
        message.due = start + service;
        if message.stage != Stage::FrameOn {
            self.leg(slot, station(from, OUT), departed - joined);
            self.leg(slot, crossing, now - departed);
        }
        self.await_in(slot);
    }

    /// Schedule the end of a message's last frame in the in-queue. Only the oldest message has an entry in the heap.
    fn await_in(&mut self, slot: u32) {
        let message = &self.messages[slot as usize];
        let (to, due) = (message.to as usize, message.due);
        self.messages[slot as usize].next = NONE;
        let host = &mut self.hosts[to];
        let tail = std::mem::replace(&mut host.due_tail, slot);
        if host.due_head == NONE {
            host.due_head = slot;
            self.at(due, kind::DELIVER, slot);
        } else {
            host.inn.join();
            self.messages[tail as usize].next = slot;
        }
    }

    /// Handle the end of service of the last frame of the in-queue's oldest message.
    pub fn received(&mut self, now: Ticks, slot: u32) {
        let next = self.messages[slot as usize].next;
        let message = &self.messages[slot as usize];
        let (to, arrived, stage) = (message.to, message.joined, message.stage);
        let host = &mut self.hosts[to as usize];
        host.due_head = next;
        if next != NONE {
            host.inn.leave();
            let due = self.messages[next as usize].due;
            self.at(due, kind::DELIVER, next);
        }
        if !matches!(stage, Stage::FrameIn | Stage::FrameOn) {
            self.leg(slot, station(to, IN), now - arrived);
        }
        self.delivered(now, slot);
    }
}

/// Size of a message's last frame in bytes.
pub(super) fn last_frame(bytes: u64, frame: u64) -> u64 {
    bytes - bytes.saturating_sub(1) / frame * frame
}
