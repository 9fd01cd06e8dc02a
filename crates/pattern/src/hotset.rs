//! Re-access: how much goes to blocks seen before, and to how few of them.

use serde::Serialize;

use crate::epoch::spread_bits;

/// At most about this many requests are looked at: of larger sets, all requests of a fair sample of blocks.
const LOOKED_AT: usize = 1 << 20;

/// How requests spread over blocks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    /// Share of requests to a block already touched.
    pub reaccess_share: f64,
    /// Share of requests that go to the most used fifth of the touched blocks.
    pub top_fifth_share: f64,
    /// Slope of log(requests) against log(rank) over the blocks used more than once, negated; its 95 % half-width.
    pub zipf_exponent: f64,
    /// Half-width of the 95 % interval of the exponent.
    pub zipf_half_width: f64,
    /// Block size used [bytes].
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

/// Counts requests by block of `block_bytes`.
pub fn spread(offsets: &[i64], block_bytes: i64) -> Spread {
    let block = block_bytes.max(1);
    let skip = (offsets.len() / LOOKED_AT + 1) as u64;
    let mut blocks: Vec<i64> = offsets
        .iter()
        .map(|&offset| offset.div_euclid(block))
        .filter(|&b| skip == 1 || spread_bits(b as u64) < u64::MAX / skip)
        .collect();
    blocks.sort_unstable();
    let counts = blocks.chunk_by(|a, b| a == b).map(|run| run.len() as u64);
    of_counts(
        counts.collect(),
        offsets.len() as f64 / skip as f64,
        block,
        1.0 / skip as f64,
    )
}

/// From the requests of each block looked at; `expected`: requests that these would have had in a sample whose
/// blocks are as busy as all. What is missing went to busy blocks outside (Waldspurger et al., FAST 2015, SHARDS-adj).
fn of_counts(mut counts: Vec<u64>, expected: f64, block_bytes: i64, sampled_share: f64) -> Spread {
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let total = expected.max(1.0);
    let looked: u64 = counts.iter().sum();
    let missing = total - looked as f64;
    let fifth = counts.len().div_ceil(5);
    let top = counts[..fifth].iter().sum::<u64>() as f64 + missing;
    let (zipf_exponent, zipf_half_width) = zipf(&counts);
    Spread {
        reaccess_share: (1.0 - counts.len() as f64 / total).clamp(0.0, 1.0),
        top_fifth_share: (top / total).clamp(0.0, 1.0),
        zipf_exponent,
        zipf_half_width,
        block_bytes,
        sampled_share,
    }
}

fn zipf(counts: &[u64]) -> (f64, f64) {
    let points: Vec<(f64, f64)> = counts
        .iter()
        .take_while(|&&count| count >= 4)
        .enumerate()
        .map(|(rank, &count)| (((rank + 1) as f64).ln(), (count as f64).ln()))
        .collect();
    let n = points.len() as f64;
    if points.len() < 3 {
        return (0.0, 0.0);
    }
    let (mx, my) = points
        .iter()
        .fold((0.0, 0.0), |sum, p| (sum.0 + p.0 / n, sum.1 + p.1 / n));
    let (mut sxx, mut sxy, mut syy) = (0.0, 0.0, 0.0);
    for (x, y) in &points {
        sxx += (x - mx).powi(2);
        sxy += (x - mx) * (y - my);
        syy += (y - my).powi(2);
    }
    let slope = sxy / sxx;
    let rest = (syy - slope * sxy).max(0.0);
    (-slope, 1.96 * (rest / (n - 2.0) / sxx).sqrt())
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
    block_bytes: i64,
}

impl HotSample {
    /// Keeps at most `most` blocks of `block_bytes`.
    pub fn new(most: usize, block_bytes: i64) -> Self {
        Self {
            slots: Vec::new(),
            used: 0,
            most,
            limit: u64::MAX,
            offered: 0,
            looked: 0,
            block_bytes,
        }
    }

    /// One more request, by its start [bytes].
    #[inline]
    pub fn offer(&mut self, offset: i64) {
        self.offered += 1;
        let hash = spread_bits(offset.div_euclid(self.block_bytes) as u64) | 1;
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

    /// How the requests spread.
    pub fn spread(&self) -> Spread {
        let counts = self.slots.iter().map(|slot| u64::from(slot.1));
        let share = if self.limit == u64::MAX {
            1.0
        } else {
            self.limit as f64 / u64::MAX as f64
        };
        of_counts(
            counts.filter(|&n| n > 0).collect(),
            self.offered as f64 * share,
            self.block_bytes,
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
