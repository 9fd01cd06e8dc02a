//! Patterns of operations that a client issues.

use penstock_station::{Draws, Op};
use serde::{Deserialize, Serialize};

/// Access pattern of a client on its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Pattern {
    /// Blocks in order from the beginning of the file, which start over at the end.
    Sequential {
        /// "read" or "write".
        op: String,
        /// Bytes per operation.
        block_bytes: u64,
        /// File size in bytes.
        file_bytes: u64,
    },
    /// Blocks at uniformly random multiples of the block size.
    Random {
        /// "read" or "write".
        op: String,
        /// Bytes per operation.
        block_bytes: u64,
        /// File size in bytes.
        file_bytes: u64,
        /// Share of operations that are reads; only with `op` "mixed".
        #[serde(default)]
        read_share: Option<f64>,
    },
    /// A list of operations, each issued once.
    Explicit {
        /// 0 read, 1 write, 2 flush.
        op: Vec<u8>,
        /// First byte of each operation.
        offset_bytes: Vec<u64>,
        /// Size of each operation in bytes.
        size_bytes: Vec<u64>,
        /// Think time before each operation, in nanoseconds, added to the client's own; empty for none.
        #[serde(default)]
        think_ns: Vec<u64>,
    },
}

impl Pattern {
    /// Check the pattern.
    ///
    /// # Errors
    /// The first mistake.
    pub fn validate(&self) -> Result<(), String> {
        match self {
            Pattern::Sequential {
                op,
                block_bytes,
                file_bytes,
            }
            | Pattern::Random {
                op,
                block_bytes,
                file_bytes,
                ..
            } => {
                if *block_bytes == 0 || block_bytes > file_bytes {
                    return Err(format!(
                        "block_bytes {block_bytes} of file_bytes {file_bytes}; 1 to file_bytes is expected"
                    ));
                }
                match self {
                    Pattern::Random {
                        read_share: Some(share),
                        ..
                    } if op == "mixed" => {
                        if !(0.0..=1.0).contains(share) {
                            return Err(format!("read_share {share}; 0 to 1 is expected"));
                        }
                    }
                    _ if op == "read" || op == "write" => {}
                    _ => return Err(format!("op \"{op}\"; read or write is expected")),
                }
                Ok(())
            }
            Pattern::Explicit {
                op,
                offset_bytes,
                size_bytes,
                think_ns,
            } => {
                let n = op.len();
                if offset_bytes.len() != n
                    || size_bytes.len() != n
                    || !(think_ns.is_empty() || think_ns.len() == n)
                {
                    return Err("explicit arrays differ in length".into());
                }
                op.iter()
                    .try_for_each(|code| Op::try_from(*code).map(|_| ()))
            }
        }
    }
}

/// One operation of a client, with the think time before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    /// Type of the operation.
    pub op: Op,
    /// First byte in the file.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// Think time of this operation alone, nanoseconds.
    pub think_ns: u64,
}

/// Operations of one client, in order.
#[derive(Debug, Clone)]
pub struct Operations<'p> {
    pattern: &'p Pattern,
    seed: u64,
    client: u64,
    taken: u64,
}

impl<'p> Operations<'p> {
    /// Operations of client number `client`.
    #[must_use]
    pub fn new(pattern: &'p Pattern, seed: u64, client: u64) -> Self {
        Operations {
            pattern,
            seed,
            client,
            taken: 0,
        }
    }
}

impl Iterator for Operations<'_> {
    type Item = Operation;

    #[inline]
    fn next(&mut self) -> Option<Operation> {
        let i = self.taken;
        self.taken += 1;
        match self.pattern {
            Pattern::Sequential {
                op,
                block_bytes,
                file_bytes,
            } => Some(Operation {
                op: if op == "write" { Op::Write } else { Op::Read },
                offset: i % (file_bytes / block_bytes) * block_bytes,
                size: *block_bytes,
                think_ns: 0,
            }),
            Pattern::Random {
                op,
                block_bytes,
                file_bytes,
                read_share,
            } => {
                // operation code 8: random numbers of the workload, separate from those of the device
                let mut draws = Draws::keyed(self.seed, 8, i, self.client);
                let blocks = file_bytes / block_bytes;
                let block = ((draws.uniform() * blocks as f64) as u64).min(blocks - 1);
                let read = match read_share {
                    Some(share) => draws.uniform() < *share,
                    None => op != "write",
                };
                Some(Operation {
                    op: if read { Op::Read } else { Op::Write },
                    offset: block * block_bytes,
                    size: *block_bytes,
                    think_ns: 0,
                })
            }
            Pattern::Explicit {
                op,
                offset_bytes,
                size_bytes,
                think_ns,
            } => {
                let at = i as usize;
                Some(Operation {
                    op: Op::try_from(*op.get(at)?).ok()?,
                    offset: offset_bytes[at],
                    size: size_bytes[at],
                    think_ns: think_ns.get(at).copied().unwrap_or(0),
                })
            }
        }
    }
}
