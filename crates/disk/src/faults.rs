//! Injected faults: errors, corrupt data, bad blocks, a full or read-only disk.
//!
//! All faults use a counter-based generator, so neither the order of requests nor a restart changes which
//! requests fail. The key of a rule's draw is its seed, the operation, the place, and the number of earlier
//! operations of this kind there. Bad blocks depend only on seed, file and block.

use std::borrow::Cow;
use std::ffi::CString;

use penstock_station::{mix64, Draws, Op};
use serde::{Deserialize, Serialize};

/// Size of a block in bytes: the unit of bad, zeroed or flipped data.
pub const BLOCK_BYTES: u64 = 4096;
/// Size of a sector in bytes. A torn write ends at a sector boundary.
pub const SECTOR_BYTES: usize = 512;
/// Blocks of a group. The share of bad blocks is exact in each group.
const GROUP_BLOCKS: u64 = 1024;
const HALF_BITS: u32 = 5;

/// Names of the errors that a device or its file system may return.
const ERRORS: [(&str, i32); 12] = [
    ("EIO", libc::EIO),
    ("ENOSPC", libc::ENOSPC),
    ("EROFS", libc::EROFS),
    ("EDQUOT", libc::EDQUOT),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("ENODEV", libc::ENODEV),
    ("ENXIO", libc::ENXIO),
    ("EREMOTEIO", libc::EREMOTEIO),
    ("EILSEQ", libc::EILSEQ),
    ("ENODATA", libc::ENODATA),
    ("EUCLEAN", libc::EUCLEAN),
    ("ENOMEM", libc::ENOMEM),
];

/// Error with its name, as in errno(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Errno(pub i32);

impl TryFrom<String> for Errno {
    type Error = String;
    fn try_from(name: String) -> Result<Self, String> {
        let entry = ERRORS.iter().find(|(entry, _)| *entry == name);
        entry.map(|&(_, code)| Errno(code)).ok_or_else(|| {
            let names: Vec<_> = ERRORS.iter().map(|(name, _)| *name).collect();
            format!("error \"{name}\"; one of {} is expected", names.join(", "))
        })
    }
}

impl From<Errno> for String {
    fn from(error: Errno) -> String {
        let entry = ERRORS.iter().find(|(_, code)| *code == error.0);
        entry.map_or_else(|| error.0.to_string(), |(name, _)| (*name).to_owned())
    }
}

fn eio() -> Errno {
    Errno(libc::EIO)
}
fn always() -> f64 {
    1.0
}

/// Operations that a rule covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultOp {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes (fsync and similar calls).
    Flush,
    /// All operations.
    Any,
}

impl FaultOp {
    fn covers(self, op: Op) -> bool {
        match self {
            FaultOp::Read => op == Op::Read,
            FaultOp::Write => op == Op::Write,
            FaultOp::Flush => op == Op::Flush,
            FaultOp::Any => true,
        }
    }
}

/// Effect of a rule on a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultMode {
    /// The request fails.
    #[default]
    Error,
    /// All bytes are zeros.
    Zero,
    /// One bit of each block is flipped.
    Flip,
    /// A write succeeds, but only its first sectors are stored.
    Torn,
}

/// A fault rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Operations that the rule covers.
    pub op: FaultOp,
    /// Error of mode `error`.
    #[serde(default = "eio")]
    pub error: Errno,
    /// First affected byte of the file.
    #[serde(default)]
    pub from: u64,
    /// End of the affected range (exclusive); the end of the file if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Shell pattern of affected paths on the mount (`*` also matches slashes).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Probability that a matching request is affected.
    #[serde(default = "always")]
    pub probability: f64,
    /// Effect on the request.
    #[serde(default)]
    pub mode: FaultMode,
    /// Seed of the random draws.
    #[serde(default)]
    pub seed: u64,
}

impl Fault {
    fn validate(&self) -> Result<(), String> {
        if !(self.probability > 0.0 && self.probability <= 1.0) {
            return Err(format!(
                "probability is {}; above 0 and at most 1 is expected",
                self.probability
            ));
        }
        if self.to.is_some_and(|to| to <= self.from) {
            return Err("the range from..to is empty".into());
        }
        match (self.mode, self.op) {
            (FaultMode::Torn, op) if op != FaultOp::Write => {
                Err("only writes can be torn: op write is expected".into())
            }
            (FaultMode::Zero | FaultMode::Flip, FaultOp::Flush) => {
                Err("a flush has no bytes to spoil: mode error is expected".into())
            }
            _ => Ok(()),
        }
    }

