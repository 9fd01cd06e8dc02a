//! Event queue: a heap with four children per node and one 16-byte word per event.

use super::time::Ticks;

/// Number of bits of the activity of an event.
pub const INDEX_BITS: u32 = 27;
const KIND_BITS: u32 = 3;
const LOW_BITS: u32 = INDEX_BITS + KIND_BITS;
/// Largest creation number.
pub const MAX_ORDER: u64 = (1 << (64 - LOW_BITS)) - 1;

/// Events in order of time, then of creation.
///
/// ```
/// use penstock_queuenet::network::EventHeap;
/// let mut heap = EventHeap::default();
/// heap.push(5, 2, 0, 7);
/// heap.push(5, 1, 1, 8);
/// heap.push(3, 3, 0, 9);
/// assert_eq!(heap.pop(), Some((3, 3, 0, 9)));
/// assert_eq!(heap.pop(), Some((5, 1, 1, 8)));
/// ```
#[derive(Debug, Default, Clone)]
pub struct EventHeap {
    entries: Vec<u128>,
    /// True if the root was removed and not yet replaced; the next pushed event goes there.
    hole: bool,
}

#[inline]
fn packed(time: Ticks, order: u64, kind: u8, index: u32) -> u128 {
    debug_assert!(order <= MAX_ORDER && index < 1 << INDEX_BITS);
    let low = order << LOW_BITS | u64::from(kind) << INDEX_BITS | u64::from(index);
    u128::from(time) << 64 | u128::from(low)
}

#[inline]
fn unpacked(entry: u128) -> (Ticks, u64, u8, u32) {
    let low = entry as u64;
    (
        (entry >> 64) as u64,
        low >> LOW_BITS,
        (low >> INDEX_BITS) as u8 & ((1 << KIND_BITS) - 1),
        low as u32 & ((1 << INDEX_BITS) - 1),
    )
}

impl EventHeap {
    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - usize::from(self.hole)
    }

    /// True if there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Add an event: time, creation number, kind (below 8) and activity (below 2^27).
    #[inline]
    pub fn push(&mut self, time: Ticks, order: u64, kind: u8, index: u32) {
        let entry = packed(time, order, kind, index);
        if self.hole {
            self.hole = false;
            self.sink(entry);
            return;
        }
        let mut at = self.entries.len();
        self.entries.push(entry);
        while at > 0 {
            let parent = (at - 1) / 4;
            if self.entries[parent] <= entry {
                break;
            }
            self.entries[at] = self.entries[parent];
            at = parent;
        }
        self.entries[at] = entry;
    }

    /// The next event: (time, creation number, kind, activity).
    #[inline]
    #[must_use]
    pub fn peek(&mut self) -> Option<(Ticks, u64, u8, u32)> {
        self.fill();
        self.entries.first().copied().map(unpacked)
    }

    /// Replace the next event by another.
    #[inline]
    pub fn replace_top(&mut self, time: Ticks, order: u64, kind: u8, index: u32) {
        self.fill();
        self.sink(packed(time, order, kind, index));
    }

    /// Fill the root's place with the last entry.
    #[inline]
    fn fill(&mut self) {
        if self.hole {
            self.hole = false;
            if let Some(last) = self.entries.pop() {
                if !self.entries.is_empty() {
                    self.sink(last);
                }
            }
        }
    }

    /// Remove the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Ticks, u64, u8, u32)> {
        self.fill();
        let top = self.entries.first().copied()?;
        self.hole = true;
        Some(unpacked(top))
    }

    /// Move `entry` down from the root to its position.
    #[inline]
    fn sink(&mut self, entry: u128) {
        let entries = &mut self.entries[..];
        let n = entries.len();
        let mut at = 0;
        loop {
            let first = 4 * at + 1;
            if first >= n {
                break;
            }
            let least = if let Some(four) = entries.get(first..first + 4) {
                let a = usize::from(four[1] < four[0]);
                let b = 2 + usize::from(four[3] < four[2]);
                first + if four[b] < four[a] { b } else { a }
            } else {
                let mut least = first;
                for child in first + 1..n {
                    if entries[child] < entries[least] {
                        least = child;
                    }
                }
                least
            };
            if entries[least] >= entry {
                break;
            }
            entries[at] = entries[least];
            at = least;
        }
        entries[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_station::mix64;

    #[test]
    fn events_come_by_time_and_then_by_creation() {
        let mut heap = EventHeap::default();
        let mut expected: Vec<(u64, u64)> = Vec::new();
        for order in 0..5_000u64 {
            let time = mix64(order) % 300;
            heap.push(time, order, (order % 8) as u8, order as u32);
            expected.push((time, order));
        }
        expected.sort_unstable();
        for (time, order) in expected {
            assert_eq!(
                heap.pop(),
                Some((time, order, (order % 8) as u8, order as u32))
            );
        }
        assert!(heap.is_empty());
    }

    #[test]
    fn replacing_the_top_is_pop_and_push() {
        let (mut a, mut b) = (EventHeap::default(), EventHeap::default());
        for order in 0..100u64 {
            a.push(mix64(order) % 50, order, 0, 1);
            b.push(mix64(order) % 50, order, 0, 1);
        }
        for order in 100..1000u64 {
            let (time, ..) = a.pop().unwrap();
            a.push(time + mix64(order) % 50, order, 2, 3);
            let (time, ..) = b.peek().unwrap();
            b.replace_top(time + mix64(order) % 50, order, 2, 3);
            assert_eq!(a.peek(), b.peek());
        }
    }
}
