//! Scheduler: assignment of tasks to machines (Costa 2014).
//!
//! No waiting task could run on an idle machine. A ready task is placed at once if possible. A machine that becomes
//! idle gets the longest waiting task that may run there.

use std::collections::VecDeque;

use super::choices::{Fill, Inputs, SchedulerKind};
use super::engine::{kind, Engine};
use super::server::NONE;
use super::time::Ticks;

/// Machines that a task may use: all, a group, or one.
#[derive(Debug, Default)]
struct Class {
    members: Vec<u64>,
    waiting: VecDeque<(u64, u32)>,
}

/// Idle machines and waiting tasks.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    idle: Vec<u64>,
    classes: Vec<Class>,
    /// Classes of each host.
    of_host: Vec<Vec<u32>>,
    /// Tasks that wait for one machine because it has their data.
    held: Vec<VecDeque<(u64, u32)>>,
    ready: u64,
    /// Bytes by host; scratch space for one task at a time.
    score: Vec<u64>,
    fill: Fill,
    /// Number of running tasks by host.
    running: Vec<u32>,
    /// Hosts that run 0, 1, 2, … tasks.
    by_running: Vec<Load>,
}

/// Hosts that run the same number of tasks.
#[derive(Debug)]
struct Load {
    hosts: Vec<u64>,
    count: u32,
}

impl Scheduler {
    /// `classes`: hosts of each class; `idle`: hosts that run tasks.
    pub fn new(hosts: usize, classes: &[Vec<u32>], idle: &[u32], fill: Fill) -> Self {
        let n_words = hosts.div_ceil(64);
        let bits = |members: &[u32]| {
            let mut set = vec![0u64; n_words];
            for host in members {
                set[*host as usize / 64] |= 1 << (host % 64);
            }
            set
        };
        let mut of_host = vec![Vec::new(); hosts];
        for (i, members) in classes.iter().enumerate() {
            for host in members {
                of_host[*host as usize].push(i as u32);
            }
        }
        Scheduler {
            idle: bits(idle),
            classes: classes
                .iter()
                .map(|members| Class {
                    members: bits(members),
                    waiting: VecDeque::new(),
                })
                .collect(),
            of_host,
            held: vec![VecDeque::new(); hosts],
            ready: 0,
            score: vec![0; hosts],
            fill,
            running: vec![0; hosts],
            by_running: vec![Load {
                hosts: bits(idle),
                count: idle.len() as u32,
            }],
        }
    }

    fn is_idle(&self, host: u32) -> bool {
        self.idle[host as usize / 64] >> (host % 64) & 1 == 1
    }

    fn may(&self, class: u32, host: u32) -> bool {
        self.classes[class as usize].members[host as usize / 64] >> (host % 64) & 1 == 1
    }

    /// Choose the host with a free slot for a task of `class`.
    fn choose(&self, class: u32) -> Option<u32> {
        let members = &self.classes[class as usize].members;
        let first = |among: &[u64]| {
            (0..members.len()).find_map(|word| {
                let both = self.idle[word] & members[word] & among[word];
                (both != 0).then(|| word as u32 * 64 + both.trailing_zeros())
            })
        };
        match self.fill {
            Fill::Pack => first(&self.idle),
            Fill::Spread => self
                .by_running
                .iter()
                .filter(|load| load.count > 0)
                .find_map(|load| first(&load.hosts)),
        }
    }

    /// Set the number of tasks that a host runs. `free`: it has a slot for another.
    fn runs(&mut self, host: u32, tasks: u32, free: bool) {
        let (word, bit) = (host as usize / 64, 1u64 << (host % 64));
        self.idle[word] = self.idle[word] & !bit | if free { bit } else { 0 };
        let before = std::mem::replace(&mut self.running[host as usize], tasks);
        while self.by_running.len() <= tasks as usize {
            self.by_running.push(Load {
                hosts: vec![0; self.idle.len()],
                count: 0,
            });
        }
        let load = &mut self.by_running[before as usize];
        load.hosts[word] &= !bit;
        load.count -= 1;
        let load = &mut self.by_running[tasks as usize];
        load.hosts[word] |= bit;
        load.count += 1;
    }
}

