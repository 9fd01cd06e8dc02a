//! Tracer: loads the programs, arms them for one control group and drains their output.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use penstock_daemon::clock::{now_ns, process_cpu_ns};
use serde_json::{json, Value};

use crate::gaps::Gaps;
use crate::hooks::{report, Limits};
use crate::hot::{self, Chooser, Hot};
use crate::layout::{Counter, Event, Ledger, Notebook, Source, Stream, SOURCES};
use crate::live::{self, Sums};
use crate::load::{load, Loaded, Needs};
use crate::mapped::Mapped;
use crate::meter::{Meter, Reading, GROUPS};
use crate::mode::Mode;
use crate::names::introduction;
use crate::object::{lanes, prepare, set_hot, set_scope, COUNTED_FILES, NOTEBOOKS, SINGLES_BYTES};
use crate::recording::{epoch_bytes, Recording};
use crate::scope::{self, level_of, Members, Scope, MEMBER_WORDS};
use crate::sink::Sink;
use crate::ProbeError;

/// Streams that mode pattern counts in the kernel; calls beyond these are recorded individually.
const STREAMS: usize = 65_536;
/// Extensions of files beside the spool. With a choice of hot files: streams and decisions.
const STREAMS_EXTENSION: &str = "streams";
const DECISIONS: &str = "decisions";
/// In mode pattern: calls without a stream.
const SINGLES: &str = "singles";
/// Size of the ring for records that bypass the CPU's ring, which in mode pattern are those of too many streams.
const ASIDE_BYTES: usize = 1 << 20;
/// Size of `epochs` and `introductions` in `bpf/maps.h`.
const RINGBUF_BYTES: usize = 8 << 20;
/// Maximum number of records in one write (3 MiB), so that clients of the socket never wait long.
pub(crate) const BATCH: usize = 65_536;

/// Variants of a mode, to measure the cost of its parts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    /// No programs at the entry (mode empty: the baseline of mode count).
    pub exits_only: bool,
    /// Interruptible program bodies of fentry on other hooks, where no interruption can happen.
    pub interruptible: bool,
    /// Maximum number of streams in mode pattern; 0 for the default.
    pub streams: usize,
}

/// Loaded programs and their mapped maps. Dropping it, or the end of this process, removes them.
pub struct Tracer {
    pub(crate) names: RingBuffer<'static>,
    pub(crate) announced: Receiver<Vec<u8>>,
    pub(crate) aside: Receiver<Vec<u8>>,
    pub(crate) present: Receiver<Vec<u8>>,
    pub(crate) ledgers: Mapped<Ledger>,
    pub(crate) rings: Mapped<Event>,
    pub(crate) streams: Mapped<Stream>,
    pub(crate) counters: Mapped<Counter>,
    pub(crate) cold: Mapped<u64>,
    pub(crate) hot: Option<Hot>,
    pub(crate) members: Members,
    pub(crate) notebooks: Mapped<Notebook>,
    pub(crate) epochs: Receiver<Vec<u8>>,
    pub(crate) loaded: Loaded,
    pub(crate) mode: Mode,
    pub(crate) cpus: usize,
    pub(crate) slots: usize,
    pub(crate) stream_count: usize,
    pub(crate) recording: Option<Recording>,
}

/// Target of one recording, besides its control group.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct Target {
    /// Roots of the process trees, if the scope is by process.
    pub processes: Vec<u32>,
    /// Depth of the group in its hierarchy; None to look it up in the unified one.
    pub level: Option<u32>,
    /// Device node to which the program writes its marks.
    pub marks: Option<scope::Place>,
    /// For timing: without the kernel's BPF statistics.
    pub unmetered: bool,
}

