//! What a network may be told to do, word by word (tables 2.1 and 3.1 of Costa 2014, and what was added).

use serde::Deserialize;

/// How messages share a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    #[default]
    Fifo,
    Fair,
}

/// How replicas come about (table 2.1, Costa 2014).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Replication {
    #[default]
    Chain,
    Parallel,
    Client,
}

/// When a node of a chain sends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Forward {
    #[default]
    Chunk,
    Frame,
}

/// Order of nodes in a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Shuffle {
    #[default]
    Fresh,
    Constant,
    None,
}

/// Where a round robin begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    #[default]
    Restart,
    Continue,
}

/// How much of a file is placed together, on the same hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// The file.
    File,
    #[serde(untagged)]
    Bytes(u64),
}

/// Who is asked where chunks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Allocation {
    #[default]
    Manager,
    None,
}

/// Which replica is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ReadReplica {
    #[default]
    LocalFirst,
    Random,
}

/// Who gets which machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerKind {
    #[default]
    Workqueue,
    DataLocation,
}

/// Which of the hosts with a free slot takes a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// The one that runs the fewest tasks, then the first.
    #[default]
    Spread,
    /// The first.
    Pack,
}

/// What of a task's inputs counts where it is to run near them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Inputs {
    /// The bytes that it reads.
    #[default]
    Read,
    /// All of each file that it reads from.
    Files,
}
