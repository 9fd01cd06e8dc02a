//! Files as the manager sees them: the location of every chunk.
//!
//! A write that needs new chunks gets one [`Segment`]: a short list of nodes and a rule instead of an entry per chunk.
//! A file of terabytes needs no more memory than its stripe.

use super::placed::Extents;
use super::server::NONE;
use super::workload::{HintsText, PlacementKind};

/// Rule that maps a segment's chunks to its list of nodes; `i` counts its chunks, `j` the replicas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rule {
    /// Chunk `i` on entry `i mod width`, replica `j` on the `j`-th entry after it.
    Stripe { width: u64 },
    /// Like a stripe, but with `run` consecutive chunks per entry.
    Scatter { width: u64, run: u64 },
    /// First replica always on the first entry, the others in turn on the rest.
    Pinned,
    /// Entry `i * replicas + j`.
    Listed,
}

/// Contiguous chunks that one request allocated.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub first: u64,
    pub count: u64,
    pub replicas: u64,
    pub rule: Rule,
    /// Hosts.
    pub nodes: Vec<u32>,
    /// Begin of this segment's region on each host, bytes.
    pub base: Vec<u64>,
}

/// Remainder, with 32-bit division if both numbers fit.
#[inline]
fn modulo(a: u64, b: u64) -> u64 {
    if (a | b) >> 32 == 0 {
        u64::from(a as u32 % b as u32)
    } else {
        a % b
    }
}