impl Tracer {
    /// Load and attach. `ring_bytes` is the total for all CPUs. `hot` (mode trace) enables the choice of hot files.
    pub fn load(
        mode: Mode,
        ring_bytes: usize,
        limits: &Limits,
        timing: Timing,
        scope: &Scope,
        hot: Option<Hot>,
    ) -> Result<Self, ProbeError> {
        let hot = hot.filter(|_| mode == Mode::Trace);
        let cold_words = if hot.is_some() { hot::COLD_WORDS } else { 1 };
        let decided = scope.constants()?;
        let cpus = libbpf_rs::num_possible_cpus()?.max(1);
        let events = ring_bytes / cpus / std::mem::size_of::<Event>();
        let slots = match mode {
            Mode::Trace => (events.max(1024) + 1).next_power_of_two() / 2,
            Mode::Pattern | Mode::Count | Mode::Empty => 1,
        };
        let counting = mode == Mode::Pattern || hot.is_some();
        let stream_count = match (counting, timing.streams) {
            (false, _) => 1,
            (true, 0) => STREAMS,
            (true, few) => few.min(STREAMS),
        };
        let needs = Needs {
            mode,
            entries: mode != Mode::Count && !timing.exits_only,
            interruptible: timing.interruptible,
        };
        let counters = if mode == Mode::Count {
            2 * COUNTED_FILES * lanes(cpus)
        } else {
            1
        };
        let loaded = load(needs, limits, |open| {
            prepare(open, mode, cpus, slots, stream_count)?;
            set_hot(open, hot.is_some(), cold_words)?;
            set_scope(open, &decided)
        })?;
        if scope.by_process && !loaded.programs.iter().any(|name| name.ends_with("forked")) {
            return Err(ProbeError::Request(
                "this kernel does not let us follow forks, so tracing by process is not possible"
                    .into(),
            ));
        }
        let maps = &loaded.skeleton.maps;
        let ledgers = Mapped::new(maps.bss_ledgers.as_fd(), cpus + 1, "the counts")?;
        let rings = Mapped::new(maps.rings.as_fd(), cpus * slots, "the rings")?;
        let streams = Mapped::new(maps.streams.as_fd(), stream_count, "the streams")?;
        let counters = Mapped::new(maps.counters.as_fd(), counters, "the counters")?;
        let cold = Mapped::new(maps.cold_files.as_fd(), cold_words, "the choice of files")?;
        let members = Mapped::new(maps.members.as_fd(), MEMBER_WORDS, "the processes")?;
        scope.fill(&scope::Maps {
            anchors: &maps.anchors,
            rules: &maps.rules,
            numbers: &maps.wanted_numbers,
            endings: &maps.endings,
        })?;
        let notebook_count = if counting { NOTEBOOKS } else { 1 };
        let notebooks = Mapped::new(maps.notebooks.as_fd(), notebook_count, "the notebooks")?;
        let (send, announced) = channel();
        let (send_aside, aside) = channel();
        let mut builder = RingBufferBuilder::new();
        builder.add(&maps.introductions, move |bytes: &[u8]| {
            i32::from(send.send(bytes.to_vec()).is_err())
        })?;
        builder.add(&maps.overflow, move |bytes: &[u8]| {
            i32::from(send_aside.send(bytes.to_vec()).is_err())
        })?;
        let (send_present, present) = channel();
        builder.add(&maps.presences, move |bytes: &[u8]| {
            i32::from(send_present.send(bytes.to_vec()).is_err())
        })?;
        let (send_epoch, epochs) = channel();
        builder.add(&maps.epochs, move |bytes: &[u8]| {
            i32::from(send_epoch.send(bytes.to_vec()).is_err())
        })?;
        let names = builder.build()?;
        Ok(Self {
            names,
            announced,
            aside,
            present,
            ledgers,
            rings,
            streams,
            counters,
            cold,
            hot,
            members: Members::new(members),
            notebooks,
            epochs,
            loaded,
            mode,
            cpus,
            slots,
            stream_count,
            recording: None,
        })
    }

    /// Mode of the tracer.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// True during a recording.
    pub fn armed(&self) -> bool {
        self.recording.is_some()
    }

    /// Capacity of the ring of one CPU, in records.
    pub fn ring_slots(&self) -> usize {
        self.slots
    }

