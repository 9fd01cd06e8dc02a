//! Components: manager, storage nodes with their replicas, and the effects of delivered messages
//! (Costa 2014, table 3.3).

use penstock_station::{Op, Request};

use super::choices::{Forward, Replication};
use super::engine::{
    draw, kind, station, Engine, Message, Stage, Store, CLIENT, IN, MANAGER, STORAGE,
};
use super::server::NONE;
use super::time::Ticks;

impl Engine<'_> {
    /// Handle the complete arrival of a message.
    pub fn delivered(&mut self, now: Ticks, slot: u32) {
        let message = &self.messages[slot as usize];
        let (to, task, parent) = (message.to, message.task, message.parent);
        match message.stage {
            Stage::ToManager => self.join_manager(now, slot, to),
            Stage::ReadRequest => self.join_storage(now, slot, to),
            Stage::WriteData => {
                if message.stream {
                    let rest = if message.passing {
                        super::wire::last_frame(message.bytes, self.frame)
                    } else {
                        message.bytes
                    };
                    self.forward(now, slot, rest, now);
                }
                self.join_storage(now, slot, to);
            }
            Stage::FrameIn => {
                let (bytes, since) = (message.bytes, message.joined);
                self.release(slot);
                self.forward(now, parent, bytes, since);
            }
            Stage::FrameOn => {
                let bytes = message.bytes;
                self.release(slot);
                self.frame_of_chunk(now, parent, bytes);
            }
            Stage::Acknowledge if parent != NONE => {
                let waiting = &mut self.messages[parent as usize];
                if waiting.pending == 1 {
                    // the last answer is critical; the parallel work of the own node is not
                    waiting.legs = waiting.fork;
                    self.inherit(parent, slot);
                }
                self.release(slot);
                self.one_less(now, parent);
            }
            Stage::FromManager => self.manager_answered(now, slot, task),
            Stage::Acknowledge | Stage::ReadData => self.chunk_done(now, slot, task),
            Stage::ClientWork => {}
        }
    }

    fn join_manager(&mut self, now: Ticks, slot: u32, host: u32) {
        self.messages[slot as usize].joined = now;
        let Some(manager) = &mut self.hosts[host as usize].manager else {
            return;
        };
        let queue = &mut manager.1;
        if queue.arrive(slot, &mut self.messages[..]) {
            self.start_manager(now, slot, host);
        }
    }

    fn start_manager(&mut self, now: Ticks, slot: u32, host: u32) {
        let (seed, clock, control) = (self.seed, self.clock, self.control);
        let Some(manager) = &mut self.hosts[host as usize].manager else {
            return;
        };
        let (service, queue, _) = &mut **manager;
        let visit = queue.tally.requests;
        let ticks = service.ticks(control, clock, || {
            Engine::draws(seed, draw::MANAGER, u64::from(host), visit)
        });
        queue
            .tally
            .serve(now - self.messages[slot as usize].joined, ticks);
        self.events += 1;
        self.at(now + ticks, kind::SERVED, slot);
    }

    /// Add an operation to the client's own queue.
    pub fn join_client(&mut self, now: Ticks, task: u32, bytes: u64) -> bool {
        let host = self.runs[task as usize].host;
        match &self.hosts[host as usize].client {
            Some(client) if !client.0.is_nothing() => {}
            _ => return false,
        }
        let slot = self.message(Message {
            joined: now,
            from: host,
            to: host,
            task,
            bytes,
            stage: Stage::ClientWork,
            ..Message::EMPTY
        });
        if let Some(client) = &mut self.hosts[host as usize].client {
            let queue = &mut client.1;
            if queue.arrive(slot, &mut self.messages[..]) {
                self.start_client(now, slot, host);
            }
        }
        true
    }

    fn start_client(&mut self, now: Ticks, slot: u32, host: u32) {
        let (seed, clock) = (self.seed, self.clock);
        let (bytes, joined) = {
            let message = &self.messages[slot as usize];
            (message.bytes, message.joined)
        };
        let Some(client) = &mut self.hosts[host as usize].client else {
            return;
        };
        let (service, queue) = &mut **client;
        let visit = queue.tally.requests;
        let ticks = service.ticks(bytes, clock, || {
            Engine::draws(seed, draw::CLIENT, u64::from(host), visit)
        });
        queue.tally.serve(now - joined, ticks);
        self.events += 1;
        self.at(now + ticks, kind::SERVED, slot);
    }

    fn join_storage(&mut self, now: Ticks, slot: u32, host: u32) {
        let message = &mut self.messages[slot as usize];
        message.joined = now;
        self.requests += 1;
        match &mut self.hosts[host as usize].store {
            Store::Servers { queue, .. } => {
                if queue.arrive(slot, &mut self.messages[..]) {
                    self.start_storage(now, slot, host);
                }
            }
            Store::Profile { station, tally, .. } => {
                let (chunk, replica) = (message.chunk, message.replica);
                let file = self.runs[message.task as usize].file;
                let offset = self.files[file as usize].place(chunk, u64::from(replica));
                let t_ns = self.clock.to_ns(now);
                let served = station.arrive(
                    t_ns,
                    Request {
                        op: if message.write { Op::Write } else { Op::Read },
                        offset,
                        size: message.data,
                    },
                );
                let due = self.clock.from_ns(served.due_ns as f64).max(now);
                let start = self.clock.from_ns(served.start_ns as f64).max(now);
                tally.join();
                tally.serve(
                    self.clock.from_ns(served.wait_ns as f64),
                    self.clock.from_ns(served.service_ns as f64),
                );
                self.hosts[host as usize].store_busy.add(start, due);
                self.events += 1;
                self.at(due, kind::SERVED, slot);
            }
            Store::Absent => {}
        }
    }

    fn start_storage(&mut self, now: Ticks, slot: u32, host: u32) {
        let (seed, clock) = (self.seed, self.clock);
        let message = &self.messages[slot as usize];
        let at = &mut self.hosts[host as usize];
        let Store::Servers {
            read, write, queue, ..
        } = &mut at.store
        else {
            return;
        };
        let service = if message.write { write } else { read };
        let visit = queue.tally.requests;
        let ticks = service.ticks(message.data, clock, || {
            Engine::draws(seed, draw::STORAGE, u64::from(host), visit)
        });
        queue.tally.serve(now - message.joined, ticks);
        at.store_busy.add(now, now + ticks);
        self.events += 1;
        self.at(now + ticks, kind::SERVED, slot);
    }

    /// Handle the completion of a request at a component.
    pub fn served(&mut self, now: Ticks, slot: u32) {
        let message = &self.messages[slot as usize];
        let (host, joined, stage, task) = (message.to, message.joined, message.stage, message.task);
        match stage {
            Stage::ToManager => {
                self.leg(slot, station(host, MANAGER), now - joined);
                if let Some(manager) = &mut self.hosts[host as usize].manager {
                    let queue = &mut manager.1;
                    if let Some(next) = queue.depart(&self.messages[..]) {
                        self.start_manager(now, next, host);
                    }
                }
                self.manager_serves(task);
                self.answer(now, slot, Stage::FromManager, self.control);
            }
            Stage::ClientWork => {
                self.leg(slot, station(host, CLIENT), now - joined);
                if let Some(client) = &mut self.hosts[host as usize].client {
                    let queue = &mut client.1;
                    if let Some(next) = queue.depart(&self.messages[..]) {
                        self.start_client(now, next, host);
                    }
                }
                self.blame(task, slot);
                self.release(slot);
                self.operate(now, task);
            }
            _ => {
                self.leg(slot, station(host, STORAGE), now - joined);
                match &mut self.hosts[host as usize].store {
                    Store::Servers { queue, .. } => {
                        if let Some(next) = queue.depart(&self.messages[..]) {
                            self.start_storage(now, next, host);
                        }
                    }
                    Store::Profile { tally, .. } => tally.leave(),
                    Store::Absent => {}
                }
                if stage == Stage::ReadRequest {
                    let data = self.messages[slot as usize].data;
                    self.answer(now, slot, Stage::ReadData, data);
                } else {
                    self.stored(now, slot);
                }
            }
        }
    }

    /// Send an answer to the sender of a message.
    fn answer(&mut self, now: Ticks, slot: u32, stage: Stage, bytes: u64) {
        let message = &mut self.messages[slot as usize];
        std::mem::swap(&mut message.from, &mut message.to);
        message.stage = stage;
        message.bytes = bytes;
        self.send(now, slot);
    }

    /// Replicas that the node of this message has to create.
    fn copies_from(&self, slot: u32) -> std::ops::Range<u16> {
        let message = &self.messages[slot as usize];
        let replicas = self.files[self.runs[message.task as usize].file as usize]
            .replicas(message.chunk) as u16;
        match self.network.store.replication {
            Replication::Client => 0..0,
            Replication::Chain => {
                let next = message.replica + 1;
                next..(next + 1).min(replicas.max(next))
            }
            Replication::Parallel if message.replica == 0 => 1..replicas.max(1),
            Replication::Parallel => 0..0,
        }
    }

    /// True if a chunk sent to its `replica`-th node is forwarded frame by frame.
    pub fn streams(&self, file: u32, chunk: u64, replica: u16) -> bool {
        self.network.store.replication == Replication::Chain
            && self.network.store.forward == Forward::Frame
            && u64::from(replica) + 1 < self.files[file as usize].replicas(chunk)
    }

    /// Create the message that copies a chunk from its node to the node of another replica.
    fn copy(&mut self, slot: u32, replica: u16) -> u32 {
        let message = self.messages[slot as usize];
        let to = self.files[self.runs[message.task as usize].file as usize]
            .host(message.chunk, u64::from(replica));
        let stream = self.streams(
            self.runs[message.task as usize].file,
            message.chunk,
            replica,
        );
        self.messages[slot as usize].pending += 1;
        self.messages[slot as usize].fork = message.legs;
        self.message(Message {
            bytes: message.data,
            data: message.data,
            chunk: message.chunk,
            from: message.to,
            to,
            task: message.task,
            parent: slot,
            pending: 1,
            replica,
            stage: Stage::WriteData,
            write: true,
            stream,
            ..Message::EMPTY
        })
    }

    /// Forward `bytes` more of a chunk, sent at `since`, to the next node of the chain.
    pub fn forward(&mut self, now: Ticks, slot: u32, bytes: u64, since: Ticks) {
        let message = &self.messages[slot as usize];
        if bytes == 0 {
            return;
        }
        if message.child == NONE {
            let complete = bytes == message.data;
            let next = message.replica + 1;
            let child = self.copy(slot, next);
            self.messages[slot as usize].child = child;
            self.messages[child as usize].joined = since;
            if complete {
                self.send(now, child);
                return;
            }
            // the path of the child includes this message's own transit
            self.messages[slot as usize].fork = 0;
        }
        self.messages[slot as usize].passing = true;
        let child = self.messages[slot as usize].child;
        let onward = &self.messages[child as usize];
        let frame = Message {
            bytes,
            from: onward.from,
            to: onward.to,
            parent: child,
            stage: Stage::FrameOn,
            ..Message::EMPTY
        };
        let frame = self.message(frame);
        self.send(now, frame);
    }

    /// Handle the arrival of a frame of a streamed chunk; `slot` is the chunk's message.
    fn frame_of_chunk(&mut self, now: Ticks, slot: u32, bytes: u64) {
        let message = &mut self.messages[slot as usize];
        message.left += bytes;
        let (arrived, total, to, stream) =
            (message.left, message.bytes, message.to, message.stream);
        if stream {
            let since = self.messages[slot as usize].joined;
            self.forward(now, slot, bytes, since);
        }
        if arrived == total {
            // time since the first message whose frames were forwarded
            let mut first = slot;
            loop {
                let before = self.messages[first as usize].parent;
                if before == NONE || !self.messages[before as usize].passing {
                    break;
                }
                first = before;
            }
            let out = self.messages[first as usize].path[0];
            let message = &mut self.messages[slot as usize];
            (message.path[0], message.legs) = (out, 1);
            let since = now - message.joined;
            self.leg(
                slot,
                station(to, IN),
                since.saturating_sub(out.ticks as Ticks),
            );
            self.join_storage(now, slot, to);
        }
    }

    /// Handle the end of a chunk's storage: the node creates further replicas, then answers.
    fn stored(&mut self, now: Ticks, slot: u32) {
        let message = &self.messages[slot as usize];
        if message.child == NONE {
            for replica in self.copies_from(slot) {
                let copy = self.copy(slot, replica);
                self.send(now, copy);
            }
        }
        self.one_less(now, slot);
    }

    /// Count one of the events for which a node waits before it answers.
    fn one_less(&mut self, now: Ticks, slot: u32) {
        let message = &mut self.messages[slot as usize];
        message.pending -= 1;
        if message.pending == 0 {
            self.answer(now, slot, Stage::Acknowledge, self.control);
        }
    }
}
