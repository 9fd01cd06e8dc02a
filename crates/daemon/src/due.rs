//! Queue of items ordered by due time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Item with a due time. Items with the same due time keep their order of insertion.
#[derive(Debug)]
pub struct Due<T> {
    /// Due time.
    pub due_ns: u64,
    number: u64,
    /// The item.
    pub what: T,
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.due_ns, self.number) == (other.due_ns, other.number)
    }
}
impl<T> Eq for Due<T> {}
impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Due<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due_ns, self.number).cmp(&(other.due_ns, other.number))
    }
}

/// Items waiting for their due time.
#[derive(Debug)]
pub struct Waiting<T> {
    heap: BinaryHeap<Reverse<Due<T>>>,
    number: u64,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Waiting {
            heap: BinaryHeap::new(),
            number: 0,
        }
    }
}

impl<T> Waiting<T> {
    /// Add an item. Return true if it is now the earliest.
    pub fn put(&mut self, due_ns: u64, what: T) -> bool {
        self.number += 1;
        let first = self.next_ns().is_none_or(|next_ns| due_ns < next_ns);
        self.heap.push(Reverse(Due {
            due_ns,
            number: self.number,
            what,
        }));
        first
    }

    /// Due time of the earliest item.
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|first| first.0.due_ns)
    }

    /// Remove and return the earliest item, due or not.
    pub fn take(&mut self) -> Option<Due<T>> {
        self.heap.pop().map(|first| first.0)
    }

    /// Remove and return the earliest item if it is due by `now_ns`.
    pub fn take_due(&mut self, now_ns: u64) -> Option<Due<T>> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.take()
    }

    /// Change the waiting items, including their due times.
    pub fn change(&mut self, mut update: impl FnMut(&mut Due<T>)) {
        let mut all = std::mem::take(&mut self.heap).into_vec();
        for Reverse(due) in &mut all {
            update(due);
        }
        self.heap = BinaryHeap::from(all);
    }

    /// Number of waiting items.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if no item waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Waiting;

    #[test]
    fn order_is_by_time_then_insertion() {
        let mut waiting = Waiting::default();
        assert!(waiting.put(200, 'b'));
        assert!(waiting.put(100, 'a'));
        assert!(!waiting.put(200, 'c'));
        assert_eq!(waiting.next_ns(), Some(100));
        assert!(waiting.take_due(99).is_none());
        waiting.change(|due| {
            if due.what == 'c' {
                due.due_ns = 50;
            }
        });
        let order: Vec<char> =
            std::iter::from_fn(|| waiting.take_due(1000).map(|due| due.what)).collect();
        assert_eq!(order, ['c', 'a', 'b']);
        assert!(waiting.is_empty());
    }
}
