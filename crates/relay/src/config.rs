//! What the relay is told: its configuration and its commands.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::frame::Mac;

/// Start of the daemon.
#[derive(Debug, Deserialize)]
pub struct RelayConfig {
    /// Control socket.
    pub socket: PathBuf,
    /// Process with which the relay ends.
    pub owner_pid: Option<i32>,
    /// Stays when its owner ends.
    #[serde(default)]
    pub outlive_owner: bool,
    /// Where to say that it is ready.
    pub ready_fd: Option<i32>,
    /// Network namespace of the links; the own one by default.
    pub netns: Option<PathBuf>,
    /// Of all draws.
    #[serde(default)]
    pub seed: u64,
    /// Memory that waiting frames may take; what comes beyond is dropped and counted.
    #[serde(default = "most_bytes")]
    pub most_bytes: usize,
}

fn most_bytes() -> usize {
    256 << 20
}

/// How a delay varies about its mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Not at all.
    #[default]
    Constant,
    /// Evenly, by at most the jitter.
    Uniform,
    /// Normal; the jitter is its standard deviation.
    Normal,
    /// Pareto with shape 3; the jitter is its standard deviation.
    Pareto,
}

/// A one-way delay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Delay {
    /// Its mean, seconds.
    pub mean_s: f64,
    /// How far it varies, seconds.
    pub jitter_s: f64,
    /// How it varies.
    pub distribution: Distribution,
}

/// What happens to frames on one way of a link; shares are probabilities per frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Impairment {
    /// How long a frame takes.
    pub delay: Delay,
    /// Frames that do not arrive.
    pub loss: f64,
    /// Frames that arrive twice.
    pub duplicate: f64,
    /// Frames of which one bit is turned.
    pub corrupt: f64,
    /// Frames that are not delayed and so overtake others.
    pub reorder: f64,
}

impl Impairment {
    /// What is wrong with it, if anything.
    pub fn check(&self) -> Result<(), String> {
        for (name, share) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
            ("reorder", self.reorder),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("{name}: found {share}; expected 0 to 1"));
            }
        }
        for (name, s) in [
            ("mean_s", self.delay.mean_s),
            ("jitter_s", self.delay.jitter_s),
        ] {
            if !(0.0..=60.0).contains(&s) {
                return Err(format!("delay.{name}: found {s}; expected 0 to 60 seconds"));
            }
        }
        Ok(())
    }
}

/// One command; every answer carries `applied_ns`, CLOCK_MONOTONIC.
#[derive(Debug, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase", deny_unknown_fields)]
pub enum Command {
    /// Whether it is there.
    Ping {},
    /// The end.
    Shutdown {},
    /// Takes a link into a network: frames that arrive on it are relayed.
    Port {
        /// Network's number.
        network: u32,
        /// Port's number, unique in all networks.
        port: u32,
        /// The link's index.
        ifindex: i32,
        /// Exchanges no frames with other isolated ports.
        #[serde(default)]
        isolated: bool,
    },
    /// Nodes behind a tunnel: their numbers take the place of the tunnel's port in delays of pairs.
    Remote {
        /// Network's number.
        network: u32,
        /// Number and hardware address of each node; numbers are those of no port.
        nodes: Vec<(u32, Mac)>,
    },
    /// Lets a link go.
    Unport {
        /// Port's number.
        port: u32,
    },
    /// Changes what a link does; a way that is not given stays.
    Link {
        /// Port's number.
        port: u32,
        /// To frames that come from its node.
        out: Option<Impairment>,
        /// To frames that go to its node.
        #[serde(rename = "in")]
        inwards: Option<Impairment>,
    },
    /// Delays from port (or remote node) to port, beside the links' own; those never given have the network's,
    /// those not given now stay. A negative one shortens the delays of both links.
    Pairs {
        /// Network's number.
        network: u32,
        /// Delay of every other pair, seconds.
        default_s: Option<f64>,
        /// From, to, seconds.
        #[serde(default)]
        delays: Vec<(u32, u32, f64)>,
    },
    /// Counters and lateness.
    Stats {
        /// Forgets the lateness seen so far.
        #[serde(default)]
        reset: bool,
    },
}
