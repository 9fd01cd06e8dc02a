//! Verdicts on a stream of operations in bounded memory.
//!
//! Requests are grouped by file, direction, basis and phase. A group stores single requests up to a limit. Beyond it,
//! the group stores epochs of all threads together and of each thread. Results of two streams over consecutive parts of
//! a recording can be merged, so that several threads can process one file of events.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::sequence::{Request, Sequence};
use crate::summary::{classify_epochs, MOST_EPOCHS};
use crate::threads::Starts;
use crate::verdict::{at_once, judge, Class, Judgement, OwnWays, ThreadVerdict, Verdict};

/// Maximum number of stored requests of one sequence, to which the exact rules apply.
pub const EXACT_REQUESTS: usize = 1 << 18;
/// Maximum number of stored requests of all sequences together.
const BUFFERED: usize = 6 << 20;
/// Maximum number of blocks that are distinguished per file, and per thread of it.
const BLOCKS: usize = 1 << 13;
const THREAD_BLOCKS: usize = 1 << 11;

/// Files with a number below this are found by index, without hashing.
const DIRECT: u32 = 1 << 20;

/// Operations that are page faults on mapped files.
const FAULT_READ: u8 = 13;
const FAULT_AROUND: u8 = 14;
const FAULT_WRITE: u8 = 45;
const FAULT_AROUND_WRITE: u8 = 46;
const FIRST_WRITE: u8 = 32;
const FIRST_SYNC: u8 = 64;
const FAULT_PRIVATE: u8 = 4;

/// An operation, with the fields that verdicts need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operation {
    /// Start of the operation, CLOCK_MONOTONIC [ns].
    pub t_ns: u64,
    /// File number.
    pub file_id: u32,
    /// Thread number.
    pub tid: u32,
    /// Start [bytes].
    pub offset: i64,
    /// Bytes transferred; negative for an error.
    pub done: i64,
    /// Latency [ns].
    pub latency_ns: u64,
    /// Number of the operation (the tracer's layout).
    pub op: u8,
    /// Flags (the tracer's layout).
    pub flags: u8,
}

/// Subject of one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    file_id: u32,
    phase: u32,
    /// 0 read, 1 write; plus 2 for page faults
    kind: u32,
}

/// Verdict on one file, direction and phase.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// File number.
    pub file_id: u32,
    /// `read` or `write`.
    pub direction: &'static str,
    /// `calls` or `faults`.
    pub basis: &'static str,
    /// Index of the phase in the stream's phases; None for the complete recording.
    pub phase: Option<usize>,
    /// Number of operations, including those that failed or transferred nothing.
    pub calls: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Bytes transferred.
    pub done_bytes: u64,
    /// Sum of the latencies [ns].
    pub time_ns: u64,
    /// Start of the first operation [ns].
    pub first_ns: u64,
    /// Start of the last operation [ns].
    pub last_ns: u64,
    /// Verdicts on all threads together and on each.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// Number of the only thread, for output that does not repeat its verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_tid: Option<u32>,
    /// Verdict on reads and writes together, if there are both.
    pub both: Option<Verdict>,
}

impl Row {
    /// Omit the verdict of a single thread from the output. It is the same as that of all threads.
    pub fn without_repetition(mut self) -> Self {
        if let [one] = self.judgement.threads.as_slice() {
            if one.started_ns.is_none() {
                self.only_tid = Some(one.tid);
                self.judgement.threads.clear();
            }
        }
        self
    }
}

#[derive(Clone, Default)]
struct Group {
    calls: u64,
    errors: u64,
    done_bytes: u64,
    time_ns: u64,
    first_ns: u64,
    last_ns: u64,
    stored: Vec<Request>,
    long: Option<Box<Long>>,
    fault: Option<Request>,
    /// Index of the group of both directions in `Stream::joints`, plus 1; 0 if there is only one direction.
    joint: usize,
}

