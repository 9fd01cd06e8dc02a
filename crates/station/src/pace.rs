//! Pacing by tokens, and the time that work takes on a device that is slow or stalls.

use crate::shape::{Bucket, Slow};

/// A stream of tokens. Its state is the time at which all tokens taken so far will have flowed in. The state can lag
/// behind the clock by at most the depth; a request can catch up that time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Gate {
    /// Nanoseconds per token.
    pub ns_per_token: f64,
    /// Largest lag of the state behind the clock, nanoseconds.
    pub depth_ns: f64,
    /// Initial lag, nanoseconds.
    pub initial_ns: f64,
}

/// Initial state of a gate, before any request passed it.
pub(crate) const UNUSED: f64 = f64::NEG_INFINITY;

impl Gate {
    /// Create a gate with `rate` tokens per second. It can catch up `burst_s`, also at the beginning.
    pub fn new(rate: f64, burst_s: f64) -> Gate {
        Gate {
            ns_per_token: 1e9 / rate,
            depth_ns: 1e9 * burst_s,
            initial_ns: 1e9 * burst_s,
        }
    }

    /// Create a gate for the baseline of a credit bucket.
    pub fn of_bucket(bucket: &Bucket) -> Gate {
        let depth_ns = 1e9 * bucket.capacity / bucket.baseline;
        Gate {
            ns_per_token: 1e9 / bucket.baseline,
            depth_ns,
            initial_ns: depth_ns * bucket.initial,
        }
    }

    /// Time at which tokens begin to flow for a request that could pass at `at_ns`.
    #[inline]
    pub fn begins_ns(&self, state: f64, at_ns: u64) -> f64 {
        if state == UNUSED {
            at_ns as f64 - self.initial_ns
        } else {
            state.max(at_ns as f64 - self.depth_ns)
        }
    }

    /// Take tokens. The new state is the time at which the request is through.
    #[inline]
    pub fn pass(&self, state: &mut f64, at_ns: u64, tokens: f64) -> f64 {
        *state = self.begins_ns(*state, at_ns) + tokens * self.ns_per_token;
        *state
    }

    /// Tokens that a request could spend at once at `at_ns`.
    pub fn level(&self, state: f64, at_ns: u64) -> f64 {
        (at_ns as f64 - self.begins_ns(state, at_ns)).max(0.0) / self.ns_per_token
    }
}

/// Factor, ramp and stalls by which a fail-slow device stretches work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    since_ns: u64,
    factor: f64,
    ramp_ns: f64,
    period_ns: u64,
    length_ns: u64,
    /// Probability and factor of slow requests.
    pub stray: Option<(f64, f64)>,
}

impl Pace {
    pub fn new(slow: &Slow, now_ns: u64) -> Pace {
        let (period_ns, length_ns) = slow.stall.map_or((0, 0), |stall| {
            ((stall.period_s * 1e9) as u64, (stall.length_s * 1e9) as u64)
        });
        Pace {
            since_ns: slow.since_ns.unwrap_or(now_ns),
            factor: slow.factor,
            ramp_ns: slow.ramp_s.map_or(0.0, |s| s * 1e9),
            period_ns,
            length_ns,
            stray: slow.random.map(|stray| (stray.probability, stray.factor)),
        }
    }

    /// Factor by which work is stretched that begins at `at_ns`.
    #[inline]
    pub fn factor_at(&self, at_ns: u64) -> f64 {
        let elapsed = at_ns.saturating_sub(self.since_ns) as f64;
        if elapsed >= self.ramp_ns {
            self.factor
        } else {
            1.0 + (self.factor - 1.0) * elapsed / self.ramp_ns
        }
    }

    /// Time at which `work_ns` of work that begins at `at_ns` is complete. Work stops during stalls. The first stall
    /// begins with the change.
    #[inline]
    pub fn done_ns(&self, at_ns: u64, work_ns: u64) -> u64 {
        let ahead_ns = self.since_ns.saturating_sub(at_ns);
        if self.period_ns == 0 || (work_ns <= ahead_ns && ahead_ns > 0) {
            return at_ns + work_ns;
        }
        let (at_ns, work_ns) = (at_ns + ahead_ns, work_ns - ahead_ns);
        let useful = self.period_ns - self.length_ns;
        let elapsed = at_ns - self.since_ns;
        let (periods, within) = (elapsed / self.period_ns, elapsed % self.period_ns);
        if work_ns == 0 {
            return at_ns + self.length_ns.saturating_sub(within);
        }
        let before = periods * useful + within.saturating_sub(self.length_ns);
        let end = before + work_ns;
        // work that ends at the end of a period is complete before the next stall
        let full = (end - 1) / useful;
        let after = self.period_ns * full + self.length_ns + (end - full * useful);
        self.since_ns + after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Stall, Stray};

    fn stalling(since_ns: u64) -> Pace {
        let slow = Slow {
            stall: Some(Stall {
                period_s: 1e-6,
                length_s: 0.4e-6,
            }),
            random: Some(Stray {
                probability: 0.0,
                factor: 1.0,
            }),
            ..Slow::default()
        };
        Pace::new(&slow, since_ns)
    }

    #[test]
    fn stalls_stop_service() {
        let since = 700;
        let pace = stalling(since);
        // brute force: count useful nanoseconds one by one
        let useful = |t: u64| t < since || (t - since) % 1000 >= 400;
        for at in (0..4200).step_by(37) {
            for work in [0u64, 1, 10, 333, 600, 1800] {
                let (mut t, mut left) = (at, work);
                while left > 0 || (work == 0 && !useful(t)) {
                    left -= u64::from(left > 0 && useful(t));
                    t += 1;
                }
                assert_eq!(pace.done_ns(at, work), t, "{work} from {at}");
            }
        }
    }

    #[test]
    fn the_first_stall_begins_with_the_change() {
        let pace = stalling(5000);
        assert_eq!(pace.done_ns(5000, 1), 5401);
        assert_eq!(pace.done_ns(5000, 600), 6000);
        assert_eq!(pace.done_ns(5000, 601), 6401);
        assert_eq!(pace.done_ns(4990, 10), 5000, "done before it");
    }

    #[test]
    fn a_ramp_grows_in_a_straight_line() {
        let slow = Slow {
            factor: 11.0,
            ramp_s: Some(1e-6),
            ..Slow::default()
        };
        let pace = Pace::new(&slow, 500);
        let seen = [500, 1000, 1500, 9000].map(|t| pace.factor_at(t));
        assert_eq!(seen, [1.0, 6.0, 11.0, 11.0]);
    }

    #[test]
    fn buckets_burst_until_tokens_run_out() {
        let bucket = Bucket {
            baseline: 100.0,
            burst: 3000.0,
            capacity: 5800.0,
            initial: 0.5,
        };
        let (burst, base) = (Gate::new(3000.0, 0.0), Gate::of_bucket(&bucket));
        let (mut spent, mut fill, mut now, mut last_fast) = (UNUSED, UNUSED, 1_000_000_000, 0);
        for i in 0..4000 {
            let free = burst
                .pass(&mut spent, now, 1.0)
                .max(base.pass(&mut fill, now, 1.0));
            let next = now.max(free.round() as u64);
            if next - now < 1_000_000 {
                last_fast = i;
            }
            now = next;
        }
        // 2900 tokens last 1 s at 3000/s, because 100/s flow in
        assert!((2990..=3010).contains(&last_fast), "{last_fast}");
    }
}
