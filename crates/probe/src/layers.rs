//! Tracer of the layers below system calls: the programs of `layers.bpf.c`, drained into a spool of [`Record`]s, and
//! the process that serves them.
//!
//! Every record that the programs create is counted: `seen = kept + lost`. Records that do not fit on the disk of the
//! spool are lost too. The bytes of all requests of all devices are counted separately, so that the records can be
//! compared with the counters of the devices.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

use libbpf_rs::btf::types::Typedef;
use libbpf_rs::btf::Btf;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, RingBuffer, RingBufferBuilder};
use penstock_daemon::clock::{now_ns, process_cpu_ns};
use penstock_daemon::control::reply;
use penstock_daemon::desk::Desk;
use penstock_daemon::process::{self, Owner};
use serde::Deserialize;
use serde_json::{json, Map, Value};

use crate::meter::{Meter, Reading, GROUPS};
use crate::program::{recursion_misses, run_time};
use crate::scope::level_of;
use crate::sink::Sink;
use crate::ProbeError;

#[allow(clippy::all, dead_code, missing_docs, unused)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/layers.skel.rs"));
}
use skeleton::{LayersSkel, LayersSkelBuilder};

/// A record of the spool, with the layout of `struct layer_record` in layers.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Record {
    /// Start, CLOCK_MONOTONIC.
    pub t_ns: u64,
    /// Inode number of the file.
    pub inode: u64,
    /// Offset in the file.
    pub offset_bytes: u64,
    /// Length of the range in the file.
    pub size_bytes: u64,
    /// Offset at which the direct call began.
    pub base_bytes: u64,
    /// Position on the device, in units of 512 bytes.
    pub sector: u64,
    /// Time from the start of the request to its issue.
    pub queue_ns: u64,
    /// Time from its issue to its completion.
    pub device_ns: u64,
    /// Control group of the thread that began it.
    pub cgroup_id: u64,
    /// Device number of the file system.
    pub device: u32,
    /// Generation of the inode.
    pub generation: u32,
    /// The block device.
    pub disk: u32,
    /// Thread that began the request.
    pub tid: u32,
    /// Process of that thread.
    pub pid: u32,
    /// 1 request, 2 pages added, 3 pages dirtied.
    pub kind: u8,
    /// 0 read, 1 write.
    pub op: u8,
    /// Source of the file's identity: 0 none, 1 page cache, 2 direct call, 3 metadata of the device.
    pub how: u8,
    /// 1 if the request failed.
    pub failed: u8,
    /// 1 if a traced thread began it.
    pub scoped: u8,
    /// Number of the part within its request.
    pub part: u8,
    pad: [u8; 6],
}

/// Programs with their hooks; whether they are required; and what the results lack without them.
const PROGRAMS: &[(&str, &str, bool, &str)] = &[
    (
        "layer_added",
        "mm_filemap_add_to_page_cache",
        false,
        "page-cache misses",
    ),
    (
        "layer_dirtied",
        "writeback_dirty_folio",
        false,
        "who dirtied what was written back",
    ),
    (
        "layer_direct",
        "iomap_dio_rw_begin",
        false,
        "the file of direct requests",
    ),
    ("layer_direct_ended", "iomap_dio_complete", false, ""),
    ("layer_direct_queued", "iomap_dio_rw_queued", false, ""),
    (
        "layer_part",
        "block_bio_queue",
        false,
        "the file of direct requests",
    ),
    ("layer_part_done", "block_bio_complete", false, ""),
    (
        "layer_request",
        "block_io_start",
        false,
        "time in the queue, and who began a request",
    ),
    ("layer_merged", "block_rq_merge", false, ""),
    ("layer_issued", "block_rq_issue", true, "requests"),
    ("layer_completed", "block_rq_complete", true, "requests"),
];

/// Position of `scoped` in `struct in_flight` (layers.bpf.c).
const SCOPED_AT: usize = 32;

/// Loaded programs and their reader.
pub struct Layers {
    records: RingBuffer<'static>,
    received: Receiver<Vec<u8>>,
    skeleton: LayersSkel<'static>,
    _links: Vec<Link>,
    missing: Map<String, Value>,
    recording: Option<Recording>,
}

struct Recording {
    spool: Sink,
    written: u64,
    before: [u64; 5],
    runs: Vec<(u64, u64)>,
    meter: Meter,
    misses: u64,
    cpu_ns: u64,
    started: Instant,
}

