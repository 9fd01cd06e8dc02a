//! Threads by number and start. The kernel reuses the numbers of threads that ended.

use std::collections::{BTreeMap, HashMap};

/// Numbers of threads are below this (PID_MAX_LIMIT of the kernel). Higher numbers are keys of this module.
const MOST_TIDS: u32 = 1 << 22;

/// Keys that distinguish threads of the same number by the time of their operations.
#[derive(Clone, Debug, Default)]
pub struct Starts {
    /// For each number of several threads: starts of the second and later ones [ns], and the key of the second.
    again: HashMap<u32, (Vec<u64>, u32)>,
    /// Number and start of the threads with keys from MOST_TIDS on.
    threads: Vec<(u32, u64)>,
}

impl Starts {
    /// Create keys from (number, start [ns]) of threads in any order. Repeated pairs are the same thread.
    pub fn new(threads: impl IntoIterator<Item = (u32, u64)>) -> Self {
        // ordered, so that two sets of the same threads have the same keys
        let mut starts: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (tid, started_ns) in threads {
            starts.entry(tid).or_default().push(started_ns);
        }
        let mut result = Self::default();
        for (tid, mut times) in starts {
            times.sort_unstable();
            times.dedup();
            if times.len() < 2 {
                continue;
            }
            let later = times.split_off(1);
            let first = MOST_TIDS + result.threads.len() as u32;
            result.threads.extend(later.iter().map(|&time| (tid, time)));
            result.again.insert(tid, (later, first));
        }
        result
    }

    /// Unique key of the thread that had number `tid` at time `t_ns`.
    #[inline]
    pub fn key(&self, tid: u32, t_ns: u64) -> u32 {
        if self.again.is_empty() {
            return tid;
        }
        let Some((later, first)) = self.again.get(&tid) else {
            return tid;
        };
        match later.partition_point(|&start| start <= t_ns) {
            0 => tid,
            number => first + number as u32 - 1,
        }
    }

    /// Start of the thread that had number `tid` at time `t_ns` [ns]; None for the first thread of that number.
    pub fn started_ns(&self, tid: u32, t_ns: u64) -> Option<u64> {
        self.thread(self.key(tid, t_ns)).1
    }

    /// Number of the thread with this key, and its start [ns] unless it was the first of that number.
    pub fn thread(&self, key: u32) -> (u32, Option<u64>) {
        let of_ours = key.checked_sub(MOST_TIDS);
        match of_ours.and_then(|at| self.threads.get(at as usize)) {
            Some(&(tid, started_ns)) => (tid, Some(started_ns)),
            None => (key, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_thread_ids_are_new_threads() {
        let starts = Starts::new([(7, 100), (7, 500), (9, 200), (7, 900), (7, 500)]);
        let keys: Vec<u32> = [50, 100, 499, 500, 899, 900]
            .iter()
            .map(|&t_ns| starts.key(7, t_ns))
            .collect();
        assert_eq!(keys[0], 7);
        assert_eq!(keys[..3], [7, 7, 7]);
        assert!(keys[3] == keys[4] && keys[3] != 7 && keys[5] != keys[4]);
        assert_eq!(starts.key(9, 1_000), 9);
        assert_eq!(starts.thread(keys[3]), (7, Some(500)));
        assert_eq!(starts.thread(keys[5]), (7, Some(900)));
        assert_eq!(starts.thread(9), (9, None));
    }
}
