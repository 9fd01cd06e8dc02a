//! What holds an answer back after the device has done its work: limits and credits.

use crate::pace::{Gate, UNUSED};
use crate::profile::StorageProfile;
use crate::shape::LIMIT_BURST_S;
use crate::station::{Op, Request};

/// Gates in the order of the four limits, then credits by requests (baseline, burst) and by bytes (baseline, burst).
pub(crate) const GATES: usize = 8;
/// When the tokens taken so far will have flowed in, gate by gate.
pub(crate) type Passed = [f64; GATES];
/// Nothing has passed any gate.
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

    /// Tokens that a request takes of a gate; 0: it does not go through it.
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

    /// Lets a request through that was begun at `start_ns`; when it is through, at the earliest.
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

    /// As [`Gates::pass`] for the gates of `which` alone; 0 if it goes through none.
    pub fn pass_some(
        &self,
        which: &[bool; GATES],
        passed: &mut Passed,
        start_ns: u64,
        request: Request,
    ) -> f64 {
        let mut only = self.clone();
        for (gate, wanted) in only.gates.iter_mut().zip(which) {
            if !wanted {
                *gate = None;
            }
        }
        only.pass(passed, start_ns, request)
    }

    /// When tokens begin to flow for a request at one gate, and how long they take; none if it does not pass it.
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

    /// Credits left at `t_ns`: requests and bytes.
    pub fn credits(&self, passed: &Passed, t_ns: u64) -> [Option<f64>; 2] {
        [4, 6].map(|at| self.gates[at].map(|gate| gate.level(passed[at], t_ns)))
    }

    /// Whether the credits of both are the same.
    pub fn same_credits(&self, other: &Gates) -> bool {
        self.gates[4..] == other.gates[4..]
    }
}