impl Layers {
    /// Load and attach the programs that this kernel supports. Those for requests are required; others may be missing.
    pub fn load() -> Result<Self, ProbeError> {
        let kernel = Btf::from_vmlinux().map_err(ProbeError::Load)?;
        // Never freed: the generated types borrow from it.
        let place: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = LayersSkelBuilder::default()
            .open(place)
            .map_err(ProbeError::Load)?;
        let mut missing = Map::new();
        let mut available = Vec::new();
        for &(program, hook, required, without) in PROGRAMS {
            let btf_type = kernel.type_by_name::<Typedef<'_>>(&format!("btf_trace_{hook}"));
            if btf_type.is_some() {
                available.push(program);
            } else if required {
                return Err(ProbeError::Request(format!("this kernel has no {hook}")));
            } else {
                missing.insert(hook.into(), json!(without));
            }
        }
        for mut program in open.open_object_mut().progs_mut() {
            let enabled = program
                .name()
                .to_str()
                .is_some_and(|n| available.contains(&n));
            program.set_autoload(enabled);
        }
        let mut skeleton = open.load().map_err(ProbeError::Load)?;
        if let Some(bss) = skeleton.maps.bss_data.as_deref_mut() {
            bss.layers.begins_at_issue = u32::from(!available.contains(&"layer_request"));
        }
        let mut links = Vec::new();
        for program in skeleton.object().progs_mut() {
            if program
                .name()
                .to_str()
                .is_some_and(|n| available.contains(&n))
            {
                links.push(program.attach().map_err(ProbeError::Load)?);
            }
        }
        let (send, received) = channel();
        let mut builder = RingBufferBuilder::new();
        builder.add(&skeleton.maps.layer_records, move |bytes: &[u8]| {
            i32::from(send.send(bytes.to_vec()).is_err())
        })?;
        let records = builder.build()?;
        Ok(Self {
            records,
            received,
            skeleton,
            _links: links,
            missing,
            recording: None,
        })
    }

    /// True during a recording.
    pub fn armed(&self) -> bool {
        self.recording.is_some()
    }

    /// Start recording for a control group and its descendants; records go to `spool`.
    pub fn arm(&mut self, cgroup_id: u64, spool: &Path, drop_every: u32) -> Result<(), ProbeError> {
        if self.armed() {
            return Err(ProbeError::Request("already armed: disarm first".into()));
        }
        let level = level_of(cgroup_id)?;
        let sink = Sink::create(spool)?;
        let maps = &self.skeleton.maps;
        let forgotten: [&dyn MapCore; 5] = [
            &maps.requests,
            &maps.direct_parts,
            &maps.direct_calls,
            &maps.files_of_interest,
            &maps.device_counts,
        ];
        for map in forgotten {
            for key in map.keys().collect::<Vec<_>>() {
                let _ = map.delete(&key);
            }
        }
        let _ = self.records.consume();
        while self.received.try_recv().is_ok() {}
        let recording = Recording {
            spool: sink,
            written: 0,
            before: self.counts(),
            runs: self.run_times().into_iter().map(|(_, t)| t).collect(),
            meter: Meter::new(now_ns(), || self.reading()),
            misses: self.misses(),
            cpu_ns: process_cpu_ns(),
            started: Instant::now(),
        };
        self.recording = Some(recording);
        let control = self.control()?;
        control.target_id = cgroup_id;
        control.target_level = level;
        control.drop_every = drop_every;
        // SAFETY: a mapping owned by this process; volatile because the programs read it at any time.
        unsafe { std::ptr::write_volatile(&mut control.armed, 1) };
        Ok(())
    }

    fn control(&mut self) -> Result<&mut skeleton::types::layer_control, ProbeError> {
        let bss = self.skeleton.maps.bss_data.as_deref_mut();
        bss.map(|bss| &mut bss.layers)
            .ok_or_else(|| ProbeError::Request("the programs lack their control block".into()))
    }

    fn counts(&self) -> [u64; 5] {
        self.skeleton.maps.bss_data.as_deref().map_or([0; 5], |b| {
            let c = &b.layers;
            [c.seen, c.kept, c.lost, c.lost_planted, c.unfinished]
        })
    }

    /// Reading for the meter. No program hangs on system calls, and a record counts as a run that the target caused.
    fn reading(&self) -> Reading {
        Reading {
            programs: self.run_times().into_iter().map(|(_, time)| time).collect(),
            own: self.own_runs(),
        }
    }

    fn own_runs(&self) -> [u64; GROUPS] {
        [0, self.counts()[0]]
    }

    /// Read the records from the ring.
    pub fn drain(&mut self) {
        if let Some(mut recording) = self.recording.take() {
            let now = now_ns();
            if now >= recording.meter.due_ns() {
                let own = self.own_runs();
                recording.meter.look(now, own, |_| 1, || self.reading());
            }
            self.recording = Some(recording);
        }
        let Some(recording) = self.recording.as_mut() else {
            return;
        };
        let _ = self.records.consume();
        let (mut batch, mut records) = (Vec::new(), 0);
        while let Ok(bytes) = self.received.try_recv() {
            records += 1;
            batch.extend_from_slice(&bytes);
        }
        recording.written += records;
        recording.spool.put(&batch, records);
    }

