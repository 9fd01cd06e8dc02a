//! Service times of a profile, compiled for the hot path.

use crate::distribution::Sampler;
use crate::profile::{Direction, ServiceClass, StorageProfile};
use crate::random::Draws;
use crate::seek::Arm;
use crate::shape::{Readahead, WriteCache};
use crate::station::{Arrival, Op, Request};

/// A compiled service class.
#[derive(Debug, Clone)]
struct Cost {
    overhead: Sampler,
    ns_per_byte: f64,
    fetch: Option<(u64, Sampler)>,
}

fn ns_per_byte(rate_bps: Option<f64>) -> f64 {
    rate_bps.map_or(0.0, |rate_bps| 1e9 / rate_bps)
}

impl Cost {
    fn new(class: &ServiceClass) -> Self {
        Cost {
            overhead: class.overhead.sampler(),
            ns_per_byte: ns_per_byte(class.rate_bps),
            fetch: class
                .page_fetch
                .as_ref()
                .map(|fetch| (fetch.page_bytes, fetch.overhead.sampler())),
        }
    }

    fn of_cache(cache: &WriteCache) -> Self {
        Cost {
            overhead: cache.overhead.sampler(),
            ns_per_byte: ns_per_byte(cache.rate_bps),
            fetch: None,
        }
    }

    #[inline]
    fn draw_ns(&self, request: Request, draws: &mut Draws) -> f64 {
        let mut ns = self.overhead.draw(draws) + self.ns_per_byte * request.size as f64;
        if let Some((page_bytes, fetch)) = &self.fetch {
            let first_start = request
                .offset
                .div_ceil(*page_bytes)
                .saturating_mul(*page_bytes);
            if first_start < request.offset.saturating_add(request.size) {
                ns += fetch.draw(draws);
            }
        }
        ns
    }
}

/// Pages and read buffer of a flash device.
#[derive(Debug, Clone)]
struct Pages {
    page_bytes: u64,
    fetch: Sampler,
    most: usize,
}

impl Pages {
    fn new(readahead: &Readahead) -> Self {
        Pages {
            page_bytes: readahead.page_bytes,
            fetch: readahead.fetch.sampler(),
            most: readahead.buffer_pages,
        }
    }
}

/// All service times of a device.
#[derive(Debug, Clone)]
pub(crate) struct Costs {
    read: [Cost; 2],
    write: [Cost; 2],
    flush: Sampler,
    pages: Option<Pages>,
    arm: Option<Arm>,
    caches_writes: bool,
    reads_ahead: bool,
}

impl Costs {
    pub fn new(profile: &StorageProfile, reads_ahead: bool) -> Self {
        let pair = |d: &Direction| [Cost::new(&d.random), Cost::new(&d.sequential)];
        Costs {
            read: pair(&profile.read),
            write: match &profile.write_cache {
                Some(cache) => [Cost::of_cache(cache), Cost::of_cache(cache)],
                None => pair(&profile.write),
            },
            flush: profile.flush.overhead.sampler(),
            pages: profile.readahead.as_ref().map(Pages::new),
            arm: profile.seek.as_ref().map(Arm::new),
            caches_writes: profile.write_cache.is_some(),
            reads_ahead,
        }
    }

    /// True if the buffer has all pages of a read. Moves the pages to the front of the buffer.
    #[inline]
    pub fn buffered(&self, request: Request, buffer: &mut Vec<u64>) -> bool {
        match &self.pages {
            Some(pages) if pages.most > 0 && request.op == Op::Read && self.reads_ahead => {
                look_up(pages, request, buffer)
            }
            _ => false,
        }
    }

    /// True if the request moves the arm. Requests served from the device's memory do not.
    #[inline]
    pub fn moves_arm(&self, request: Request, buffered: bool) -> bool {
        match request.op {
            Op::Read => !buffered,
            Op::Write => !self.caches_writes,
            Op::Flush => false,
        }
    }

    /// Service time in nanoseconds, sampled for a device that is not slow.
    #[inline]
    pub fn draw_ns(&self, arrival: &Arrival, draws: &mut Draws) -> f64 {
        let (request, buffered) = (arrival.request, arrival.buffered);
        // Without read-ahead, the reads of a stream cost as much as random reads.
        let stream = arrival.sequential && (self.reads_ahead || request.op != Op::Read);
        let seek_ns = match &self.arm {
            Some(arm) if !stream && self.moves_arm(request, buffered) => {
                arm.move_ns(request.op, arrival.arm_at, request.offset)
            }
            _ => 0.0,
        };
        seek_ns + self.at_place_ns(request, stream, buffered, draws)
    }

    /// Service time in nanoseconds without the seek.
    #[inline]
    fn at_place_ns(
        &self,
        request: Request,
        stream: bool,
        buffered: bool,
        draws: &mut Draws,
    ) -> f64 {
        match request.op {
            Op::Flush => self.flush.draw(draws),
            Op::Write => self.write[usize::from(stream)].draw_ns(request, draws),
            Op::Read => {
                let ns = self.read[usize::from(stream)].draw_ns(request, draws);
                match &self.pages {
                    None => ns,
                    Some(pages) if stream && request.size < pages.page_bytes => ns,
                    Some(_) if self.reads_ahead && buffered => ns,
                    Some(pages) => ns + pages.fetch.draw(draws),
                }
            }
        }
    }
}

fn look_up(pages: &Pages, request: Request, buffer: &mut Vec<u64>) -> bool {
    if request.size == 0 {
        return false;
    }
    let first = request.offset / pages.page_bytes;
    let last = (request.offset.saturating_add(request.size) - 1) / pages.page_bytes;
    // pages beyond the buffer's capacity displace each other
    let first_kept = first.max(last.saturating_sub(pages.most as u64 - 1));
    let mut all = first_kept == first;
    for page in first_kept..=last {
        match buffer
            .iter()
            .position(|buffered_page| *buffered_page == page)
        {
            Some(at) => buffer.copy_within(0..at, 1),
            None => {
                all = false;
                if buffer.len() >= pages.most {
                    buffer.truncate(pages.most - 1);
                }
                buffer.insert(0, page);
            }
        }
        buffer[0] = page;
    }
    all
}
