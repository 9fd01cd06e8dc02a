//! State of a disk under its lock: station, counters, pending log records.

use std::collections::HashMap;

use penstock_station::{InvalidProfile, Patch, Retimed, Station, StorageProfile};

use crate::clock::HostCpu;
use crate::counters::Counters;
use crate::log::Record;
use crate::timer::Moved;

/// State of a disk under its lock.
pub(crate) struct State {
    pub(crate) station: Station,
    pub(crate) profile: StorageProfile,
    pub(crate) seed: u64,
    // The station has its own time, `plant.slow_by` slower than the clock.
    pub(crate) epoch_ns: u64,
    pub(crate) slowness: f64,
    pub(crate) counters: Counters,
    pub(crate) changed_ns: u64,
    pub(crate) pending: Vec<Record>,
    pub(crate) logging: bool,
    pub(crate) lost_records: u64,
    pub(crate) reset_ns: u64,
    pub(crate) cpu_at_reset_ns: u64,
    pub(crate) host_at_reset: HostCpu,
    pub(crate) wait_at_reset_ns: u64,
    pub(crate) arrived_at_reset: u64,
    pub(crate) last_arrival_ns: u64,
    // Requests whose due times were moved before they reached the timers.
    pub(crate) moved: HashMap<u64, Moved>,
    pub(crate) hurried: bool,
}

impl State {
    /// Return a unique, increasing arrival time. Readers may reach the lock in a different order from their clock
    /// readings. Arrivals get the order of the station, so that the log can be replayed.
    pub(crate) fn next_arrival_ns(&mut self, t_ns: u64) -> u64 {
        self.last_arrival_ns = t_ns.max(self.last_arrival_ns + 1);
        self.last_arrival_ns
    }

    /// Change the station at `t_ns`.
    pub(crate) fn change(
        &mut self,
        t_ns: u64,
        patch: &Patch,
    ) -> Result<Vec<Retimed>, InvalidProfile> {
        let station_ns = self.in_station_time(t_ns);
        let moved = self.station.change(station_ns, patch)?;
        if let Some(profile) = &patch.profile {
            self.profile = match profile {
                Some(profile) => profile.as_ref().clone(),
                None => self.station.effective(),
            };
        }
        Ok(moved)
    }

    pub(crate) fn count_in_flight(&mut self, now_ns: u64, change: i64) {
        // Completions and arrivals may be recorded slightly out of order.
        let elapsed_ns = now_ns.saturating_sub(self.changed_ns);
        let in_flight = self.counters.in_flight;
        if in_flight > 0 {
            self.counters.busy_ns += elapsed_ns;
            self.counters.queue_time_ns += elapsed_ns * in_flight;
        }
        self.changed_ns = self.changed_ns.max(now_ns);
        self.counters.in_flight = in_flight.saturating_add_signed(change);
    }

    pub(crate) fn in_station_time(&self, t_ns: u64) -> u64 {
        if self.slowness == 1.0 {
            return t_ns;
        }
        let elapsed_ns = t_ns.saturating_sub(self.epoch_ns);
        self.epoch_ns + (elapsed_ns as f64 / self.slowness) as u64
    }

    pub(crate) fn in_clock_time(&self, t_ns: u64) -> u64 {
        if self.slowness == 1.0 {
            return t_ns;
        }
        let elapsed_ns = t_ns.saturating_sub(self.epoch_ns);
        self.epoch_ns + (elapsed_ns as f64 * self.slowness) as u64
    }
}
