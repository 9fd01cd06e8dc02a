//! Chains: sequences of requests that continue each other, regardless of other requests between them.

use serde::Serialize;

/// Minimum length of a long chain in requests.
pub const LONG: u32 = 8;
/// Maximum number of streams that are listed: those with the most requests.
pub(crate) const MOST_STREAMS: usize = 16;
const BUCKETS: usize = 8192;
const WAYS: usize = 8;
const NONE: u32 = u32::MAX;

/// Statistics of the chains of a sequence.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    /// Requests in chains of at least [`LONG`].
    pub requests: u64,
    /// Requests of these that extend a chain backwards.
    pub backward: u64,
    /// Requests in the longest chain.
    pub longest: u64,
    /// Number of long chains.
    pub count: u64,
    /// Median, over the requests, of the number of long chains open at once.
    pub open_median: u32,
    /// Sum over the requests of the long chains open at once.
    pub open_sum: u64,
    /// Requests in long chains of a constant stride.
    pub strided: u64,
    /// Largest streams.
    pub streams: Vec<StreamOf>,
}

/// Relation between consecutive requests of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Each request starts at the end of the previous one.
    #[default]
    Adjacent,
    /// Each request ends at the start of the previous one.
    Reverse,
    /// Each request starts at a constant distance from the start of the previous one.
    Strided,
}

/// One of several streams, or all streams of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StreamOf {
    /// Relation between its requests.
    pub kind: Kind,
    /// Number of its requests.
    pub requests: u64,
    /// Share of all requests.
    pub share: f64,
    /// Mean request size; None if it is unknown for this stream alone [bytes].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Distance between starts, of a strided stream [bytes].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stride_bytes: Option<i64>,
}

#[derive(Clone, Copy)]
struct Chain {
    start: i64,
    end: i64,
    first: u32,
    last: u32,
    requests: u32,
    backward: u32,
    bytes: i64,
    number: u32,
    /// Distance between starts [bytes]; 0 if the chain is not strided.
    stride: i64,
}

/// Fixed-size table from an offset to chains. A full bucket replaces its entries in turn.
struct Table {
    keys: Vec<i64>,
    ids: Vec<u32>,
    turn: Vec<u8>,
    shift: u32,
}

impl Table {
    /// Create a table for a sequence of `requests` requests.
    fn new(requests: usize) -> Self {
        let buckets = (requests / 2).next_power_of_two().clamp(64, BUCKETS);
        Self {
            keys: vec![0; buckets * WAYS],
            ids: vec![NONE; buckets * WAYS],
            turn: vec![0; buckets],
            shift: 64 - buckets.trailing_zeros(),
        }
    }

