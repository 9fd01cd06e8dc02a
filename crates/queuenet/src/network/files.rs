//! What the manager knows: where every chunk of every file is, and what room the nodes have.
//!
//! A write that needs new chunks gets one [`Segment`]: a short list of nodes and a rule, not an entry per chunk, so
//! that a file of terabytes costs no more than its stripe.

use std::collections::HashMap;

use penstock_station::{mix64, Draws};

use super::platform::{Shuffle, Store};
use super::server::NONE;
use super::workload::{HintsText, PlacementKind};

const PLACE: u64 = 0x706c_6163;
const CONSTANT: u64 = 0x636f_6e73;

/// How a segment's chunks follow from its list of nodes; `i` counts its chunks, `j` the replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    /// Chunk `i` on entry `i mod width`, replica `j` on the `j`-th after it.
    Stripe { width: u64 },
    /// As a stripe, but `run` chunks at a time.
    Scatter { width: u64, run: u64 },
    /// First replica always on the first entry, further ones in turn on the rest.
    Pinned,
    /// Entry `i * replicas + j`.
    Listed,
}

/// Contiguous chunks that were allocated by one request.
#[derive(Debug, Clone)]
struct Segment {
    first: u64,
    count: u64,
    replicas: u64,
    rule: Rule,
    /// Hosts.
    nodes: Vec<u32>,
    /// Where this segment's region begins on each of them, bytes.
    base: Vec<u64>,
}

/// The remainder, by the cheaper division where both fit.
#[inline]
fn modulo(a: u64, b: u64) -> u64 {
    if (a | b) >> 32 == 0 {
        u64::from(a as u32 % b as u32)
    } else {
        a % b
    }
}

impl Segment {
    /// Entry of the node list, and the how-manieth chunk of this segment it is there.
    #[inline]
    fn entry(&self, i: u64, j: u64) -> (usize, u64) {
        let n = self.nodes.len() as u64;
        // neither a place in the stripe nor a replica's number reaches n
        let around = |at: u64| (if at >= n { at - n } else { at }) as usize;
        match self.rule {
            Rule::Stripe { width } => (around(modulo(i, width) + j), i / width * self.replicas + j),
            Rule::Scatter { width, run } => {
                let at = around(modulo(i / run, width) + j);
                (at, (i / (run * width) * run + i % run) * self.replicas + j)
            }
            Rule::Pinned if j == 0 => (0, i),
            Rule::Pinned => {
                let k = i * (self.replicas - 1) + j - 1;
                (1 + (k % (n - 1)) as usize, k / (n - 1))
            }
            Rule::Listed => ((i * self.replicas + j) as usize, 0),
        }
    }

    /// Chunks by entry of the node list.
    fn each_share(&self, mut share: impl FnMut(usize, u64)) {
        match self.rule {
            Rule::Stripe { width } => {
                let n = self.nodes.len() as u64;
                for at in 0..width.min(self.count) {
                    let chunks = self.count / width + u64::from(at < self.count % width);
                    for j in 0..self.replicas {
                        share(((at + j) % n) as usize, chunks);
                    }
                }
            }
            _ => {
                for i in 0..self.count {
                    for j in 0..self.replicas {
                        share(self.entry(i, j).0, 1);
                    }
                }
            }
        }
    }
}

/// A file's tags, names resolved: what is given overrides the store's default.
#[derive(Debug, Clone, Default)]
pub struct Tags {
    placement: Option<PlacementKind>,
    group: Option<String>,
    scatter: Option<u64>,
    stripe_width: Option<u32>,
    replicas: Option<u32>,
    chunk_bytes: Option<u64>,
    host: Option<u32>,
}

