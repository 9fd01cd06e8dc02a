//! Re-access: how much goes to blocks seen before, and to how few of them.

use serde::Serialize;

use crate::epoch::{block_bits, block_hash};
use crate::verdict::{wilson, Z};
use crate::zipf;

/// At most about this many requests are looked at: of larger sets, all requests of a fair sample of blocks.
const LOOKED_AT: usize = 1 << 20;

/// How requests spread over blocks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    /// Share of requests to a block already touched.
    pub reaccess_share: f64,
    /// Share of requests that go to the most used fifth of the touched blocks.
    pub top_fifth_share: f64,
    /// Lower end of its 95 % interval: of the requests of all blocks, where a part of them was looked at.
    pub top_fifth_low: f64,
    /// Exponent of the zipf law that fits; 0: none was fitted.
    pub zipf_exponent: f64,
    /// Half-width of the 95 % interval of the exponent.
    pub zipf_half_width: f64,
    /// Size of the blocks for requests of the median size [bytes].
    pub block_bytes: i64,
    /// Part of the blocks that was looked at; 1: all of them.
    pub sampled_share: f64,
}

impl Spread {
    /// Whether this is a hot set.
    pub(crate) fn hot(&self) -> bool {
        self.reaccess_share >= 0.5 && self.top_fifth_share >= 0.8
    }
}

/// Counts requests by block.
pub fn spread(offsets: &[i64], sizes: &[i64], median_size_bytes: i64) -> Spread {
    let skip = (offsets.len() / LOOKED_AT + 1) as u64;
    let mut blocks: Vec<u64> = offsets
        .iter()
        .zip(sizes)
        .map(|(&offset, &size)| block_hash(offset, size))
        .filter(|&hash| skip == 1 || hash < u64::MAX / skip)
        .collect();
    blocks.sort_unstable();
    let counts = blocks.chunk_by(|a, b| a == b).map(|run| run.len() as u64);
    of_counts(
        counts.collect(),
        offsets.len() as f64,
        median_size_bytes,
        1.0 / skip as f64,
    )
}

/// From the requests of each block looked at and those to all. What a sample lacks of the requests that blocks as busy
/// as all would have had went to busy blocks outside (Waldspurger et al., FAST 2015, SHARDS-adj).
fn of_counts(
    mut counts: Vec<u64>,
    requests: f64,
    median_size_bytes: i64,
    sampled_share: f64,
) -> Spread {
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let total = (requests * sampled_share).max(1.0);
    let looked: u64 = counts.iter().sum();
    let missing = total - looked as f64;
    let fifth = counts.len().div_ceil(5);
    let top = counts[..fifth].iter().sum::<u64>() as f64 + missing;
    let top_fifth_share = (top / total).clamp(0.0, 1.0);
    // the others' part is a sum over the blocks that came into the sample each by chance
    let squares: f64 = counts[fifth..].iter().map(|&n| (n as f64).powi(2)).sum();
    let by_chance = Z * ((1.0 - sampled_share) * squares).sqrt() / total;
    let as_drawn = top_fifth_share - wilson(top_fifth_share * requests, requests);
    let law = zipf::fit(&counts, requests, sampled_share).unwrap_or_default();
    Spread {
        reaccess_share: (1.0 - counts.len() as f64 / total).clamp(0.0, 1.0),
        top_fifth_share,
        top_fifth_low: (top_fifth_share - by_chance.hypot(as_drawn)).max(0.0),
        zipf_exponent: law.exponent,
        zipf_half_width: law.half_width,
        block_bytes: 1 << block_bits(median_size_bytes),
        sampled_share,
    }
}

/// Requests by block, of as many blocks as fit: each time the table is full, half of the blocks are let go,
/// chosen by their hash.
#[derive(Clone, Debug)]
pub struct HotSample {
    slots: Vec<(u64, u32)>, // hash, requests; 0 requests: free
    used: usize,
    most: usize,
    limit: u64, // blocks with a hash below this are looked at
    offered: u64,
    looked: u64,
}

