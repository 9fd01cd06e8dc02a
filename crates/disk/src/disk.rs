//! One emulated disk: station, counters, log and path overheads.

use std::collections::{HashMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use penstock_daemon::clock::{now_ns, process_cpu_ns};
use penstock_daemon::Error;
use penstock_station::{Op, Patch, Request, Retimed, Station, StorageProfile};

use crate::awake;
use crate::change::Applied;
use crate::clock::{process_wait_ns, HostCpu};
use crate::config::{Add, Compensation, Overhead, Plant, Transport};
use crate::counters::{Counters, StatsPage};
use crate::file_names::FileNames;
use crate::gate::Gate;
use crate::log::{Log, Record};
use crate::owner::{Owner, OwnerId};
use crate::space::Space;
use crate::state::State;
use crate::ticket::{Target, Ticket};
use crate::timer::{Moved, Timers};
use crate::unsynced::LIMIT_BYTES;

/// Maximum number of records in memory when the housekeeping thread is too slow. Further records are lost and
/// counted.
const MOST_PENDING: usize = 4 << 20;

/// Minimum service time from which real-time readers are used: the server can then subtract their longer path
/// overhead.
const LONG_WAY_S: f64 = 60e-6;

/// A disk. Its readers, the timers and the control socket share it.
pub struct Disk {
    /// Name.
    pub disk_id: String,
    /// Number that identifies the disk to the timers.
    pub number: u64,
    /// Mount point.
    pub mount: PathBuf,
    /// Backing directory, whose content the disk shows.
    pub backing: PathBuf,
    /// True if flushes also sync the backing file.
    pub durable: bool,
    /// Fixed service times of reads and writes of the calibration file; 0 outside a calibration.
    pub calibration_service_ns: [AtomicU64; 2],
    /// Lateness of the replies during a calibration.
    pub calibration_lateness_ns: Mutex<Vec<u64>>,
    /// True after the disk was stopped.
    pub gone: AtomicBool,
    /// True if requests come over io_uring.
    pub has_rings: AtomicBool,
    /// True if files opened from now on bypass the page cache.
    pub exact: AtomicBool,
    /// Checks before requests: faults, size, unflushed data, power.
    pub gate: Gate,
    /// Mapping of file owners.
    pub owner: Owner,
    /// Deliberate deviation from the profile.
    pub plant: Plant,
    pub(crate) changing: Mutex<()>,
    pub(crate) events: Mutex<VecDeque<Applied>>,
    any_moved: AtomicBool,
    state: Mutex<State>,
    compensation: RwLock<Compensation>,
    pub(crate) page: StatsPage,
    pub(crate) log: Mutex<Option<Log>>,
    /// Numbers of the disk's files in the request log.
    pub file_names: FileNames,
}

static DISKS_SO_FAR: AtomicU64 = AtomicU64::new(0);
static ARRIVED_SO_FAR: AtomicU64 = AtomicU64::new(0);

/// Number of requests of all disks so far. The threads of the server share it.
pub(crate) fn arrived_so_far() -> u64 {
    ARRIVED_SO_FAR.load(Ordering::Relaxed)
}

fn station(profile: &StorageProfile, seed: u64) -> Result<Station, Error> {
    let mut station = Station::new(profile, seed).map_err(|error| Error::Bad(error.to_string()))?;
    station.remember();
    Ok(station)
}

/// Mapping between the owner of the backing directory and the owner on the mount.
fn owner(backing: &Path, owner_id: Option<OwnerId>) -> Result<Owner, Error> {
    let Some(owner_id) = owner_id else {
        return Ok(Owner::default());
    };
    let meta = std::fs::metadata(backing)
        .map_err(|error| Error::host(backing.display().to_string(), error))?;
    let host = OwnerId {
        uid: meta.uid(),
        gid: meta.gid(),
    };
    Ok(Owner::new(host, owner_id))
}

fn space(backing: &Path, size_bytes: Option<u64>) -> Result<Option<Space>, Error> {
    let Some(size_bytes) = size_bytes else {
        return Ok(None);
    };
    let space = Space::measure(size_bytes, backing)
        .map_err(|error| Error::host(backing.display().to_string(), error))?;
    if space.used_bytes > size_bytes {
        return Err(Error::Bad(format!(
            "the files in {} take {} B, more than the disk's size of {size_bytes} B",
            backing.display(),
            space.used_bytes
        )));
    }
    Ok(Some(space))
}

fn op_code(op: Op) -> u8 {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
    }
}

