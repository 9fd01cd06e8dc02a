//! Virtual time in integer ticks, so that creation order decides simultaneous events, and never rounding.
//!
//! A tick is a picosecond if the run is short enough. Nanoseconds are too coarse for the check vectors: a control
//! message of 1 KiB at 10 Gbit/s takes 819.2 ns and a frame of 64 KiB at 25 Gbit/s takes 20,971.52 ns, so that each of
//! millions would be wrong by about 2e-4 or 2e-5. Binary floating-point seconds are precise to 1e-6, but two
//! simultaneous frames would differ in the last bit, and the order of arrivals would depend on the order of additions.
//! 64 bits of picoseconds are 213 days. A run that may last longer uses coarser ticks, up to 100 ns, which are
//! negligible there. The bound of a run is the sum of all work of its tasks: 60,000 tasks of a day on a thousand hosts
//! have a bound of 164 years, and last two months.

/// Ticks since the start of a run.
pub type Ticks = u64;

/// Largest expected duration of a run in ticks: a third of the range of 64 bits.
const MOST_TICKS: f64 = 6e18;
/// Largest sum of the work of a run's tasks, in seconds.
pub const HORIZON_S: f64 = 6e11;

/// Duration of a tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clock {
    per_s: f64,
    per_ns: f64,
}

impl Clock {
    /// The finest clock that can represent a run of at most `bound_s` seconds.
    #[must_use]
    pub fn for_run_of(bound_s: f64) -> Self {
        let fits = |per_s: &f64| bound_s * per_s < MOST_TICKS;
        let finer = [1e12, 1e11, 1e10, 1e9, 1e8].into_iter().find(fits);
        let per_s = finer.unwrap_or(1e7);
        Clock {
            per_s,
            per_ns: per_s / 1e9,
        }
    }

    /// Number of ticks per second.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        self.per_s
    }

    /// Convert seconds to ticks, rounded and limited to the horizon.
    #[inline]
    #[must_use]
    pub fn ticks(&self, seconds: f64) -> Ticks {
        (seconds.min(HORIZON_S) * self.per_s + 0.5) as Ticks
    }

    /// Convert ticks to seconds.
    #[inline]
    #[must_use]
    pub fn seconds(&self, ticks: Ticks) -> f64 {
        ticks as f64 / self.per_s
    }

    /// Convert nanoseconds to ticks.
    #[inline]
    #[must_use]
    pub fn from_ns(&self, ns: f64) -> Ticks {
        (ns * self.per_ns + 0.5) as Ticks
    }

    /// Convert ticks to nanoseconds, rounded up to an integer.
    #[inline]
    #[must_use]
    pub fn to_ns(&self, ticks: Ticks) -> u64 {
        if self.per_ns >= 1.0 {
            ticks.div_ceil(self.per_ns as u64)
        } else {
            ticks.saturating_mul((1.0 / self.per_ns).round() as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tick_is_as_fine_as_the_run_allows() {
        let fine = Clock::for_run_of(100.0);
        assert_eq!(fine.ticks(1024.0 / 1.25e9), 819_200);
        assert_eq!(fine.to_ns(819_200), 820);
        assert_eq!(fine.from_ns(0.5), 500);
        assert_eq!(Clock::for_run_of(1e7).per_s(), 1e11);
        let coarse = Clock::for_run_of(1e9);
        assert_eq!(coarse.ticks(1e9), 1_000_000_000_000_000_000);
        assert_eq!(coarse.to_ns(7), 7);
        assert!((coarse.seconds(1_500_000_000) - 1.5).abs() < 1e-12);
        let coarsest = Clock::for_run_of(5e11);
        assert_eq!(coarsest.ticks(1.0), 10_000_000);
        assert_eq!(coarsest.to_ns(7), 700);
    }
}
