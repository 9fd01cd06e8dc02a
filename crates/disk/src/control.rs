//! The server: control socket, disks, shutdown.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use penstock_daemon::clock::now_ns;
use penstock_daemon::process::{self, Owner};
use penstock_daemon::{control, private, Error};
use serde_json::{json, Value};

use crate::calibration;
use crate::change::{Applied, Cause};
use crate::config::{Add, Command, Compensation, ServerConfig, Transport};
use crate::disk::Disk;
use crate::patch::{DiskPatch, PowerCut};
use crate::places::Places;
use crate::schedule::Scheduler;
use crate::serving::{MountOptions, Serving};
use crate::timer::Timers;
use crate::witness;

/// linux/prctl.h, since Linux 5.6.
const PR_SET_IO_FLUSHER: i32 = 57;
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// Validity of a measured path overhead for other disks of the server.
const CALIBRATION_LASTS_NS: u64 = 5_000_000_000;

struct Mounted {
    disk: Arc<Disk>,
    serving: Arc<Mutex<Serving>>,
}

/// Key of a calibration: real-time readers, transport, service times of reads and writes.
type Alike = (bool, Transport, u64, u64);

struct Server {
    config: ServerConfig,
    timers: Timers,
    disks: Mutex<HashMap<String, Mounted>>,
    places: Mutex<HashMap<String, Places>>,
    schedules: Scheduler,
    /// Time and result of each path overhead measurement.
    calibrations: Mutex<HashMap<Alike, (u64, Compensation)>>,
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serve until a command or signal ends the server; `config_json` is a [`ServerConfig`].
pub fn run(config_json: &str) -> Result<(), Error> {
    let config: ServerConfig = serde_json::from_str(config_json)
        .map_err(|error| Error::Bad(format!("configuration of the disk server: {error}")))?;
    prepare_process();
    private::directory(&config.stats_dir)
        .map_err(|error| Error::host(config.stats_dir.display().to_string(), error))?;
    let listener = control::listen(&config.socket)?;
    let socket = config.socket.clone();
    let owner = config.owner_pid.map(Owner::new);
    let timers = Timers::start(config.timers)
        .map_err(|error| Error::host("starting timer threads", error))?;
    witness::start().map_err(|error| Error::host("starting the witness thread", error))?;
    let server = Arc::new(Server {
        config,
        timers,
        disks: Mutex::default(),
        places: Mutex::default(),
        schedules: Scheduler::default(),
        calibrations: Mutex::default(),
        stop: AtomicBool::new(false),
    });
    let accepting = server.clone();
    thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            for stream in control::incoming(&listener) {
                let server = accepting.clone();
                let _ = thread::Builder::new()
                    .name("control".into())
                    .spawn(move || control::converse(&stream, |line| server.obey(line)));
            }
        })
        .map_err(|error| Error::host("starting the control thread", error))?;
    let scheduling = server.clone();
    thread::Builder::new()
        .name("schedule".into())
        .spawn(move || {
            scheduling.schedules.serve(|disk, planned_ns, patch| {
                let Some(cut) = patch.power_cut() else {
                    disk.patch(&scheduling.timers, planned_ns, patch);
                    return;
                };
                if let Err(error) = scheduling.cut_power(disk, planned_ns, cut, &patch.cause) {
                    disk.note(Applied::failed(
                        planned_ns,
                        &patch.asked,
                        &patch.cause,
                        error.to_string(),
                    ));
                }
            });
        })
        .map_err(|error| Error::host("starting the schedule thread", error))?;
    process::say_ready(server.config.ready_fd);
    server.keep_house(owner);
    server.schedules.stop();
    server.take_all_down();
    let _ = fs::remove_file(socket);
    Ok(())
}

fn prepare_process() {
    // SAFETY: plain system calls on this process; each may fail without harm.
    unsafe {
        // Every reader thread has a buffer of 16 MiB, but uses only 1 MiB. Allocate it from fresh pages,
        // because recycled ones would have to be zeroed.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::prctl(libc::PR_SET_NAME, c"penstock-disk".as_ptr(), 0, 0, 0);
        // Write-back of the backing files must not wait for that of the mounts.
        libc::prctl(PR_SET_IO_FLUSHER, 1u64, 0, 0, 0);
    }
    process::prepare();
}

