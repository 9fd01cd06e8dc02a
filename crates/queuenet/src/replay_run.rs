//! Replay of a traced program: its threads above a page cache of a given size and the station of a profile.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use penstock_station::{Draws, Station, StorageProfile};
use serde::{Deserialize, Serialize};

use crate::cache::{PageCache, Readahead, PAGE_BYTES};
use crate::closed::SimulationError;
use crate::replay::{Kind, Program, Step};
use crate::replay_io::WAKE_NS;

const NEVER: u64 = u64::MAX;

/// Threads that run for a time instead of a number of operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// Numbers of the threads in the trace.
    pub tids: Vec<i64>,
    /// Duration from the first step of any of them, seconds.
    pub seconds: f64,
}

/// Configuration of a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The device.
    pub profile: StorageProfile,
    /// Capacity of the page cache, bytes.
    pub cache_bytes: u64,
    /// Largest readahead window, bytes.
    pub readahead_bytes: u64,
    /// Limit of dirty pages, bytes. Above it writers wait; write-back begins at half of it.
    pub dirty_bytes: u64,
    /// Threads that run for a time.
    #[serde(default)]
    pub bounds: Vec<Bound>,
}

/// Results of one thread; times in seconds of virtual time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadResult {
    /// Number of the thread in the trace.
    pub tid: i64,
    /// Begin of its first step.
    pub start_s: f64,
    /// End of its last step.
    pub end_s: f64,
    /// Number of reads.
    pub reads: u64,
    /// Number of writes.
    pub writes: u64,
    /// Number of flushes.
    pub syncs: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
    /// Number of skipped steps of the trace.
    pub left: u64,
    /// Number of steps beyond the trace.
    pub beyond: u64,
}

/// Results of a replay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    /// End of the last step, seconds from the program's start.
    pub elapsed_s: f64,
    /// Results in the order of the program's threads.
    pub threads: Vec<ThreadResult>,
    /// Read, write and flush requests that reached the device.
    pub requests: [u64; 3],
    /// Bytes of the read, write and flush requests.
    pub bytes: [u64; 3],
    /// Number of cached pages that reads accessed.
    pub pages_found: u64,
    /// Number of pages that reads waited for or fetched.
    pub pages_missed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventKind {
    Begin(u32),
    Go(u32),
    Flush(u32),
    End(u32),
    Kick(u32, u32),
    Wake,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) next: u32,
    pub(crate) at: u32,
    pub(crate) page: u64,
    pub(crate) missed: bool,
    pub(crate) free_ns: u64,
    pub(crate) group: Option<usize>,
    pub(crate) over: bool,
    pub(crate) beyond: u64,
    pub(crate) offset: u64,
    pub(crate) holds: bool,
    pub(crate) idle: bool,
    /// Begin of the current round over the later half.
    pub(crate) round_ns: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Lock {
    held: bool,
    queue: VecDeque<u32>,
}

pub(crate) struct Run<'a> {
    pub(crate) program: &'a Program,
    pub(crate) setting: &'a Setting,
    pub(crate) seed: u64,
    pub(crate) station: Station,
    pub(crate) cache: PageCache,
    pub(crate) readers: HashMap<(u32, u32), Readahead>,
    pub(crate) sizes: Vec<u64>,
    pub(crate) events: BinaryHeap<Reverse<(u64, u64, EventKind)>>,
    pub(crate) order: u64,
    pub(crate) states: Vec<State>,
    pub(crate) ended: Vec<u64>,
    /// Steps skipped because the time was over, and steps that depend only on such steps.
    pub(crate) skipped: Vec<bool>,
    pub(crate) waiting: HashMap<u32, Vec<u32>>,
    pub(crate) locks: HashMap<u32, Lock>,
    pub(crate) deadlines: Vec<u64>,
    /// By bound: end of its threads in the trace, number of its live threads, and threads that wait for their end.
    pub(crate) ends: Vec<(u64, usize, Vec<u32>)>,
    pub(crate) results: Vec<ThreadResult>,
    pub(crate) out: Replayed,
    pub(crate) alive: usize,
}