    fn names(&self, path: &str) -> bool {
        let Some(pattern) = &self.file else {
            return true;
        };
        match (CString::new(pattern.as_str()), CString::new(path)) {
            // SAFETY: terminated strings.
            (Ok(pattern), Ok(path)) => unsafe {
                libc::fnmatch(pattern.as_ptr(), path.as_ptr(), 0) == 0
            },
            _ => false,
        }
    }

    /// Affected part of a request of `size` bytes at `offset`, relative to the request.
    fn part(&self, offset: u64, size: usize) -> Option<(usize, usize)> {
        let end = offset + size as u64;
        let from = self.from.max(offset);
        let to = self.to.unwrap_or(u64::MAX).min(end);
        (from < to).then(|| ((from - offset) as usize, (to - offset) as usize))
    }
}

/// Default operation affected by bad blocks.
fn reads() -> FaultOp {
    FaultOp::Read
}

/// Effect of bad blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BadMode {
    /// The request fails with EIO.
    Error,
    /// One bit is flipped.
    Flip,
    /// The data is zeros.
    Zero,
}

/// Bad blocks: the seed selects a share of the blocks of 4 KiB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadSpace {
    /// Share of bad blocks.
    pub share: f64,
    /// Effect of bad blocks.
    pub mode: BadMode,
    /// Seed that selects the blocks.
    #[serde(default)]
    pub seed: u64,
    /// Affected operations: read, write or any.
    #[serde(default = "reads")]
    pub op: FaultOp,
}

impl BadSpace {
    fn validate(&self) -> Result<(), String> {
        if !(self.share > 0.0 && self.share <= 1.0) {
            return Err(format!(
                "bad_space.share is {}; above 0 and at most 1 is expected",
                self.share
            ));
        }
        if self.op == FaultOp::Flush {
            return Err("bad_space.op is flush; read, write or any is expected".into());
        }
        Ok(())
    }

    /// True if block `block` is bad, of the file whose first byte has the device offset `base`.
    ///
    /// Of each 1024 consecutive blocks, exactly this share is bad. The rounding carries over to the next 1024.
    pub fn is_bad(&self, base: u64, block: u64) -> bool {
        let group = block / GROUP_BLOCKS;
        let upto = |groups: u64| (self.share * (groups * GROUP_BLOCKS) as f64).floor() as u64;
        let bad = upto(group + 1) - upto(group);
        let key = mix64(self.seed ^ mix64(base ^ mix64(group)));
        place(key, block % GROUP_BLOCKS) < bad
    }
}

/// Position of `index` in a permutation of the group that the key selects. A Feistel network of four rounds
/// (Luby and Rackoff 1988) gives each index its own position without a stored table.
fn place(key: u64, index: u64) -> u64 {
    let mask = (1 << HALF_BITS) - 1;
    let (mut left, mut right) = (index >> HALF_BITS, index & mask);
    for round in 0..4 {
        let mixed = mix64(key.wrapping_add(round << 32) ^ right);
        (left, right) = (right, left ^ (mixed & mask));
    }
    left << HALF_BITS | right
}

/// Location of a request.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Path on the mount.
    pub path: &'a str,
    /// Device offset of the file's first byte.
    pub base: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Number of earlier operations of this kind at this offset.
    pub visit: u32,
}

/// Faults of a disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Faults {
    /// Rules; all of them apply.
    pub faults: Vec<Fault>,
    /// Bad blocks.
    pub bad_space: Option<BadSpace>,
    /// Changes fail with EROFS.
    pub read_only: bool,
    /// Writes that need space fail with ENOSPC.
    pub full: bool,
    /// All requests fail with EIO.
    pub fail_stop: bool,
}

impl Faults {
    /// True if any fault is set.
    pub fn any(&self) -> bool {
        *self != Faults::default()
    }

