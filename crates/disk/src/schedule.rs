//! Planned changes: at a time, when a phase is marked, or when a counter crosses a threshold.
//!
//! The server applies them by itself, even if the client has disconnected. One thread waits for the next
//! change. It sleeps as exactly as the timers, but does not spin.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_daemon::clock::{be_punctual, now_ns};
use penstock_daemon::Error;
use serde_json::{json, Value};

use crate::change::{Cause, Planned};
use crate::counters::NAMES;
use crate::disk::Disk;
use crate::patch::DiskPatch;

/// Polling interval of thresholds.
const LOOK: Duration = Duration::from_millis(10);

struct Due {
    at_ns: u64,
    number: u64,
    disk: Arc<Disk>,
    patch: DiskPatch,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ns, self.number) == (other.at_ns, other.number)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

enum Trigger {
    Phase(String),
    Metric {
        name: String,
        above: Option<f64>,
        below: Option<f64>,
    },
}

struct Waiting {
    trigger: Trigger,
    every: bool,
    /// True if the condition was false when last polled.
    armed: bool,
    after_ns: u64,
    disk: Arc<Disk>,
    patch: DiskPatch,
}

#[derive(Default)]
struct Queue {
    timed: BinaryHeap<Reverse<Due>>,
    waiting: Vec<Waiting>,
    number: u64,
    stopped: bool,
}

/// Schedules of all disks.
#[derive(Default)]
pub struct Scheduler {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Keys that a patch sets; each limit is a separate key.
fn keys(patch: &Value) -> HashSet<String> {
    let mut keys = HashSet::new();
    for (key, value) in patch.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(limits) if key == "limits" => {
                keys.extend(limits.keys().map(|limit| format!("limits.{limit}")));
            }
            _ => {
                keys.insert(key.clone());
            }
        }
    }
    keys
}

