//! Meter of the run time of the programs, by windows in which the kernel's BPF statistics are enabled.
//!
//! The statistics cost two clock readings per run of any program on the machine, so they are enabled in windows only.
//! The first window lasts until the target has been active for a while, so that it covers short commands. If the
//! target stays idle too long, that window closes, and the next one opens at the target's next activity. Windows of
//! [`WINDOW_NS`] follow at increasing distances and random times, so that no period of the program coincides with
//! them. Each window represents the time since the previous one. The statistics are enabled by a descriptor, so the
//! end of this process disables them.
//!
//! The kernel counts runs on the entire machine. The programs themselves count those that the target caused, while a
//! window is open (`meter` in `bpf/scope.h`).

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{bpf_enable_stats, BPF_STATS_RUN_TIME};
use serde_json::{json, Value};

/// Activity of the target at which the first window closes.
const FIRST_NS: u64 = 10_000_000;
/// Maximum length of the first window without activity.
const PATIENCE_NS: u64 = 200_000_000;
const LOOK_NS: u64 = 10_000_000;
const WINDOW_NS: u64 = 5_000_000;
/// Mean time between windows: a fifth of the elapsed time, clamped to this range.
const GAP_NS: std::ops::RangeInclusive<u64> = 60_000_000..=380_000_000;

/// Groups of programs: calls, and all others. The target's runs are counted per group.
pub(crate) const GROUPS: usize = 2;

/// Counts of the kernel and of the programs so far, by program and by group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Run time and number of runs, (ns, runs), by program.
    pub programs: Vec<(u64, u64)>,
    /// Runs that the target caused.
    pub own: [u64; GROUPS],
}

/// Sums of one group of programs, in a window or extrapolated to the time that windows represent.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    time_ns: f64,
    runs: f64,
    own: f64,
}

impl Group {
    fn add(&mut self, other: &Self, weight: f64) {
        self.time_ns += other.time_ns * weight;
        self.runs += other.runs * weight;
        self.own += other.own * weight;
    }
}

type Groups = [Group; GROUPS];

/// Results of the windows.
#[derive(Clone, Debug, Default)]
struct Sums {
    windows: u64,
    on_ns: u64,
    groups: Groups,
    /// Runs that the target caused in windows.
    accounted: [f64; GROUPS],
    /// Rates in the last window, per ns.
    rate: Groups,
    /// Variance [ns²] of the total time, estimated from the changes between windows.
    error: f64,
}

impl Sums {
    /// Add a window of `on_ns` that represents `span_ns`.
    fn add(&mut self, on_ns: u64, span_ns: u64, window: &Groups) {
        let mut rate = *window;
        for group in &mut rate {
            *group = Group::default();
        }
        for (rate, group) in rate.iter_mut().zip(window) {
            rate.add(group, 1.0 / on_ns.max(1) as f64);
        }
        if self.windows > 0 {
            let time = |rate: &Groups| rate.iter().map(|group| group.time_ns).sum::<f64>();
            let change = (time(&rate) - time(&self.rate)) * span_ns.saturating_sub(on_ns) as f64;
            self.error += change * change / 2.0;
        }
        for (accounted, group) in self.accounted.iter_mut().zip(window) {
            *accounted += group.own;
        }
        self.windows += 1;
        self.on_ns += on_ns;
        self.rate = rate;
        self.stand(span_ns);
    }

    /// Extend the time that the last window represents.
    fn stand(&mut self, span_ns: u64) {
        for (sum, rate) in self.groups.iter_mut().zip(&self.rate) {
            sum.add(rate, span_ns as f64);
        }
    }

    fn report(&self) -> Value {
        let [calls, others] = [0, 1].map(|which| {
            let group = &self.groups[which];
            json!({
                "time_ns": group.time_ns, "runs": group.runs, "own": group.own,
                "accounted": self.accounted[which],
            })
        });
        json!({
            "windows": self.windows, "on_ns": self.on_ns, "calls": calls, "others": others,
            "error_ns": self.error.sqrt(),
        })
    }
}

/// Windows of one recording.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Open window: its descriptor, start, and counts at the start.
    open: Option<(OwnedFd, u64, Reading)>,
    due_ns: u64,
    begun_ns: u64,
    /// End of the time that the windows so far represent.
    accounted_ns: u64,
    at_work: bool,
    /// Counts of the target's runs at which the statistics were disabled; the next window opens when they increase.
    waiting: Option<[u64; GROUPS]>,
    sums: Sums,
    refused: Option<String>,
    random: RandomState,
}

impl Meter {
    /// Open the first window.
    pub fn new(now_ns: u64, read: impl FnOnce() -> Reading) -> Self {
        let mut meter = Self {
            open: None,
            due_ns: now_ns,
            begun_ns: now_ns,
            accounted_ns: now_ns,
            at_work: false,
            waiting: None,
            sums: Sums::default(),
            refused: None,
            random: RandomState::new(),
        };
        meter.open(now_ns, read);
        meter
    }

    /// True if the programs are to count the runs that the target causes.
    pub fn counting(&self) -> bool {
        self.open.is_some() || self.waiting.is_some()
    }

