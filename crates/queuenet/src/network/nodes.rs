//! Storage nodes as the manager sees them: free space, and allocation of chunks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::iter::once;
use std::ops::Range;

use penstock_station::{mix64, Draws};

use super::choices::{Shuffle, Turn, Unit};
use super::files::{File, Rule, Segment};
use super::placed::Extent;
use super::platform::Store;
use super::server::NONE;
use super::workload::PlacementKind;

const PLACE: u64 = 0x706c_6163;
const CONSTANT: u64 = 0x636f_6e73;

/// Free space of the nodes, and the state of the placement.
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
    /// Start of the next round robin, if it continues over files.
    turn: usize,
}

/// Error: a node or the store is full.
#[derive(Debug, Clone, PartialEq)]
pub struct Full {
    /// The full node; `None` for the store.
    pub host: Option<u32>,
    /// Description of the request.
    pub what: String,
}

impl Full {
    fn store(what: String) -> Self {
        Full { host: None, what }
    }
}

/// A request for space.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// Number of the file.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 1.
    pub size: u64,
    /// Host of the client, if there is one.
    pub client: Option<u32>,
}

impl Claim {
    /// The part of the claim in the bytes `begin..end`.
    fn within(self, begin: u64, end: u64) -> Self {
        let offset = self.offset.max(begin);
        let size = (self.offset + self.size).min(end).saturating_sub(offset);
        Claim {
            offset,
            size,
            ..self
        }
    }
}

/// Number of chunks of a file that are placed together; `None` if each request is placed separately.
fn chunks_of_unit(file: &File, store: &Store) -> Option<u64> {
    let kind = file.hints.placement.unwrap_or(store.placement);
    match store.placement_unit? {
        _ if kind == PlacementKind::Scatter => None,
        Unit::File => Some(u64::MAX),
        Unit::Bytes(bytes) => Some((bytes / file.chunk_bytes).max(1)),
    }
}

/// Reject more chunks than a list may have.
fn few_enough(kind: &str, count: u64, replicas: u64) -> Result<(), Full> {
    const MOST: u64 = 1 << 27;
    if count.saturating_mul(replicas) > MOST {
        return Err(Full::store(format!(
            "{kind} placement of {count} chunks keeps a list of them; at most {MOST} are expected"
        )));
    }
    Ok(())
}

impl Nodes {
    /// Create empty nodes: `capacity` by host, `None` for a host without storage.
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
            turn: 0,
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

    /// The first `n` nodes of a random order.
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