impl HotSample {
    /// Keeps at most `most` blocks.
    pub fn new(most: usize) -> Self {
        Self {
            slots: Vec::new(),
            used: 0,
            most,
            limit: u64::MAX,
            offered: 0,
            looked: 0,
        }
    }

    /// One more request, by the hash of its block.
    #[inline]
    pub fn offer(&mut self, hash: u64) {
        self.offered += 1;
        let hash = hash | 1;
        if hash <= self.limit {
            self.look(hash, 1);
        }
    }

    /// Requests that were made, of which only those to blocks with a hash below `limit` are told (by `told`).
    pub fn offer_sampled(&mut self, requests: u64, limit: u64, hashes: impl Iterator<Item = u64>) {
        if limit < self.limit {
            self.narrow(limit);
        }
        self.offered += requests;
        for hash in hashes {
            let hash = hash | 1;
            if hash <= self.limit {
                self.look(hash, 1);
            }
        }
    }

    fn look(&mut self, hash: u64, requests: u32) {
        if 2 * self.used >= self.slots.len() {
            self.room();
            if hash > self.limit {
                return;
            }
        }
        self.looked += u64::from(requests);
        self.used += usize::from(put(&mut self.slots, hash, requests));
    }

    fn room(&mut self) {
        if self.used >= self.most {
            while self.used >= self.most {
                self.narrow(self.limit / 2);
            }
            return;
        }
        let size = (2 * self.slots.len()).clamp(64, 2 * self.most.next_power_of_two());
        self.rebuild(size);
    }

    fn narrow(&mut self, limit: u64) {
        self.limit = limit;
        self.rebuild(self.slots.len());
    }

    fn rebuild(&mut self, size: usize) {
        let old = std::mem::replace(&mut self.slots, vec![(0, 0); size]);
        self.used = 0;
        self.looked = 0;
        for (hash, requests) in old {
            if requests > 0 && hash <= self.limit {
                self.used += usize::from(put(&mut self.slots, hash, requests));
                self.looked += u64::from(requests);
            }
        }
    }

    /// What another sample of the same blocks saw, added.
    pub fn merge(&mut self, other: &Self) {
        if other.limit < self.limit {
            self.narrow(other.limit);
        }
        self.offered += other.offered;
        for &(hash, requests) in &other.slots {
            if requests > 0 && hash <= self.limit {
                self.look(hash, requests);
            }
        }
    }

    /// Requests offered so far.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// How the requests spread; the median size is that of all.
    pub fn spread(&self, median_size_bytes: i64) -> Spread {
        let counts = self.slots.iter().map(|slot| u64::from(slot.1));
        let share = if self.limit == u64::MAX {
            1.0
        } else {
            self.limit as f64 / u64::MAX as f64
        };
        of_counts(
            counts.filter(|&n| n > 0).collect(),
            self.offered as f64,
            median_size_bytes,
            share,
        )
    }
}

/// Whether the block is new.
fn put(slots: &mut [(u64, u32)], hash: u64, requests: u32) -> bool {
    let mask = slots.len() - 1;
    // not the highest bits, which decide what is looked at, nor the low ones, which the kernel does not tell
    let mut at = (hash >> 32) as usize & mask;
    loop {
        let slot = &mut slots[at];
        if slot.1 == 0 {
            *slot = (hash, requests);
            return true;
        }
        if slot.0 == hash {
            slot.1 = slot.1.saturating_add(requests);
            return false;
        }
        at = (at + 1) & mask;
    }
}

/// Of the hashes of one epoch: how many there are, how many to blocks seen before in it, and to its busiest fifth.
pub(crate) fn within(hashes: &mut [u32]) -> (u64, u64, u64) {
    hashes.sort_unstable();
    let mut counts: Vec<u32> = hashes
        .chunk_by(|a, b| a == b)
        .map(|run| run.len() as u32)
        .collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let fifth = counts.len().div_ceil(5);
    let top: u64 = counts[..fifth].iter().map(|&n| u64::from(n)).sum();
    (
        hashes.len() as u64,
        (hashes.len() - counts.len()) as u64,
        top,
    )
}
