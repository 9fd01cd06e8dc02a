//! Workload: tasks with storage operations, files with hints (`penstock/workload/1`; Costa 2014, table 3.2).

use std::collections::HashMap;

use penstock_station::Sampler;
use serde::Deserialize;

use super::graph::link;
use super::number::{at_least_zero, Duration};
use super::placed::Placement;
use super::SimulationError;

/// Required value of the `schema` field of a workload.
pub const WORKLOAD_SCHEMA: &str = "penstock/workload/1";
/// Largest file, 1 EiB. Larger offsets would overflow.
const MAX_BYTES: u64 = 1 << 60;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadText {
    schema: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    files: Vec<FileText>,
    tasks: Vec<TaskText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    name: String,
    #[serde(default)]
    size_bytes: Option<u64>,
    #[serde(default)]
    preloaded: bool,
    #[serde(default)]
    hints: Option<HintsText>,
}

/// Tags of a file (Costa 2014). They override the defaults of the store.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HintsText {
    pub placement: Option<PlacementKind>,
    pub group: Option<String>,
    pub scatter: Option<u64>,
    pub stripe_width: Option<u32>,
    pub replicas: Option<u32>,
    pub chunk_bytes: Option<u64>,
    pub host: Option<String>,
}

/// Placement of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacementKind {
    /// Round robin over the stripe, with a new order of nodes for each request.
    Striped,
    /// Round robin over the stripe, with nodes in a fixed order. It starts at the first node or continues after the
    /// last file.
    RoundRobin,
    /// On the client's own node.
    Local,
    /// All files of a group on one node.
    Collocate,
    /// Runs of contiguous chunks, each run on one node.
    Scatter,
    /// Each chunk on a random node.
    Random,
    /// Each chunk on the least used nodes.
    Balanced,
    /// The host that the tags name.
    Host,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskText {
    name: String,
    #[serde(default)]
    stage: Option<String>,
    #[serde(default)]
    machine: Option<String>,
    #[serde(default)]
    after: Vec<String>,
    #[serde(default)]
    launch: Option<Duration>,
    #[serde(default)]
    not_before_s: Option<f64>,
    #[serde(default)]
    operations: Vec<OperationText>,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum OperationText {
    Open {
        file: String,
    },
    Read {
        file: String,
        #[serde(default)]
        offset_bytes: u64,
        size_bytes: u64,
    },
    Write {
        file: String,
        #[serde(default)]
        offset_bytes: u64,
        size_bytes: u64,
    },
    Compute {
        seconds: Duration,
    },
    SetXattr {
        file: String,
        hints: HintsText,
    },
    Close {
        file: String,
    },
}

/// One operation of a task, with resolved names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation {
    /// Request the chunk map from the manager.
    Open { file: u32 },
    /// Fetch bytes.
    Read { file: u32, offset: u64, size: u64 },
    /// Store bytes.
    Write { file: u32, offset: u64, size: u64 },
    /// Compute, without storage; index of the duration.
    Compute { time: u32 },
    /// Set tags for the next operations on the file.
    SetHints { file: u32, hints: u32 },
    /// Close the file; sends no message.
    Close { file: u32 },
}

/// A file as declared in the workload.
#[derive(Debug, Clone)]
pub struct FileSpec {
    pub name: String,
    pub size: u64,
    pub preloaded: bool,
    pub hints: HintsText,
}

/// A task as declared in the workload.
#[derive(Debug, Clone)]
pub struct TaskSpec {
    pub name: String,
    pub stage: u32,
    pub machine: Option<u32>,
    pub launch: Option<Sampler>,
    pub not_before_s: f64,
    /// Operations as declared, and merged: ranges of the two lists.
    pub operations: [(u32, u32); 2],
    /// Number of files with tags that it writes.
    pub tagged: u32,
    /// True if it reads files that the run writes.
    pub reads_made: bool,
    pub predecessors: u32,
    pub successors: (u32, u32),
}

/// A checked workload, ready for any number of simulations.
#[derive(Debug, Clone)]
pub struct Workload {
    pub(super) files: Vec<FileSpec>,
    pub(super) tasks: Vec<TaskSpec>,
    pub(super) stages: Vec<String>,
    pub(super) machines: Vec<String>,
    pub(super) operations: [Vec<Operation>; 2],
    pub(super) times: Vec<(Sampler, f64)>,
    pub(super) hints: Vec<HintsText>,
    pub(super) successors: Vec<u32>,
    /// Explicit placement of files, for those that have one.
    pub(super) placement: Placement,
    /// Upper bounds of the sums of one run, for the choice of the clock.
    pub(super) compute_s: f64,
    /// Latest start time of a task with a minimum start time; after it no task waits for the clock.
    pub(super) latest_s: f64,
    pub(super) moved_bytes: f64,
}