    /// Start recording the calls of a control group, by its number in the unified hierarchy. Includes its descendants.
    ///
    /// Events go to `spool` (48-byte records; in mode `pattern` the streams), files as JSON lines to `files`.
    ///
    /// `target` has the other properties of this recording: process trees, level of a v1 group, file of marks.
    pub fn arm(
        &mut self,
        cgroup_id: u64,
        target: &Target,
        spool: &Path,
        files: &Path,
        drop_every: u32,
    ) -> Result<(), ProbeError> {
        if self.armed() {
            return Err(ProbeError::Request("already armed: disarm first".into()));
        }
        if self.mode == Mode::Empty {
            return Err(ProbeError::Request("mode empty records nothing".into()));
        }
        scope::check_processes(&target.processes)?;
        let level = target.level.map_or_else(|| level_of(cgroup_id), Ok)?;
        let log = spool.with_extension(DECISIONS);
        let streams_path = spool.with_extension(STREAMS_EXTENSION);
        let chooser = |settings| Chooser::new(settings, &log, now_ns());
        let recording = Recording {
            spool: Sink::create(spool)?,
            files: Sink::create(files)?,
            announced: Vec::new(),
            start: Vec::new(),
            started: Instant::now(),
            start_cpu_ns: process_cpu_ns(),
            written: 0,
            meter: None,
            run_time: self.run_times(),
            cgroup_id,
            gaps: Gaps::new(now_ns()),
            chooser: self.hot.map(chooser).transpose()?,
            counted: self.hot.map(|_| Sink::create(&streams_path)).transpose()?,
            singles: (self.mode == Mode::Pattern)
                .then(|| Sink::create(&spool.with_extension(SINGLES)))
                .transpose()?,
            sums: Sums::default(),
            presences_lost: self.presences_lost(),
        };
        self.forget()?;
        let control = &mut self
            .loaded
            .skeleton
            .maps
            .bss_data
            .as_deref_mut()
            .ok_or_else(|| ProbeError::Request("the programs lack their control block".into()))?
            .control;
        control.epoch += 1;
        control.target_level = level;
        control.target_id = cgroup_id;
        control.target_pointer = 0;
        control.drop_every = drop_every;
        control.next_file = 0;
        control.next_stream = 0;
        control.next_notebook = 0;
        control.next_cgroup = 0;
        control.marks_device = target.marks.map_or(0, |place| place.device);
        control.marks_inode = target.marks.map_or(0, |place| place.inode);
        (control.marks, control.marks_lost) = (0, 0);
        let start = self.balance();
        self.recording = Some(Recording { start, ..recording });
        self.members.clear();
        self.set_armed(1);
        self.members.add_trees(&target.processes);
        if let Err(error) = self.survey(true) {
            self.set_armed(0);
            self.recording = None;
            return Err(error);
        }
        if target.unmetered {
            return Ok(());
        }
        let meter = Meter::new(now_ns(), || self.reading());
        self.set_metering(meter.counting());
        if let Some(recording) = self.recording.as_mut() {
            recording.meter = Some(meter);
        }
        Ok(())
    }

    /// Report the pages of mapped files that traced processes have, at the start or end of tracing.
    fn survey(&mut self, before: bool) -> Result<(), ProbeError> {
        if let Some(bss) = self.loaded.skeleton.maps.bss_data.as_deref_mut() {
            bss.survey_before = u32::from(before);
        }
        self.loaded.survey()
    }

    fn reading(&self) -> Reading {
        Reading {
            programs: self.run_times(),
            own: self.own_runs(),
        }
    }

    fn own_runs(&self) -> [u64; GROUPS] {
        let bss = self.loaded.skeleton.maps.bss_data.as_ref();
        bss.map_or([0; GROUPS], |bss| bss.metered)
    }

    fn set_metering(&mut self, on: bool) {
        if let Some(bss) = self.loaded.skeleton.maps.bss_data.as_deref_mut() {
            // SAFETY: a mapping owned by this process; volatile because the programs read it at any time.
            unsafe { std::ptr::write_volatile(&mut bss.control.metering, u32::from(on)) };
        }
    }

    /// Milliseconds until the kernel's BPF statistics are to be enabled or disabled.
    pub fn meter_due_ms(&self) -> u64 {
        let meter = self.recording.as_ref().and_then(|r| r.meter.as_ref());
        meter.map_or(u64::MAX, |meter| {
            meter.due_ns().saturating_sub(now_ns()).div_ceil(1_000_000)
        })
    }

