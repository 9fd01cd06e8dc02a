//! Histogram of send lateness: 16 bins per doubling, each 6 % wide.

const STEPS: u64 = 16;
const BUCKETS: usize = 40 * STEPS as usize;

/// Histogram of lateness in nanoseconds.
#[derive(Debug, Clone)]
pub struct Lateness {
    counts: Vec<u64>,
    n: u64,
    most_ns: u64,
}

impl Default for Lateness {
    fn default() -> Self {
        Lateness {
            counts: vec![0; BUCKETS],
            n: 0,
            most_ns: 0,
        }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let shift = ns.ilog2() - STEPS.ilog2();
    let step = (ns >> shift) - STEPS;
    (((u64::from(shift) + 1) * STEPS + step) as usize).min(BUCKETS - 1)
}

/// Largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let (row, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    if row == 0 {
        return step;
    }
    ((STEPS + step + 1) << (row - 1)) - 1
}

impl Lateness {
    /// Count one frame.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.n += 1;
        self.most_ns = self.most_ns.max(ns);
    }

    /// Number of frames counted.
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Largest lateness.
    pub fn most_ns(&self) -> u64 {
        self.most_ns
    }

    /// Quantile of the lateness, at most 6 % too large; 0 without frames.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let rank = (q * self.n as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper(at).min(self.most_ns);
            }
        }
        self.most_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_its_bucket() {
        for ns in (0..5000).chain([65_535, 65_536, 1_000_000_007]) {
            let at = bucket(ns);
            assert!(ns <= upper(at), "{ns}");
            assert!(at == 0 || ns > upper(at - 1), "{ns}");
        }
    }

    #[test]
    fn quantiles_match_the_values() {
        let mut seen = Lateness::default();
        (1..=1000).for_each(|x| seen.add(x * 1000));
        for (q, ns) in [(0.5, 500_000.0), (0.99, 990_000.0), (1.0, 1_000_000.0)] {
            let estimate = seen.quantile_ns(q) as f64;
            assert!(estimate >= ns && estimate < 1.07 * ns, "{q}: {estimate}");
        }
        assert_eq!((seen.n(), seen.most_ns()), (1000, 1_000_000));
    }
}