impl Segment {
    /// Entry of the node list, and the number of the chunk among this segment's chunks on that entry.
    #[inline]
    pub fn entry(&self, i: u64, j: u64) -> (usize, u64) {
        let n = self.nodes.len() as u64;
        // neither the position in the stripe nor the number of a replica reaches n
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

    /// Number of chunks for each entry of the node list.
    pub fn each_share(&self, mut share: impl FnMut(usize, u64)) {
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

/// Tags of a file with resolved names. They override the defaults of the store.
#[derive(Debug, Clone, Default)]
pub struct Tags {
    pub(super) placement: Option<PlacementKind>,
    pub(super) group: Option<String>,
    pub(super) scatter: Option<u64>,
    pub(super) stripe_width: Option<u32>,
    pub(super) replicas: Option<u32>,
    pub(super) chunk_bytes: Option<u64>,
    pub(super) host: Option<u32>,
}

impl Tags {
    /// Apply the tags that `hints` sets; `host` is the number of the host that they name.
    ///
    /// A host stays in effect until another host or another placement is set.
    pub fn set(&mut self, hints: &HintsText, host: Option<u32>) {
        if hints.placement.is_some() {
            self.host = None;
        }
        self.placement = hints.placement.or(self.placement);
        self.group = hints.group.clone().or(self.group.take());
        self.scatter = hints.scatter.or(self.scatter);
        self.stripe_width = hints.stripe_width.or(self.stripe_width);
        self.replicas = hints.replicas.or(self.replicas);
        self.chunk_bytes = hints.chunk_bytes.or(self.chunk_bytes);
        self.host = host.or(self.host);
    }
}

/// A file in the manager's view.
#[derive(Debug, Clone, Default)]
pub struct File {
    /// Current tags.
    pub hints: Tags,
    /// Chunk size in bytes.
    pub chunk_bytes: u64,
    /// Size in bytes.
    pub size: u64,
    /// Ranges of bytes below `size` that were never written, in order.
    holes: Vec<(u64, u64)>,
    /// Explicit placement of its bytes, if there is one.
    pub(super) placed: Option<Extents>,
    pub(super) segments: Vec<Segment>,
    pub(super) allocations: u64,
}

impl File {
    #[inline]
    pub(super) fn segment(&self, chunk: u64) -> Option<&Segment> {
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

    /// Hosts of the first allocated chunk of the `count` chunks from `first` on.
    pub(super) fn hosts_in(&self, first: u64, count: u64) -> Option<Vec<u32>> {
        let after = self
            .segments
            .partition_point(|s| s.first + s.count <= first);
        let chunk = self.segments.get(after)?.first.max(first);
        let hosts = || (0..self.replicas(chunk)).map(|j| self.host(chunk, j));
        (chunk - first < count).then(|| hosts().collect())
    }

    /// Number of replicas of a chunk, and the host of the first one.
    #[inline]
    pub fn first_host(&self, chunk: u64) -> (u64, u32) {
        self.segment(chunk).map_or((0, NONE), |segment| {
            let at = segment.entry(chunk - segment.first, 0).0;
            (segment.replicas, segment.nodes[at])
        })
    }

    /// Number of replicas of a chunk; 0 if it was never allocated.
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

    /// Position of a replica of a chunk on its host, bytes.
    pub fn place(&self, chunk: u64, replica: u64) -> u64 {
        self.segment(chunk).map_or(0, |segment| {
            let (at, nth) = segment.entry(chunk - segment.first, replica);
            segment.base[at] + nth * self.chunk_bytes
        })
    }

    /// Choose a replica to read: the client's own if `local` is set and it has one, otherwise by `draw`.
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

    /// Bytes of the file on each host; each replica counts.
    pub fn each_host(&self, mut bytes: impl FnMut(u32, u64)) {
        for segment in &self.segments {
            segment.each_share(|at, chunks| bytes(segment.nodes[at], chunks * self.chunk_bytes));
        }
    }

    /// Bytes `offset..end` of the file on each host; each replica counts. Add up the values of a host.
    pub fn each_host_of(&self, offset: u64, end: u64, mut add: impl FnMut(u32, i64)) {
        let chunk_bytes = self.chunk_bytes.max(1);
        let (first, last) = (offset / chunk_bytes, end.div_ceil(chunk_bytes));
        for segment in &self.segments {
            let (begin, stop) = (segment.first, segment.first + segment.count);
            if first > begin || last < stop {
                for chunk in first.max(begin)..last.min(stop) {
                    let bytes = self.within(chunk, offset, end) as i64;
                    (0..segment.replicas).for_each(|j| add(self.host(chunk, j), bytes));
                }
                continue;
            }
            segment.each_share(|at, chunks| add(segment.nodes[at], (chunks * chunk_bytes) as i64));
            // the chunks at both ends may count only in part
            let ends = [begin, stop - 1];
            for chunk in &ends[usize::from(begin == stop - 1)..] {
                let less = chunk_bytes - self.within(*chunk, offset, end);
                if less > 0 {
                    (0..segment.replicas).for_each(|j| add(self.host(*chunk, j), -(less as i64)));
                }
            }
        }
    }

    /// Add the bytes `begin..end` to the file. Return the ranges of them that the file did not have.
    pub(super) fn extend(&mut self, begin: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.holes.partition_point(|hole| hole.1 <= begin);
        let last = self.holes.partition_point(|hole| hole.0 < end);
        let (mut new, mut rest) = (Vec::new(), Vec::new());
        for &(from, to) in &self.holes[first..last.max(first)] {
            new.push((from.max(begin), to.min(end)));
            rest.extend((from < begin).then_some((from, begin)));
            rest.extend((end < to).then_some((end, to)));
        }
        self.holes.splice(first..last.max(first), rest);
        if begin > self.size {
            self.holes.push((self.size, begin));
        }
        if end > self.size {
            new.push((begin.max(self.size), end));
            self.size = end;
        }
        new
    }

    /// Number of the bytes `offset..end` that are in a chunk.
    pub fn within(&self, chunk: u64, offset: u64, end: u64) -> u64 {
        let begin = chunk * self.chunk_bytes;
        end.min(begin + self.chunk_bytes)
            .saturating_sub(offset.max(begin))
    }

    /// Runs of unallocated chunks in `first..end`.
    pub(super) fn gaps(&self, first: u64, end: u64) -> Vec<(u64, u64)> {
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
