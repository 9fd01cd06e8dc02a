//! Configuration and commands of the relay.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::frame::Mac;

/// Configuration at the start of the daemon.
#[derive(Debug, Deserialize)]
pub struct RelayConfig {
    /// Control socket.
    pub socket: PathBuf,
    /// Process with which the relay ends.
    pub owner_pid: Option<i32>,
    /// Keep running when the owner ends.
    #[serde(default)]
    pub outlive_owner: bool,
    /// Descriptor that receives `ready`.
    pub ready_fd: Option<i32>,
    /// Network namespace of the links; default: the relay's own.
    pub netns: Option<PathBuf>,
    /// Seed of all random draws.
    #[serde(default)]
    pub seed: u64,
    /// Memory limit of waiting frames, in bytes. Frames beyond it are dropped and counted.
    #[serde(default = "most_bytes")]
    pub most_bytes: usize,
}

fn most_bytes() -> usize {
    256 << 20
}

/// Distribution of a delay about its mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// No variation.
    #[default]
    Constant,
    /// Uniform, within ± the jitter.
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
    /// Mean delay, seconds.
    pub mean_s: f64,
    /// Jitter, seconds.
    pub jitter_s: f64,
    /// Distribution of the jitter.
    pub distribution: Distribution,
}

/// Impairments of frames in one direction of a link. Shares are probabilities per frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Impairment {
    /// Delay of a frame.
    pub delay: Delay,
    /// Share of frames that are lost.
    pub loss: f64,
    /// Share of frames that arrive twice.
    pub duplicate: f64,
    /// Share of frames with one flipped bit.
    pub corrupt: f64,
    /// Share of frames that are sent without delay and so overtake others.
    pub reorder: f64,
}

impl Impairment {
    /// Return a message about the first invalid value, if any.
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

/// Command of the control socket. Every reply carries `applied_ns`, CLOCK_MONOTONIC.
#[derive(Debug, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase", deny_unknown_fields)]
pub enum Command {
    /// Check that the relay responds.
    Ping {},
    /// End the relay.
    Shutdown {},
    /// Add a link to a network. Frames that arrive on it are relayed.
    Port {
        /// Number of the network.
        network: u32,
        /// Number of the port, unique in all networks.
        port: u32,
        /// Interface index of the link.
        ifindex: i32,
        /// Exchange no frames with other isolated ports.
        #[serde(default)]
        isolated: bool,
    },
    /// Declare nodes behind a tunnel. In delays of pairs, their numbers replace that of the tunnel's port.
    Remote {
        /// Number of the network.
        network: u32,
        /// Number and hardware address of each node. No port may have one of these numbers.
        nodes: Vec<(u32, Mac)>,
    },
    /// Remove a link from its network.
    Unport {
        /// Number of the port.
        port: u32,
    },
    /// Change the impairments of a link. An absent direction stays unchanged.
    Link {
        /// Number of the port.
        port: u32,
        /// Impairments of frames from the node.
        out: Option<Impairment>,
        /// Impairments of frames to the node.
        #[serde(rename = "in")]
        inwards: Option<Impairment>,
    },
    /// Set delays between ports or remote nodes, added to the delays of the links. Absent pairs keep their
    /// delay; a pair that was never set has the network's default. A negative delay shortens the delays of both
    /// links.
    Pairs {
        /// Number of the network.
        network: u32,
        /// Default delay of a pair, seconds.
        default_s: Option<f64>,
        /// Source, destination, delay in seconds.
        #[serde(default)]
        delays: Vec<(u32, u32, f64)>,
    },
    /// Return counters and lateness.
    Stats {
        /// Reset the lateness statistics.
        #[serde(default)]
        reset: bool,
    },
}
