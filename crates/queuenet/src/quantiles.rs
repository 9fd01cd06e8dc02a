//! Latency quantiles in bounded memory.

const SUB: u32 = 7;

/// Histogram of latencies, with bins of at most 1 % width (128 per power of two).
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    counts: Vec<u64>,
    n: u64,
    sum_ns: f64,
}

impl Latencies {
    /// Count one latency.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        let bin = bin_of(ns);
        if bin >= self.counts.len() {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += 1;
        self.n += 1;
        self.sum_ns += ns as f64;
    }

    /// Number of latencies counted.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Mean in nanoseconds; zero if empty.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        if self.n == 0 {
            0.0
        } else {
            self.sum_ns / self.n as f64
        }
    }

    /// Quantile `p` in nanoseconds, within half a bin (0.4 %); zero if empty.
    #[must_use]
    pub fn quantile_ns(&self, p: f64) -> f64 {
        let rank = (p * self.n as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bin, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_of(bin);
            }
        }
        0.0
    }
}

fn bin_of(ns: u64) -> usize {
    if ns < 1 << SUB {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros();
    let within = (ns >> (power - SUB)) - (1 << SUB);
    ((u64::from(power - SUB + 1) << SUB) + within) as usize
}

fn middle_of(bin: usize) -> f64 {
    if bin < 1 << SUB {
        return bin as f64;
    }
    let power = (bin >> SUB) as u32 - 1;
    let within = (bin & ((1 << SUB) - 1)) as u64 + (1 << SUB);
    ((within << power) as f64) + ((1u64 << power) as f64 - 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bin_middles_are_close_to_their_values() {
        for ns in [
            0,
            1,
            127,
            128,
            129,
            1000,
            65_535,
            5_000_000,
            123_456_789_012,
        ] {
            let middle = middle_of(bin_of(ns));
            assert!(
                (middle - ns as f64).abs() <= 0.004 * ns as f64,
                "{ns} {middle}"
            );
        }
    }

    #[test]
    fn quantiles_of_a_ramp() {
        let mut latencies = Latencies::default();
        (1..=100_000u64).for_each(|ns| latencies.add(ns));
        for p in [0.01, 0.5, 0.99] {
            assert!((latencies.quantile_ns(p) / (p * 100_000.0) - 1.0).abs() < 0.006);
        }
        assert!((latencies.mean_ns() - 50_000.5).abs() < 1e-6);
    }
}
