//! Timers: replies that wait until they are due.
//!
//! Replies to requests of a ring wait in the thread of the ring ([`RingTimer`]), which shares no lock with
//! others. All other replies wait in a binary heap under one lock. One timer thread, the leader, sleeps until
//! shortly before the earliest reply is due. Before it sends the reply, another thread becomes leader, so that
//! copying a large reply does not delay others. Threads have a timer slack of 1 ns and spin before the due
//! time. The spin covers the oversleeping of 19 of 20 sleeps.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use fuser::{Pacer, Pause, Waker};
use penstock_daemon::clock::{be_punctual, now_ns};
use penstock_daemon::due::Waiting;
use penstock_daemon::process::go_first;
use penstock_station::Served;

const SHORTEST_SPIN_NS: u64 = 5_000;
const FIRST_SPIN_NS: u64 = 20_000;
/// One sleep in `COVERED` may be too long for the spin after it.
const COVERED: u64 = 20;
const STEP_NS: u64 = 200;
/// Longest spin. A reply is late if the thread oversleeps by more than this.
pub(crate) const LONGEST_SPIN_NS: u64 = 120_000;

/// Action at the due time. Its arguments are the time of the reply and, if the reply was moved, the new
/// service.
pub type Answer = Box<dyn FnOnce(u64, Option<Moved>) + Send>;

/// Owner of a reply: number of the disk, and number of the request at the station.
pub type Whose = (u64, u64);

/// A reply whose due time has changed.
#[derive(Debug, Clone, Copy)]
pub struct Moved {
    /// New due time (CLOCK_MONOTONIC).
    pub due_ns: u64,
    /// New service, in the time of the station.
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
    /// True while the leader spins instead of sleeping and checks for earlier replies.
    spinning: bool,
    stopped: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    leader: Condvar,
    followers: Condvar,
    /// Request to a spinning leader to check the queue again.
    look: AtomicBool,
    rings: Mutex<Vec<Weak<Ring>>>,
}

impl Shared {
    /// Make the current or next leader check the queue again. Release the lock first.
    fn tell(&self, queue: MutexGuard<'_, Queue>) {
        if queue.spinning {
            self.look.store(true, Ordering::Release);
        }
        let sleeper = if queue.led {
            &self.leader
        } else {
            &self.followers
        };
        drop(queue);
        sleeper.notify_one();
    }
}

/// Timer threads of the server.
#[derive(Clone)]
pub struct Timers {
    shared: Arc<Shared>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timers {
    /// Start `threads` timer threads.
    pub fn start(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            leader: Condvar::new(),
            followers: Condvar::new(),
            look: AtomicBool::new(false),
            rings: Mutex::default(),
        });
        for index in 0..threads.max(1) {
            let shared = shared.clone();
            thread::Builder::new()
                .name(format!("timer-{index}"))
                .spawn(move || serve(&shared))?;
        }
        Ok(Timers { shared })
    }

    /// Call `answer` at `due_ns` (CLOCK_MONOTONIC), or as soon as possible after it.
    pub fn answer_at(&self, due_ns: u64, whose: Whose, answer: Answer) {
        let reply = Reply {
            whose,
            moved: None,
            answer,
        };
        let Some(reply) = put_at_own_ring(due_ns, reply) else {
            return;
        };
        let mut queue = lock(&self.shared.queue);
        if queue.waiting.put(due_ns, reply) {
            self.shared.tell(queue);
        }
    }

    /// Move waiting replies of the disk `disk`. Replies that do not wait here remain in `moved`.
    pub fn move_all(&self, disk: u64, moved: &mut HashMap<u64, Moved>) {
        if moved.is_empty() {
            return;
        }
        for ring in self.rings() {
            let mut waiting = ring.lock();
            move_in(&mut waiting, disk, moved);
            drop(waiting);
            ring.waker.wake();
        }
        let mut queue = lock(&self.shared.queue);
        move_in(&mut queue.waiting, disk, moved);
        self.shared.tell(queue);
    }

    /// Number of waiting replies.
    pub fn waiting(&self) -> usize {
        let at_rings: usize = self.rings().iter().map(|ring| ring.lock().len()).sum();
        lock(&self.shared.queue).waiting.len() + at_rings
    }

    /// Create the timer of a ring for the calling thread, which serves the ring. Replies that the thread sends
    /// later wait there.
    pub fn ring(&self, waker: Waker) -> RingTimer {
        let ring = Arc::new(Ring {
            waiting: Mutex::default(),
            waker,
        });
        let mut rings = self
            .shared
            .rings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        rings.retain(|ring| ring.strong_count() > 0);
        rings.push(Arc::downgrade(&ring));
        OWN_RING.set(Some(ring.clone()));
        RingTimer {
            ring,
            spin_ns: FIRST_SPIN_NS,
            wake_ns: None,
            looked_ns: now_ns(),
            look_ns: 0,
        }
    }

    fn rings(&self) -> Vec<Arc<Ring>> {
        let rings = self.shared.rings.lock();
        let rings = rings.unwrap_or_else(PoisonError::into_inner);
        rings.iter().filter_map(Weak::upgrade).collect()
    }

    /// End the threads. Waiting replies are dropped.
    pub fn stop(&self) {
        lock(&self.shared.queue).stopped = true;
        self.shared.leader.notify_all();
        self.shared.followers.notify_all();
    }
}

