//! The single thread that reads, routes, delays and sends frames.

use std::collections::HashMap;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, Sender};

use penstock_daemon::clock::{be_punctual, now_ns, process_cpu_ns};
use penstock_daemon::Error;
use serde_json::{json, Value};

use crate::config::{Command, Impairment};
use crate::fate::{Fate, Way};
use crate::frame::{Frame, Mac, Pool};
use crate::lateness::Lateness;
use crate::line::Line;
use crate::packet::{PacketSocket, Reader};
use crate::switch::{Destination, Switch};

const SHORTEST_SPIN_NS: u64 = 3_000;
const LONGEST_SPIN_NS: u64 = 80_000;
const EVENTS: usize = 64;
const COMMANDS: u64 = u64::MAX;

/// A command and the channel of its reply.
pub type CommandWithReply = (Command, Sender<Result<Value, Error>>);

#[derive(Default)]
struct Counts {
    frames: u64,
    bytes: u64,
    lost: u64,
    duplicated: u64,
    corrupted: u64,
    reordered: u64,
    dropped: u64,
}

struct Port {
    network: u32,
    isolated: bool,
    socket: PacketSocket,
    out: Way,
    inwards: Way,
    from_node: Counts,
    to_node: Counts,
}

#[derive(Default)]
struct Net {
    switch: Switch,
    default_ns: i64,
    pairs: HashMap<(u32, u32), i64>,
    /// nodes behind a tunnel
    remote: HashMap<Mac, u32>,
}

impl Net {
    /// Delay between two nodes, in nanoseconds. A node behind a tunnel without its own delay has that of the
    /// tunnel's port.
    fn pair_ns(&self, from: u32, to: u32, frame: (Mac, Mac)) -> i64 {
        let node = |mac: Mac, port: u32| *self.remote.get(&mac).unwrap_or(&port);
        let nodes = (node(frame.0, from), node(frame.1, to));
        let delay = self
            .pairs
            .get(&nodes)
            .or_else(|| self.pairs.get(&(from, to)));
        *delay.unwrap_or(&self.default_ns)
    }
}

/// State of the relay.
pub struct Engine {
    epoll: OwnedFd,
    commands: Receiver<CommandWithReply>,
    seed: u64,
    ports: HashMap<u32, Port>,
    nets: HashMap<u32, Net>,
    line: Line,
    pool: Pool,
    reader: Reader,
    arrived: Vec<(u64, Frame)>,
    targets: Vec<u32>,
    spin_ns: u64,
    late: Lateness,
    turn: Lateness,
    overflow: u64,
}

impl Engine {
    /// Create an engine that waits for commands. `wake` (an eventfd) announces them.
    pub fn new(
        commands: Receiver<CommandWithReply>,
        wake: RawFd,
        seed: u64,
        most_bytes: usize,
    ) -> Result<Self, Error> {
        // SAFETY: a plain call.
        let raw = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if raw < 0 {
            return Err(Error::last("epoll"));
        }
        let engine = Engine {
            // SAFETY: just opened.
            epoll: unsafe { OwnedFd::from_raw_fd(raw) },
            commands,
            seed,
            ports: HashMap::new(),
            nets: HashMap::new(),
            line: Line::new(most_bytes),
            pool: Pool::default(),
            reader: Reader::new(),
            arrived: Vec::new(),
            targets: Vec::new(),
            spin_ns: 20_000,
            late: Lateness::default(),
            turn: Lateness::default(),
            overflow: 0,
        };
        engine.watch(wake, COMMANDS)?;
        Ok(engine)
    }

