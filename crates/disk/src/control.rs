//! The server: its control socket, its disks, its end.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::FromRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{Config, Session, SessionACL};
use serde_json::{json, Value};

use crate::calibration;
use crate::clock::now_ns;
use crate::config::{Add, Command, Compensation, ServerConfig};
use crate::disk::Disk;
use crate::error::Error;
use crate::filesystem::Tree;
use crate::mount;
use crate::timer::Timers;

/// linux/prctl.h, since Linux 5.6.
const PR_SET_IO_FLUSHER: i32 = 57;
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// A measured path overhead serves other disks of the server for so long.
const CALIBRATION_LASTS_NS: u64 = 30_000_000_000;

struct Mounted {
    disk: Arc<Disk>,
    device: [u32; 2],
    untuned: Vec<String>,
    session: Option<JoinHandle<()>>,
}

struct Server {
    config: ServerConfig,
    timers: Timers,
    disks: Mutex<HashMap<String, Mounted>>,
    calibration: Mutex<Option<(u64, Compensation)>>,
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until told to stop; `config_json` is a [`ServerConfig`].
pub fn run(config_json: &str) -> Result<(), Error> {
    let config: ServerConfig = serde_json::from_str(config_json)
        .map_err(|error| Error::Bad(format!("configuration of the disk server: {error}")))?;
    prepare_process();
    fs::create_dir_all(&config.stats_dir)
        .map_err(|error| Error::host(config.stats_dir.display().to_string(), error))?;
    let _ = fs::remove_file(&config.socket);
    let listener = UnixListener::bind(&config.socket).map_err(|error| {
        Error::host(format!("control socket {}", config.socket.display()), error)
    })?;
    let socket = config.socket.clone();
    let owner = config.owner_pid.map(|pid| (pid, start_time(pid)));
    let timers = Timers::start(config.timers)
        .map_err(|error| Error::host("starting timer threads", error))?;
    let server = Arc::new(Server {
        config,
        timers,
        disks: Mutex::default(),
        calibration: Mutex::default(),
        stop: AtomicBool::new(false),
    });
    let accepting = server.clone();
    thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = accepting.clone();
                let _ = thread::Builder::new()
                    .name("control".into())
                    .spawn(move || server.converse(&stream));
            }
        })
        .map_err(|error| Error::host("starting the control thread", error))?;
    if let Some(fd) = server.config.ready_fd {
        // SAFETY: the descriptor was passed to this process to be written once and closed.
        let mut ready = unsafe { fs::File::from_raw_fd(fd) };
        let _ = ready.write_all(b"ready\n");
    }
    server.keep_house(owner);
    server.take_all_down();
    let _ = fs::remove_file(socket);
    Ok(())
}

/// Start time of a process in clock ticks, by which it is told from a later one of its number.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

fn prepare_process() {
    // SAFETY: plain system calls on this process; each may fail without harm.
    unsafe {
        libc::umask(0);
        // Every reader thread has a buffer of 16 MiB of which it touches 1: it must come from fresh
        // pages, not from recycled ones that have to be zeroed.
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::prctl(libc::PR_SET_NAME, c"penstock-disk".as_ptr(), 0, 0, 0);
        // Write-back of the backing files must not wait for write-back of the mounts.
        libc::prctl(PR_SET_IO_FLUSHER, 1u64, 0, 0, 0);
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut signals, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
    }
    // Allowed to the privileged only.
    let _ = fs::write("/proc/self/oom_score_adj", "-900");
}

/// Waits for a signal to end, at most `wait`.
fn told_to_end(wait: Duration) -> bool {
    // SAFETY: a set of blocked signals and a valid timespec.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&mut signals, signal);
        }
        let wait = libc::timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        libc::sigtimedwait(&signals, std::ptr::null_mut(), &wait) > 0
    }
}