#[derive(Clone)]
struct Long {
    together: Sequence,
    first_tid: u32,
    /// Sequences by thread; empty while there is only one thread.
    threads: HashMap<u32, Sequence>,
}

/// Classifier of operations in order of time.
pub struct Stream {
    groups: Vec<(Key, Group)>,
    /// Index of the group plus 1, by file and kind, for complete recordings of files with small numbers; 0: none.
    direct: Vec<u32>,
    index: HashMap<Key, usize>,
    /// Reads and writes of one file together, in order of time.
    joints: Vec<Group>,
    phases: Vec<(u64, u64)>,
    starts: Starts,
    exact: usize,
    buffered: usize,
}

impl Stream {
    /// Create a stream. `phases` has the first and last times [ns] of sections with verdicts of their own. Sequences of
    /// more than `exact` requests are classified by epochs.
    pub fn new(phases: Vec<(u64, u64)>, exact: usize) -> Self {
        Self {
            groups: Vec::new(),
            direct: Vec::new(),
            index: HashMap::new(),
            joints: Vec::new(),
            phases,
            starts: Starts::default(),
            exact,
            buffered: 0,
        }
    }

    /// Distinguish threads with the same number by their starts.
    pub fn with_starts(mut self, starts: Starts) -> Self {
        self.starts = starts;
        self
    }

    /// Add an operation.
    #[inline]
    pub fn push(&mut self, operation: &Operation) {
        if operation.op >= FIRST_SYNC {
            return;
        }
        let fault = matches!(
            operation.op,
            FAULT_READ | FAULT_AROUND | FAULT_WRITE | FAULT_AROUND_WRITE
        );
        let kind = u32::from(operation.op >= FIRST_WRITE) + 2 * u32::from(fault);
        let operation = &Operation {
            tid: self.starts.key(operation.tid, operation.t_ns),
            ..*operation
        };
        self.push_to(operation, kind, 0);
        for i in 0..self.phases.len() {
            if (self.phases[i].0..=self.phases[i].1).contains(&operation.t_ns) {
                self.push_to(operation, kind, i as u32 + 1);
            }
        }
        if self.buffered > BUFFERED {
            self.relieve();
        }
    }

    #[inline]
    fn push_to(&mut self, operation: &Operation, kind: u32, phase: u32) {
        let key = Key {
            file_id: operation.file_id,
            phase,
            kind,
        };
        let at = self.place(key);
        if self.groups[at].1.calls == 0 {
            self.join(key, at);
        }
        let group = &mut self.groups[at].1;
        let Some(request) = group.push(operation, kind >= 2) else {
            return;
        };
        let joint = group.joint;
        let both = joint.checked_sub(1).and_then(|at| self.joints.get_mut(at));
        for group in [Some(group), both].into_iter().flatten() {
            self.buffered += group.take(request);
            if group.stored.len() > self.exact {
                self.buffered = self.buffered.saturating_sub(group.lengthen());
            }
        }
    }

    /// Combine both directions of a file when the second one begins. From here on, both are also stored in one order.
    fn join(&mut self, key: Key, at: usize) {
        let other = Key {
            kind: key.kind ^ 1,
            ..key
        };
        let Some(first) = self.existing(other) else {
            return;
        };
        let joint = self.groups[first].1.requests_alone();
        self.buffered += joint.stored.len();
        self.joints.push(joint);
        self.groups[first].1.joint = self.joints.len();
        self.groups[at].1.joint = self.joints.len();
    }

    /// Index of a key's group, if there is one.
    fn existing(&self, key: Key) -> Option<usize> {
        if key.phase > 0 || key.file_id >= DIRECT {
            return self.index.get(&key).copied();
        }
        let slot = (key.file_id * 4 + key.kind) as usize;
        (*self.direct.get(slot)? as usize).checked_sub(1)
    }

