//! Limits and credits, which delay an answer after the device has completed the request.

use crate::pace::{Gate, UNUSED};
use crate::profile::StorageProfile;
use crate::shape::LIMIT_BURST_S;
use crate::station::{Op, Request};

/// Gates in the order of the four limits, then credits by requests (baseline, burst) and by bytes (baseline, burst).
pub(crate) const GATES: usize = 8;
/// Time at which the tokens taken so far will have flowed in, by gate.
pub(crate) type Passed = [f64; GATES];
/// Initial state: no request has passed a gate.
pub(crate) const FRESH: Passed = [UNUSED; GATES];

/// The gates of a device.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Gates {
    gates: [Option<Gate>; GATES],
    unit_bytes: f64,
    least_bytes: f64,
    pub any: bool,
}

impl Gates {
    pub fn new(profile: &StorageProfile) -> Gates {
        let mut gates = [None; GATES];
        if let Some(limits) = &profile.limits {
            let burst_s = limits.burst_s.unwrap_or(LIMIT_BURST_S);
            for (gate, rate) in gates.iter_mut().zip(limits.each()) {
                *gate = rate.map(|rate| Gate::new(rate, burst_s));
            }
        }
        let credits = profile.credits.unwrap_or_default();
        for (at, bucket) in [(4, credits.iops), (6, credits.bytes)] {
            gates[at] = bucket.as_ref().map(Gate::of_bucket);
            gates[at + 1] = bucket.map(|b| Gate::new(b.burst, LIMIT_BURST_S));
        }
        Gates {
            any: gates.iter().any(Option::is_some),
            gates,
            unit_bytes: credits.unit_bytes.map_or(f64::INFINITY, |b| b as f64),
            least_bytes: credits.least_bytes.map_or(0.0, |b| b as f64),
        }
    }

    /// Tokens that a request takes at a gate; 0 if it does not pass the gate.
    #[inline]
    fn tokens(&self, gate: usize, request: Request) -> f64 {
        let size = request.size as f64;
        match (gate, request.op) {
            (_, Op::Flush) => 0.0,
            (0, Op::Read) | (1, Op::Write) => size,
            (2, Op::Read) | (3, Op::Write) => 1.0,
            (0..=3, _) => 0.0,
            (4 | 5, _) => (size / self.unit_bytes).ceil().max(1.0),
            _ => size.max(self.least_bytes),
        }
    }

    /// Pass a request that started at `start_ns` through all gates. Return the earliest time at which it is through.
    #[inline]
    pub fn pass(&self, passed: &mut Passed, start_ns: u64, request: Request) -> f64 {
        let mut through = 0f64;
        for (number, gate) in self.gates.iter().enumerate() {
            if let Some(gate) = gate {
                let tokens = self.tokens(number, request);
                if tokens > 0.0 {
                    through = through.max(gate.pass(&mut passed[number], start_ns, tokens));
                }
            }
        }
        through
    }

    /// Like [`Gates::pass`], for the gates of `which` only; 0 if the request passes none of them.
    pub fn pass_some(
        &self,
        which: &[bool; GATES],
        passed: &mut Passed,
        start_ns: u64,
        request: Request,
    ) -> f64 {
        let mut only = self.clone();
        for (gate, keep) in only.gates.iter_mut().zip(which) {
            if !keep {
                *gate = None;
            }
        }
        only.pass(passed, start_ns, request)
    }

    /// Time at which tokens begin to flow for a request at a gate, and the duration, both in nanoseconds. `None` if the
    /// request does not pass the gate.
    pub fn stay(
        &self,
        number: usize,
        passed: &Passed,
        start_ns: u64,
        request: Request,
    ) -> Option<(f64, f64)> {
        let gate = self.gates[number].as_ref()?;
        let tokens = self.tokens(number, request);
        (tokens > 0.0).then(|| {
            let from = gate.begins_ns(passed[number], start_ns);
            (from, tokens * gate.ns_per_token)
        })
    }

    /// Remaining credits at `t_ns`: requests and bytes.
    pub fn credits(&self, passed: &Passed, t_ns: u64) -> [Option<f64>; 2] {
        [4, 6].map(|at| self.gates[at].map(|gate| gate.level(passed[at], t_ns)))
    }

    /// True if both have the same credits.
    pub fn same_credits(&self, other: &Gates) -> bool {
        self.gates[4..] == other.gates[4..]
    }
}
