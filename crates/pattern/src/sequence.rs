//! Sequence of requests, stored as epochs.

use crate::chains;
use crate::epoch::{block_hash, epoch_requests, Counter};
use crate::phases::{look_within, part_chained, without_order};
use crate::summary::Epochs;

/// Request that transferred at least one byte.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Start [bytes].
    pub offset: i64,
    /// Start of the request, CLOCK_MONOTONIC [ns].
    pub t_ns: u64,
    /// Size [bytes].
    pub size: u32,
    /// Thread.
    pub tid: u32,
}

/// Counter of requests into epochs.
#[derive(Clone)]
pub(crate) struct Sequence {
    counter: Counter,
    pub epochs: Epochs,
    waiting: Vec<Request>,
    seen: u64,
}

impl Sequence {
    pub fn new(blocks: usize) -> Self {
        Self {
            counter: Counter::default(),
            epochs: Epochs::new(blocks),
            waiting: Vec::new(),
            seen: 0,
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

    /// Count the requests of one epoch, or fewer at the end.
    pub fn count(&mut self, requests: &[Request], most: usize) {
        for request in requests {
            self.counter
                .push(request.offset, i64::from(request.size), request.t_ns);
        }
        let mut epoch = self.counter.cut();
        if part_chained(&epoch) {
            let offsets: Vec<i64> = requests.iter().map(|request| request.offset).collect();
            let sizes: Vec<i64> = requests.iter().map(|r| i64::from(r.size)).collect();
            // chains of two phases follow each other, those of streams are open at the same time
            let chains_found = chains::find_mixed(&offsets, &sizes).filter(|c| c.open_median >= 2);
            if let Some(chains_found) = chains_found {
                let before = epoch.chained.min(epoch.requests);
                epoch.strided = chains_found.strided;
                epoch.chained = (before + chains_found.strided).min(epoch.requests);
                epoch.open_sum = epoch.open_sum.max(chains_found.open_sum);
            }
        }
        if without_order(&epoch) {
            let blocks = requests
                .iter()
                .map(|request| block_hash(request.offset, i64::from(request.size)));
            look_within(&mut epoch, blocks.clone());
            blocks.for_each(|hash| self.epochs.hot.offer(hash));
        }
        self.epochs.push(epoch, most);
    }

    /// Count the requests of an incomplete epoch.
    pub fn flush(&mut self, most: usize) {
        if !self.waiting.is_empty() {
            let waiting = std::mem::take(&mut self.waiting);
            self.count(&waiting, most);
        }
    }
}