    /// Index of a key's group. Create the group if it is new.
    #[inline]
    fn place(&mut self, key: Key) -> usize {
        if key.phase > 0 || key.file_id >= DIRECT {
            return *self.index.entry(key).or_insert_with(|| {
                self.groups.push((key, Group::default()));
                self.groups.len() - 1
            });
        }
        let slot = (key.file_id * 4 + key.kind) as usize;
        if slot >= self.direct.len() {
            self.direct.resize((slot + 1).next_power_of_two(), 0);
        }
        if self.direct[slot] == 0 {
            self.groups.push((key, Group::default()));
            self.direct[slot] = self.groups.len() as u32;
        }
        self.direct[slot] as usize - 1
    }

    /// Convert the largest groups of single requests to epochs, to limit memory.
    fn relieve(&mut self) {
        for most in [1 << 14, 1 << 10, 1 << 6] {
            let groups = self.groups.iter_mut().map(|one| &mut one.1);
            for group in groups.chain(&mut self.joints) {
                if group.stored.len() > most {
                    self.buffered = self.buffered.saturating_sub(group.lengthen());
                }
            }
            if self.buffered < BUFFERED / 2 {
                return;
            }
        }
        // the remaining groups are many but very small: they stay
        self.buffered = 0;
    }

    /// Append the results of a stream over the operations after these.
    pub fn append(&mut self, mut later: Self) {
        self.append_joints(&mut later);
        for (key, group) in later.groups {
            let at = self.place(key);
            let existing = &mut self.groups[at].1;
            if existing.calls == 0 {
                *existing = Group {
                    joint: existing.joint,
                    ..group
                };
            } else {
                existing.append(group, self.exact);
            }
        }
    }

    /// Append the groups of both directions. Call this before the groups themselves are merged.
    fn append_joints(&mut self, later: &mut Self) {
        for number in 0..later.groups.len() {
            let key = later.groups[number].0;
            let other = Key {
                kind: key.kind ^ 1,
                ..key
            };
            let joint = later.groups[number].1.joint;
            if joint > 0 && key.kind % 2 == 1 {
                continue; // merged with the reads
            }
            let groups = [key, other].map(|key| self.existing(key));
            let (before, after) = match (groups, joint) {
                // both parts have the same single direction
                ([_, None], 0) => continue,
                ([own, of_other], 0) => {
                    let first = own.or(of_other).unwrap_or_default();
                    let unmerged = later.groups[number].1.requests_alone();
                    (self.groups[first].1.requests_alone(), unmerged)
                }
                ([own, of_other], at) => {
                    let before = own
                        .or(of_other)
                        .map(|at| self.groups[at].1.requests_alone());
                    (
                        before.unwrap_or_default(),
                        std::mem::take(&mut later.joints[at - 1]),
                    )
                }
            };
            let places = [key, other].map(|key| self.place(key));
            let joints = places.map(|at| self.groups[at].1.joint);
            let mut at = joints[0].max(joints[1]);
            if at == 0 {
                self.joints.push(before);
                at = self.joints.len();
            }
            let joint = &mut self.joints[at - 1];
            if joint.did_something() {
                joint.append(after, self.exact);
            } else {
                *joint = after;
            }
            for place in places {
                self.groups[place].1.joint = at;
            }
        }
    }

    /// Return the verdicts by file, phase and direction.
    pub fn finish(self) -> Vec<Row> {
        let (mut joints, starts) = (self.joints, self.starts);
        let mut groups: BTreeMap<Key, Group> = self.groups.into_iter().collect();
        let mut directions = vec![0u8; joints.len()];
        for group in groups.values_mut() {
            let joint = group.joint.checked_sub(1);
            if let Some(fault) = group.fault.take() {
                group.take(fault);
                if let Some(at) = joint {
                    joints[at].take(fault);
                }
            }
            if let Some(at) = joint {
                directions[at] += u8::from(group.did_something());
            }
        }
        let both: Vec<Option<Verdict>> = joints
            .into_iter()
            .zip(directions)
            .map(|(joint, directions)| (directions == 2).then(|| joint.judgement().together))
            .collect();
        let mut rows: Vec<Row> = Vec::with_capacity(groups.len());
        for (key, group) in groups {
            let joint = group.joint.checked_sub(1);
            let mut row = group.row(key);
            row.both = joint.and_then(|at| both[at].clone());
            for thread in &mut row.judgement.threads {
                (thread.tid, thread.started_ns) = starts.thread(thread.tid);
            }
            rows.push(row);
        }
        rows
    }
}