impl Engine<'_> {
    /// Handle a task that has become ready.
    pub fn ready(&mut self, now: Ticks, task: u32) {
        self.runs[task as usize].ready = now;
        self.scheduler.ready += 1;
        self.runs[task as usize].number = self.scheduler.ready;
        self.place(now, task, false);
    }

    /// Place a ready task on an idle machine, or let it wait.
    fn place(&mut self, now: Ticks, task: u32, impatient: bool) {
        let class = self.runs[task as usize].class;
        let number = self.runs[task as usize].number;
        if self.network.scheduler.kind == SchedulerKind::Workqueue {
            match self.scheduler.choose(class) {
                Some(host) => self.assign(now, task, host),
                None => self.wait(class, number, task),
            }
            return;
        }
        let wait = match self.network.scheduler.wait_s {
            _ if impatient => Some(0),
            None => None,
            Some(s) => Some(self.clock.ticks(s)),
        };
        let (best, best_idle) = self.most_data(task, class);
        let chosen = match (best, wait) {
            (Some(_), Some(0)) => best_idle.or_else(|| self.scheduler.choose(class)),
            (Some(best), _) if self.scheduler.is_idle(best) => Some(best),
            (Some(best), wait) => {
                // the machine with its data is busy: wait for that one
                self.scheduler.held[best as usize].push_back((number, task));
                self.runs[task as usize].held = best;
                if let Some(wait) = wait {
                    self.at(now + wait, kind::PATIENCE, task);
                }
                return;
            }
            (None, _) => self.scheduler.choose(class),
        };
        match chosen {
            Some(host) => self.assign(now, task, host),
            None => self.wait(class, number, task),
        }
    }

    fn wait(&mut self, class: u32, number: u64, task: u32) {
        let queue = &mut self.scheduler.classes[class as usize].waiting;
        let at = queue.partition_point(|(other, _)| *other < number);
        queue.insert(at, (number, task));
    }

    /// Handle the end of a task's wait for its preferred machine.
    pub fn patience_over(&mut self, now: Ticks, task: u32) {
        let host = std::mem::replace(&mut self.runs[task as usize].held, NONE);
        if host == NONE {
            return;
        }
        self.scheduler.held[host as usize].retain(|(_, other)| *other != task);
        self.place(now, task, true);
    }

    /// Machines with most bytes of the task's input: of all, and of the idle ones. Ties: the lowest index.
    fn most_data(&mut self, task: u32, class: u32) -> (Option<u32>, Option<u32>) {
        let mut touched: Vec<u32> = Vec::new();
        let mut seen: Vec<u32> = Vec::new();
        let entire_files = self.network.scheduler.inputs == Inputs::Files;
        let (begin, end) = self.workload.tasks[task as usize].operations[self.merged_range];
        for operation in &self.operations[begin as usize..end as usize] {
            let super::workload::Operation::Read { file, offset, size } = *operation else {
                continue;
            };
            if entire_files {
                seen.push(file);
                continue;
            }
            let score = &mut self.scheduler.score;
            self.files[file as usize].each_host_of(offset, offset + size, |host, bytes| {
                let at = &mut score[host as usize];
                if *at == 0 {
                    touched.push(host);
                }
                *at = at.wrapping_add_signed(bytes);
            });
        }
        seen.sort_unstable();
        seen.dedup();
        let score = &mut self.scheduler.score;
        for file in seen {
            self.files[file as usize].each_host(|host, bytes| {
                if score[host as usize] == 0 {
                    touched.push(host);
                }
                score[host as usize] += bytes;
            });
        }
        let (mut best, mut best_idle) = (None, None);
        let (mut most, mut most_idle) = (0, 0);
        touched.sort_unstable();
        for host in touched {
            let bytes = std::mem::take(&mut self.scheduler.score[host as usize]);
            if !self.scheduler.may(class, host) {
                continue;
            }
            if bytes > most {
                (best, most) = (Some(host), bytes);
            }
            if bytes > most_idle && self.scheduler.is_idle(host) {
                (best_idle, most_idle) = (Some(host), bytes);
            }
        }
        (best, best_idle)
    }

    /// Assign a slot to a task.
    fn assign(&mut self, now: Ticks, task: u32, host: u32) {
        let at = &mut self.hosts[host as usize];
        at.slots_free -= 1;
        let (tasks, free) = (at.slots - at.slots_free, at.slots_free > 0);
        self.scheduler.runs(host, tasks, free);
        self.start(now, task, host);
    }

    /// Assign a free slot to the longest waiting task that may run there.
    pub fn slot_free(&mut self, now: Ticks, host: u32) {
        let at = &mut self.hosts[host as usize];
        at.slots_free += 1;
        self.scheduler.runs(host, at.slots - at.slots_free, true);
        let waiting: usize = self.scheduler.of_host[host as usize]
            .iter()
            .map(|class| self.scheduler.classes[*class as usize].waiting.len())
            .sum::<usize>()
            + self.scheduler.held[host as usize].len();
        at.slot_tally.waiting_max = at.slot_tally.waiting_max.max(waiting as u64);
        let mut oldest: Option<(u64, u32)> = self.scheduler.held[host as usize].front().copied();
        let mut from = NONE;
        for class in &self.scheduler.of_host[host as usize] {
            if let Some(head) = self.scheduler.classes[*class as usize].waiting.front() {
                if oldest.is_none_or(|(number, _)| head.0 < number) {
                    oldest = Some(*head);
                    from = *class;
                }
            }
        }
        let Some((_, task)) = oldest else {
            return;
        };
        if from == NONE {
            self.scheduler.held[host as usize].pop_front();
            self.runs[task as usize].held = NONE;
        } else {
            self.scheduler.classes[from as usize].waiting.pop_front();
        }
        self.assign(now, task, host);
    }
}
