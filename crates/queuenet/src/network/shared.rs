//! Links that several hosts share: uplinks and downlinks of racks and the core, each first come first served by frame
//! (an addition to Costa 2014). Every frame is a separate event here, without merging.

use super::choices::Sharing;
use super::engine::{kind, shared_station, Engine, Host, Leg, Message, Shared, Stage, FABRIC};
use super::fair::Fair;
use super::platform::Network;
use super::server::Tally;
use super::time::{Clock, Ticks};
use super::wire::{last_frame, ticks_of};

impl Engine<'_> {
    /// Handle a frame that leaves the sender over shared links. It continues separately; the message sends its next
    /// frame.
    pub fn arrive_at_shared(&mut self, now: Ticks, order: u64, slot: u32) {
        let message = &mut self.messages[slot as usize];
        let from = message.from;
        let last = message.left == 0;
        let bytes = if last {
            last_frame(message.bytes, self.frame)
        } else {
            self.frame
        };
        let frame = Message {
            bytes,
            from,
            to: message.to,
            parent: slot,
            stage: Stage::FrameOn,
            pending: u16::from(last),
            ..Message::EMPTY
        };
        if last {
            self.heap.pop();
        } else {
            message.left -= 1;
            let next = if message.left == 0 {
                message.due
            } else {
                now + self.hosts[from as usize].out_frame
            };
            self.heap.replace_top(next, order, kind::ARRIVE, slot);
        }
        let frame = self.message(frame);
        self.hop(now, frame);
        if last {
            self.next_out(now, from);
        }
    }

    /// Send a frame from a shared link (or from the sender) to the next one or to the receiver.
    ///
    /// `left` is the number of links passed: rack uplink, core, rack downlink.
    pub fn hop(&mut self, now: Ticks, slot: u32) {
        let frame = self.messages[slot as usize];
        let (from, to) = (frame.from as usize, frame.to as usize);
        let (up, down) = (self.hosts[from].rack, self.hosts[to].rack);
        let mut passed = frame.left;
        let link = loop {
            passed += 1;
            match passed {
                1 if up != down => {
                    if let Some(first) = self.racks {
                        break Some(first + 2 * up);
                    }
                }
                2 => {
                    if let Some(core) = self.core {
                        break Some(core);
                    }
                }
                3 if up != down => {
                    if let Some(first) = self.racks {
                        break Some(first + 2 * down + 1);
                    }
                }
                1 | 3 => {}
                4 => break None,
                _ => {
                    self.frame_through(now, slot);
                    return;
                }
            }
        };
        self.messages[slot as usize].left = passed;
        match link {
            Some(link) => {
                let shared = &mut self.shared[link as usize];
                let start = shared.free.max(now);
                let service = ticks_of(frame.bytes, shared.per_byte);
                shared.free = start + service;
                shared.tally.serve(start - now, service);
                self.events += 1;
                self.at(start + service, kind::HOP, slot);
                self.longest(slot, shared_station(link), start + service - now);
            }
            None => {
                let latency = self.latency + self.hosts[from].latency + self.hosts[to].latency;
                self.longest(slot, FABRIC, latency);
                self.at(now + latency, kind::HOP, slot);
            }
        }
    }

    /// Record the station with a frame's longest time, in the first leg of its path.
    fn longest(&mut self, slot: u32, station: u32, spent: Ticks) {
        let leg = &mut self.messages[slot as usize].path[0];
        if spent as f32 >= leg.ticks {
            *leg = Leg {
                station,
                ticks: spent as f32,
            };
        }
    }

    /// Handle the arrival of a frame at the in-queue over shared links.
    fn frame_through(&mut self, now: Ticks, slot: u32) {
        let frame = self.messages[slot as usize];
        self.release(slot);
        if frame.pending == 1 {
            // a message has space for one leg here: its transit counts for the station where its last frame spent most
            // time
            let longest = frame.path[0].station;
            self.last_frame_in(now, 0, frame.parent, frame.bytes, frame.to, longest);
        } else {
            self.frame_in(now, 0, frame.parent, frame.bytes);
        }
    }
}

/// Links that hosts share: uplinks and downlinks of racks, then the core.
pub(super) fn shared_links(
    network: &Network,
    hosts: &mut [Host],
    clock: Clock,
) -> (Vec<Shared>, Option<u32>, Option<u32>) {
    let mut shared = Vec::new();
    let mut link = |name: String, rate: f64| {
        shared.push(Shared {
            free: 0,
            per_byte: clock.per_s() / rate,
            tally: Tally::default(),
            name,
        });
        shared.len() as u32 - 1
    };
    let mut racks = None;
    if let Some(rate) = network.fabric.rack_uplink_bps {
        let mut numbers: Vec<u32> = network.hosts.iter().map(|host| host.rack).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for (host, text) in hosts.iter_mut().zip(&network.hosts) {
            host.rack = numbers.partition_point(|rack| *rack < text.rack) as u32;
        }
        for number in numbers {
            let first = link(format!("rack-{number}/up"), rate);
            link(format!("rack-{number}/down"), rate);
            racks.get_or_insert(first);
        }
    }
    let core = network
        .fabric
        .capacity_bps
        .map(|rate| link("fabric/core".into(), rate));
    (shared, core, racks)
}

/// All links for fair sharing, if the network is configured for it.
pub(super) fn fair_links(
    network: &Network,
    hosts: &[Host],
    shared: &[Shared],
    core: Option<u32>,
) -> Option<Box<Fair>> {
    if network.fabric.sharing == Sharing::Fifo {
        return None;
    }
    let queues = hosts
        .iter()
        .map(|host| (host.out_per_byte, host.in_per_byte));
    // uplinks and downlinks of racks in turn, then the core
    let on_the_way: Vec<(f64, usize)> = (0u32..)
        .zip(shared)
        .map(|(i, link)| match i {
            _ if core == Some(i) => (link.per_byte, 2),
            _ => (link.per_byte, 1 + 2 * (i as usize % 2)),
        })
        .collect();
    Some(Box::new(Fair::new(queues, &on_the_way)))
}
