//! A queue with k servers, first come first served, and the books kept on it.

use penstock_station::{Draws, Sampler};

use super::time::{Clock, Ticks};

/// No activity.
pub const NONE: u32 = u32::MAX;

/// What a queue's table row is made from: streamed, of constant size.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Requests that were taken up.
    pub requests: u64,
    /// Service times added up.
    pub busy: Ticks,
    /// Waiting times before service added up.
    pub waited: f64,
    /// Longest waiting time.
    pub wait_max: Ticks,
    /// Waiting now.
    pub waiting: u64,
    /// Most that waited at the same time.
    pub waiting_max: u64,
}

impl Tally {
    /// One more waits.
    #[inline]
    pub fn join(&mut self) {
        self.waiting += 1;
        self.waiting_max = self.waiting_max.max(self.waiting);
    }

    /// One of the waiting is taken up.
    #[inline]
    pub fn leave(&mut self) {
        self.waiting -= 1;
    }

    /// A request is served for `service` after it waited for `wait`.
    #[inline]
    pub fn serve(&mut self, wait: Ticks, service: Ticks) {
        self.requests += 1;
        self.busy += service;
        self.waited += wait as f64;
        self.wait_max = self.wait_max.max(wait);
    }
}

/// Time that at least one of several overlapping intervals covers; intervals begin in the order they are added.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cover {
    /// Covered so far.
    pub total: Ticks,
    until: Ticks,
}

impl Cover {
    /// Adds an interval.
    #[inline]
    pub fn add(&mut self, start: Ticks, end: Ticks) {
        let start = start.max(self.until);
        if end > start {
            self.total += end - start;
            self.until = end;
        }
    }
}

/// Who stands behind whom: one place per customer, who waits in one queue at a time.
pub trait Links {
    /// Who stands behind `who`.
    fn next(&self, who: u32) -> u32;
    /// Puts `next` behind `who`.
    fn set_next(&mut self, who: u32, next: u32);
}

impl Links for [u32] {
    #[inline]
    fn next(&self, who: u32) -> u32 {
        self[who as usize]
    }
    #[inline]
    fn set_next(&mut self, who: u32, next: u32) {
        self[who as usize] = next;
    }
}

/// First come first served, `servers` at a time. Who waits is linked through places that the caller owns, so that
/// a thousand queues cost no more memory than what waits in them.
#[derive(Debug, Clone)]
pub struct Fifo {
    idle: u32,
    head: u32,
    tail: u32,
    /// The books.
    pub tally: Tally,
}

impl Fifo {
    /// An empty queue.
    #[must_use]
    pub fn new(servers: u32) -> Self {
        Fifo {
            idle: servers,
            head: NONE,
            tail: NONE,
            tally: Tally::default(),
        }
    }

    /// `who` arrives. True if a server takes it at once; else it waits.
    #[inline]
    pub fn arrive(&mut self, who: u32, links: &mut (impl Links + ?Sized)) -> bool {
        if self.idle > 0 {
            self.idle -= 1;
            return true;
        }
        links.set_next(who, NONE);
        if self.head == NONE {
            self.head = who;
        } else {
            links.set_next(self.tail, who);
        }
        self.tail = who;
        self.tally.join();
        false
    }

    /// A server is free again; who it takes up next, if anyone waits.
    #[inline]
    pub fn depart(&mut self, links: &(impl Links + ?Sized)) -> Option<u32> {
        if self.head == NONE {
            self.idle += 1;
            return None;
        }
        let next = self.head;
        self.head = links.next(next);
        self.tally.leave();
        Some(next)
    }
}

/// A service time: a draw and a cost by bytes.
#[derive(Debug, Clone)]
pub struct Service {
    constant: Ticks,
    drawn: Option<Box<Sampler>>,
    ticks_per_byte: f64,
}

impl Service {
    /// Overhead in seconds (constant or drawn) plus `s_per_byte` seconds for each byte.
    #[must_use]
    pub fn new(overhead: &Sampler, s_per_byte: f64, clock: Clock) -> Self {
        Service {
            constant: overhead.constant_ns().map_or(0, |ns| clock.from_ns(ns)),
            drawn: match overhead.constant_ns() {
                Some(_) => None,
                None => Some(Box::new(overhead.clone())),
            },
            ticks_per_byte: s_per_byte * clock.per_s(),
        }
    }

    /// Whether it never takes any time.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.constant == 0 && self.drawn.is_none() && self.ticks_per_byte == 0.0
    }

    /// The service time of a request of `bytes`; `draws` belong to this request alone.
    #[inline]
    pub fn ticks(&self, bytes: u64, clock: Clock, draws: impl FnOnce() -> Draws) -> Ticks {
        let fixed = match &self.drawn {
            None => self.constant,
            Some(sampler) => clock.from_ns(sampler.draw(&mut draws())),
        };
        if self.ticks_per_byte == 0.0 {
            fixed
        } else {
            fixed + (bytes as f64 * self.ticks_per_byte + 0.5) as Ticks
        }
    }
}
