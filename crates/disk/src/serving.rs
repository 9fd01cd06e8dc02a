//! A disk at its mount point: start, stop, and restart after a power cut.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{mpsc, Arc, OnceLock};
use std::thread::{self, JoinHandle};

use fuser::{Config, Rings, Session, SessionACL};
use penstock_daemon::clock::{be_punctual, now_ns};
use penstock_daemon::{process, Error};
use serde_json::{json, Value};

use crate::change::{Applied, Cause};
use crate::config::Transport;
use crate::disk::Disk;
use crate::gate::OFF;
use crate::mount;
use crate::patch::PowerCut;
use crate::space::Space;
use crate::timer::Timers;
use crate::tree::Tree;

/// Mount options of a disk.
pub struct MountOptions {
    /// Reader threads.
    pub readers: usize,
    /// Maximum readahead of the kernel, in bytes.
    pub readahead_bytes: u32,
    /// Maximum number of background requests.
    pub max_background: u16,
    /// Limit of dirty pages, in bytes.
    pub dirty_bytes: u64,
    /// Token of the mount.
    pub token: String,
    /// True if mounts propagate to other mount namespaces.
    pub shared: bool,
    /// Transport of requests.
    pub transport: Transport,
}

/// Maximum number of requests in progress per ring.
const RING_DEPTH: u16 = 256;

/// Rings whose threads also send the disk's replies.
fn rings_of(disk: &Arc<Disk>, timers: Timers, device: Arc<OnceLock<[u32; 2]>>) -> Rings {
    let goes_first = disk.goes_first();
    let mount = disk.mount.clone();
    Rings {
        depth: RING_DEPTH,
        bound: !goes_first,
        pacer: Box::new(move |waker| {
            be_punctual();
            if goes_first {
                process::go_first();
            }
            Box::new(timers.ring(waker))
        }),
        failed: Box::new(move |error| {
            eprintln!(
                "penstock-disk: {}: a ring failed ({error}); its requests fail from now on",
                mount.display()
            );
            mount::abort(&mount, device.get().copied());
        }),
    }
}

/// A mounted disk.
pub struct Serving {
    disk: Arc<Disk>,
    timers: Timers,
    options: MountOptions,
    /// Device number of the mount.
    pub device: [u32; 2],
    /// Page cache settings that this host refuses.
    pub untuned: Vec<String>,
    session: Option<JoinHandle<()>>,
}

impl Serving {
    /// Mount a disk.
    pub fn begin(disk: Arc<Disk>, timers: Timers, options: MountOptions) -> Result<Self, Error> {
        if options.shared {
            mount::carry(&disk.mount, &options.token)?;
        }
        let shared = options.shared;
        let mut serving = Serving {
            disk,
            timers,
            options,
            device: [0, 0],
            untuned: Vec::new(),
            session: None,
        };
        match serving.go_up() {
            Ok(()) => Ok(serving),
            Err(error) => {
                if shared {
                    let _ = mount::unmount(&serving.disk.mount);
                }
                Err(error)
            }
        }
    }

    fn go_up(&mut self) -> Result<(), Error> {
        let rings = self.options.transport == Transport::IoUring && fuser::rings_possible();
        match self.mount(rings) {
            Err(error) if rings => {
                eprintln!("penstock-disk: io_uring: {error}; using /dev/fuse");
                self.mount(false)
            }
            result => result,
        }
    }