impl Program {
    /// Run the program once.
    ///
    /// # Errors
    /// The profile is invalid, or the threads of the program wait for each other in a cycle.
    pub fn run(&self, setting: &Setting, seed: u64) -> Result<Replayed, SimulationError> {
        let station =
            Station::new(&setting.profile, seed).map_err(|e| SimulationError(e.message))?;
        let mut states: Vec<State> = Vec::new();
        for thread in &self.threads {
            let group = setting
                .bounds
                .iter()
                .position(|b| b.tids.contains(&thread.tid));
            states.push(State {
                next: thread.first,
                group,
                ..State::default()
            });
        }
        let ends = (0..setting.bounds.len()).map(|group| {
            let members = states
                .iter()
                .zip(&self.threads)
                .filter(|(s, _)| s.group == Some(group));
            let ends = members
                .clone()
                .map(|(_, t)| self.steps[t.end as usize - 1].ended_ns);
            (ends.max().unwrap_or(0), members.count(), Vec::new())
        });
        let ends = ends.collect();
        let results = self.threads.iter().map(|thread| ThreadResult {
            tid: thread.tid,
            start_s: f64::NAN,
            ..ThreadResult::default()
        });
        let mut run = Run {
            program: self,
            setting,
            seed,
            station,
            cache: PageCache::new(setting.cache_bytes),
            readers: HashMap::new(),
            sizes: self.files.iter().map(|f| f.size_bytes).collect(),
            events: BinaryHeap::new(),
            order: 0,
            alive: states.len(),
            states,
            ended: vec![NEVER; self.steps.len()],
            skipped: vec![false; self.steps.len()],
            waiting: HashMap::new(),
            locks: HashMap::new(),
            deadlines: vec![NEVER; setting.bounds.len()],
            ends,
            results: results.collect(),
            out: Replayed::default(),
        };
        run.all()?;
        let mut out = run.out;
        for result in &mut run.results {
            if result.start_s.is_nan() {
                result.start_s = result.end_s;
            }
        }
        out.elapsed_s = run.results.iter().map(|r| r.end_s).fold(0.0, f64::max);
        out.threads = run.results;
        Ok(out)
    }
}