/// First key that both patches set. Setting all limits at once conflicts with each limit.
fn clash(first: &Value, second: &Value) -> Option<String> {
    let (first, second) = (keys(first), keys(second));
    let meets = |key: &str, others: &HashSet<String>| {
        others.contains(key) || (key == "limits" && others.iter().any(|o| o.starts_with("limits.")))
    };
    first
        .iter()
        .find(|key| meets(key, &second))
        .or_else(|| second.iter().find(|key| meets(key, &first)))
        .cloned()
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plan changes of a disk. One invalid change rejects all of them. `replace` drops the earlier plans of the
    /// disk.
    pub fn plan(&self, disk: &Arc<Disk>, events: &[Planned], replace: bool) -> Result<(), Error> {
        let (mut timed, mut waiting) = (Vec::<(u64, DiskPatch)>::new(), Vec::new());
        for (index, event) in events.iter().enumerate() {
            let bad = |why: String| Error::Bad(format!("events[{index}]: {why}"));
            let mut patch = DiskPatch::read(&event.patch).map_err(|why| bad(why.to_string()))?;
            let due = || Cause::new("time", "");
            patch.cause = event.cause.clone().unwrap_or_else(due);
            match when(event).map_err(bad)? {
                Ok(at_ns) => {
                    for (other_ns, other) in &timed {
                        if *other_ns == at_ns {
                            if let Some(key) = clash(&patch.asked, &other.asked) {
                                return Err(bad(format!(
                                    "{key} is set twice at one time ({at_ns} ns)"
                                )));
                            }
                        }
                    }
                    timed.push((at_ns, patch));
                }
                Err(trigger) => {
                    waiting.push(Waiting {
                        trigger,
                        every: event.every,
                        armed: true,
                        after_ns: event.after_ns,
                        disk: disk.clone(),
                        patch,
                    });
                }
            }
        }
        let mut queue = self.lock();
        if replace {
            queue.forget(disk);
        }
        for (at_ns, patch) in timed {
            queue.push(at_ns, disk.clone(), patch);
        }
        queue.waiting.append(&mut waiting);
        drop(queue);
        self.changed.notify_all();
        Ok(())
    }

    /// Mark the start of a phase at `t_ns`, for one disk or all disks.
    pub fn mark(&self, disk: Option<&Arc<Disk>>, phase: &str, t_ns: u64) -> usize {
        let mut queue = self.lock();
        let count = queue.fire(t_ns, |waiting| {
            let meant = disk.is_none_or(|disk| Arc::ptr_eq(disk, &waiting.disk))
                && matches!(&waiting.trigger, Trigger::Phase(name) if name == phase);
            meant.then(|| Cause::new("phase", phase))
        });
        drop(queue);
        self.changed.notify_all();
        count
    }

    /// Drop the plans of a disk.
    pub fn forget(&self, disk: &Arc<Disk>) {
        self.lock().forget(disk);
    }

    /// Planned changes of a disk.
    pub fn pending(&self, disk: &Arc<Disk>) -> Vec<Value> {
        let queue = self.lock();
        let mut timed: Vec<&Due> = queue.timed.iter().map(|due| &due.0).collect();
        timed.sort();
        let timed = timed
            .into_iter()
            .filter(|due| Arc::ptr_eq(&due.disk, disk))
            .map(|due| json!({"at_ns": due.at_ns, "patch": due.patch.asked}));
        let waiting = queue
            .waiting
            .iter()
            .filter(|waiting| Arc::ptr_eq(&waiting.disk, disk))
            .map(|waiting| {
                let mut row = match &waiting.trigger {
                    Trigger::Phase(name) => json!({"phase": name}),
                    Trigger::Metric { name, above, below } => {
                        json!({"metric": name, "above": above, "below": below})
                    }
                };
                row["every"] = json!(waiting.every);
                row["after_ns"] = json!(waiting.after_ns);
                row["patch"] = waiting.patch.asked.clone();
                row
            });
        timed.chain(waiting).collect()
    }

    /// End [`Scheduler::serve`].
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Apply due changes with `apply(disk, planned_ns, patch)` until stopped.
    pub fn serve(&self, apply: impl Fn(&Arc<Disk>, u64, &DiskPatch)) {
        be_punctual();
        let mut queue = self.lock();
        while !queue.stopped {
            queue.look(now_ns());
            let now = now_ns();
            let next_ns = queue.timed.peek().map(|due| due.0.at_ns);
            if next_ns.is_some_and(|next_ns| next_ns <= now) {
                if let Some(Reverse(due)) = queue.timed.pop() {
                    drop(queue);
                    apply(&due.disk, due.at_ns, &due.patch);
                    queue = self.lock();
                }
                continue;
            }
            let mut pause = next_ns.map_or(Duration::from_secs(3600), |next_ns| {
                Duration::from_nanos(next_ns - now)
            });
            if queue.watches() {
                pause = pause.min(LOOK);
            }
            queue = self
                .changed
                .wait_timeout(queue, pause)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Due time or trigger of a change.
fn when(event: &Planned) -> Result<Result<u64, Trigger>, String> {
    match (event.at_ns, &event.phase, &event.metric) {
        (Some(at_ns), None, None) => Ok(Ok(at_ns)),
        (None, Some(phase), None) => Ok(Err(Trigger::Phase(phase.clone()))),
        (None, None, Some(name)) => {
            if !NAMES.contains(&name.as_str()) {
                return Err(format!(
                    "metric \"{name}\"; one of {} is expected",
                    NAMES.join(", ")
                ));
            }
            if event.above.is_some() == event.below.is_some() {
                return Err("metric wants either above or below".into());
            }
            Ok(Err(Trigger::Metric {
                name: name.clone(),
                above: event.above,
                below: event.below,
            }))
        }
        _ => Err("exactly one of at_ns, phase and metric is expected".into()),
    }
}

impl Queue {
    fn push(&mut self, at_ns: u64, disk: Arc<Disk>, patch: DiskPatch) {
        self.number += 1;
        let number = self.number;
        self.timed.push(Reverse(Due {
            at_ns,
            number,
            disk,
            patch,
        }));
    }

    fn forget(&mut self, disk: &Arc<Disk>) {
        self.timed.retain(|due| !Arc::ptr_eq(&due.0.disk, disk));
        self.waiting.retain(|w| !Arc::ptr_eq(&w.disk, disk));
    }

    /// Plan the changes that `fires` selects, at `t_ns` or later, and return their number. Drop triggers that
    /// fire only once.
    fn fire(&mut self, t_ns: u64, mut fires: impl FnMut(&mut Waiting) -> Option<Cause>) -> usize {
        let mut count = 0;
        for mut waiting in std::mem::take(&mut self.waiting) {
            let cause = fires(&mut waiting);
            let stays = cause.is_none() || waiting.every;
            if let Some(cause) = cause {
                count += 1;
                let mut patch = waiting.patch.clone();
                patch.cause = cause;
                self.push(
                    t_ns.saturating_add(waiting.after_ns),
                    waiting.disk.clone(),
                    patch,
                );
            }
            if stays {
                self.waiting.push(waiting);
            }
        }
        count
    }

    fn watches(&self) -> bool {
        let metric = |w: &Waiting| matches!(w.trigger, Trigger::Metric { .. });
        self.waiting.iter().any(metric)
    }

    /// Poll the counters with thresholds.
    fn look(&mut self, now_ns: u64) {
        if !self.watches() {
            return;
        }
        self.fire(now_ns, |waiting| {
            let Trigger::Metric { name, above, below } = &waiting.trigger else {
                return None;
            };
            let counted = waiting.disk.counter(name).unwrap_or(0);
            let value = counted as f64;
            let bound = match (above, below) {
                (Some(above), _) if value > *above => Some(format!("above {above}")),
                (_, Some(below)) if value < *below => Some(format!("below {below}")),
                _ => None,
            };
            let was_armed = std::mem::replace(&mut waiting.armed, bound.is_none());
            let bound = bound.filter(|_| was_armed)?;
            Some(Cause::new("metric", format!("{name} {counted}, {bound}")))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_key_clashes_and_different_limits_do_not() {
        let read = json!({"limits": {"read_bps": 1.0}});
        let write = json!({"limits": {"write_bps": 2.0}});
        assert_eq!(clash(&read, &write), None);
        assert_eq!(clash(&read, &read), Some("limits.read_bps".into()));
        assert!(clash(&read, &json!({"limits": null})).is_some());
        assert!(clash(&json!({"limits": "max"}), &write).is_some());
        assert_eq!(clash(&json!({"full": true}), &json!({"servers": 1})), None);
    }

    #[test]
    fn changes_have_exactly_one_trigger() {
        let event = |text: &str| serde_json::from_str::<Planned>(text).unwrap();
        assert!(matches!(when(&event(r#"{"at_ns": 5}"#)), Ok(Ok(5))));
        assert!(when(&event(r#"{"at_ns": 5, "phase": "x"}"#)).is_err());
        assert!(when(&event("{}")).is_err());
        assert!(when(&event(r#"{"metric": "reads"}"#)).is_err());
        let why = when(&event(r#"{"metric": "speed", "above": 1}"#));
        assert!(why.is_err_and(|why| why.contains("written_bytes")));
        assert!(when(&event(r#"{"metric": "reads", "above": 1}"#)).is_ok());
    }
}
