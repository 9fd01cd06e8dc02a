//! Delays that the host caused to this process while requests were in flight, per time window.
//!
//! A separate thread with the scheduling class of the timers shares no lock with any disk. It sleeps and
//! measures its own oversleeping. Every [`WINDOW_NS`] it records the processor waits of the threads that serve
//! requests, and the time that a hypervisor stole. This distinguishes lateness caused by the server from
//! lateness caused by the host.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use penstock_daemon::clock::{be_punctual, now_ns};
use penstock_daemon::process::go_first;
use serde::Serialize;

use crate::awake;
use crate::clock::{on_the_way, HostCpu};
use crate::disk::arrived_so_far;
use crate::timer::LONGEST_SPIN_NS;

/// Length of a window.
pub const WINDOW_NS: u64 = 100_000_000;
const BEAT: Duration = Duration::from_millis(2);
/// Number of windows without a request after which idle processors may sleep again.
const QUIET_WINDOWS: u32 = 10;
/// Windows in which no value exceeds this are discarded.
const NOTHING_NS: u64 = 200_000;
/// Maximum number of stored windows: almost three hours of windows with delays.
const MOST_WINDOWS: usize = 100_000;

static WINDOWS: Mutex<VecDeque<HostWait>> = Mutex::new(VecDeque::new());

/// Delays caused by the host in one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HostWait {
    /// End of the window (CLOCK_MONOTONIC).
    pub t_ns: u64,
    /// Length of the window.
    pub window_ns: u64,
    /// Processor wait of all timer threads and of the reader thread that waited longest.
    pub waited_ns: u64,
    /// Time stolen by the hypervisor, sum over all processors.
    pub stolen_ns: u64,
    /// Time in which at least one task of the host waited for a processor (PSI).
    pub pressure_ns: u64,
    /// Total oversleeping of this thread.
    pub overslept_ns: u64,
}

/// Windows with delays that ended after `since_ns`.
pub fn since(since_ns: u64) -> Vec<HostWait> {
    let windows = windows();
    let first = windows.partition_point(|window| window.t_ns <= since_ns);
    windows.range(first..).copied().collect()
}

fn windows() -> MutexGuard<'static, VecDeque<HostWait>> {
    WINDOWS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Start the thread. It runs until the process ends.
pub fn start() -> std::io::Result<()> {
    thread::Builder::new()
        .name("witness".into())
        .spawn(|| {
            be_punctual();
            go_first();
            watch();
        })
        .map(|_| ())
}

fn watch() -> ! {
    let mut threads = Threads::default();
    let mut before = Seen::now(&mut threads);
    let mut arrived = arrived_so_far();
    let mut busy = false;
    let mut quiet = 0u32;
    loop {
        let mut overslept_ns = 0;
        while now_ns() < before.t_ns + WINDOW_NS {
            let pause = if busy {
                BEAT
            } else {
                Duration::from_nanos(WINDOW_NS)
            };
            let wake_ns = now_ns() + pause.as_nanos() as u64;
            thread::sleep(pause);
            let late_ns = now_ns().saturating_sub(wake_ns);
            // The timers compensate shorter oversleeping.
            if late_ns > LONGEST_SPIN_NS {
                overslept_ns += late_ns;
            }
        }
        let seen = Seen::now(&mut threads);
        keep(seen.after(&before, overslept_ns));
        before = seen;
        let so_far = arrived_so_far();
        busy = so_far != arrived;
        arrived = so_far;
        quiet = if awake::take_arrived() {
            0
        } else {
            quiet.saturating_add(1)
        };
        if quiet == QUIET_WINDOWS {
            awake::rest();
        }
    }
}

fn keep(window: HostWait) {
    let most_ns = window
        .waited_ns
        .max(window.stolen_ns)
        .max(window.overslept_ns);
    if most_ns <= NOTHING_NS {
        return;
    }
    let mut windows = windows();
    if windows.len() == MOST_WINDOWS {
        windows.pop_front();
    }
    windows.push_back(window);
}

/// Counters at one moment.
struct Seen {
    t_ns: u64,
    timers_ns: u64,
    readers_ns: HashMap<u32, u64>,
    stolen_ns: u64,
    pressure_ns: u64,
}

impl Seen {
    fn now(threads: &mut Threads) -> Self {
        let (timers_ns, readers_ns) = threads.waited();
        Seen {
            t_ns: now_ns(),
            timers_ns,
            readers_ns,
            stolen_ns: HostCpu::now().stolen_ns,
            pressure_ns: pressure_ns(),
        }
    }