impl Server {
    fn keep_house(&self, owner: Option<Owner>) {
        let mut checked = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            if process::wait_for_termination(HOUSEKEEPING) {
                return;
            }
            let disks: Vec<_> = lock(&self.disks).values().map(|m| m.disk.clone()).collect();
            for disk in disks {
                disk.housekeeping();
            }
            if !self.config.outlive_owner && checked.elapsed() >= Duration::from_secs(1) {
                checked = Instant::now();
                if owner.is_some_and(|owner| owner.is_gone()) {
                    return;
                }
            }
        }
    }

    fn obey(&self, line: &str) -> Result<Value, Error> {
        let command: Command =
            serde_json::from_str(line).map_err(|error| Error::Bad(format!("command: {error}")))?;
        match command {
            Command::Ping => Ok(json!({"pid": std::process::id()})),
            Command::Add(add) => self.add(*add),
            Command::Set {
                disk_id,
                profile,
                seed,
                slow_by,
            } => {
                self.disk(&disk_id)?.set_profile(*profile, seed, slow_by)?;
                Ok(Value::Null)
            }
            Command::Patch {
                disk_id,
                patch,
                planned_ns,
                cause,
            } => {
                let mut patch = DiskPatch::read(&patch)?;
                patch.cause = cause.unwrap_or(patch.cause);
                let disk = self.disk(&disk_id)?;
                self.apply(&disk, planned_ns.unwrap_or_else(now_ns), &patch)
            }
            Command::Schedule {
                disk_id,
                events,
                replace,
            } => {
                let disk = self.disk(&disk_id)?;
                self.schedules.plan(&disk, &events, replace)?;
                Ok(json!({"planned": events.len(), "t_ns": now_ns()}))
            }
            Command::Mark {
                disk_id,
                phase,
                t_ns,
            } => {
                let disk = disk_id.map(|disk_id| self.disk(&disk_id)).transpose()?;
                let t_ns = t_ns.unwrap_or_else(now_ns);
                let fired = self.schedules.mark(disk.as_ref(), &phase, t_ns);
                Ok(json!({"fired": fired, "t_ns": t_ns}))
            }
            Command::Events { disk_id } => {
                let disk = self.disk(&disk_id)?;
                Ok(json!({
                    "events": disk.events(),
                    "pending": self.schedules.pending(&disk),
                    "active": disk.active(),
                    "settings": disk.settings(),
                    "t_ns": now_ns(),
                }))
            }
            Command::PowerCut {
                disk_id,
                mode,
                seed,
            } => {
                let (disk, cause) = (self.disk(&disk_id)?, Cause::new("request", ""));
                self.cut_power(&disk, now_ns(), PowerCut { mode, seed }, &cause)
            }
            Command::Log { disk_id, path } => {
                self.disk(&disk_id)?.switch_log(path.as_deref())?;
                Ok(Value::Null)
            }
            Command::Exact { disk_id, on } => {
                self.disk(&disk_id)?.exact.store(on, Ordering::Relaxed);
                Ok(Value::Null)
            }
            Command::Path { disk_id } => {
                let disk = self.disk(&disk_id)?;
                Ok(json!(self.way(&disk, disk.reset_ns())?))
            }
            Command::HostWaits { disk_id } => {
                let since_ns = self.disk(&disk_id)?.reset_ns();
                Ok(json!({"host_waits": witness::since(since_ns)}))
            }
            Command::Stats { disk_id } => Ok(self.disk(&disk_id)?.stats()),
            Command::Reset { disk_id } => {
                self.disk(&disk_id)?.reset()?;
                Ok(Value::Null)
            }
            Command::Remove { disk_id, hurry } => {
                if hurry {
                    self.disk(&disk_id)?.hurry();
                }
                self.remove(&disk_id)
            }
            Command::List => {
                let disks: Vec<_> = lock(&self.disks)
                    .values()
                    .map(|mounted| (mounted.disk.clone(), mounted.serving.clone()))
                    .collect();
                let list: Vec<_> = disks
                    .into_iter()
                    .map(|(disk, serving)| {
                        let mut described = disk.describe();
                        let serving = lock(&serving);
                        described["dev"] = json!(serving.device);
                        described["untuned"] = json!(serving.untuned);
                        described
                    })
                    .collect();
                Ok(json!({"disks": list, "waiting": self.timers.waiting(), "t_ns": now_ns()}))
            }
            Command::Shutdown => {
                self.take_all_down();
                self.stop.store(true, Ordering::Release);
                Ok(Value::Null)
            }
        }
    }

    fn disk(&self, disk_id: &str) -> Result<Arc<Disk>, Error> {
        let disks = lock(&self.disks);
        let mounted = disks
            .get(disk_id)
            .ok_or_else(|| Error::Bad(format!("there is no disk {disk_id:?}")))?;
        Ok(mounted.disk.clone())
    }

    fn add(&self, add: Add) -> Result<Value, Error> {
        if add.disk_id.is_empty() || add.disk_id.contains(['/', '\0']) {
            return Err(Error::Bad(format!("{:?} cannot name a disk", add.disk_id)));
        }
        if lock(&self.disks).contains_key(&add.disk_id) {
            return Err(Error::Bad(format!(
                "there is a disk {:?} already",
                add.disk_id
            )));
        }
        let patch = match &add.patch {
            Value::Null => None,
            asked => {
                let mut patch = DiskPatch::read(asked)?;
                patch.cause = Cause::new("begin", "");
                Some(patch)
            }
        };
        self.claim(&add)?;
        let disk_id = add.disk_id.clone();
        let added = self.add_at_its_place(add, patch.as_ref());
        if added.is_err() && !lock(&self.disks).contains_key(&disk_id) {
            lock(&self.places).remove(&disk_id);
        }
        added
    }

    /// Claim the directories of a disk, unless another disk has them.
    fn claim(&self, add: &Add) -> Result<(), Error> {
        let mut places = lock(&self.places);
        if places.contains_key(&add.disk_id) {
            return Err(Error::Bad(format!(
                "a disk {:?} is just being put up or taken down",
                add.disk_id
            )));
        }
        let claimed = Places::claim(&add.mount, &add.backing, places.values())?;
        places.insert(add.disk_id.clone(), claimed);
        Ok(())
    }

    fn add_at_its_place(&self, add: Add, patch: Option<&DiskPatch>) -> Result<Value, Error> {
        let disk = Arc::new(Disk::new(&add, &self.config.stats_dir)?);
        let options = MountOptions {
            readers: self.config.readers,
            readahead_bytes: add.readahead_bytes,
            max_background: add.max_background,
            dirty_bytes: add.dirty_bytes,
            token: add.token.unwrap_or_else(|| self.config.token.clone()),
            shared: add.shared,
            transport: add.transport,
        };
        let serving = Serving::begin(disk.clone(), self.timers.clone(), options)?;
        let device = serving.device;
        let mounted = Mounted {
            disk: disk.clone(),
            serving: Arc::new(Mutex::new(serving)),
        };
        lock(&self.disks).insert(add.disk_id.clone(), mounted);
        let rest = add
            .compensation
            .map_or_else(|| self.way(&disk, 0), Ok)
            .and_then(|compensation| {
                disk.set_compensation(compensation);
                disk.switch_log(add.log.as_deref())?;
                disk.reset()?;
                if let Some(patch) = patch {
                    self.apply(&disk, now_ns(), patch)?;
                }
                Ok(compensation)
            });
        match rest {
            Ok(compensation) => {
                disk.begin_plant();
                Ok(json!({
                    "dev": device,
                    "compensation": compensation,
                    "transport": disk.transport(),
                }))
            }
            Err(error) => {
                let _ = self.remove(&add.disk_id);
                Err(error)
            }
        }
    }

    /// Path overhead of a disk: a recent measurement of a similar disk after `since_ns`, or a new measurement.
    fn way(&self, disk: &Disk, since_ns: u64) -> Result<Compensation, Error> {
        let mut calibrations = lock(&self.calibrations);
        let (first, services) = (disk.goes_first(), calibration::services_ns(disk));
        let alike = (first, disk.transport(), services[0], services[1]);
        let since_ns = since_ns.max(now_ns().saturating_sub(CALIBRATION_LASTS_NS));
        calibrations.retain(|_, (when_ns, _)| now_ns() < *when_ns + CALIBRATION_LASTS_NS);
        match calibrations.get(&alike) {
            Some((when_ns, calibration)) if *when_ns >= since_ns => Ok(*calibration),
            _ => {
                let calibration = calibration::calibrate(disk, services)?;
                calibrations.insert(alike, (now_ns(), calibration));
                Ok(calibration)
            }
        }
    }

    fn remove(&self, disk_id: &str) -> Result<Value, Error> {
        let mounted = lock(&self.disks)
            .remove(disk_id)
            .ok_or_else(|| Error::Bad(format!("there is no disk {disk_id:?}")))?;
        let ended = lock(&mounted.serving).end();
        let lazy = match ended {
            Ok(lazy) => lazy,
            Err(error) => {
                lock(&self.disks).insert(disk_id.to_owned(), mounted);
                return Err(error);
            }
        };
        lock(&self.places).remove(disk_id);
        self.schedules.forget(&mounted.disk);
        let stats = mounted.disk.stats();
        mounted.disk.switch_log(None)?;
        let page: PathBuf = self.config.stats_dir.join(format!("{disk_id}.stats"));
        let _ = fs::remove_file(page);
        Ok(json!({"lazy": lazy, "stats": stats}))
    }

    /// Apply a patch now.
    fn apply(&self, disk: &Arc<Disk>, planned_ns: u64, patch: &DiskPatch) -> Result<Value, Error> {
        if let Some(cut) = patch.power_cut() {
            return self.cut_power(disk, planned_ns, cut, &patch.cause);
        }
        let applied = disk.patch(&self.timers, planned_ns, patch);
        match &applied.error {
            Some(error) => Err(Error::Bad(error.clone())),
            None => Ok(json!(applied)),
        }
    }

    fn cut_power(
        &self,
        disk: &Arc<Disk>,
        planned_ns: u64,
        cut: PowerCut,
        cause: &Cause,
    ) -> Result<Value, Error> {
        let serving = lock(&self.disks)
            .get(&disk.disk_id)
            .map(|mounted| mounted.serving.clone())
            .ok_or_else(|| Error::Bad(format!("there is no disk {:?}", disk.disk_id)))?;
        let cut = lock(&serving).cut_power(planned_ns, cut, cause);
        cut
    }

    fn take_all_down(&self) {
        let names: Vec<_> = lock(&self.disks).keys().cloned().collect();
        for name in names {
            if let Err(error) = self.remove(&name) {
                eprintln!("penstock-disk: taking {name} down: {error}");
            }
        }
    }
}
