//! Client cache of complete chunks; evicts the least recently used (Costa 2014).

use std::collections::{BTreeMap, HashMap};

/// Chunks by (file, chunk).
#[derive(Debug, Default)]
pub struct Lru {
    capacity: u64,
    used: u64,
    clock: u64,
    entries: HashMap<(u32, u64), (u64, u64)>,
    by_use: BTreeMap<u64, (u32, u64)>,
}

impl Lru {
    /// Create an empty cache of this many bytes.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Lru {
            capacity: capacity_bytes,
            ..Lru::default()
        }
    }

    /// True if the cache has the chunk, which then becomes the most recently used.
    pub fn touch(&mut self, file: u32, chunk: u64) -> bool {
        self.clock += 1;
        let Some((used, _)) = self.entries.get_mut(&(file, chunk)) else {
            return false;
        };
        self.by_use.remove(used);
        *used = self.clock;
        self.by_use.insert(self.clock, (file, chunk));
        true
    }

    /// Add a chunk of `bytes`. Evicts the least recently used chunks if necessary.
    pub fn keep(&mut self, file: u32, chunk: u64, bytes: u64) {
        if bytes > self.capacity || self.touch(file, chunk) {
            return;
        }
        while self.used + bytes > self.capacity {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                break;
            };
            if let Some((_, freed)) = self.entries.remove(&oldest) {
                self.used -= freed;
            }
        }
        self.used += bytes;
        self.entries.insert((file, chunk), (self.clock, bytes));
        self.by_use.insert(self.clock, (file, chunk));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cache vector (spec §12): an LRU of 2 chunks, reads 1,2,1,3,2,1: 1 hit, 5 misses.
    #[test]
    fn cache_vector() {
        let mut cache = Lru::new(2 << 20);
        let (mut hits, mut misses) = (0, 0);
        for chunk in [1, 2, 1, 3, 2, 1] {
            if cache.touch(0, chunk) {
                hits += 1;
            } else {
                misses += 1;
                cache.keep(0, chunk, 1 << 20);
            }
        }
        assert_eq!((hits, misses), (1, 5));
    }
}
