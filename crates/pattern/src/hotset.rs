//! Re-access: share of the requests to blocks that were accessed before, and their concentration on few blocks.

use serde::Serialize;

use crate::epoch::{block_bits, block_hash};
use crate::verdict::{wilson, Z};
use crate::zipf;

/// Approximate maximum of examined requests. In larger sets, all requests of a random sample of blocks are examined.
const LOOKED_AT: usize = 1 << 20;

/// Distribution of requests over blocks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    /// Share of requests to a block that was accessed before.
    pub reaccess_share: f64,
    /// Share of requests to the most used fifth of the accessed blocks.
    pub top_fifth_share: f64,
    /// Lower bound of the 95 % interval of `top_fifth_share`. It accounts for a sample of blocks.
    pub top_fifth_low: f64,
    /// Exponent of the fitted zipf law; 0 if there is none.
    pub zipf_exponent: f64,
    /// Half-width of the 95 % interval of the exponent.
    pub zipf_half_width: f64,
    /// Size of the blocks for requests of the median size [bytes].
    pub block_bytes: i64,
    /// Share of the blocks that were examined; 1 if all were.
    pub sampled_share: f64,
}

impl Spread {
    /// True if the distribution is a hot set.
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

/// Distribution from the requests of each examined block and the number of all requests. Requests missing from the
/// sample, compared with its share of all requests, are attributed to busy blocks outside of it (Waldspurger et al.,
/// FAST 2015, SHARDS-adj).
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
    // the rest is a sum over blocks, each of which is sampled by chance
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

/// Requests by block, limited to a maximum number of blocks. When the table is full, half of the blocks are dropped by
/// their hash.
#[derive(Clone, Debug)]
pub struct HotSample {
    slots: Vec<(u64, u32)>, // hash, requests; 0 requests: free slot
    used: usize,
    most: usize,
    limit: u64, // blocks with a hash up to this limit are examined
    offered: u64,
    looked: u64,
}

impl HotSample {
    /// Create a sample of at most `most` blocks.
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

    /// Add a request, by the hash of its block.
    #[inline]
    pub fn offer(&mut self, hash: u64) {
        self.offered += 1;
        let hash = hash | 1;
        if hash <= self.limit {
            self.look(hash, 1);
        }
    }

    /// Add `requests` requests. `hashes` contains only blocks with a hash below `limit`.
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
            self.make_room();
            if hash > self.limit {
                return;
            }
        }
        self.looked += u64::from(requests);
        self.used += usize::from(put(&mut self.slots, hash, requests));
    }

    fn make_room(&mut self) {
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

    /// Add another sample of the same blocks.
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

    /// Number of requests so far.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// Distribution of the requests. `median_size_bytes` is that of all requests.
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

/// Add requests to a block. Return true if the block is new.
fn put(slots: &mut [(u64, u32)], hash: u64, requests: u32) -> bool {
    let mask = slots.len() - 1;
    // not the highest bits, which select the sample, nor the low ones, which the kernel does not report
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

/// Number of hashes of one epoch, of accesses to blocks that occurred before in it, and of those to its busiest fifth.
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
