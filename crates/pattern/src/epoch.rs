//! Epochs: counts of consecutive requests of one sequence. All rules can be evaluated from them.
//!
//! The tracer's kernel programs collect the same counts (`probe/src/bpf/epochs.h`). [`Counter`] collects them in user
//! space. Epochs of one sequence can be added, so that a recording of any length needs bounded memory.

use crate::verdict::near_bytes;

/// Classes of the size histogram: floor(log2(bytes)).
pub const SIZE_CLASSES: usize = 32;
/// Minimum length of a long chain in requests.
pub const LONG: u32 = 8;
const SETS: usize = 64;
const WAYS: usize = 4;
/// Maximum size of the blocks of re-access counts, log2(bytes).
pub const BLOCK_BITS: u32 = 12;

/// Counts of consecutive requests. All counts but the extremes can be added.
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    /// Start of the first request, CLOCK_MONOTONIC [ns].
    pub first_ns: u64,
    /// Start of the last request, in the kernel its end [ns].
    pub last_ns: u64,
    /// Requests that transferred at least one byte.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Steps between consecutive requests. The first request of a sequence has none.
    pub steps: u64,
    /// Steps of 0.
    pub zero: u64,
    /// Steps from 0 to W.
    pub near: u64,
    /// Steps of 0 or more.
    pub forward: u64,
    /// Requests that end at the start of the previous request.
    pub reverse: u64,
    /// Requests that start after the start of the previous request (Darshan's SEQ).
    pub higher: u64,
    /// Start-to-start distances that equal the distance 1, 2, 3 or 4 requests before.
    pub cycle: [u64; 4],
    /// The last four distances, the newest first [bytes].
    pub distances: [i64; 4],
    /// Requests in chains of at least [`LONG`].
    pub chained: u64,
    /// Requests of these that extend a chain backwards.
    pub backward: u64,
    /// Requests in strided chains between other requests. The kernel does not count them.
    pub strided: u64,
    /// Chains that became long.
    pub chains: u64,
    /// Sum over the requests of the long chains open at once.
    pub open_sum: u64,
    /// Requests of the longest chain, at most 255.
    pub longest: u64,
    /// Lowest start [bytes].
    pub low: i64,
    /// Highest start [bytes].
    pub high: i64,
    /// Requests by floor(log2(size)).
    pub size_class: [u64; SIZE_CLASSES],
    /// Size of the requests if all have the same size, else 0 [bytes].
    pub one_size: u64,
    /// Requests whose blocks were examined for re-access in this epoch; see [`Epoch::concentrated`].
    pub looked: u64,
    /// Requests of these to a block that was accessed before in the epoch.
    pub again: u64,
    /// Requests of these to the most used fifth of the blocks of the epoch.
    pub top_fifth: u64,
}

impl Epoch {
    /// Add an epoch that follows this one.
    pub fn add(&mut self, later: &Self) {
        if later.requests == 0 {
            return;
        }
        if self.requests == 0 {
            *self = later.clone();
            return;
        }
        self.first_ns = self.first_ns.min(later.first_ns);
        self.last_ns = self.last_ns.max(later.last_ns);
        for (sum, more) in [
            (&mut self.requests, later.requests),
            (&mut self.bytes, later.bytes),
            (&mut self.steps, later.steps),
            (&mut self.zero, later.zero),
            (&mut self.near, later.near),
            (&mut self.forward, later.forward),
            (&mut self.reverse, later.reverse),
            (&mut self.higher, later.higher),
            (&mut self.chained, later.chained),
            (&mut self.backward, later.backward),
            (&mut self.strided, later.strided),
            (&mut self.chains, later.chains),
            (&mut self.open_sum, later.open_sum),
            (&mut self.looked, later.looked),
            (&mut self.again, later.again),
            (&mut self.top_fifth, later.top_fifth),
        ] {
            *sum += more;
        }
        for (sum, more) in self.cycle.iter_mut().zip(later.cycle) {
            *sum += more;
        }
        for (sum, more) in self.size_class.iter_mut().zip(later.size_class) {
            *sum += more;
        }
        self.distances = later.distances;
        self.longest = self.longest.max(later.longest);
        self.low = self.low.min(later.low);
        self.high = self.high.max(later.high);
        if self.one_size != later.one_size {
            self.one_size = 0;
        }
    }

    /// Share of the steps.
    pub(crate) fn share(&self, hits: u64) -> f64 {
        hits as f64 / self.steps.max(1) as f64
    }