impl Group {
    /// Count an operation. Return the request to add; for page faults, the previous one.
    #[inline]
    fn push(&mut self, operation: &Operation, fault: bool) -> Option<Request> {
        if self.calls == 0 {
            self.first_ns = operation.t_ns;
        }
        self.calls += 1;
        self.last_ns = operation.t_ns;
        self.time_ns += operation.latency_ns;
        self.errors += u64::from(operation.done < 0);
        if operation.done <= 0 {
            return None;
        }
        self.done_bytes += operation.done as u64;
        let request = Request {
            offset: operation.offset,
            t_ns: operation.t_ns,
            size: operation.done.min(i64::from(u32::MAX)) as u32,
            tid: operation.tid,
        };
        if !fault {
            return Some(request);
        }
        if operation.op == FAULT_WRITE && operation.flags & FAULT_PRIVATE != 0 {
            return None; // a private copy: not a write of the file
        }
        // The page that a thread accessed and the range mapped around it are one access.
        let within = |inner: Request, outer: Request| {
            inner.tid == outer.tid
                && inner.offset >= outer.offset
                && inner.offset + i64::from(inner.size) <= outer.offset + i64::from(outer.size)
        };
        match self.fault {
            Some(before) if within(request, before) => {
                self.done_bytes -= u64::from(request.size);
                None
            }
            Some(before) if within(before, request) => {
                self.done_bytes -= u64::from(before.size);
                self.fault = Some(request);
                None
            }
            before => {
                self.fault = Some(request);
                before
            }
        }
    }

    /// Copy of the group's requests, without its counts.
    fn requests_alone(&self) -> Self {
        Self {
            stored: self.stored.clone(),
            long: self.long.clone(),
            ..Self::default()
        }
    }

    fn did_something(&self) -> bool {
        !self.stored.is_empty() || self.long.is_some()
    }

    /// Add a request. Return the increase of the number of single requests.
    #[inline]
    fn take(&mut self, request: Request) -> usize {
        if let Some(long) = &mut self.long {
            long.push(request);
            return 0;
        }
        self.stored.push(request);
        1
    }

    /// Convert the group to epochs. Return the number of single requests that it had.
    fn lengthen(&mut self) -> usize {
        let requests = std::mem::take(&mut self.stored);
        let long = self
            .long
            .get_or_insert_with(|| Box::new(Long::new(requests.first().map_or(0, |r| r.tid))));
        for &request in &requests {
            long.push(request);
        }
        requests.len()
    }

    fn append(&mut self, mut later: Self, exact: usize) {
        self.calls += later.calls;
        self.errors += later.errors;
        self.done_bytes += later.done_bytes;
        self.time_ns += later.time_ns;
        self.last_ns = later.last_ns;
        if let Some(fault) = self.fault.take() {
            self.take(fault);
        }
        self.fault = later.fault.take();
        if later.long.is_none()
            && (self.long.is_some() || self.stored.len() + later.stored.len() <= exact)
        {
            for &request in &later.stored {
                self.take(request);
            }
            return;
        }
        if self.long.is_none() {
            self.lengthen();
        }
        if later.long.is_none() {
            later.lengthen();
        }
        if let (Some(long), Some(other)) = (&mut self.long, later.long) {
            long.append(*other);
        }
    }

    fn judgement(self) -> Judgement {
        match self.long {
            Some(long) => long.judge(),
            None => {
                let offsets: Vec<i64> = self.stored.iter().map(|r| r.offset).collect();
                let sizes: Vec<i64> = self.stored.iter().map(|r| i64::from(r.size)).collect();
                let tids: Vec<u32> = self.stored.iter().map(|r| r.tid).collect();
                let times: Vec<u64> = self.stored.iter().map(|r| r.t_ns).collect();
                judge(&offsets, &sizes, &tids, &times)
            }
        }
    }

