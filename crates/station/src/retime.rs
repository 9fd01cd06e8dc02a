//! Effect of device changes on requests under way: started requests finish, waiting requests are served anew.

use crate::gates::{Gates, GATES};
use crate::pace::UNUSED;
use crate::patch::Patch;
use crate::profile::InvalidProfile;
use crate::station::{Arrival, Served, Servers, Station, Timed, Used};

/// A request whose answer has moved to another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retimed {
    /// New times of the request; `served.id` identifies it.
    pub served: Served,
}

#[derive(Debug, Clone, Copy)]
struct UnderWay {
    arrival: Arrival,
    timed: Timed,
    /// Resources used up before the request arrived.
    before: Used,
}

/// Unanswered requests, in the order of arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remembered {
    under_way: Vec<UnderWay>,
    tidy_at: usize,
}

impl Remembered {
    #[inline]
    pub fn add(&mut self, t_ns: u64, arrival: Arrival, timed: Timed, before: Used) {
        if self.under_way.len() >= self.tidy_at {
            self.under_way.retain(|r| r.timed.due_ns > t_ns);
            self.tidy_at = 2 * self.under_way.len() + 64;
        }
        self.under_way.push(UnderWay {
            arrival,
            timed,
            before,
        });
    }
}

impl Station {
    /// Record requests until they are due, so that a change can move the answers of waiting requests.
    pub fn remember(&mut self) {
        self.remembered.get_or_insert_with(Remembered::default);
    }

    /// Change the device at `t_ns`, which is not before the last arrival.
    ///
    /// A request that a server has started finishes as scheduled. A request that waits for a server is served by the
    /// changed device. A request that a limit delays passes at the new rate, with credit for the share of its wait that
    /// is over. Returns the requests whose answers move. Without [`remember`](Station::remember) no answer moves, and
    /// the result is empty.
    ///
    /// # Errors
    /// The patch is invalid; the device does not change.
    pub fn change(&mut self, t_ns: u64, patch: &Patch) -> Result<Vec<Retimed>, InvalidProfile> {
        patch.validate()?;
        let mut settings = self.settings.clone();
        settings.take(t_ns, patch);
        let profile = settings.effective();
        profile.validate()?;
        self.settings = settings;
        let old = self.gates.clone();
        self.become_device(&profile, t_ns);
        if !self.gates.same_credits(&old) {
            self.used.passed[4..].fill(UNUSED);
        }
        match self.remembered.take() {
            None => Ok(Vec::new()),
            Some(mut remembered) => {
                remembered.under_way.retain(|r| r.timed.due_ns > t_ns);
                let moved = self.retime(t_ns, &old, &mut remembered.under_way);
                self.remembered = Some(remembered);
                Ok(moved)
            }
        }
    }

    fn retime(&mut self, t_ns: u64, old: &Gates, all: &mut [UnderWay]) -> Vec<Retimed> {
        let n_started = all
            .iter()
            .position(|r| r.timed.start_ns > t_ns)
            .unwrap_or(all.len());
        let (started, waiting) = all.split_at_mut(n_started);
        let mut used = waiting.first().map_or(self.used, |first| first.before);
        let mut again_from = [usize::MAX; GATES];
        for (gate, again) in again_from.iter_mut().enumerate() {
            if gate >= 4 && !self.gates.same_credits(old) {
                used.passed[gate] = UNUSED;
            } else if let Some((at, state)) = self.reopened(gate, t_ns, old, started) {
                *again = at;
                used.passed[gate] = state;
            }
        }
        let mut moved = Vec::new();
        let mut busy = Vec::new();
        for (at, r) in started.iter_mut().enumerate() {
            if r.timed.end_ns > t_ns {
                busy.push(r.timed.end_ns);
            }
            let which = again_from.map(|from| at >= from);
            for (gate, applies) in which.iter().enumerate() {
                if *applies {
                    r.before.passed[gate] = used.passed[gate];
                }
            }
            let (start_ns, request) = (r.timed.start_ns, r.arrival.request);
            let through = self
                .gates
                .pass_some(&which, &mut used.passed, start_ns, request);
            let due_ns = r.timed.held_ns.max(through.round() as u64).max(t_ns);
            note(&mut moved, r, Timed { due_ns, ..r.timed });
        }
        if !waiting.is_empty() {
            // the busiest servers, in case the change removes servers
            self.servers = Servers::of(busy).resized(self.server_count);
        }
        self.used = used;
        for r in waiting {
            r.before = self.used;
            let timed = self.serve(&r.arrival, t_ns.max(r.arrival.arrival_ns));
            note(&mut moved, r, timed);
        }
        moved
    }

    /// The first request that a gate still delays at `t_ns`, and the state from which it continues: the share of its
    /// tokens that has flowed in stays.
    fn reopened(
        &self,
        gate: usize,
        t_ns: u64,
        old: &Gates,
        started: &[UnderWay],
    ) -> Option<(usize, f64)> {
        started.iter().enumerate().find_map(|(at, r)| {
            let (start_ns, request) = (r.timed.start_ns, r.arrival.request);
            let (from, cost) = old.stay(gate, &r.before.passed, start_ns, request)?;
            if from + cost <= t_ns as f64 {
                return None;
            }
            let share = ((t_ns as f64 - from) / cost).clamp(0.0, 1.0);
            let state = match self.gates.stay(gate, &r.before.passed, start_ns, request) {
                Some((_, cost)) => (t_ns as f64).max(from) - share * cost,
                None => UNUSED,
            };
            Some((at, state))
        })
    }
}

fn note(moved: &mut Vec<Retimed>, r: &mut UnderWay, timed: Timed) {
    let promised_ns = r.timed.due_ns;
    r.timed = timed;
    if timed.due_ns != promised_ns {
        let served = Served::of(&r.arrival, &timed);
        moved.push(Retimed { served });
    }
}