impl Disk {
    /// Create a disk with that profile, not mounted yet.
    pub fn new(add: &Add, stats_dir: &Path) -> Result<Self, Error> {
        let (profile, seed) = (add.profile.clone(), add.seed);
        let now = now_ns();
        let state = State {
            station: station(&profile, seed)?,
            profile,
            seed,
            epoch_ns: now,
            slowness: 1.0 + add.plant.unwrap_or_default().slow_by,
            counters: Counters::default(),
            changed_ns: now,
            pending: Vec::new(),
            logging: false,
            lost_records: 0,
            reset_ns: now,
            cpu_at_reset_ns: process_cpu_ns(),
            host_at_reset: HostCpu::now(),
            wait_at_reset_ns: process_wait_ns(),
            arrived_at_reset: arrived_so_far(),
            last_arrival_ns: 0,
            moved: HashMap::new(),
            hurried: false,
        };
        let gate = Gate::default();
        gate.set_space(space(&add.backing, add.size_bytes)?);
        if add.volatile {
            gate.set_volatile(Some(LIMIT_BYTES));
        }
        let page = StatsPage::create(&stats_dir.join(format!("{}.stats", add.disk_id)))?;
        page.publish(&state.counters, now);
        Ok(Disk {
            disk_id: add.disk_id.clone(),
            number: DISKS_SO_FAR.fetch_add(1, Ordering::Relaxed),
            mount: add.mount.clone(),
            backing: add.backing.clone(),
            durable: add.durable,
            calibration_service_ns: Default::default(),
            calibration_lateness_ns: Mutex::default(),
            gone: AtomicBool::new(false),
            has_rings: AtomicBool::new(false),
            exact: AtomicBool::new(false),
            gate,
            owner: owner(&add.backing, add.owner)?,
            plant: add.plant.unwrap_or_default(),
            changing: Mutex::default(),
            events: Mutex::default(),
            any_moved: AtomicBool::new(false),
            state: Mutex::new(state),
            compensation: RwLock::new(Compensation::default()),
            page,
            log: Mutex::new(None),
            file_names: FileNames::default(),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Path overheads subtracted from arrivals.
    pub fn compensation(&self) -> Compensation {
        *self
            .compensation
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Set the path overheads.
    pub fn set_compensation(&self, compensation: Compensation) {
        *self
            .compensation
            .write()
            .unwrap_or_else(PoisonError::into_inner) = compensation;
    }

    /// Register a request that arrived at `arrival_ns` through the kernel. Return a ticket with the due time of
    /// its reply.
    pub fn arrive(&self, op: Op, target: Target, arrival_ns: u64) -> Ticket {
        let compensation = self.compensation();
        let compensation_ns = match op {
            Op::Read => compensation.read.of(target.size),
            Op::Write => compensation.write.of(target.size),
            Op::Flush => Overhead {
                per_byte_ns: 0.0,
                ..compensation.write
            }
            .of(0),
        };
        self.arrive_as_of(
            op,
            target,
            arrival_ns,
            arrival_ns.saturating_sub(compensation_ns),
        )
    }

    /// Same for a request that arrived at `arrival_ns` and would have reached the device at `began_ns`.
    pub fn arrive_as_of(&self, op: Op, target: Target, arrival_ns: u64, began_ns: u64) -> Ticket {
        let compensation_ns = arrival_ns.saturating_sub(began_ns);
        let device_offset = target.device_base | (target.offset & ((1 << 40) - 1));
        let mut state = self.state();
        let arrival_ns = state.next_arrival_ns(arrival_ns);
        let began_ns = arrival_ns.saturating_sub(compensation_ns);
        // Busy from this time on. Otherwise a disk with back-to-back requests would seem idle during the path
        // overhead.
        state.count_in_flight(began_ns, 1);
        let station_ns = state.in_station_time(began_ns);
        let request = Request {
            op,
            offset: device_offset,
            size: u64::from(target.size),
        };
        ARRIVED_SO_FAR.fetch_add(1, Ordering::Relaxed);
        awake::stay();
        let served = state.station.arrive(station_ns, request);
        let due_ns = if state.hurried {
            arrival_ns
        } else {
            state.in_clock_time(served.due_ns)
        };
        self.page.publish(&state.counters, arrival_ns);
        Ticket {
            due_ns,
            asked_ns: served.due_ns.saturating_sub(station_ns),
            id: served.id,
            record: Record {
                t_ns: arrival_ns,
                due_ns,
                done_ns: 0,
                service_ns: served.service_ns,
                wait_ns: served.wait_ns,
                offset_bytes: target.offset,
                device_offset_bytes: device_offset,
                size_bytes: target.size,
                file_id: target.file_id,
                visit: served.visit,
                compensation_ns: compensation_ns as u32,
                pid: target.pid,
                op: op_code(op),
                sequential: served.sequential,
                error: 0,
            },
        }
    }

    /// Register the reply of a request, sent at `done_ns`.
    pub fn complete(&self, ticket: Ticket, done_ns: u64) {
        let Ticket {
            due_ns,
            asked_ns,
            mut record,
            ..
        } = ticket;
        record.done_ns = done_ns;
        let lateness_ns = done_ns.saturating_sub(due_ns);
        let took_ns = done_ns.saturating_sub(record.t_ns);
        let mut state = self.state();
        state.count_in_flight(done_ns, -1);
        let counters = &mut state.counters;
        match record.op {
            0 => {
                counters.reads += 1;
                counters.read_bytes += u64::from(record.size_bytes);
                counters.read_service_ns += record.service_ns;
                counters.read_time_ns += took_ns;
            }
            1 => {
                counters.writes += 1;
                counters.written_bytes += u64::from(record.size_bytes);
                counters.write_service_ns += record.service_ns;
                counters.write_time_ns += took_ns;
            }
            _ => {
                counters.flushes += 1;
                counters.flush_service_ns += record.service_ns;
                counters.flush_time_ns += took_ns;
            }
        }
        counters.count_lateness(lateness_ns, record.service_ns);
        counters.asked_time_ns += asked_ns;
        counters.delivered_time_ns += took_ns + u64::from(record.compensation_ns);
        counters.errors += u64::from(record.error != 0);
        self.page.publish(&state.counters, done_ns);
        if state.logging {
            if state.pending.len() < MOST_PENDING {
                state.pending.push(record);
            } else {
                state.lost_records += 1;
            }
        }
    }

    /// Refuse a request that does not reach the device, and count it.
    pub fn admit(&self, op: Op) -> std::io::Result<()> {
        if self.gate.up() == 0 {
            return Ok(());
        }
        let admitted = self.gate.admit(op);
        if admitted.is_err() {
            let mut state = self.state();
            state.counters.errors += 1;
            self.page.publish(&state.counters, now_ns());
        }
        admitted
    }

    /// Move the due times of waiting requests. The caller holds the lock of the state.
    pub(crate) fn move_answers(&self, state: &mut State, timers: &Timers, moved: Vec<Retimed>) {
        let mut all: HashMap<u64, Moved> = moved
            .into_iter()
            .map(|Retimed { served }| {
                let due_ns = state.in_clock_time(served.due_ns);
                (served.id, Moved { due_ns, served })
            })
            .collect();
        timers.move_all(self.number, &mut all);
        self.any_moved.store(!all.is_empty(), Ordering::Release);
        state.moved = all;
    }

    /// Move a request that reached the timers only after its due time had been moved.
    pub(crate) fn move_late(&self, timers: &Timers, id: u64) {
        if !self.any_moved.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state();
        if let Some(moved) = state.moved.remove(&id) {
            timers.move_all(self.number, &mut HashMap::from([(id, moved)]));
        }
    }

    /// Record the size of a read that returned fewer bytes than requested (end of file).
    pub fn shorten(ticket: &mut Ticket, size_bytes: u32) {
        ticket.record.size_bytes = size_bytes;
    }

    /// Mean service time of a random read and of a random write of 4 KiB, in seconds.
    pub fn mean_service_s(&self) -> [f64; 2] {
        let profile = &self.state().profile;
        [Op::Read, Op::Write].map(|op| profile.mean_service_s(op, false, 4096))
    }

    /// Transport of the disk's requests.
    pub fn transport(&self) -> Transport {
        if self.has_rings.load(Ordering::Relaxed) {
            Transport::IoUring
        } else {
            Transport::Device
        }
    }

    /// True if the readers run before all ordinary threads, so that a request never waits for a processor.
    ///
    /// Such readers wake on a different processor from the program's. This adds 30 µs of path overhead on an
    /// idle host. If every request takes longer than that, the overhead is subtracted. Readers of a faster disk
    /// run as ordinary threads.
    pub fn goes_first(&self) -> bool {
        let profile = &self.state().profile;
        let least_s = [Op::Read, Op::Write]
            .into_iter()
            .flat_map(|op| [true, false].map(|seq| profile.mean_service_s(op, seq, 4096)))
            .fold(f64::INFINITY, f64::min);
        least_s.max(profile.interface_s(4096)) >= LONG_WAY_S
    }

    /// Change the profile from now on. Queued requests stay queued.
    pub fn set_profile(
        &self,
        profile: StorageProfile,
        seed: u64,
        slow_by: Option<f64>,
    ) -> Result<(), Error> {
        let mut fresh = station(&profile, seed)?;
        let mut state = self.state();
        let limits = Patch {
            profile: None,
            ..state.station.changed().clone()
        };
        fresh
            .change(state.in_station_time(now_ns()), &limits)
            .map_err(|error| Error::Bad(error.to_string()))?;
        state.station = fresh;
        state.profile = profile;
        state.seed = seed;
        state.epoch_ns = now_ns();
        if let Some(slow_by) = slow_by {
            state.slowness = 1.0 + slow_by;
        }
        Ok(())
    }

    /// Time at which the counters were reset (CLOCK_MONOTONIC).
    pub fn reset_ns(&self) -> u64 {
        self.state().reset_ns
    }

    /// Start the deliberate deviation outside the request path: a thread that regularly holds the lock, until the
    /// disk is gone.
    pub fn begin_plant(self: &Arc<Self>) {
        if self.plant.lock_held_s <= 0.0 {
            return;
        }
        let disk = self.clone();
        std::thread::spawn(move || {
            while !disk.gone.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_secs_f64(Plant::LOCK_EVERY_S));
                let _held = disk.state();
                std::thread::sleep(Duration::from_secs_f64(disk.plant.lock_held_s));
            }
        });
    }

    /// Answer at once from now on, because the disk is being stopped.
    pub fn hurry(&self) {
        self.state().hurried = true;
    }

    /// Reset the counters, the random draws and the positions.
    pub fn reset(&self) -> Result<(), Error> {
        let mut state = self.state();
        let now = now_ns();
        state.station.reset();
        state.epoch_ns = now;
        let in_flight = state.counters.in_flight;
        state.counters = Counters {
            in_flight,
            ..Counters::default()
        };
        state.changed_ns = now;
        state.reset_ns = now;
        state.cpu_at_reset_ns = process_cpu_ns();
        state.host_at_reset = HostCpu::now();
        state.wait_at_reset_ns = process_wait_ns();
        state.arrived_at_reset = arrived_so_far();
        state.lost_records = 0;
        self.page.publish(&state.counters, now);
        self.page.publish_bins(&state.counters);
        Ok(())
    }
}

/// Disks by name.
pub type Disks = HashMap<String, Arc<Disk>>;