    fn bucket(&self, key: i64) -> usize {
        ((key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// Remove and return a chain under `key` that `fits`.
    fn take(&mut self, key: i64, fits: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.bucket(key) * WAYS;
        for way in at..at + WAYS {
            if self.ids[way] != NONE && self.keys[way] == key {
                let id = std::mem::replace(&mut self.ids[way], NONE);
                if fits(id) {
                    return Some(id);
                }
            }
        }
        None
    }

    /// Insert a chain. Return the key and the chain that it replaced.
    fn put(&mut self, key: i64, id: u32) -> Option<(i64, u32)> {
        let bucket = self.bucket(key);
        let at = bucket * WAYS;
        let way = (at..at + WAYS)
            .find(|&way| self.ids[way] == NONE)
            .unwrap_or_else(|| {
                self.turn[bucket] = (self.turn[bucket] + 1) % WAYS as u8;
                at + self.turn[bucket] as usize
            });
        let out = (self.ids[way] != NONE).then(|| (self.keys[way], self.ids[way]));
        self.keys[way] = key;
        self.ids[way] = id;
        out
    }
}

struct Finder {
    chains: Vec<Chain>,
    free: Vec<u32>,
    ended: Vec<Chain>,
    opened: u64,
}

impl Finder {
    fn open(&mut self, mut chain: Chain) -> u32 {
        chain.number = self.opened as u32;
        self.opened += 1;
        if let Some(id) = self.free.pop() {
            self.chains[id as usize] = chain;
            return id;
        }
        self.chains.push(chain);
        (self.chains.len() - 1) as u32
    }

    fn end(&mut self, id: u32) {
        let chain = &mut self.chains[id as usize];
        if chain.requests >= LONG {
            self.ended.push(*chain);
        }
        chain.requests = 0;
        self.free.push(id);
    }
}

/// Find forward chains and, with `both`, backward chains. Return None as soon as long chains cannot contain 0.8 of the
/// requests.
pub fn find(offsets: &[i64], sizes: &[i64], both: bool) -> Option<Chains> {
    let n = offsets.len().min(sizes.len());
    // A long chain has at least LONG requests: with more chains than this, they cannot contain 0.8 of n.
    let most = n as u64 / 8 + n as u64 / 5 + 64;
    let chains = follow(offsets, sizes, both, most, &mut |_, _| ())?;
    Some(summary(&chains, n))
}

/// Find chains of all kinds: adjacent and reverse ones, then strided ones among the remaining requests. Return None
/// unless there are chains of both groups.
pub fn find_mixed(offsets: &[i64], sizes: &[i64]) -> Option<Chains> {
    const STRETCH: usize = 4096;
    let n = offsets.len().min(sizes.len());
    if n > 2 * STRETCH {
        // test a section of a long sequence first
        let middle = (n - STRETCH) / 2..(n + STRETCH) / 2;
        find_mixed(&offsets[middle.clone()], &sizes[middle])?;
    }
    let mut owners = vec![0u32; n];
    let mut chains = follow(offsets, sizes, true, u64::MAX, &mut |i, number| {
        owners[i] = number;
    })?;
    if chains.is_empty() {
        return None;
    }
    let mut numbers: Vec<u32> = chains.iter().map(|chain| chain.number).collect();
    numbers.sort_unstable();
    let rest: Vec<u32> = (0..n as u32)
        .filter(|&i| numbers.binary_search(&owners[i as usize]).is_err())
        .collect();
    let strided = follow_steps(offsets, sizes, &rest);
    if strided.is_empty() {
        return None;
    }
    chains.extend(strided);
    Some(summary(&chains, n))
}

/// Maximum number of unchained requests between two requests of a strided stream.
const RECENT: usize = 16;

/// Find chains of a constant stride among the requests `rest`.
///
/// Two nearby requests predict the start of a third. If it follows, the three become a chain. The chain then waits for
/// its next request, as long as few others come between. Short chains also occur by chance, so the minimum length grows
/// with the number of requests.
fn follow_steps(offsets: &[i64], sizes: &[i64], rest: &[u32]) -> Vec<Chain> {
    let least = (rest.len() as u32 / 8).clamp(LONG, 4 * LONG);
    let mut chains: Vec<Chain> = Vec::new();
    let mut guessed: Vec<(u32, u32)> = Vec::new();
    // an unchained request adds up to RECENT predictions
    let guessing = RECENT * rest.len();
    let (mut waiting, mut guesses) = (Table::new(rest.len()), Table::new(guessing));
    let mut recent: Vec<u32> = Vec::with_capacity(RECENT + 1);
    for (place, &i) in (0u32..).zip(rest) {
        let (start, size) = (offsets[i as usize], sizes[i as usize]);
        let goes_on = |id: u32| -> bool { place - chains[id as usize].number <= 4 * RECENT as u32 };
        if let Some(id) = waiting.take(start, goes_on) {
            let chain = &mut chains[id as usize];
            chain.last = i;
            chain.requests += 1;
            chain.bytes += size;
            chain.number = place;
            waiting.put(start + chain.stride, id);
            continue;
        }
        if let Some(guess) = guesses.take(start, |_| true) {
            let (a, b) = guessed[guess as usize];
            if recent.contains(&a) && recent.contains(&b) {
                recent.retain(|&other| other != a && other != b);
                let stride = start - offsets[b as usize];
                waiting.put(start + stride, chains.len() as u32);
                chains.push(Chain {
                    start: offsets[a as usize],
                    end: start,
                    first: a,
                    last: i,
                    requests: 3,
                    backward: 0,
                    bytes: sizes[a as usize] + sizes[b as usize] + size,
                    number: place,
                    stride,
                });
                continue;
            }
        }
        if guessed.len() > 1 << 20 {
            guessed.clear();
            guesses = Table::new(guessing);
        }
        for &before in &recent {
            let step = start - offsets[before as usize];
            if step != 0 {
                guesses.put(start + step, guessed.len() as u32);
                guessed.push((before, i));
            }
        }
        if recent.len() == RECENT {
            recent.remove(0);
        }
        recent.push(i);
    }
    chains.retain(|chain| chain.requests >= least);
    chains
}

/// Find the long chains of adjacent requests and, with `both`, of reverse ones. Call `owner` with the chain of each
/// request. Return None as soon as there are more than `most` chains.
fn follow(
    offsets: &[i64],
    sizes: &[i64],
    both: bool,
    most: u64,
    owner: &mut impl FnMut(usize, u32),
) -> Option<Vec<Chain>> {
    let n = offsets.len().min(sizes.len());
    let mut finder = Finder {
        chains: Vec::new(),
        free: Vec::new(),
        ended: Vec::new(),
        opened: 0,
    };
    let (mut ends, mut starts) = (Table::new(n), Table::new(n));
    let mut hot = NONE;
    for i in 0..n {
        let (start, end) = (offsets[i], offsets[i] + sizes[i]);
        if hot != NONE {
            let chain = &mut finder.chains[hot as usize];
            let forward = chain.end == start;
            if forward || (both && chain.start == end) {
                grow(chain, start, end, i, !forward);
                owner(i, chain.number);
                continue;
            }
            park(&mut finder, &mut ends, &mut starts, hot, both);
        }
        let chains = &finder.chains;
        let forward = ends.take(start, |id| {
            let chain = &chains[id as usize];
            chain.requests > 0 && chain.end == start
        });
        let continued = forward.or_else(|| {
            both.then(|| {
                starts.take(end, |id| {
                    let chain = &chains[id as usize];
                    chain.requests > 0 && chain.start == end
                })
            })
            .flatten()
        });
        hot = match continued {
            Some(id) => {
                grow(
                    &mut finder.chains[id as usize],
                    start,
                    end,
                    i,
                    forward.is_none(),
                );
                id
            }
            None => finder.open(Chain {
                start,
                end,
                first: i as u32,
                last: i as u32,
                requests: 1,
                backward: 0,
                bytes: end - start,
                number: 0,
                stride: 0,
            }),
        };
        owner(i, finder.chains[hot as usize].number);
        if finder.opened > most {
            return None;
        }
    }
    let Finder { chains, ended, .. } = finder;
    let mut long = ended;
    long.extend(chains.into_iter().filter(|chain| chain.requests >= LONG));
    Some(long)
}

fn grow(chain: &mut Chain, start: i64, end: i64, i: usize, backward: bool) {
    chain.start = start;
    chain.end = end;
    chain.last = i as u32;
    chain.requests += 1;
    chain.bytes += end - start;
    chain.backward += u32::from(backward);
}

fn park(finder: &mut Finder, ends: &mut Table, starts: &mut Table, id: u32, both: bool) {
    let chain = finder.chains[id as usize];
    if let Some((key, out)) = ends.put(chain.end, id) {
        let other = finder.chains[out as usize];
        if out != id && other.requests > 0 && other.end == key {
            finder.end(out);
        }
    }
    if both {
        starts.put(chain.start, id);
    }
}

impl Chain {
    fn stream(&self, n: usize) -> StreamOf {
        let kind = if self.stride != 0 {
            Kind::Strided
        } else if 2 * self.backward > self.requests {
            Kind::Reverse
        } else {
            Kind::Adjacent
        };
        StreamOf {
            kind,
            requests: u64::from(self.requests),
            share: f64::from(self.requests) / n as f64,
            size_bytes: Some((self.bytes / i64::from(self.requests)).max(0) as u64),
            stride_bytes: (self.stride != 0).then_some(self.stride),
        }
    }
}

fn summary(long: &[Chain], n: usize) -> Chains {
    let mut result = Chains {
        count: long.len() as u64,
        ..Chains::default()
    };
    let mut edges: Vec<(u32, i32)> = Vec::with_capacity(long.len() * 2);
    for chain in long {
        result.strided += u64::from(chain.requests) * u64::from(chain.stride != 0);
        result.requests += u64::from(chain.requests);
        result.backward += u64::from(chain.backward);
        result.longest = result.longest.max(u64::from(chain.requests));
        edges.push((chain.first, 1));
        edges.push((chain.last + 1, -1));
    }
    edges.sort_unstable();
    let mut spent = vec![0u64; 2];
    let (mut open, mut at) = (0usize, 0u32);
    for (edge, change) in edges {
        if spent.len() <= open {
            spent.resize(open + 1, 0);
        }
        spent[open] += u64::from(edge - at);
        at = edge;
        open = open.wrapping_add_signed(change as isize);
    }
    spent[0] += n as u64 - u64::from(at);
    let mut largest: Vec<&Chain> = long.iter().collect();
    largest.sort_by_key(|chain| (std::cmp::Reverse(chain.requests), chain.first));
    result.streams = largest
        .iter()
        .take(MOST_STREAMS)
        .map(|c| c.stream(n))
        .collect();
    result.open_sum = (0u64..).zip(&spent).map(|(k, requests)| k * requests).sum();
    let half = spent.iter().sum::<u64>().div_ceil(2);
    let mut sum = 0;
    for (open, requests) in spent.iter().enumerate() {
        sum += requests;
        if sum >= half {
            result.open_median = open as u32;
            break;
        }
    }
    result
}