    /// Return a message about the first invalid value.
    pub fn validate(&self) -> Result<(), String> {
        for (index, fault) in self.faults.iter().enumerate() {
            fault
                .validate()
                .map_err(|why| format!("faults[{index}]: {why}"))?;
        }
        self.bad_space.as_ref().map_or(Ok(()), BadSpace::validate)
    }

    fn hits<'a>(
        &'a self,
        op: Op,
        at: Place<'a>,
        size: usize,
    ) -> impl Iterator<Item = (usize, &'a Fault, (usize, usize), Draws)> {
        self.faults
            .iter()
            .enumerate()
            .filter_map(move |(index, fault)| {
                if !fault.op.covers(op) || !fault.names(at.path) {
                    return None;
                }
                let part = if op == Op::Flush {
                    (0, 0)
                } else {
                    fault.part(at.offset, size)?
                };
                let seed = mix64(fault.seed ^ mix64(index as u64 + 1));
                let place = at.base | (at.offset & ((1 << 40) - 1));
                let mut draws = Draws::keyed(seed, op as u64, place, u64::from(at.visit));
                (draws.uniform() < fault.probability).then_some((index, fault, part, draws))
            })
    }

    fn bad_blocks(
        &self,
        op: Op,
        at: Place<'_>,
        size: usize,
    ) -> impl Iterator<Item = (&BadSpace, u64)> {
        let bad = self.bad_space.as_ref().filter(|bad| bad.op.covers(op));
        let first = at.offset / BLOCK_BYTES;
        let last = (at.offset + size as u64).div_ceil(BLOCK_BYTES);
        bad.into_iter().flat_map(move |bad| {
            (first..last)
                .filter_map(move |block| bad.is_bad(at.base, block).then_some((bad, block)))
        })
    }

    /// Apply the faults to the bytes of a read, or return an error.
    pub fn on_read(&self, at: Place<'_>, data: &mut [u8]) -> Result<(), i32> {
        if self.fail_stop {
            return Err(libc::EIO);
        }
        self.spoil(Op::Read, at, data)
    }

    /// Return the bytes of a write that are stored, possibly fewer than requested, or an error.
    pub fn on_write<'d>(&self, at: Place<'_>, data: &'d [u8]) -> Result<Cow<'d, [u8]>, i32> {
        if self.fail_stop {
            return Err(libc::EIO);
        }
        if self.read_only {
            return Err(libc::EROFS);
        }
        let mut stored = data.len();
        let mut spoils = self.bad_blocks(Op::Write, at, data.len()).next().is_some();
        for (_, fault, _, mut draws) in self.hits(Op::Write, at, data.len()) {
            match fault.mode {
                FaultMode::Error => return Err(fault.error.0),
                FaultMode::Torn => {
                    let sectors = data.len().div_ceil(SECTOR_BYTES);
                    let sectors_written = (draws.uniform() * sectors as f64) as usize;
                    stored = stored.min(sectors_written * SECTOR_BYTES);
                }
                FaultMode::Zero | FaultMode::Flip => spoils = true,
            }
        }
        if !spoils {
            return Ok(Cow::Borrowed(&data[..stored]));
        }
        let mut changed = data[..stored].to_vec();
        self.spoil(Op::Write, at, &mut changed)?;
        Ok(Cow::Owned(changed))
    }

    /// Return an error if a flush fails.
    pub fn on_flush(&self, at: Place<'_>) -> Result<(), i32> {
        if self.fail_stop {
            return Err(libc::EIO);
        }
        match self.hits(Op::Flush, at, 0).next() {
            Some((_, fault, ..)) => Err(fault.error.0),
            None => Ok(()),
        }
    }

    /// Return an error if names and attributes cannot be changed.
    pub fn on_change(&self) -> Result<(), i32> {
        if self.fail_stop {
            Err(libc::EIO)
        } else if self.read_only {
            Err(libc::EROFS)
        } else {
            Ok(())
        }
    }

    /// Return an error if new names cannot be created.
    pub fn on_make(&self) -> Result<(), i32> {
        self.on_change()?;
        if self.full {
            Err(libc::ENOSPC)
        } else {
            Ok(())
        }
    }

    fn spoil(&self, op: Op, at: Place<'_>, data: &mut [u8]) -> Result<(), i32> {
        for (index, fault, (from, to), _) in self.hits(op, at, data.len()) {
            match fault.mode {
                FaultMode::Error => return Err(fault.error.0),
                FaultMode::Zero => data[from..to].fill(0),
                FaultMode::Flip => {
                    let key = mix64(fault.seed ^ mix64(index as u64 + 1));
                    let first = (at.offset + from as u64) / BLOCK_BYTES;
                    let last = (at.offset + to as u64).div_ceil(BLOCK_BYTES);
                    for block in first..last {
                        flip(key, at, block, &mut data[..to], from);
                    }
                }
                FaultMode::Torn => {}
            }
        }
        for (bad, block) in self.bad_blocks(op, at, data.len()) {
            let start = (block * BLOCK_BYTES).saturating_sub(at.offset) as usize;
            let end = (((block + 1) * BLOCK_BYTES - at.offset) as usize).min(data.len());
            match bad.mode {
                BadMode::Error => return Err(libc::EIO),
                BadMode::Zero => data[start..end].fill(0),
                BadMode::Flip => flip(bad.seed, at, block, data, 0),
            }
        }
        Ok(())
    }
}