    fn after(&self, before: &Seen, overslept_ns: u64) -> HostWait {
        let longest_ns = self
            .readers_ns
            .iter()
            .map(|(tid, &ns)| ns.saturating_sub(before.readers_ns.get(tid).copied().unwrap_or(0)))
            .max()
            .unwrap_or(0);
        HostWait {
            t_ns: self.t_ns,
            window_ns: self.t_ns - before.t_ns,
            waited_ns: self.timers_ns.saturating_sub(before.timers_ns) + longest_ns,
            stolen_ns: self.stolen_ns.saturating_sub(before.stolen_ns),
            pressure_ns: self.pressure_ns.saturating_sub(before.pressure_ns),
            overslept_ns,
        }
    }
}

/// Threads that serve requests, by thread number: true for a timer, and the open `schedstat` file.
#[derive(Default)]
struct Threads(HashMap<u32, (bool, File)>);

impl Threads {
    /// Processor wait since the start of each thread: the sum over all timers, and each reader by its number.
    fn waited(&mut self) -> (u64, HashMap<u32, u64>) {
        let tids: Vec<u32> = fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|task| task.file_name().to_str()?.parse().ok())
            .collect();
        self.0.retain(|tid, _| tids.contains(tid));
        for tid in tids {
            // A thread without a match may not have its name yet: check it again next time.
            if let Entry::Vacant(place) = self.0.entry(tid) {
                let named = on_the_way(tid).and_then(|(path, name)| {
                    Some((name.starts_with("timer"), File::open(path).ok()?))
                });
                named.map(|thread| place.insert(thread));
            }
        }
        let (mut timers_ns, mut readers_ns) = (0, HashMap::new());
        for (&tid, (is_timer, file)) in &self.0 {
            let mut text = [0; 64];
            let read = file.read_at(&mut text, 0).unwrap_or(0);
            let ns = waited_ns(&text[..read]).unwrap_or(0);
            if *is_timer {
                timers_ns += ns;
            } else {
                readers_ns.insert(tid, ns);
            }
        }
        (timers_ns, readers_ns)
    }
}

/// Second field of a `schedstat` file.
fn waited_ns(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text)
        .ok()?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Total of the line `some` in /proc/pressure/cpu; 0 if the kernel does not provide it.
fn pressure_ns() -> u64 {
    let total_us = |text: String| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with("some"))?;
        line.rsplit_once("total=")?.1.trim().parse().ok()
    };
    fs::read_to_string("/proc/pressure/cpu")
        .ok()
        .and_then(total_us)
        .map_or(0, |us| us * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(t_ns: u64, timers_ns: u64, readers_ns: &[(u32, u64)], stolen_ns: u64) -> Seen {
        Seen {
            t_ns,
            timers_ns,
            readers_ns: readers_ns.iter().copied().collect(),
            stolen_ns,
            pressure_ns: 0,
        }
    }

    #[test]
    fn new_threads_are_counted_from_their_start() {
        let before = seen(100, 5, &[(1, 10), (2, 20)], 7);
        let after = seen(200, 8, &[(1, 14), (2, 21), (3, 2)], 7);
        let window = after.after(&before, 9);
        assert_eq!(
            window,
            HostWait {
                t_ns: 200,
                window_ns: 100,
                waited_ns: 3 + 4,
                stolen_ns: 0,
                pressure_ns: 0,
                overslept_ns: 9,
            }
        );
    }

    #[test]
    fn only_active_windows_are_stored() {
        for (t_ns, stolen_ns) in [(1, 10_000_000), (2, 0), (3, 10_000_000)] {
            keep(HostWait {
                t_ns,
                stolen_ns,
                // threads of the program wait as well
                pressure_ns: 90_000_000,
                ..HostWait::default()
            });
        }
        let times = |since_ns| since(since_ns).iter().map(|w| w.t_ns).collect::<Vec<_>>();
        assert_eq!(times(0), [1, 3]);
        assert_eq!(times(1), [3]);
    }

    #[test]
    fn own_threads_are_identified_by_name() {
        let wait = thread::Builder::new()
            .name("timer-9".into())
            .spawn(|| {
                let mut threads = Threads::default();
                threads.waited();
                threads.0.values().filter(|(is_timer, _)| *is_timer).count()
            })
            .unwrap();
        assert!(wait.join().unwrap() >= 1);
        assert_eq!(waited_ns(b"12 345 6\n"), Some(345));
    }
}