    /// Median size [bytes]. It is exact if all sizes are equal. Otherwise it is the mean or the lower bound of the
    /// median's class.
    pub fn median_size_bytes(&self) -> i64 {
        if self.one_size > 0 {
            return self.one_size as i64;
        }
        let half = self.requests.div_ceil(2);
        let mut sum = 0;
        for (class, count) in self.size_class.iter().enumerate() {
            sum += count;
            if sum >= half && sum > 0 {
                let mean = self.bytes / self.requests.max(1);
                let (low, high) = (1u64 << class, (2u64 << class) - 1);
                return if (low..=high).contains(&mean) {
                    mean
                } else {
                    low
                } as i64;
            }
        }
        0
    }

    /// Mean number of open long chains, over the requests.
    pub fn open(&self) -> f64 {
        self.open_sum as f64 / self.requests.max(1) as f64
    }

    /// True if the examined blocks of this epoch alone indicate a hot set.
    pub fn concentrated(&self) -> bool {
        self.looked >= 64 && 2 * self.again >= self.looked && 10 * self.top_fifth >= 6 * self.looked
    }
}

/// Finaliser of splitmix64. It distributes block numbers and offsets over all bits.
#[inline]
pub fn spread_bits(value: u64) -> u64 {
    let z = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// log2 of the block size for re-access counts of requests of this size.
#[inline]
pub(crate) fn block_bits(size: i64) -> u32 {
    (63 - (size as u64 | 1).leading_zeros()).min(BLOCK_BITS)
}

/// Hash of the block in which a request starts. A block is at most as large as the request, so that two requests in one
/// block overlap. Blocks of different sizes have different hashes.
#[inline]
pub fn block_hash(offset: i64, size: i64) -> u64 {
    let bits = block_bits(size);
    spread_bits(((offset as u64 >> bits) << 1 | 1) << bits)
}

/// Requests of an epoch that ends with request `seen` of a sequence: 256, from 4,096 on 512, and from 16,384 on 1,024.
pub fn epoch_requests(seen: u64) -> u64 {
    match seen {
        0..4096 => 256,
        4096..16_384 => 512,
        _ => 1024,
    }
}

#[derive(Clone, Copy, Default)]
struct Entry {
    tag: u32,
    last: u32, // number of its last request; 0: free entry
    count: u8,
    backward: bool,
}

/// Open chains by the expected offset of their next request. A full set drops its shortest chain.
#[derive(Clone)]
struct Table(Box<[[Entry; WAYS]; SETS]>);

impl Table {
    fn new() -> Self {
        Self(Box::new([[Entry::default(); WAYS]; SETS]))
    }

    #[inline]
    fn take(&mut self, hash: u64) -> Option<Entry> {
        let set = &mut self.0[(hash >> 58) as usize];
        set.iter_mut()
            .find(|entry| entry.tag == hash as u32 && entry.last != 0)
            .map(std::mem::take)
    }

    #[inline]
    fn put(&mut self, hash: u64, entry: Entry) {
        let set = &mut self.0[(hash >> 58) as usize];
        let mut way = 0;
        // free entries have count 0; of equal counts, the oldest entry is replaced
        for i in 1..WAYS {
            let rank = |e: &Entry| (e.count, e.last);
            if rank(&set[i]) < rank(&set[way]) {
                way = i;
            }
        }
        set[way] = Entry {
            tag: hash as u32,
            ..entry
        };
    }
}

/// Counter of one sequence. It adds request by request.
#[derive(Clone)]
pub struct Counter {
    now: Epoch,
    seen: u64,
    last_offset: i64,
    last_end: i64,
    near_bytes: i64,
    table: Option<Table>,
    hot: Entry,
    number: u32,
    forward_only: bool,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            now: Epoch::default(),
            seen: 0,
            last_offset: 0,
            last_end: 0,
            near_bytes: near_bytes(0),
            table: None,
            hot: Entry::default(),
            number: 0,
            forward_only: false,
        }
    }
}

impl Counter {
    /// Create a counter that counts as the kernel programs do: backward chains end at a jump.
    pub fn as_in_kernel() -> Self {
        Self {
            forward_only: true,
            ..Self::default()
        }
    }

    /// Number of requests so far.
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// True if the current epoch is complete. Epochs are shorter at the beginning of a sequence, so that short
    /// sequences can have phases.
    pub fn full(&self) -> bool {
        self.now.requests >= epoch_requests(self.seen)
    }

