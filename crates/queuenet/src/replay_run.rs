//! A traced program run again: its threads above a page cache of some size and a station of some profile.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use penstock_station::{Draws, Op, Request, Station, StorageProfile};
use serde::{Deserialize, Serialize};

use crate::cache::{Page, PageCache, Readahead, Window, PAGE_BYTES};
use crate::closed::SimulationError;
use crate::replay::{Kind, Program, Step};

/// Largest request to the device, in pages.
const MOST_PAGES: u32 = 256;
/// How often the kernel looks for pages to write back, and how old they are then (`vm.dirty_*_centisecs`).
const WAKE_NS: u64 = 5_000_000_000;
const OLD_NS: u64 = 30_000_000_000;
const NEVER: u64 = u64::MAX;

/// Threads that run for a time, not for a number of operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// Their numbers in the trace.
    pub tids: Vec<i64>,
    /// From the first step of any of them.
    pub seconds: f64,
}

/// On what to run it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// The device.
    pub profile: StorageProfile,
    /// What the page cache may hold, bytes.
    pub cache_bytes: u64,
    /// What a reader's window grows to, bytes.
    pub readahead_bytes: u64,
    /// Dirty pages at most, bytes: a writer waits above, write-back begins at half of it.
    pub dirty_bytes: u64,
    /// Threads that run for a time.
    #[serde(default)]
    pub bounds: Vec<Bound>,
}

/// What one thread came to; times in seconds of virtual time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadResult {
    /// Its number in the trace.
    pub tid: i64,
    /// Begin of its first step.
    pub start_s: f64,
    /// End of its last step.
    pub end_s: f64,
    /// Reads made.
    pub reads: u64,
    /// Writes made.
    pub writes: u64,
    /// Flushes made.
    pub syncs: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub written_bytes: u64,
    /// Steps of the trace that were not made.
    pub left: u64,
    /// Steps made beyond the trace.
    pub beyond: u64,
}

/// What it came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Replayed {
    /// End of the last step, seconds from the program's start.
    pub elapsed_s: f64,
    /// In the order of the program's threads.
    pub threads: Vec<ThreadResult>,
    /// Read, write and flush requests that reached the device.
    pub requests: [u64; 3],
    /// Bytes of them.
    pub bytes: [u64; 3],
    /// Pages found in the cache by reads, and not.
    pub pages_found: u64,
    /// Pages that a read waited for or asked for.
    pub pages_missed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Begin(u32),
    Go(u32),
    Flush(u32),
    End(u32),
    Kick(u32, u32),
    Wake,
}

#[derive(Debug, Clone, Default)]
struct State {
    next: u32,
    at: u32,
    page: u64,
    missed: bool,
    free_ns: u64,
    group: Option<usize>,
    over: bool,
    beyond: u64,
    offset: u64,
    holds: bool,
    idle: bool,
}

#[derive(Debug, Clone, Default)]
struct Lock {
    held: bool,
    queue: VecDeque<u32>,
}

struct Run<'a> {
    program: &'a Program,
    setting: &'a Setting,
    seed: u64,
    station: Station,
    cache: PageCache,
    readers: HashMap<(u32, u32), Readahead>,
    sizes: Vec<u64>,
    events: BinaryHeap<Reverse<(u64, u64, What)>>,
    order: u64,
    states: Vec<State>,
    ended: Vec<u64>,
    /// Steps that were not made because the time was over, and what would only have followed them.
    skipped: Vec<bool>,
    waiting: HashMap<u32, Vec<u32>>,
    locks: HashMap<u32, Lock>,
    deadlines: Vec<u64>,
    /// By bound: when its threads ended in the trace, how many go on here, and who waits for them to end.
    ends: Vec<(u64, usize, Vec<u32>)>,
    results: Vec<ThreadResult>,
    out: Replayed,
    alive: usize,
}

impl Program {
    /// Runs the program once.
    ///
    /// # Errors
    /// A profile that makes no sense, or a program whose threads wait for each other for ever.
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
    fn push(&mut self, t_ns: u64, what: What) {
        self.order += 1;
        self.events.push(Reverse((t_ns, self.order, what)));
    }