impl Server {
    fn keep_house(&self, owner: Option<(i32, Option<u64>)>) {
        let mut checked = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            if told_to_end(HOUSEKEEPING) {
                return;
            }
            let disks: Vec<_> = lock(&self.disks).values().map(|m| m.disk.clone()).collect();
            for disk in disks {
                disk.housekeeping();
            }
            if !self.config.outlive_owner && checked.elapsed() >= Duration::from_secs(1) {
                checked = Instant::now();
                if owner.is_some_and(|(pid, started)| start_time(pid) != started) {
                    return;
                }
            }
        }
    }

    fn converse(&self, stream: &UnixStream) {
        let Ok(reading) = stream.try_clone() else {
            return;
        };
        let mut writing = stream;
        for line in BufReader::new(reading).lines().map_while(Result::ok) {
            let mut answer = match self.obey(&line) {
                Ok(Value::Object(mut fields)) => {
                    fields.insert("ok".into(), json!(true));
                    Value::Object(fields)
                }
                Ok(_) => json!({"ok": true}),
                Err(error) => json!({"ok": false, "error": error.to_string()}),
            }
            .to_string();
            answer.push('\n');
            if writing.write_all(answer.as_bytes()).is_err() {
                return;
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
                plant,
            } => {
                self.disk(&disk_id)?.set_profile(*profile, seed, plant)?;
                Ok(Value::Null)
            }
            Command::Log { disk_id, path } => {
                self.disk(&disk_id)?.switch_log(path.as_deref())?;
                Ok(Value::Null)
            }
            Command::Exact { disk_id, on } => {
                self.disk(&disk_id)?.exact.store(on, Ordering::Relaxed);
                Ok(Value::Null)
            }
            Command::Stats { disk_id } => Ok(self.disk(&disk_id)?.stats()),
            Command::Reset { disk_id } => {
                self.disk(&disk_id)?.reset()?;
                Ok(Value::Null)
            }
            Command::Remove { disk_id } => self.remove(&disk_id),
            Command::List => {
                let disks = lock(&self.disks);
                let list: Vec<_> = disks
                    .values()
                    .map(|mounted| {
                        let mut described = mounted.disk.describe();
                        described["dev"] = json!(mounted.device);
                        described["untuned"] = json!(mounted.untuned);
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
        mount::check_places(&add.mount, &add.backing)?;
        let disk = Arc::new(Disk::new(&add, &self.config.stats_dir)?);
        let tree = Tree::new(
            disk.clone(),
            self.timers.clone(),
            add.readahead_bytes,
            add.max_background,
        )
        .map_err(|error| {
            Error::host(
                format!("backing directory {}", add.backing.display()),
                error,
            )
        })?;
        let device_fd = mount::mount(
            &add.mount,
            add.token.as_deref().unwrap_or(&self.config.token),
        )?;
        let finish = || -> Result<(JoinHandle<()>, [u32; 2]), Error> {
            let mut config = Config::default();
            config.acl = SessionACL::All;
            config.n_threads = Some(self.config.readers.max(1));
            config.clone_fd = true;
            let what = || format!("serving {}", add.mount.display());
            let session = Session::from_fd(tree, device_fd, SessionACL::All, config)
                .map_err(|error| Error::host(what(), error))?;
            let name = what();
            let thread = thread::Builder::new()
                .name("session".into())
                .spawn(move || {
                    if let Err(error) = session.run() {
                        eprintln!("penstock-disk: {name}: {error}");
                    }
                })
                .map_err(|error| Error::host(what(), error))?;
            Ok((thread, mount::device(&add.mount)?))
        };
        let (session, device) = match finish() {
            Ok(finished) => finished,
            Err(error) => {
                let _ = mount::unmount(&add.mount);
                return Err(error);
            }
        };
        let untuned = mount::tune(device, add.dirty_bytes, add.readahead_bytes);
        let mounted = Mounted {
            disk: disk.clone(),
            device,
            untuned,
            session: Some(session),
        };
        lock(&self.disks).insert(add.disk_id.clone(), mounted);
        let rest = self
            .compensate(&disk, add.compensation)
            .and_then(|compensation| {
                disk.set_compensation(compensation);
                disk.switch_log(add.log.as_deref())?;
                disk.reset()?;
                Ok(compensation)
            });
        match rest {
            Ok(compensation) => Ok(json!({"dev": device, "compensation": compensation})),
            Err(error) => {
                let _ = self.remove(&add.disk_id);
                Err(error)
            }
        }
    }

    fn compensate(&self, disk: &Disk, given: Option<Compensation>) -> Result<Compensation, Error> {
        if let Some(given) = given {
            return Ok(given);
        }
        let mut known = lock(&self.calibration);
        match *known {
            Some((when_ns, compensation)) if now_ns() < when_ns + CALIBRATION_LASTS_NS => {
                Ok(compensation)
            }
            _ => {
                let compensation = calibration::calibrate(disk)?;
                *known = Some((now_ns(), compensation));
                Ok(compensation)
            }
        }
    }

    fn remove(&self, disk_id: &str) -> Result<Value, Error> {
        let mut mounted = lock(&self.disks)
            .remove(disk_id)
            .ok_or_else(|| Error::Bad(format!("there is no disk {disk_id:?}")))?;
        let lazy = match mount::unmount(&mounted.disk.mount) {
            Ok(lazy) => lazy,
            Err(error) => {
                lock(&self.disks).insert(disk_id.to_owned(), mounted);
                return Err(error);
            }
        };
        mounted.disk.gone.store(true, Ordering::Relaxed);
        if !lazy {
            if let Some(session) = mounted.session.take() {
                let _ = session.join();
            }
        }
        let stats = mounted.disk.stats();
        mounted.disk.switch_log(None)?;
        let page: PathBuf = self.config.stats_dir.join(format!("{disk_id}.stats"));
        let _ = fs::remove_file(page);
        Ok(json!({"lazy": lazy, "stats": stats}))
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