/// Flip the bit of a block that its key selects, if `data` contains it.
fn flip(key: u64, at: Place<'_>, block: u64, data: &mut [u8], from: usize) {
    let bit = mix64(key ^ mix64(at.base ^ mix64(block))) % (8 * BLOCK_BYTES);
    let byte = block * BLOCK_BYTES + bit / 8;
    if byte >= at.offset + from as u64 {
        if let Some(byte) = data.get_mut((byte - at.offset) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: u64, visit: u32) -> Place<'static> {
        Place {
            path: "dir/file",
            base: 7 << 40,
            offset,
            visit,
        }
    }

    fn one(json: &str) -> Faults {
        let faults = Faults {
            faults: vec![serde_json::from_str(json).unwrap()],
            ..Faults::default()
        };
        faults.validate().unwrap();
        faults
    }

    #[test]
    fn half_of_every_group_is_bad_for_any_seed() {
        for seed in 0..20 {
            let bad = BadSpace {
                share: 0.5,
                mode: BadMode::Error,
                seed,
                op: FaultOp::Read,
            };
            let count = (0..65_536).filter(|&b| bad.is_bad(3 << 40, b)).count();
            assert_eq!(count, 32_768);
            let odd = (0..65_536)
                .filter(|&b| b % 2 == 1 && bad.is_bad(3 << 40, b))
                .count();
            // no pattern: neither every other block nor the first half of each group
            assert!((15_500..17_300).contains(&odd), "{odd}");
            let early = (0..65_536)
                .filter(|&b| b % 1024 < 512 && bad.is_bad(3 << 40, b))
                .count();
            assert!((15_500..17_300).contains(&early), "{early}");
        }
    }

    #[test]
    fn fractional_shares_carry_over() {
        let bad = BadSpace {
            share: 0.0003,
            mode: BadMode::Zero,
            seed: 1,
            op: FaultOp::Any,
        };
        let count = (0..1_024_000).filter(|&b| bad.is_bad(0, b)).count();
        assert_eq!(count, 307);
    }

    #[test]
    fn block_permutation_is_a_bijection() {
        let mut places: Vec<u64> = (0..GROUP_BLOCKS).map(|i| place(99, i)).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..GROUP_BLOCKS));
    }

    #[test]
    fn rules_apply_only_to_their_files_and_ranges() {
        let faults = one(r#"{"op": "read", "from": 8192, "to": 12288, "file": "dir/*"}"#);
        let mut data = [0u8; 4096];
        assert_eq!(faults.on_read(at(8192, 0), &mut data), Err(libc::EIO));
        assert_eq!(faults.on_read(at(4096, 0), &mut data), Ok(()));
        assert_eq!(faults.on_read(at(12288, 0), &mut data), Ok(()));
        assert!(faults.on_write(at(8192, 0), &data).is_ok());
        let elsewhere = Place {
            path: "other",
            ..at(8192, 0)
        };
        assert_eq!(faults.on_read(elsewhere, &mut data), Ok(()));
    }

    #[test]
    fn fault_rate_is_independent_of_order() {
        let faults = one(r#"{"op": "read", "probability": 0.1, "error": "ETIMEDOUT", "seed": 5}"#);
        let fails = |offset: u64, visit| faults.on_read(at(offset, visit), &mut [0; 16]).is_err();
        let forward: Vec<bool> = (0..20_000).map(|i| fails(i * 4096, 0)).collect();
        let mut backward: Vec<bool> = (0..20_000).rev().map(|i| fails(i * 4096, 0)).collect();
        backward.reverse();
        assert_eq!(forward, backward);
        let count = forward.iter().filter(|&&f| f).count();
        assert!((1850..2150).contains(&count), "{count}");
        let second_visit: Vec<bool> = (0..20_000).map(|i| fails(i * 4096, 1)).collect();
        assert_ne!(forward, second_visit);
    }

    #[test]
    fn rules_corrupt_the_stated_bytes() {
        let zeros = one(r#"{"op": "read", "mode": "zero", "from": 100, "to": 200}"#);
        let mut data = [1u8; 300];
        zeros.on_read(at(50, 0), &mut data).unwrap();
        assert!(data[50..150].iter().all(|&b| b == 0));
        assert_eq!(data.iter().filter(|&&b| b == 0).count(), 100);

        let flips = one(r#"{"op": "any", "mode": "flip"}"#);
        let mut content = vec![0u8; 16384];
        flips.on_read(at(0, 0), &mut content).unwrap();
        let bits: u32 = content.iter().map(|b| b.count_ones()).sum();
        assert_eq!(bits, 4);
        // same bits for any split of the reads
        let mut pieces = vec![0u8; 16384];
        for (index, piece) in pieces.chunks_mut(1024).enumerate() {
            flips.on_read(at(1024 * index as u64, 0), piece).unwrap();
        }
        assert_eq!(content, pieces);
        assert_eq!(*flips.on_write(at(0, 0), &[0; 16384]).unwrap(), *content);
    }

    #[test]
    fn torn_writes_store_a_prefix_of_sectors() {
        let torn = one(r#"{"op": "write", "mode": "torn"}"#);
        let data: Vec<u8> = (0..8192u32).map(|i| i as u8).collect();
        let mut lengths = Vec::new();
        for visit in 0..200 {
            let stored_data = torn.on_write(at(0, visit), &data).unwrap();
            assert!(stored_data.len() < data.len() && stored_data.len() % SECTOR_BYTES == 0);
            assert_eq!(*stored_data, data[..stored_data.len()]);
            lengths.push(stored_data.len());
        }
        lengths.sort_unstable();
        lengths.dedup();
        assert_eq!(lengths.len(), 16);
    }

    #[test]
    fn contradictory_rules_are_refused_with_a_message() {
        for (json, message) in [
            (r#"{"op": "read", "probability": 1.5}"#, "at most 1"),
            (r#"{"op": "read", "mode": "torn"}"#, "only writes"),
            (r#"{"op": "flush", "mode": "flip"}"#, "no bytes"),
            (r#"{"op": "read", "from": 5, "to": 5}"#, "empty"),
        ] {
            let fault: Fault = serde_json::from_str(json).unwrap();
            let why = fault.validate().unwrap_err();
            assert!(why.contains(message), "{why}");
        }
        assert!(serde_json::from_str::<Fault>(r#"{"op": "read", "error": "EWHAT"}"#).is_err());
        assert!(serde_json::from_str::<Fault>(r#"{"op": "read", "form": 3}"#).is_err());
    }

    #[test]
    fn dead_disks_fail_all_requests_and_full_disks_fail_new_writes() {
        let dead = Faults {
            fail_stop: true,
            ..Faults::default()
        };
        assert_eq!(dead.on_read(at(0, 0), &mut [0; 4]), Err(libc::EIO));
        assert_eq!(dead.on_flush(at(0, 0)), Err(libc::EIO));
        assert_eq!(dead.on_make(), Err(libc::EIO));
        let full = Faults {
            full: true,
            ..Faults::default()
        };
        assert_eq!(
            (full.on_change(), full.on_make()),
            (Ok(()), Err(libc::ENOSPC))
        );
        let read_only = Faults {
            read_only: true,
            ..Faults::default()
        };
        assert_eq!(read_only.on_write(at(0, 0), &[1]), Err(libc::EROFS));
        assert_eq!(read_only.on_flush(at(0, 0)), Ok(()));
    }
}