impl Tags {
    /// Takes over what `hints` gives; `host` is the number of the host that they name.
    pub fn set(&mut self, hints: &HintsText, host: Option<u32>) {
        self.placement = hints.placement.or(self.placement);
        self.group = hints.group.clone().or(self.group.take());
        self.scatter = hints.scatter.or(self.scatter);
        self.stripe_width = hints.stripe_width.or(self.stripe_width);
        self.replicas = hints.replicas.or(self.replicas);
        self.chunk_bytes = hints.chunk_bytes.or(self.chunk_bytes);
        self.host = host.or(self.host);
    }
}

/// A file as the manager knows it.
#[derive(Debug, Clone, Default)]
pub struct File {
    /// Its tags now.
    pub hints: Tags,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// How far it is filled.
    pub size: u64,
    segments: Vec<Segment>,
    allocations: u64,
}

impl File {
    #[inline]
    fn segment(&self, chunk: u64) -> Option<&Segment> {
        let segment = match self.segments.len() {
            0 => return None,
            1 => &self.segments[0],
            _ => {
                let after = self.segments.partition_point(|s| s.first <= chunk);
                self.segments.get(after.checked_sub(1)?)?
            }
        };
        (chunk >= segment.first && chunk - segment.first < segment.count).then_some(segment)
    }

    /// Replicas of a chunk, and the host of the first.
    #[inline]
    pub fn first_host(&self, chunk: u64) -> (u64, u32) {
        self.segment(chunk).map_or((0, NONE), |segment| {
            let at = segment.entry(chunk - segment.first, 0).0;
            (segment.replicas, segment.nodes[at])
        })
    }

    /// Replicas of a chunk; 0 if it was never allocated.
    #[inline]
    pub fn replicas(&self, chunk: u64) -> u64 {
        self.segment(chunk).map_or(0, |segment| segment.replicas)
    }

    /// Host of a replica of a chunk; `NONE` if there is none.
    #[inline]
    pub fn host(&self, chunk: u64, replica: u64) -> u32 {
        self.segment(chunk).map_or(NONE, |segment| {
            segment.nodes[segment.entry(chunk - segment.first, replica).0]
        })
    }

    /// Where on its host a replica of a chunk is, bytes.
    pub fn place(&self, chunk: u64, replica: u64) -> u64 {
        self.segment(chunk).map_or(0, |segment| {
            let (at, nth) = segment.entry(chunk - segment.first, replica);
            segment.base[at] + nth * self.chunk_bytes
        })
    }

    /// A replica to read: the client's own if `local` has one, else by `draw`.
    #[inline]
    pub fn replica_to_read(
        &self,
        chunk: u64,
        local: Option<u32>,
        draw: impl FnOnce() -> u64,
    ) -> u64 {
        let replicas = self.replicas(chunk);
        if replicas <= 1 {
            return 0;
        }
        if let Some(host) = local {
            for j in 0..replicas {
                if self.host(chunk, j) == host {
                    return j;
                }
            }
        }
        draw() % replicas
    }

    /// Bytes of the file by host, replicas each for itself.
    pub fn each_host(&self, mut bytes: impl FnMut(u32, u64)) {
        for segment in &self.segments {
            segment.each_share(|at, chunks| bytes(segment.nodes[at], chunks * self.chunk_bytes));
        }
    }

    /// Runs of chunks in `first..end` that nothing was allocated for.
    fn gaps(&self, first: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = first;
        for segment in &self.segments {
            if segment.first >= end {
                break;
            }
            if segment.first > at {
                gaps.push((at, segment.first));
            }
            at = at.max(segment.first + segment.count);
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }
}

/// The room on the nodes, and who gets the next file.
#[derive(Debug)]
pub struct Nodes {
    seed: u64,
    /// Hosts with storage, in order of the description.
    hosts: Vec<u32>,
    index: Vec<u32>,
    capacity: Vec<Option<u64>>,
    limited: bool,
    /// Bytes stored by node.
    pub used: Vec<u64>,
    allocated: Vec<u64>,
    order: Vec<u32>,
    constant: Vec<u32>,
    groups: HashMap<String, u32>,
}

/// There is no room.
#[derive(Debug, Clone, PartialEq)]
pub struct Full {
    /// The node, if it is one.
    pub host: Option<u32>,
    /// What was asked for.
    pub what: String,
}

impl Full {
    fn store(what: String) -> Self {
        Full { host: None, what }
    }
}

/// Who asks for room.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// Number of the file.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 1.
    pub size: u64,
    /// Host of the client, if one asks.
    pub client: Option<u32>,
}