    fn all(&mut self) -> Result<(), SimulationError> {
        for thread in 0..self.states.len() as u32 {
            self.arrange(thread, 0);
        }
        self.push(WAKE_NS, What::Wake);
        while self.alive > 0 {
            let Some(Reverse((t, _, what))) = self.events.pop() else {
                break;
            };
            match what {
                What::Begin(thread) => self.begin(thread, t),
                What::Go(thread) => self.go(thread, t),
                What::Flush(thread) => self.flush(thread, t),
                What::End(thread) => self.end(thread, t),
                What::Kick(step, n) => self.kick(step, n, t),
                What::Wake if self.events.is_empty() => {
                    return Err(SimulationError(format!(
                        "{} threads wait for each other",
                        self.alive
                    )))
                }
                What::Wake => self.wake(t),
            }
        }
        Ok(())
    }

    fn step(&self, thread: u32) -> &Step {
        &self.program.steps[self.states[thread as usize].at as usize]
    }

    /// The thread is free at `t`: its next step, once that one's conditions are known.
    fn arrange(&mut self, thread: u32, t: u64) {
        let program = self.program;
        let own = &program.threads[thread as usize];
        loop {
            let state = &mut self.states[thread as usize];
            state.free_ns = t;
            if state.next == own.end {
                let more =
                    state.group.is_some_and(|g| self.deadlines[g] > t) && own.end > own.first;
                if !more {
                    return self.retire(thread, t);
                }
                // the trace is used up before the time is: its later half again, elsewhere
                state.over = true;
                state.next = own.first + (own.end - own.first) / 2;
            }
            state.at = state.next;
            let (at, group, over) = (state.at, state.group, state.over);
            let step = &program.steps[at as usize];
            // what followed the threads that run for a time follows them here as well
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
                return self.push(begin, What::Begin(thread));
            }
            // a thread in the background acts on what others did; they did not
            self.skipped[at as usize] = true;
            self.states[thread as usize].next = at + 1;
            self.ended(at, t);
        }
    }

    /// The thread makes no more steps; who waits for one of them goes on.
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

    /// The step's own part begins at `t`, its place taken.
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
        self.push(t, What::Go(thread));
    }

    /// Where the step goes: as traced; beyond the trace anywhere in files that are read at random.
    fn place_of(&mut self, thread: u32, step: &Step) -> u64 {
        let state = &self.states[thread as usize];
        let file = step.file as usize;
        let blocks = self.sizes[file].checked_div(step.size).unwrap_or(0);
        if !state.over || step.kind != Kind::Read || blocks < 2 || !self.program.files[file].random
        {
            return step.offset;
        }
        // operation code 9: numbers of a replay, apart from those of device and workload
        let mut draws = Draws::keyed(self.seed, 9, u64::from(thread), state.beyond);
        ((draws.uniform() * blocks as f64) as u64).min(blocks - 1) * step.size
    }

    fn device(&mut self, t: u64, op: Op, file: u32, offset: u64, size: u64) -> u64 {
        let base = self.program.files[file as usize].base;
        self.out.requests[op as usize] += 1;
        self.out.bytes[op as usize] += size;
        let request = Request {
            op,
            offset: base + offset,
            size,
        };
        self.station.arrive(t, request).due_ns
    }

    /// Goes on with a read, write or sync that has begun.
    fn go(&mut self, thread: u32, t: u64) {
        let program = self.program;
        let step = &program.steps[self.states[thread as usize].at as usize];
        if step.kind == Kind::Sync {
            return self.sync(thread, t, step.file);
        }
        let offset = self.states[thread as usize].offset;
        if step.direct || step.size == 0 {
            let op = if step.kind == Kind::Read {
                Op::Read
            } else {
                Op::Write
            };
            let mut due = t;
            let mut at = 0;
            let most = u64::from(MOST_PAGES) * PAGE_BYTES;
            while at < step.size {
                let size = most.min(step.size - at);
                due = due.max(self.device(t, op, step.file, offset + at, size));
                at += size;
            }
            let path = if step.size > 0 {
                program.found.path_ns
            } else {
                0
            };
            return self.push(due + step.own_ns + path, What::End(thread));
        }
        let last = (offset + step.size - 1) / PAGE_BYTES;
        let wait = match step.kind {
            Kind::Read => self.read_on(thread, t, step, last),
            _ => self.write_on(thread, t, step, last),
        };
        if let Some(ready) = wait {
            self.states[thread as usize].missed = true;
            return self.push(ready, What::Go(thread));
        }
        let path = if self.states[thread as usize].missed {
            program.found.path_ns
        } else {
            0
        };
        self.push(t + step.own_ns + path, What::End(thread));
    }

    /// Reads pages until one is not there yet (when will it be?) or the call is served (`filemap_read`).
    fn read_on(&mut self, thread: u32, t: u64, step: &Step, last: u64) -> Option<u64> {
        let file = step.file;
        let limit = self.setting.readahead_bytes / PAGE_BYTES;
        let mut index = self.states[thread as usize].page;
        while index <= last {
            let page = (file, index as u32);
            let mut reader = *self.readers.entry((thread, file)).or_default();
            let mut found = self.cache.find(page);
            if found.is_none() {
                let cache = &self.cache;
                let cached = |n: u64| cache.find((file, n as u32)).is_some();
                let window = reader.missed(index, last - index + 1, limit, cached);
                self.fetch(t, file, window);
                found = self.cache.find(page);
            } else if found.is_some_and(|f| f.marked) {
                self.cache.unmark(page);
                let cache = &self.cache;
                let cached = |n: u64| cache.find((file, n as u32)).is_some();
                if let Some(window) = reader.reached(index, last - index + 1, limit, cached) {
                    self.fetch(t, file, window);
                }
            }
            self.readers.insert((thread, file), reader);
            let Some(found) = found else {
                // beyond the end of the file
                index += 1;
                continue;
            };
            if found.ready_ns > t {
                self.out.pages_missed += 1;
                self.states[thread as usize].page = index;
                return Some(found.ready_ns);
            }
            if let Some(reader) = self.readers.get_mut(&(thread, file)) {
                // parts of one page, one after the other, are one access (mm/filemap.c, filemap_read)
                if reader.last_page != index {
                    self.cache.touch(page);
                }
            }
            self.out.pages_found += 1;
            index += 1;
        }
        let end = self.states[thread as usize].offset + step.size;
        if let Some(reader) = self.readers.get_mut(&(thread, file)) {
            reader.last_page = end / PAGE_BYTES;
        }
        self.states[thread as usize].page = index;
        None
    }

    /// Asks the device for the pages of a window that are missing, in requests as long as they can be.
    fn fetch(&mut self, t: u64, file: u32, window: Window) {
        let pages = self.sizes[file as usize].div_ceil(PAGE_BYTES);
        let end = (window.first + window.pages).min(pages);
        let mut first = window.first;
        while first < end {
            if self.cache.find((file, first as u32)).is_some() {
                first += 1;
                continue;
            }
            let mut n = 1;
            while first + n < end
                && n < u64::from(MOST_PAGES)
                && self.cache.find((file, (first + n) as u32)).is_none()
            {
                n += 1;
            }
            let size = (n * PAGE_BYTES).min(self.sizes[file as usize] - first * PAGE_BYTES);
            let due = self.device(t, Op::Read, file, first * PAGE_BYTES, size);
            for index in first..first + n {
                let marked = window.mark == Some(index);
                self.hold((file, index as u32), due, marked, t);
            }
            first += n;
        }
    }

    fn hold(&mut self, page: Page, ready: u64, marked: bool, t: u64) {
        for dirty in self.cache.insert(page, ready, marked, t) {
            self.write_back(t, dirty.0, dirty.1, dirty.1 + 1);
        }
    }

    /// Writes pages of a file back that are dirty, from `first` on and before `end`; when the last one is done.
    fn write_back(&mut self, t: u64, file: u32, first: u32, end: u32) -> u64 {
        let mut done = t;
        for (start, n) in self.cache.dirty_runs(file, first, end, MOST_PAGES) {
            let offset = u64::from(start) * PAGE_BYTES;
            let left = self.sizes[file as usize].saturating_sub(offset);
            let size = (u64::from(n) * PAGE_BYTES).min(left).max(1);
            let due = self.device(t, Op::Write, file, offset, size);
            for page in start..start + n {
                self.cache.clean((file, page), due);
            }
            done = done.max(due);
        }
        done
    }

    fn write_on(&mut self, thread: u32, t: u64, step: &Step, last: u64) -> Option<u64> {
        let file = step.file;
        let begin = self.states[thread as usize].offset;
        let end = begin + step.size;
        let size = self.sizes[file as usize];
        let mut index = self.states[thread as usize].page;
        while index <= last {
            let page = (file, index as u32);
            let from = index * PAGE_BYTES;
            match self.cache.find(page) {
                Some(found) if found.ready_ns > t => {
                    self.states[thread as usize].page = index;
                    return Some(found.ready_ns);
                }
                Some(_) => {}
                None => {
                    let partly = begin > from || end < (from + PAGE_BYTES).min(size);
                    if partly && from < size {
                        let window = Window {
                            first: index,
                            pages: 1,
                            mark: None,
                        };
                        self.fetch(t, file, window);
                        if let Some(found) = self.cache.find(page) {
                            self.states[thread as usize].page = index;
                            return Some(found.ready_ns.max(t + 1));
                        }
                    }
                    self.hold(page, t, false, t);
                }
            }
            self.cache.touch(page);
            self.cache.soil(page, t);
            index += 1;
        }
        self.sizes[file as usize] = size.max(end);
        self.states[thread as usize].page = index;
        let dirty = self.cache.dirty as u64 * PAGE_BYTES;
        if dirty * 2 > self.setting.dirty_bytes {
            let mut files: Vec<(u64, u32)> = self
                .cache
                .dirt
                .iter()
                .map(|(f, d)| (d.since_ns, *f))
                .collect();
            files.sort_unstable();
            let mut done = t;
            for (_, file) in files {
                done = done.max(self.write_back(t, file, 0, u32::MAX));
            }
            if dirty > self.setting.dirty_bytes {
                return Some(done);
            }
        }
        None
    }

    fn sync(&mut self, thread: u32, t: u64, file: u32) {
        let under_way = self.cache.dirt.get(&file).map_or(0, |d| d.written_ns);
        let wrote = self
            .cache
            .dirt
            .get(&file)
            .is_some_and(|d| !d.pages.is_empty());
        let done = self.write_back(t, file, 0, u32::MAX).max(under_way).max(t);
        let path = if wrote { self.program.found.path_ns } else { 0 };
        self.push(done + path, What::Flush(thread));
    }

    fn flush(&mut self, thread: u32, t: u64) {
        let file = self.step(thread).file;
        let done = self.device(t, Op::Flush, file, 0, 0);
        let path = self.program.found.path_ns;
        self.push(done + path, What::End(thread));
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
            self.push(t + delay, What::Kick(at, n as u32));
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

    fn kick(&mut self, step: u32, n: u32, t: u64) {
        let (_, file, offset, size) = self.program.steps[step as usize].kicks[n as usize];
        let first = (offset / PAGE_BYTES) as u32;
        let end = (offset + size).div_ceil(PAGE_BYTES) as u32;
        self.write_back(t, file, first, end.max(first + 1));
    }

    /// The kernel's timer: files whose oldest dirty page is old are written back.
    fn wake(&mut self, t: u64) {
        let mut old: Vec<(u64, u32)> = self
            .cache
            .dirt
            .iter()
            .filter(|(_, d)| !d.pages.is_empty() && d.since_ns + OLD_NS <= t)
            .map(|(file, d)| (d.since_ns, *file))
            .collect();
        old.sort_unstable();
        for (_, file) in old {
            self.write_back(t, file, 0, u32::MAX);
        }
        self.push(t + WAKE_NS, What::Wake);
    }
}
