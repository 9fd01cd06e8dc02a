//! Chains: requests that go on where an earlier one left off, however many others come between.

/// A chain this long counts.
pub const LONG: u32 = 8;
const BUCKETS: usize = 8192;
const WAYS: usize = 8;
const NONE: u32 = u32::MAX;

/// What the chains of a sequence are like.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    /// Requests in chains of at least [`LONG`].
    pub held: u64,
    /// Of them, those that grew backwards.
    pub backward: u64,
    /// Requests in the longest chain.
    pub longest: u64,
    /// Number of long chains.
    pub count: u64,
    /// Median, over the requests, of the number of long chains open at once.
    pub open_median: u32,
}

#[derive(Clone, Copy)]
struct Chain {
    start: i64,
    end: i64,
    first: u32,
    last: u32,
    requests: u32,
    backward: u32,
}

/// A fixed-size table from an offset to chains; what finds no room pushes out the entry that came first.
struct Table {
    keys: Vec<i64>,
    ids: Vec<u32>,
    turn: Vec<u8>,
}

impl Table {
    fn new() -> Self {
        Self {
            keys: vec![0; BUCKETS * WAYS],
            ids: vec![NONE; BUCKETS * WAYS],
            turn: vec![0; BUCKETS],
        }
    }

    fn bucket(key: i64) -> usize {
        ((key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize
    }

    /// Takes out a chain that `fits`, of those filed under `key`.
    fn take(&mut self, key: i64, fits: impl Fn(u32) -> bool) -> Option<u32> {
        let at = Self::bucket(key) * WAYS;
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

    /// Files a chain; gives the (key, chain) that had to go.
    fn put(&mut self, key: i64, id: u32) -> Option<(i64, u32)> {
        let bucket = Self::bucket(key);
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
    fn open(&mut self, chain: Chain) -> u32 {
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

/// Finds the chains, forward ones and, with `both`, backward ones too. None as soon as it is sure that
/// long chains hold less than 0.8 of the requests.
pub fn find(offsets: &[i64], sizes: &[i64], both: bool) -> Option<Chains> {
    let n = offsets.len().min(sizes.len());
    // Long chains take at least LONG each: beyond this many chains they cannot hold 0.8 of n.
    let most = n as u64 / 8 + n as u64 / 5 + 64;
    let mut finder = Finder {
        chains: Vec::new(),
        free: Vec::new(),
        ended: Vec::new(),
        opened: 0,
    };
    let (mut ends, mut starts) = (Table::new(), Table::new());
    let mut hot = NONE;
    for i in 0..n {
        let (start, end) = (offsets[i], offsets[i] + sizes[i]);
        if hot != NONE {
            let chain = &mut finder.chains[hot as usize];
            let forward = chain.end == start;
            if forward || (both && chain.start == end) {
                grow(chain, start, end, i, !forward);
                continue;
            }
            park(&mut finder, &mut ends, &mut starts, hot, both);
        }
        let chains = &finder.chains;
        let forward = ends.take(start, |id| {
            let chain = &chains[id as usize];
            chain.requests > 0 && chain.end == start
        });
        let found = forward.or_else(|| {
            both.then(|| {
                starts.take(end, |id| {
                    let chain = &chains[id as usize];
                    chain.requests > 0 && chain.start == end
                })
            })
            .flatten()
        });
        hot = match found {
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
            }),
        };
        if finder.opened > most {
            return None;
        }
    }
    Some(summary(finder, n))
}

fn grow(chain: &mut Chain, start: i64, end: i64, i: usize, backward: bool) {
    chain.start = start;
    chain.end = end;
    chain.last = i as u32;
    chain.requests += 1;
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

fn summary(mut finder: Finder, n: usize) -> Chains {
    let left: Vec<Chain> = finder.chains.drain(..).collect();
    finder
        .ended
        .extend(left.into_iter().filter(|chain| chain.requests >= LONG));
    let long = finder.ended;
    let mut result = Chains {
        count: long.len() as u64,
        ..Chains::default()
    };
    let mut edges: Vec<(u32, i32)> = Vec::with_capacity(long.len() * 2);
    for chain in &long {
        result.held += u64::from(chain.requests);
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