/// Numbers names in the order of their appearance.
#[derive(Default)]
struct Names {
    index: HashMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    fn of(&mut self, name: &str) -> u32 {
        if let Some(index) = self.index.get(name) {
            return *index;
        }
        let new = self.names.len() as u32;
        self.index.insert(name.to_owned(), new);
        self.names.push(name.to_owned());
        new
    }
}

fn bad(message: impl Into<String>) -> SimulationError {
    SimulationError(message.into())
}

fn check_hints(place: &str, hints: &HintsText) -> Result<(), SimulationError> {
    let positive = [
        ("scatter", hints.scatter),
        ("stripe_width", hints.stripe_width.map(u64::from)),
        ("replicas", hints.replicas.map(u64::from)),
        ("chunk_bytes", hints.chunk_bytes),
    ];
    for (name, value) in positive {
        if value == Some(0) {
            return Err(bad(format!("{place}: {name} is 0; at least 1 is expected")));
        }
    }
    if hints.chunk_bytes.is_some_and(|bytes| bytes > MAX_BYTES) {
        return Err(bad(format!(
            "{place}: chunk_bytes is beyond {MAX_BYTES} bytes"
        )));
    }
    if hints.placement == Some(PlacementKind::Collocate) && hints.group.is_none() {
        return Err(bad(format!(
            "{place}: placement collocate without group; name the group of files to be kept together"
        )));
    }
    if hints.placement == Some(PlacementKind::Host) && hints.host.is_none() {
        return Err(bad(format!(
            "{place}: placement host without host; name the host that is to store the file"
        )));
    }
    Ok(())
}

impl Workload {
    /// Read and check `penstock/workload/1`.
    ///
    /// # Errors
    /// The text is not JSON, or has an unknown field, a duplicate or undefined name, a task without operations, a
    /// cycle, a file that is read but never written, or an invalid number. The message names the task or file.
    pub fn from_json(text: &str) -> Result<Self, SimulationError> {
        let text: WorkloadText =
            serde_json::from_str(text).map_err(|e| bad(format!("workload: {e}")))?;
        if text.schema != WORKLOAD_SCHEMA {
            return Err(bad(format!(
                "workload: schema is \"{}\"; \"{WORKLOAD_SCHEMA}\" is expected",
                text.schema
            )));
        }
        if text.tasks.is_empty() {
            return Err(bad(format!(
                "workload \"{}\" has no tasks; at least one is expected",
                text.name
            )));
        }
        Builder::new(&text)?.build(&text)
    }

    /// Number of tasks.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }
}

struct Builder {
    files: Vec<FileSpec>,
    file_of: HashMap<String, u32>,
    task_of: HashMap<String, u32>,
    /// Writers of each file: tasks in order of the list.
    writers: Vec<Vec<u32>>,
    /// Largest size of each file during the run.
    extents: Vec<u64>,
}

impl Builder {
    fn new(text: &WorkloadText) -> Result<Self, SimulationError> {
        let mut builder = Builder {
            files: Vec::new(),
            file_of: HashMap::new(),
            task_of: HashMap::new(),
            writers: Vec::new(),
            extents: Vec::new(),
        };
        for file in &text.files {
            let place = format!("file \"{}\"", file.name);
            if builder.file_of.contains_key(&file.name) {
                return Err(bad(format!("{place} is described twice; once is expected")));
            }
            let size = file.size_bytes.unwrap_or(0);
            if file.preloaded && file.size_bytes.is_none() {
                return Err(bad(format!(
                    "{place} is preloaded without size_bytes; its size is expected"
                )));
            }
            if size > MAX_BYTES {
                return Err(bad(format!(
                    "{place} has {size} bytes; at most {MAX_BYTES} are expected"
                )));
            }
            let hints = file.hints.clone().unwrap_or_default();
            check_hints(&place, &hints)?;
            let index = builder.file(&file.name) as usize;
            builder.files[index] = FileSpec {
                name: file.name.clone(),
                size,
                preloaded: file.preloaded,
                hints,
            };
            if file.preloaded {
                builder.extents[index] = size;
            }
        }
        for (i, task) in text.tasks.iter().enumerate() {
            if builder
                .task_of
                .insert(task.name.clone(), i as u32)
                .is_some()
            {
                return Err(bad(format!(
                    "task \"{}\" is described twice; names of tasks are to differ",
                    task.name
                )));
            }
        }
        Ok(builder)
    }

    fn file(&mut self, name: &str) -> u32 {
        if let Some(number) = self.file_of.get(name) {
            return *number;
        }
        let new = self.files.len() as u32;
        self.file_of.insert(name.to_owned(), new);
        self.files.push(FileSpec {
            name: name.to_owned(),
            size: 0,
            preloaded: false,
            hints: HintsText::default(),
        });
        self.writers.push(Vec::new());
        self.extents.push(0);
        new
    }