    /// Stop recording and return the final report: counts, bytes of each device, cost.
    pub fn disarm(&mut self) -> Result<Value, ProbeError> {
        if !self.armed() {
            return Err(ProbeError::Request("not armed".into()));
        }
        // SAFETY: as in `arm`.
        unsafe { std::ptr::write_volatile(&mut self.control()?.armed, 0) };
        std::thread::sleep(Duration::from_millis(2));
        self.drain();
        let mut recording = self.recording.take().expect("armed, as just checked");
        (recording.meter).end(now_ns(), |_| 1, || self.reading());
        let unspooled = recording.spool.dropped();
        let now = self.counts();
        let count = |n: usize| now[n] - recording.before[n];
        let missed = self.misses() - recording.misses;
        let programs: Vec<Value> = (self.run_times().iter())
            .zip(&recording.runs)
            .map(|((name, t), before)| {
                json!({"program": name, "run_time_ns": t.0 - before.0, "runs": t.1 - before.1})
            })
            .collect();
        Ok(json!({
            "seen": count(0) + missed,
            "kept": count(1).saturating_sub(unspooled),
            "lost": count(2) + count(3) + missed + unspooled,
            "lost_nested": missed,
            "lost_ring_full": count(2), "lost_planted": count(3),
            "lost_unspooled": unspooled,
            "unfinished": count(4) + self.in_flight()?,
            "spool_failure": recording.spool.failure(),
            "spooled": recording.written - unspooled,
            "devices": self.devices()?,
            "missing": self.missing,
            "bpf": programs,
            "metering": recording.meter.report(),
            "cpu_ns": process_cpu_ns().saturating_sub(recording.cpu_ns),
            "recorded_ns": u64::try_from(recording.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }))
    }

    /// Requests that a traced thread began and that no program has seen complete.
    fn in_flight(&self) -> Result<u64, ProbeError> {
        let map = &self.skeleton.maps.requests;
        let mut scoped = 0;
        for key in map.keys() {
            let Some(value) = map.lookup(&key, MapFlags::ANY)? else {
                continue;
            };
            let field = value.get(SCOPED_AT..SCOPED_AT + 4).unwrap_or_default();
            scoped += u64::from(field.iter().any(|&byte| byte != 0));
        }
        Ok(scoped)
    }

    /// Requests and bytes of each device and operation since arming.
    fn devices(&self) -> Result<Vec<Value>, ProbeError> {
        let map = &self.skeleton.maps.device_counts;
        let mut rows = Vec::new();
        for key in map.keys() {
            let Some(value) = map.lookup(&key, MapFlags::ANY)? else {
                continue;
            };
            let short = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap_or_default());
            let long = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default());
            let disk = short(&key[..4]);
            rows.push(json!({
                "major": disk >> 20, "minor": disk & 0xf_ffff, "op": short(&key[4..8]),
                "requests": long(&value[..8]), "bytes": long(&value[8..16]),
            }));
        }
        Ok(rows)
    }

    /// Events that the kernel skipped because they interrupted the same program on that CPU.
    fn misses(&self) -> u64 {
        let programs = self.skeleton.object().progs();
        programs
            .filter(|program| program.autoload())
            .map(|program| recursion_misses(program.as_fd()))
            .sum()
    }

    fn run_times(&self) -> Vec<(String, (u64, u64))> {
        let programs = self.skeleton.object().progs();
        programs
            .filter(|program| program.autoload())
            .map(|p| (p.name().to_string_lossy().into_owned(), run_time(p.as_fd())))
            .collect()
    }
}

/// Configuration of the daemon.
#[derive(Debug, Deserialize)]
struct Config {
    socket: PathBuf,
    owner_pid: i32,
    #[serde(default)]
    outlive_owner: bool,
    #[serde(default)]
    drop_every: u32,
    ready_fd: Option<i32>,
}

/// Serve `arm`, `disarm`, `ping` and `shutdown` until shutdown, or until the owner ends.
pub fn serve(config_json: &str) -> Result<(), ProbeError> {
    let config: Config = serde_json::from_str(config_json)
        .map_err(|error| ProbeError::Request(format!("configuration: {error}")))?;
    let mut layers = Layers::load()?;
    let owner = (!config.outlive_owner).then(|| Owner::new(config.owner_pid));
    let mut desk = Desk::open(&config.socket, owner)?;
    process::say_ready(config.ready_fd);
    loop {
        desk.wait(if layers.armed() { 20 } else { 500 });
        layers.drain();
        let over = desk.serve(|line| {
            let request: Value = serde_json::from_slice(line).unwrap_or_default();
            let last = request["cmd"] == "shutdown";
            (answer(&mut layers, &config, &request), last)
        });
        if over {
            return Ok(());
        }
    }
}

fn answer(layers: &mut Layers, config: &Config, request: &Value) -> Value {
    let done = match request["cmd"].as_str().unwrap_or_default() {
        "ping" | "shutdown" => Ok(json!({})),
        "arm" => {
            let number = request["cgroup_id"].as_u64().unwrap_or(0);
            let spool = request["spool"].as_str().unwrap_or_default();
            layers
                .arm(number, Path::new(spool), config.drop_every)
                .map(|()| json!({}))
        }
        "disarm" => layers.disarm(),
        other => Err(ProbeError::Request(format!("no command {other}"))),
    };
    reply(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_size_of_the_kernel_side() {
        // layers.bpf.c asserts the same size
        assert_eq!(std::mem::size_of::<Record>(), 104);
    }
}
