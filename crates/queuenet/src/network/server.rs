//! A queue with k servers, first come first served, and its statistics.

use penstock_station::{Draws, Sampler};

use super::time::{Clock, Ticks};

/// No activity.
pub const NONE: u32 = u32::MAX;

/// Statistics of a queue: streamed, of constant size.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Number of requests whose service began.
    pub requests: u64,
    /// Sum of the service times.
    pub busy: Ticks,
    /// Sum of the waiting times before service.
    pub waited: f64,
    /// Longest waiting time.
    pub wait_max: Ticks,
    /// Number of waiting requests.
    pub waiting: u64,
    /// Largest number of waiting requests.
    pub waiting_max: u64,
}

impl Tally {
    /// Add a waiting request.
    #[inline]
    pub fn join(&mut self) {
        self.waiting += 1;
        self.waiting_max = self.waiting_max.max(self.waiting);
    }

    /// Remove a waiting request.
    #[inline]
    pub fn leave(&mut self) {
        self.waiting -= 1;
    }

    /// Count a request that is served for `service` after waiting for `wait`.
    #[inline]
    pub fn serve(&mut self, wait: Ticks, service: Ticks) {
        self.requests += 1;
        self.busy += service;
        self.waited += wait as f64;
        self.wait_max = self.wait_max.max(wait);
    }
}

/// Total time that at least one of several overlapping intervals covers. Add intervals in the order of their begins.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cover {
    /// Time covered up to now.
    pub total: Ticks,
    until: Ticks,
}

impl Cover {
    /// Add an interval.
    #[inline]
    pub fn add(&mut self, start: Ticks, end: Ticks) {
        let start = start.max(self.until);
        if end > start {
            self.total += end - start;
            self.until = end;
        }
    }
}

/// Links of waiting customers: one place per customer, who waits in one queue at a time.
pub trait Links {
    /// The customer behind `who`.
    fn next(&self, who: u32) -> u32;
    /// Put `next` behind `who`.
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

/// Queue with `servers` servers, first come first served. Waiting customers are linked through places that the caller
/// owns, so a thousand queues need no more memory than their waiting customers.
#[derive(Debug, Clone)]
pub struct Fifo {
    idle: u32,
    head: u32,
    tail: u32,
    /// Statistics.
    pub tally: Tally,
}

impl Fifo {
    /// Create an empty queue.
    #[must_use]
    pub fn new(servers: u32) -> Self {
        Fifo {
            idle: servers,
            head: NONE,
            tail: NONE,
            tally: Tally::default(),
        }
    }

    /// Add customer `who`. Return true if a server is free; otherwise the customer waits.
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

    /// Release a server. Return the customer that it serves next, if one waits.
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

/// A service time: a random overhead plus a cost per byte.
#[derive(Debug, Clone)]
pub struct Service {
    constant: Ticks,
    drawn: Option<Box<Sampler>>,
    ticks_per_byte: f64,
}

impl Service {
    /// Overhead in seconds (constant or random) plus `s_per_byte` seconds for each byte.
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

    /// True if the service time is always zero.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.constant == 0 && self.drawn.is_none() && self.ticks_per_byte == 0.0
    }

    /// Service time of a request of `bytes`. `draws` are the random numbers of this request alone.
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