    fn row(self, key: Key) -> Row {
        Row {
            file_id: key.file_id,
            direction: if key.kind % 2 == 1 { "write" } else { "read" },
            basis: if key.kind >= 2 { "faults" } else { "calls" },
            phase: (key.phase as usize).checked_sub(1),
            calls: self.calls,
            errors: self.errors,
            done_bytes: self.done_bytes,
            time_ns: self.time_ns,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            only_tid: None,
            both: None,
            judgement: self.judgement(),
        }
    }
}

impl Long {
    fn new(first_tid: u32) -> Self {
        Self {
            together: Sequence::new(BLOCKS),
            first_tid,
            threads: HashMap::new(),
        }
    }

    /// Maximum number of epochs of each thread.
    fn most(&self) -> usize {
        (8 * MOST_EPOCHS / self.threads.len().max(1)).clamp(16, MOST_EPOCHS)
    }

    #[inline]
    fn push(&mut self, request: Request) {
        if request.tid != self.first_tid || !self.threads.is_empty() {
            self.several();
            let most = self.most();
            self.threads
                .entry(request.tid)
                .or_insert_with(|| Sequence::new(THREAD_BLOCKS))
                .push(request, most);
        }
        self.together.push(request, MOST_EPOCHS);
    }

    /// Begin to distinguish threads. All requests so far belong to the first one.
    fn several(&mut self) {
        if self.threads.is_empty() {
            self.threads.insert(self.first_tid, self.together.clone());
        }
    }

    fn append(&mut self, mut later: Self) {
        self.together.flush(MOST_EPOCHS);
        later.together.flush(MOST_EPOCHS);
        if self.first_tid != later.first_tid
            || !self.threads.is_empty()
            || !later.threads.is_empty()
        {
            self.several();
            later.several();
            let most = self.most();
            for (tid, mut sequence) in later.threads {
                sequence.flush(most);
                match self.threads.entry(tid) {
                    std::collections::hash_map::Entry::Vacant(place) => {
                        place.insert(sequence);
                    }
                    std::collections::hash_map::Entry::Occupied(mut place) => {
                        place.get_mut().flush(most);
                        place.get_mut().epochs.append(sequence.epochs, most);
                    }
                }
            }
        }
        self.together
            .epochs
            .append(later.together.epochs, MOST_EPOCHS);
    }

    fn judge(mut self) -> Judgement {
        self.together.flush(MOST_EPOCHS);
        let mut together = classify_epochs(&self.together.epochs);
        if self.threads.is_empty() {
            let own = ThreadVerdict {
                tid: self.first_tid,
                started_ns: None,
                verdict: together.clone(),
            };
            return Judgement {
                together,
                threads: vec![own],
            };
        }
        let most = self.most();
        let sorted: BTreeMap<u32, Sequence> = self.threads.into_iter().collect();
        let mut threads = Vec::with_capacity(sorted.len());
        let (mut spans, mut own) = (Vec::new(), OwnWays::default());
        for (tid, mut sequence) in sorted {
            sequence.flush(most);
            let verdict = classify_epochs(&sequence.epochs);
            let list = &sequence.epochs.list;
            own.take(&verdict);
            if let (Some(first), Some(last)) = (list.first(), list.last()) {
                spans.push((first.first_ns, last.last_ns + 1, verdict.requests));
            }
            threads.push(ThreadVerdict {
                tid,
                started_ns: None,
                verdict,
            });
        }
        let unclear = matches!(
            together.class,
            Class::Random | Class::HotSet | Class::Irregular | Class::Mixed
        );
        let k = at_once(&spans);
        if unclear && own.explain(together.requests, k) {
            together.interleaved_by_threads(k, &own, "threads");
        }
        Judgement { together, threads }
    }
}
