//! Application driver: execution of a task's operations (Costa 2014).

use super::choices::{Allocation, SchedulerKind};
use super::engine::{add_up, draw, kind, station, Engine, Leg, Message, Stage, SLOTS};
use super::outcome::Span;
use super::server::NONE;
use super::time::Ticks;
use super::workload::Operation;

/// Phase of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Blocked,
    Ready,
    Launch,
    Compute,
    Client,
    Open,
    Allocate,
    Data,
    Contention,
    ChunkMap,
    Done,
}

/// Time of a task by activity.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    pub launch: Ticks,
    pub compute: Ticks,
    pub read: Ticks,
    pub write: Ticks,
    pub manager: Ticks,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub read_local: u64,
    pub written_local: u64,
}

/// State of a task in the run.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub phase: Phase,
    pub host: u32,
    pub class: u32,
    pub number: u64,
    pub held: u32,
    pub predecessors: u32,
    /// The task whose end made this one ready, or released the slot that it waited for.
    pub cause: u32,
    pub ready: Ticks,
    pub start: Ticks,
    pub end: Ticks,
    pub at: u32,
    pub operation_start: Ticks,
    pub phase_start: Ticks,
    pub spent: Spent,
    /// Links of the operation's chunks in the out-queue and the loopback.
    pub links: [u32; 2],
    /// Chunks still to be sent: remote, local.
    pub cursor: [u64; 2],
    pub end_chunk: u64,
    pub copy: [u16; 2],
    /// Chunks that the cache lacks, if there is a cache.
    pub missing: Option<Vec<u64>>,
    /// Chunks and replicas on the task's own host, the last one first.
    pub own: Vec<(u64, u16)>,
    pub offset: u64,
    pub size: u64,
    pub file: u32,
    pub write: bool,
    pub pending: u64,
    /// Bytes of the operation from or to the task's own host, or from its cache.
    pub local_bytes: u64,
    pub path: Vec<Leg>,
    pub spans: Vec<Span>,
}