fn move_in(waiting: &mut Waiting<Reply>, disk: u64, moved: &mut HashMap<u64, Moved>) {
    waiting.change(|due| {
        if due.what.whose.0 == disk {
            if let Some(to) = moved.remove(&due.what.whose.1) {
                due.due_ns = to.due_ns;
                due.what.moved = Some(to);
            }
        }
    });
}

/// Waiting replies of a ring's thread.
struct Ring {
    waiting: Mutex<Waiting<Reply>>,
    waker: Waker,
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, Waiting<Reply>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    static OWN_RING: RefCell<Option<Arc<Ring>>> = const { RefCell::new(None) };
    /// Earliest time at which a pending request may have arrived; 0 if requests are seen at once.
    static UNSEEN_SINCE_NS: Cell<u64> = const { Cell::new(0) };
    /// Time at which the ring's thread last polled for requests; 0 in other threads.
    static LOOKED_NS: Cell<u64> = const { Cell::new(0) };
    /// Bookkeeping of replies that the ring has not returned yet.
    static AFTERWARDS: RefCell<Vec<Afterwards>> = const { RefCell::new(Vec::new()) };
}

type Afterwards = Box<dyn FnOnce(u64)>;

/// Interval between polls after which a request may have waited in the ring.
const UNSEEN_NS: u64 = 500_000;
/// A poll that takes longer than this has waited: no request had arrived before.
const LOOK_NS: u64 = 50_000;

/// Arrival time of the current request: the earliest possible time if the thread was delayed before.
pub(crate) fn arrival_ns() -> u64 {
    let (now, looked_ns) = (now_ns(), LOOKED_NS.get());
    match UNSEEN_SINCE_NS.get() {
        0 if looked_ns > 0 && now > looked_ns + UNSEEN_NS => looked_ns,
        0 => now,
        since_ns => since_ns,
    }
}

/// Call `book` with the time at which the last reply is sent: now, or after the calling thread's ring has
/// returned it.
pub(crate) fn when_sent(book: impl FnOnce(u64) + 'static) {
    if OWN_RING.with_borrow(Option::is_some) {
        AFTERWARDS.with_borrow_mut(|all| all.push(Box::new(book)));
    } else {
        book(now_ns());
    }
}

/// Queue a reply at the ring of the calling thread. Return the reply if there is no ring.
fn put_at_own_ring(due_ns: u64, reply: Reply) -> Option<Reply> {
    OWN_RING.with_borrow(|ring| match ring {
        Some(ring) => {
            ring.lock().put(due_ns, reply);
            None
        }
        None => Some(reply),
    })
}

/// Timer of a ring: sends its replies between requests, in the ring's thread.
pub struct RingTimer {
    ring: Arc<Ring>,
    spin_ns: u64,
    /// Planned end of the thread's wait.
    wake_ns: Option<u64>,
    /// Time at which the thread last polled for requests, and time at which it started the next poll.
    looked_ns: u64,
    look_ns: u64,
}

impl RingTimer {
    fn pause(&mut self) -> Pause {
        let mut now = now_ns();
        if let Some(overslept_ns) = self.wake_ns.take().and_then(|wake| now.checked_sub(wake)) {
            self.spin_ns = spin_after(self.spin_ns, overslept_ns);
        }
        loop {
            let mut waiting = self.ring.lock();
            let next = waiting.take_due(now).ok_or_else(|| waiting.next_ns());
            drop(waiting);
            let due_ns = match next {
                Ok(due) => {
                    (due.what.answer)(now, due.what.moved);
                    now = now_ns();
                    continue;
                }
                Err(due_ns) => due_ns,
            };
            if AFTERWARDS.with_borrow(|all| !all.is_empty()) {
                // send replies before bookkeeping
                return Pause::Poll;
            }
            let Some(due_ns) = due_ns else {
                return Pause::Forever;
            };
            let wake_ns = due_ns.saturating_sub(self.spin_ns);
            if wake_ns <= now {
                return Pause::Poll;
            }
            self.wake_ns = Some(wake_ns);
            return Pause::For(Duration::from_nanos(wake_ns - now));
        }
    }
}

