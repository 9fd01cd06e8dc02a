//! Enumerated options of a network (tables 2.1 and 3.1 of Costa 2014, and additions).

use serde::Deserialize;

/// Sharing of a link between messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    #[default]
    Fifo,
    Fair,
}

/// Creation of replicas (table 2.1, Costa 2014).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Replication {
    #[default]
    Chain,
    Parallel,
    Client,
}

/// Unit that a node of a chain forwards.
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

/// Start of a round robin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    #[default]
    Restart,
    Continue,
}

/// Part of a file that is placed together, on the same hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// The complete file.
    File,
    #[serde(untagged)]
    Bytes(u64),
}

/// Component that allocates chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Allocation {
    #[default]
    Manager,
    None,
}

/// Choice of the replica to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ReadReplica {
    #[default]
    LocalFirst,
    Random,
}

/// Policy that assigns tasks to machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerKind {
    #[default]
    Workqueue,
    DataLocation,
}

/// Choice of a host with a free slot for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// The host that runs the fewest tasks; ties: the first.
    #[default]
    Spread,
    /// The first host.
    Pack,
}

/// Inputs of a task that count for placement by data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Inputs {
    /// The bytes that the task reads.
    #[default]
    Read,
    /// All bytes of each file that the task reads.
    Files,
}