    /// Allocate the bytes of `claim` that the file does not have.
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
            let mut at = file.segments.partition_point(|s| s.first < begin);
            if let Some(extents) = file.placed.clone() {
                let placed = self.as_placed(&extents, chunk, claim.offset, begin..stop)?;
                file.segments.splice(at..at, placed);
                continue;
            }
            let Some(unit) = chunks_of_unit(file, store) else {
                let segment = self.choose(file, store, claim, begin, stop - begin, false)?;
                file.segments.insert(at, segment);
                continue;
            };
            let mut from = begin;
            while from < stop {
                let to = stop.min((from / unit + 1).saturating_mul(unit));
                let part = claim.within(from * chunk, to * chunk);
                let segment = match file.hosts_in(from / unit * unit, unit) {
                    Some(hosts) => self.on_same_hosts(hosts, chunk, from, to - from),
                    None => self.choose(file, store, part, from, to - from, true)?,
                };
                file.segments.insert(at, segment);
                (at, from) = (at + 1, to);
            }
        }
        for (from, to) in file.extend(claim.offset, end) {
            self.fill(file, from, to)?;
        }
        Ok(())
    }

    /// Subtract the bytes `from..end` of the file from the free space of its nodes.
    fn fill(&mut self, file: &File, from: u64, end: u64) -> Result<(), Full> {
        let chunk = file.chunk_bytes;
        let mut at = from;
        while at < end {
            let Some(segment) = file.segment(at / chunk) else {
                break;
            };
            let stop = end.min((segment.first + segment.count) * chunk);
            if at == segment.first * chunk && stop - at > 2 * chunk {
                // complete chunks at once, the last one separately
                let complete = (stop - 1) / chunk * chunk;
                if complete == (segment.first + segment.count - 1) * chunk {
                    let last = segment.count - 1;
                    segment.each_share(|entry, chunks| {
                        self.take(segment.nodes[entry], chunks * chunk);
                    });
                    for j in 0..segment.replicas {
                        let host = segment.nodes[segment.entry(last, j).0];
                        let node = self.index[host as usize] as usize;
                        self.used[node] -= chunk - (stop - complete);
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
        together: bool,
    ) -> Result<Segment, Full> {
        let n = self.hosts.len();
        let replicas = u64::from(file.hints.replicas.unwrap_or(store.replicas)).min(n as u64);
        let width = file.hints.stripe_width.or(store.stripe_width);
        let width = width.map_or(n, |w| w as usize).min(n);
        let width = if together { 1 } else { width };
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
            // on the client's own node if it has enough space (Costa 2014)
            if own != NONE && self.free(own) >= bytes {
                pinned = Some(own);
            } else {
                kind = PlacementKind::Striped;
            }
        }
        let in_order = store.shuffle == Shuffle::None || kind == PlacementKind::RoundRobin;
        let in_order = in_order && pinned.is_none() || store.shuffle == Shuffle::None;
        let goes_on = kind == PlacementKind::RoundRobin && store.round_robin == Turn::Continue;
        let run = file.hints.scatter.unwrap_or(1);
        // as many nodes as there is work for: the stripe, then the further replicas of its last entry
        let runs = match kind {
            PlacementKind::Scatter => count.div_ceil(run),
            _ => count,
        };
        let stripe = width;
        let mut width = (width as u64).min(runs);
        let total = |width: u64| (width + replicas - 1).min(n as u64) as usize;
        let mut nodes: Vec<u32> = if pinned.is_some() {
            let rows = if together { 1 } else { count };
            let others = rows.saturating_mul(replicas - 1).min(n as u64 - 1) as usize;
            if others == 0 {
                Vec::new()
            } else {
                self.shuffled(others + 1, &mut draws)
            }
        } else if kind == PlacementKind::Random {
            let count = if together { 1 } else { count };
            self.listed(claim.file, visit, first, count, replicas)?
        } else if kind == PlacementKind::Balanced {
            let order = match store.shuffle {
                Shuffle::Fresh => self.shuffled(n, &mut draws),
                Shuffle::Constant => self.constant.clone(),
                Shuffle::None => (0..n as u32).collect(),
            };
            let (file, end) = (&*file, claim.offset + claim.size);
            if together {
                self.balanced(&order, stripe, once(claim.size), 1, replicas)?
            } else {
                let sizes =
                    (first..first + count).map(|chunk| file.within(chunk, claim.offset, end));
                self.balanced(&order, stripe, sizes, count, replicas)?
            }
        } else {
            let order: Vec<u32> = if in_order {
                let begin = if goes_on { self.turn } else { 0 };
                let length = if self.limited { n } else { total(width) };
                (0..length).map(|i| ((begin + i) % n) as u32).collect()
            } else if store.shuffle == Shuffle::Constant {
                self.constant.clone()
            } else {
                self.shuffled(if self.limited { n } else { total(width) }, &mut draws)
            };
            let nodes = self.hosts_with_space(order, &mut width, replicas, bytes)?;
            if goes_on {
                // continue after the last chunk, or after the stripe if it is narrower than the store
                let steps = if width as usize == n { count } else { width };
                self.turn = (self.turn + (steps % n as u64) as usize) % n;
            }
            nodes
        };
        let rule = match (pinned, kind) {
            (Some(_), _) => Rule::Pinned,
            (None, _) if together => Rule::Stripe { width: 1 },
            (None, PlacementKind::Random | PlacementKind::Balanced) => Rule::Listed,
            (None, PlacementKind::Scatter) => Rule::Scatter { width, run },
            (None, _) => Rule::Stripe { width },
        };
        if let Some(own) = pinned {
            // the client's own node first, then the others in their random order
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
            .map(|node| self.region(*node, region))
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

    /// Place `count` chunks from `first` on, on the hosts of the other chunks of their unit.
    fn on_same_hosts(
        &mut self,
        hosts: Vec<u32>,
        chunk_bytes: u64,
        first: u64,
        count: u64,
    ) -> Segment {
        let replicas = hosts.len() as u64;
        let region = count.saturating_mul(replicas).saturating_mul(chunk_bytes);
        let base = hosts
            .iter()
            .map(|host| self.region(self.index[*host as usize], region))
            .collect();
        Segment {
            first,
            count,
            replicas,
            rule: Rule::Stripe { width: 1 },
            nodes: hosts,
            base,
        }
    }

    /// Allocate a region of this many bytes on a node's disk, and return its begin.
    fn region(&mut self, node: u32, bytes: u64) -> u64 {
        let begin = self.allocated[node as usize];
        self.allocated[node as usize] = begin.saturating_add(bytes) & ((1 << 61) - 1);
        begin
    }

    /// Chunks of a file with an explicit placement, from byte `offset` on: one segment for each row of chunks with
    /// equal numbers of replicas.
    fn as_placed(
        &mut self,
        extents: &[Extent],
        chunk_bytes: u64,
        offset: u64,
        chunks: Range<u64>,
    ) -> Result<Vec<Segment>, Full> {
        let mut segments: Vec<Segment> = Vec::new();
        for chunk in chunks {
            let byte = offset.max(chunk * chunk_bytes);
            let at = extents.partition_point(|extent| extent.end <= byte);
            let Some(extent) = extents.get(at) else {
                return Err(Full::store(format!("no host is known to have byte {byte}")));
            };
            let replicas = extent.hosts.len() as u64;
            if segments.last().is_none_or(|last| last.replicas != replicas) {
                segments.push(Segment {
                    first: chunk,
                    count: 0,
                    replicas,
                    rule: Rule::Listed,
                    nodes: Vec::new(),
                    base: Vec::new(),
                });
            }
            let last = segments.len() - 1;
            few_enough("known", segments[last].count + 1, replicas)?;
            segments[last].count += 1;
            for host in &extent.hosts {
                let base = self.region(self.index[*host as usize], chunk_bytes);
                segments[last].nodes.push(*host);
                segments[last].base.push(base);
            }
        }
        Ok(segments)
    }

    /// Nodes of all replicas of all chunks, for random placement.
    fn listed(
        &self,
        file: u32,
        visit: u64,
        first: u64,
        count: u64,
        replicas: u64,
    ) -> Result<Vec<u32>, Full> {
        few_enough("random", count, replicas)?;
        let n = self.hosts.len() as u64;
        let key = self.seed ^ mix64(u64::from(file) << 32 | visit);
        let mut listed = Vec::with_capacity((count * replicas) as usize);
        for i in 0..count {
            let start = mix64(key.wrapping_add(mix64(first + i))) % n;
            listed.extend((0..replicas).map(|j| ((start + j) % n) as u32));
        }
        Ok(listed)
    }

    /// Nodes of all replicas of `count` chunks with these sizes, for balanced placement: each on the least used node,
    /// ties in the order of `order`. A stripe of `width` uses the initially least used nodes, as long as they have
    /// space.
    fn balanced(
        &self,
        order: &[u32],
        width: usize,
        sizes: impl Iterator<Item = u64>,
        count: u64,
        replicas: u64,
    ) -> Result<Vec<u32>, Full> {
        few_enough("balanced", count, replicas)?;
        let mut by_use: Vec<(u64, usize)> = order
            .iter()
            .enumerate()
            .map(|(rank, node)| (self.used[*node as usize], rank))
            .collect();
        by_use.sort_unstable();
        let mut others = by_use
            .split_off(by_use.len().min(width + replicas as usize - 1))
            .into_iter()
            .map(Reverse);
        let mut least: BinaryHeap<Reverse<(u64, usize)>> =
            by_use.into_iter().map(Reverse).collect();
        let mut listed = Vec::with_capacity((count * replicas) as usize);
        let mut passed = Vec::new();
        for bytes in sizes {
            let mut wanting = replicas;
            while wanting > 0 {
                let Some(Reverse((used, rank))) = least.pop().or_else(|| others.next()) else {
                    return Err(Full::store(format!(
                        "the store is full: {} of {} nodes have room for {bytes} bytes more",
                        replicas - wanting,
                        self.hosts.len()
                    )));
                };
                let node = order[rank];
                let full = self.capacity[node as usize].is_some_and(|most| used + bytes > most);
                if full {
                    passed.push(Reverse((used, rank)));
                    continue;
                }
                passed.push(Reverse((used + bytes, rank)));
                listed.push(node);
                wanting -= 1;
            }
            least.extend(passed.drain(..));
        }
        Ok(listed)
    }

    /// Nodes of a stripe, in `order`, without those that lack space for their share. Reduces the width if too few nodes
    /// remain.
    fn hosts_with_space(
        &self,
        mut order: Vec<u32>,
        width: &mut u64,
        replicas: u64,
        bytes: u64,
    ) -> Result<Vec<u32>, Full> {
        let n = self.hosts.len() as u64;
        loop {
            let hosts_needed = (*width + replicas - 1).min(n) as usize;
            if !self.limited {
                order.truncate(hosts_needed);
                return Ok(order);
            }
            let share = bytes.div_ceil(*width).saturating_mul(replicas).min(bytes);
            let fitting: Vec<u32> = order
                .iter()
                .copied()
                .filter(|node| self.free(*node) >= share)
                .take(hosts_needed)
                .collect();
            if fitting.len() == hosts_needed {
                return Ok(fitting);
            }
            if (fitting.len() as u64) < replicas || *width == 1 {
                return Err(Full::store(format!(
                    "the store is full: {} of {n} nodes have room for {share} bytes more",
                    fitting.len()
                )));
            }
            *width = (*width - 1).min(fitting.len() as u64 + 1 - replicas);
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