    fn look_at_meter(&mut self, recording: &mut Recording) {
        let Some(mut meter) = recording.meter.take() else {
            return;
        };
        let now = now_ns();
        if now >= meter.due_ns() {
            let group_of = |number| self.group_of(number);
            meter.look(now, self.own_runs(), group_of, || self.reading());
            self.set_metering(meter.counting());
        }
        recording.meter = Some(meter);
    }

    /// Remove files, streams and control groups of the previous recording.
    fn forget(&mut self) -> Result<(), ProbeError> {
        let maps = &self.loaded.skeleton.maps;
        for map in [
            &maps.files as &dyn MapCore,
            &maps.stream_numbers,
            &maps.cgroups,
            &maps.operations,
            &maps.requests,
            &maps.unwanted_files,
            &maps.mapped_areas,
            &maps.newest_areas,
            &maps.told_pages,
            &maps.told_names,
        ] {
            let keys: Vec<_> = map.keys().collect();
            for key in keys {
                map.delete(&key)?;
            }
        }
        let used = self
            .loaded
            .skeleton
            .maps
            .bss_data
            .as_ref()
            .map_or(0, |bss| bss.control.next_stream as usize);
        self.streams.clear(used.min(self.stream_count));
        self.cold.clear(self.hot.map_or(0, |_| hot::COLD_WORDS));
        if self.mode == Mode::Count {
            self.counters.clear(2 * COUNTED_FILES * lanes(self.cpus));
        }
        if self.mode == Mode::Pattern || self.hot.is_some() {
            self.notebooks.clear(self.notebooks_used());
        }
        let _ = self.names.consume();
        while self.announced.try_recv().is_ok() {}
        while self.aside.try_recv().is_ok() {}
        while self.present.try_recv().is_ok() {}
        while self.epochs.try_recv().is_ok() {}
        Ok(())
    }

    fn set_armed(&mut self, armed: u32) {
        if let Some(bss) = self.loaded.skeleton.maps.bss_data.as_deref_mut() {
            fence(Ordering::SeqCst);
            // SAFETY: a mapping owned by this process; volatile because the programs read it at any time.
            unsafe { std::ptr::write_volatile(&mut bss.control.armed, armed) };
            fence(Ordering::SeqCst);
        }
    }

    fn balance(&self) -> Vec<Ledger> {
        (0..=self.cpus).map(|cpu| self.ledgers.read(cpu)).collect()
    }

    fn lost_since(&self, start: &[Ledger]) -> u64 {
        let before: u64 = start.iter().map(|ledger| ledger.total().lost()).sum();
        let now: u64 = (0..=self.cpus)
            .map(|cpu| self.ledgers.read(cpu).total().lost())
            .sum();
        now.wrapping_sub(before)
    }

    /// Drain the rings. Return the fill level of the fullest one, from 0 to 1.
    pub fn drain(&mut self) -> f64 {
        let Some(mut recording) = self.recording.take() else {
            return 0.0;
        };
        self.look_at_meter(&mut recording);
        let (mut taken, mut most) = (0, 0);
        for cpu in 0..self.cpus {
            let from_one = self.drain_one(cpu, &mut recording);
            taken += from_one;
            most = most.max(from_one);
        }
        let _ = self.names.consume();
        let mut lines = String::new();
        let (mut bytes_read, mut counted, mut aside) = (0, 0, Vec::new());
        while let Ok(bytes) = self.announced.try_recv() {
            bytes_read += bytes.len();
            recording.note_announced(&bytes);
            lines.push_str(&introduction(&bytes));
        }
        while let Ok(bytes) = self.present.try_recv() {
            lines.push_str(&crate::faults::presence(&bytes));
        }
        if !lines.is_empty() {
            recording.files.put(lines.as_bytes(), 0);
        }
        while let Ok(bytes) = self.epochs.try_recv() {
            counted += bytes.len();
            recording.keep_epoch(epoch_bytes(&bytes));
            recording.sums.add_epoch(bytes);
        }
        while let Ok(bytes) = self.aside.try_recv() {
            aside.extend_from_slice(&bytes);
        }
        recording.sums.add_events(&aside);
        recording.take(&aside);
        taken += (aside.len() / std::mem::size_of::<Event>()) as u64;
        recording.written += taken;
        let lost = self.lost_since(&recording.start) + recording.unspooled();
        recording.gaps.look(now_ns(), lost);
        if let Some(mut chooser) = recording.chooser.take() {
            let streams = (0..self.streams_so_far()).map(|number| self.streams.read(number));
            chooser.look(now_ns(), streams, &self.cold);
            recording.chooser = Some(chooser);
        }
        self.recording = Some(recording);
        let of = |bytes: usize, all: usize| bytes as f64 / all as f64;
        let aside_bytes = match self.mode {
            Mode::Pattern => SINGLES_BYTES,
            _ => ASIDE_BYTES,
        };
        of(most as usize, self.slots)
            .max(of(bytes_read, RINGBUF_BYTES))
            .max(of(counted, RINGBUF_BYTES))
            .max(of(aside.len(), aside_bytes))
    }

