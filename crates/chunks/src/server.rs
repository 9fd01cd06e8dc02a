//! Server of a mounted store: configuration, control socket, shutdown.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Config, Session, SessionACL};
use penstock_daemon::process::{self, Owner};
use penstock_daemon::{control, Error as Failure};
use penstock_disk::mount;
use serde::Deserialize;
use serde_json::{json, Value};

use crate::clients::{Client, Role, TOUCHED_EVERY};
use crate::core::{Core, Scope};
use crate::error::Error;
use crate::family::{Rule, DEFAULT_RULE};
use crate::filesystem::Served;
use crate::objects::Objects;
use crate::record::Controller;
use crate::records::Records;
use crate::tree::{Settings, Tree};

const WAIT: Duration = Duration::from_millis(100);
const OWNER_CHECK: Duration = Duration::from_secs(1);

fn default_rule() -> String {
    DEFAULT_RULE.into()
}

fn default_readers() -> usize {
    4
}

/// Configuration of a server, a JSON object.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Directory of the store.
    pub store: PathBuf,
    /// Mount point.
    pub mount: PathBuf,
    /// Token of the mount: its source is `penstock:TOKEN`.
    pub token: String,
    /// Chunking of new versions, such as `fixed:1MiB`.
    pub chunking: String,
    /// Hash of chunks: `blake3` or `sha256`.
    pub hash: String,
    /// Versions with which a new one is compared.
    pub scope: Scope,
    /// Regular expression for the parts of a path that differ between versions of a family.
    #[serde(default = "default_rule")]
    pub family: String,
    /// If set, chunks are not compared with their hashes when they are read.
    #[serde(default)]
    pub trust: bool,
    /// If set, every commit is written to the devices.
    #[serde(default)]
    pub sync: bool,
    /// Number of threads that serve requests.
    #[serde(default = "default_readers")]
    pub readers: usize,
    /// Process that owns the server. The server ends with it unless `outlive_owner` is set.
    pub owner_pid: Option<i32>,
    /// If set, the server continues after its owner ends.
    #[serde(default)]
    pub outlive_owner: bool,
    /// File descriptor to which the server reports that it is ready.
    pub ready_fd: Option<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case")]
enum Command {
    Ping,
    Status,
    Progress,
    Collect,
    Verify,
    Usage,
    Set {
        chunking: Option<String>,
        hash: Option<String>,
    },
    Shutdown,
}

struct Server {
    config: ServerConfig,
    tree: Arc<Tree>,
    stop: AtomicBool,
    /// True once the store is mounted.
    ready: AtomicBool,
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Io { what, source } => Failure::host(what, source),
        other => Failure::Bad(other.to_string()),
    }
}

fn bad(key: &str) -> impl Fn(String) -> Failure + '_ {
    move |why| Failure::Bad(format!("{key}: {why}"))
}

/// Serve a store until it is shut down. `config_json` is a [`ServerConfig`].
pub fn run(config_json: &str, controller: Option<Box<dyn Controller>>) -> Result<(), Failure> {
    let config: ServerConfig = serde_json::from_str(config_json)
        .map_err(|error| Failure::Bad(format!("configuration of the server: {error}")))?;
    process::prepare();
    let settings = Settings {
        chunking: config.chunking.parse().map_err(bad("chunking"))?,
        hash: config.hash.parse().map_err(bad("hash"))?,
        sync: config.sync,
    };
    let rule = Rule::new(&config.family).map_err(failure)?;
    let objects = Objects::open(&config.store, true, config.trust).map_err(failure)?;
    let client = Client::register(&objects, Role::Writer).map_err(failure)?;
    let core = Arc::new(Core::new(objects, rule, config.scope));
    core.write_as(client);
    // without earlier versions, fewer chunks are recognised as similar, and the store needs more space
    if let Err(error) = core.find_earlier() {
        eprintln!("penstock-dedup: earlier versions: {error}");
    }
    let tree = Arc::new(Tree::new(core, settings, Records::new(controller)));
    let owner = config.owner_pid.map(Owner::new);
    let server = Arc::new(Server {
        config,
        tree,
        stop: AtomicBool::new(false),
        ready: AtomicBool::new(false),
    });
    let listener = control::listen(&server.config.socket)?;
    let accepting = server.clone();
    spawn("control", move || {
        for stream in control::incoming(&listener) {
            let server = accepting.clone();
            let _ = spawn("control", move || {
                control::converse(&stream, |line| server.obey(line));
            });
        }
    })?;
    let session = server.mount().inspect_err(|_| server.tree.core.retire())?;
    server.ready.store(true, Ordering::Release);
    process::say_ready(server.config.ready_fd);
    server.wait(owner, &session);
    // another program may have mounted something there since: leave that in place
    let lazy = !server.is_mounted() || mount::unmount(&server.config.mount)?;
    if !lazy {
        let _ = session.join();
    }
    server.tree.core.retire();
    let _ = std::fs::remove_file(&server.config.socket);
    Ok(())
}

