//! Frames that wait until they are due, and the order of those that go the same way.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::frame::Frame;

/// A frame that waits.
#[derive(Debug)]
pub struct Waiting {
    pub due_ns: u64,
    number: u64,
    pub port: u32,
    pub frame: Frame,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        (self.due_ns, self.number) == (other.due_ns, other.number)
    }
}
impl Eq for Waiting {}
impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due_ns, self.number).cmp(&(other.due_ns, other.number))
    }
}

/// All frames that wait.
#[derive(Debug)]
pub struct Line {
    heap: BinaryHeap<Reverse<Waiting>>,
    number: u64,
    held_bytes: usize,
    most_bytes: usize,
    last: HashMap<(u32, u32), u64>,
}

impl Line {
    /// Empty; frames beyond `most_bytes` of memory are refused.
    pub fn new(most_bytes: usize) -> Self {
        Line {
            heap: BinaryHeap::new(),
            number: 0,
            held_bytes: 0,
            most_bytes,
            last: HashMap::new(),
        }
    }

    /// When a frame from one port to another may go that is due at `due_ns`: not before those that went before it.
    pub fn in_order(&mut self, from: u32, to: u32, due_ns: u64) -> u64 {
        let last = self.last.entry((from, to)).or_insert(0);
        *last = due_ns.max(*last);
        *last
    }

    /// From now on frames of this port are not held back by those that went before: its delay has changed.
    pub fn forget_order(&mut self, port: u32) {
        self.last
            .retain(|(from, to), _| *from != port && *to != port);
    }

    /// Forgets the order of all.
    pub fn forget_all(&mut self) {
        self.last.clear();
    }

    /// Takes a frame, or gives it back where there is no room.
    pub fn put(&mut self, due_ns: u64, port: u32, frame: Frame) -> Result<(), Frame> {
        if self.held_bytes + frame.held_bytes() > self.most_bytes {
            return Err(frame);
        }
        self.held_bytes += frame.held_bytes();
        self.number += 1;
        self.heap.push(Reverse(Waiting {
            due_ns,
            number: self.number,
            port,
            frame,
        }));
        Ok(())
    }

    /// When the next is due.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.heap.peek().map(|first| first.0.due_ns)
    }

    /// The next frame that is due by `now_ns`.
    pub fn due(&mut self, now_ns: u64) -> Option<Waiting> {
        if self.next_due_ns()? > now_ns {
            return None;
        }
        let Reverse(first) = self.heap.pop()?;
        self.held_bytes -= first.frame.held_bytes();
        Some(first)
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::HEAD_BYTES;

    fn frame(mark: u8) -> Frame {
        let mut head = Box::new([0; HEAD_BYTES]);
        head[0] = mark;
        Frame {
            head,
            tail: None,
            len: 60,
        }
    }

    #[test]
    fn frames_come_when_due_and_in_order() {
        let mut line = Line::new(3 * HEAD_BYTES);
        line.put(200, 1, frame(2)).unwrap();
        line.put(100, 1, frame(1)).unwrap();
        line.put(200, 1, frame(3)).unwrap();
        assert!(line.put(50, 1, frame(9)).is_err());
        assert_eq!(line.next_due_ns(), Some(100));
        assert!(line.due(99).is_none());
        let order: Vec<u8> =
            std::iter::from_fn(|| line.due(1000).map(|w| w.frame.head[0])).collect();
        assert_eq!(order, [1, 2, 3]);
        assert!(line.put(50, 1, frame(9)).is_ok());
    }

    #[test]
    fn jitter_does_not_reorder_but_a_changed_delay_acts_at_once() {
        let mut line = Line::new(0);
        assert_eq!(line.in_order(1, 2, 100), 100);
        assert_eq!(line.in_order(1, 2, 60), 100);
        assert_eq!(line.in_order(1, 3, 60), 60);
        line.forget_order(2);
        assert_eq!(line.in_order(1, 2, 70), 70);
    }
}