impl Nodes {
    /// Empty nodes: `capacity` by host, `None` where there is no storage.
    pub fn new(seed: u64, capacity: &[Option<Option<u64>>]) -> Self {
        let hosts: Vec<u32> = (0..capacity.len() as u32)
            .filter(|h| capacity[*h as usize].is_some())
            .collect();
        let mut index = vec![NONE; capacity.len()];
        for (i, host) in hosts.iter().enumerate() {
            index[*host as usize] = i as u32;
        }
        let capacity: Vec<Option<u64>> = capacity.iter().flatten().copied().collect();
        let n = hosts.len();
        let mut nodes = Nodes {
            seed,
            limited: capacity.iter().any(Option::is_some),
            capacity,
            index,
            used: vec![0; n],
            allocated: vec![0; n],
            order: (0..n as u32).collect(),
            constant: Vec::new(),
            groups: HashMap::new(),
            hosts,
        };
        let mut draws = Draws::keyed(seed, CONSTANT, 0, 0);
        nodes.constant = nodes.shuffled(n, &mut draws);
        nodes
    }

    /// Bytes stored on a host.
    pub fn used_on(&self, host: u32) -> u64 {
        match self.index[host as usize] {
            NONE => 0,
            i => self.used[i as usize],
        }
    }

    fn free(&self, node: u32) -> u64 {
        self.capacity[node as usize].map_or(u64::MAX, |capacity| {
            capacity.saturating_sub(self.used[node as usize])
        })
    }

    /// The first `n` of the nodes in a drawn order.
    fn shuffled(&mut self, n: usize, draws: &mut Draws) -> Vec<u32> {
        let all = self.order.len();
        let mut swaps = Vec::with_capacity(n);
        for i in 0..n.min(all) {
            let other = i + ((draws.uniform() * (all - i) as f64) as usize).min(all - i - 1);
            self.order.swap(i, other);
            swaps.push(other);
        }
        let first = self.order[..n.min(all)].to_vec();
        for (i, other) in swaps.into_iter().enumerate().rev() {
            self.order.swap(i, other);
        }
        first
    }

    /// Allocates what `claim` needs and the file does not have.
    ///
    /// # Errors
    /// A node or the store is full; the message names it.
    pub fn allocate(&mut self, file: &mut File, store: &Store, claim: Claim) -> Result<(), Full> {
        if claim.size == 0 {
            return Ok(());
        }
        let end = claim.offset + claim.size;
        if file.chunk_bytes == 0 {
            file.chunk_bytes = file.hints.chunk_bytes.unwrap_or(store.chunk_bytes);
        }
        let chunk = file.chunk_bytes;
        let (first, last) = (claim.offset / chunk, end.div_ceil(chunk));
        for (begin, stop) in file.gaps(first, last) {
            let segment = self.choose(file, store, claim, begin, stop - begin)?;
            let at = file.segments.partition_point(|s| s.first < begin);
            file.segments.insert(at, segment);
        }
        // what is new: beyond what the file had, or all of it where it was a hole
        let grown_from = if claim.offset < file.size {
            file.size.min(end)
        } else {
            claim.offset
        };
        self.fill(file, grown_from, end)?;
        file.size = file.size.max(end);
        Ok(())
    }