    fn drain_one(&self, cpu: usize, recording: &mut Recording) -> u64 {
        let ledger = self.ledgers.at(cpu);
        // SAFETY: both are aligned u64 in a mapping that outlives this reference.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*ledger).head),
                AtomicU64::from_ptr(&raw mut (*ledger).tail),
            )
        };
        let (end, mut at) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        let begin = at;
        while at < end {
            let slot = at as usize & (self.slots - 1);
            let count = ((end - at) as usize).min(self.slots - slot).min(BATCH);
            let bytes = self.rings.bytes(cpu * self.slots + slot, count);
            recording.sums.add_events(bytes);
            recording.take(bytes);
            at += count as u64;
            tail.store(at, Ordering::Release);
        }
        end - begin
    }

    /// Stop recording, write the remaining data and return the final report.
    pub fn disarm(&mut self) -> Result<Value, ProbeError> {
        if !self.armed() {
            return Err(ProbeError::Request("not armed".into()));
        }
        if let Some(mut meter) = self.recording.as_mut().and_then(|r| r.meter.take()) {
            meter.end(now_ns(), |number| self.group_of(number), || self.reading());
            self.set_metering(false);
            if let Some(recording) = self.recording.as_mut() {
                recording.meter = Some(meter);
            }
        }
        self.set_armed(0);
        // A program that read the flag earlier may still be running; none takes longer than this.
        std::thread::sleep(Duration::from_millis(2));
        if self.mode == Mode::Trace {
            self.survey(false)?;
        }
        self.drain();
        let mut recording = self.recording.take().expect("armed, as just checked");
        let streams = self.write_streams(&mut recording);
        self.write_counters(&mut recording);
        self.write_unannounced(&mut recording)?;
        self.write_operations(&mut recording)?;
        let in_flight = self.in_flight();
        let now = self.balance();
        let per_cpu = (now.iter().zip(&recording.start)).map(|(n, b)| n.with(b, u64::wrapping_sub));
        let ledger = per_cpu.fold(Ledger::default(), |sum, one| {
            sum.with(&one, u64::wrapping_add)
        });
        let total = ledger.total();
        let unspooled = recording.unspooled();
        let run_time: Vec<Value> = (self.run_times().iter())
            .zip(&recording.run_time)
            .zip(&self.loaded.programs)
            .map(|((now, before), name)| {
                json!({"program": name, "run_time_ns": now.0 - before.0, "runs": now.1 - before.1})
            })
            .collect();
        let cgroups: HashMap<String, u64> = self.cgroup_slots(recording.cgroup_id);
        Ok(json!({
            "mode": self.mode.name(),
            "seen": total.seen,
            "kept": total.kept.saturating_sub(unspooled),
            "filtered": total.filtered,
            "lost": total.lost() + unspooled,
            "lost_unspooled": unspooled,
            "spool_failure": recording.spool_failure(),
            "lost_intervals": recording.gaps.report(),
            "per_probe": per_source(&ledger),
            "compat_calls": ledger.compat,
            "nameless_files": ledger.nameless,
            "marks_lost": self.marks_lost(),
            "presences_lost": self.presences_lost().wrapping_sub(recording.presences_lost),
            "overflowed": ledger.overflowed,
            "spooled": recording.written,
            "in_flight": in_flight,
            "streams": streams,
            "notebooks": self.notebooks_used(),
            "hot": recording.chooser.as_ref().map(Chooser::report),
            "cpu_ns": process_cpu_ns().saturating_sub(recording.start_cpu_ns),
            "recorded_ns": u64::try_from(recording.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            "hooks": report(&self.loaded.chosen, &self.loaded.findings),
            "ring_bytes": self.slots * self.cpus * std::mem::size_of::<Event>(),
            "cgroups": cgroups,
            "bpf": run_time,
            "metering": recording.meter.as_ref().map(Meter::report),
        }))
    }

    /// Counts so far, without a stop. With `top`, also bytes and the `top` files with most time or calls.
    ///
    /// In mode pattern, the latest epochs of these files are written to `sample`, in the form of the spool.
    pub fn status(&self, top: usize, sample: Option<&Path>) -> Result<Value, ProbeError> {
        let Some(recording) = &self.recording else {
            return Ok(json!({"armed": false}));
        };
        let total = (self.balance().iter().zip(&recording.start))
            .map(|(now, before)| now.with(before, u64::wrapping_sub).total())
            .fold(Source::default(), |sum, one| {
                sum.with(&one, u64::wrapping_add)
            });
        let mut report = json!({
            "armed": true, "seen": total.seen, "kept": total.kept,
            "filtered": total.filtered, "lost": total.lost(), "spooled": recording.written,
            "processes": self.members.count(),
            "cpu_ns": process_cpu_ns().saturating_sub(recording.start_cpu_ns),
        });
        if top == 0 {
            return Ok(report);
        }
        let mut more = match self.mode {
            Mode::Count => live::of_counters(self.counts(), top),
            Mode::Trace | Mode::Empty => recording.sums.report(&[], top),
            Mode::Pattern => {
                let under_way = (0..self.streams_so_far()).map(|i| self.streams.read(i));
                let under_way: Vec<Stream> = under_way.collect();
                let more = recording.sums.report(&under_way, top);
                if let Some(path) = sample {
                    let listed = live::files_of(&more);
                    let mut bytes = recording.sums.latest_of(&listed);
                    let own = |s: &&Stream| {
                        listed.contains(&s.file_id) && s.requests > 0 && !s.is_joint()
                    };
                    for stream in under_way.iter().filter(own).take(live::LATEST) {
                        bytes.extend(self.with_samples(stream));
                    }
                    let name = path.display().to_string();
                    std::fs::write(path, bytes).map_err(ProbeError::io(name))?;
                }
                more
            }
        };
        for key in ["bytes", "top"] {
            report[key] = more[key].take();
        }
        Ok(report)
    }
}