fn spawn(
    name: &str,
    act: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, Failure> {
    thread::Builder::new()
        .name(name.into())
        .spawn(act)
        .map_err(|error| Failure::host(format!("starting the thread {name}"), error))
}

impl Server {
    fn mount(&self) -> Result<thread::JoinHandle<()>, Failure> {
        let device = mount::mount(&self.config.mount, &self.config.token)?;
        let mut options = Config::default();
        options.acl = SessionACL::All;
        options.n_threads = Some(self.config.readers.max(1));
        options.clone_fd = true;
        let served = Served(self.tree.clone());
        let what = format!("serving {}", self.config.mount.display());
        let started = Session::from_fd(served, device, SessionACL::All, options)
            .map_err(|error| Failure::host(what.clone(), error))
            .and_then(|session| {
                spawn("session", move || {
                    if let Err(error) = session.run() {
                        eprintln!("penstock-dedup: {what}: {error}");
                    }
                })
            });
        if started.is_err() {
            let _ = mount::unmount(&self.config.mount);
        }
        started
    }

    /// True if the uppermost mount at the mount point belongs to this server: proc_pid_mountinfo(5).
    fn is_mounted(&self) -> bool {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let table = String::from_utf8_lossy(&table);
        let point = self.config.mount.to_string_lossy();
        let point = point.replace('\\', "\\134").replace(' ', "\\040");
        let point = point.replace('\t', "\\011").replace('\n', "\\012");
        let last = table
            .lines()
            .rfind(|line| line.split(' ').nth(4) == Some(point.as_str()));
        let source = format!(" penstock:{} ", self.config.token);
        last.is_some_and(|line| line.contains(&source))
    }

    /// Wait for the end: by a request, by a signal, or after the end of the owner or of the mount.
    fn wait(&self, owner: Option<Owner>, session: &thread::JoinHandle<()>) {
        let (mut checked, mut touched) = (Instant::now(), Instant::now());
        while !self.stop.load(Ordering::Acquire) && !session.is_finished() {
            if process::wait_for_termination(WAIT) {
                return;
            }
            if touched.elapsed() >= TOUCHED_EVERY {
                touched = Instant::now();
                if let Err(error) = self.tree.core.renew() {
                    eprintln!("penstock-dedup: {error}");
                }
            }
            if !self.config.outlive_owner && checked.elapsed() >= OWNER_CHECK {
                checked = Instant::now();
                if owner.is_some_and(|owner| owner.is_gone()) {
                    return;
                }
            }
        }
    }

    fn obey(&self, line: &str) -> Result<Value, Failure> {
        let command: Command = serde_json::from_str(line)
            .map_err(|error| Failure::Bad(format!("command: {error}")))?;
        let core = &self.tree.core;
        let value = match command {
            Command::Ping if !self.ready.load(Ordering::Acquire) => {
                return Err(Failure::Bad("it is not mounted yet".into()))
            }
            Command::Ping => json!({"pid": std::process::id()}),
            Command::Status => self.status(),
            Command::Progress => {
                let [done, all] = &core.progress;
                json!({"done": done.load(Ordering::Relaxed), "all": all.load(Ordering::Relaxed)})
            }
            Command::Collect => json!(core.collect().map_err(failure)?),
            Command::Verify => json!(core.verify().map_err(failure)?),
            Command::Usage => json!(core.usage().map_err(failure)?),
            Command::Set { chunking, hash } => self.set(chunking, hash)?,
            Command::Shutdown => {
                self.stop.store(true, Ordering::Release);
                Value::Null
            }
        };
        Ok(value)
    }

    fn status(&self) -> Value {
        let settings = self.tree.settings();
        let (totals, records) = self.tree.records.read();
        json!({
            "store": self.tree.core.objects.root(),
            "mount": self.config.mount,
            "chunking": settings.chunking.to_string(),
            "hash": settings.hash,
            "controlled": self.tree.records.has_controller(),
            "totals": totals,
            "records": records,
        })
    }

    fn set(&self, chunking: Option<String>, hash: Option<String>) -> Result<Value, Failure> {
        let chunking = chunking
            .map(|text| text.parse().map_err(bad("chunking")))
            .transpose()?;
        let hash = hash
            .map(|text| text.parse().map_err(bad("hash")))
            .transpose()?;
        let mut settings = self
            .tree
            .settings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        settings.chunking = chunking.unwrap_or(settings.chunking);
        settings.hash = hash.unwrap_or(settings.hash);
        Ok(json!({"chunking": settings.chunking.to_string(), "hash": settings.hash}))
    }
}