    /// Takes the bytes `from..end` of the file from the nodes' room.
    fn fill(&mut self, file: &File, from: u64, end: u64) -> Result<(), Full> {
        let chunk = file.chunk_bytes;
        let mut at = from;
        while at < end {
            let Some(segment) = file.segment(at / chunk) else {
                break;
            };
            let stop = end.min((segment.first + segment.count) * chunk);
            if at == segment.first * chunk && stop - at > 2 * chunk {
                // whole chunks at once, the last one by itself
                let whole = (stop - 1) / chunk * chunk;
                if whole == (segment.first + segment.count - 1) * chunk {
                    let last = segment.count - 1;
                    segment.each_share(|entry, chunks| {
                        self.take(segment.nodes[entry], chunks * chunk);
                    });
                    for j in 0..segment.replicas {
                        let host = segment.nodes[segment.entry(last, j).0];
                        let node = self.index[host as usize] as usize;
                        self.used[node] -= chunk - (stop - whole);
                    }
                    at = stop;
                    continue;
                }
            }
            let stop = stop.min((at / chunk + 1) * chunk);
            for j in 0..segment.replicas {
                self.take(file.host(at / chunk, j), stop - at);
            }
            at = stop;
        }
        if self.limited {
            for (node, used) in self.used.iter().enumerate() {
                if self.capacity[node].is_some_and(|capacity| *used > capacity) {
                    return Err(Full {
                        host: Some(self.hosts[node]),
                        what: "has no room left".into(),
                    });
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, host: u32, bytes: u64) {
        let node = self.index[host as usize] as usize;
        self.used[node] = self.used[node].saturating_add(bytes);
    }

    fn choose(
        &mut self,
        file: &mut File,
        store: &Store,
        claim: Claim,
        first: u64,
        count: u64,
    ) -> Result<Segment, Full> {
        let n = self.hosts.len();
        let replicas = u64::from(file.hints.replicas.unwrap_or(store.replicas)).min(n as u64);
        let width = file.hints.stripe_width.or(store.stripe_width);
        let width = width.map_or(n, |w| w as usize).min(n);
        let visit = file.allocations;
        file.allocations += 1;
        let mut draws = Draws::keyed(self.seed, PLACE, u64::from(claim.file), visit);
        let mut kind = file.hints.placement.unwrap_or(store.placement);
        let bytes = count.saturating_mul(file.chunk_bytes).min(claim.size);
        let mut pinned = None;
        if let Some(host) = file.hints.host {
            pinned = Some(self.index[host as usize]);
        } else if kind == PlacementKind::Collocate {
            pinned = Some(self.group_node(file, store));
        } else if kind == PlacementKind::Local {
            let own = match claim.client {
                Some(host) => self.index[host as usize],
                None => self.shuffled(1, &mut draws)[0],
            };
            // attempted, if there is space (Costa 2014)
            if own != NONE && self.free(own) >= bytes {
                pinned = Some(own);
            } else {
                kind = PlacementKind::Striped;
            }
        }
        let in_order = store.shuffle == Shuffle::None || kind == PlacementKind::RoundRobin;
        let in_order = in_order && pinned.is_none() || store.shuffle == Shuffle::None;
        let run = file.hints.scatter.unwrap_or(1);
        // as many nodes as have work: the stripe, then the further replicas of its last entry
        let runs = match kind {
            PlacementKind::Scatter => count.div_ceil(run),
            _ => count,
        };
        let mut width = (width as u64).min(runs);
        let total = |width: u64| (width + replicas - 1).min(n as u64) as usize;
        let mut nodes: Vec<u32> = if pinned.is_some() {
            let others = count.saturating_mul(replicas - 1).min(n as u64 - 1) as usize;
            if others == 0 {
                Vec::new()
            } else {
                self.shuffled(others + 1, &mut draws)
            }
        } else if kind == PlacementKind::Random {
            self.listed(claim.file, visit, first, count, replicas)?
        } else {
            let order: Vec<u32> = if in_order {
                (0..if self.limited { n } else { total(width) } as u32).collect()
            } else if store.shuffle == Shuffle::Constant {
                self.constant.clone()
            } else {
                self.shuffled(if self.limited { n } else { total(width) }, &mut draws)
            };
            self.with_room(order, &mut width, replicas, bytes)?
        };
        let rule = match (pinned, kind) {
            (Some(_), _) => Rule::Pinned,
            (None, PlacementKind::Random) => Rule::Listed,
            (None, PlacementKind::Scatter) => Rule::Scatter { width, run },
            (None, _) => Rule::Stripe { width },
        };
        if let Some(own) = pinned {
            // its own node first, then the others as drawn
            let others = nodes.len().saturating_sub(1);
            nodes.retain(|node| *node != own);
            nodes.truncate(others);
            if in_order {
                nodes = (1..=others as u32).map(|i| (own + i) % n as u32).collect();
            }
            nodes.insert(0, own);
        }
        let per_node = match rule {
            Rule::Stripe { width } => count.div_ceil(width).saturating_mul(replicas),
            Rule::Scatter { run, width } => runs
                .div_ceil(width)
                .saturating_mul(run)
                .saturating_mul(replicas),
            Rule::Pinned => count,
            Rule::Listed => 1,
        };
        let region = per_node.saturating_mul(file.chunk_bytes);
        let base = nodes
            .iter()
            .map(|node| {
                let begin = self.allocated[*node as usize];
                self.allocated[*node as usize] = begin.saturating_add(region) & ((1 << 61) - 1);
                begin
            })
            .collect();
        let nodes = nodes
            .into_iter()
            .map(|node| self.hosts[node as usize])
            .collect();
        Ok(Segment {
            first,
            count,
            replicas,
            rule,
            nodes,
            base,
        })
    }

    /// For random placement: the node of every replica of every chunk.
    fn listed(
        &self,
        file: u32,
        visit: u64,
        first: u64,
        count: u64,
        replicas: u64,
    ) -> Result<Vec<u32>, Full> {
        const MOST: u64 = 1 << 27;
        if count.saturating_mul(replicas) > MOST {
            return Err(Full::store(format!(
                "random placement of {count} chunks keeps a list of them; at most {MOST} are expected"
            )));
        }
        let n = self.hosts.len() as u64;
        let key = self.seed ^ mix64(u64::from(file) << 32 | visit);
        let mut listed = Vec::with_capacity((count * replicas) as usize);
        for i in 0..count {
            let start = mix64(key.wrapping_add(mix64(first + i))) % n;
            listed.extend((0..replicas).map(|j| ((start + j) % n) as u32));
        }
        Ok(listed)
    }

    /// The nodes of a stripe, in `order`, without those that have no room for their share; where they become too few
    /// for the width, it is narrowed.
    fn with_room(
        &self,
        mut order: Vec<u32>,
        width: &mut u64,
        replicas: u64,
        bytes: u64,
    ) -> Result<Vec<u32>, Full> {
        let n = self.hosts.len() as u64;
        loop {
            let wanted = (*width + replicas - 1).min(n) as usize;
            if !self.limited {
                order.truncate(wanted);
                return Ok(order);
            }
            let share = bytes.div_ceil(*width).saturating_mul(replicas).min(bytes);
            let room: Vec<u32> = order
                .iter()
                .copied()
                .filter(|node| self.free(*node) >= share)
                .take(wanted)
                .collect();
            if room.len() == wanted {
                return Ok(room);
            }
            if (room.len() as u64) < replicas || *width == 1 {
                return Err(Full::store(format!(
                    "the store is full: {} of {n} nodes have room for {share} bytes more",
                    room.len()
                )));
            }
            *width = (*width - 1).min(room.len() as u64 + 1 - replicas);
        }
    }

    fn group_node(&mut self, file: &File, store: &Store) -> u32 {
        let name = file.hints.group.clone().unwrap_or_default();
        let n = self.hosts.len();
        let k = self.groups.len() % n;
        let next = if store.shuffle == Shuffle::None {
            k as u32
        } else {
            self.constant[k]
        };
        *self.groups.entry(name).or_insert(next)
    }
}
