//! Replies that wait for their time.
//!
//! A binary heap under one lock. One of the timer threads, the leader, sleeps until shortly before
//! the earliest reply is due; when it leaves to answer, another takes the lead, so that copying a
//! big reply delays no other. Threads run with a timer slack of 1 ns and spin over the last stretch,
//! which follows the oversleeping seen.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use penstock_daemon::clock::{be_punctual, now_ns};
use penstock_daemon::due::Waiting;
use penstock_daemon::process::go_first;
use penstock_station::Served;

const SHORTEST_SPIN_NS: u64 = 5_000;
/// A sleep too long by more than this makes a reply late.
pub(crate) const LONGEST_SPIN_NS: u64 = 120_000;

/// What is done when the time has come; told the time at which the reply is sent, and how it was
/// served if that has changed since.
pub type Answer = Box<dyn FnOnce(u64, Option<Moved>) + Send>;

/// Whose reply it is: the disk by a number of its own, the request by the station's.
pub type Whose = (u64, u64);

/// A reply that is due at another time than was promised.
#[derive(Debug, Clone, Copy)]
pub struct Moved {
    /// When it is due now (CLOCK_MONOTONIC).
    pub due_ns: u64,
    /// How it is served, in the station's time.
    pub served: Served,
}

struct Reply {
    whose: Whose,
    moved: Option<Moved>,
    answer: Answer,
}

#[derive(Default)]
struct Queue {
    waiting: Waiting<Reply>,
    led: bool,
    stopped: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    leader: Condvar,
    followers: Condvar,
}

/// The timer threads of the server.
#[derive(Clone)]
pub struct Timers {
    shared: Arc<Shared>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timers {
    /// Starts `threads` timer threads.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            leader: Condvar::new(),
            followers: Condvar::new(),
        });
        for index in 0..threads.max(1) {
            let shared = shared.clone();
            thread::Builder::new()
                .name(format!("timer-{index}"))
                .spawn(move || serve(&shared))?;
        }
        Ok(Timers { shared })
    }

    /// Answers at `due_ns` (CLOCK_MONOTONIC), or as soon after it as can be.
    pub fn answer_at(&self, due_ns: u64, whose: Whose, answer: Answer) {
        let mut queue = lock(&self.shared.queue);
        let reply = Reply {
            whose,
            moved: None,
            answer,
        };
        let earliest = queue.waiting.put(due_ns, reply);
        let led = queue.led;
        drop(queue);
        if earliest {
            if led {
                self.shared.leader.notify_one();
            } else {
                self.shared.followers.notify_one();
            }
        }
    }

    /// Moves replies of the disk `disk` that wait; what is left in `moved` does not wait here.
    pub fn move_all(&self, disk: u64, moved: &mut HashMap<u64, Moved>) {
        if moved.is_empty() {
            return;
        }
        let mut queue = lock(&self.shared.queue);
        queue.waiting.change(|due| {
            if due.what.whose.0 == disk {
                if let Some(to) = moved.remove(&due.what.whose.1) {
                    due.due_ns = to.due_ns;
                    due.what.moved = Some(to);
                }
            }
        });
        let led = queue.led;
        drop(queue);
        if led {
            self.shared.leader.notify_one();
        } else {
            self.shared.followers.notify_one();
        }
    }

    /// Replies still waiting.
    pub fn waiting(&self) -> usize {
        lock(&self.shared.queue).waiting.len()
    }

    /// Ends the threads; replies still waiting are dropped.
    pub fn stop(&self) {
        lock(&self.shared.queue).stopped = true;
        self.shared.leader.notify_all();
        self.shared.followers.notify_all();
    }
}

fn serve(shared: &Shared) {
    be_punctual();
    // What is due waits for no processor.
    go_first();
    let mut spin_ns = 20_000;
    let mut queue = lock(&shared.queue);
    loop {
        // Become the leader.
        while queue.led || queue.waiting.is_empty() {
            if queue.stopped {
                return;
            }
            queue = shared
                .followers
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        queue.led = true;
        // Sleep until the earliest reply is near.
        loop {
            if queue.stopped {
                return;
            }
            let Some(due_ns) = queue.waiting.next_ns() else {
                break;
            };
            let wake_ns = due_ns.saturating_sub(spin_ns);
            let now = now_ns();
            if wake_ns <= now {
                break;
            }
            let pause = Duration::from_nanos(wake_ns - now);
            let (guard, result) = shared
                .leader
                .wait_timeout(queue, pause)
                .unwrap_or_else(PoisonError::into_inner);
            queue = guard;
            if result.timed_out() {
                let overslept_ns = now_ns().saturating_sub(wake_ns);
                let wanted_ns = overslept_ns + overslept_ns / 2;
                // Rise at once, fall slowly; an oversleep beyond reason teaches nothing.
                spin_ns = if wanted_ns > 2 * LONGEST_SPIN_NS {
                    spin_ns
                } else {
                    (spin_ns * 31 / 32)
                        .max(wanted_ns)
                        .clamp(SHORTEST_SPIN_NS, LONGEST_SPIN_NS)
                };
            }
        }
        let next = queue.waiting.take();
        queue.led = false;
        let more = !queue.waiting.is_empty();
        drop(queue);
        if more {
            shared.followers.notify_one();
        }
        if let Some(due) = next {
            let mut now = now_ns();
            while now < due.due_ns {
                std::hint::spin_loop();
                now = now_ns();
            }
            (due.what.answer)(now, due.what.moved);
        }
        queue = lock(&shared.queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn answers_come_in_the_order_of_their_times_and_never_early() {
        let timers = Timers::start(2).unwrap();
        let (sender, receiver) = mpsc::channel();
        let start = now_ns() + 5_000_000;
        for step in [7u64, 1, 4, 9, 2] {
            let sender = sender.clone();
            let due = start + step * 3_000_000;
            timers.answer_at(
                due,
                (1, step),
                Box::new(move |now, _| sender.send((step, now >= due)).unwrap()),
            );
        }
        let got: Vec<_> = (0..5).map(|_| receiver.recv().unwrap()).collect();
        assert_eq!(got, [(1, true), (2, true), (4, true), (7, true), (9, true)]);
        assert_eq!(timers.waiting(), 0);
        timers.stop();
    }

    #[test]
    fn replies_that_wait_are_moved_and_others_stay() {
        let timers = Timers::start(2).unwrap();
        let (sender, receiver) = mpsc::channel();
        let start = now_ns();
        for (disk, id, after_ms) in [(1, 0, 40), (1, 1, 60_000), (2, 1, 80)] {
            let sender = sender.clone();
            timers.answer_at(
                start + after_ms * 1_000_000,
                (disk, id),
                Box::new(move |_, moved| sender.send((disk, id, moved.is_some())).unwrap()),
            );
        }
        let served = Served {
            start_ns: 0,
            due_ns: 0,
            service_ns: 0,
            wait_ns: 0,
            sequential: false,
            visit: 0,
            id: 1,
        };
        let due_ns = start + 10_000_000;
        let to = Moved { due_ns, served };
        let mut moved = HashMap::from([(1, to), (9, to)]);
        timers.move_all(1, &mut moved);
        assert_eq!(moved.into_keys().collect::<Vec<_>>(), [9]);
        let got: Vec<_> = (0..3).map(|_| receiver.recv().unwrap()).collect();
        assert_eq!(got, [(1, 1, true), (1, 0, false), (2, 1, false)]);
        timers.stop();
    }
}