    fn build(mut self, text: &WorkloadText) -> Result<Workload, SimulationError> {
        let (mut stages, mut machines) = (Names::default(), Names::default());
        let mut tasks = Vec::with_capacity(text.tasks.len());
        let mut operations: [Vec<Operation>; 2] = Default::default();
        let mut times = Vec::new();
        let mut hints = Vec::new();
        let (mut compute_s, mut moved_bytes) = (0.0, 0.0);
        let mut latest_s = 0.0f64;
        for (index, task) in text.tasks.iter().enumerate() {
            let place = format!("task \"{}\"", task.name);
            if task.operations.is_empty() {
                return Err(bad(format!(
                    "{place} has no operations; at least one is expected (a compute of 0 seconds does nothing)"
                )));
            }
            if let Some(launch) = &task.launch {
                launch
                    .check(&format!("{place}: launch"))
                    .map_err(SimulationError)?;
                compute_s += far(launch);
            }
            let not_before_s = task.not_before_s.unwrap_or(0.0);
            at_least_zero(&format!("{place}: not_before_s"), not_before_s)
                .map_err(SimulationError)?;
            latest_s = latest_s.max(not_before_s);
            let begin = operations[0].len() as u32;
            for (i, operation) in task.operations.iter().enumerate() {
                let place = format!("{place}: operations[{i}]");
                let resolved = match operation {
                    OperationText::Open { file } => Operation::Open {
                        file: self.file(file),
                    },
                    OperationText::Close { file } => Operation::Close {
                        file: self.file(file),
                    },
                    OperationText::Read {
                        file,
                        offset_bytes,
                        size_bytes,
                    } => {
                        end_of(&place, *offset_bytes, *size_bytes)?;
                        moved_bytes += *size_bytes as f64;
                        Operation::Read {
                            file: self.file(file),
                            offset: *offset_bytes,
                            size: *size_bytes,
                        }
                    }
                    OperationText::Write {
                        file,
                        offset_bytes,
                        size_bytes,
                    } => {
                        let end = end_of(&place, *offset_bytes, *size_bytes)?;
                        moved_bytes += *size_bytes as f64;
                        let file = self.file(file);
                        let writers = &mut self.writers[file as usize];
                        if writers.last() != Some(&(index as u32)) {
                            writers.push(index as u32);
                        }
                        let extent = &mut self.extents[file as usize];
                        *extent = (*extent).max(end);
                        Operation::Write {
                            file,
                            offset: *offset_bytes,
                            size: *size_bytes,
                        }
                    }
                    OperationText::Compute { seconds } => {
                        seconds
                            .check(&format!("{place}: seconds"))
                            .map_err(SimulationError)?;
                        compute_s += far(seconds);
                        times.push((seconds.sampler(), seconds.0.mean_s()));
                        Operation::Compute {
                            time: times.len() as u32 - 1,
                        }
                    }
                    OperationText::SetXattr { file, hints: tags } => {
                        check_hints(&place, tags)?;
                        hints.push(tags.clone());
                        Operation::SetHints {
                            file: self.file(file),
                            hints: hints.len() as u32 - 1,
                        }
                    }
                };
                operations[0].push(resolved);
            }
            let end = operations[0].len() as u32;
            let (tagged, reads_made) = self.looked_at(&operations[0][begin as usize..]);
            let merged_begin = operations[1].len() as u32;
            let merged = aggregated(&operations[0][begin as usize..]);
            operations[1].extend(merged);
            tasks.push(TaskSpec {
                name: task.name.clone(),
                stage: stages.of(task.stage.as_deref().unwrap_or("all")),
                machine: task.machine.as_deref().map(|name| machines.of(name)),
                launch: task.launch.as_ref().map(Duration::sampler),
                not_before_s,
                operations: [(begin, end), (merged_begin, operations[1].len() as u32)],
                tagged,
                reads_made,
                predecessors: 0,
                successors: (0, 0),
            });
        }
        let edges = self.edges(text, &tasks, &operations[0])?;
        let successors = link(&mut tasks, edges)?;
        Ok(Workload {
            files: self.files,
            tasks,
            stages: stages.names,
            machines: machines.names,
            operations,
            times,
            hints,
            successors,
            placement: Placement::default(),
            compute_s,
            latest_s,
            moved_bytes,
        })
    }