    fn mount(&mut self, rings: bool) -> Result<(), Error> {
        let (disk, options) = (&self.disk, &self.options);
        let mut tree = Tree::new(
            disk.clone(),
            self.timers.clone(),
            options.readahead_bytes,
            options.max_background,
        )
        .map_err(|error| {
            Error::host(
                format!("backing directory {}", disk.backing.display()),
                error,
            )
        })?;
        tree.rings = rings;
        let notifier = tree.notifier.clone();
        let device = Arc::new(OnceLock::new());
        let device_fd = mount::mount(&disk.mount, &options.token)?;
        let finish = || -> Result<(JoinHandle<()>, [u32; 2]), Error> {
            let mut config = Config::default();
            config.acl = SessionACL::All;
            config.n_threads = Some(options.readers.max(1));
            config.clone_fd = true;
            let what = || format!("serving {}", disk.mount.display());
            let session = Session::from_fd(tree, device_fd, SessionACL::All, config)
                .map_err(|error| Error::host(what(), error))?;
            let _ = notifier.set(session.notifier());
            let (served, timers, name) = (disk.clone(), self.timers.clone(), what());
            let device_of_rings = device.clone();
            let (sender, ready) = mpsc::channel();
            disk.has_rings.store(session.has_rings(), Ordering::Relaxed);
            let thread = thread::Builder::new()
                .name("session".into())
                .spawn(move || {
                    process::own_umask(0); // the kernel has applied the caller's umask
                    let ended = if session.has_rings() {
                        let rings = rings_of(&served, timers, device_of_rings);
                        session.run_on_rings(rings, |result| _ = sender.send(result))
                    } else {
                        if served.goes_first() {
                            process::go_first(); // the readers that it starts inherit this
                        }
                        _ = sender.send(Ok(()));
                        session.run()
                    };
                    // A power cut also ends the session with an error.
                    if let (Err(error), 0) = (ended, served.gate.up() & OFF) {
                        eprintln!("penstock-disk: {name}: {error}");
                    }
                })
                .map_err(|error| Error::host(what(), error))?;
            let ended = || io::Error::other("the session ended");
            let started = ready.recv().unwrap_or_else(|_| Err(ended()));
            started.map_err(|error| Error::host(what(), error))?;
            let number = mount::device(&disk.mount)?;
            _ = device.set(number);
            Ok((thread, number))
        };
        match finish() {
            Ok((session, device)) => {
                self.untuned = mount::tune(device, options.dirty_bytes, options.readahead_bytes);
                self.session = Some(session);
                self.device = device;
                Ok(())
            }
            Err(error) => {
                let _ = mount::unmount(&disk.mount);
                Err(error)
            }
        }
    }

    /// Unmount permanently; lazily if files are open. Return true if the unmount was lazy.
    pub fn end(&mut self) -> Result<bool, Error> {
        let lazy = mount::unmount(&self.disk.mount)?;
        if self.options.shared {
            mount::unmount(&self.disk.mount)?;
        }
        self.disk.gone.store(true, Ordering::Relaxed);
        if !lazy {
            if let Some(session) = self.session.take() {
                let _ = session.join();
            }
        }
        Ok(lazy)
    }

    /// Cut the power and restore it. The page cache and the disk lose all unflushed data (or a part of it, in a
    /// torn cut), open files become unusable, and the disk is mounted again.
    pub fn cut_power(
        &mut self,
        planned_ns: u64,
        cut: PowerCut,
        cause: &Cause,
    ) -> Result<Value, Error> {
        let disk = self.disk.clone();
        if disk.gate.unsynced().is_none() {
            return Err(Error::Bad(format!(
                "disk {:?} does not keep apart what is not flushed: put it up as volatile",
                disk.disk_id
            )));
        }
        // Flushes acknowledged before this time must survive.
        let off_ns = now_ns();
        // No change reaches the files from here on: writes and flushes in progress hold the lock.
        disk.gate.set_off(true);
        let mut unsynced = disk.gate.unsynced();
        mount::cut(&disk.mount, self.device)?;
        if let Some(session) = self.session.take() {
            drop(unsynced);
            let _ = session.join();
            unsynced = disk.gate.unsynced();
        }
        let root = std::fs::File::open(&disk.backing)
            .map_err(|error| Error::host(disk.backing.display().to_string(), error))?;
        let lost = unsynced
            .as_mut()
            .map(|unsynced| unsynced.lose(root.as_raw_fd(), cut.mode, cut.seed));
        drop(unsynced);
        let size = disk.gate.space().map(|space| space.size_bytes);
        if let Some(size_bytes) = size {
            let space = Space::measure(size_bytes, &disk.backing)
                .map_err(|error| Error::host(disk.backing.display().to_string(), error))?;
            disk.gate.set_space(Some(space));
        }
        disk.gate.set_off(false);
        self.go_up()?;
        let verified_ns = now_ns();
        let result = json!({"power_cut": {"lost": lost, "dev": self.device}});
        let failed = lost.as_ref().and_then(|lost| lost.failed.first().cloned());
        disk.note(Applied {
            planned_ns,
            applied_ns: off_ns,
            verified_ns,
            asked: json!({"power_cut": {"mode": cut.mode, "seed": cut.seed}}),
            found: result.clone(),
            error: failed,
            active: disk.active(),
            cause: cause.clone(),
        });
        Ok(json!({
            "dev": self.device,
            "off_ns": off_ns,
            "on_ns": verified_ns,
            "lost": lost,
        }))
    }
}