impl Run<'_> {
    pub(crate) fn push(&mut self, t_ns: u64, what: EventKind) {
        self.order += 1;
        self.events.push(Reverse((t_ns, self.order, what)));
    }

    fn all(&mut self) -> Result<(), SimulationError> {
        for thread in 0..self.states.len() as u32 {
            self.arrange(thread, 0);
        }
        self.push(WAKE_NS, EventKind::Wake);
        while self.alive > 0 {
            let Some(Reverse((t, _, what))) = self.events.pop() else {
                break;
            };
            match what {
                EventKind::Begin(thread) => self.begin(thread, t),
                EventKind::Go(thread) => self.go(thread, t),
                EventKind::Flush(thread) => self.flush(thread, t),
                EventKind::End(thread) => self.end(thread, t),
                EventKind::Kick(step, n) => self.kick(step, n, t),
                EventKind::Wake if self.events.is_empty() => {
                    return Err(SimulationError(format!(
                        "{} threads wait for each other",
                        self.alive
                    )))
                }
                EventKind::Wake => self.wake(t),
            }
        }
        Ok(())
    }

    pub(crate) fn step(&self, thread: u32) -> &Step {
        &self.program.steps[self.states[thread as usize].at as usize]
    }

    /// Schedule the next step of a thread that is free at `t`, as soon as the step's dependencies are complete.
    fn arrange(&mut self, thread: u32, t: u64) {
        let program = self.program;
        let own = &program.threads[thread as usize];
        loop {
            let state = &mut self.states[thread as usize];
            state.free_ns = t;
            if state.next == own.end {
                // a round that takes no time would never end
                let advanced = !state.over || t > state.round_ns;
                let more = state.group.is_some_and(|g| self.deadlines[g] > t) && advanced;
                if !more {
                    return self.retire(thread, t);
                }
                state.round_ns = t;
                // the trace ends before the time does: repeat its later half at other places
                state.over = true;
                state.next = own.first + (own.end - own.first) / 2;
            }
            state.at = state.next;
            let (at, group, over) = (state.at, state.group, state.over);
            let step = &program.steps[at as usize];
            // steps that followed the end of the time-bound threads in the trace also follow it here
            let barrier = self
                .ends
                .iter_mut()
                .enumerate()
                .find(|(g, (end, alive, _))| {
                    group != Some(*g) && *alive > 0 && !over && step.began_ns >= *end
                });
            if let Some((_, (_, _, waiting))) = barrier {
                waiting.push(thread);
                return;
            }
            let mut begin = t + step.think_ns;
            if let Some((other, then)) = step.after {
                if over {
                    begin += then;
                } else {
                    match self.ended[other as usize] {
                        NEVER => return self.waiting.entry(other).or_default().push(thread),
                        end => begin = begin.max(end + then),
                    }
                    self.states[thread as usize].idle =
                        own.background && self.skipped[other as usize];
                }
            }
            if !self.states[thread as usize].idle {
                return self.push(begin, EventKind::Begin(thread));
            }
            // a background thread acts on the results of others; skip the step, since theirs were skipped
            self.skipped[at as usize] = true;
            self.states[thread as usize].next = at + 1;
            self.ended(at, t);
        }
    }

    /// End a thread, and resume the threads that wait for one of its steps.
    fn retire(&mut self, thread: u32, t: u64) {
        self.alive -= 1;
        if let Some(group) = self.states[thread as usize].group {
            self.ends[group].1 -= 1;
            if self.ends[group].1 == 0 {
                for other in std::mem::take(&mut self.ends[group].2) {
                    self.arrange(other, t);
                }
            }
        }
        let own = &self.program.threads[thread as usize];
        let from = self.states[thread as usize].next;
        if !self.states[thread as usize].over {
            self.results[thread as usize].left = u64::from(own.end - from);
            for step in from..own.end {
                self.skipped[step as usize] = true;
            }
            for step in from..own.end {
                self.ended(step, t);
            }
        }
    }

    fn ended(&mut self, step: u32, t: u64) {
        if self.ended[step as usize] != NEVER {
            return;
        }
        self.ended[step as usize] = t;
        for thread in self.waiting.remove(&step).unwrap_or_default() {
            let free = self.states[thread as usize].free_ns;
            self.arrange(thread, free);
        }
    }

    fn begin(&mut self, thread: u32, t: u64) {
        let state = &self.states[thread as usize];
        if let Some(group) = state.group {
            if self.deadlines[group] == NEVER {
                let seconds = self.setting.bounds[group].seconds;
                self.deadlines[group] = t + (seconds * 1e9) as u64;
            }
            if t >= self.deadlines[group] && !state.holds {
                return self.retire(thread, t);
            }
        }
        if let Some(place) = self.step(thread).takes {
            let lock = self.locks.entry(place).or_default();
            if lock.held {
                lock.queue.push_back(thread);
                return;
            }
            lock.held = true;
            self.states[thread as usize].holds = true;
        }
        self.enter(thread, t);
    }

    /// Begin the step's own part at `t`, after it acquired its place.
    fn enter(&mut self, thread: u32, t: u64) {
        let program = self.program;
        let step = &program.steps[self.states[thread as usize].at as usize];
        let result = &mut self.results[thread as usize];
        if result.start_s.is_nan() {
            result.start_s = t as f64 / 1e9;
        }
        let offset = self.place_of(thread, step);
        let state = &mut self.states[thread as usize];
        state.offset = offset;
        state.page = offset / PAGE_BYTES;
        state.missed = false;
        self.push(t, EventKind::Go(thread));
    }

    /// Offset of a step: as in the trace; beyond the trace, a random one in files that are read at random.
    fn place_of(&mut self, thread: u32, step: &Step) -> u64 {
        let state = &self.states[thread as usize];
        let file = step.file as usize;
        let blocks = self.sizes[file].checked_div(step.size).unwrap_or(0);
        if !state.over || step.kind != Kind::Read || blocks < 2 || !self.program.files[file].random
        {
            return step.offset;
        }
        // operation code 9: random numbers of a replay, separate from those of device and workload
        let mut draws = Draws::keyed(self.seed, 9, u64::from(thread), state.beyond);
        ((draws.uniform() * blocks as f64) as u64).min(blocks - 1) * step.size
    }

    fn end(&mut self, thread: u32, t: u64) {
        let program = self.program;
        let at = self.states[thread as usize].at;
        let step = &program.steps[at as usize];
        let result = &mut self.results[thread as usize];
        result.end_s = t as f64 / 1e9;
        match step.kind {
            Kind::Read => {
                result.reads += 1;
                result.read_bytes += step.size;
            }
            Kind::Write => {
                result.writes += 1;
                result.written_bytes += step.size;
            }
            Kind::Sync => result.syncs += 1,
        }
        let over = self.states[thread as usize].over;
        result.beyond += u64::from(over);
        for (n, (delay, ..)) in step.kicks.iter().enumerate() {
            self.push(t + delay, EventKind::Kick(at, n as u32));
        }
        if !over {
            self.ended(at, t);
        }
        if let Some(place) = step.gives {
            self.states[thread as usize].holds = false;
            let handover = program.handover_ns.get(&place).copied().unwrap_or(0);
            let lock = self.locks.entry(place).or_default();
            match lock.queue.pop_front() {
                Some(next) => {
                    self.states[next as usize].holds = true;
                    self.enter(next, t + handover);
                }
                None => lock.held = false,
            }
        }
        let state = &mut self.states[thread as usize];
        state.next = at + 1;
        state.beyond += u64::from(over);
        self.arrange(thread, t);
    }
}