    /// Number of files with tags that a task's operations write, and true if they read a file that the run writes.
    fn looked_at(&self, operations: &[Operation]) -> (u32, bool) {
        let mut tagged = Vec::new();
        let mut reads_made = false;
        for operation in operations {
            match operation {
                Operation::Write { file, .. }
                    if self.files[*file as usize].hints != HintsText::default()
                        && !tagged.contains(file) =>
                {
                    tagged.push(*file);
                }
                Operation::Read { file, .. } => reads_made |= !self.files[*file as usize].preloaded,
                _ => {}
            }
        }
        (tagged.len() as u32, reads_made)
    }

    /// Dependencies (before, after): the declared ones, and those of a reader on the writers of its files.
    ///
    /// A task that also writes the file, or reads one that existed before the run, waits only for writers that
    /// precede it in the list; otherwise two tasks that share a file would wait for each other. Of the writers that
    /// also read the file the last one suffices, because it waits for the others.
    fn edges(
        &self,
        text: &WorkloadText,
        tasks: &[TaskSpec],
        operations: &[Operation],
    ) -> Result<Vec<(u32, u32)>, SimulationError> {
        let mut edges = Vec::new();
        let mut last_change = vec![0; self.files.len()];
        let mut changes = Vec::new();
        for (index, (task, described)) in tasks.iter().zip(&text.tasks).enumerate() {
            let index = index as u32;
            for name in &described.after {
                match self.task_of.get(name) {
                    None => {
                        return Err(bad(format!(
                            "task \"{}\": after names \"{name}\", which is no task",
                            task.name
                        )))
                    }
                    Some(before) => edges.push((*before, index)),
                }
            }
            let (begin, end) = task.operations[0];
            for (i, operation) in operations[begin as usize..end as usize].iter().enumerate() {
                let Operation::Read { file, offset, size } = *operation else {
                    continue;
                };
                let spec = &self.files[file as usize];
                let writers = &self.writers[file as usize];
                if writers.is_empty() && !spec.preloaded {
                    return Err(bad(format!(
                        "task \"{}\": operations[{i}] reads file \"{}\", which no task writes and which is not preloaded",
                        task.name, spec.name
                    )));
                }
                // in the order of the tasks, without duplicates
                let own_only = writers.is_empty() || *writers == [index];
                if own_only && !spec.preloaded {
                    let before = &operations[begin as usize..begin as usize + i];
                    let written = before
                        .iter()
                        .any(|op| matches!(op, Operation::Write { file: f, .. } if *f == file));
                    if !written {
                        return Err(bad(format!(
                            "task \"{}\": operations[{i}] reads file \"{}\" before it writes it, and no other task does",
                            task.name, spec.name
                        )));
                    }
                }
                let extent = self.extents[file as usize];
                if offset + size > extent {
                    return Err(bad(format!(
                        "task \"{}\": operations[{i}] reads file \"{}\" up to byte {}; it only ever has {extent}",
                        task.name, spec.name, offset + size
                    )));
                }
                let changed = writers.binary_search(&index).is_ok();
                let ahead = if spec.preloaded || changed {
                    let first =
                        writers.partition_point(|writer| *writer < last_change[file as usize]);
                    let at = writers.partition_point(|writer| *writer < index);
                    &writers[first..at.max(first)]
                } else {
                    &writers[..]
                };
                edges.extend(ahead.iter().map(|before| (*before, index)));
                if changed {
                    changes.push(file);
                }
            }
            for file in changes.drain(..) {
                last_change[file as usize] = index;
            }
        }
        edges.sort_unstable();
        edges.dedup();
        Ok(edges)
    }
}

/// A duration that is hardly ever exceeded.
fn far(duration: &Duration) -> f64 {
    duration.0.mean_s() + 10.0 * duration.0.quantile_s(0.999)
}

fn end_of(place: &str, offset: u64, size: u64) -> Result<u64, SimulationError> {
    match offset.checked_add(size) {
        Some(end) if end <= MAX_BYTES => Ok(end),
        _ => Err(bad(format!(
            "{place}: offset_bytes {offset} and size_bytes {size} go beyond {MAX_BYTES} bytes"
        ))),
    }
}

/// Merge consecutive operations of one kind on one file if the second begins at the end of the first
/// (Costa 2014: ten writes of 256 KiB become one of 2.5 MiB).
pub(super) fn aggregated(operations: &[Operation]) -> Vec<Operation> {
    let mut merged: Vec<Operation> = Vec::with_capacity(operations.len());
    for next in operations {
        match (merged.last_mut(), *next) {
            (
                Some(Operation::Read { file, offset, size }),
                Operation::Read {
                    file: other,
                    offset: begin,
                    size: more,
                },
            )
            | (
                Some(Operation::Write { file, offset, size }),
                Operation::Write {
                    file: other,
                    offset: begin,
                    size: more,
                },
            ) if *file == other && *offset + *size == begin => *size += more,
            _ => merged.push(*next),
        }
    }
    merged
}
