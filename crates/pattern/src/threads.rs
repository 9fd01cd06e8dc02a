//! Threads by number and start: the kernel gives the number of a thread that ended to another one.

use std::collections::{BTreeMap, HashMap};

/// Numbers of threads are below this (PID_MAX_LIMIT of the kernel); those from here on are ours.
const MOST_TIDS: u32 = 1 << 22;

/// Tells the threads of one number apart by the time of what they do.
#[derive(Clone, Debug, Default)]
pub struct Starts {
    /// Of each number that several threads had: when the second, third, ... began [ns], and the key of the second.
    again: HashMap<u32, (Vec<u64>, u32)>,
    /// Number and start of the threads that have keys of ours, from MOST_TIDS on.
    threads: Vec<(u32, u64)>,
}

impl Starts {
    /// From (number, start [ns]) of threads, in any order; one that is given again is the same thread.
    pub fn new(threads: impl IntoIterator<Item = (u32, u64)>) -> Self {
        // in order: two of the same threads give the same keys
        let mut starts: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (tid, started_ns) in threads {
            starts.entry(tid).or_default().push(started_ns);
        }
        let mut found = Self::default();
        for (tid, mut times) in starts {
            times.sort_unstable();
            times.dedup();
            if times.len() < 2 {
                continue;
            }
            let later = times.split_off(1);
            let first = MOST_TIDS + found.threads.len() as u32;
            found.threads.extend(later.iter().map(|&time| (tid, time)));
            found.again.insert(tid, (later, first));
        }
        found
    }

    /// A number for the thread that had `tid` at a time: one that no other thread of the recording has.
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

    /// When the thread that had `tid` at a time began, unless it was the first of that number [ns].
    pub fn started_ns(&self, tid: u32, t_ns: u64) -> Option<u64> {
        self.thread(self.key(tid, t_ns)).1
    }

    /// The thread of such a number: its own, and its start [ns] unless it was the first of that number.
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
    fn a_number_used_again_is_another_thread() {
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
