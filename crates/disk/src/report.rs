//! Output of a disk: request log, counters, description.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;

use penstock_daemon::clock::{now_ns, process_cpu_ns};
use penstock_daemon::Error;
use serde_json::{json, Value};

use crate::awake;
use crate::clock::{process_wait_ns, HostCpu};
use crate::counters::NAMES;
use crate::disk::{arrived_so_far, Disk};
use crate::log::Log;

impl Disk {
    /// Write pending records to the log, and publish the histogram.
    pub fn housekeeping(&self) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        self.drain(&mut log);
    }

    /// Move pending records out of memory. The caller holds the lock of their log.
    fn drain(&self, log: &mut Option<Log>) {
        let (pending, counters) = {
            let mut state = self.state();
            (std::mem::take(&mut state.pending), state.counters)
        };
        self.page.publish_bins(&counters);
        if pending.is_empty() {
            return;
        }
        if let Some(open) = log.as_mut() {
            if let Err(error) = open.append(&pending, |file_id| self.file_names.path_of(file_id)) {
                eprintln!("penstock-disk: request log of {}: {error}", self.disk_id);
                self.state().lost_records += pending.len() as u64;
            }
        }
    }

    /// Switch the request log: flush and close the old one, open the new one.
    pub fn switch_log(&self, path: Option<&Path>) -> Result<(), Error> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        self.state().logging = false;
        self.drain(&mut log);
        *log = None;
        let new =
            match path {
                Some(path) => Some(Log::open(path).map_err(|error| {
                    Error::host(format!("request log {}", path.display()), error)
                })?),
                None => None,
            };
        let logging = new.is_some();
        *log = new;
        self.file_names.log(logging);
        self.state().logging = logging;
        Ok(())
    }

    /// Value of the counter `name`.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let at = NAMES.iter().position(|candidate| *candidate == name)?;
        Some(self.state().counters.values()[at])
    }

    /// Counters and related values as JSON.
    pub fn stats(&self) -> Value {
        let compensation = self.compensation();
        let mut state = self.state();
        let now = now_ns();
        state.count_in_flight(now, 0);
        let mut out = serde_json::Map::new();
        for (name, value) in NAMES.into_iter().zip(state.counters.values()) {
            out.insert(name.to_owned(), json!(value));
        }
        let bins = state.counters.lateness_bins;
        let filled = bins
            .iter()
            .rposition(|&count| count > 0)
            .map_or(0, |last| last + 1);
        out.insert("lateness_bins".into(), json!(bins[..filled]));
        out.insert("t_ns".into(), json!(now));
        out.insert("since_ns".into(), json!(state.reset_ns));
        out.insert(
            "server_cpu_ns".into(),
            json!(process_cpu_ns().saturating_sub(state.cpu_at_reset_ns)),
        );
        out.insert(
            "server_wait_ns".into(),
            json!(process_wait_ns().saturating_sub(state.wait_at_reset_ns)),
        );
        out.insert(
            "server_requests".into(),
            json!(arrived_so_far().saturating_sub(state.arrived_at_reset)),
        );
        out.insert("kept_awake".into(), json!(awake::possible()));
        let host = HostCpu::now();
        out.insert(
            "host_busy_ns".into(),
            json!(host.busy_ns.saturating_sub(state.host_at_reset.busy_ns)),
        );
        out.insert(
            "host_cpu_ns".into(),
            json!(host.all_ns.saturating_sub(state.host_at_reset.all_ns)),
        );
        out.insert("lost_records".into(), json!(state.lost_records));
        out.insert("compensation".into(), json!(compensation));
        out.insert("disk_id".into(), json!(self.disk_id));
        out.insert("transport".into(), json!(self.transport()));
        out.insert("seed".into(), json!(state.seed));
        out.insert("profile".into(), json!(state.profile.name));
        out.insert("time_scale".into(), json!(state.profile.time_scale));
        out.insert("logging".into(), json!(state.logging));
        out.insert(
            "levels".into(),
            json!(state.station.levels(state.in_station_time(now))),
        );
        drop(state);
        let (stored_bytes, drained) = self
            .gate
            .unsynced()
            .as_ref()
            .map_or((0, 0), crate::unsynced::Unsynced::stored_and_dropped_bytes);
        out.insert("unsynced_bytes".into(), json!(stored_bytes));
        out.insert("drained_bytes".into(), json!(drained));
        Value::Object(out)
    }

    /// Entry of the disk in the list of disks.
    pub fn describe(&self) -> Value {
        let settings = self.settings();
        let space = *self.gate.space();
        let state = self.state();
        json!({
            "settings": settings,
            "size_bytes": space.map(|space| space.size_bytes),
            "used_bytes": space.map(|space| space.used_bytes),
            "disk_id": self.disk_id,
            "mount": self.mount,
            "backing": self.backing,
            "profile": state.profile.name,
            "time_scale": state.profile.time_scale,
            "durable": self.durable,
            "transport": self.transport(),
            "gone": self.gone.load(Ordering::Relaxed),
        })
    }
}