    /// Add a request: start [bytes], size [bytes, above 0], time [ns]. Return true unless it starts at the end of the
    /// previous request.
    #[inline]
    pub fn push(&mut self, offset: i64, size: i64, t_ns: u64) -> bool {
        let end = offset.wrapping_add(size);
        let now = &mut self.now;
        if now.requests == 0 {
            now.first_ns = t_ns;
            now.low = offset;
            now.high = offset;
            now.one_size = size as u64;
        }
        if now.one_size != size as u64 {
            now.one_size = 0;
        }
        now.last_ns = t_ns;
        now.requests += 1;
        now.bytes += size as u64;
        now.low = now.low.min(offset);
        now.high = now.high.max(offset);
        let class = 63 - (size as u64 | 1).leading_zeros() as usize;
        now.size_class[class.min(SIZE_CLASSES - 1)] += 1;
        self.number += 1;
        let mut step = i64::MIN;
        if self.seen > 0 {
            step = offset.wrapping_sub(self.last_end);
            let distance = offset.wrapping_sub(self.last_offset);
            now.steps += 1;
            now.zero += u64::from(step == 0);
            now.forward += u64::from(step >= 0);
            now.near +=
                u64::from(step >= 0 && (step <= self.near_bytes || step <= size.saturating_mul(8)));
            now.reverse += u64::from(end == self.last_offset);
            now.higher += u64::from(distance > 0);
            for (count, before) in now.cycle.iter_mut().zip(now.distances) {
                *count += u64::from(distance == before);
            }
            now.distances.rotate_right(1);
            now.distances[0] = distance;
        }
        self.chain(offset, end, step);
        self.seen += 1;
        self.last_offset = offset;
        self.last_end = end;
        step != 0
    }

    /// Assign the request to a chain, or begin a new one.
    #[inline]
    fn chain(&mut self, start: i64, end: i64, step: i64) {
        if step == 0 && !self.hot.backward {
            self.grow();
            return;
        }
        let backward = !self.forward_only && (self.hot.backward || self.hot.count == 1);
        if end == self.last_offset && self.seen > 0 && backward {
            self.hot.backward = true;
            self.grow();
            self.now.backward += u64::from(u32::from(self.hot.count) >= LONG);
            return;
        }
        let table = self.table.get_or_insert_with(Table::new);
        if self.seen > 0 {
            // park the current chain under the offset at which it would continue
            if !self.hot.backward {
                table.put(spread_bits(self.last_end as u64), self.hot);
            }
            if backward {
                let backward = Entry {
                    backward: true,
                    ..self.hot
                };
                table.put(spread_bits(!self.last_offset as u64), backward);
            }
        }
        let previous = table
            .take(spread_bits(start as u64))
            .or_else(|| table.take(spread_bits(!end as u64)));
        match previous {
            Some(entry) => {
                self.hot = entry;
                self.grow();
                if entry.backward {
                    self.now.backward += u64::from(u32::from(self.hot.count) >= LONG);
                }
            }
            None => {
                self.hot = Entry {
                    tag: 0,
                    last: self.number,
                    count: 1,
                    backward: false,
                };
            }
        }
    }

    #[inline]
    fn grow(&mut self) {
        let gap = u64::from(self.number - self.hot.last);
        self.hot.last = self.number;
        self.hot.count = self.hot.count.saturating_add(1);
        let count = u32::from(self.hot.count);
        if count > LONG {
            self.now.chained += 1;
            self.now.open_sum += gap;
        } else if count == LONG {
            self.now.chained += u64::from(LONG);
            self.now.open_sum += gap * u64::from(LONG);
            self.now.chains += 1;
        }
        self.now.longest = self.now.longest.max(u64::from(count));
    }

    /// Add a request. Return its features: step 0, reverse, near, forward, repeats a recent distance, continues a
    /// chain.
    pub(crate) fn features(&mut self, offset: i64, size: i64) -> [bool; 6] {
        let before = (self.now.near, self.now.cycle);
        let first = self.seen == 0;
        let (step, end) = (offset.wrapping_sub(self.last_end), offset + size);
        let reverse = !first && end == self.last_offset;
        self.push(offset, size, 0);
        [
            !first && step == 0,
            reverse,
            self.now.near > before.0,
            !first && step >= 0,
            self.now.cycle != before.1,
            self.hot.count > 1,
        ]
    }

    /// End the epoch and return its counts. The next epoch continues the sequence.
    pub fn cut(&mut self) -> Epoch {
        let distances = self.now.distances;
        let done = std::mem::take(&mut self.now);
        self.now.distances = distances;
        self.near_bytes = near_bytes(done.median_size_bytes());
        if self.number > u32::MAX / 2 {
            // numbers are compared only within about one epoch
            self.number = 1;
            self.table = None;
            self.hot = Entry {
                last: 1,
                ..self.hot
            };
        }
        done
    }
}
