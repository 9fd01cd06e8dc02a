//! Throughput and calls in flight per time bin.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::grid::Axis;
use super::pack::put;

/// Maximum number of bins of a clock, log2.
const BITS: u32 = 12;

/// Bins from `x.origin`, each 2^`x.shift` ns wide.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Shape {
    /// Axis of the bins.
    pub x: Axis,
    /// Number of bins.
    pub columns: u32,
}

/// Sums per time bin.
pub struct Clock {
    x: Axis,
    /// Bytes of calls that ended in the bin, for reads and writes.
    bytes: [Vec<u64>; 2],
    /// Number of calls that began in the bin, for reads and writes.
    calls: [Vec<u64>; 2],
    /// Time of calls under way in a part of the bin [ns].
    partial: Vec<u64>,
    /// Change of the number of calls that span the complete bin.
    spanning: Vec<i64>,
    /// Maximum number of calls under way, measured at their starts.
    most: Vec<u32>,
    ends: BinaryHeap<Reverse<u64>>,
}

impl Clock {
    /// Create a clock for a time range [ns].
    pub fn new(first_ns: u64, last_ns: u64) -> Self {
        let x = Axis::over(first_ns, last_ns, BITS);
        let n = usize::try_from(x.bin(last_ns)).unwrap_or(0) + 1;
        Self {
            x,
            bytes: [vec![0; n], vec![0; n]],
            calls: [vec![0; n], vec![0; n]],
            partial: vec![0; n],
            spanning: vec![0; n + 1],
            most: vec![0; n],
            ends: BinaryHeap::new(),
        }
    }

    /// Add a call that began at `t` and ran for `latency` [ns].
    #[inline]
    pub fn add(&mut self, channel: usize, t: u64, bytes: u64, latency: u64) {
        let last = self.partial.len() - 1;
        let place = |t: u64| usize::try_from(self.x.bin(t)).unwrap_or(last).min(last);
        let end = t.saturating_add(latency);
        let (first, until) = (place(t), place(end));
        self.bytes[channel & 1][until] += bytes;
        self.calls[channel & 1][first] += 1;
        if first == until {
            self.partial[first] += latency;
        } else {
            let border = |bin: usize| self.x.origin + ((bin as u64) << self.x.shift);
            self.partial[first] += border(first + 1) - t.max(border(first));
            self.partial[until] += end - border(until);
            self.spanning[first + 1] += 1;
            self.spanning[until] -= 1;
        }
        while self.ends.peek().is_some_and(|&Reverse(e)| e <= t) {
            self.ends.pop();
        }
        self.ends.push(Reverse(end));
        self.most[first] = self.most[first].max(u32::try_from(self.ends.len()).unwrap_or(u32::MAX));
    }

    /// Shape of the bins.
    pub fn shape(&self) -> Shape {
        Shape {
            x: self.x,
            columns: self.partial.len() as u32,
        }
    }

    /// Time spent in calls per bin [ns]. Divided by the bin's width, it is the mean number in flight.
    pub fn busy_ns(&self) -> Vec<u64> {
        let mut over = 0i64;
        self.partial
            .iter()
            .zip(&self.spanning)
            .map(|(&partial, &change)| {
                over += change;
                partial + (u64::try_from(over).unwrap_or(0) << self.x.shift)
            })
            .collect()
    }

    /// Sections `clock_read`, `clock_write` (bytes), `clock_reads`, `clock_writes` (calls), `clock_busy` [ns] and
    /// `clock_most`, with one number per bin.
    pub fn packed(&self) -> Vec<(String, Vec<u8>)> {
        let most: Vec<u64> = self.most.iter().map(|&n| u64::from(n)).collect();
        let busy = self.busy_ns();
        let columns: [(&str, &[u64]); 6] = [
            ("read", &self.bytes[0]),
            ("write", &self.bytes[1]),
            ("reads", &self.calls[0]),
            ("writes", &self.calls[1]),
            ("busy", &busy),
            ("most", &most),
        ];
        let pack = |values: &[u64]| {
            let mut out = Vec::with_capacity(values.len() * 3);
            values.iter().for_each(|&v| put(&mut out, v));
            out
        };
        columns
            .iter()
            .map(|(name, values)| (format!("clock_{name}"), pack(values)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_under_way_and_bytes_are_conserved() {
        let mut clock = Clock::new(0, 1 << 20);
        let (mut sum, mut bytes) = (0, 0);
        for i in 0..5000u64 {
            let latency = (i * 7919) % 30_000;
            clock.add((i % 2) as usize, i * 200, i, latency);
            sum += latency;
            bytes += i;
        }
        assert_eq!(clock.busy_ns().iter().sum::<u64>(), sum);
        let both = clock.bytes[0].iter().chain(&clock.bytes[1]);
        assert_eq!(both.sum::<u64>(), bytes);
    }

    #[test]
    fn depth_matches_the_calls() {
        let mut clock = Clock::new(0, 4096);
        for t in [0, 1, 2] {
            clock.add(0, t, 1, 2000);
        }
        clock.add(0, 3000, 1, 10);
        assert_eq!(clock.most.iter().max(), Some(&3));
        let last = usize::try_from(clock.x.bin(3000)).unwrap();
        assert_eq!(clock.most[last], 1);
    }
}
