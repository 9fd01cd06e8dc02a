//! One sequence of requests, kept as epochs.

use crate::epoch::{epoch_requests, Counter};
use crate::phases::{look_within, without_order};
use crate::summary::Epochs;

/// A request that did something.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Start [bytes].
    pub offset: i64,
    /// When it was made, CLOCK_MONOTONIC [ns].
    pub t_ns: u64,
    /// Size [bytes].
    pub size: u32,
    /// Thread.
    pub tid: u32,
}

/// Counts requests into epochs.
#[derive(Clone)]
pub(crate) struct Sequence {
    counter: Counter,
    pub epochs: Epochs,
    waiting: Vec<Request>,
    seen: u64,
    block_bytes: i64,
}

impl Sequence {
    pub fn new(blocks: usize, block_bytes: i64) -> Self {
        Self {
            counter: Counter::default(),
            epochs: Epochs::new(blocks, block_bytes),
            waiting: Vec::new(),
            seen: 0,
            block_bytes,
        }
    }

    #[inline]
    pub fn push(&mut self, request: Request, most: usize) {
        self.waiting.push(request);
        self.seen += 1;
        if self.waiting.len() as u64 >= epoch_requests(self.seen) {
            let mut waiting = std::mem::take(&mut self.waiting);
            self.count(&waiting, most);
            waiting.clear();
            self.waiting = waiting;
        }
    }

    /// Counts an epoch's requests (or fewer, at the end).
    pub fn count(&mut self, requests: &[Request], most: usize) {
        for request in requests {
            self.counter
                .push(request.offset, i64::from(request.size), request.t_ns);
        }
        let mut epoch = self.counter.cut();
        if without_order(&epoch) {
            let offsets = requests.iter().map(|request| request.offset);
            look_within(&mut epoch, offsets.clone(), self.block_bytes);
            offsets.for_each(|offset| self.epochs.hot.offer(offset));
        }
        self.epochs.push(epoch, most);
    }

    /// Counts what waits for its epoch to be full.
    pub fn flush(&mut self, most: usize) {
        if !self.waiting.is_empty() {
            let waiting = std::mem::take(&mut self.waiting);
            self.count(&waiting, most);
        }
    }
}
