//! Queue of delayed frames, with the order of frames of each pair of ports.

use std::collections::HashMap;

use penstock_daemon::due::{Due, Waiting};

use crate::frame::Frame;

/// A frame and its output port.
#[derive(Debug)]
pub struct Leaving {
    pub port: u32,
    pub frame: Frame,
}

/// Queue of delayed frames.
#[derive(Debug)]
pub struct Line {
    waiting: Waiting<Leaving>,
    buffered_bytes: usize,
    most_bytes: usize,
    last: HashMap<(u32, u32), u64>,
}

impl Line {
    /// Empty queue with a memory limit of `most_bytes`. Frames beyond it are refused.
    pub fn new(most_bytes: usize) -> Self {
        Line {
            waiting: Waiting::default(),
            buffered_bytes: 0,
            most_bytes,
            last: HashMap::new(),
        }
    }

    /// Send time of a frame from one port to another that is due at `due_ns`: never before earlier frames of
    /// this pair.
    pub fn in_order(&mut self, from: u32, to: u32, due_ns: u64) -> u64 {
        let last = self.last.entry((from, to)).or_insert(0);
        *last = due_ns.max(*last);
        *last
    }

    /// Forget the order of frames of this port, because its delay has changed.
    pub fn forget_order(&mut self, port: u32) {
        self.last
            .retain(|(from, to), _| *from != port && *to != port);
    }

    /// Forget the order of all frames.
    pub fn forget_all(&mut self) {
        self.last.clear();
    }

    /// Queue a frame, or return it if the memory limit is reached.
    pub fn put(&mut self, due_ns: u64, port: u32, frame: Frame) -> Result<(), Frame> {
        if self.buffered_bytes + frame.buffered_bytes() > self.most_bytes {
            return Err(frame);
        }
        self.buffered_bytes += frame.buffered_bytes();
        self.waiting.put(due_ns, Leaving { port, frame });
        Ok(())
    }

    /// Due time of the earliest frame.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.waiting.next_ns()
    }

    /// Remove and return the next frame that is due by `now_ns`.
    pub fn due(&mut self, now_ns: u64) -> Option<Due<Leaving>> {
        let first = self.waiting.take_due(now_ns)?;
        self.buffered_bytes -= first.what.frame.buffered_bytes();
        Some(first)
    }

    /// Number of queued frames.
    pub fn len(&self) -> usize {
        self.waiting.len()
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
    fn frames_are_delivered_in_order_when_due() {
        let mut line = Line::new(3 * HEAD_BYTES);
        line.put(200, 1, frame(2)).unwrap();
        line.put(100, 1, frame(1)).unwrap();
        line.put(200, 1, frame(3)).unwrap();
        assert!(line.put(50, 1, frame(9)).is_err());
        assert_eq!(line.next_due_ns(), Some(100));
        assert!(line.due(99).is_none());
        let order: Vec<u8> =
            std::iter::from_fn(|| line.due(1000).map(|w| w.what.frame.head[0])).collect();
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