impl Run {
    pub fn new(predecessors: u32, class: u32) -> Self {
        Run {
            phase: Phase::Blocked,
            host: NONE,
            class,
            number: 0,
            held: NONE,
            predecessors,
            cause: NONE,
            ready: 0,
            start: 0,
            end: 0,
            at: 0,
            operation_start: 0,
            phase_start: 0,
            spent: Spent::default(),
            links: [NONE; 2],
            cursor: [0; 2],
            end_chunk: 0,
            copy: [0; 2],
            missing: None,
            own: Vec::new(),
            offset: 0,
            size: 0,
            file: 0,
            write: false,
            pending: 0,
            local_bytes: 0,
            path: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// True if the task has ended.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }
}

impl Engine<'_> {
    /// Start tasks without predecessors.
    pub fn begin(&mut self) {
        for task in 0..self.runs.len() as u32 {
            if self.runs[task as usize].predecessors == 0 {
                let mut draws = Engine::draws(self.seed, draw::STAGGER, u64::from(task), 0);
                let stagger = self.network.launch.stagger.sampler().draw(&mut draws);
                let stagger = self.clock.from_ns(stagger);
                self.unblock(0, task, stagger);
            }
        }
    }

    fn unblock(&mut self, now: Ticks, task: u32, delay: Ticks) {
        let not_before = self
            .clock
            .ticks(self.workload.tasks[task as usize].not_before_s);
        let time = not_before.max(now + delay);
        self.runs[task as usize].phase = Phase::Ready;
        if time > now {
            self.at(time, kind::TASK, task);
        } else {
            self.ready(now, task);
        }
    }

    /// Start a task on its machine with the launch.
    pub fn start(&mut self, now: Ticks, task: u32, host: u32) {
        let run = &mut self.runs[task as usize];
        run.host = host;
        run.start = now;
        run.phase = Phase::Launch;
        let waited = now - run.ready;
        // the wait was for the previous task on the slot
        let before = self.freed;
        let blamed = waited > 0 && before != NONE && self.runs[before as usize].host == host;
        self.hosts[host as usize].slot_tally.serve(waited, 0);
        self.hosts[host as usize].tasks += 1;
        let mut draws = Engine::draws(self.seed, draw::LAUNCH, u64::from(task), 0);
        let spec = &self.workload.tasks[task as usize];
        let settings = &self.network.launch;
        let mut ns = match &spec.launch {
            Some(launch) => launch.draw(&mut draws),
            None => settings.overhead.sampler().draw(&mut draws),
        };
        for _ in 0..spec.tagged {
            ns += settings.tag.sampler().draw(&mut draws);
        }
        if spec.reads_made && self.network.scheduler.kind == SchedulerKind::DataLocation {
            ns += settings.locate.sampler().draw(&mut draws);
        }
        let launch = self.clock.from_ns(ns);
        let run = &mut self.runs[task as usize];
        run.spent.launch = launch;
        if blamed {
            run.cause = before;
        }
        run.path.push(Leg {
            station: station(host, SLOTS),
            ticks: (if blamed { launch } else { waited + launch }) as f32,
        });
        if launch > 0 {
            self.at(now + launch, kind::TASK, task);
        } else {
            self.proceed(now, task);
        }
    }

    /// Handle the end of a task's delay, launch or computation.
    pub fn task_event(&mut self, now: Ticks, task: u32) {
        match self.runs[task as usize].phase {
            Phase::Ready => self.ready(now, task),
            Phase::Contention => self.written(now, task),
            Phase::Compute => {
                self.operation_over(now, task, "compute");
                self.proceed(now, task);
            }
            _ => self.proceed(now, task),
        }
    }

    fn operation(&self, task: u32) -> Option<Operation> {
        let (begin, end) = self.workload.tasks[task as usize].operations[self.merged_range];
        let at = begin + self.runs[task as usize].at;
        (at < end).then(|| self.operations[at as usize])
    }

    /// Execute operations until one takes time.
    fn proceed(&mut self, now: Ticks, task: u32) {
        loop {
            let Some(operation) = self.operation(task) else {
                self.end(now, task);
                return;
            };
            let run = &mut self.runs[task as usize];
            run.operation_start = now;
            run.phase_start = now;
            run.local_bytes = 0;
            run.size = 0;
            match operation {
                Operation::Close { .. } => run.at += 1,
                Operation::SetHints { file, hints } => {
                    run.at += 1;
                    let host = self.hint_hosts[self.workload.files.len() + hints as usize];
                    let tags = &self.workload.hints[hints as usize];
                    self.files[file as usize].hints.set(tags, host);
                }
                Operation::Compute { time } => {
                    let host = run.host;
                    let mut draws = Engine::draws(self.seed, draw::COMPUTE, u64::from(time), 0);
                    let (sampler, _) = &self.workload.times[time as usize];
                    let at = &mut self.hosts[host as usize];
                    let ticks = self.clock.from_ns(sampler.draw(&mut draws) / at.speed);
                    if ticks == 0 {
                        run.at += 1;
                        continue;
                    }
                    at.computing += ticks as f64;
                    run.spent.compute += ticks;
                    run.phase = Phase::Compute;
                    run.path.push(Leg {
                        station: station(host, SLOTS),
                        ticks: ticks as f32,
                    });
                    self.at(now + ticks, kind::TASK, task);
                    return;
                }
                Operation::Open { file } => {
                    run.file = file;
                    run.phase = Phase::Client;
                    if !self.join_client(now, task, 0) {
                        self.operate(now, task);
                    }
                    return;
                }
                Operation::Read { file, offset, size } => {
                    (run.file, run.offset, run.size, run.write) = (file, offset, size, false);
                    run.phase = Phase::Client;
                    if !self.join_client(now, task, size) {
                        self.operate(now, task);
                    }
                    return;
                }
                Operation::Write { file, offset, size } => {
                    (run.file, run.offset, run.size, run.write) = (file, offset, size, true);
                    self.writers += 1;
                    let run = &mut self.runs[task as usize];
                    run.phase = Phase::Client;
                    if !self.join_client(now, task, size) {
                        self.operate(now, task);
                    }
                    return;
                }
            }
        }
    }

    /// Execute an operation that the client has accepted.
    pub fn operate(&mut self, now: Ticks, task: u32) {
        let Some(operation) = self.operation(task) else {
            return;
        };
        let managed = self.network.store.allocation == Allocation::Manager;
        match operation {
            Operation::Open { .. } if managed => self.ask_manager(now, task, Phase::Open),
            Operation::Open { .. } => self.operation_ends(now, task, "open"),
            Operation::Write { .. } if managed => self.ask_manager(now, task, Phase::Allocate),
            Operation::Write { .. } => {
                self.allocate(task);
                self.begin_data(now, task);
            }
            _ => self.begin_data(now, task),
        }
    }

    pub fn ask_manager(&mut self, now: Ticks, task: u32, phase: Phase) {
        let run = &mut self.runs[task as usize];
        run.phase = phase;
        run.phase_start = now;
        let (from, file) = (run.host, run.file);
        let to = self.managers[file as usize % self.managers.len()];
        let message = self.message(Message {
            bytes: self.control,
            from,
            to,
            task,
            stage: Stage::ToManager,
            ..Message::EMPTY
        });
        self.send(now, message);
    }

    /// Apply a task's request at the manager; an allocation happens at this time.
    pub fn manager_serves(&mut self, task: u32) {
        if self.runs[task as usize].phase == Phase::Allocate {
            self.allocate(task);
        }
    }

    fn allocate(&mut self, task: u32) {
        let run = &self.runs[task as usize];
        let claim = super::nodes::Claim {
            file: run.file,
            offset: run.offset,
            size: run.size,
            client: Some(run.host),
        };
        let file = &mut self.files[claim.file as usize];
        if let Err(full) = self.nodes.allocate(file, &self.network.store, claim) {
            let name = &self.workload.tasks[task as usize].name;
            self.full(format!("task \"{name}\" writes"), claim.file, full);
        }
    }

    /// Handle the manager's answer.
    pub fn manager_answered(&mut self, now: Ticks, slot: u32, task: u32) {
        self.blame(task, slot);
        self.release(slot);
        let run = &mut self.runs[task as usize];
        run.spent.manager += now - run.phase_start;
        match run.phase {
            Phase::Open => {
                self.operation_over(now, task, "open");
                self.proceed(now, task);
            }
            Phase::Allocate => self.begin_data(now, task),
            _ => {
                self.operation_over(now, task, "write");
                self.proceed(now, task);
            }
        }
    }

    /// End an operation, perhaps within the call that began it.
    pub fn operation_ends(&mut self, now: Ticks, task: u32, name: &'static str) {
        let at_once = self.runs[task as usize].operation_start == now;
        self.operation_over(now, task, name);
        if at_once {
            // use an event, so that a long series of such operations needs no deep stack
            self.runs[task as usize].phase = Phase::Launch;
            self.at(now, kind::TASK, task);
        } else {
            self.proceed(now, task);
        }
    }

    /// Record an operation and continue with the next one.
    fn operation_over(&mut self, now: Ticks, task: u32, name: &'static str) {
        let run = &mut self.runs[task as usize];
        let ticks = now - run.operation_start;
        let which = match name {
            "open" => Some(0),
            "read" => Some(1),
            "write" => Some(2),
            _ => None,
        };
        if let Some(which) = which {
            self.latencies[which].add(self.clock.to_ns(ticks));
            self.operation_ticks[which] += ticks as f64;
        }
        if self.detail {
            let stored = which.is_some();
            let span = Span {
                op: name,
                file: stored.then(|| self.workload.files[run.file as usize].name.clone()),
                start_s: self.clock.seconds(run.operation_start),
                end_s: self.clock.seconds(now),
                bytes: if name == "open" { 0 } else { run.size },
                local_bytes: run.local_bytes,
            };
            run.spans.push(span);
        }
        run.at += 1;
        if run.path.len() >= 64 && run.path.len().is_power_of_two() {
            add_up(&mut run.path);
        }
    }

    /// Append the path of the message that ended a phase to its task's path.
    pub fn blame(&mut self, task: u32, slot: u32) {
        let message = &self.messages[slot as usize];
        let run = &mut self.runs[task as usize];
        if message.spill != NONE {
            run.path
                .extend_from_slice(&self.spills[message.spill as usize]);
        }
        run.path
            .extend_from_slice(&message.path[..message.legs as usize]);
    }

    fn end(&mut self, now: Ticks, task: u32) {
        let run = &mut self.runs[task as usize];
        run.phase = Phase::Done;
        run.end = now;
        run.missing = None;
        add_up(&mut run.path);
        run.path.shrink_to_fit();
        let (host, busy) = (run.host, now - run.start);
        self.hosts[host as usize].slot_tally.busy += busy;
        self.unfinished -= 1;
        if now >= self.makespan {
            self.makespan = now;
            self.last_task = task;
        }
        let (begin, end) = self.workload.tasks[task as usize].successors;
        let mut freed = Vec::new();
        for at in begin..end {
            let next = self.workload.successors[at as usize];
            let run = &mut self.runs[next as usize];
            run.predecessors -= 1;
            if run.predecessors == 0 {
                run.cause = task;
                freed.push(next);
            }
        }
        // tasks that already wait come first
        self.freed = task;
        self.slot_free(now, host);
        self.freed = NONE;
        for next in freed {
            self.unblock(now, next, 0);
        }
    }
}