impl Pacer for RingTimer {
    fn work(&mut self) -> Pause {
        let pause = self.pause();
        self.look_ns = now_ns();
        pause
    }

    fn looked(&mut self) {
        let now = now_ns();
        let held_up = self.look_ns.saturating_sub(self.looked_ns) > UNSEEN_NS;
        let at_once = now.saturating_sub(self.look_ns) < LOOK_NS;
        UNSEEN_SINCE_NS.set(if held_up && at_once {
            self.looked_ns
        } else {
            0
        });
        self.looked_ns = now;
        LOOKED_NS.set(now);
        for book in AFTERWARDS.take() {
            book(now);
        }
    }
}

/// Spin time after a sleep that was `overslept_ns` too long. The steps converge to a spin that one sleep in
/// [`COVERED`] exceeds. Covering the longest sleeps would need permanent spinning, which takes processor time
/// from the programs under test.
fn spin_after(spin_ns: u64, overslept_ns: u64) -> u64 {
    let next_ns = if overslept_ns > spin_ns {
        spin_ns + STEP_NS * (COVERED - 1)
    } else {
        spin_ns.saturating_sub(STEP_NS)
    };
    next_ns.clamp(SHORTEST_SPIN_NS, LONGEST_SPIN_NS)
}

/// Spin until `due_ns` or until `stop` returns true. Return the current time.
fn spin(due_ns: u64, stop: impl Fn() -> bool) -> u64 {
    loop {
        let now = now_ns();
        if now >= due_ns || stop() {
            return now;
        }
        std::hint::spin_loop();
    }
}

fn serve(shared: &Shared) {
    be_punctual();
    // Due replies must not wait for a processor.
    go_first();
    let mut spin_ns = FIRST_SPIN_NS;
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
                spin_ns = spin_after(spin_ns, now_ns().saturating_sub(wake_ns));
            }
        }
        let Some(due) = queue.waiting.take() else {
            queue.led = false;
            continue;
        };
        // A spinning leader stays leader if the next reply would need another spin: two spinning threads would
        // take two processors from the programs under test.
        let until_ns = due.due_ns + spin_ns;
        if queue.waiting.next_ns().is_some_and(|ns| ns < until_ns) && now_ns() < due.due_ns {
            queue.spinning = true;
            drop(queue);
            spin(due.due_ns, || shared.look.load(Ordering::Acquire));
            queue = lock(&shared.queue);
            queue.spinning = false;
            shared.look.store(false, Ordering::Release);
            if queue.waiting.next_ns().is_some_and(|ns| ns < due.due_ns) {
                // A reply with an earlier due time has arrived.
                queue.waiting.put(due.due_ns, due.what);
                queue.led = false;
                continue;
            }
        }
        queue.led = false;
        let more = !queue.waiting.is_empty();
        drop(queue);
        if more {
            shared.followers.notify_one();
        }
        let now = spin(due.due_ns, || false);
        (due.what.answer)(now, due.what.moved);
        queue = lock(&shared.queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn replies_are_ordered_by_time_and_never_early() {
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
    fn only_waiting_replies_are_rescheduled() {
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

    #[test]
    fn spin_covers_the_95th_percentile_of_oversleep() {
        let mut spin_ns = LONGEST_SPIN_NS;
        let mut longer = 0;
        for n in 0..20_000u64 {
            let overslept_ns = 10_000 + 400 * (n * 7919 % 100); // uniform, 10 to 50 µs
            if n >= 10_000 && overslept_ns > spin_ns {
                longer += 1;
            }
            spin_ns = spin_after(spin_ns, overslept_ns);
        }
        assert!((400..=600).contains(&longer), "{longer} of 10000");
        assert!((44_000..=52_000).contains(&spin_ns), "{spin_ns}");
        assert_eq!(spin_after(LONGEST_SPIN_NS, u64::MAX), LONGEST_SPIN_NS);
        assert_eq!(spin_after(SHORTEST_SPIN_NS, 0), SHORTEST_SPIN_NS);
    }
}