    fn watch(&self, fd: RawFd, token: u64) -> Result<(), Error> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: token,
        };
        // SAFETY: open descriptors and a valid event.
        let status =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if status == 0 {
            Ok(())
        } else {
            Err(Error::last("watching a socket"))
        }
    }

    /// Relay until a shutdown command.
    pub fn serve(mut self, wake: RawFd) {
        be_punctual();
        // SAFETY: zeroed events are valid.
        let mut events: [libc::epoll_event; EVENTS] = unsafe { zeroed() };
        loop {
            self.send_due();
            let ready = self.wait(&mut events);
            for event in &events[..ready] {
                let token = event.u64;
                if token != COMMANDS {
                    self.receive(token as u32);
                    continue;
                }
                let mut count = 0u64;
                // SAFETY: an eventfd gives eight bytes.
                unsafe { libc::read(wake, (&raw mut count).cast(), 8) };
                while let Ok((command, answer)) = self.commands.try_recv() {
                    let over = matches!(command, Command::Shutdown {});
                    let _ = answer.send(self.obey(command));
                    if over {
                        return;
                    }
                }
            }
        }
    }

    fn send_due(&mut self) {
        while let Some(waiting) = self.line.due(now_ns()) {
            self.late.add(now_ns() - waiting.due_ns);
            self.send(waiting.what.port, &waiting.what.frame);
            self.pool.take(waiting.what.frame);
        }
    }

    fn send(&mut self, to: u32, frame: &Frame) {
        let Some(port) = self.ports.get_mut(&to) else {
            return;
        };
        if port.socket.send(frame) {
            port.to_node.frames += 1;
            port.to_node.bytes += frame.wire_bytes();
        } else {
            port.to_node.dropped += 1;
        }
    }

    /// Sleep until a frame or command arrives, or until shortly before the next frame is due. Return the number
    /// of events.
    fn wait(&mut self, events: &mut [libc::epoll_event]) -> usize {
        let start = now_ns();
        let sleep_ns = self
            .line
            .next_due_ns()
            .map(|due| due.saturating_sub(start).saturating_sub(self.spin_ns));
        let length = sleep_ns.map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let timeout = length.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: a valid array of events and a valid or absent time.
        let ready = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        if let (0, Some(asked @ 1..)) = (ready, sleep_ns) {
            let over = (now_ns() - start).saturating_sub(asked);
            self.learn(over);
        }
        usize::try_from(ready).unwrap_or(0)
    }

    /// Adapt the time by which the thread wakes before a frame is due to the recent oversleeping.
    fn learn(&mut self, overslept_ns: u64) {
        let target_ns = (overslept_ns + overslept_ns / 4).clamp(SHORTEST_SPIN_NS, LONGEST_SPIN_NS);
        if target_ns > self.spin_ns {
            self.spin_ns = target_ns;
        } else {
            self.spin_ns -= (self.spin_ns - target_ns) / 64;
        }
    }

    fn receive(&mut self, from: u32) {
        let Some(port) = self.ports.get(&from) else {
            return;
        };
        let mut arrived = std::mem::take(&mut self.arrived);
        self.reader
            .read(&port.socket, &mut self.pool, |_, at, frame| {
                arrived.push((at, frame));
            });
        for (at, frame) in arrived.drain(..) {
            self.relay(from, at, frame);
        }
        self.arrived = arrived;
    }

    /// Route a frame from a port. Send it now or queue it until it is due.
    fn relay(&mut self, from: u32, arrived_ns: u64, mut frame: Frame) {
        let Some(port) = self.ports.get_mut(&from) else {
            return self.pool.take(frame);
        };
        let isolated = port.isolated;
        let out = port.out.next();
        count(&mut port.from_node, &out, frame.wire_bytes());
        let network = port.network;
        let Some(net) = self.nets.get_mut(&network).filter(|_| !out.lost) else {
            return self.pool.take(frame);
        };
        self.targets.clear();
        let ends = (frame.from(), frame.to());
        match net.switch.route(from, ends.0, ends.1) {
            Destination::Port(to) => self.targets.push(to),
            Destination::All => self
                .targets
                .extend(net.switch.ports.iter().filter(|to| **to != from)),
            Destination::Nowhere => {}
        }
        if isolated {
            let ports = &self.ports;
            self.targets
                .retain(|to| ports.get(to).is_some_and(|port| !port.isolated));
        }
        if let Some(number) = out.turned {
            frame.turn_bit(number);
        }
        let targets = std::mem::take(&mut self.targets);
        let mut remaining = Some(frame);
        for (at, to) in targets.iter().enumerate() {
            let Some(port) = self.ports.get_mut(to) else {
                continue;
            };
            let into = port.inwards.next();
            count_in(&mut port.to_node, &into);
            if into.lost {
                continue;
            }
            let pair_ns = self.nets[&network].pair_ns(from, *to, ends);
            let link_ns = out.delay_ns + into.delay_ns;
            let mut due_ns = arrived_ns + link_ns.saturating_add_signed(pair_ns);
            if !out.overtakes && !into.overtakes {
                due_ns = self.line.in_order(from, *to, due_ns);
            }
            let copies = 1 + u32::from(out.twice) + u32::from(into.twice);
            for number in 1..=copies {
                // the last copy to the last target takes the frame itself
                let last = at + 1 == targets.len() && number == copies;
                let copy = if last {
                    remaining.take()
                } else {
                    remaining.as_ref().map(Frame::copy)
                };
                let Some(mut copy) = copy else { continue };
                if let Some(number) = into.turned {
                    copy.turn_bit(number);
                }
                self.put(*to, due_ns, copy);
            }
        }
        self.targets = targets;
        if let Some(frame) = remaining {
            self.pool.take(frame);
        }
    }

    fn put(&mut self, to: u32, due_ns: u64, frame: Frame) {
        let now = now_ns();
        if due_ns <= now {
            if self.line.next_due_ns().is_some_and(|next| next <= due_ns) {
                self.send_due(); // send frames that became due in this turn first, to keep the order of each pair
            }
            self.turn.add(now - due_ns);
            self.send(to, &frame);
            self.pool.take(frame);
        } else if let Err(frame) = self.line.put(due_ns, to, frame) {
            self.overflow += 1;
            self.pool.take(frame);
        }
    }

    fn obey(&mut self, command: Command) -> Result<Value, Error> {
        let mut answer = match command {
            Command::Ping {} | Command::Shutdown {} => json!({}),
            Command::Port {
                network,
                port,
                ifindex,
                isolated,
            } => self.add(network, port, ifindex, isolated)?,
            Command::Remote { network, nodes } => self.remote(network, nodes),
            Command::Unport { port } => self.remove(port),
            Command::Link { port, out, inwards } => self.link(port, out, inwards)?,
            Command::Pairs {
                network,
                default_s,
                delays,
            } => self.pairs(network, default_s, &delays)?,
            Command::Stats { reset } => self.stats(reset),
        };
        answer["applied_ns"] = json!(now_ns());
        Ok(answer)
    }

    fn add(
        &mut self,
        network: u32,
        number: u32,
        ifindex: i32,
        isolated: bool,
    ) -> Result<Value, Error> {
        if self.ports.contains_key(&number) {
            return Err(Error::Bad(format!("port {number} is there already")));
        }
        let socket = PacketSocket::open(ifindex)?;
        self.watch(socket.as_raw_fd(), u64::from(number))?;
        let way = |direction: u64| Way::new(self.seed, 2 * u64::from(number) + direction);
        self.ports.insert(
            number,
            Port {
                network,
                isolated,
                socket,
                out: way(0),
                inwards: way(1),
                from_node: Counts::default(),
                to_node: Counts::default(),
            },
        );
        let net = self.nets.entry(network).or_default();
        net.switch.ports.push(number);
        Ok(json!({}))
    }

    fn remote(&mut self, network: u32, nodes: Vec<(u32, Mac)>) -> Value {
        let net = self.nets.entry(network).or_default();
        net.remote
            .extend(nodes.into_iter().map(|(number, mac)| (mac, number)));
        json!({"remote": net.remote.len()})
    }

    fn remove(&mut self, number: u32) -> Value {
        if let Some(port) = self.ports.remove(&number) {
            if let Some(net) = self.nets.get_mut(&port.network) {
                net.switch.forget(number);
            }
            self.line.forget_order(number);
        }
        json!({})
    }

    fn link(
        &mut self,
        number: u32,
        out: Option<Impairment>,
        inwards: Option<Impairment>,
    ) -> Result<Value, Error> {
        for impairment in [&out, &inwards].into_iter().flatten() {
            impairment.check().map_err(Error::Bad)?;
        }
        let port = self
            .ports
            .get_mut(&number)
            .ok_or_else(|| Error::Bad(format!("there is no port {number}")))?;
        let before = (port.out.impairment().delay, port.inwards.impairment().delay);
        if let Some(impairment) = out {
            port.out.ask(impairment);
        }
        if let Some(impairment) = inwards {
            port.inwards.ask(impairment);
        }
        let current = json!({"out": port.out.impairment(), "in": port.inwards.impairment()});
        if before != (port.out.impairment().delay, port.inwards.impairment().delay) {
            self.line.forget_order(number);
        }
        Ok(current)
    }

    fn pairs(
        &mut self,
        network: u32,
        default_s: Option<f64>,
        delays: &[(u32, u32, f64)],
    ) -> Result<Value, Error> {
        let ns = |s: f64| {
            if (-60.0..=60.0).contains(&s) {
                Ok((s * 1e9).round() as i64)
            } else {
                Err(Error::Bad(format!(
                    "found a delay of {s} s; expected -60 to 60"
                )))
            }
        };
        let default_ns = default_s.map(ns).transpose()?;
        let pairs = delays
            .iter()
            .map(|(from, to, s)| Ok(((*from, *to), ns(*s)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        let net = self.nets.entry(network).or_default();
        net.default_ns = default_ns.unwrap_or(net.default_ns);
        net.pairs.extend(pairs);
        self.line.forget_all();
        Ok(json!({"pairs": self.nets[&network].pairs.len()}))
    }

    fn stats(&mut self, reset: bool) -> Value {
        let spread = |seen: &Lateness| {
            json!({
                "n": seen.n(),
                "p50_ns": seen.quantile_ns(0.5),
                "p99_ns": seen.quantile_ns(0.99),
                "max_ns": seen.most_ns(),
            })
        };
        let counts = |c: &Counts| {
            json!({
                "frames": c.frames, "bytes": c.bytes, "lost": c.lost, "duplicated": c.duplicated,
                "corrupted": c.corrupted, "reordered": c.reordered, "dropped": c.dropped,
            })
        };
        let (late, turn) = (spread(&self.late), spread(&self.turn));
        let ports: Vec<Value> = self
            .ports
            .iter_mut()
            .map(|(number, port)| {
                port.from_node.dropped += port.socket.dropped();
                json!({
                    "port": number, "network": port.network,
                    "out": counts(&port.from_node), "in": counts(&port.to_node),
                })
            })
            .collect();
        if reset {
            (self.late, self.turn) = (Lateness::default(), Lateness::default());
        }
        json!({
            "late": late, "turn": turn, "waiting": self.line.len(), "overflow": self.overflow,
            "cpu_ns": process_cpu_ns(), "spin_ns": self.spin_ns, "ports": ports,
        })
    }
}

fn count(counts: &mut Counts, fate: &Fate, bytes: u64) {
    counts.frames += 1;
    counts.bytes += bytes;
    count_in(counts, fate);
}

fn count_in(counts: &mut Counts, fate: &Fate) {
    counts.lost += u64::from(fate.lost);
    if !fate.lost {
        counts.duplicated += u64::from(fate.twice);
        counts.corrupted += u64::from(fate.turned.is_some());
        counts.reordered += u64::from(fate.overtakes);
    }
}

/// Create the eventfd by which the control threads wake the engine.
pub fn wake_fd() -> io::Result<OwnedFd> {
    // SAFETY: a plain call; the descriptor is owned from here on.
    unsafe {
        let raw = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_behind_a_tunnel_have_separate_delays() {
        let (near, far, other) = ([2; 6], [4; 6], [6; 6]);
        let net = Net {
            default_ns: 7,
            pairs: HashMap::from([((1, 9), 0), ((1, 101), -3), ((101, 1), 4)]),
            remote: HashMap::from([(far, 101), (other, 102)]),
            ..Net::default()
        };
        let tunnel = 9;
        assert_eq!(net.pair_ns(1, tunnel, (near, far)), -3);
        assert_eq!(net.pair_ns(tunnel, 1, (far, near)), 4);
        assert_eq!(net.pair_ns(1, tunnel, (near, other)), 0); // delay of the tunnel's port
        assert_eq!(net.pair_ns(1, tunnel, (near, [0xff; 6])), 0);
        assert_eq!(net.pair_ns(tunnel, 1, (other, near)), 7); // default of the network
        assert_eq!(net.pair_ns(1, 2, (near, near)), 7);
    }
}