/// Way in use for each feature of a mode on this host, determined by loading and attaching temporarily.
pub fn survey(mode: Mode, limits: &Limits) -> Result<Value, ProbeError> {
    let cpus = libbpf_rs::num_possible_cpus()?.max(1);
    let needs = Needs {
        mode,
        entries: mode != Mode::Count,
        interruptible: false,
    };
    let loaded = load(needs, limits, |open| prepare(open, mode, cpus, 1, 1))?;
    Ok(report(&loaded.chosen, &loaded.findings))
}

/// Counts by source, of sources with operations; calls are always included.
fn per_source(ledger: &Ledger) -> Value {
    let rows = SOURCES.iter().zip(&ledger.sources);
    let reported = rows.filter(|(name, counts)| counts.seen > 0 || **name == "calls");
    let row = |counts: &Source| {
        json!({
            "seen": counts.seen,
            "kept": counts.kept,
            "filtered": counts.filtered,
            "lost": counts.lost(),
            "lost_ring_full": counts.lost_ring,
            "lost_planted": counts.lost_planted,
            "lost_unresolved": counts.lost_unresolved,
            "lost_no_memory": counts.lost_storage,
        })
    };
    Value::Object(
        reported
            .map(|(name, counts)| ((*name).to_owned(), row(counts)))
            .collect(),
    )
}