    /// Time of the next check.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Open or close a window if due. `own` has the present counts; `group_of` returns the group of a program.
    pub fn look(
        &mut self,
        now_ns: u64,
        own: [u64; GROUPS],
        group_of: impl Fn(usize) -> usize,
        read: impl FnOnce() -> Reading,
    ) {
        let Some((_, since_ns, before)) = &self.open else {
            if self.waiting == Some(own) {
                self.due_ns = now_ns + LOOK_NS;
            } else {
                if self.waiting.take().is_some() {
                    self.accounted_ns = now_ns;
                    self.at_work = true;
                }
                self.open(now_ns, read);
            }
            return;
        };
        if !self.at_work {
            self.at_work = own != before.own;
            self.due_ns = now_ns + if self.at_work { FIRST_NS } else { LOOK_NS };
            if !self.at_work && now_ns >= since_ns + PATIENCE_NS {
                self.close(now_ns, group_of, read);
                self.waiting = Some(own);
            }
            return;
        }
        self.close(now_ns, group_of, read);
        let (least, most) = GAP_NS.into_inner();
        let gap_ns = ((now_ns - self.begun_ns) / 5).clamp(least, most);
        self.due_ns = now_ns + gap_ns / 2 + self.random.hash_one(now_ns) % gap_ns;
    }

    fn open(&mut self, now_ns: u64, read: impl FnOnce() -> Reading) {
        match switched_on() {
            Ok(descriptor) => {
                self.open = Some((descriptor, now_ns, read()));
                let first = self.sums.windows == 0;
                let lasts_ns = if first { LOOK_NS } else { WINDOW_NS };
                self.due_ns = now_ns + lasts_ns;
            }
            Err(error) => {
                self.refused = Some(format!("the kernel's account of BPF programs: {error}"));
                self.due_ns = u64::MAX;
            }
        }
    }

    fn close(
        &mut self,
        now_ns: u64,
        group_of: impl Fn(usize) -> usize,
        read: impl FnOnce() -> Reading,
    ) {
        let Some((descriptor, since_ns, before)) = self.open.take() else {
            return;
        };
        let now = read();
        drop(descriptor);
        let mut window = Groups::default();
        let pairs = now.programs.iter().zip(&before.programs);
        for (number, (now, before)) in pairs.enumerate() {
            let group = &mut window[group_of(number).min(GROUPS - 1)];
            group.time_ns += now.0.wrapping_sub(before.0) as f64;
            group.runs += now.1.wrapping_sub(before.1) as f64;
        }
        for (group, (now, before)) in window.iter_mut().zip(now.own.iter().zip(&before.own)) {
            group.own = now.wrapping_sub(*before) as f64;
        }
        let on_ns = now_ns.saturating_sub(since_ns);
        self.sums
            .add(on_ns, now_ns.saturating_sub(self.accounted_ns), &window);
        self.accounted_ns = now_ns;
    }

    /// End with the recording. The last window represents the rest of the time.
    pub fn end(
        &mut self,
        now_ns: u64,
        group_of: impl Fn(usize) -> usize,
        read: impl FnOnce() -> Reading,
    ) {
        self.close(now_ns, group_of, read);
        if self.waiting.is_none() {
            self.sums.stand(now_ns.saturating_sub(self.accounted_ns));
        }
        self.due_ns = u64::MAX;
    }

    /// Statistics for the final report: sums extrapolated to the entire recording.
    pub fn report(&self) -> Value {
        let mut stats = self.sums.report();
        stats["refused"] = json!(self.refused);
        stats
    }
}

fn switched_on() -> std::io::Result<OwnedFd> {
    // SAFETY: returns a descriptor, or a negative number.
    let fd = unsafe { bpf_enable_stats(BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor, returned by the kernel.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(time_ns: f64) -> Groups {
        let calls = Group {
            time_ns,
            runs: time_ns / 100.0,
            own: 1.0,
        };
        [calls, Group::default()]
    }

    #[test]
    fn each_window_represents_the_time_since_the_previous() {
        let mut sums = Sums::default();
        sums.add(1_000, 1_000, &window(100.0));
        sums.add(1_000, 9_000, &window(100.0));
        assert_eq!(sums.error, 0.0);
        sums.stand(5_000);
        let stats = sums.report();
        assert!((stats["calls"]["time_ns"].as_f64().unwrap() - 1_500.0).abs() < 1e-6);
        assert!((stats["calls"]["runs"].as_f64().unwrap() - 15.0).abs() < 1e-6);
        assert_eq!(stats["on_ns"], 2_000);
        assert_eq!(stats["calls"]["accounted"], 2.0);
    }

    #[test]
    fn waiting_for_a_late_target_is_not_accounted() {
        let nothing = Reading::default;
        let mut meter = Meter::new(0, nothing);
        if meter.refused.is_some() {
            return; // no permission to enable them here
        }
        let mut now_ns = 0;
        while meter.open.is_some() {
            now_ns = meter.due_ns();
            assert!(now_ns < 2 * PATIENCE_NS);
            meter.look(now_ns, [0, 0], |_| 0, nothing);
        }
        assert!(meter.counting());
        meter.look(now_ns + PATIENCE_NS, [0, 0], |_| 0, nothing);
        assert!(meter.open.is_none());
        meter.look(now_ns + 2 * PATIENCE_NS, [1, 0], |_| 0, nothing);
        assert!(meter.open.is_some() && meter.waiting.is_none());
        meter.look(meter.due_ns(), [2, 0], |_| 0, nothing);
        assert!(!meter.counting());
        assert_eq!(meter.report()["windows"], 2);
    }

    #[test]
    fn differing_windows_increase_the_error() {
        let mut sums = Sums::default();
        sums.add(1_000, 1_000, &window(100.0));
        sums.add(1_000, 9_000, &window(300.0));
        assert!(sums.report()["error_ns"].as_f64().unwrap() > 1_000.0);
    }
}
